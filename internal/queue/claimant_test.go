package queue

import (
	"errors"
	"fmt"
	"strconv"
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
func TestAClaimantForgetsDeletedBucketsAndNoOthers(t *testing.T) {
	c := &claimant{past: make(map[string]spans), pastAt: make(map[string]time.Time)}
	began := time.Now()
	add := func(name string, at time.Time) {
		c.past[name], c.pastAt[name] = only(1), at
	}
	for i := range 150 {
		add(fmt.Sprintf("b-00000-%010d", i), began.Add(-time.Second))
	}
	add("b-00000-0000000150", began.Add(time.Second)) // created after the listing
	c.prune([]bucket{{name: "b-00000-0000000149"}}, began)
	for _, name := range []string{"b-00000-0000000149", "b-00000-0000000150"} {
		if !c.past[name].has(1) {
			t.Errorf("%s is forgotten", name)
		}
	}
	if len(c.past) != 2 || len(c.pastAt) != 2 {
		t.Errorf("%d and %d buckets are remembered; want 2", len(c.past), len(c.pastAt))
	}
}

// A search while the queue is paused lists no buckets. That does not mean that the buckets were
// deleted: the claimant still knows which of its elements are settled.
func TestASearchDuringAPauseForgetsNoSettledNumber(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m := open(t, zktest.Start(t))
		q := queueAt(m, "/q")
		send(t, q, "x", "y")
		it := receive(t, q).(*item)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
		c := it.c
		c.mu.Lock()
		for i := range 100 { // as many as in a queue with 100,000 elements
			c.past["b-00000-"+strconv.Itoa(i)] = only(1)
		}
		c.mu.Unlock()
		time.Sleep(time.Second)
		harness.Must(t, q.Pause(t.Context()))
		f, err := q.search(t.Context(), m.Present(), quest{n: 1, spread: 1})
		harness.Must(t, err)
		if c.prune(f.all, f.from); !c.past[it.bucket].has(it.seq) {
			t.Error("the claimant has forgotten a settled number of a bucket that exists")
		}
	})
}

// A consumer is about to offer an item, and the claim is lost. The consumer must learn that at once.
func TestANoteAfterTheLossOfTheClaimEnds(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		send(t, q, "x")
		it := receive(t, q).(*item)
		harness.Must(t, harness.Plain(t, srv).Delete(it.c.path(), -1))
		synctest.Wait()
		if e := it.c.note([]*item{it}); !session.IsClosed(e.done) || !errors.Is(e.err, session.ErrLost) {
			t.Errorf("the note is open, or its error is %v", e.err)
		}
	})
}
