package doublebarrier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// enter begins Enter in a goroutine.
func enter(t testing.TB, wg *zsync.WaitGroup, n int) <-chan error {
	return harness.Async(func() error { return wg.Enter(t.Context(), n) })
}

func leave(t testing.TB, wg *zsync.WaitGroup) <-chan error {
	return harness.Async(func() error { return wg.Leave(t.Context()) })
}

// A roll checks that n parties enter and leave together, round after round.
type roll struct {
	n                 int
	arrived, departed [100]atomic.Int32
}

// take goes through rounds from to.
func (r *roll) take(ctx context.Context, wg *zsync.WaitGroup, from, to int) error {
	for i := from; i < to; i++ {
		r.arrived[i].Add(1)
		if err := wg.Enter(ctx, r.n); err != nil {
			return err
		}
		if n := r.arrived[i].Load(); int(n) != r.n {
			return fmt.Errorf("entered round %d with %d of %d parties", i, n, r.n)
		}
		r.departed[i].Add(1)
		if err := wg.Leave(ctx); err != nil {
			return err
		}
		if n := r.departed[i].Load(); int(n) != r.n {
			return fmt.Errorf("left round %d with %d of %d parties", i, n, r.n)
		}
	}
	return nil
}

func TestPartiesEnterAndLeaveTogetherRoundAfterRound(t *testing.T) {
	suite.Anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		r := roll{n: 6}
		var results []<-chan error
		ctx := harness.Within(t, 2*time.Minute)
		for range 3 {
			// Two goroutines share one value.
			wg := zsync.NewWaitGroup(connect(), "/w")
			for range 2 {
				results = append(results, harness.Async(func() error { return r.take(ctx, wg, 0, 20) }))
			}
		}
		for _, c := range results {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestDoubleBarrierRefusesBadArguments(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		for _, wg := range []*zsync.WaitGroup{zsync.NewWaitGroup(nil, "/w"), zsync.NewWaitGroup(s, "w"), zsync.NewWaitGroup(s, "/w", nil)} {
			harness.WantErr(t, wg.Enter(t.Context(), 1), zsync.ErrInvalid)
			harness.WantErr(t, wg.Leave(t.Context()), zsync.ErrInvalid)
		}
		wg := zsync.NewWaitGroup(s, "/w")
		for _, n := range []int{0, -1, 1 << 20} {
			harness.WantErr(t, wg.Enter(t.Context(), n), zsync.ErrInvalid)
		}
		harness.WantErr(t, wg.Leave(t.Context()), zsync.ErrNotLocked)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		cancel(cause)
		harness.WantErr(t, wg.Enter(ctx, 1), cause, context.Canceled)
		if n := s.Stats().Requests; n != 0 {
			t.Errorf("%d requests were sent", n)
		}
		harness.Must(t, wg.Enter(t.Context(), 1))
		harness.WantErr(t, wg.Leave(ctx), cause, context.Canceled) // and the membership is given up
		harness.WantErr(t, wg.Leave(t.Context()), zsync.ErrNotLocked)
		synctest.Wait()
		suite.WantEmptyRoom(t, s)
		harness.Must(t, wg.Enter(t.Context(), 1))
		harness.Must(t, s.Close())
		harness.WantErr(t, wg.Leave(t.Context()), zsync.ErrLost, zsync.ErrClosed)
		harness.WantErr(t, wg.Enter(t.Context(), 1), zsync.ErrClosed)
	})
}

func TestAnotherNumberOfPartiesIsRefusedUntilTheRoomIsEmpty(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
		entered := enter(t, a, 2)
		harness.PendingStill(t, entered)
		err := b.Enter(t.Context(), 3)
		harness.WantErr(t, err, zsync.ErrInvalid)
		if want := "3 parties, while others enter or are inside with 2"; !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q, want it to say %q", err, want)
		}
		harness.PendingStill(t, entered)
		harness.Must(t, b.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		harness.WantErr(t, c.Enter(t.Context(), 3), zsync.ErrInvalid) // inside
		left := leave(t, a)
		harness.Must(t, b.Leave(t.Context()))
		harness.Must(t, <-left)
		harness.Must(t, c.Enter(t.Context(), 1)) // empty
		harness.Must(t, c.Leave(t.Context()))
		suite.WantEmptyRoom(t, inside.Session(c))
	})
}

func TestPartiesOfAnotherNumberDoNotCountAndMayAllChangeIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
		entered := enter(t, a, 2)
		harness.PendingStill(t, entered)
		// b is refused while c sees it.
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == inside.Session(b).ID() && r.Op == zktest.OpGetData {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		refused := enter(t, b, 3)
		synctest.Wait()
		harness.Must(t, c.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		harness.WantErr(t, <-refused, zsync.ErrInvalid)
		srv.Intercept(nil)
		left := leave(t, a)
		harness.Must(t, c.Leave(t.Context()))
		harness.Must(t, <-left)
		srv.SetLatency(10 * time.Millisecond)
		for n := 3; n > 0; n-- {
			var done []<-chan error
			r := roll{n: n}
			for _, wg := range []*zsync.WaitGroup{a, b, c}[:n] {
				done = append(done, harness.Async(func() error { return r.take(t.Context(), wg, 0, 2) }))
			}
			for _, c := range done {
				harness.Must(t, <-c)
			}
		}
	})
}

// What all of a round leave behind by dying lets nobody through in the next.
func TestNothingOfARoundWhosePartiesDiedInsideOpensTheNext(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c, d := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		wa, wb, wc, wd := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w"), zsync.NewWaitGroup(c, "/w"), zsync.NewWaitGroup(d, "/w")
		entered := enter(t, wa, 2)
		harness.Must(t, wb.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		srv.Expire(a.ID())
		srv.Expire(b.ID())
		entered = enter(t, wc, 2)
		harness.PendingStill(t, entered)
		time.Sleep(time.Minute)
		harness.PendingStill(t, entered)
		harness.Must(t, wd.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		harness.WantErr(t, wa.Leave(t.Context()), zsync.ErrLost)
		harness.WantErr(t, wb.Leave(t.Context()), zsync.ErrLost)
		left := leave(t, wc)
		harness.PendingStill(t, left)
		harness.Must(t, wd.Leave(t.Context()))
		harness.Must(t, <-left)
	})
}

func TestPartyThatDiesBeforeItsRoundIsLetInDoesNotCount(t *testing.T) {
	nearAndFar(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		wb, wc := zsync.NewWaitGroup(b, "/w"), zsync.NewWaitGroup(c, "/w")
		ctx, die := context.WithCancel(t.Context())
		dying := harness.Async(func() error { return zsync.NewWaitGroup(a, "/w").Enter(ctx, 2) })
		time.Sleep(time.Second)
		harness.PendingStill(t, dying)
		// It dies when b has seen it, and is about to let both in.
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && r.Session == b.ID() {
				srv.Intercept(nil)
				die()
				srv.Expire(a.ID())
			}
			return zktest.Pass
		})
		entered := enter(t, wb, 2)
		time.Sleep(time.Second)
		harness.PendingStill(t, entered)
		harness.WantErr(t, <-dying, context.Canceled)
		harness.Must(t, wc.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
	})
}

