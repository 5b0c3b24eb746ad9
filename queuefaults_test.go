package zsync

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/zktest"
)

const (
	codeNoAuth = -102
)

func TestRoomForElementsIsNeverLessThanNone(t *testing.T) {
	for ahead := 1; ahead < 6; ahead++ {
		for offering := range 6 {
			for waiting := range 6 {
				for ready := range 12 {
					p := &pump{ahead: ahead, offering: offering, waiting: waiting, ready: make([]*item, ready)}
					if n := p.room(); n < 0 {
						t.Fatalf("ahead %d, offering %d, waiting %d, ready %d: room for %d", ahead, offering, waiting, ready, n)
					}
				}
			}
		}
	}
}

func TestConsumersThatLeaveTogetherLoseNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 600
		must(t, NewQueue[int](open(t, srv), "/q").Send(t.Context(), counted(n)...))
		q := NewQueue[int](open(t, srv), "/q", WithPrefetch(2))
		srv.SetLatency(time.Millisecond)
		got := make(chan int, n)
		recv := func(ctx context.Context) {
			for v := range q.Recv(ctx) {
				got <- v
			}
		}
		all, stop := context.WithCancel(t.Context())
		defer stop()
		go recv(all)
		for round := range 60 {
			ctx, cancel := context.WithCancel(all)
			for range 5 {
				q.Recv(ctx) // takes nothing of what it is offered
			}
			go recv(ctx)
			time.Sleep(time.Duration(round%12) * 500 * time.Microsecond)
			cancel()
		}
		seen := make(map[int]bool)
		for _, v := range collect(t, got, n) {
			if seen[v] {
				t.Errorf("%d was received twice", v)
			}
			seen[v] = true
		}
	})
}

// ackAll acknowledges n deliveries of ch.
func ackAll[T any](t testing.TB, ch <-chan Delivery[T], n int) {
	t.Helper()
	for _, d := range collect(t, ch, n) {
		must(t, d.Ack(t.Context()))
	}
}

func TestSendGoesOnWhenRoomComesAnywhereInTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := NewQueue[int](open(t, srv), "/q", WithMaxLen(1500))
		must(t, q.Send(t.Context(), counted(1000)...))
		must(t, q.Send(t.Context(), counted(500)...))
		ch := NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
		slow := <-ch // keeps its place at the front
		ackAll(t, ch, 1000)
		must(t, q.Send(t.Context(), counted(1000)...))
		sent := make(chan error, 1)
		go func() { sent <- q.Send(t.Context(), 1) }()
		synctest.Wait()
		select {
		case err := <-sent:
			t.Fatalf("Send into a full queue returned %v", err)
		default:
		}
		ackAll(t, ch, 1)
		select {
		case err := <-sent:
			must(t, err)
		case <-time.After(time.Minute):
			t.Error("Send still waits a minute after an element was consumed behind one that is not")
		}
		must(t, slow.Ack(t.Context()))
	})
}

func TestSendWaitsWhileAFullQueueIsFull(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := NewQueue[int](open(t, srv), "/q", WithMaxLen(3), WithPriorities(2))
		must(t, q.SendPriority(t.Context(), 0, 1, 2))
		must(t, q.SendAt(t.Context(), time.Now().Add(time.Hour), 3))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := q.Send(ctx, 4); err == nil {
			t.Error("a fourth element was sent to a queue of three")
		}
		wantLen(t, q, 3)
	})
}

func TestInSendsEverythingToAQueueOfLimitedLength(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := NewQueue[int](open(t, srv), "/q", WithMaxLen(10))
		ch := NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		got := make(chan []int, 1)
		go func() { got <- collect(t, ch, 100) }()
		srv.SetLatency(5 * time.Millisecond)
		in, done := q.In(t.Context())
		for i := range 100 {
			in <- i
		}
		close(in)
		must(t, <-done)
		for i, v := range <-got {
			if v != i {
				t.Fatalf("received %d as element %d", v, i)
			}
		}
	})
}

func TestBucketThatIsFullCostsNoFailedTransaction(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 0))
		multis := 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti {
				multis++
			}
			return zktest.Pass
		})
		for range 20 {
			must(t, q.Send(t.Context(), counted(bucketSize)...))
		}
		if multis != 20 {
			t.Errorf("20 Sends of a bucket each cost %d transactions", multis)
		}
	})
}

