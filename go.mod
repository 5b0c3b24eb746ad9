module github.com/zsync/zsync

go 1.25

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/google/uuid v1.6.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
)
