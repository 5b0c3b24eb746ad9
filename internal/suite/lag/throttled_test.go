package lag

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// The connection that continues a session with holds begins with a write, so that nothing read over it is older
// than an event. An overloaded server refuses that write alone (Throttled: not carried out), and carries out the
// watches, the sync and the reads behind it.
func TestAPermitIsNotGivenOutTwiceIfTheFirstWriteOfAConnectionIsRefused(t *testing.T) {
	lagsAfterEvent(t, 2, func(t *testing.T, x *eventThenLag) {
		a, b := zsync.NewSemaphore(x.other, "/s", 1), zsync.NewSemaphore(x.waiter, "/s", 1)
		for _, s := range []*zsync.Semaphore{a, b} {
			if err := s.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if err := s.Release(1); err != nil {
				t.Fatal(err)
			}
		}
		a, b = zsync.NewSemaphore(x.other, "/s", 1), zsync.NewSemaphore(x.waiter, "/s", 1)
		time.Sleep(time.Second)
		gate := make(chan struct{})
		id, waiter := x.other.ID(), x.waiter.ID()
		x.e.Server(x.at).Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpMulti {
				<-gate
			}
			return zktest.Pass
		})
		var refused atomic.Bool
		x.e.Server(x.lags).Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == waiter && r.Op == zktest.OpDelete && refused.CompareAndSwap(false, true) {
				return zktest.Fail(zktest.CodeThrottled)
			}
			return zktest.Pass
		})
		first := wait(t, func() error { return a.Acquire(t.Context(), 1) })
		time.Sleep(100 * time.Millisecond)
		second := wait(t, func() error { return b.Acquire(t.Context(), 1) })
		time.Sleep(100 * time.Millisecond)
		x.strike()
		close(gate)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second)
		if !refused.Load() {
			t.Fatal("no write was refused")
		}
		select {
		case err := <-second:
			if err == nil && !isClosed(a.Lost()) && !isClosed(b.Lost()) {
				t.Fatal("two permits of one are out")
			}
			t.Fatalf("the waiter has returned, with %v", err)
		default:
		}
		x.e.SetLag(x.lags, 0)
		if err := a.Release(1); err != nil {
			t.Fatal(err)
		}
		if err := soonDone(t, x, second); err != nil {
			t.Errorf("the waiter, when the permit is free: %v", err)
		}
	})
}
