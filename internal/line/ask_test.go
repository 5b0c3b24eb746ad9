package line

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// A crowd is a long line: three of a session each, one of ours, very many of
// others, and a second of ours, who knows them all.
type crowd struct {
	srv    *zktest.Server
	ahead  []*Claim
	inc    *session.Incarnation // ours
	line   *Line
	admin  *session.Incarnation
	claim  *Claim // of ours, once it is granted
	leave  context.CancelFunc
	grants <-chan error
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{srv: zktest.Start(t)}
	c.ahead = stand(t, c.srv, 3)
	m, inc := live(t, c.srv)
	c.inc, c.line = inc, mutexOf(m, "/m")
	_, c.admin = live(t, c.srv)
	ctx, leave := context.WithCancel(t.Context())
	c.leave = leave
	c.grants = harness.Async(func() (err error) {
		c.claim, err = c.line.Acquire(ctx, "lock-", nil, Exclusive, nil)
		return err
	})
	synctest.Wait()
	for range longLine {
		guid := session.NewGUID()
		_, _, err := c.admin.CreateChild(t.Context(), session.Dir{Path: "/m"}, session.ProtectedName(guid, "lock-"), guid, nil, zk.FlagEphemeralSequential, false)
		harness.Must(t, err)
	}
	harness.Async(func() error {
		_, err := c.line.Acquire(ctx, "lock-", nil, Exclusive, nil)
		return err
	})
	synctest.Wait()
	return c
}

// first returns the name of the first in the line.
func (c *crowd) first(t *testing.T) string {
	t.Helper()
	name, err := c.line.First(t.Context(), c.admin, c.admin.ChildrenFresh)
	harness.Must(t, err)
	return name
}

// end has ours leave.
func (c *crowd) end(t *testing.T) {
	c.srv.Intercept(nil)
	c.srv.SetLatency(0)
	if c.claim != nil {
		harness.Must(t, c.claim.GiveBack())
	}
	c.leave()
	synctest.Wait()
}

// Those ahead leave in every order, one after the other or at once. One of the requests
// of who comes behind them is lost, or its answer, with the connection, or refused. He has his
// turn when the last of them has gone, and not before; and where the line goes on in its
// order and nothing is lost he does not list it.
func TestNoOrderOfLeavingALongLineGrantsTooEarlyOrNever(t *testing.T) {
	t.Parallel()
	faults := map[string]zktest.Action{
		"request": zktest.DropRequest, "reply": zktest.DropReply, "answer": zktest.Fail(zktest.CodeUnimplemented), "right": zktest.Fail(zktest.CodeNoAuth),
	}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, apart := range []time.Duration{0, 500 * time.Millisecond} {
			leaveALongLine(t, order, apart, 0, "", zktest.Pass)
			for name, fault := range faults {
				for nth := int64(1); nth <= 2; nth++ {
					leaveALongLine(t, order, apart, nth, name, fault)
				}
			}
		}
	}
}

// leaveALongLine is one such program; fault befalls the nth look at those ahead, at one of
// them or all.
func leaveALongLine(t *testing.T, order []int, apart time.Duration, nth int64, name string, fault zktest.Action) {
	harness.VirtualTime(t, func(t *testing.T) {
		what := fmt.Sprintf("they leave in the order %v, %v apart, %s %d is lost", order, apart, name, nth)
		c := newCrowd(t)
		c.srv.SetLatency(10 * time.Millisecond)
		var looks, lists, asks atomic.Int64
		c.srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session != c.inc.ID.Load() {
				return zktest.Pass
			}
			switch {
			case r.Op == zktest.OpMultiRead:
				asks.Add(1)
			case r.Path == "/m" && r.Op == zktest.OpGetChildren2:
				lists.Add(1)
				if name == "answer" || name == "right" {
					return zktest.Pass // else nobody learns who is there
				}
			default:
				return zktest.Pass
			}
			if looks.Add(1) == nth {
				return fault
			}
			return zktest.Pass
		})
		for i, who := range order {
			if i > 0 {
				time.Sleep(apart)
				if apart > time.Second/4 {
					harness.PendingStill(t, c.grants)
				}
			}
			c.ahead[who].Leave()
		}
		select {
		case err := <-c.grants:
			harness.Must(t, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: not granted", what)
		}
		if first := c.first(t); first != session.BaseName(c.claim.Znode()) {
			t.Fatalf("%s: granted behind %q", what, first)
		}
		if asks.Load() == 0 {
			t.Errorf("%s: nobody was asked after", what)
		}
		if nth == 0 && slices.IsSorted(order) && lists.Load() > 0 {
			t.Errorf("%s: the line was listed %d times", what, lists.Load())
		}
		c.end(t)
	})
}

