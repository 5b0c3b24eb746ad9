package lock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// connect opens a session at srv.
func connect(t *testing.T, srv *zktest.Server) *session.Manager {
	m := session.New(srv.Addrs(), "", session.Config{
		Timeout: harness.Timeout, ACL: zk.WorldACL(zk.PermAll), Log: slog.New(slog.DiscardHandler), Owner: "test", Dialer: srv.Dial,
		Retry: session.RetryPolicy{Min: 10 * time.Millisecond, Max: time.Second, Factor: 2},
		Lost:  func(session.LossCause, int64, time.Time) error { return session.ErrLost },
	})
	harness.Must(t, m.Connect(t.Context()))
	return m
}

// newLock returns a lock of m at /m.
func newLock(m *session.Manager) *Lock {
	return &Lock{
		Manager: m, Path: "/m", Line: New(m, "/m", session.ProtectedName, "lock-"), Data: m.Owner, Handoffs: 16,
		Entries: &[Shared + 1]Entry{{Base: "lock-", Rule: EveryoneAhead, Op: "lock"}},
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
		m, other := connect(t, srv), connect(t, srv)
		defer m.Close()
		defer other.Close()
		l, rival := newLock(m), newLock(other)
		l.Elects, l.Handoffs, l.Data = true, 1, []byte("id")
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
		harness.Must(t, rival.BeginRelease(held).Finish())
		first := <-led
		if now := childrenOf(t, other); len(now) != 1 || len(names) != 2 || now[0] != names[0] && now[0] != names[1] {
			t.Errorf("the line was %v, and is %v: want the place of the first", names, now)
		}
		harness.Must(t, l.BeginRelease(first).Finish())
		second := <-led
		if first.Name() == second.Name() {
			t.Errorf("handed over: %s", first.Name())
		}
		harness.Must(t, l.BeginRelease(second).Finish())
	})
}

// A candidate that waits for another of its process begins when the other's leadership is lost,
// though that is never released. A release that comes late is a loss for the present leader.
func TestACandidateDoesNotWaitForTheReleaseOfALostHold(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m, other := connect(t, srv), connect(t, srv)
		defer m.Close()
		defer other.Close()
		l := newLock(m)
		l.Elects, l.Handoffs, l.Data = true, 1, []byte("id")
		first, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		led := make(chan *Grant)
		go func() {
			g, _, err := l.Acquire(t.Context(), Exclusive, false)
			if err != nil {
				t.Error(err)
			}
			led <- g
		}()
		synctest.Wait()
		srv.Expire(m.SessionID())
		<-first.Lost()
		second := <-led
		if err := l.BeginUnlock(Exclusive).Finish(); err != nil { // of the first, or of the second
			t.Errorf("release: %v", err)
		}
		<-second.Lost()
		third, _, err := l.Acquire(t.Context(), Exclusive, true) // Run, which releases by its grant
		harness.Must(t, err)
		<-incarnation(t, other).Remove("/m/" + third.Name()).Done
		<-third.Lost()
		fourth, _, err := l.Acquire(t.Context(), Exclusive, false)
		harness.Must(t, err)
		if d := l.BeginRelease(third); !d.None() {
			t.Error("the third was released after the fourth had begun")
		}
		if err := fourth.Err(); err != nil {
			t.Errorf("the fourth: %v", err)
		}
		harness.Must(t, l.BeginRelease(fourth).Finish())
	})
}

// What was found in a session that has ended meanwhile says nothing of what has been got
// in the next.
func TestWhatWasFoundInAFormerSessionTakesNothingFromWhoHoldsInThis(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := connect(t, srv)
		defer m.Close()
		l := newLock(m)
		// A Lock, up to where its turn has come.
		c, err := l.Line.Acquire(t.Context(), "lock-", nil, EveryoneAhead, nil)
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
		if err := l.BeginUnlock(Exclusive).Finish(); err != nil {
			t.Errorf("unlock: %v", err)
		}
		other := newLock(m)
		if _, _, err := other.Acquire(harness.Within(t, time.Hour), Exclusive, false); err != nil {
			t.Errorf("nobody holds it, and an hour later: %v", errors.Unwrap(err))
		}
		other.BeginUnlock(Exclusive).Finish()
	})
}
