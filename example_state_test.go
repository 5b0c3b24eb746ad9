package zsync_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example keeps a setting that several processes read and change.
func ExampleValue() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	type limits struct{ Requests, Burst int }
	v := zsync.NewValue[limits](s, "/config/limits")
	if err := v.Store(ctx, limits{Requests: 100, Burst: 10}); err != nil {
		fmt.Println(err)
		return
	}
	l, err := v.Update(ctx, func(l limits) (limits, error) {
		l.Burst *= 2
		return l, nil
	})
	fmt.Println(l, err)
	_, version, err := v.Load(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(v.CompareAndSwap(ctx, version, limits{Requests: 50}))
	fmt.Println(v.CompareAndSwap(ctx, version, limits{Requests: 75}))
	// Output:
	// {100 20} <nil>
	// true <nil>
	// false <nil>
}

// This example follows a value.
func ExampleValue_Watch() {
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

	v := zsync.NewValue[string](s, "/config/greeting", zsync.WithCodec(zsync.Raw))
	if err := v.Store(ctx, "hello"); err != nil {
		fmt.Println(err)
		return
	}
	for greeting := range v.Watch(ctx) {
		fmt.Println(greeting)
		if greeting == "bye" {
			break
		}
		if err := v.Store(ctx, "bye"); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// hello
	// bye
}

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

// One of several callers fetches the price, and all get it.
func ExampleFlight() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	prices := zsync.NewFlight[string](s, "/cache/prices", time.Minute)
	fetch := func(ctx context.Context) (string, error) {
		fmt.Println("fetching")
		return "1.08", nil
	}
	var callers sync.WaitGroup
	for range 3 { // goroutines here; usually in many processes
		callers.Go(func() {
			price, _, err := prices.Do(ctx, "EUR", fetch)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(price)
		})
	}
	callers.Wait()
	// Output:
	// fetching
	// 1.08
	// 1.08
	// 1.08
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
