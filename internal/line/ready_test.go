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

// Three stand ahead of one, and leave in every order, one after the other or all at
// once. One of his requests is lost, or its answer, with the connection, as he makes
// ready. He has his turn when the last of them has gone, and not before.
func TestNoOrderOfLeavingAndNoLostLookGrantsTooEarlyOrNever(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	faults := map[string]zktest.Action{"request": zktest.DropRequest, "reply": zktest.DropReply}
	for _, order := range orders {
		for _, atOnce := range []bool{false, true} {
			leave(t, order, atOnce, 0, zktest.Pass)
			for name, fault := range faults {
				for nth := int64(1); nth <= 5; nth++ {
					if !leave(t, order, atOnce, nth, fault) {
						t.Fatalf("%v, %v, %s %d", order, atOnce, name, nth)
					}
				}
			}
		}
	}
}

// leave is one such program; fault befalls the nth request that is made when they
// begin to leave.
func leave(t *testing.T, order []int, atOnce bool, nth int64, fault zktest.Action) (ok bool) {
	synctest.Test(t, func(t *testing.T) {
		what := fmt.Sprintf("order %v, at once %v, fault at request %d", order, atOnce, nth)
		srv := zktest.Start(t)
		var ahead []*Claim
		for range order {
			m := open(t, srv)
			inc, err := m.Incarnation(t.Context())
			harness.Must(t, err)
			c, _, err := mutexOf(m, "/m").Enter(t.Context(), inc, "lock-", nil)
			harness.Must(t, err)
			ahead = append(ahead, c)
		}
		m := open(t, srv)
		inc, err := m.Incarnation(t.Context())
		harness.Must(t, err)
		var claim *Claim
		granted := harness.Async(func() (err error) {
			claim, err = mutexOf(m, "/m").Acquire(t.Context(), "lock-", nil, Exclusive, nil)
			return err
		})
		synctest.Wait()
		srv.SetLatency(10 * time.Millisecond)
		var n atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == inc.ID.Load() && r.Op != zktest.OpPing && n.Add(1) == nth {
				return fault
			}
			return zktest.Pass
		})
		for i, who := range order {
			ahead[who].Leave()
			if !atOnce && i < len(order)-1 {
				time.Sleep(time.Second)
				harness.PendingStill(t, granted)
			}
			if atOnce && i == 1 {
				time.Sleep(10 * time.Millisecond) // the event of the first is there, and what it makes him ask under way
			}
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
		srv.Intercept(nil)
		srv.SetLatency(0)
		harness.Must(t, claim.GiveBack())
		ok = true
	})
	return ok
}
