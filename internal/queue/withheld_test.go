package queue

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A consumer removes the last of its two elements and dies. The next consumer claims the first
// element, and no board has the number of the removed element any longer. A third client remembers
// a listing with that element. Its calls must still end.
func TestARememberedElementThatADeadConsumerHasRemoved(t *testing.T) {
	ops := map[string]func(ctx context.Context, q *core) error{
		"Peek":   func(ctx context.Context, q *core) error { _, err := q.Peek(ctx); return err },
		"Clear":  func(ctx context.Context, q *core) error { _, err := q.Clear(ctx); return err },
		"Cancel": func(ctx context.Context, q *core) error { _, err := q.Cancel(ctx, "y"); return err },
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				a, b, m := open(t, srv), open(t, srv), open(t, srv)
				first, next, third := queueAt(a, "/q"), queueAt(b, "/q"), queueAt(m, "/q")
				for _, v := range []string{"x", "y"} {
					harness.Must(t, first.Send(t.Context(), Batch{ID: v, Data: [][]byte{[]byte(v)}}))
				}
				_, err := third.Peek(t.Context()) // remembers the listing
				harness.Must(t, err)
				receive(t, first) // x
				harness.Must(t, receive(t, first).Settle(t.Context(), Settlement{Fate: Remove}))
				srv.Expire(a.SessionID())
				time.Sleep(time.Minute)
				if e := receive(t, next).Element(); string(e.Data) != "x" {
					t.Fatalf("received %q", e.Data)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				id := m.SessionID()
				var n atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op != zktest.OpPing && n.Add(1) == 2000 {
						cancel()
					}
					return zktest.Pass
				})
				err = op(ctx, third)
				srv.Intercept(nil)
				if err != nil || n.Load() > 100 {
					t.Errorf("%s has sent %d requests, and has returned: %v", name, n.Load(), err)
				}
			})
		})
	}
}

// The Session is closed while TryRecv decodes its element. The element returns to the queue, so
// TryRecv must not return it.
func TestTakeDuringCloseReturnsNoElementThatIsBack(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, other, "x")
		decoding, resume := make(chan struct{}), make(chan struct{})
		q.cfg.Decode = func(data []byte) (any, error) {
			close(decoding)
			<-resume
			return data, nil
		}
		type taken struct {
			e   *Element
			err error
		}
		done := make(chan taken, 1)
		go func() {
			e, err := q.Take(t.Context())
			done <- taken{e, err}
		}()
		<-decoding
		srv.SetLatency(20 * time.Millisecond)
		closed := harness.Async(func() error { m.Close(); return nil })
		harness.PendingStill(t, closed)
		close(resume)
		got := <-done
		harness.Must(t, <-closed)
		again, err := other.Take(harness.Within(t, time.Minute))
		harness.Must(t, err)
		if got.err == nil && got.e != nil && again != nil {
			t.Errorf("Take has returned %q, and another client has then taken %q", got.e.Data, again.Data)
		}
	})
}

// The pump cannot claim, because the servers refuse its place in the line. Meanwhile, a consumer
// leaves without its offered element. That element must return to the queue.
func TestOfferedElementReturnsAlthoughThePumpCannotClaim(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, other, "x")
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if strings.HasPrefix(r.Path, "/q-consumers/") && r.Op == zktest.OpCreate {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		c1, c2 := q.Join(ctx, Joining{}), q.Join(ctx, Joining{})
		it, err := c1.Next() // offered, and not taken
		harness.Must(t, err)
		next := harness.Async(func() error { _, err := c2.Next(); return err })
		time.Sleep(10 * time.Second)
		harness.PendingStill(t, next)
		cancel()
		it.PutBack()
		c1.Leave()
		<-next
		c2.Leave()
		srv.Intercept(nil)
		time.Sleep(time.Hour)
		wantTake(t, other, "x", 0)
	})
}

// TrySend returns ErrFull although another goroutine waits in Send.
func TestTrySendDoesNotWaitBehindASendThatWaits(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		q := queueAt(open(t, zktest.Start(t)), "/q")
		q.cfg.MaxLen = 1
		send(t, q, "a")
		ctx, cancel := context.WithCancel(t.Context())
		waits := harness.Async(func() error { return q.Send(ctx, Batch{Data: [][]byte{[]byte("b")}}) })
		time.Sleep(time.Second)
		harness.PendingStill(t, waits)
		err := q.Send(harness.Within(t, time.Hour), Batch{NoWait: true, Data: [][]byte{[]byte("c")}})
		cancel()
		<-waits
		harness.WantErr(t, err, ErrFull)
	})
}

// An element that Receive has returned and Nack has settled. Ten seconds later, the mark is deleted.
func TestAckAfterNackWhenTheMarkRests(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		send(t, q, "x")
		it := receive(t, q)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Return}))
		time.Sleep(time.Minute)
		err := it.Settle(t.Context(), Settlement{Fate: Remove})
		cause := context.Cause(it.Context())
		if strings.Contains(err.Error(), "BUG") || strings.Contains(cause.Error(), "BUG") {
			t.Errorf("an internal error: %v; %v", err, cause)
		}
	})
}

// Other clients send and take all the time, so no two counts are equal. A Send with a limit must not
// count for ever.
func TestSendEndsAlthoughNoTwoCountsAreEqual(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q := queueAt(m, "/q")
		q.cfg.MaxLen = 10
		id := m.SessionID()
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		for range 3 {
			other := queueAt(open(t, srv), "/q")
			others.Go(func() {
				for ctx.Err() == nil {
					other.Send(ctx, Batch{Data: [][]byte{[]byte("x")}})
					other.Take(ctx)
				}
			})
		}
		srv.SetLatency(5 * time.Millisecond)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id {
				return zktest.Delay(100 * time.Millisecond) // meanwhile, the others send and take
			}
			return zktest.Pass
		})
		time.Sleep(time.Second)
		err := q.Send(harness.Within(t, 20*time.Second), Batch{Data: [][]byte{[]byte("y")}}) // 21 counts take about 9 s
		cancel()
		others.Wait()
		harness.Must(t, err)
	})
}