// isPost reports whether a request settles elements.
func isPost(r zktest.Request) bool {
	return r.Op == zktest.OpMulti && len(r.Ops) > 1 && r.Ops[0].Op == zktest.OpSetData && strings.HasSuffix(r.Ops[0].Path, "-state")
}

func TestLateRemovalNeverPassesForAnother(t *testing.T) {
	// The first removal is on its way when its session is given up, comes
	// late, and is refused in between.
	for late := 7600 * time.Millisecond; late < 9400*time.Millisecond; late += 300 * time.Millisecond {
		for _, lost := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				q, other := NewQueue[int](s, "/q"), NewQueue[int](open(t, srv), "/q")
				must(t, other.Send(t.Context(), counted(200)...))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ch := q.Recv(ctx)
				got := collect(t, ch, 100)
				time.Sleep(time.Second)
				srv.SetLatency(10 * time.Millisecond)
				id, stage, bars := s.ID(), 0, 0
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Op == zktest.OpConnect && r.Session == id && stage > 0:
						return zktest.Hang
					case r.Op == zktest.OpSetData && strings.HasSuffix(r.Path, "-state"):
						if bars++; lost && bars == 1 {
							return zktest.DropReply
						}
					case !isPost(r):
					case r.Session == id && stage == 0:
						stage = 1
						return zktest.Delay(late)
					case r.Session != id && stage == 1:
						stage = 2
						return zktest.Fail(codeNoAuth)
					case r.Session != id && stage == 2:
						stage = 3
						return zktest.Delay(1500 * time.Millisecond)
					}
					return zktest.Pass
				})
				got = append(got, collect(t, ch, 100)...)
				times := make(map[int]int)
				for _, v := range got {
					times[v]++
				}
				if len(times) != 200 {
					t.Errorf("late by %v: %d of 200 elements in 200 that were received", late, len(times))
				}
				select {
				case v := <-ch:
					t.Errorf("late by %v: %d was received once more", late, v)
				case <-time.After(time.Minute):
				}
				if stage != 3 || bars == 0 {
					t.Errorf("stage %d, barred %d times: the case did not come about", stage, bars)
				}
				wantLen(t, other, 0)
			})
		}
	}
}

func TestSendThatWasRefusedIsNotStoredLater(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, made := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				q, other := NewQueue[int](s, "/q"), NewQueue[int](open(t, srv), "/q")
				must(t, other.Send(t.Context(), 0))
				time.Sleep(time.Minute)
				if made {
					must(t, q.Send(t.Context(), 1)) // leaves a receipt for the next
				}
				had, err := q.Len(t.Context())
				must(t, err)
				id, stage, bars := s.ID(), 0, 0
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Op == zktest.OpConnect && r.Session == id && stage > 0:
						return zktest.Hang
					case (r.Op == zktest.OpSetData || r.Op == zktest.OpCreate) && strings.HasPrefix(r.Path, "/q-senders/"):
						if bars++; lost && bars == 1 {
							return zktest.DropReply
						}
					case r.Op != zktest.OpMulti || len(r.Ops) < 2 || !strings.HasPrefix(r.Ops[0].Path, "/q-senders/"):
					case stage == 0:
						stage = 1
						return zktest.Delay(9 * time.Second) // until after the refusal, but within the session
					case stage == 1:
						stage = 2
						return zktest.Fail(codeNoAuth)
					}
					return zktest.Pass
				})
				err = q.Send(t.Context(), 2)
				if stage != 2 || bars == 0 {
					t.Fatalf("stage %d, barred %d times: the case did not come about", stage, bars)
				}
				time.Sleep(time.Minute)
				want := had
				if err == nil {
					want++
				}
				if n, e := q.Len(t.Context()); e != nil || n != want {
					t.Errorf("Send returned %v; Len = %d, %v, and was %d", err, n, e, had)
				}
				srv.Intercept(nil)
				must(t, q.Send(t.Context(), 3))
				wantLen(t, q, want+1)
			})
		}
	}
}
