package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// The ctx of Take ends as the turn comes: a second Take goes on in the same place.
func TestAPlaceIsHandedOnThoughItsTurnHasCome(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		holders, waiters := open(t, srv), open(t, srv)
		for range 50 {
			held, err := mutexOf(holders, "/m").Acquire(t.Context())
			harness.Must(t, err)
			line := mutexOf(waiters, "/m")
			p := Place{Line: line}
			ctx, cancel := context.WithCancel(t.Context())
			var c *Claim
			got := harness.Async(func() (err error) { c, err = p.Take(ctx); return err })
			harness.PendingStill(t, got)
			go held.Leave()
			cancel()
			if err := <-got; err != nil { // else the turn came first
				harness.WantErr(t, err, context.Canceled)
				stands := p.claim
				c, err = p.Take(t.Context())
				if harness.Must(t, err); c != stands {
					t.Fatal("it has another place")
				}
			}
			harness.Must(t, c.GiveBack())
		}
	})
}

func TestAPlaceThatIsLeftIsNotInTheLineThoughItsTurnHasCome(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m, inc := live(t, zktest.Start(t))
		line := mutexOf(m, "/m")
		c, roll, err := line.Enter(t.Context(), inc, Exclusive)
		harness.Must(t, err)
		p := Place{Line: line, claim: c, roll: roll}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if c, err := p.Take(ctx); c != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("it has %v, with the error %v", c, err)
		}
		p.Leave()
		if names, _, err := inc.Children(t.Context(), "/m"); err != nil || len(names) > 0 {
			t.Errorf("%q stands in the line, %v", names, err)
		}
		if n := m.Waiters.Load(); n != 0 {
			t.Errorf("%d waiters", n)
		}
	})
}

// The ctx of Take ends before a server has executed the read of the contender ahead, and the request
// is lost with its connection. So no watch is set. A second Take goes on in the same place, and has
// the turn when that contender has left.
func TestAPlaceIsHandedOnThoughTheReadOfTheContenderAheadHasNoAnswer(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		held := stand(t, srv, 1)[0]
		m, inc := live(t, srv)
		p := Place{Line: mutexOf(m, "/m")}
		read := make(chan struct{}, 1)
		srv.Intercept(harness.First(zktest.Hang, func(r zktest.Request) bool {
			if r.Session != inc.ID.Load() || r.Path != held.Path {
				return false
			}
			select {
			case read <- struct{}{}:
			default: // a later read
			}
			return true
		}))
		ctx, cancel := context.WithCancel(t.Context())
		got := harness.Async(func() error { _, err := p.Take(ctx); return err })
		<-read
		cancel()
		harness.WantErr(t, <-got, context.Canceled)
		srv.Disconnect(inc.ID.Load())
		stands := p.claim
		var c *Claim
		got = harness.Async(func() (err error) { c, err = p.Take(t.Context()); return err })
		time.Sleep(2 * time.Second)
		harness.PendingStill(t, got)
		harness.Must(t, held.GiveBack())
		if harness.Must(t, <-got); c != stands {
			t.Error("it has another place")
		}
		harness.Must(t, c.GiveBack())
	})
}
