package queue

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// The consumer's session ends before the server removes an element. In the next session, the
// consumer looks for the element, and this session ends before the server answers. The consumer
// looks again in the session after that, and finds the element.
func TestAConsumerLooksAgainForAnElementIfTheSessionOfTheLookEnds(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		consumer, other := open(t, srv), open(t, srv)
		q := queueAt(consumer, "/q")
		send(t, q, "x")
		it := receive(t, q)
		first := consumer.SessionID()
		var removals, looks atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == other.SessionID():
			case r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, func(o zktest.Request) bool {
				return o.Op == zktest.OpDelete && strings.HasPrefix(o.Path, "/q/")
			}):
				removals.Add(1)
				srv.Expire(r.Session)
				return zktest.DropRequest
			case r.Op == zktest.OpSync && r.Path == "/q" && r.Session != first && looks.Add(1) == 1:
				srv.Expire(r.Session)
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		harness.WantErr(t, it.Settle(t.Context(), Settlement{Fate: Remove}), session.ErrLost)
		if removals.Load() != 1 || looks.Load() != 2 {
			t.Errorf("the servers have received %d removals and %d looks; want 1 and 2", removals.Load(), looks.Load())
		}
		wantTake(t, queueAt(other, "/q"), "x", 1)
	})
}

// The servers refuse to let a consumer write a board, or ring the bell. Nack returns the error, and the
// element comes back as soon as the servers allow the write, although the consumer keeps another claim.
func TestARefusedReturnIsRepeated(t *testing.T) {
	for _, bell := range []bool{false, true} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			q, other := queueAt(open(t, srv), "/q"), queueAt(open(t, srv), "/q")
			send(t, q, "x", "y")
			it := receive(t, q).(*item)
			receive(t, q)
			path := "/q/" + it.bucket
			if bell {
				path = "/q"
			}
			harness.SetACL(t, srv, path, zk.WorldACL(zk.PermAll&^zk.PermWrite))
			harness.WantErr(t, it.Settle(t.Context(), Settlement{Fate: Return}), zk.ErrNoAuth)
			harness.SetACL(t, srv, path, zk.WorldACL(zk.PermAll))
			time.Sleep(2 * retryAfter)
			wantTake(t, other, "x", 1)
		})
	}
}

// An Ack and a NackAfter are in one transaction, and the servers refuse to create the bucket that the
// NackAfter needs. The Ack succeeds, and the NackAfter does so as soon as the servers allow it.
func TestARefusedNackAfterDoesNotKeepTheClientFromAnAck(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		send(t, q, "x", "y")
		x, y := receive(t, q).(*item), receive(t, q).(*item)
		harness.SetACL(t, srv, "/q", zk.WorldACL(zk.PermAll&^zk.PermCreate))
		x.c.mu.Lock()
		x.c.enterLocked(x, Settlement{Fate: Later, Due: time.Now().Add(time.Hour)}, nil)
		x.c.enterLocked(y, Settlement{Fate: Remove}, nil)
		x.c.mu.Unlock()
		harness.Must(t, y.Settle(harness.Within(t, time.Second), Settlement{Fate: Remove}))
		harness.SetACL(t, srv, "/q", zk.WorldACL(zk.PermAll))
		time.Sleep(2 * retryAfter)
		if st, err := q.Stats(t.Context()); st.Delayed != 1 || st.Claimed != 0 || err != nil {
			t.Errorf("%+v, %v; want one delayed element", st, err)
		}
	})
}

// A client has listed the buckets, and has not read them. Now a consumer returns the first element of
// a key with a delay, and so moves it to a new bucket. The client must not take the next element of
// that key.
func TestNoElementOvertakesTheDelayedElementOfItsKeyDuringASearch(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q, other := queueAt(open(t, srv), "/q"), queueAt(m, "/q")
		harness.Must(t, q.Send(t.Context(), Batch{Data: [][]byte{[]byte("x"), []byte("y")}, Keys: []string{"k", "k"}}))
		it := receive(t, q).(*item)
		reads := func(r zktest.Request) bool { return r.Op == zktest.OpGetData && r.Path == "/q/"+it.bucket }
		srv.Intercept(harness.First(zktest.Delay(time.Second), func(r zktest.Request) bool {
			return r.Session == m.SessionID() && (reads(r) || slices.ContainsFunc(r.Ops, reads))
		}))
		taken := harness.Async(func() error {
			e, err := other.Take(harness.Within(t, time.Minute))
			if e != nil {
				err = fmt.Errorf("Take has returned %q", e.Data)
			}
			return err
		})
		time.Sleep(100 * time.Millisecond)
		harness.PendingStill(t, taken)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Later, Due: time.Now().Add(time.Hour)}))
		harness.Must(t, <-taken)
	})
}

