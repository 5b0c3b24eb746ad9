// Package sessiontest connects sessions for the tests of the packages above package session. It
// does not import the root package, so the tests inside these packages can use it. The tests in
// internal/suite use the public API instead.
package sessiontest

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
)

// Open connects a session to the servers at addrs, which `dial` reaches. The functions in `changes`
// change its Config first. The session is closed at the end of the test.
func Open(t testing.TB, addrs []string, dial zk.Dialer, changes ...func(*session.Config)) *session.Manager {
	t.Helper()
	cfg := session.Config{
		Timeout: harness.Timeout,
		ACL:     zk.WorldACL(zk.PermAll),
		Log:     slog.New(slog.DiscardHandler),
		Owner:   "test",
		Retry:   session.RetryPolicy{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.5},
		Dialer:  dial,
		Lost: func(why session.LossCause, _ int64, _ time.Time, _ error) error {
			if why == session.LossClosed {
				return errors.Join(session.ErrLost, session.ErrClosed)
			}
			return session.ErrLost
		},
	}
	for _, change := range changes {
		change(&cfg)
	}
	m := session.New(addrs, "", cfg)
	if err := m.Connect(t.Context()); err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(m.Close)
	return m
}
