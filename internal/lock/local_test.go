package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// newLock returns a lock of m at /m.
func newLock(m *session.Manager) *Lock {
	return &Lock{
		Manager: m, Line: New(m, "/m", znodes.ProtectedName, "lock-"), Op: "lock", Handoffs: 16,
	}
}

// childrenOf lists /m, and incarnation is the session through which it does.
func childrenOf(t *testing.T, m *session.Manager) []string {
	names, _, err := incarnation(t, m).Children(t.Context(), "/m")
	harness.Must(t, err)
	return names
}

func incarnation(t *testing.T, m *session.Manager) *session.Incarnation {
	inc, err := m.Incarnation(t.Context())
	harness.Must(t, err)
	return inc
}

// In an election, the waiter behind the first takes over its place in the line, and leads when the
// leader has left; a hold is not handed over, so the next leader of the process has another znode.
func TestACandidateTakesOverThePlaceOfTheOneBeforeIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m, other := openWithJitter(t, srv, 0), openWithJitter(t, srv, 0)
		l, rival := newLock(m), newLock(other)
		l.Elects, l.Handoffs, l.Line.Data = true, 1, []byte("id")
		held, _, err := rival.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, _, err := l.Acquire(ctx, Exclusive, false)
			failed <- err
		}()
		synctest.Wait()
		names := childrenOf(t, other)
		led := make(chan *Grant)
		for range 2 {
			go func() {
				g, _, err := l.Acquire(t.Context(), Exclusive, false)
				if err != nil {
					t.Error(err)
				}
				led <- g
			}()
		}
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %v", err)
		}
		harness.Must(t, held.Release())
		first := <-led
		if now := childrenOf(t, other); len(now) != 1 || len(names) != 2 || now[0] != names[0] && now[0] != names[1] {
			t.Errorf("the line was %v, and is %v: want the place of the first", names, now)
		}
		harness.Must(t, first.Release())
		second := <-led
		if first.Name() == second.Name() {
			t.Errorf("handed over: %s", first.Name())
		}
		harness.Must(t, second.Release())
	})
}

// The helper `acquire` returns a channel that receives the grant of l.
func acquire(t *testing.T, l *Lock) <-chan *Grant {
	granted := make(chan *Grant)
	go func() {
		g, _, err := l.Acquire(t.Context(), Exclusive, false)
		if err != nil {
			t.Error(err)
		}
		granted <- g
	}()
	return granted
}

// A candidate that waits for another of its process begins when the other's leadership is lost,
// though that is never released. A release that comes late is a loss for the present leader.
func TestACandidateDoesNotWaitForTheReleaseOfALostHold(t *testing.T) {
	for _, expires := range []bool{true, false} { // or another client deletes its znode
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) { candidateAfterALoss(t, srv, expires) })
	}
}

func candidateAfterALoss(t *testing.T, srv *zktest.Server, expires bool) {
	m, other := openWithJitter(t, srv, 0), openWithJitter(t, srv, 0)
	l := newLock(m)
	l.Elects, l.Handoffs, l.Line.Data = true, 1, []byte("id")
	first, _, err := l.Acquire(t.Context(), Exclusive, false)
	harness.Must(t, err)
	led := acquire(t, l)
	synctest.Wait()
	if expires {
		srv.Expire(m.SessionID())
	} else {
		<-znodes.Remove(incarnation(t, other), "/m/"+first.Name()).Done
	}
	<-first.Loss().Done()
	start := time.Now()
	second := <-led
	if took := time.Since(start); took > time.Second {
		t.Errorf("it began %v after the loss", took)
	}
	if err := l.Unlock(Exclusive); err != nil { // of the first, or of the second
		t.Errorf("release: %v", err)
	}
	<-second.Loss().Done()
	third, _, err := l.Acquire(t.Context(), Exclusive, true) // Run, which releases by its grant
	harness.Must(t, err)
	<-znodes.Remove(incarnation(t, other), "/m/"+third.Name()).Done
	<-third.Loss().Done()
	fourth, _, err := l.Acquire(t.Context(), Exclusive, false)
	harness.Must(t, err)
	if _, found := third.BeginRelease(); found {
		t.Error("the third was released after the fourth had begun")
	}
	if err := fourth.Err(); err != nil {
		t.Errorf("the fourth: %v", err)
	}
	harness.Must(t, fourth.Release())
}

// What was found in a session that has ended meanwhile says nothing of what has been got
// in the next.
func TestWhatWasFoundInAFormerSessionTakesNothingFromWhoHoldsInThis(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := openWithJitter(t, srv, 0)
		l := newLock(m)
		// A Lock, up to where its turn has come.
		c, err := l.Line.Acquire(t.Context())
		harness.Must(t, err)
		// Its goroutine is held up, the session ends, and another locks in the next.
		srv.Expire(m.SessionID())
		time.Sleep(time.Second)
		g, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		harness.Must(t, g.Err())
		// And then it goes on.
		w := &waiter{mode: Exclusive, ready: make(chan struct{}, 1)}
		if l.take(t.Context(), c, w) {
			t.Fatal("let in by what is lost")
		}
		if err := g.Err(); err != nil {
			t.Errorf("who holds in this session is told: %v", err)
		}
		if err := l.Unlock(Exclusive); err != nil {
			t.Errorf("unlock: %v", err)
		}
		other := newLock(m)
		if _, _, err := other.Acquire(harness.Within(t, time.Hour), Exclusive, false); err != nil {
			t.Errorf("nobody holds it, and an hour later: %v", errors.Unwrap(err))
		}
		other.Unlock(Exclusive)
	})
}