// Somebody deletes the znode of who asks after those ahead, while he asks, over the same
// connection or another. He has no turn by it.
func TestWhoIsDeletedWhileHeAsksAfterThoseAheadHasNoTurn(t *testing.T) {
	t.Parallel()
	for _, reconnects := range []bool{false, true} {
		harness.VirtualTime(t, func(t *testing.T) {
			c := newCrowd(t)
			own := ""
			names, _, err := c.admin.ChildrenFresh(t.Context(), "/m")
			harness.Must(t, err)
			for _, name := range names {
				if me, ok := ParseChild(name, "lock-"); ok && me.Seq == 3 {
					own = name
				}
			}
			var asked atomic.Bool
			c.srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpMultiRead && !asked.Swap(true) {
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			for _, a := range c.ahead {
				a.Leave()
			}
			time.Sleep(100 * time.Millisecond)
			if !asked.Load() {
				t.Fatal("nobody was asked after")
			}
			harness.Must(t, c.admin.RemoveNow(t.Context(), "/m/"+own))
			if reconnects {
				c.srv.Disconnect(c.inc.ID.Load())
			}
			time.Sleep(5 * time.Second)
			harness.PendingStill(t, c.grants) // at the back of the line
			if first := c.first(t); strings.Contains(first, own) {
				t.Errorf("%q is still there", own)
			}
			c.end(t)
		})
	}
}

// Each of two hundred hand-overs between three sessions in a long line costs a question,
// and few of them a listing.
func TestHandOversBetweenSessionsInALongLineHardlyListIt(t *testing.T) {
	t.Parallel()
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		var lines []*Line
		for range 3 {
			m, _ := live(t, srv)
			lines = append(lines, mutexOf(m, "/m"))
		}
		const handOvers = 200
		const n = longLine + handOvers
		var lists, asks atomic.Int64
		granted, over := make(chan *Claim), make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		for i := range n {
			go func() {
				c, err := lines[i%3].Acquire(ctx, "lock-", nil, Exclusive, nil)
				if err == nil {
					select {
					case granted <- c:
					case <-ctx.Done():
						c.GiveBack()
					}
				}
				over <- struct{}{}
			}()
			synctest.Wait()
		}
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMultiRead:
				asks.Add(1)
			case r.Path == "/m" && r.Op == zktest.OpGetChildren2:
				lists.Add(1)
			}
			return zktest.Pass
		})
		for i := range handOvers {
			c := <-granted
			if c.Child.Seq != int32(i) {
				t.Errorf("number %d was granted as the %dth", c.Child.Seq, i+1)
			}
			harness.Must(t, c.GiveBack())
			<-over
		}
		t.Logf("%d hand-overs: %d listings, %d questions", handOvers, lists.Load(), asks.Load())
		if lists.Load() > 6 || asks.Load() < handOvers-10 || asks.Load() > handOvers {
			t.Errorf("%d hand-overs took %d listings and %d questions", handOvers, lists.Load(), asks.Load())
		}
		srv.Intercept(nil)
		leave()
		for range n - handOvers {
			<-over
		}
	})
}

