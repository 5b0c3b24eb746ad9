module github.com/zsync/zsync/examples/cron

go 1.25.9

require (
	github.com/go-co-op/gocron/v2 v2.19.1
	github.com/robfig/cron/v3 v3.0.1
	github.com/zsync/zsync v0.1.0
)

require (
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
)
