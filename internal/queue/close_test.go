package queue

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// The helper `workOn` begins a function of the program, which works on the first element. The result `finish` ends the
// function and the consumer.
func workOn(t *testing.T, q *core) (consumer *Consumer, finish func()) {
	t.Helper()
	consumer = q.Join(t.Context(), Joining{Hand: true})
	it, err := consumer.Next()
	harness.Must(t, err)
	function := q.m.Function(nil)
	harness.Must(t, function.Begin())
	it.Handed()
	return consumer, func() {
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
		function.End()
		consumer.Leave()
	}
}

// A function of the program works on an element. The program has not taken the next element, so the
// consumer keeps it claimed ahead. Close waits for the function, and meanwhile another client can
// take the element that was claimed ahead.
func TestElementThatIsClaimedAheadIsFreeAsSoonAsCloseBegins(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, q, "in hand", "ahead")
		consumer, finish := workOn(t, q)
		next, err := consumer.Next()
		harness.Must(t, err)
		next.PutBack()
		closed := harness.Async(func() error { m.Close(); return nil })
		harness.PendingStill(t, closed)
		wantTake(t, other, "ahead", 0)
		harness.PendingStill(t, closed)
		finish()
		harness.Must(t, <-closed)
	})
}

// Close waits for a function that works on an element. A consumer of the function's Queue value is
// idle. It must leave a new element to other clients, although the bell wakes it.
func TestNoElementIsClaimedWhileCloseWaitsForAFunction(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, q, "in hand")
		consumer, finish := workOn(t, q)
		next := harness.Async(func() error { _, err := consumer.Next(); return err })
		harness.PendingStill(t, next)
		closed := harness.Async(func() error { m.Close(); return nil })
		harness.WantErr(t, <-next, session.ErrClosed)
		srv.SetLatency(time.Millisecond)
		before := srv.Counts()
		send(t, other, "new")
		time.Sleep(time.Second)
		harness.PendingStill(t, closed)
		if n := srv.Counts().Sub(before).Total(); n > 50 {
			t.Errorf("the clients have sent %d requests in a second", n)
		}
		wantTake(t, other, "new", 0)
		finish()
		harness.Must(t, <-closed)
	})
}

// The program has an element in hand, and does not settle it. Close returns the element at once, and
// the delivery counts as an attempt.
func TestCloseReturnsAnElementInHandWithoutAWait(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, q, "x")
		receive(t, q)
		began := time.Now()
		if m.Close(); time.Since(began) > 0 {
			t.Errorf("Close has waited for %v", time.Since(began))
		}
		wantTake(t, other, "x", 1)
	})
}

// The program gets an element in the moment in which Close returns those in hand. It does not settle the
// element, and Close does not wait for the program.
func TestCloseReturnsAnElementThatIsHandedOverWhileItBegins(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, q, "x")
		c := q.Join(t.Context(), Joining{Hand: true})
		it, err := c.Next()
		harness.Must(t, err)
		began := time.Now()
		closed := harness.Async(func() error { m.Close(); return nil })
		harness.PendingStill(t, closed)
		it.Handed()
		go c.Leave()
		if harness.Must(t, <-closed); time.Since(began) > 500*time.Millisecond {
			t.Errorf("Close has waited for %v", time.Since(began))
		}
		harness.WantErr(t, it.Settle(t.Context(), Settlement{Fate: Remove}), session.ErrLost)
		wantTake(t, other, "x", 1)
	})
}

// Close begins while a Txn is on its way, and then the servers refuse the Txn. The program does not settle the
// element. Close returns it, and does not wait for the program.
func TestCloseReturnsAnElementWhoseTxnIsRefused(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, q, "x")
		it := receive(t, q)
		srv.SetLatency(100 * time.Millisecond)
		done := harness.Arrive(t, func() error {
			_, err := it.Txn(t.Context(), []any{&zk.SetDataRequest{Path: "/none", Version: -1}})
			return err
		})
		began := time.Now()
		if m.Close(); time.Since(began) > 500*time.Millisecond {
			t.Errorf("Close has waited for %v", time.Since(began))
		}
		harness.WantErr(t, <-done, zk.ErrNoNode)
		wantTake(t, other, "x", 1)
	})
}
