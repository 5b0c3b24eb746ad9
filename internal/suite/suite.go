// Package suite helps tests through the public API: it connects sessions to a
// test server or to a real ensemble. Each folder below it tests one guarantee of
// docs/guarantees.md for all primitives; its doc.go says which. Helpers without
// a Session are the business of package harness.
package suite

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/zktest"
)

// Open connects a session to srv, through its in-memory transport.
func Open(t testing.TB, srv *zktest.Server, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	return OpenOver(t, srv.Addrs(), srv.Dial, opts...)
}

// OpenOver connects a session to the servers at addrs, over connections of `dial`.
func OpenOver(t testing.TB, addrs []string, dial zk.Dialer, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	opts = append([]zsync.Option{zsync.WithDialer(dial), zsync.WithSessionTimeout(harness.Timeout)}, opts...)
	s, err := zsync.Connect(t.Context(), strings.Join(addrs, ","), opts...)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// OpenEach connects n sessions to srv.
func OpenEach(t testing.TB, srv *zktest.Server, n int) (sessions []*zsync.Session) {
	t.Helper()
	for range n {
		sessions = append(sessions, Open(t, srv))
	}
	return sessions
}

// OpenAt connects a session to a single server of srv.
func OpenAt(t testing.TB, srv *zktest.Server, server int) *zsync.Session {
	t.Helper()
	return OpenOver(t, srv.Addrs()[server:server+1], srv.Dial)
}

// OpenAs connects a session with credentials, and with an ACL for its znodes.
func OpenAs(t testing.TB, srv *zktest.Server, user string, acl []zk.ACL) *zsync.Session {
	t.Helper()
	return Open(t, srv, zsync.WithAuth("digest", []byte(user+":secret")), zsync.WithACL(acl))
}

// ChildrenOf returns the children of a znode, in order. If the znode does not exist, it returns
// none.
func ChildrenOf(t testing.TB, s *zsync.Session, path string) []string {
	t.Helper()
	names, _, err := s.Children(t.Context(), path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return names
}

// Anywhere runs f in real time, against the ensemble in ZSYNC_TEST_SERVERS or, if there is
// none, against an in-process server. connect connects a session with a chroot that only this
// call of Anywhere uses. The session timeout is so long that a session ends only if its test
// ends it, even on a busy machine.
func Anywhere(t *testing.T, f func(t *testing.T, connect func(opts ...zsync.Option) *zsync.Session)) {
	t.Helper()
	servers := os.Getenv("ZSYNC_TEST_SERVERS")
	if servers == "" {
		servers = strings.Join(zktest.Start(t).Addrs(), ",")
	}
	chroot := "/zsync-test-" + uuid.NewString()
	f(t, func(opts ...zsync.Option) *zsync.Session {
		t.Helper()
		opts = append([]zsync.Option{zsync.WithSessionTimeout(40 * time.Second)}, opts...)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s, err := zsync.Connect(ctx, servers+chroot, opts...)
		if err != nil {
			t.Fatalf("Connect: %v", err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}

// OnServers runs f against the ensemble in ZSYNC_TEST_SERVERS, in parallel with other tests. f is a
// hammer of about a minute. [harness.Network] disturbs the sessions that the function `connect`
// opens. The function `stands` returns false only for a session that the Network has ended or is
// about to end. All sessions write a trace. After they are closed, OnServers checks the trace as
// zsync verify does.
func OnServers(t *testing.T, f func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(session int64) bool)) {
	t.Helper()
	need.Variable(t, "ZSYNC_TEST_SERVERS")
	need.Variable(t, "ZSYNC_TEST_LONG")
	t.Parallel()
	var n harness.Network
	written := traceFile(t, n.Stands)
	stop := make(chan struct{})
	var hurting sync.WaitGroup
	hurting.Go(func() { n.Hurt(stop) })
	defer func() {
		close(stop)
		hurting.Wait()
		t.Logf("%d sessions were ended", n.Ended())
	}()
	Anywhere(t, func(t *testing.T, connect func(opts ...zsync.Option) *zsync.Session) {
		f(t, func(opts ...zsync.Option) *zsync.Session {
			return connect(append([]zsync.Option{zsync.WithDialer(n.Client()), zsync.WithSessionTimeout(6 * time.Second), zsync.WithTrace(written)}, opts...)...)
		}, n.Stands)
	})
}

// Outages returns a function that kills or stops a random server of the real ensemble, and lets it serve again after at
// most four seconds. It skips the test if there is no ensemble whose servers the test may kill.
func Outages(t *testing.T) (outage func()) {
	e := ensemble.Faults(t)
	return func() {
		fail, mend := e.Kill, e.Restart
		if rand.IntN(2) == 0 {
			fail, mend = e.Pause, e.Resume
		}
		victim := 1 + rand.IntN(len(e.Addrs()))
		fail(victim)
		harness.Pause(t, rand.N(4*time.Second))
		mend(victim)
		harness.Pause(t, rand.N(4*time.Second))
	}
}

// SendAll sends vs in several requests, none of which is too large.
func SendAll[T any](t testing.TB, q *zsync.Queue[T], vs []T) {
	t.Helper()
	for part := range slices.Chunk(vs, 500) {
		harness.Must(t, q.Send(t.Context(), part...))
	}
}

// WantLen ends the test unless the number of q's elements is `want`.
func WantLen[T any](t testing.TB, q *zsync.Queue[T], want int) {
	t.Helper()
	if n, err := q.Len(t.Context()); n != want || err != nil {
		t.Fatalf("Len = %d, %v; want %d", n, err, want)
	}
}

// WantCount ends the test unless the number of wg's open tasks is `want`.
func WantCount(t testing.TB, wg *zsync.WaitGroup, want int) {
	t.Helper()
	got, err := wg.Count(t.Context())
	if err != nil || got != want {
		t.Fatalf("Count = %d, %v; want %d", got, err, want)
	}
}

// RollCall returns the IDs and the information of members as a text.
func RollCall(members []zsync.Member[string]) string {
	var all []string
	for _, m := range members {
		all = append(all, m.ID+"="+m.Info)
	}
	return strings.Join(all, " ")
}

// Remove deletes a dead letter of q, and reports whether it existed.
func Remove[T any](ctx context.Context, q *zsync.Queue[T], d zsync.DeadLetter) (bool, error) {
	n, err := q.PurgeDead(ctx, func(other zsync.DeadLetter) bool { return other.ID == d.ID })
	return n == 1, err
}

// Requeue puts a dead letter back into q, and reports whether it existed.
func Requeue[T any](ctx context.Context, q *zsync.Queue[T], d zsync.DeadLetter) (bool, error) {
	n, err := q.RequeueDead(ctx, func(other zsync.DeadLetter) bool { return other.ID == d.ID })
	return n == 1, err
}

// AwaitConnected waits for at most d until a session has a connection.
func AwaitConnected(t testing.TB, s *zsync.Session, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); s.State() != zsync.StateConnected; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the session is %v after %v", s.State(), d)
		}
	}
}