func TestPartyThatDiesInsideCountsAsHavingLeft(t *testing.T) {
	const n = 4 // the last to enter is the keeper
	for dies := range n {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			var ss []*zsync.Session
			var wgs []*zsync.WaitGroup
			var entered []<-chan error
			for range n {
				ss = append(ss, suite.Open(t, srv))
				wgs = append(wgs, zsync.NewWaitGroup(ss[len(ss)-1], "/w"))
				entered = append(entered, enter(t, wgs[len(wgs)-1], n))
				synctest.Wait()
			}
			for _, c := range entered {
				harness.Must(t, <-c)
			}
			first, last := (dies+1)%n, (dies+2)%n
			left := leave(t, wgs[first])
			harness.PendingStill(t, left)
			srv.Expire(ss[dies].ID())
			time.Sleep(time.Second)
			harness.PendingStill(t, left)
			harness.WantErr(t, wgs[dies].Leave(t.Context()), zsync.ErrLost)
			for i := range n {
				if i != dies && i != first && i != last {
					other := leave(t, wgs[i])
					harness.PendingStill(t, other)
					defer func() { harness.Must(t, <-other) }()
				}
			}
			harness.Must(t, wgs[last].Leave(t.Context()))
			harness.Must(t, <-left)
		})
	}
}

// The keeper's client is cut off: it has lost its membership before the
// servers take it for dead, and then somebody else becomes the keeper.
func TestKeeperThatIsCutOffIsSucceeded(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		wa, wb, keeper := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w"), zsync.NewWaitGroup(c, "/w")
		ea, eb := enter(t, wa, 3), enter(t, wb, 3)
		synctest.Wait()
		harness.Must(t, keeper.Enter(t.Context(), 3))
		harness.Must(t, <-ea)
		harness.Must(t, <-eb)
		la := leave(t, wa)
		synctest.Wait()
		srv.Partition(c.ID())
		lk := leave(t, keeper)
		harness.WantErr(t, <-lk, zsync.ErrLost)
		harness.PendingStill(t, la)
		time.Sleep(2 * harness.Timeout)
		harness.PendingStill(t, la) // b is inside
		harness.Must(t, wb.Leave(t.Context()))
		harness.Must(t, <-la)
		suite.WantEmptyRoom(t, a)
	})
}

func TestKeeperWhoseLeaveIsCancelledIsSucceeded(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
		for range 3 {
			ea, eb := enter(t, a, 3), enter(t, b, 3)
			synctest.Wait()
			harness.Must(t, c.Enter(t.Context(), 3))
			harness.Must(t, <-ea)
			harness.Must(t, <-eb)
			la := leave(t, a)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			harness.WantErr(t, c.Leave(ctx), context.DeadlineExceeded)
			cancel()
			harness.WantErr(t, c.Leave(t.Context()), zsync.ErrNotLocked)
			harness.PendingStill(t, la)
			harness.Must(t, b.Leave(t.Context()))
			harness.Must(t, <-la)
			suite.WantEmptyRoom(t, inside.Session(a))
		}
		if n := inside.Session(c).Stats().Holds; n != 0 {
			t.Errorf("%d holds are left", n)
		}
	})
}

// A Leave that ended with its ctx may have left a znode that the servers refuse to delete. The keeper
// waits for it, also if it is of the keeper's own session.
func TestAPartyOfTheKeepersOwnSessionIsWaitedForUntilTheServersHaveDeletedIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, suite.LongSession)
		quick, keeper, other := zsync.NewWaitGroup(s, "/w"), zsync.NewWaitGroup(s, "/w"), zsync.NewWaitGroup(suite.Open(t, srv, suite.LongSession), "/w")
		eq, eo := enter(t, quick, 3), enter(t, other, 3)
		synctest.Wait()
		harness.Must(t, keeper.Enter(t.Context(), 3))
		harness.Must(t, <-eq)
		harness.Must(t, <-eo)
		lo := leave(t, other)
		synctest.Wait()
		until := time.Now().Add(4 * time.Second)
		refused := false
		var deleted time.Time
		read := harness.OneByOne(srv, func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != s.ID():
			case r.Op == zktest.OpDelete && time.Now().Before(until):
				refused = true
				return zktest.Fail(zktest.CodeNoAuth)
			case r.Op == zktest.OpDelete:
				deleted = time.Now()
			}
			return zktest.Pass
		})
		lk := leave(t, keeper)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		quick.Leave(ctx)
		harness.Must(t, <-lk)
		harness.Must(t, <-lo)
		read(func() {
			if !refused {
				t.Error("no deletion was refused: the case did not come about")
			}
			if deleted.IsZero() {
				t.Errorf("all have left at %v, and one was inside for longer", time.Now())
			}
		})
		suite.WantEmptyRoom(t, s)
	}, suite.LongSessions)
}

// A party is away while the keeper leaves the round to another. The servers tell it of
// the other's znode as of a change of the former's, and somebody is still inside.
func TestAnotherKeeperFoundAfterAnOutageIsNoWordThatAllHaveLeft(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ss []*zsync.Session
		var wgs []*zsync.WaitGroup
		var entered []<-chan error
		for range 4 {
			s := suite.Open(t, srv)
			ss, wgs = append(ss, s), append(wgs, zsync.NewWaitGroup(s, "/w"))
			entered = append(entered, enter(t, wgs[len(wgs)-1], 4)) // the last is the keeper
			synctest.Wait()
		}
		for _, c := range entered {
			harness.Must(t, <-c)
		}
		left := leave(t, wgs[0])
		harness.PendingStill(t, left)
		id := ss[0].ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Session == id {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		before := ss[0].Stats().Reconnects
		srv.Disconnect(id)
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		harness.WantErr(t, wgs[3].Leave(short), context.DeadlineExceeded)
		next := leave(t, wgs[1])
		harness.PendingStill(t, next)
		if ss[0].Stats().Reconnects != before {
			t.Fatal("the party was not away while the keeper changed")
		}
		time.Sleep(3 * time.Second)
		if ss[0].Stats().Reconnects == before || ss[0].ID() != id {
			t.Fatal("the party has not come back to its session")
		}
		harness.PendingStill(t, left)
		harness.PendingStill(t, next)
		harness.Must(t, wgs[2].Leave(t.Context()))
		harness.Must(t, <-left)
		harness.Must(t, <-next)
		time.Sleep(time.Second)
		suite.WantEmptyRoom(t, ss[1])
	})
}

// Curator's parties that wake late count the members anew, and are left behind
// if others leave already.
func TestPartyThatLearnsLateThatItIsInsideIsWaitedFor(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		slow, quick := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		for range 3 {
			entered := enter(t, slow, 2)
			harness.PendingStill(t, entered)
			srv.Partition(a.ID())
			harness.Must(t, quick.Enter(t.Context(), 2))
			left := leave(t, quick)
			harness.PendingStill(t, left)
			time.Sleep(2 * time.Second)
			harness.PendingStill(t, entered)
			harness.PendingStill(t, left)
			srv.Heal(a.ID())
			harness.Must(t, <-entered)
			harness.PendingStill(t, left)
			harness.Must(t, slow.Leave(t.Context()))
			harness.Must(t, <-left)
		}
	})
}

func TestCancelledEnterLeavesNothingAndDoesNotCount(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		wa, wb := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		harness.WantErr(t, wa.Enter(harness.Within(t, time.Second), 2), context.DeadlineExceeded) // the paths are made
		srv.SetLatency(30 * time.Millisecond)
		for i := range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*3*time.Millisecond+1)
			harness.WantErr(t, wa.Enter(ctx, 2), context.DeadlineExceeded)
			cancel()
			time.Sleep(time.Second)
			suite.WantEmptyRoom(t, b)
		}
		if n := a.Stats().Waiters + a.Stats().Holds; n != 0 {
			t.Errorf("%d calls and holds are left", n)
		}
		if n := srv.Counts().Watches; n > 3 {
			t.Errorf("%d watches are left", n)
		}
		entered := enter(t, wb, 2)
		harness.PendingStill(t, entered)
		harness.Must(t, wa.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
	})
}