// newRetained returns a lock of m at /m that keeps its place for an hour.
func newRetained(m *session.Manager) *Lock {
	l := newLock(m)
	l.Retain, l.Kept, l.Handoffs, l.Line.Keeps = time.Hour, new(atomic.Int64), 2, true
	return l
}

// A place was kept, then used again. During that use, a contender came and left, and a listing showed that
// nobody else was in the line. The place is kept again, and the next contender gets it at once.
func TestAPlaceThatIsKeptAgainAfterAListingIsGivenUpForTheNextContender(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m, other := openWithJitter(t, srv, 0), openWithJitter(t, srv, 0)
		l, rival := newRetained(m), newLock(other)
		isKept := func() bool {
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.idle != nil
		}
		first, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		harness.Must(t, first.Release())
		if !isKept() {
			t.Fatal("the place is not kept: the test shows nothing")
		}
		second, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		if g, err := rival.Try(t.Context(), Exclusive); g != nil || err != nil {
			t.Fatalf("beside a hold, a Try has %v, with the error %v", g, err)
		}
		handed := acquire(t, l)
		synctest.Wait()
		harness.Must(t, second.Release())
		third := <-handed
		synctest.Wait() // the listing is answered
		harness.Must(t, third.Release())
		if !isKept() || third.Claim != first.Claim {
			t.Fatal("the place is not kept again: the test shows nothing")
		}
		g, _, err := rival.Acquire(harness.Within(t, time.Minute), Exclusive, false)
		harness.Must(t, err)
		harness.Must(t, g.Release())
	})
}

// A Try beside a hold of its own process sends nothing. So the process still keeps the place at the release.
func TestATryBesideAHoldOfItsProcessDoesNotEndTheRetention(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := openWithJitter(t, srv, 0)
		l := newRetained(m)
		held, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		time.Sleep(time.Second) // the watch on its znode is set
		start, before := time.Now(), srv.Counts()
		if g, err := l.Try(t.Context(), Exclusive); g != nil || err != nil {
			t.Errorf("it has %v, with the error %v", g, err)
		}
		if took, n := time.Since(start), srv.Counts().Sub(before).Total(); n != 0 || took != 0 {
			t.Errorf("it took %v and %d requests", took, n)
		}
		harness.Must(t, held.Release())
		if l.Kept.Load() != 1 {
			t.Error("the place is not kept")
		}
	})
}

// The loss comes in a release, after the look at the line and before the place is kept.
func TestAPlaceThatIsLostBeforeItIsKeptIsNotCounted(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := openWithJitter(t, srv, 0)
		l := newRetained(m)
		g, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		h := g.Claim
		look := func(w *conn.Watch) (before *conn.Watch) { // sets what the look at the line finds
			h.mu.Lock()
			defer h.mu.Unlock()
			before, h.lineWatch = h.lineWatch, w
			return before
		}
		w := look(nil)
		h.Lose(session.ErrLost)
		if look(w); !h.Alone() {
			t.Fatal("another contender is in the line: the test shows nothing")
		}
		harness.WantErr(t, g.Release(), session.ErrLost)
		if n := l.Kept.Load(); n != 0 {
			t.Errorf("%d kept places", n)
		}
	})
}

// During a Try, another goroutine of the process gets the lock, and its znode is deleted. The turn of the Try
// comes, but the other goroutine has not released its lost hold.
func TestATryLeavesTheLineIfALostHoldIsNotReleased(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m, other := openWithJitter(t, srv, 0), openWithJitter(t, srv, 0)
		l := newLock(m)
		var lost *Grant
		asked := 0
		ctx := harness.Asking(t.Context(), func() {
			if asked++; asked == 2 { // after the first, the Try looks at the holds of its process
				var err error
				lost, _, err = l.Acquire(t.Context(), Exclusive, false)
				harness.Must(t, err)
				<-znodes.Remove(incarnation(t, other), "/m/"+lost.Name()).Done
			}
		})
		if g, err := l.Try(ctx, Exclusive); g != nil || err != nil {
			t.Errorf("it has %v, with the error %v", g, err)
		}
		if lost == nil || lost.Err() == nil {
			t.Fatal("nothing was lost: the test shows nothing")
		}
		synctest.Wait()
		if names := childrenOf(t, other); len(names) > 0 {
			t.Errorf("%q stand in the line", names)
		}
		harness.WantErr(t, lost.Release(), session.ErrLost)
	})
}

// The error of a wait names the first contender ahead.
func TestAWaitThatFailsNamesTheHolder(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m, other := openWithJitter(t, srv, 0), openWithJitter(t, srv, 0)
		l, rival := newLock(m), newLock(other)
		held, _, err := rival.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		for _, wait := range []time.Duration{lookAfter / 2, 3 * lookAfter} { // before the waiter reads the znode, and after
			_, behind, err := l.Acquire(harness.Within(t, wait), Exclusive, false)
			harness.WantErr(t, err, context.DeadlineExceeded)
			if behind.Name != held.Name() || behind.Place != 1 {
				t.Errorf("after %v: behind %d, the first is %q; want 1, %q", wait, behind.Place, behind.Name, held.Name())
			}
		}
		harness.Must(t, held.Release())
	})
}
