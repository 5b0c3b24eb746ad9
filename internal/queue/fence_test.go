package queue

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/zktest"
)

// A consumer's claim is on its way from member 0 to the leader. The consumer moves to member 1, which
// refuses the claim because the queue is paused. The members' syncLimit is longer than zsync assumes,
// so the leader receives the first request after the pause, and must refuse it, too: the consumer
// would not know of the claim.
func TestAClaimIsNotAppliedAfterAPauseHasRefusedIt(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSyncLimit(30), zktest.WithSessionTimeouts(harness.Timeout, harness.Timeout))
		e.SetBacklog(time.Millisecond)
		at := func(r *harness.Route) *session.Manager { return sessiontest.Open(t, e.Addrs(), r.Dial, closesInTime) }
		r := harness.NewRoute(e, 0)
		q, other := queueAt(at(r), "/q"), queueAt(at(harness.NewRoute(e, 2)), "/q")
		send(t, other, "in hand", "x")
		it := receive(t, q) // from now on, the consumer has a mark
		time.Sleep(time.Second)
		e.Cut(0, 2)
		taken := make(chan error, 1)
		go func() {
			e, err := q.Take(harness.Within(t, time.Minute))
			if err == nil && e != nil {
				err = errors.New("Take has returned " + string(e.Data))
			}
			taken <- err
		}()
		time.Sleep(50 * time.Millisecond)
		harness.Must(t, other.Pause(t.Context()))
		r.Move(1)
		harness.Must(t, <-taken)
		harness.Must(t, other.Resume(t.Context()))
		time.Sleep(12 * time.Second)
		r.Move(0)
		time.Sleep(100 * time.Millisecond)
		e.Heal(0, 2)
		time.Sleep(time.Second)
		wantTake(t, other, "x", 0)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
	})
}

// refuseFence loses the reply to the next transaction of a session. For five seconds, the servers
// refuse the write of the mark, which would show whether that transaction was applied.
func refuseFence(srv *zktest.Server, id int64) {
	var lost atomic.Bool
	srv.Intercept(func(r zktest.Request) zktest.Action {
		switch {
		case r.Session == id && r.Op == zktest.OpMulti && !lost.Swap(true):
			return zktest.DropReply
		case r.Session == id && r.Op == zktest.OpSetData && strings.HasPrefix(r.Path, "/q-live/"):
			return zktest.Fail(zktest.CodeQuotaExceeded)
		}
		return zktest.Pass
	})
	time.AfterFunc(5*time.Second, func() { srv.Intercept(nil) })
}

func TestAnElementIsDeliveredAlthoughTheOutcomeOfItsClaimCannotBeFoundOut(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q := queueAt(m, "/q")
		send(t, q, "in hand", "x")
		it := receive(t, q)
		refuseFence(srv, m.Present().ID.Load())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		q.Receive(ctx, 1, func(it Item) { it.Settle(t.Context(), Settlement{Fate: Return, Untried: true}) })
		time.Sleep(10 * time.Second)
		got := map[string]bool{}
		for range 2 {
			e, err := queueAt(open(t, srv), "/q").Take(harness.Within(t, time.Minute))
			harness.Must(t, err)
			if e == nil {
				break
			}
			got[string(e.Data)] = true
		}
		if err := it.Settle(harness.Within(t, time.Minute), Settlement{Fate: Remove}); !got["x"] || got["in hand"] != errors.Is(err, session.ErrLost) {
			t.Errorf("another client got %v; the result of Ack: %v", got, err)
		}
	})
}

func TestASettlementEndsAlthoughItsOutcomeCannotBeFoundOut(t *testing.T) {
	for _, fate := range []Fate{Remove, Return, Later, Bury} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			m := open(t, srv)
			q := queueAt(m, "/q")
			send(t, q, "x")
			it := receive(t, q)
			refuseFence(srv, m.Present().ID.Load())
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := it.Settle(ctx, Settlement{Fate: fate, Due: time.Now().Add(time.Second)}); errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("fate %v: %v", fate, err)
			}
			time.Sleep(10 * time.Second)
			st, err := q.Stats(t.Context())
			harness.Must(t, err)
			if st.Claimed > 0 || st.Ready+st.Dead != 1 && fate != Remove {
				t.Errorf("fate %v: %+v", fate, st)
			}
		})
	}
}