// Enter is cancelled at each moment at which it would let the round in.
func TestEnterCancelledWhileItLetsTheRoundInCountsOrDoesNot(t *testing.T) {
	for i := range 40 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b, c := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
			wa, wb, wc := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w"), zsync.NewWaitGroup(c, "/w")
			entered := enter(t, wa, 2)
			synctest.Wait()
			srv.SetLatency(30 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Millisecond+1)
			err := wb.Enter(ctx, 2)
			cancel()
			time.Sleep(time.Second)
			if err == nil {
				harness.Must(t, <-entered)
				left := leave(t, wa)
				harness.Must(t, wb.Leave(t.Context()))
				harness.Must(t, <-left)
				return
			}
			harness.WantErr(t, err, context.DeadlineExceeded)
			select {
			case err := <-entered: // then b counts as having left
				harness.Must(t, err)
			default:
				harness.Must(t, wc.Enter(t.Context(), 2))
				harness.Must(t, <-entered)
				left := leave(t, wc)
				defer func() { harness.Must(t, <-left) }()
			}
			harness.Must(t, wa.Leave(t.Context()))
			time.Sleep(time.Second)
			suite.WantEmptyRoom(t, c)
		})
	}
}

// Whichever of the two is seen first, the caller is told of his context.
func TestEnterWhoseContextEndsAsItsConnectionIsLostTellsOfTheContext(t *testing.T) {
	t.Parallel()
	for i := range 400 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv)
			wg := zsync.NewWaitGroup(s, "/w")
			harness.Must(t, wg.Enter(t.Context(), 1))
			harness.Must(t, wg.Leave(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			srv.Intercept(harness.First(zktest.Delay(time.Second), harness.Op(zktest.OpMulti))) // that which lets the round in
			got := harness.Async(func() error { return wg.Enter(ctx, 1) })
			harness.PendingStill(t, got)
			srv.Disconnect(s.ID())
			for range i % 50 {
				runtime.Gosched() // meanwhile the client learns of it
			}
			cancel()
			harness.WantErr(t, <-got, context.Canceled)
		})
	}
}

func TestCallerIsNotCountedTwiceWhenItsSessionIsReplaced(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		wa, wb := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		entered := enter(t, wa, 2)
		harness.PendingStill(t, entered)
		// The client gives its session up while the servers hold it for alive.
		old := a.ID()
		srv.Partition(old)
		for a.ID() == old || a.ID() == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if ids := srv.Sessions(); len(ids) != 3 {
			t.Fatalf("sessions %x; want the old one and the new one of a", ids)
		}
		harness.PendingStill(t, entered)
		if names := suite.ChildrenOf(t, b, "/w/parties"); len(names) != 1 {
			t.Errorf("parties %v, want one", names)
		}
		harness.Must(t, wb.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		left := leave(t, wb)
		harness.PendingStill(t, left)
		harness.Must(t, wa.Leave(t.Context()))
		harness.Must(t, <-left)
	})
}

func TestCallerIsNotCountedTwiceWhenItComesAgainAfterAnOutage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		wa, wb := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		entered := harness.Async(func() error { return wa.Enter(ctx, 2) })
		harness.PendingStill(t, entered)
		srv.Stop()
		harness.WantErr(t, <-entered, context.DeadlineExceeded)
		for range 10 { // leaves no trace at all
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			harness.WantErr(t, wa.Enter(ctx, 2), context.DeadlineExceeded)
			cancel()
		}
		// Each of what may have left a znode is looked for.
		var looks atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpGetChildren2 && r.Path == "/w/parties" {
				looks.Add(1)
			}
			return zktest.Pass
		})
		again := enter(t, wa, 2)
		srv.Restart()
		time.Sleep(time.Second)
		harness.PendingStill(t, again)
		if n := looks.Load(); n != 1 {
			t.Errorf("%d listings, want one, for the znode of the one Enter that was sent", n)
		}
		harness.Must(t, wb.Enter(t.Context(), 2))
		harness.Must(t, <-again)
	})
}

func TestLeaveOutlivesItsSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		wa, wb := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		entered := enter(t, wa, 2)
		synctest.Wait()
		harness.Must(t, wb.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		left := leave(t, wa)
		harness.PendingStill(t, left)
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		harness.PendingStill(t, left)
		harness.Must(t, wb.Leave(t.Context()))
		harness.Must(t, <-left)
		suite.WantEmptyRoom(t, a)
	})
}

// Twice as many parties as a round has, and more, come at once: rounds are let
// in by parties who are not of them.
func TestRoundsOfManyMorePartiesDoNotMix(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 5} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			srv.SetLatency(time.Millisecond)
			const parties, rounds = 30, 3
			var mu sync.Mutex
			crowd := make(map[any]int)
			left := make(map[any]int)
			var all sync.WaitGroup
			for i := range parties {
				wg := zsync.NewWaitGroup(suite.Open(t, srv), "/w")
				all.Go(func() {
					for range rounds {
						if err := wg.Enter(t.Context(), n); err != nil {
							t.Error(err)
							return
						}
						_, id := inside.Double(wg).Membership()
						mu.Lock()
						crowd[id]++
						mu.Unlock()
						time.Sleep(time.Duration(i) * time.Millisecond)
						mu.Lock()
						left[id]++
						mu.Unlock()
						if err := wg.Leave(t.Context()); err != nil {
							t.Error(err)
						}
						mu.Lock()
						if left[id] != n {
							t.Errorf("left with %d of %d", left[id], n)
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			for id, k := range crowd {
				if k != n {
					t.Errorf("round %v had %d parties, want %d", id, k, n)
				}
			}
			suite.WantEmptyRoom(t, suite.Open(t, srv))
		})
	}
}

func TestRoomThatTheServersRemoveBetweenRoundsBeginsAnew(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		r := roll{n: 2}
		a, b := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
		for i := range 5 {
			done := harness.Async(func() error { return r.take(t.Context(), a, i, i+1) })
			harness.Must(t, r.take(t.Context(), b, i, i+1))
			harness.Must(t, <-done)
			time.Sleep(5 * time.Minute)
			if stat, err := inside.Live(t, inside.Session(a)).Exists(t.Context(), "/w/parties"); err != nil || stat != nil {
				t.Fatalf("the room is %v, %v; want it gone", stat, err)
			}
		}
	}, zktest.WithContainerCheck(time.Minute))
}

func TestRoomIsReplacedBeforeItsNumbersAreUsedUp(t *testing.T) {
	for _, at := range []int32{double.LastParty, double.LastParty - 1, double.LastParty - 2, double.LastParty - 3, 1<<31 - 1} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			r := roll{n: 3}
			a := zsync.NewWaitGroup(suite.Open(t, srv), "/w")
			harness.WantErr(t, a.Enter(harness.Within(t, time.Second), 3), context.DeadlineExceeded)
			srv.SetSequence("/w/parties", at)
			var done []<-chan error
			for range r.n {
				wg := zsync.NewWaitGroup(suite.Open(t, srv), "/w")
				done = append(done, harness.Async(func() error { return r.take(t.Context(), wg, 0, 4) }))
			}
			for _, c := range done {
				if err := <-c; err != nil {
					t.Errorf("from %d: %v", at, err)
				}
			}
			for _, name := range suite.ChildrenOf(t, inside.Session(a), "/w/parties") {
				t.Errorf("%s is left", name)
			}
		})
	}
}

