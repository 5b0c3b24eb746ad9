package session

import (
	"context"
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

func second[T any](_ T, err error) error { return err }

// createCall creates a znode that every client may change.
func createCall(path string, data []byte, flags int32) Call[string] {
	return Call[string]{
		Op: wire.OpCreate, Path: path, Take: (*wire.Scanner).String,
		Body: func(p []byte) []byte { return wire.AppendCreate(p, data, zk.WorldACL(zk.PermAll), flags) },
	}
}

// startCreate sends a request that creates a znode.
func startCreate(ctx context.Context, inc *Incarnation, path string, data []byte, flags int32) (*Pending[string], error) {
	return Start(ctx, inc, createCall(path, data, flags))
}

// create creates a persistent znode, and says whether it was missing.
func create(ctx context.Context, inc *Incarnation, path string, data []byte) (bool, error) {
	_, err := Retry(ctx, inc, createCall(path, data, zk.FlagPersistent))
	if IsNodeExists(err) {
		return false, nil
	}
	return err == nil, err
}

// remove deletes a znode.
func remove(ctx context.Context, inc *Incarnation, path string) error {
	_, err := Retry(ctx, inc, DeleteCall(path, -1))
	return err
}

// txnCall applies ops in one transaction.
func txnCall(ops []any) Call[[]zk.MultiResponse] {
	return Call[[]zk.MultiResponse]{
		Op: wire.OpMulti, Ops: ops,
		Body: func(p []byte) []byte { return wire.AppendOps(p, ops) },
		Judge: func(s *wire.Scanner) ([]zk.MultiResponse, int32, error) {
			rs, code := s.Results(len(ops), wire.Error)
			return rs, code, wire.Error(code)
		},
	}
}
