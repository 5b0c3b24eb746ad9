package zsync_test

import (
	"context"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// In this example one process waits until another has opened the shop.
func ExampleCond() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	connect := func() (*zsync.Cond, *zsync.Session) {
		s, err := zsync.Connect(ctx, srv.Addr())
		if err != nil {
			panic(err)
		}
		return zsync.NewCond(s, "/shop/changed", zsync.NewMutex(s, "/shop/lock")), s
	}
	customer, s1 := connect()
	defer s1.Close()
	owner, s2 := connect()
	defer s2.Close()

	open := false // in life, something that both processes can see
	admitted := make(chan error)
	go func() {
		if err := customer.L.Lock(ctx); err != nil {
			admitted <- err
			return
		}
		for !open {
			if err := customer.Wait(ctx); err != nil {
				admitted <- err // the lock is not held
				return
			}
		}
		admitted <- customer.L.Unlock()
	}()

	if err := owner.L.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	open = true
	fmt.Println("the shop opens:", owner.Broadcast(ctx), owner.L.Unlock())
	fmt.Println("the customer is in:", <-admitted)
	// Output:
	// the shop opens: <nil> <nil>
	// the customer is in: <nil>
}
