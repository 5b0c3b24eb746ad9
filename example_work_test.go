package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// Work calls a function for each element. A function that fails gets its element again.
func ExampleQueue_Work() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	jobs := zsync.NewQueue[string](s, "/jobs", zsync.WithMaxAttempts(5))
	if err := jobs.Send(ctx, "resize image 7"); err != nil {
		log.Fatal(err)
	}
	attempts := 0
	err = jobs.Work(ctx, 1, func(ctx context.Context, job string) error {
		if attempts++; attempts == 1 {
			return errors.New("out of memory") // again, after a pause
		}
		fmt.Println(job, "in attempt", attempts)
		cancel() // Work returns when its functions have returned
		return nil
	})
	fmt.Println(err)
	// Output:
	// resize image 7 in attempt 2
	// zsync: work /jobs: context canceled
}

// A program that does not know whether its Send was stored sends again with the same ID.
func ExampleQueue_SendID() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	orders := zsync.NewQueue[string](s, "/orders")
	for range 2 {
		sent, err := orders.SendID(ctx, "order-4711", "two cups")
		fmt.Println(sent, err)
	}
	n, err := orders.Len(ctx)
	fmt.Println(n, err)
	// Output:
	// true <nil>
	// false <nil>
	// 1 <nil>
}

// The orders of a customer are worked on in order, one at a time.
func ExampleWithKey() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	type order struct{ Customer, Item string }
	orders := zsync.NewQueue[order](s, "/orders", zsync.WithKey(func(o order) string { return o.Customer }))
	if err := orders.Send(ctx, order{"ada", "tea"}, order{"ada", "cups"}); err != nil {
		log.Fatal(err)
	}
	orders.Work(ctx, 4, func(ctx context.Context, o order) error { // four at a time, of four customers
		fmt.Println(o.Customer, o.Item)
		if o.Item == "cups" {
			cancel()
		}
		return nil
	})
	// Output:
	// ada tea
	// ada cups
}

// A transaction acknowledges an element and sends its result, both or neither.
func ExampleDelivery_Txn() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	raw, cooked := zsync.NewQueue[string](s, "/raw"), zsync.NewQueue[string](s, "/cooked")
	if err := raw.Send(ctx, "egg"); err != nil {
		log.Fatal(err)
	}
	d, err := raw.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := d.Txn(ctx, cooked.SendOp("boiled "+d.Value)); err != nil {
		log.Fatal(err)
	}
	meal, _, err := cooked.Peek(ctx)
	fmt.Println(meal, err)
	// Output: boiled egg <nil>
}
