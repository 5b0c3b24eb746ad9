package lock

import (
	"context"
	"testing"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/internal/znodes"
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
	return sessiontest.Open(t, srv.Addrs(), srv.Dial, func(cfg *session.Config) { cfg.Retry.Jitter = jitter })
}

// mutexOf is the line of a Mutex at path.
func mutexOf(m *session.Manager, path string) *Line {
	l := New(m, path, func(guid, base string) string { return znodes.ProtectedName(guid, base) }, "lock-")
	l.Settled = true
	return &l
}

// Acquire enters the line and waits for its turn. If ctx ends, it leaves no znode in the line.
func (l *Line) Acquire(ctx context.Context) (*Claim, error) {
	p := Place{Line: l}
	c, err := p.Take(ctx)
	p.Leave()
	return c, err
}