func TestPartiesOnServersThatLagEnterAndLeaveTogether(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		r := roll{n: 3}
		var done []<-chan error
		for i, addr := range srv.Addrs() {
			s, err := zsync.Connect(t.Context(), addr, zsync.WithDialer(srv.Dial))
			harness.Must(t, err)
			t.Cleanup(func() { s.Close() })
			srv.SetLag(addr, time.Duration(i)*time.Second)
			done = append(done, harness.Async(func() error { return r.take(t.Context(), zsync.NewWaitGroup(s, "/w"), 0, 10) }))
		}
		for _, c := range done {
			harness.Must(t, <-c)
		}
	}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
}

// The server stops answering at the k'th request of a Leave, and its ctx ends a
// moment later. It returns at once, and holds nobody up.
func TestLeaveEndsWithItsContextWhicheverRequestIsNotAnswered(t *testing.T) {
	for _, keeper := range []bool{false, true} {
		for k := 1; ; k++ {
			more := false
			t.Run(fmt.Sprintf("request %d, keeper: %v", k, keeper), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
					entered := enter(t, b, 2) // the second is the keeper
					synctest.Wait()
					harness.Must(t, a.Enter(t.Context(), 2))
					harness.Must(t, <-entered)
					if !keeper {
						a, b = b, a
					}
					ctx, cancel := context.WithCancel(t.Context())
					var n atomic.Int32
					var ended time.Time
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpPing || r.Session != inside.Session(a).ID() || n.Add(1) != int32(k) {
							return zktest.Pass
						}
						srv.Intercept(nil)
						time.AfterFunc(10*time.Millisecond, func() { ended = time.Now(); cancel() })
						return zktest.Hang
					})
					left := harness.Async(func() error { return a.Leave(ctx) })
					synctest.Wait()
					other := leave(t, b)
					err := <-left
					srv.Intercept(nil)
					if more = !ended.IsZero(); more {
						harness.WantErr(t, err, context.Canceled)
						if d := time.Since(ended); d > 3*session.Grace {
							t.Errorf("it took %v: %v", d, err)
						}
					} else {
						harness.Must(t, err)
					}
					harness.Must(t, <-other)
					suite.WantEmptyRoom(t, inside.Session(b))
				})
			})
			if !more {
				break
			}
		}
	}
}

// A party may be the keeper without knowing it: the reply that said so was lost,
// and so is that of its first look when it leaves.
func TestKeeperThatDoesNotKnowItAndFailsToLeaveIsSucceeded(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
		entered := enter(t, b, 2)
		synctest.Wait()
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
		harness.Must(t, a.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		srv.Intercept(harness.First(zktest.Hang, harness.Op(zktest.OpGetData)))
		harness.WantErr(t, a.Leave(harness.Within(t, time.Millisecond)), context.DeadlineExceeded)
		begun := time.Now()
		harness.Must(t, b.Leave(t.Context()))
		if d := time.Since(begun); d > harness.Timeout {
			t.Errorf("it took %v", d)
		}
		if inside.Session(a).Stats().Expiries > 0 {
			t.Error("the session of the former keeper has ended")
		}
		synctest.Wait()
		suite.WantEmptyRoom(t, inside.Session(b))
	})
}

// A keeper that has to ask who else is in its round looks at the room twice. Between the two looks,
// the other party leaves, the room is deleted, as it is empty, and the next one has a party of the same
// number.
func TestAKeeperDoesNotWaitForThePartiesOfTheNextRoom(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(suite.Open(t, srv), "/w")
		entered := enter(t, c, 2)
		synctest.Wait()
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
		harness.Must(t, a.Enter(t.Context(), 2)) // the reply is lost: a does not know that it is the keeper
		harness.Must(t, <-entered)
		var looks atomic.Int32
		id := inside.Session(a).ID()
		srv.Intercept(func(q zktest.Request) zktest.Action {
			if q.Session == id && q.Path == "/w/parties" && looks.Add(1) == 2 {
				return zktest.Delay(3 * time.Second)
			}
			return zktest.Pass
		})
		left := harness.Async(func() error { return a.Leave(t.Context()) })
		time.Sleep(time.Second)
		if n := looks.Load(); n != 2 {
			t.Fatalf("a looked at the room %d times; this test wants to come before the second", n)
		}
		other := leave(t, c)
		synctest.Wait()
		entered = enter(t, b, 1)
		harness.Must(t, <-entered)
		if names := suite.ChildrenOf(t, inside.Session(b), "/w/parties"); len(names) != 1 || !strings.HasSuffix(names[0], "-1-party-0000000000") {
			t.Fatalf("the room has %q; want a new room with a party of one, which has the number of c", names)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(left) == 0 {
			t.Fatal("Leave waits for a party of the next room")
		}
		harness.Must(t, <-left)
		harness.Must(t, <-other)
		harness.Must(t, b.Leave(t.Context()))
	})
}

// TestEnterAndLeaveCostAtMostFiveRequestsAParty also counts notifications: two for each party, and one
// for each other party that leaves after the keeper. No party waits for a second.
func TestEnterAndLeaveCostAtMostFiveRequestsAParty(t *testing.T) {
	t.Parallel()
	settle := func() { time.Sleep(20 * time.Millisecond) }
	orders := map[string]func(n int) []int{
		"at once": nil,
		"in order": func(n int) []int {
			var o []int
			for i := range n {
				o = append(o, i)
			}
			return o
		},
		"in reverse": func(n int) []int {
			var o []int
			for i := range n {
				o = append(o, n-1-i)
			}
			return o
		},
		"at random": rand.Perm,
	}
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 32} {
		for name, order := range orders {
			t.Run(fmt.Sprintf("%d leave %s", n, name), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					var wgs []*zsync.WaitGroup
					for range n {
						wgs = append(wgs, zsync.NewWaitGroup(suite.Open(t, srv, zsync.WithSessionTimeout(time.Hour)), "/w")) // none need be confirmed while a round lasts
					}
					// So the reply to a read and the event behind it do not
					// come as one, which costs another read at times.
					srv.SetLatency(time.Millisecond)
					rounds := max(100/n, 8)
					if harness.UnderRace {
						rounds /= 2
					}
					once := func() {
						var entered, left []<-chan error
						for _, wg := range wgs {
							entered = append(entered, enter(t, wg, n))
							if order != nil {
								settle()
							}
						}
						for _, c := range entered {
							harness.Must(t, <-c)
						}
						if order == nil {
							for _, wg := range wgs {
								left = append(left, leave(t, wg))
							}
						} else {
							for _, i := range order(n) {
								left = append(left, leave(t, wgs[i]))
								settle()
							}
						}
						for _, c := range left {
							harness.Must(t, <-c)
						}
					}
					first := srv.Counts()
					once() // makes the paths
					before := srv.Counts()
					for range rounds {
						begun := srv.Counts()
						once()
						settle()
						if d := srv.Counts().Sub(begun); d.Total() > int64(5*n) {
							t.Errorf("%d requests for a round: %v", d.Total(), d.Requests)
						}
					}
					d := srv.Counts().Sub(before)
					each := float64(d.Total()) / float64(rounds*n)
					t.Logf("%.2f requests and %.2f notifications a party; %d requests more for the first round",
						each, float64(d.Notifications)/float64(rounds*n), before.Sub(first).Total()-d.Total()/int64(rounds))
					if each > 5 {
						t.Errorf("%.2f requests a party: %v", each, d.Requests)
					}
					if most := int64(rounds * (3*n - 1)); d.Notifications > most {
						t.Errorf("%d notifications, want at most %d", d.Notifications, most)
					}
				}, zktest.WithSessionTimeouts(time.Second, time.Hour))
			})
		}
	}
}

// nearAndFar runs test with servers that answer at once, and with slow ones.
func nearAndFar(t *testing.T, test func(t *testing.T, srv *zktest.Server)) {
	t.Helper()
	for _, latency := range []time.Duration{0, 5 * time.Millisecond} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			srv.SetLatency(latency)
			test(t, srv)
		})
	}
}

