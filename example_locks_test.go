package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example counts in three processes, one at a time.
func ExampleMutex() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()

	count := 0 // of the cluster
	var processes sync.WaitGroup
	for range 3 {
		s, err := zsync.Connect(ctx, srv.Addr())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		m := zsync.NewMutex(s, "/locks/count")
		processes.Go(func() {
			for range 10 {
				if err := m.Lock(ctx); err != nil {
					fmt.Println(err)
					return
				}
				count++
				if err := m.Unlock(); err != nil {
					fmt.Println(err) // zsync.ErrLost: another may have counted beside us
				}
			}
		})
	}
	processes.Wait()
	fmt.Println(count)
	// Output:
	// 30
}

// This example calls a function that takes the lock that its caller has taken
// already.
func ExampleMutex_Do() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	m := zsync.NewMutex(s, "/locks/report")

	write := func(ctx context.Context) error {
		return m.Do(ctx, func(context.Context) error {
			fmt.Println("write")
			return nil
		})
	}
	err = m.Do(ctx, func(ctx context.Context) error {
		if err := m.Lock(ctx); errors.Is(err, zsync.ErrDeadlock) {
			fmt.Println("Lock would wait for itself")
		}
		return write(ctx) // Do with Do's context runs at once
	})
	fmt.Println(err)
	// Output:
	// Lock would wait for itself
	// write
	// <nil>
}

// This example gives each holder's token to a store that refuses what comes from
// a holder of the past.
func ExampleMutex_Token() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	m := zsync.NewMutex(s, "/locks/store")

	var greatest int64 // kept by the store, beside the data
	store := func(token int64, data string) {
		if token < greatest {
			fmt.Println("refused:", data)
			return
		}
		greatest = token
		fmt.Println("stored:", data)
	}
	hold := func() (token int64) {
		err := m.Do(ctx, func(ctx context.Context) (err error) {
			token, err = m.Token(ctx)
			return err
		})
		if err != nil {
			fmt.Println(err)
		}
		return token
	}
	first := hold() // and then it sleeps for too long
	second := hold()
	store(second, "by the second holder")
	store(first, "by the first")
	// Output:
	// stored: by the second holder
	// refused: by the first
}

// This example writes to ZooKeeper only if the lock is still held when the
// servers apply it.
func ExampleMutex_Txn() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	m := zsync.NewMutex(s, "/locks/config")

	err = m.Do(ctx, func(ctx context.Context) error {
		_, err := m.Txn(ctx,
			&zk.CreateRequest{Path: "/config", Data: []byte("v1"), Acl: zk.WorldACL(zk.PermAll)},
			&zk.CreateRequest{Path: "/config/limit", Data: []byte("10"), Acl: zk.WorldACL(zk.PermAll)})
		return err
	})
	fmt.Println(err)
	_, err = m.Txn(ctx, &zk.SetDataRequest{Path: "/config", Version: -1})
	fmt.Println(errors.Is(err, zsync.ErrNotLocked))
	// Output:
	// <nil>
	// true
}

// This example lets two read at once, and one write.
func ExampleRWMutex() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	here, there := zsync.NewRWMutex(s, "/locks/index"), zsync.NewRWMutex(s, "/locks/index")
	fmt.Println(here.RLock(ctx), there.RLock(ctx))
	fmt.Println(here.TryLock(ctx))
	fmt.Println(here.RUnlock(), there.RUnlock())

	fmt.Println(here.Lock(ctx))
	fmt.Println(there.TryRLock(ctx))
	fmt.Println(here.Downgrade(ctx)) // from here on others may read too, and nobody has written in between
	fmt.Println(there.TryRLock(ctx))
	fmt.Println(here.RUnlock(), there.RUnlock())
	// Output:
	// <nil> <nil>
	// false <nil>
	// <nil> <nil>
	// <nil>
	// false <nil>
	// <nil>
	// true <nil>
	// <nil> <nil>
}

// This example moves something from one account to another. Whoever moves it the
// other way does not wait for ever.
func ExampleLockAll() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	from, to := zsync.NewMutex(s, "/accounts/7"), zsync.NewMutex(s, "/accounts/3")
	unlock, err := zsync.LockAll(ctx, from, to)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("both are ours")
	fmt.Println(unlock())
	// Output:
	// both are ours
	// <nil>
}

// A Mutex becomes a sync.Locker, for code that takes one.
func ExampleSyncLocker() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	increment := func(l sync.Locker, n *int) { // does not know zsync
		l.Lock()
		defer l.Unlock()
		*n++
	}
	n := 0
	increment(zsync.SyncLocker(ctx, zsync.NewMutex(s, "/locks/n")), &n)
	fmt.Println(n)
	// Output: 1
}

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
	// zsync: release /memory: 2001 permits, 2000 held
}

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
