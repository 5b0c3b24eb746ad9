package zsync_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// The only process of a fleet owns all shards.
func ExamplePartition() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	owned := make(chan string)
	ended := make(chan error)
	go func() {
		ended <- zsync.NewPartition(s, "/ingest").Run(ctx, []string{"eu", "us"}, func(ctx context.Context, shard string) error {
			owned <- shard
			<-ctx.Done() // work on the shard until it moves
			return nil
		})
	}()
	shards := []string{<-owned, <-owned}
	slices.Sort(shards)
	fmt.Println(shards)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// [eu us]
	// zsync: run /ingest: context canceled
}