// Each request of each of three parties is lost once, and its reply once. The
// last party lets the round in and keeps it.
func TestRoundsAreWholeWhenRequestsAndRepliesAreLost(t *testing.T) {
	t.Parallel()
	for _, sessions := range []int{1, 2, 3} {
		for who := range sessions {
			roundsWithALostRequest(t, sessions, who)
		}
	}
}

// roundsWithALostRequest has three parties of so many sessions go through two rounds, and each
// request of one of the sessions be lost once, or its reply.
func roundsWithALostRequest(t *testing.T, sessions, who int) {
	for _, act := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		for at, more := 1, true; more; at++ {
			more = false
			nearAndFar(t, func(t *testing.T, srv *zktest.Server) {
				r := roll{n: 3}
				var ss []*zsync.Session
				for range sessions {
					ss = append(ss, suite.Open(t, srv))
				}
				var n atomic.Int32
				id := ss[who].ID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op != zktest.OpConnect && r.Op != zktest.OpPing && int(n.Add(1)) == at {
						return act
					}
					return zktest.Pass
				})
				var done []<-chan error
				for i := range r.n {
					wg := zsync.NewWaitGroup(ss[i%sessions], "/w")
					done = append(done, harness.Async(func() error { return r.take(harness.Within(t, time.Minute), wg, 0, 2) }))
					if at%2 == 0 { // else they come at once
						time.Sleep(100 * time.Millisecond)
					}
				}
				for _, c := range done {
					if err := <-c; err != nil {
						t.Errorf("%v of request %d of session %d of %d: %v", act, at, who, sessions, err)
					}
				}
				time.Sleep(time.Second)
				suite.WantEmptyRoom(t, ss[0])
				more = more || int(n.Load()) >= at && !t.Failed()
			})
		}
	}
}

// The session of each of three parties ends with each of its requests, lost or
// with the reply lost. The others are never held back, and it comes through
// itself: it may miss the round, but then another party like it completes one.
func TestNobodyIsHeldBackByASessionThatEndsAtAnyRequest(t *testing.T) {
	t.Parallel()
	for who := range 3 {
		for _, act := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			for at, more := 1, true; more; at++ {
				more = false
				nearAndFar(t, func(t *testing.T, srv *zktest.Server) {
					var ss []*zsync.Session
					for range 3 {
						ss = append(ss, suite.Open(t, srv))
					}
					var n atomic.Int32
					id := ss[who].ID()
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Session == id && r.Op != zktest.OpConnect && r.Op != zktest.OpPing && int(n.Add(1)) == at {
							go srv.Expire(id)
							return act
						}
						return zktest.Pass
					})
					ctx, cancel := context.WithCancel(t.Context())
					pass := func(s *zsync.Session) error {
						wg := zsync.NewWaitGroup(s, "/w")
						if err := wg.Enter(ctx, 3); err != nil {
							return err
						}
						if err := wg.Leave(ctx); err != nil && !errors.Is(err, zsync.ErrLost) {
							return err
						}
						return nil
					}
					var done []<-chan error
					for _, s := range ss {
						done = append(done, harness.Async(func() error { return pass(s) }))
						time.Sleep(100 * time.Millisecond) // they come one after the other
					}
					for i, c := range done {
						if i == who {
							continue
						}
						select {
						case err := <-c:
							if err != nil {
								t.Errorf("%v and expiry at request %d of party %d: party %d: %v", act, at, who, i, err)
							}
						case <-time.After(time.Minute):
							t.Errorf("%v and expiry at request %d of party %d: party %d hangs", act, at, who, i)
						}
					}
					more = more || int(n.Load()) >= at && !t.Failed()
					select {
					case err := <-done[who]:
						harness.Must(t, err)
					case <-time.After(time.Minute):
						// It was let in when it died, and waits for the next round.
						two := []<-chan error{harness.Async(func() error { return pass(ss[(who+1)%3]) }), harness.Async(func() error { return pass(ss[(who+2)%3]) })}
						harness.Must(t, <-two[0])
						harness.Must(t, <-two[1])
						harness.Must(t, <-done[who])
					}
					cancel()
					time.Sleep(time.Minute)
					suite.WantEmptyRoom(t, ss[(who+1)%3])
				})
			}
		}
	}
}

// Without the loss of a session rounds are exact: each has its n parties, who
// enter when the last has come and leave when the last has left.
func TestHammerRoundsNeverMix(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		r := roll{n: 2 + rnd.IntN(4)}
		// With the longer timeout there is a time in which to be confirmed in each
		// quarter of it, whatever is done without a break.
		calm, timeout := 300*time.Millisecond, harness.Timeout
		if rnd.IntN(2) == 0 {
			calm, timeout = 0, 4*harness.Timeout
		}
		srv.SetLatency(time.Duration(rnd.IntN(2)) * 3 * time.Millisecond)
		var ss []*zsync.Session
		for range 1 + rnd.IntN(r.n) {
			ss = append(ss, suite.Open(t, srv, zsync.WithSessionTimeout(timeout)))
		}
		stop := make(chan struct{})
		fate := rand.New(rand.NewPCG(rnd.Uint64(), 0))
		hurt := harness.Async(func() error { bruise(srv, fate, ss, calm, stop); return nil })
		var done []<-chan error
		for i := range r.n {
			wg := zsync.NewWaitGroup(ss[i%len(ss)], "/w")
			done = append(done, harness.Async(func() error { return r.take(harness.Within(t, time.Hour), wg, 0, 15) }))
		}
		for _, c := range done {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
		close(stop)
		<-hurt
		time.Sleep(time.Second)
		suite.WantEmptyRoom(t, ss[0])
	})
}

// bruise is chaos by which no session is lost, with a pause now and then if that is
// not 0. What is granted is certain to last for a quarter of the session timeout,
// 2.5 s of 10. Harm is done for 2.2 s at most, delays included, then none for 0.2 s.
// A connection that breaks with 2.5 s left is replaced after a sixteenth of them,
// 0.16 s, so it confirms the session in those 0.2 s, which end before.
func bruise(srv *zktest.Server, rnd *rand.Rand, sessions []*zsync.Session, pause time.Duration, until <-chan struct{}) {
	var mu sync.Mutex
	calm := false
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpConnect || r.Op == zktest.OpPing || r.Op == zktest.OpCloseSession {
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		if calm {
			return zktest.Pass
		}
		switch rnd.IntN(12) {
		case 0:
			return zktest.DropRequest
		case 1:
			return zktest.DropReply
		case 2, 3:
			return zktest.Delay(time.Duration(rnd.IntN(100)) * time.Millisecond)
		}
		return zktest.Pass
	})
	defer srv.Intercept(nil)
	for {
		end := time.Now().Add(2400*time.Millisecond - pause) // and a delay
		for time.Now().Before(end) {
			select {
			case <-until:
				return
			case <-time.After(min(time.Duration(draw(200))*time.Millisecond, time.Until(end))):
			}
			id := sessions[draw(len(sessions))].ID()
			if draw(3) > 0 {
				srv.Disconnect(id)
				continue
			}
			srv.Partition(id)
			time.Sleep(min(time.Duration(draw(2000))*time.Millisecond, time.Until(end)))
			srv.Heal(id)
		}
		if pause == 0 {
			continue
		}
		mu.Lock()
		calm = true
		mu.Unlock()
		time.Sleep(pause) // less a delay
		mu.Lock()
		calm = false
		mu.Unlock()
	}
}

