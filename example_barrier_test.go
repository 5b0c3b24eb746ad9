package zsync_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example holds workers back until a migration is over.
func ExampleBarrier() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	gate := zsync.NewBarrier(s, "/migration")
	if err := gate.Close(ctx); err != nil {
		fmt.Println(err)
		return
	}
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			if err := gate.Wait(ctx); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("working")
		})
	}
	fmt.Println("migrating")
	if err := gate.Open(ctx); err != nil {
		fmt.Println(err)
		return
	}
	workers.Wait()
	// Output:
	// migrating
	// working
	// working
	// working
}
