package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// Each Send fills a bucket. The servers apply the Send, but its reply is lost, and the caller stops
// waiting. The producer cannot know how full the bucket is, so it must read that before the next Send.
func TestAProducerWhoseRepliesAreLostPutsNoMoreElementsIntoAFullBucket(t *testing.T) {
	for name, through := range map[string]func(t *testing.T, from *core, ctx context.Context, b Batch) error{
		"Send": func(t *testing.T, from *core, ctx context.Context, b Batch) error { return b.To.Send(ctx, b) },
		"the Txn of an Item": func(t *testing.T, from *core, ctx context.Context, b Batch) error {
			send(t, from, "x")
			_, err := receive(t, from).Txn(ctx, []any{&b})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				m := open(t, srv)
				from, q := queueAt(m, "/from"), queueAt(m, "/q")
				send(t, q, "first") // the producer knows the bucket, which is not full
				many := Batch{To: q}
				for i := range bucketSize {
					many.Data = append(many.Data, []byte(strconv.Itoa(i)))
				}
				for range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					srv.Intercept(harness.First(zktest.DropReply, func(r zktest.Request) bool {
						if r.Op != zktest.OpMulti || len(r.Ops) < bucketSize {
							return false
						}
						cancel()
						return true
					}))
					harness.WantErr(t, through(t, from, ctx, many), context.Canceled)
					srv.Intercept(nil)
					time.Sleep(time.Minute) // the Txn continues
				}
				send(t, q, "last")
				buckets, total := 0, 0
				harness.Must(t, m.During(t.Context(), func(inc *session.Incarnation) error {
					names, err := inc.Names(t.Context(), q.dir)
					harness.Must(t, err)
					for _, b := range parseBuckets(names) {
						elements, err := inc.Names(t.Context(), znodes.ChildPath(q.dir, b.name))
						harness.Must(t, err)
						if n := len(elements); n > bucketSize+1 {
							t.Errorf("a bucket has %d elements", n)
						}
						buckets, total = buckets+1, total+len(elements)
					}
					return nil
				}))
				if total != 3*bucketSize+2 {
					t.Errorf("the queue has %d elements in %d buckets", total, buckets)
				}
			})
		})
	}
}

// Many goroutines call a method of one Queue value at the same time. The value knows what it has sent itself,
// even if the servers have not stored it when the value counts the queue.
func TestTheCallsOfOneProducerTogetherDoNotExceedTheLengthOfTheQueue(t *testing.T) {
	for name, through := range map[string]func(t *testing.T, from *core, ctx context.Context, b Batch) error{
		"Send": func(t *testing.T, from *core, ctx context.Context, b Batch) error { return b.To.Send(ctx, b) },
		"the Txn of an Item": func(t *testing.T, from *core, ctx context.Context, b Batch) error {
			_, err := receive(t, from).Txn(ctx, []any{&b})
			return err
		},
	} {
		for _, limit := range []int{1, 10, 100} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				harness.VirtualTime(t, func(t *testing.T) {
					srv := zktest.Start(t)
					m := open(t, srv)
					from, q := queueAt(m, "/from"), queueAt(m, "/q")
					q.cfg.MaxLen = limit
					send(t, from, make([]string, 5*limit)...)
					srv.SetLatency(10 * time.Millisecond)
					ctx, cancel := context.WithCancel(t.Context())
					var all sync.WaitGroup
					for range 5 * limit {
						all.Go(func() { through(t, from, ctx, Batch{Data: [][]byte{{}}, To: q}) })
					}
					time.Sleep(10 * time.Second)
					n, err := q.Len(t.Context())
					if harness.Must(t, err); n != limit {
						t.Errorf("the queue has %d elements; the limit is %d", n, limit)
					}
					cancel()
					all.Wait()
				})
			})
		}
	}
}

// The session of a consumer has ended, and another client has listed the marks before that. The elements of
// the consumer are unclaimed, so Clear and Cancel remove them.
func TestClearAndCancelRemoveTheElementsOfADeadConsumer(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q := queueAt(open(t, srv), "/q")
		for _, id := range []string{"a", "b", "c"} {
			harness.Must(t, q.Send(t.Context(), Batch{ID: id, Data: [][]byte{[]byte(id)}}))
		}
		dying := queueAt(m, "/q")
		receive(t, dying)
		receive(t, dying)
		wantTake(t, q, "c", 0) // lists the marks
		srv.Expire(m.SessionID())
		done, err := q.Cancel(t.Context(), "a")
		harness.Must(t, err)
		n, err := q.Clear(t.Context())
		if harness.Must(t, err); !done || n != 1 {
			t.Errorf("Cancel has returned %v, and Clear has removed %d elements; want true and 1", done, n)
		}
	})
}

