package zsync_test

import (
	"context"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example migrates a database once, however many processes start.
func ExampleOnce() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()

	for range 3 { // three processes
		s, err := zsync.Connect(ctx, srv.Addr())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		err = zsync.NewOnce(s, "/migrations/7").Do(ctx, func(ctx context.Context) error {
			fmt.Println("migrating")
			return nil
		})
		fmt.Println("done:", err)
	}
	// Output:
	// migrating
	// done: <nil>
	// done: <nil>
	// done: <nil>
}

// This example makes a key once, and gives every process the same.
func ExampleOnceValue() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()

	for i := range 3 { // three processes
		s, err := zsync.Connect(ctx, srv.Addr())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		key := zsync.OnceValue(s, "/keys/cookies", func(ctx context.Context) (string, error) {
			return fmt.Sprintf("made by process %d", i), nil
		})
		fmt.Println(key(ctx))
	}
	// Output:
	// made by process 0 <nil>
	// made by process 0 <nil>
	// made by process 0 <nil>
}

func ExampleOnceFunc() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	setup := zsync.OnceFunc(s, "/setup", func(ctx context.Context) error {
		fmt.Println("setting up")
		return nil
	})
	fmt.Println(setup(ctx), setup(ctx))
	// Output:
	// setting up
	// <nil> <nil>
}
