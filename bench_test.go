package zsync_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// The benchmarks are of what the library and the test server cost in one process,
// where nothing takes time but the CPU; those against real servers are in bench.

// on runs f with a session of its own.
func on(b *testing.B, prepare func(s *zsync.Session) (f func(ctx context.Context))) {
	f := prepare(open(b, zktest.Start(b)))
	f(b.Context()) // what is made once
	b.ReportAllocs()
	for b.Loop() {
		f(b.Context())
	}
}

func BenchmarkLockUnlockFree(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		m := zsync.NewMutex(s, "/m")
		return func(ctx context.Context) { must(b, m.Lock(ctx)); must(b, m.Unlock()) }
	})
}

func BenchmarkLockUnlockRetained(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		m := zsync.NewMutex(s, "/m", zsync.WithRetention(time.Minute))
		return func(ctx context.Context) {
			if m.Lock(ctx) != nil || m.Unlock() != nil {
				b.Fatal("it failed")
			}
		}
	})
}

// goZookeepers returns a lock of go-zookeeper's, on a connection of its own.
func goZookeepers(t testing.TB) *zk.Lock {
	srv := zktest.Start(t)
	c, _, err := zk.Connect(srv.Addrs(), 10*time.Second, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	must(t, err)
	t.Cleanup(c.Close)
	return zk.NewLock(c, "/m", zk.WorldACL(zk.PermAll))
}

func BenchmarkLockUnlockOfGoZookeeper(b *testing.B) {
	l := goZookeepers(b)
	b.ReportAllocs()
	for b.Loop() {
		must(b, l.Lock())
		must(b, l.Unlock())
	}
}

func BenchmarkLockUnlockHandedOver(b *testing.B) {
	m := zsync.NewMutex(open(b, zktest.Start(b)), "/m")
	ctx, cancel := context.WithCancel(b.Context())
	other := async(func() error { // there is always somebody to hand it to
		for ctx.Err() == nil {
			if err := m.Lock(ctx); err != nil {
				break
			}
			must(b, m.Unlock())
		}
		return nil
	})
	b.ReportAllocs()
	for b.Loop() {
		must(b, m.Lock(b.Context()))
		must(b, m.Unlock())
	}
	cancel()
	<-other
}

func BenchmarkRLockRUnlockFree(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		rw := zsync.NewRWMutex(s, "/rw")
		return func(ctx context.Context) { must(b, rw.RLock(ctx)); must(b, rw.RUnlock()) }
	})
}

func BenchmarkRLockRUnlockShared(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		rw := zsync.NewRWMutex(s, "/rw")
		must(b, rw.RLock(b.Context()))
		return func(ctx context.Context) { must(b, rw.RLock(ctx)); must(b, rw.RUnlock()) }
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		sem := zsync.NewSemaphore(s, "/sem", 3)
		return func(ctx context.Context) { must(b, sem.Acquire(ctx, 1)); must(b, sem.Release(1)) }
	})
}

func BenchmarkValueLoad(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		v := zsync.NewValue[int](s, "/v")
		must(b, v.Store(b.Context(), 1))
		return func(ctx context.Context) { _, _, err := v.Load(ctx); must(b, err) }
	})
}

func BenchmarkValueStore(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		v := zsync.NewValue[int](s, "/v")
		return func(ctx context.Context) { must(b, v.Store(ctx, 1)) }
	})
}

func BenchmarkSendRecv(b *testing.B) {
	on(b, func(s *zsync.Session) func(context.Context) {
		q := zsync.NewQueue[int](s, "/q")
		ctx, cancel := context.WithCancel(b.Context())
		ch := q.Recv(ctx)
		b.Cleanup(func() {
			cancel()
			for range ch {
			}
		})
		return func(ctx context.Context) { must(b, q.Send(ctx, 1)); <-ch }
	})
}

// What is guarded is the ratio: what the test server and go-zookeeper's reading
// and pinging allocate is in both. On a busy machine a lock may be held for so
// long that its znode is watched.
func TestLockAndUnlockAllocateNoMoreThanThoseOfGoZookeeper(t *testing.T) {
	if harness.UnderRace {
		t.Skip("the race detector allocates")
	}
	theirs := goZookeepers(t)
	m := zsync.NewMutex(open(t, zktest.Start(t, harness.Patient)), "/m")
	var want, got float64
	for try := 0; try < 3 && (try == 0 || got > want); try++ { // what a busy machine adds is in none of three
		want = testing.AllocsPerRun(500, func() { must(t, theirs.Lock()); must(t, theirs.Unlock()) })
		got = testing.AllocsPerRun(500, func() { must(t, m.Lock(t.Context())); must(t, m.Unlock()) })
	}
	t.Logf("Lock and Unlock: %v allocations, those of zk.Lock %v", got, want)
	if got > want {
		t.Errorf("Lock and Unlock make %v allocations, those of zk.Lock %v", got, want)
	}
}

func TestAnRLockBesideAnotherReaderAllocatesLittle(t *testing.T) {
	if harness.UnderRace {
		t.Skip("the race detector allocates")
	}
	rw := zsync.NewRWMutex(open(t, zktest.Start(t, harness.Patient)), "/rw", zsync.WithHandoffs(1<<30))
	must(t, rw.RLock(t.Context()))
	const most = 10
	if got := testing.AllocsPerRun(500, func() { must(t, rw.RLock(t.Context())); must(t, rw.RUnlock()) }); got > most {
		t.Errorf("an RLock beside another reader makes %v allocations, with its RUnlock; want %d at most", got, most)
	}
}
