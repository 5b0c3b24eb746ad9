package line

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// live returns a session that is there.
func live(t *testing.T, srv *zktest.Server) (*session.Manager, *session.Incarnation) {
	t.Helper()
	m := open(t, srv)
	inc, err := m.Incarnation(t.Context())
	harness.Must(t, err)
	return m, inc
}

// stand has n enter the line at /m, each in a session of its own.
func stand(t *testing.T, srv *zktest.Server, n int) (claims []*Claim) {
	t.Helper()
	for range n {
		m, inc := live(t, srv)
		c, _, err := mutexOf(m, "/m").Enter(t.Context(), inc, "lock-", nil)
		harness.Must(t, err)
		claims = append(claims, c)
	}
	return claims
}

// Three stand ahead of one who lists the line meanwhile, and leave in every order, one
// after the other, or all so soon that the listings, their answers and the events cross.
// One of his requests is lost, or its answer, with the connection. He has his turn when
// the last of them has gone, and not before.
func TestNoOrderOfLeavingAndNoLostListingGrantsTooEarlyOrNever(t *testing.T) {
	const way = 10 * time.Millisecond
	faults := map[string]zktest.Action{"request": zktest.DropRequest, "reply": zktest.DropReply}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, apart := range []time.Duration{0, way / 2, 3 * way / 2, 50 * way} {
			leaveInOrder(t, order, apart, 0, "", zktest.Pass)
			for name, fault := range faults {
				for nth := int64(1); nth <= 3; nth++ {
					leaveInOrder(t, order, apart, nth, name, fault)
				}
			}
		}
	}
}

// leaveInOrder is one such program; fault befalls the nth request that is made once he waits.
func leaveInOrder(t *testing.T, order []int, apart time.Duration, nth int64, name string, fault zktest.Action) {
	harness.VirtualTime(t, func(t *testing.T) {
		what := fmt.Sprintf("they leave in the order %v, %v apart, %s %d is lost", order, apart, name, nth)
		srv := zktest.Start(t)
		ahead := stand(t, srv, len(order))
		m, inc := live(t, srv)
		srv.SetLatency(10 * time.Millisecond)
		var n, listed atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session != inc.ID.Load() || r.Op == zktest.OpPing {
				return zktest.Pass
			}
			if r.Path == "/m" {
				listed.Add(1) // its first listing is the one behind the create
			}
			if i := n.Add(1); nth > 0 && i == nth+2 { // the first two are the create and the listing
				return fault
			}
			return zktest.Pass
		})
		var claim *Claim
		granted := harness.Async(func() (err error) {
			claim, err = mutexOf(m, "/m").Acquire(t.Context(), "lock-", nil, Exclusive, nil)
			return err
		})
		time.Sleep(15 * time.Millisecond)
		for i, who := range order {
			if i > 0 {
				time.Sleep(apart)
				if apart > time.Second/4 {
					harness.PendingStill(t, granted)
				}
			}
			ahead[who].Leave()
		}
		select {
		case err := <-granted:
			harness.Must(t, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: not granted", what)
		}
		names, _, err := inc.ChildrenFresh(t.Context(), "/m")
		harness.Must(t, err)
		if len(names) != 1 || names[0] != session.BaseName(claim.Znode()) {
			t.Fatalf("%s: granted beside %q", what, names)
		}
		if listed.Load() < 2 {
			t.Errorf("%s: it has not listed the line meanwhile", what)
		}
		srv.Intercept(nil)
		srv.SetLatency(0)
		harness.Must(t, claim.GiveBack())
		synctest.Wait()
	})
}

// Those ahead do not move. Who waits does not ask for ever whether they have.
func TestWhoeverWaitsForLongStopsListingTheLine(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		ahead := stand(t, srv, 2)
		m, inc := live(t, srv)
		var listed atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == inc.ID.Load() && r.Path == "/m" {
				listed.Add(1)
			}
			return zktest.Pass
		})
		srv.SetLatency(10 * time.Millisecond)
		granted := harness.Async(func() error {
			_, err := mutexOf(m, "/m").Acquire(t.Context(), "lock-", nil, Exclusive, nil)
			return err
		})
		time.Sleep(time.Hour)
		harness.PendingStill(t, granted)
		if n := listed.Load(); n < 1+foreseeMost || n > 2+foreseeMost {
			t.Errorf("the line was listed %d times in an hour in which nobody left it, want %d", n, 1+foreseeMost)
		}
		srv.SetLatency(0)
		ahead[0].Leave()
		ahead[1].Leave()
		harness.Must(t, <-granted)
	})
}

// However long the first keeps the lock: each of those ahead takes a round trip at
// least, and until then no listing helps.
func TestWhoeverStandsFarBackListsNoSoonerThanItsTurnCanCome(t *testing.T) {
	p := pace{trip: 10 * time.Millisecond, each: 10 * time.Millisecond, ahead: 999}
	for i := range foreseeMost {
		if wait := p.wait(); wait < 990*p.trip {
			t.Errorf("listing %d comes %v after the last, behind %d", i+1, wait, p.ahead)
		}
		p.left(999)
	}
}
