package lock

import (
	"log/slog"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// open connects a session to srv.
func open(t *testing.T, srv *zktest.Server) *session.Manager {
	t.Helper()
	return openWithJitter(t, srv, 0.5)
}

func openWithJitter(t *testing.T, srv *zktest.Server, jitter float64) *session.Manager {
	t.Helper()
	m := session.New(srv.Addrs(), "", session.Config{
		Timeout: harness.Timeout,
		ACL:     zk.WorldACL(zk.PermAll),
		Log:     slog.New(slog.DiscardHandler),
		Owner:   "test",
		Retry:   session.RetryPolicy{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: jitter},
		Dialer:  srv.Dial,
		Lost:    func(session.LossCause, int64, time.Time) error { return session.ErrLost },
	})
	harness.Must(t, m.Connect(t.Context()))
	t.Cleanup(m.Close)
	return m
}

// mutexOf is the line of a Mutex at path.
func mutexOf(m *session.Manager, path string) *Line {
	l := New(m, path, func(guid, base string) string { return session.ProtectedName(guid, base) }, "lock-")
	l.Settled = true
	return &l
}