// Many elements are acknowledged at the same time. The first acknowledgement has a transaction, and
// then the others share one.
func TestElementsThatAreSettledTogetherShareATransaction(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		send(t, q, make([]string, 100)...)
		var items []Item
		harness.Must(t, q.Receive(t.Context(), 100, func(it Item) { items = append(items, it) }))
		srv.SetLatency(10 * time.Millisecond)
		before := srv.Counts()
		var all sync.WaitGroup
		for _, it := range items {
			all.Go(func() {
				if err := it.Settle(t.Context(), Settlement{Fate: Remove}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := srv.Counts().Sub(before).Requests["multi"]; len(items) != 100 || n > 2 {
			t.Errorf("%d elements were removed by %d transactions", len(items), n)
		}
	})
}

// Twenty large elements are rejected at the same time. They do not fit into one transaction, and need not
// have one each.
func TestElementsThatDoNotFitIntoOneTransactionShareSeveral(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		const n = 20
		for range n {
			send(t, q, strings.Repeat("x", 100_000))
		}
		var items []Item
		harness.Must(t, q.Receive(t.Context(), n, func(it Item) { items = append(items, it) }))
		srv.SetLatency(10 * time.Millisecond)
		before := srv.Counts()
		var all sync.WaitGroup
		for _, it := range items {
			all.Go(func() {
				if err := it.Settle(t.Context(), Settlement{Fate: Bury}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		multis := srv.Counts().Sub(before).Requests["multi"]
		if st, err := q.Stats(t.Context()); err != nil || len(items) != n || st.Dead != n || multis > 6 {
			t.Errorf("of %d elements, %d are dead letters after %d transactions; %v", len(items), st.Dead, multis, err)
		}
	})
}

// One transaction acknowledges two elements, and the session ends before the server receives it. Another
// consumer removes the first element before the client can look for the elements. The second element
// exists, and its Ack must not say that it was removed.
func TestAnAckSaysThatTheClaimWasLostIfTheElementExists(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m, other := open(t, srv), queueAt(open(t, srv), "/q")
		q := queueAt(m, "/q")
		send(t, q, "x", "y")
		x, y := receive(t, q).(*item), receive(t, q).(*item)
		var cut atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && r.Session == m.SessionID() && !cut.Swap(true):
				srv.Expire(r.Session)
				return zktest.DropRequest
			case r.Op == zktest.OpConnect && cut.Load():
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		x.c.mu.Lock()
		x.c.enterLocked(x, Settlement{Fate: Remove}, nil)
		x.c.enterLocked(y, Settlement{Fate: Remove}, nil)
		x.c.mu.Unlock()
		acked := harness.Arrive(t, func() error { return y.Settle(t.Context(), Settlement{Fate: Remove}) })
		wantTake(t, other, "x", 1)
		harness.WantErr(t, <-acked, session.ErrLost)
		wantTake(t, other, "y", 1)
	})
}

// A connection is lost with the replies to a claim and to a Txn, and both were applied. The claim writes the
// mark to find that out, in some of the rounds before the Txn looks. The Txn still returns its responses.
func TestATxnHasItsResponsesAlthoughAClaimHasLostItsReplyToo(t *testing.T) {
	for range 20 {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			m := open(t, srv)
			q := queueAt(m, "/q")
			harness.Must(t, m.During(t.Context(), func(inc *session.Incarnation) error {
				_, err := znodes.Create(t.Context(), inc, "/z", nil)
				return err
			}))
			send(t, q, "x", "y")
			it := receive(t, q)
			claimed := make(chan struct{})
			tell := sync.OnceFunc(func() { close(claimed) })
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if slices.ContainsFunc(r.Ops, func(o zktest.Request) bool { return o.Op == zktest.OpSetData && strings.HasPrefix(o.Path, "/q/b-") }) {
					tell()
				}
				return zktest.Pass
			})
			srv.SetLatency(time.Second)
			received := harness.Async(func() error { return q.Receive(t.Context(), 1, func(Item) {}) })
			<-claimed
			var rs []zk.MultiResponse
			done := harness.Arrive(t, func() (err error) {
				rs, err = it.Txn(t.Context(), []any{&zk.SetDataRequest{Path: "/z", Data: []byte("new"), Version: -1}})
				return err
			})
			srv.SetLatency(0)
			srv.Disconnect(m.SessionID())
			harness.Must(t, <-done)
			harness.Must(t, <-received)
			if len(rs) != 1 || rs[0].Stat == nil || rs[0].Stat.Version != 1 {
				t.Errorf("the responses are %+v; want the Stat of the znode's first write", rs)
			}
		})
	}
}
