module github.com/zsync/zsync/bench

go 1.25.9

require github.com/zsync/zsync v0.1.0

require (
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/google/uuid v1.6.0 // indirect
)
