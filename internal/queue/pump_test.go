package queue

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestRoomForElementsIsNeverLessThanNone(t *testing.T) {
	for ahead := 1; ahead < 6; ahead++ {
		for offering := range 6 {
			for waiting := range 6 {
				for ready := range 12 {
					p := &pump{ahead: ahead, offering: offering, waiting: waiting, ready: make([]*item, ready)}
					if n := p.roomLocked(); n < 0 {
						t.Fatalf("ahead %d, offering %d, waiting %d, ready %d: room for %d", ahead, offering, waiting, ready, n)
					}
				}
			}
		}
	}
}

func TestBucketKnowsItsLastNumberHoweverManyItHasGiven(t *testing.T) {
	for _, made := range []int64{0, 1, 1000, 1<<30 - 1, 1 << 30, 1<<30 + 1, 1<<31 - 1} {
		for _, there := range []int64{0, min(made, 1), min(made, 30000)} {
			stat := &zk.Stat{Cversion: int32(2*made - there), NumChildren: int32(there)}
			if got := newLot(bucket{delayed: true}, session.Node{Stat: stat}).last; int64(got) != made-1 {
				t.Errorf("with %d made and %d there: the last is %d", made, there, got)
			}
		}
	}
}

// A consumer has died with an element of the second bucket. Then there is only one consumer. It must
// get the elements of the first bucket in order, and before those of the second.
func TestTheOnlyConsumerKeepsTheOrderAlthoughADeadOneIsOnABoard(t *testing.T) {
	for name, dies := range map[string]bool{"nobody has died": false, "one has died": true} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				ghost, m := open(t, srv), open(t, srv)
				q := queueAt(m, "/q")
				q.cfg.Prefetch, q.cfg.MaxAttempts = 16, 3
				var first, second []string
				for i := range bucketSize {
					first, second = append(first, strconv.Itoa(i)), append(second, strconv.Itoa(bucketSize+i))
				}
				send(t, q, first...)
				send(t, q, second...)
				if dies {
					g := queueAt(ghost, "/q")
					var items []Item
					for range 2 { // a search finds at most half a bucket
						harness.Must(t, g.Receive(t.Context(), bucketSize/2, func(it Item) { items = append(items, it) }))
					}
					if it := receive(t, g); string(it.Element().Data) != strconv.Itoa(bucketSize) {
						t.Fatalf("received %q", it.Element().Data)
					}
					var all sync.WaitGroup
					for _, it := range items {
						all.Go(func() { it.Settle(t.Context(), Settlement{Fate: Return, Untried: true}) })
					}
					all.Wait()
					srv.Expire(ghost.SessionID())
				}
				time.Sleep(time.Minute)
				srv.SetLatency(5 * time.Millisecond)
				c := q.Join(t.Context(), Joining{Hand: true})
				defer c.Leave()
				for i := range bucketSize {
					it, err := c.Next()
					harness.Must(t, err)
					it.Handed()
					if v := string(it.Element().Data); v != strconv.Itoa(i) {
						t.Fatalf("the only consumer has received %s, want %d", v, i)
					}
					go it.Settle(t.Context(), Settlement{Fate: Remove})
				}
			})
		})
	}
}

// The function `takeAll` joins a consumer with a session of its own, which takes each element at once,
// and calls `taken` for each.
func takeAll(t *testing.T, srv *zktest.Server, taken func()) *Consumer {
	q := queueAt(open(t, srv), "/q")
	q.cfg.Prefetch = 16
	c := q.Join(t.Context(), Joining{})
	t.Cleanup(c.Leave)
	go func() {
		for {
			it, err := c.Next()
			if err != nil {
				return
			}
			taken()
			it.Taken()
		}
	}()
	return c
}

// One element after another comes into an empty queue, and each of two consumers takes it at once.
// Each claims maxClaims elements in one turn.
func TestConsumersOfAnEmptyQueueTakeTurns(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		takers := make(chan int, 10*maxClaims)
		for i := range 2 {
			takeAll(t, srv, func() { takers <- i })
		}
		time.Sleep(time.Second)
		q := queueAt(open(t, srv), "/q")
		run, last, turns := 0, -1, 0
		for n := range 10 * maxClaims {
			send(t, q, "x")
			time.Sleep(time.Second)
			select {
			case taker := <-takers:
				if taker != last {
					run, last, turns = 0, taker, turns+1
				}
			default:
				t.Fatalf("nobody has taken element %d", n)
			}
			if run++; run > maxClaims {
				t.Fatalf("one consumer has taken %d elements in one turn", run)
			}
		}
		if turns > 11 {
			t.Errorf("the consumers have taken %d turns", turns)
		}
	})
}

