module github.com/zsync/zsync/examples

go 1.25.9

require (
	github.com/google/uuid v1.6.0
	github.com/vbauerster/mpb/v8 v8.9.3
	github.com/zsync/zsync v0.1.0
	golang.org/x/sys v0.39.0
)

require (
	github.com/VividCortex/ewma v1.2.0 // indirect
	github.com/acarl005/stripansi v0.0.0-20180116102854-5a71ef0e047d // indirect
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
)
