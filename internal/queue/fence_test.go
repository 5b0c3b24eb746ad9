package queue

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// A consumer's claim is on its way from member 0 to the leader. The consumer moves to member 1, which
// refuses the claim because the queue is paused. The members' syncLimit is longer than zsync assumes,
// so the leader receives the first request after the pause, and must refuse it, too: the consumer
// would not know of the claim.
func TestAClaimIsNotAppliedAfterAPauseHasRefusedIt(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSyncLimit(30), zktest.WithSessionTimeouts(harness.Timeout, harness.Timeout))
		e.SetBacklog(time.Millisecond)
		r := &route{e: e}
		q, other := queueAt(r.open(t), "/q"), queueAt((&route{e: e, to: 2}).open(t), "/q")
		send(t, other, "in hand", "x")
		it := receive(t, q) // from now on, the consumer has a mark
		time.Sleep(time.Second)
		e.Cut(0, 2)
		taken := make(chan error, 1)
		go func() {
			e, err := q.Take(harness.Within(t, time.Minute))
			if err == nil && e != nil {
				err = errors.New("Take has returned " + string(e.Data))
			}
			taken <- err
		}()
		time.Sleep(50 * time.Millisecond)
		harness.Must(t, other.Pause(t.Context()))
		r.move(1)
		harness.Must(t, <-taken)
		harness.Must(t, other.Resume(t.Context()))
		time.Sleep(12 * time.Second)
		r.move(0)
		time.Sleep(100 * time.Millisecond)
		e.Heal(0, 2)
		time.Sleep(time.Second)
		wantTake(t, other, "x", 0)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
	})
}

// A route lets a session reach one member of an ensemble at a time.
type route struct {
	e *zktest.Ensemble

	mu sync.Mutex
	to int
	nc net.Conn // the last connection
}

// The method `open` connects a session through the route.
func (r *route) open(t *testing.T) *session.Manager {
	t.Helper()
	m := session.New(r.e.Addrs(), "", session.Config{
		Timeout: harness.Timeout, CloseTimeout: -1, ACL: zk.WorldACL(zk.PermAll), Log: slog.New(slog.DiscardHandler), Owner: "test", Dialer: r.dial,
		Retry: session.RetryPolicy{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.5},
		Lost:  func(session.LossCause, int64, time.Time) error { return session.ErrLost },
	})
	harness.Must(t, m.Connect(t.Context()))
	t.Cleanup(m.Close)
	return m
}

func (r *route) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.e.Addrs()[r.to] != addr {
		return nil, errors.New("no route to this member")
	}
	nc, err := r.e.Dial(network, addr, timeout)
	if err == nil {
		r.nc = nc
	}
	return nc, err
}

// The method `move` closes the connection. Then the session can reach only the member to.
func (r *route) move(to int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	r.nc.Close()
}
