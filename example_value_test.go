package zsync_test

import (
	"context"
	"fmt"

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