// With everything that can happen to sessions, and calls that give up: no round
// has more parties than it should, nobody leaves before the others whose
// memberships stand, and in the end nothing is left and all goes on.
func TestHammerDoubleBarrierSurvivesEverything(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		n := 2 + rnd.IntN(3)
		var ss []*zsync.Session
		for range 1 + rnd.IntN(n) {
			ss = append(ss, suite.Open(t, srv))
		}
		var wgs []*zsync.WaitGroup
		for i := range n + rnd.IntN(3) {
			wgs = append(wgs, zsync.NewWaitGroup(ss[i%len(ss)], "/w"))
		}
		stop := make(chan struct{})
		fate := rand.New(rand.NewPCG(rnd.Uint64(), 0))
		hurt := harness.Async(func() error { harness.Chaos(t, srv, fate, ss, stop); return nil })
		hammerParties(t, rnd, wgs, n, harness.Standing(srv), time.Minute)
		close(stop)
		<-hurt
		time.Sleep(3 * harness.Timeout) // sessions that were given up end for the servers too
		suite.WantEmptyRoom(t, ss[0])
		r := roll{n: n}
		var done []<-chan error
		for i := range n {
			done = append(done, harness.Async(func() error { return r.take(harness.Within(t, time.Minute), wgs[i], 0, 2) }))
		}
		for _, c := range done {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
	})
}

// hammerParties has parties enter, n at a time, and leave, for so long, and
// give up at times. stands tells whether the servers may still know a session.
func hammerParties(t *testing.T, rnd *rand.Rand, wgs []*zsync.WaitGroup, n int, stands func(int64) bool, length time.Duration) {
	var mu sync.Mutex
	rounds := make(map[any]map[*lock.Grant]bool) // the value: it has begun to leave
	var all sync.WaitGroup
	end := time.Now().Add(length)
	for i, wg := range wgs {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		some := func(most time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(most))) }
		all.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), some(length/3))
				err := wg.Enter(ctx, n)
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Enter: %v", err)
					}
					continue
				}
				party, round := inside.Double(wg).Membership()
				mu.Lock()
				if rounds[round] == nil {
					rounds[round] = make(map[*lock.Grant]bool)
				}
				rounds[round][party] = false
				if k := len(rounds[round]); k > n {
					t.Errorf("round %v has %d parties, want at most %d", round, k, n)
				}
				mu.Unlock()
				time.Sleep(some(length / 30)) // real time: the stay inside, also on real servers
				mu.Lock()
				rounds[round][party] = true
				mu.Unlock()
				ctx, cancel = context.WithTimeout(t.Context(), some(length))
				err = wg.Leave(ctx)
				cancel()
				switch {
				case err == nil:
					mu.Lock()
					for q, leaving := range rounds[round] {
						// An expiry may be known to the servers first.
						if !leaving && stands(q.Claim.Incarnation.ID.Load()) && q.Err() == nil {
							t.Errorf("left round %v while a party was inside", round)
						}
					}
					mu.Unlock()
				case errors.Is(err, zsync.ErrLost), errors.Is(err, context.DeadlineExceeded):
				default:
					t.Errorf("Leave: %v", err)
				}
			}
		})
	}
	all.Wait()
}

// The same as TestHammerDoubleBarrierSurvivesEverything on real servers, in
// shorter parts so that there are more rounds.
func TestHammerDoubleBarrierOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		sessions := []*zsync.Session{connect(), connect(), connect()}
		for part := range 6 {
			var wgs []*zsync.WaitGroup // a path for each part: in the last one may be who was cut off
			for i := range 5 {
				wgs = append(wgs, zsync.NewWaitGroup(sessions[i%len(sessions)], fmt.Sprint("/w", part)))
			}
			rnd := rand.New(rand.NewPCG(uint64(part), 5))
			hammerParties(t, rnd, wgs, 2+part%3, stands, 10*time.Second)
		}
	})
}

func TestWaitGroupTellsWhoIsInsideAndWhoWaits(t *testing.T) {
	suite.Anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b, c := connect(zsync.WithOwner("a")), connect(zsync.WithOwner("b")), connect(zsync.WithOwner("c"))
		wga, wgb, wgc := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w"), zsync.NewWaitGroup(c, "/w")
		// want waits until these stand in the room, in their order.
		want := func(owners string, inside int) {
			t.Helper()
			harness.Eventually(t, func() error {
				got, n := "", 0
				cs, err := wga.Contenders(t.Context())
				for _, c := range cs {
					if got += c.Owner; c.Holding {
						n++
					}
					if c.Mode != zsync.ModeParty || c.Session == 0 || c.Since.IsZero() {
						t.Errorf("got %+v", c)
					}
				}
				if err == nil && (got != owners || n != inside) {
					err = fmt.Errorf("got %q, %d of them inside; want %q, %d", got, n, owners, inside)
				}
				return err
			})
		}
		want("", 0)
		ea := enter(t, wga, 2)
		want("a", 0)
		harness.Must(t, wgb.Enter(t.Context(), 2))
		harness.Must(t, <-ea)
		want("ab", 2)
		ec := enter(t, wgc, 2)
		want("abc", 2)
		la := leave(t, wga)
		want("bc", 1)
		harness.Must(t, wgb.Leave(t.Context()))
		harness.Must(t, <-la)
		want("c", 0)
		harness.Must(t, c.Close())
		harness.WantErr(t, <-ec, zsync.ErrClosed)
	})
}

func TestWaitGroupLostIsOfTheMembership(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		wg := zsync.NewWaitGroup(s, "/w")
		if !harness.Closed(wg.Lost()) {
			t.Error("not closed: Lost of one who is not inside")
		}
		harness.Must(t, wg.Enter(t.Context(), 1))
		first := wg.Lost()
		if harness.Closed(first) {
			t.Error("closed: Lost of one who is inside")
		}
		harness.Must(t, wg.Leave(t.Context()))
		if harness.Closed(first) {
			t.Error("closed: Lost of one who has left")
		}
		harness.Must(t, wg.Enter(t.Context(), 1))
		lost := wg.Lost()
		srv.Expire(s.ID())
		<-lost
		harness.WantErr(t, wg.Leave(t.Context()), zsync.ErrLost)
		if !harness.Closed(wg.Lost()) {
			t.Error("not closed: Lost of one who has left")
		}
	})
}

// A round is Enter and then Leave of all parties at once. The last one that enters takes three round
// trips: its create with a read of the room, a listing of the room, and the transaction, which
// notifies all others. The keeper takes two: it asks after all others, and writes its znode.
func TestARoundOfTheDoubleBarrierTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	const latency = 10 * time.Millisecond
	for _, c := range []struct{ n, sessions int }{{8, 1}, {8, 8}, {32, 1}, {32, 32}, {128, 8}, {160, 8}} {
		const most, atMost = 5, 5.0 // round trips, and requests a party
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			var wgs []*zsync.WaitGroup
			for i := range c.n {
				var s *zsync.Session
				if i < c.sessions {
					s = suite.Open(t, srv, zsync.WithSessionTimeout(time.Hour))
				} else {
					s = inside.Session(wgs[0])
				}
				wgs = append(wgs, zsync.NewWaitGroup(s, "/w"))
			}
			all := func(f func(testing.TB, *zsync.WaitGroup) <-chan error) {
				var over []<-chan error
				for _, wg := range wgs {
					over = append(over, f(t, wg))
				}
				for _, ch := range over {
					harness.Must(t, <-ch)
				}
			}
			round := func() {
				all(func(t testing.TB, wg *zsync.WaitGroup) <-chan error { return enter(t, wg, c.n) })
				all(leave)
			}
			round() // makes the paths
			srv.SetLatency(latency)
			var worst, sum time.Duration
			const rounds = 20
			before := srv.Counts()
			for range rounds {
				start := time.Now()
				round()
				took := time.Since(start)
				worst, sum = max(worst, took), sum+took
			}
			requests := float64(srv.Counts().Sub(before).Total()) / float64(rounds*c.n)
			t.Logf("%d parties of %d sessions: %.1f round trips, at most %d; %.2f requests a party", c.n, c.sessions, float64(sum)/rounds/float64(latency), worst/latency, requests)
			if worst/latency > most {
				t.Errorf("%d parties of %d sessions: a round took %d round trips, want at most %d", c.n, c.sessions, worst/latency, most)
			}
			if requests > atMost {
				t.Errorf("%d parties of %d sessions: %.2f requests a party, want at most %.0f", c.n, c.sessions, requests, atMost)
			}
			srv.SetLatency(0)
		}, zktest.WithSessionTimeouts(time.Second, time.Hour))
	}
}

