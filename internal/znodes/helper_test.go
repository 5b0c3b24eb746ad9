package znodes

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The helpers of all tests of this package.

// open connects a session to srv, through its in-memory transport.
func open(t testing.TB, srv *zktest.Server, changes ...func(*session.Config)) *session.Manager {
	t.Helper()
	return sessiontest.Open(t, srv.Addrs(), srv.Dial, changes...)
}

// rooted returns a manager whose paths begin with chroot. It has failed to connect, so it is closed.
func rooted(chroot string) *session.Manager {
	m := session.New([]string{"x:1"}, chroot, session.Config{
		Timeout: harness.Timeout,
		Log:     slog.New(slog.DiscardHandler),
		Lost:    func(session.LossCause, int64, time.Time, error) error { return session.ErrLost },
		Dialer:  func(string, string, time.Duration) (net.Conn, error) { return nil, io.EOF },
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m.Connect(ctx)
	return m
}

// live returns the present incarnation of c.
func live(t testing.TB, c *session.Manager) *session.Incarnation {
	t.Helper()
	inc, err := c.Incarnation(t.Context())
	harness.Must(t, err)
	return inc
}

// childrenOf lists a znode with the session of its own.
func childrenOf(t testing.TB, c *session.Manager, path string) []string {
	t.Helper()
	names, _, err := live(t, c).Children(t.Context(), c.Full(path))
	if session.IsNoNode(err) {
		return nil
	}
	harness.Must(t, err)
	slices.Sort(names)
	return names
}

// words is the big-endian form of some int32s.
func words(ns ...int64) (p []byte) {
	for _, n := range ns {
		p = binary.BigEndian.AppendUint32(p, uint32(n))
	}
	return p
}

func second[T any](_ T, err error) error { return err }
