package zsync_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The helpers of all tests of this package.

// testTimeout is the session timeout of tests in a bubble. It is long, so that
// a test which waits for real shows it.
const testTimeout = 10 * time.Second

// inMemory says that a test runs in memory whatever servers there are. It is
// skipped where ZSYNC_TEST_ONLY=servers asks only for those that use them.
func inMemory(t testing.TB) {
	t.Helper()
	if os.Getenv("ZSYNC_TEST_ONLY") == "servers" {
		t.Skip("ZSYNC_TEST_ONLY=servers, and this runs in memory")
	}
}

// bubble runs f in a synctest bubble with a server of its own.
func bubble(t *testing.T, f func(t *testing.T, srv *zktest.Server), opts ...zktest.Option) {
	t.Helper()
	inMemory(t)
	synctest.Test(t, func(t *testing.T) {
		srv := zktest.Start(t, opts...)
		f(t, srv)
	})
}

// open connects a session to srv, through its in-memory transport.
func open(t testing.TB, srv *zktest.Server, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	opts = append([]zsync.Option{zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(testTimeout)}, opts...)
	s, err := zsync.Connect(t.Context(), strings.Join(srv.Addrs(), ","), opts...)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// anywhere runs f against an in-process server or, if ZSYNC_TEST_SERVERS names
// an ensemble, against that. connect makes a session below a chroot that is
// f's own; timing is real.
func anywhere(t *testing.T, f func(t *testing.T, connect func(opts ...zsync.Option) *zsync.Session)) {
	t.Helper()
	servers := os.Getenv("ZSYNC_TEST_SERVERS")
	if servers == "" {
		servers = strings.Join(zktest.Start(t).Addrs(), ",")
	}
	chroot := "/zsync-test-" + uuid.NewString()
	f(t, func(opts ...zsync.Option) *zsync.Session {
		t.Helper()
		opts = append([]zsync.Option{zsync.WithSessionTimeout(4 * time.Second)}, opts...)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		s, err := zsync.Connect(ctx, servers+chroot, opts...)
		if err != nil {
			t.Fatalf("Connect: %v", err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Fatalf("got error %v, want one that is %v", got, w)
		}
	}
}

// async runs f in a goroutine and returns the channel of its result.
func async(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

// pendingStill fails if c has a result by the time everything in the bubble is
// idle.
func pendingStill(t testing.TB, c <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Fatalf("returned %v, want it to wait", err)
	default:
	}
}

// childrenOf lists a znode with the session of its own.
func childrenOf(t testing.TB, s *zsync.Session, path string) []string {
	t.Helper()
	inc, err := zsync.ManagerOf(s).Incarnation(t.Context())
	must(t, err)
	names, _, err := inc.Children(t.Context(), zsync.ManagerOf(s).Full(path))
	if session.IsNoNode(err) {
		return nil
	}
	must(t, err)
	slices.Sort(names)
	return names
}

// plain is a client of go-zookeeper's own, for what zsync does not do.
func plain(t testing.TB, srv *zktest.Server, credentials ...string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(srv.Addrs(), testTimeout, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	must(t, err)
	t.Cleanup(c.Close)
	for _, text := range credentials {
		must(t, c.AddAuth("digest", []byte(text)))
	}
	return c
}

// setACL gives a znode another ACL.
func setACL(t testing.TB, srv *zktest.Server, path string, acl []zk.ACL) {
	t.Helper()
	_, err := plain(t, srv).SetACL(path, acl, -1)
	must(t, err)
}

// sendAll sends vs in requests that are not too large.
func sendAll[T any](t *testing.T, q *zsync.Queue[T], vs []T) {
	t.Helper()
	for part := range slices.Chunk(vs, 500) {
		must(t, q.Send(t.Context(), part...))
	}
}

// What the library has as its defaults and limits.
const (
	defaultHandoffs = 16
	maxUnits        = 1000
)