// A consumer is offered the only element, and leaves without it. Another consumer, which waits, gets it at once.
func TestAnElementThatIsPutBackWakesAnotherConsumer(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		q := queueAt(open(t, zktest.Start(t)), "/q")
		send(t, q, "x")
		c1, c2 := q.Join(t.Context(), Joining{}), q.Join(harness.Within(t, time.Minute), Joining{})
		defer c2.Leave()
		it, err := c1.Next()
		harness.Must(t, err)
		next := harness.Async(func() error { _, err := c2.Next(); return err })
		time.Sleep(time.Second)
		harness.PendingStill(t, next)
		it.PutBack()
		c1.Leave()
		harness.Must(t, <-next)
	})
}

// The process stops after the search of an idle consumer, and so the finding is too old for a claim.
// The consumer searches again.
func TestAnIdleConsumerSearchesAgainIfItsFindingIsStale(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m := open(t, zktest.Start(t))
		q := queueAt(m, "/q")
		send(t, q, "x")
		p := &pump{q: q, ctx: t.Context(), spread: 1, waiting: 1, found: &finding{es: []*element{{}}, at: time.Now().Add(-time.Minute)}}
		harness.Must(t, m.During(t.Context(), func(inc *session.Incarnation) (err error) {
			p.place, err = q.Line.Contend(t.Context(), inc)
			harness.Must(t, err)
			return p.step(inc, nil)
		}))
		if p.found == nil || time.Since(p.found.at) > staleAfter {
			t.Errorf("the consumer still has the finding %+v", p.found)
		}
	})
}

// Three consumers are idle, and the second leaves. The third still waits behind the first, so an
// element wakes no more than one.
func TestAConsumerBehindOneThatLeavesStaysIdle(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		var consumers []*Consumer
		for range 3 {
			consumers = append(consumers, takeAll(t, srv, func() {}))
			time.Sleep(time.Second)
		}
		consumers[1].Leave()
		time.Sleep(time.Second)
		before := srv.Counts()
		send(t, queueAt(open(t, srv), "/q"), "x")
		time.Sleep(time.Second)
		if n := srv.Counts().Sub(before).Notifications; n != 1 {
			t.Errorf("the element has caused %d notifications, want 1", n)
		}
	})
}

// The first idle consumer may not read an element, may not write its bucket, or cannot decode it. The
// next consumer can, and receives the element at once.
func TestAnIdleConsumerThatSkipsAnElementHoldsUpNoOther(t *testing.T) {
	for name, refused := range map[string]func(r zktest.Request) bool{
		"read":   func(r zktest.Request) bool { return r.Op == zktest.OpGetData && strings.Contains(r.Path, "/e-") },
		"claim":  func(r zktest.Request) bool { return r.Op == zktest.OpSetData && strings.HasPrefix(r.Path, "/q/b-") },
		"decode": nil,
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				m, producer := open(t, srv), queueAt(open(t, srv), "/q")
				first, second := queueAt(m, "/q"), queueAt(open(t, srv), "/q")
				if fault := errors.New("bad"); refused == nil {
					first.cfg.Decode = func([]byte) (any, error) { return nil, fault }
					for range maxMisfits {
						first.Skips.Misfit("another", fault)
					}
				} else {
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Session == m.SessionID() && (refused(r) || slices.ContainsFunc(r.Ops, refused)) {
							return zktest.Fail(zktest.CodeNoAuth)
						}
						return zktest.Pass
					})
				}
				var next <-chan error
				for _, q := range []*core{first, second} {
					c := q.Join(t.Context(), Joining{})
					defer c.Leave()
					next = harness.Async(func() error { _, err := c.Next(); return err })
					time.Sleep(time.Second)
				}
				send(t, producer, "x")
				time.Sleep(time.Second)
				select {
				case err := <-next:
					harness.Must(t, err)
				default:
					t.Error("the next consumer still waits")
				}
			})
		})
	}
}