// A party whose create comes behind a round of its session's other parties is in the next one.
func TestAPartyWhoseCreateComesBehindARoundIsInTheNext(t *testing.T) {
	for _, n := range []int{2, 3} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, o := suite.Open(t, srv, suite.LongSession), suite.Open(t, srv, suite.LongSession)
			party := func(s *zsync.Session) <-chan error { return enter(t, zsync.NewWaitGroup(s, "/w"), n) }
			entered := []<-chan error{party(s)}
			synctest.Wait()
			creates := 0
			read := harness.OneByOne(srv, func(r zktest.Request) zktest.Action {
				switch {
				case r.Session != s.ID():
				case r.Op == zktest.OpCreate && creates == 0:
					creates++
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			late := party(s)
			synctest.Wait()
			for range n - 1 {
				entered = append(entered, party(o))
			}
			for _, c := range entered {
				harness.Must(t, <-c)
			}
			harness.PendingStill(t, late)
			time.Sleep(2 * time.Second)
			read(func() {
				if creates != 1 {
					t.Errorf("n = %d: %d creates were held up, want 1", n, creates)
				}
			})
			next := []<-chan error{late}
			for range n - 1 {
				next = append(next, party(o))
			}
			for _, c := range next {
				harness.Must(t, <-c)
			}
		}, suite.LongSessions)
	}
}

// A party whose read of the room, or of the keeper's znode, gets no answer may give up. The other
// parties of its session go on.
func TestPartiesGoOnWhenAnotherOfTheirSessionGivesUp(t *testing.T) {
	t.Parallel()
	for _, act := range []zktest.Action{zktest.Delay(time.Minute), zktest.DropRequest, zktest.DropReply, zktest.Fail(zktest.CodeNoAuth)} {
		for _, leaving := range []bool{false, true} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, o := suite.Open(t, srv, suite.LongSession), suite.Open(t, srv, suite.LongSession)
				path := "/w/parties"
				ours := []*zsync.WaitGroup{zsync.NewWaitGroup(s, "/w"), zsync.NewWaitGroup(s, "/w")}
				theirs := zsync.NewWaitGroup(o, "/w")
				n := 2 // one of ours and theirs
				if leaving {
					n = 3
					path = "/w/keeper"
					var entered []<-chan error
					for _, wg := range append(ours, theirs) { // theirs is the last, and keeps
						entered = append(entered, enter(t, wg, n))
						synctest.Wait()
					}
					for _, c := range entered {
						harness.Must(t, <-c)
					}
				}
				srv.Intercept(harness.First(act, func(r zktest.Request) bool {
					return r.Session == s.ID() && r.Op == zktest.OpGetData && strings.HasPrefix(r.Path, path)
				}))
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if !leaving {
					quits := harness.Async(func() error { return ours[0].Enter(ctx, n) })
					synctest.Wait()
					stays := enter(t, ours[1], n)
					// The servers may let it in before they know that it has given up: then that
					// was the round of another.
					<-quits
					var came []<-chan error
					for range n {
						time.Sleep(5 * time.Minute)
						if len(stays) == 0 {
							came = append(came, enter(t, zsync.NewWaitGroup(o, "/w"), n))
						}
					}
					harness.Must(t, <-stays)
					if len(came) > 0 {
						harness.Must(t, <-came[0])
					}
					return
				}
				quits := harness.Async(func() error { return ours[0].Leave(ctx) })
				synctest.Wait()
				stays := leave(t, ours[1])
				<-quits
				harness.Must(t, theirs.Leave(harness.Within(t, 5*time.Minute)))
				harness.Must(t, <-stays)
				time.Sleep(2 * time.Minute)
				suite.WantEmptyRoom(t, o)
			}, suite.LongSessions)
		}
	}
}

// A Leave whose ctx ends while there is no connection gives the membership up. It is no
// loss, and Lost is not closed by Leave.
func TestALeaveThatIsGivenUpInAnOutageIsNoLoss(t *testing.T) {
	for i := range 30 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := zsync.NewWaitGroup(suite.Open(t, srv, suite.LongSession), "/w"), zsync.NewWaitGroup(suite.Open(t, srv, suite.LongSession), "/w")
			entered := enter(t, b, 2)
			synctest.Wait()
			srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
			harness.Must(t, a.Enter(t.Context(), 2))
			harness.Must(t, <-entered)
			srv.Intercept(nil)
			lost := a.Lost()
			srv.Stop()
			time.Sleep(time.Millisecond)
			harness.WantErr(t, a.Leave(harness.Within(t, 10*time.Millisecond)), context.DeadlineExceeded)
			if harness.Closed(lost) {
				t.Fatal("lost at once")
			}
			time.Sleep(time.Second)
			srv.Restart()
			time.Sleep(30 * time.Second)
			if harness.Closed(lost) {
				t.Errorf("%d: Lost was closed by Leave; expiries %d", i, inside.Session(a).Stats().Expiries)
			}
			harness.Must(t, b.Leave(t.Context()))
		}, suite.LongSessions)
	}
}

// One caller is never counted twice, also if an Enter was cancelled during an outage, or its
// session was replaced, and it comes again with another WaitGroup of the same path.
func TestCallerIsNotCountedTwiceWithAnotherValueAfterAnOutage(t *testing.T) {
	for i := range 20 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			entered := harness.Async(func() error { return zsync.NewWaitGroup(a, "/w").Enter(ctx, 2) })
			harness.PendingStill(t, entered)
			srv.Stop()
			harness.WantErr(t, <-entered, context.DeadlineExceeded)
			again := enter(t, zsync.NewWaitGroup(a, "/w"), 2)
			srv.Restart()
			time.Sleep(time.Second)
			if len(again) > 0 {
				t.Fatalf("%d: a round of 2 was let in with 1: %v", i, <-again)
			}
			harness.Must(t, zsync.NewWaitGroup(b, "/w").Enter(t.Context(), 2))
			harness.Must(t, <-again)
		})
	}
}

func TestCallerIsNotCountedTwiceWithAnotherValueInTheNextSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		old := a.ID()
		ctx, cancel := context.WithCancel(t.Context())
		entered := harness.Async(func() error { return zsync.NewWaitGroup(a, "/w").Enter(ctx, 2) })
		harness.PendingStill(t, entered)
		srv.Partition(old)
		cancel()
		harness.WantErr(t, <-entered, context.Canceled)
		for a.ID() == old || a.ID() == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		again := enter(t, zsync.NewWaitGroup(a, "/w"), 2)
		time.Sleep(100 * time.Millisecond)
		if len(again) > 0 {
			t.Fatalf("a round of 2 was let in with 1: %v", <-again)
		}
		harness.Must(t, zsync.NewWaitGroup(b, "/w").Enter(t.Context(), 2))
		harness.Must(t, <-again)
	})
}

