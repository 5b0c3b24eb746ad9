package foreign

import (
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/zktest"
)

// A client offers an element when its Session is closed, or when its ZooKeeper session ends. If the
// program takes the element nevertheless, no other client gets it. If the program does not take it,
// or takes it without a settlement, another client gets it.
func TestAnOfferedElementHasOneFateAtTheEndOfTheSession(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(queue.Item)
		back bool
	}{
		"taken":    {queue.Item.Taken, false},
		"put back": {queue.Item.PutBack, true},
		"in hand":  {queue.Item.Handed, true},
	} {
		for _, expires := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", closed", true: ", expired"}[expires], func(t *testing.T) {
				harness.VirtualTime(t, func(t *testing.T) {
					srv := zktest.Start(t)
					settings := queue.Settings{Path: "/q", Decode: func(d []byte) (any, error) { return d, nil }, Prefetch: 1, Priorities: 1}
					m := sessiontest.Open(t, srv.Addrs(), srv.Dial)
					q := New(m, settings, "kazoo")
					other := New(sessiontest.Open(t, srv.Addrs(), srv.Dial), settings, "kazoo")
					harness.Must(t, other.Send(t.Context(), queue.Batch{Data: [][]byte{[]byte("x")}}))
					consumer := q.Join(t.Context(), queue.Joining{})
					it, err := consumer.Next()
					harness.Must(t, err)
					// At this point, `offer` of the root sends the element to the program.
					closed := harness.Async(func() error {
						if expires {
							srv.Expire(m.SessionID())
						} else {
							m.Close()
						}
						return nil
					})
					if expires {
						time.Sleep(time.Minute)
					} else {
						harness.PendingStill(t, closed)
					}
					c.end(it)
					consumer.Leave()
					harness.Must(t, <-closed)
					time.Sleep(time.Minute)
					e, err := other.Take(harness.Within(t, time.Minute))
					harness.Must(t, err)
					if back := e != nil; back != c.back {
						t.Errorf("another client gets the element: %v, want %v", back, c.back)
					}
				})
			})
		}
	}
}

// Close waits for a function that works on an element. A consumer of the same Queue value is idle, and another
// waits for it. They must leave a new element to other clients.
func TestNoElementIsOfferedWhileCloseWaitsForAFunction(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		settings := queue.Settings{Path: "/q", Decode: func(d []byte) (any, error) { return d, nil }, Prefetch: 1, Priorities: 1}
		m := sessiontest.Open(t, srv.Addrs(), srv.Dial, func(cfg *session.Config) { cfg.CloseTimeout = -1 })
		q := New(m, settings, "kazoo")
		other := New(sessiontest.Open(t, srv.Addrs(), srv.Dial), settings, "kazoo")
		function := m.Function(nil)
		harness.Must(t, function.Begin())
		consumer := q.Join(t.Context(), queue.Joining{Hand: true})
		next := func() error { _, err := consumer.Next(); return err }
		idle, second := harness.Async(next), harness.Async(next)
		harness.PendingStill(t, idle)
		closed := harness.Async(func() error { m.Close(); return nil })
		harness.WantErr(t, <-second, session.ErrClosed)
		harness.Must(t, other.Send(t.Context(), queue.Batch{Data: [][]byte{[]byte("x")}}))
		harness.WantErr(t, <-idle, session.ErrClosed)
		harness.PendingStill(t, closed)
		if e, err := other.Take(harness.Within(t, time.Minute)); e == nil || err != nil {
			t.Errorf("another client gets %v, %v; want the element", e, err)
		}
		function.End()
		consumer.Leave()
		harness.Must(t, <-closed)
	})
}
