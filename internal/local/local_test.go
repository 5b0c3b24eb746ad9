package local

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// What was found in a session that has ended meanwhile says nothing of what has been got
// in the next.
func TestWhatWasFoundInAFormerSessionTakesNothingFromWhoHoldsInThis(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := session.New(srv.Addrs(), "", session.Config{
			Timeout: harness.Timeout, ACL: zk.WorldACL(zk.PermAll), Log: slog.New(slog.DiscardHandler), Owner: "test", Dialer: srv.Dial,
			Retry: session.Backoff{Min: 10 * time.Millisecond, Max: time.Second, Factor: 2},
			Lost:  func(session.LossReason, int64, time.Time) error { return session.ErrLost },
		})
		harness.Must(t, m.Connect(t.Context()))
		defer m.Close()
		es := &Entries{{Base: "lock-", Rule: line.Exclusive, Op: "lock"}}
		name := func() line.Line { return line.New(m, "/m", session.ProtectedName, "lock-") }
		l := new(Lock)
		l.Init(m, "/m", name(), 16, es)
		// A Lock, up to where its turn has come.
		c, err := l.Line.Acquire(t.Context(), "lock-", nil, line.Exclusive, nil)
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
		other := new(Lock)
		other.Init(m, "/m", name(), 16, es)
		if _, _, err := other.Acquire(harness.Within(t, time.Hour), Exclusive, false); err != nil {
			t.Errorf("nobody holds it, and an hour later: %v", errors.Unwrap(err))
		}
		other.Unlock(Exclusive)
	})
}
