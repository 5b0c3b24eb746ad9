package zsync_test

import (
	"context"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example waits in one process for tasks that another has begun.
func ExampleWaitGroup() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	worker, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer worker.Close()
	boss, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer boss.Close()

	tasks := zsync.NewWaitGroup(worker, "/jobs/nightly")
	for range 3 {
		if err := tasks.Go(ctx, func() { fmt.Println("done") }); err != nil {
			fmt.Println(err)
		}
	}
	if err := zsync.NewWaitGroup(boss, "/jobs/nightly").Wait(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("all done")
	// Output:
	// done
	// done
	// done
	// all done
}
