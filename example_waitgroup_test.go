package zsync_test

import (
	"context"
	"fmt"
	"sync"

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

// This example lets three parties begin and end each round of work together.
func ExampleWaitGroup_Enter() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	const parties, rounds = 3, 2

	var all sync.WaitGroup
	for range parties {
		s, err := zsync.Connect(ctx, srv.Addr()) // as in a process of its own
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		all.Go(func() {
			wg := zsync.NewWaitGroup(s, "/render")
			for round := range rounds {
				if err := wg.Enter(ctx, parties); err != nil {
					fmt.Println(err)
					return
				}
				fmt.Println("round", round)
				if err := wg.Leave(ctx); err != nil {
					fmt.Println(err)
					return
				}
			}
		})
	}
	all.Wait()
	// Output:
	// round 0
	// round 0
	// round 0
	// round 1
	// round 1
	// round 1
}
