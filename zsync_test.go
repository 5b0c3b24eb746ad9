package zsync_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The helpers of all tests of this package.

const testTimeout = harness.Timeout

var (
	longTests    = harness.Long
	inMemory     = harness.InMemory
	bubble       = harness.Bubble
	within       = harness.Within
	must         = harness.Must
	wantErr      = harness.WantErr
	async        = harness.Async
	pendingStill = harness.PendingStill
	plain        = harness.Plain
	setACL       = harness.SetACL
)

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

// openAt opens a session that knows one server alone.
func openAt(t testing.TB, srv *zktest.Server, server int) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(t.Context(), srv.Addrs()[server], zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(testTimeout))
	must(t, err)
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
