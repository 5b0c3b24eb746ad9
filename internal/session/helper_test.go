package session

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The helpers of all tests of this package.

const testTimeout = harness.Timeout

var (
	bubble  = harness.Bubble
	within  = harness.Within
	must    = harness.Must
	wantErr = harness.WantErr
)

// testConfig is what a session of the tests is told.
func testConfig() Config {
	return Config{
		Timeout: testTimeout,
		ACL:     zk.WorldACL(zk.PermAll),
		Log:     slog.New(slog.DiscardHandler),
		Owner:   "test",
		Retry:   RetryPolicy{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.5},
		Lost: func(why LossCause, _ int64, _ time.Time, _ error) error {
			if why == LossClosed {
				return errors.Join(ErrLost, ErrClosed)
			}
			return ErrLost
		},
	}
}

// A testSession is a manager of the tests.
type testSession struct{ m *Manager }

func (c *testSession) ID() int64    { return c.m.SessionID() }
func (c *testSession) Close() error { c.m.Close(); return nil }

// Stats returns counters, as zsync.Session does.
func (c *testSession) Stats() (st struct{ Requests, Watches, Reconnects int64 }) {
	st.Requests, st.Reconnects = c.m.Requests.Load(), c.m.Reconnects.Load()
	if inc := c.m.Present(); inc != nil {
		st.Watches = int64(len(inc.Watches.All()))
	}
	return st
}

// WithDialer connects through d.
func WithDialer(d zk.Dialer) func(*Config) { return func(c *Config) { c.Dialer = d } }

// open connects a session to srv, through its in-memory transport.
func open(t testing.TB, srv *zktest.Server, opts ...func(*Config)) *testSession {
	t.Helper()
	cfg := testConfig()
	cfg.Dialer = srv.Dial
	for _, o := range opts {
		o(&cfg)
	}
	c := &testSession{New(srv.Addrs(), "", cfg)}
	if err := c.m.Connect(t.Context()); err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(c.m.Close)
	return c
}

// live returns the present incarnation of c.
func live(t testing.TB, c *testSession) *Incarnation {
	t.Helper()
	inc, err := c.m.Incarnation(t.Context())
	must(t, err)
	return inc
}

// childrenOf lists a znode with the session of its own.
func childrenOf(t testing.TB, c *testSession, path string) []string {
	t.Helper()
	names, _, err := live(t, c).Children(t.Context(), c.m.Full(path))
	if IsNoNode(err) {
		return nil
	}
	must(t, err)
	slices.Sort(names)
	return names
}

// frame puts the length before a packet.
func frame(p []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
}

// words is the big-endian form of some int32s.
func words(ns ...int64) (p []byte) {
	for _, n := range ns {
		p = binary.BigEndian.AppendUint32(p, uint32(n))
	}
	return p
}

func replyTo(xid, code int32, body ...byte) []byte {
	p := wire.AppendInt64(words(int64(xid)), 1)
	return append(append(p, words(int64(code))...), body...)
}

// numbered creates a child of dir that the servers give a number.
func numbered(dir, guid string) *Creation {
	return &Creation{Dir: Dir{Path: dir}, Paths: []string{ChildPath(dir, ProtectedName(guid, "x-"))}, GUID: guid}
}

// ours creates a znode whose name other sessions use, too.
func ours(path string, data []byte) *Creation {
	return &Creation{Dir: Dir{Path: ParentPath(path)}, Paths: []string{path}, Data: data, Shared: true}
}
