package queue

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The helper `open` connects a session to srv, at one of `addrs`, or at any address if there are
// none.
func open(t *testing.T, srv *zktest.Server, addrs ...string) *session.Manager {
	t.Helper()
	if len(addrs) == 0 {
		addrs = srv.Addrs()
	}
	return sessiontest.Open(t, addrs, srv.Dial, closesInTime)
}

// closesInTime makes Close wait for functions, for the session timeout.
func closesInTime(cfg *session.Config) { cfg.CloseTimeout = -1 }

// queueAt returns the queue at path, whose elements decode to their bytes.
func queueAt(m *session.Manager, path string) *core {
	return New(m, Settings{
		Path:          path,
		Decode:        func(data []byte) (any, error) { return data, nil },
		Prefetch:      1,
		PrefetchBytes: 1 << 20,
		Priorities:    1,
		IDMemory:      time.Hour,
	}).(*core)
}

// The helper `send` sends one element for each of vs.
func send(t *testing.T, q *core, vs ...string) {
	t.Helper()
	b := Batch{}
	for _, v := range vs {
		b.Data = append(b.Data, []byte(v))
	}
	harness.Must(t, q.Send(t.Context(), b))
}

// wantTake takes the first free element. The test fails unless the element is v and has had that
// many attempts.
func wantTake(t *testing.T, q *core, v string, attempts int) {
	t.Helper()
	e, err := q.Take(harness.Within(t, time.Minute))
	harness.Must(t, err)
	switch {
	case e == nil:
		t.Fatalf("Take has found no element; want %q", v)
	case string(e.Data) != v || e.Attempts != attempts:
		t.Fatalf("Take has returned %q after %d attempts; want %q after %d", e.Data, e.Attempts, v, attempts)
	}
}

// The helper `receive` claims one element, which is then in hand.
func receive(t *testing.T, q *core) (it Item) {
	t.Helper()
	harness.Must(t, q.Receive(harness.Within(t, time.Minute), 1, func(got Item) { it = got }))
	return it
}

// Receive calls `got` with each element that one call of Queue.ReceiveN returns.
func (q *core) Receive(ctx context.Context, n int, got func(Item)) error {
	c := q.Join(ctx, Joining{Hand: true, Limit: n})
	defer c.Leave()
	it, err := c.Next()
	for ; it != nil; it = c.Poll() {
		got(it)
		it.Handed()
		if n--; n == 0 {
			break
		}
	}
	return err
}
