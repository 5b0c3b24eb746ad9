package zsync_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example elects one of two candidates, and then the other.
func ExampleElection() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	a := zsync.NewElection(s, "/election", zsync.WithID("a"))
	b := zsync.NewElection(s, "/election", zsync.WithID("b"))
	leaders := a.Observe(ctx)
	for _, e := range []*zsync.Election{a, b} {
		if err := e.Campaign(ctx); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println((<-leaders).Owner, "leads")
		if err := e.Resign(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// a leads
	// b leads
}

// This example leads until there is nothing left to do. A function that is
// interrupted by the loss of its leadership is called again in the next.
func ExampleElection_Run() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	finished := errors.New("finished")
	e := zsync.NewElection(s, "/election")
	err = e.Run(ctx, func(ctx context.Context) error {
		for i := range 3 {
			if ctx.Err() != nil {
				return context.Cause(ctx) // the leadership is lost
			}
			fmt.Println("step", i)
		}
		return finished
	})
	fmt.Println(errors.Is(err, finished))
	// Output:
	// step 0
	// step 1
	// step 2
	// true
}