// Another client deletes the newest bucket, which this client knows to be full. The next Send
// creates another bucket.
func TestSendGoesOnWhenItsFullBucketWasDeleted(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m := open(t, zktest.Start(t))
		q := queueAt(m, "/q")
		send(t, q, make([]string, bucketSize)...)
		n, err := q.Clear(t.Context())
		if harness.Must(t, err); n != bucketSize {
			t.Fatalf("cleared %d elements", n)
		}
		harness.Must(t, m.During(t.Context(), func(inc *session.Incarnation) error {
			names, err := inc.Names(t.Context(), q.dir)
			for _, b := range parseBuckets(names) {
				znodes.Remove(inc, znodes.ChildPath(q.dir, b.name))
			}
			return err
		}))
		send(t, q, "x")
		wantTake(t, q, "x", 0)
	})
}

// Another client has deleted the queue. One transaction sends with a priority whose tail the producer knows,
// and with another. The elements are stored in the new queue.
func TestSendsOfTwoPrioritiesGoOnWhenTheirQueueWasDeleted(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		plain := harness.Plain(t, srv)
		q := queueAt(open(t, srv), "/q")
		q.cfg.Priorities = 2
		harness.Must(t, q.Send(t.Context(), Batch{Priority: 0, Data: [][]byte{[]byte("lost")}}))
		for _, b := range harness.Children(t, plain, "/q") {
			for _, e := range harness.Children(t, plain, "/q/"+b) {
				harness.Must(t, plain.Delete("/q/"+b+"/"+e, -1))
			}
			harness.Must(t, plain.Delete("/q/"+b, -1))
		}
		harness.Must(t, plain.Delete("/q", -1))
		var group []*parcel
		for prio, text := range []string{"a", "b"} {
			p, err := q.parcel(t.Context(), Batch{Priority: prio, Data: [][]byte{[]byte(text)}})
			harness.Must(t, err)
			group = append(group, p)
		}
		harness.Must(t, q.post(group))
		wantTake(t, q, "a", 0)
		wantTake(t, q, "b", 0)
	})
}

// Another client deletes the tail of a queue with elements. The next bucket gets a number that no bucket has had, so the
// elements stay in order, and no name is used again.
func TestSendGoesOnWhenTheTailWasDeleted(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		plain := harness.Plain(t, srv)
		q := queueAt(open(t, srv), "/q") // remembers the tail
		elements := slices.Repeat([]string{"x"}, bucketSize)
		names := make(map[string]bool)
		var want []string
		for round := range 6 {
			for _, p := range []*core{q, queueAt(open(t, srv), "/q")} {
				text := strconv.Itoa(len(want))
				want = append(want, text)
				send(t, p, text)
			}
			if round%2 == 0 { // the next Send creates a bucket anyway
				send(t, q, elements...)
				want = append(want, elements...)
			}
			for _, b := range harness.Children(t, plain, "/q") {
				for _, e := range harness.Children(t, plain, "/q/"+b) {
					names["/q/"+b+"/"+e] = true
				}
				if strings.HasPrefix(b, "t-") {
					harness.Must(t, plain.Delete("/q/"+b, -1))
				}
			}
			if round == 3 { // the old buckets are deleted, too
				for _, text := range want {
					wantTake(t, q, text, 0)
				}
				_, err := q.Clear(t.Context())
				harness.Must(t, err)
				want = nil
			}
		}
		for _, text := range want {
			wantTake(t, q, text, 0)
		}
		if n := 2*6 + 3*bucketSize; len(names) != n {
			t.Errorf("%d elements had %d names", n, len(names))
		}
	})
}

// A producer has found the note of an ID. A sweep deletes the note, and the servers remove the note's
// parent, before the producer has asked for the servers' time. The element is stored.
func TestAnElementIsStoredAlthoughASweepDeletesItsNote(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q, plain := queueAt(m, "/q"), harness.Plain(t, srv)
		b := Batch{ID: "x", Data: [][]byte{[]byte("x")}}
		harness.Must(t, queueAt(open(t, srv), "/q").Send(t.Context(), b))
		wantTake(t, q, "x", 0)
		note := q.idPath(tagOf("", "x")[1:])
		shard := znodes.ParentPath(note)
		srv.Intercept(harness.First(zktest.Delay(time.Second), func(r zktest.Request) bool {
			return r.Session == m.SessionID() && r.Op == zktest.OpSetData && r.Path == shard
		}))
		sent := harness.Async(func() error { return q.Send(t.Context(), b) })
		harness.PendingStill(t, sent)
		_, err := plain.Set(q.ids, nil, -1)
		harness.Must(t, err)
		harness.Must(t, plain.Delete(note, -1))
		harness.Must(t, plain.Delete(shard, -1))
		harness.Must(t, <-sent)
		wantTake(t, q, "x", 0)
	})
}

