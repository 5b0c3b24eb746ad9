package queue

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Who works on elements and who sees that the consumer must leave both end it, and what was
// claimed ahead goes back meanwhile. A mutex would stop virtual time, for those who test with it.
func TestASecondLeaveWaitsForTheFirstWhileVirtualTimeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := 0
		c := &Consumer{left: make(chan struct{}), end: func() {
			time.Sleep(time.Second)
			over++
		}}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				c.Leave()
				if over != 1 {
					t.Errorf("Leave has returned, and it was over %d times", over)
				}
			})
		}
		both.Wait()
	})
}

// The bell wakes an idle consumer, and the servers refuse its search. The consumer must search again
// without another bell.
func TestAnIdleConsumerSearchesAgainAfterARefusal(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		c := queueAt(m, "/q").Join(t.Context(), Joining{})
		defer c.Leave()
		next := harness.Async(func() error { _, err := c.Next(); return err })
		time.Sleep(time.Second)
		harness.PendingStill(t, next)
		srv.Intercept(harness.First(zktest.Fail(zktest.CodeNoAuth), func(r zktest.Request) bool {
			return r.Session == m.SessionID() && r.Op == zktest.OpGetChildren2 && r.Path == "/q"
		}))
		send(t, queueAt(open(t, srv), "/q"), "x")
		time.Sleep(10 * time.Second)
		select {
		case err := <-next:
			harness.Must(t, err)
		default:
			t.Error("the consumer still waits")
		}
	})
}

// The program of a consumer would not settle its element, so the claim has recorded no attempt. The
// consumer puts the element back, and a consumer whose program settles its elements gets it. The servers
// record the attempt first.
func TestAnElementThatWasClaimedWithoutAnAttemptIsClaimedAgain(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		q.cfg.MaxAttempts = 3
		send(t, q, "x")
		c1, c2 := q.Join(t.Context(), Joining{}), q.Join(harness.Within(t, time.Minute), Joining{Hand: true})
		defer c1.Leave()
		defer c2.Leave()
		it, err := c1.Next()
		harness.Must(t, err)
		it.PutBack()
		it, err = c2.Next()
		harness.Must(t, err)
		it.Handed()
		srv.Expire(m.SessionID())
		wantTake(t, other, "x", 1)
	})
}