// However long the line: whoever knows it need not list it again while it is long.
func TestAVeryLongLineIsNotListedAgainWhileItIsLong(t *testing.T) {
	t.Parallel()
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, _ := live(t, srv)
		ours := mutexOf(m, "/m")
		_, admin := live(t, srv)
		const sessions, others = 20, 200 // others between two of ours
		granted := make(chan *Claim)
		var ahead []string
		for range sessions {
			for range others {
				guid := session.NewGUID()
				path, _, err := admin.CreateChild(t.Context(), session.Dir{Path: "/m"}, session.ProtectedName(guid, "lock-"), guid, nil, zk.FlagEphemeralSequential, false)
				harness.Must(t, err)
				ahead = append(ahead, path)
			}
			go func() {
				c, err := ours.Acquire(t.Context(), "lock-", nil, Exclusive, nil)
				if err != nil {
					t.Error(err)
				}
				granted <- c
			}()
			synctest.Wait()
		}
		var lists, asks atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMultiRead:
				asks.Add(1)
			case r.Path == "/m" && r.Op == zktest.OpGetChildren2:
				lists.Add(1)
			}
			return zktest.Pass
		})
		for i := range sessions {
			for _, path := range ahead[:others] {
				harness.Must(t, admin.RemoveNow(t.Context(), path))
			}
			ahead = ahead[others:]
			harness.Must(t, (<-granted).GiveBack())
			if len(ahead) >= longLine && lists.Load() > 0 {
				t.Errorf("it was listed behind %d of ours, with %d to come", i+1, len(ahead))
			}
		}
		if asks.Load() < sessions-4 {
			t.Errorf("%d questions", asks.Load())
		}
	})
}

// Servers before ZooKeeper 3.6 cannot be asked after those ahead. Then who foresees his turn
// in a long line lists it, and need not when the one ahead goes.
func TestALongLineIsForeseenOnServersThatCannotBeAskedAfterThoseAhead(t *testing.T) {
	t.Parallel()
	harness.VirtualTime(t, func(t *testing.T) {
		const trip = 10 * time.Millisecond
		srv := zktest.Start(t)
		ahead := stand(t, srv, 3)
		m, inc := live(t, srv)
		_, admin := live(t, srv)
		line := mutexOf(m, "/m")
		var lists atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMultiRead:
				return zktest.Fail(zktest.CodeUnimplemented)
			case r.Session == inc.ID.Load() && r.Path == "/m":
				lists.Add(1)
			}
			return zktest.Pass
		})
		srv.SetLatency(trip)
		var claim *Claim
		granted := harness.Async(func() (err error) {
			claim, err = line.Acquire(t.Context(), "lock-", nil, Exclusive, nil)
			return err
		})
		time.Sleep(trip + trip/2) // it has entered
		srv.SetLatency(0)
		for range longLine {
			guid := session.NewGUID()
			_, _, err := admin.CreateChild(t.Context(), session.Dir{Path: "/m"}, session.ProtectedName(guid, "lock-"), guid, nil, zk.FlagEphemeralSequential, false)
			harness.Must(t, err)
		}
		ctx, leave := context.WithCancel(t.Context())
		second := harness.Async(func() error {
			_, err := line.Acquire(ctx, "lock-", nil, Exclusive, nil)
			return err
		})
		synctest.Wait()
		srv.SetLatency(trip)
		time.Sleep(3 * trip) // what was listed before all came is there
		ahead[0].Leave()
		ahead[1].Leave()
		time.Sleep(10 * trip)
		before := lists.Load()
		ahead[2].Leave()
		harness.Must(t, <-granted)
		if n := lists.Load() - before; n != 0 {
			t.Errorf("it has listed the line %d times when the one ahead had gone, want never", n)
		}
		srv.SetLatency(0)
		harness.Must(t, claim.GiveBack())
		leave()
		<-second
		synctest.Wait()
	})
}
