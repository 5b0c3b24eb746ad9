package queue

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// A consumer comes at the moment at which the claimant would end, because nothing was claimed for a
// while. In some of the rounds, the claimant has seen the end of that time, and the consumer is
// quicker. Then the claimant stays, and deletes its mark after the next such time.
func TestNoMarkStaysIfAConsumerComesAsTheClaimantEnds(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m := open(t, zktest.Start(t))
		q := queueAt(m, "/q")
		for range 300 {
			send(t, q, "x")
			harness.Must(t, receive(t, q).Settle(t.Context(), Settlement{Fate: Remove}))
			synctest.Wait()
			time.Sleep(whenIdle)
		}
		time.Sleep(2 * whenIdle)
		harness.Must(t, m.During(t.Context(), func(inc *session.Incarnation) error {
			marks, err := inc.Names(t.Context(), q.live)
			if len(marks) > 0 {
				t.Errorf("%d marks are left of consumers that claim nothing", len(marks))
			}
			return err
		}))
	})
}

// The last element is settled before the consumer leaves.
func TestNoMarkStaysAfterTheConsumerHasLeft(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		send(t, q, "x")
		c := q.Join(t.Context(), Joining{})
		it, err := c.Next()
		harness.Must(t, err)
		it.Taken()
		synctest.Wait()
		c.Leave()
		time.Sleep(2 * whenIdle)
		if marks := harness.Children(t, harness.Plain(t, srv), q.live); len(marks) > 0 {
			t.Errorf("the marks %v are left", marks)
		}
	})
}

// A consumer that is never idle passes through any number of buckets. It must not remember each of them.
// The elements of a bucket that it has forgotten still come once each.
func TestAClaimantForgetsBucketsAndDeliversEachElementOnce(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m := open(t, zktest.Start(t))
		q, other := queueAt(m, "/q"), queueAt(m, "/q")
		send(t, q, "a", "b", "c", "d")
		peeked, err := other.Peek(t.Context()) // other remembers the listing with all four
		harness.Must(t, err)
		for range 2 {
			it := receive(t, q).(*item)
			harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
			it.c.mu.Lock()
			n := len(it.c.lots)
			it.c.mu.Unlock()
			if string(peeked.Data) != "a" || n > 0 {
				t.Fatalf("peeked %q; %d buckets are remembered", peeked.Data, n)
			}
		}
		wantTake(t, other, "c", 0)
		wantTake(t, q, "d", 0)
		for _, q := range []*core{q, other} {
			if e, err := q.Take(t.Context()); e != nil || err != nil {
				t.Errorf("Take = %v, %v", e, err)
			}
		}
	})
}

// A claim of the second element waits for its turn to write the board. Meanwhile, the first element is
// returned, and its return waits behind the claim. The client claims the first element again.
func TestAnElementThatIsReturnedBeforeAClaimIsClaimedFirst(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		q := queueAt(open(t, zktest.Start(t)), "/q")
		send(t, q, "x", "y")
		it := receive(t, q)
		c := it.(*item).c
		c.turn <- struct{}{}
		var again Item
		received := harness.Async(func() error {
			return q.Receive(harness.Within(t, time.Minute), 1, func(got Item) { again = got })
		})
		harness.PendingStill(t, received)
		returned := harness.Async(func() error { return it.Settle(t.Context(), Settlement{Fate: Return}) })
		harness.PendingStill(t, returned)
		<-c.turn
		harness.Must(t, <-returned)
		harness.Must(t, <-received)
		if e := again.Element(); string(e.Data) != "x" {
			t.Errorf("received %q", e.Data)
		}
	})
}

// A consumer is about to offer an element, and waits until the session is confirmed. Meanwhile, another client
// deletes the mark. From then on, the claim needs no confirmed session.
func TestASessionIsNotKeptConfirmedForAClaimThatIsLost(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, plain := open(t, srv), harness.Plain(t, srv)
		q := queueAt(m, "/q")
		send(t, q, "x")
		ctx, cancel := context.WithCancel(t.Context())
		leaver, c := q.Join(ctx, Joining{}), q.Join(t.Context(), Joining{})
		srv.Intercept(harness.First(zktest.Delay(time.Second), func(r zktest.Request) bool {
			return slices.ContainsFunc(r.Ops, func(o zktest.Request) bool { return o.Op == zktest.OpSetData && strings.HasPrefix(o.Path, "/q/b-") })
		}))
		left := harness.Arrive(t, func() error { _, err := leaver.Next(); return err })
		cancel() // during the claim, so nobody is offered the element yet
		harness.WantErr(t, <-left, context.Canceled)
		leaver.Leave()
		time.Sleep(2 * time.Second)
		srv.Disconnect(m.SessionID())
		time.Sleep(time.Second)
		srv.Intercept(harness.First(zktest.Delay(time.Second), func(r zktest.Request) bool {
			return r.Session == m.SessionID() && r.Op == zktest.OpDelete // confirms the session
		}))
		next := harness.Arrive(t, func() error {
			it, err := c.Next()
			if err == nil {
				it.Taken()
			}
			return err
		})
		for _, mark := range harness.Children(t, plain, q.live) {
			harness.Must(t, plain.Delete(q.live+"/"+mark, -1))
		}
		harness.Must(t, <-next)
		c.Leave()
		time.Sleep(time.Minute)
		if n := harness.Requests(srv, func() { time.Sleep(time.Minute) }); n > 0 {
			t.Errorf("an idle session has sent %d requests in a minute", n)
		}
	})
}

// Two consumers of a Queue value have found the same element, and both read it. The first takes it. Then the
// reply to the claim of the second is lost, and the line of the claimant is the same for both claims.
func TestALostReplyDoesNotMakeAClaimOfARemovedElementValid(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q := queueAt(m, "/q")
		send(t, q, "w", "x")
		it := receive(t, q).(*item)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
		c := it.c
		c.turn <- struct{}{}
		var got []string
		take := func() error {
			e, err := q.Take(t.Context())
			if e != nil {
				got = append(got, string(e.Data))
			}
			return err
		}
		first := harness.Arrive(t, take)
		next := make(chan struct{})
		go func() { // another write of a board, between the two claims
			c.turn <- struct{}{}
			<-next
			<-c.turn
		}()
		synctest.Wait()
		second := harness.Arrive(t, take)
		<-c.turn
		harness.Must(t, <-first)
		synctest.Wait()
		srv.Intercept(harness.First(zktest.DropReply, func(r zktest.Request) bool {
			return slices.ContainsFunc(r.Ops, func(o zktest.Request) bool { return o.Op == zktest.OpSetData && strings.HasPrefix(o.Path, "/q/b-") })
		}))
		close(next)
		harness.Must(t, <-second)
		if len(got) != 1 {
			t.Errorf("%q were received", got)
		}
	})
}
