package line

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Everything that an arrival waits for happens at once, in any order.
func TestAnArrivalGoesOnOnceWhateverHappensAtTheSameTime(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		holders, waiters := open(t, srv), open(t, srv)
		for range 50 {
			held, err := mutexOf(holders, "/m").Acquire(t.Context(), "lock-", nil, Exclusive, nil)
			harness.Must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			line := mutexOf(waiters, "/m")
			_, a, err := line.Proceed(ctx, nil, "lock-", nil, Exclusive, nil)
			if harness.Must(t, err); a == nil {
				t.Fatal("it does not wait for the one ahead")
			}
			var calls atomic.Int32
			wake := a.Then(func() { calls.Add(1) })
			if synctest.Wait(); calls.Load() != 0 {
				t.Fatal("it goes on though nothing has happened")
			}
			held.Leave()
			go wake()
			cancel()
			go a.Claim.Incarnation.Remove(a.Claim.Path)
			if synctest.Wait(); calls.Load() != 1 {
				t.Fatalf("it goes on %d times", calls.Load())
			}
			if c, again, err := line.Proceed(ctx, a, "lock-", nil, Exclusive, nil); c != nil || again != nil || err == nil {
				t.Fatalf("its ctx has ended: %v, %v, %v", c, again, err)
			}
		}
	})
}

func TestAnArrivalWhoseCtxHasEndedLeavesTheLineThoughItIsItsTurn(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m, inc := live(t, zktest.Start(t))
		line := mutexOf(m, "/m")
		a, err := line.arrive(t.Context(), inc, "lock-", nil)
		harness.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if c, waits, err := line.Proceed(ctx, a, "lock-", nil, Exclusive, nil); c != nil || waits != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("it has %v, waits as %v, with the error %v", c, waits, err)
		}
		if names, _, err := inc.Children(t.Context(), "/m"); err != nil || len(names) > 0 {
			t.Errorf("%q stands in the line, %v", names, err)
		}
	})
}
