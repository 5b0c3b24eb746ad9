package zsync_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example lets three processes run at most two exports at a time between
// them.
func ExampleSemaphore() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()

	var running, most, finished atomic.Int64
	var processes sync.WaitGroup
	for range 3 { // three processes
		s, err := zsync.Connect(ctx, srv.Addr())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		exports := zsync.NewSemaphore(s, "/exports", 2)
		for range 4 {
			processes.Go(func() {
				if err := exports.Acquire(ctx, 1); err != nil {
					fmt.Println(err)
					return
				}
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				finished.Add(1)
				running.Add(-1)
				if err := exports.Release(1); err != nil {
					fmt.Println(err)
				}
			})
		}
	}
	processes.Wait()
	fmt.Println(finished.Load(), "exports, never more than two at a time:", most.Load() <= 2)
	// Output:
	// 12 exports, never more than two at a time: true
}

// This example takes most of a budget at once, and gives it back in parts.
func ExampleSemaphore_Release() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	memory := zsync.NewSemaphore(s, "/memory", 4096) // MiB, among all processes
	other := zsync.NewSemaphore(s, "/memory", 4096)
	fmt.Println(memory.Acquire(ctx, 3000))
	fmt.Println(other.TryAcquire(ctx, 2000))
	fmt.Println(memory.Release(1000))
	fmt.Println(other.TryAcquire(ctx, 2000))
	fmt.Println(memory.Release(2001))
	// Output:
	// <nil>
	// false <nil>
	// <nil>
	// true <nil>
	// zsync: release /memory: not held
}