// Another client deletes the queue while a producer looks for the bucket of a delayed element. The same
// transaction stores an element without a delay, and the producer knew a bucket for it.
func TestElementsWithAndWithoutADelayAreStoredAlthoughTheirQueueIsDeletedMeanwhile(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		q, plain := queueAt(m, "/q"), harness.Plain(t, srv)
		send(t, q, "first")
		var once sync.Once
		srv.Intercept(func(r zktest.Request) (a zktest.Action) {
			if r.Session == m.SessionID() && r.Op == zktest.OpGetChildren2 && r.Path == "/q" {
				once.Do(func() {
					a = zktest.Delay(time.Second)
					go func() {
						var all []string
						for _, name := range harness.Children(t, plain, "/q") {
							for _, element := range harness.Children(t, plain, "/q/"+name) {
								all = append(all, "/q/"+name+"/"+element)
							}
							all = append(all, "/q/"+name)
						}
						for _, path := range append(all, "/q") {
							harness.Must(t, plain.Delete(path, -1))
						}
					}()
				})
			}
			return a
		})
		var group []*parcel
		for _, b := range []Batch{{Due: time.Now(), Data: [][]byte{[]byte("delayed")}}, {Data: [][]byte{[]byte("plain")}}} {
			p, err := q.parcel(t.Context(), b)
			harness.Must(t, err)
			group = append(group, p)
		}
		harness.Must(t, q.post(group))
		wantTake(t, q, "delayed", 0)
		wantTake(t, q, "plain", 0)
	})
}

// Two producers create a bucket for the same time at once. The second fills its bucket, which is the newest.
func TestAProducerKeepsTheOrderForATimeThoughAnOlderBucketHasRoom(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		other, q := queueAt(open(t, srv), "/q"), queueAt(m, "/q")
		send(t, q, "a") // creates the queue
		due := time.Now().Add(time.Minute)
		post := func(q *core, vs ...string) error {
			b := Batch{Due: due}
			for _, v := range vs {
				b.Data = append(b.Data, []byte(v))
			}
			return q.Send(t.Context(), b)
		}
		srv.Intercept(harness.First(zktest.Delay(time.Second), func(r zktest.Request) bool {
			return r.Session == m.SessionID() && r.Op == zktest.OpCreate && strings.HasPrefix(r.Path, "/q/d-")
		}))
		first := harness.Arrive(t, func() error { return post(q, slices.Repeat([]string{"b"}, bucketSize)...) })
		harness.Must(t, post(other, "other"))
		harness.Must(t, <-first)
		harness.Must(t, post(q, "c"))
		var got []string
		for l, err := range q.List(t.Context(), Delayed) {
			harness.Must(t, err)
			got = append(got, string(l.Data))
		}
		if n := len(got); n != bucketSize+2 || got[n-1] != "c" {
			t.Errorf("of %d elements, %q is last, and %q is second", n, got[n-1], got[1])
		}
	})
}

// Several calls of Send are stored together. The contexts of all but one of them end before the servers
// have the transaction.
func TestASendIsStoredAlthoughTheContextsOfTheOthersInItsTransactionHaveEnded(t *testing.T) {
	for stays := range 4 {
		t.Run(fmt.Sprint(stays), func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				q := queueAt(open(t, srv), "/q")
				send(t, q, "first")
				srv.SetLatency(time.Second)
				var sends []<-chan error
				var cancels []context.CancelFunc
				sends = append(sends, harness.Async(func() error { return q.Send(t.Context(), Batch{Data: [][]byte{[]byte("alone")}}) }))
				time.Sleep(time.Millisecond) // under way: the next are sent together
				for i := range 4 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					if i != stays {
						cancels = append(cancels, cancel)
					} else {
						defer cancel()
					}
					sends = append(sends, harness.Async(func() error { return q.Send(ctx, Batch{Data: [][]byte{[]byte(fmt.Sprint(i))}}) }))
					synctest.Wait()
				}
				harness.Must(t, <-sends[0])
				time.Sleep(100 * time.Millisecond) // the transaction is under way
				srv.Intercept(harness.First(zktest.DropRequest, harness.Op(zktest.OpMulti)))
				for _, cancel := range cancels {
					cancel()
				}
				for i, done := range sends[1:] {
					if err := <-done; i == stays {
						harness.Must(t, err)
					} else {
						harness.WantErr(t, err, context.Canceled)
					}
				}
				if n, err := q.Len(t.Context()); n != 6 || err != nil {
					t.Errorf("the queue has %d elements, %v; want 6", n, err)
				}
			})
		})
	}
}

// The reply to a transaction with many elements is lost, and another client stores as many after them. The
// client that looks what the servers did must not read the other's elements for each of its own.
func TestASendWhoseReplyIsLostReadsEachElementOnceAtMost(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		const many = 200
		srv := zktest.Start(t)
		m := open(t, srv)
		q, other := queueAt(m, "/q"), queueAt(open(t, srv), "/q")
		send(t, q, "a")
		send(t, other, "b") // both know the bucket
		id := m.SessionID()
		srv.Intercept(harness.First(zktest.DropReply, func(r zktest.Request) bool { return r.Session == id && len(r.Ops) > many }))
		done := harness.Async(func() error { return q.Send(t.Context(), Batch{Data: make([][]byte, many)}) })
		synctest.Wait() // applied
		harness.Must(t, other.Send(t.Context(), Batch{Data: make([][]byte, many)}))
		before := srv.Counts()
		harness.Must(t, <-done)
		if n := srv.Counts().Sub(before).Total(); n > 3*many {
			t.Errorf("the client has sent %d requests", n)
		}
	})
}