// deleteParties deletes, as a stranger, the znodes of those who are in the room.
func deleteParties(t testing.TB, s *zsync.Session) {
	t.Helper()
	inc, err := inside.Manager(s).Incarnation(t.Context())
	harness.Must(t, err)
	for _, name := range suite.ChildrenOf(t, s, "/w/parties") {
		harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/w/parties/"+name))
	}
}

// A party that waits for a second watches its own znode then, and is told of its
// deletion. That costs one request and one notification.
func TestAPartyThatWaitsForLongCostsOneRequestAndOneNotificationMore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewWaitGroup(suite.Open(t, srv, suite.LongSession), "/w"), zsync.NewWaitGroup(suite.Open(t, srv, suite.LongSession), "/w")
		round := func(wait time.Duration) zktest.Counts {
			t.Helper()
			before := srv.Counts()
			entered := enter(t, a, 2)
			time.Sleep(wait)
			harness.Must(t, b.Enter(t.Context(), 2))
			harness.Must(t, <-entered)
			left := leave(t, a)
			harness.PendingStill(t, left)
			harness.Must(t, b.Leave(t.Context()))
			harness.Must(t, <-left)
			synctest.Wait()
			return srv.Counts().Sub(before)
		}
		round(0) // makes the paths
		short, long := round(900*time.Millisecond), round(time.Minute)
		if more := long.Total() - short.Total(); more > 1 {
			t.Errorf("%d requests more: %v, and %v", more, short.Requests, long.Requests)
		}
		if more := long.Notifications - short.Notifications; more > 1 {
			t.Errorf("%d notifications more", more)
		}
	}, suite.LongSessions)
}

// Somebody deletes the znode of a party that waits. It enters anew: it does not wait for
// ever, nor is it told that it is inside beside the n others who were let in.
func TestAPartyWhoseZnodeIsDeletedWhileItWaitsEntersAnew(t *testing.T) {
	for name, c := range map[string]struct {
		before int           // so many have come and given up
		waits  time.Duration // for so long the party has waited
		away   bool          // its connection is gone meanwhile
		others int           // so many come then
	}{
		"and another comes":           {0, 90 * time.Second, false, 1},
		"soon":                        {0, 2 * time.Millisecond, false, 1},
		"in an outage":                {0, 90 * time.Second, true, 1},
		"and another round is let in": {0, 90 * time.Second, false, 2},
		"in an outage, and another round is let in":     {0, 90 * time.Second, true, 2},
		"soon, behind others, and a round is let in":    {2, 2 * time.Millisecond, true, 2},
		"and three come, and one of them waits with it": {0, 90 * time.Second, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				for range c.before {
					ctx, cancel := context.WithCancel(t.Context())
					gaveUp := harness.Async(func() error { return zsync.NewWaitGroup(b, "/w").Enter(ctx, 2) })
					synctest.Wait()
					cancel()
					harness.WantErr(t, <-gaveUp, context.Canceled)
				}
				entered := enter(t, zsync.NewWaitGroup(a, "/w"), 2)
				time.Sleep(c.waits)
				if c.away {
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpConnect {
							return zktest.Delay(time.Second)
						}
						return zktest.Pass
					})
					srv.Disconnect(a.ID())
				}
				deleteParties(t, b)
				var others []<-chan error
				for range c.others {
					others = append(others, enter(t, zsync.NewWaitGroup(b, "/w"), 2))
				}
				time.Sleep(time.Minute)
				inside := 0
				for _, o := range append(others, entered) {
					select {
					case err := <-o:
						harness.Must(t, err)
						inside++
					default:
					}
				}
				if want := (c.others + 1) / 2 * 2; inside != want {
					t.Fatalf("%d of %d parties are inside, want %d", inside, c.others+1, want)
				}
				if c.others == 2 {
					harness.PendingStill(t, entered)
				}
			})
		})
	}
}

// A party does not watch its znode in its first second: see the decision. If a stranger deletes the znode in
// that second, and a round of others begins, Enter may return nil. Then Leave says that the place was lost.
func TestAPartyWhoseZnodeIsDeletedInItsFirstSecondHearsOfItFromLeave(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		wg := zsync.NewWaitGroup(a, "/w")
		entered := enter(t, wg, 2)
		time.Sleep(2 * time.Millisecond)
		deleteParties(t, b)
		var others []*zsync.WaitGroup
		var done []<-chan error
		for range 2 {
			other := zsync.NewWaitGroup(b, "/w")
			others, done = append(others, other), append(done, enter(t, other, 2))
		}
		for _, o := range done {
			harness.Must(t, <-o)
		}
		synctest.Wait()
		select {
		case err := <-entered:
			harness.Must(t, err)
			harness.WantErr(t, wg.Leave(t.Context()), zsync.ErrLost)
		default:
			t.Fatal("Enter waits: does the party watch its znode now? Then the decision is obsolete")
		}
		left := leave(t, others[0])
		harness.Must(t, others[1].Leave(t.Context()))
		harness.Must(t, <-left)
	})
}

// Somebody deletes the znode of the party that keeps the round, and perhaps that by which it
// does. It is told so by Leave, as any other party is, and the others are told that all have left.
func TestAKeeperWhoseZnodeIsDeletedIsToldByLeave(t *testing.T) {
	for name, all := range map[string]bool{"its party's": false, "both": true} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b, stranger := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
				wga, wgb := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
				entered := enter(t, wga, 2)
				synctest.Wait()
				harness.Must(t, wgb.Enter(t.Context(), 2)) // the last lets them in
				harness.Must(t, <-entered)
				inc, err := inside.Manager(stranger).Incarnation(t.Context())
				harness.Must(t, err)
				for _, name := range suite.ChildrenOf(t, stranger, "/w/parties") {
					if strings.HasSuffix(name, "-0000000001") {
						harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/w/parties/"+name))
					}
				}
				for _, name := range suite.ChildrenOf(t, stranger, "/w") {
					if all && strings.HasPrefix(name, "keeper-") {
						harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/w/"+name))
					}
				}
				left := leave(t, wga)
				synctest.Wait()
				harness.WantErr(t, wgb.Leave(t.Context()), zsync.ErrLost)
				harness.Must(t, <-left)
				time.Sleep(time.Second)
				suite.WantEmptyRoom(t, stranger)
			})
		})
	}
}

// The servers have too much to do, and refuse the transaction that lets a round in. Later, the keeper
// dies, and they refuse the create of the next keeper's znode. The pauses of a party double, as
// WithRetry says.
func TestAPartyOfOverloadedServersPausesLongerAndLonger(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		dies := suite.Open(t, srv)
		first, last := zsync.NewWaitGroup(suite.Open(t, srv), "/w"), zsync.NewWaitGroup(dies, "/w")
		throttled := func() {
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpMulti {
					return zktest.Fail(zktest.CodeThrottled)
				}
				return zktest.Pass
			})
			time.Sleep(time.Minute)
			if n := harness.Requests(srv, func() { time.Sleep(time.Minute) }); n > 400 { // three requests, and then a pause of 1 to 2 s
				t.Errorf("%d requests in a minute, want at most 400", n)
			}
			srv.Intercept(nil)
		}
		entered := []<-chan error{enter(t, first, 2)}
		time.Sleep(time.Second)
		entered = append(entered, harness.Async(func() error { time.Sleep(time.Millisecond); return last.Enter(t.Context(), 2) }))
		throttled()
		for _, c := range entered {
			harness.Must(t, <-c)
		}
		left := harness.Async(func() error { time.Sleep(time.Millisecond); return first.Leave(t.Context()) })
		srv.Expire(dies.ID())
		throttled()
		harness.Must(t, <-left)
	})
}
