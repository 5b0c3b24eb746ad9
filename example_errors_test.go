package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// The error of a release has the reason of a loss.
func ExampleLostError() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	m := zsync.NewMutex(s, "/locks/accounts")
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	srv.Expire(s.ID()) // as if the network had failed for longer than the session timeout
	<-m.Lost()

	var lost *zsync.LostError
	if err := m.Unlock(); errors.As(err, &lost) {
		fmt.Println(lost.Reason)
	}
	// Output: the session has expired
}

// The error of a wait that ended has the number of contenders ahead, and the holder.
func ExampleWaitError() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	if err := zsync.NewMutex(s, "/locks/accounts").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	err = zsync.NewMutex(s, "/locks/accounts").Lock(short) // another value, as in another process
	var wait *zsync.WaitError
	if errors.As(err, &wait) {
		// After a second, wait.Behind.Owner is the owner of a holder in another process too.
		fmt.Println(wait.Place, "ahead;", errors.Is(err, context.DeadlineExceeded))
	}
	// Output: 1 ahead; true
}

// An Observer counts events, for metrics.
func ExampleWithObserver() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	events := make(chan zsync.EventKind, 100)
	s, err := zsync.Connect(ctx, srv.Addr(), zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) { events <- e.Kind })))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	if err := zsync.NewMutex(s, "/locks/accounts").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	for kind := range events {
		if kind == zsync.EventAcquired {
			fmt.Println("a lock was acquired")
			break
		}
	}
	// Output: a lock was acquired
}
