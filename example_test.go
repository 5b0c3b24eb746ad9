package zsync_test

import (
	"context"
	"fmt"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// connect connects to a server of its own, as the examples do that need no more
// than one process.
func connect(ctx context.Context) (s *zsync.Session, end func(), err error) {
	srv := zktest.NewServer()
	s, err = zsync.Connect(ctx, srv.Addr())
	if err != nil {
		srv.Close()
		return nil, nil, err
	}
	return s, func() { s.Close(); srv.Close() }, nil
}

// This example has one process at a time work on the accounts. It brings its own
// server; yours is named to Connect as "zk1:2181,zk2:2181,zk3:2181".
func Example() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()

	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	accounts := zsync.NewMutex(s, "/locks/accounts")
	err = accounts.Do(ctx, func(ctx context.Context) error {
		// ctx ends, with cause zsync.ErrLost, if the lock is lost.
		fmt.Println("one process at a time")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// one process at a time
	// <nil>
}

// This example runs a job for each instant once, however many processes run it.
func ExampleSchedule() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	midnight := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 3 { // as three processes would
		nightly := zsync.NewSchedule(s, "/jobs/nightly")
		ran, err := nightly.Do(ctx, midnight, func(ctx context.Context) error {
			fmt.Println("the job")
			return nil
		})
		fmt.Println(ran, err)
	}
	// Output:
	// the job
	// true <nil>
	// false <nil>
	// false <nil>
}

// This example changes an entry only if nobody has done so since it was read.
func ExampleMap() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	flags := zsync.NewMap[bool](s, "/flags")
	fmt.Println(flags.LoadOrStore(ctx, "dark mode", false))
	_, seen, err := flags.Load(ctx, "dark mode")
	fmt.Println(err)
	fmt.Println(flags.CompareAndSwap(ctx, "dark mode", seen, true))
	fmt.Println(flags.CompareAndSwap(ctx, "dark mode", seen, false)) // it has changed since
	err = flags.Range(ctx, func(key string, on bool) bool {
		fmt.Println(key, on)
		return true
	})
	fmt.Println(err)
	// Output:
	// false false <nil>
	// <nil>
	// true <nil>
	// false <nil>
	// dark mode true
	// <nil>
}

// This example numbers invoices, in all processes together.
func ExampleInt64() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	invoices := zsync.NewInt64(s, "/invoices")
	for range 3 {
		fmt.Println(invoices.Add(ctx, 1))
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}

// This example shows who is there, with what each says of itself.
func ExampleGroup() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	type worker struct{ Addr string }
	workers := zsync.NewGroup[worker](s, "/workers")
	one, err := workers.Join(ctx, "one", worker{"10.0.0.1:80"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := workers.Join(ctx, "two", worker{"10.0.0.2:80"}); err != nil {
		fmt.Println(err)
		return
	}
	show := func() {
		members, err := workers.Members(ctx)
		for _, m := range members {
			fmt.Println(m.ID, m.Info.Addr)
		}
		fmt.Println(len(members), "members", err)
	}
	show()
	fmt.Println(one.Leave())
	show()
	// Output:
	// one 10.0.0.1:80
	// two 10.0.0.2:80
	// 2 members <nil>
	// <nil>
	// two 10.0.0.2:80
	// 1 members <nil>
}
