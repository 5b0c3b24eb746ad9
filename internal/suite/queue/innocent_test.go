package queue

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// What a consumer does so that the order is kept, and attempts are counted, costs neither
// others nor itself more than it must.

// writesBucket matches claims and what gives them back.
func writesBucket(r zktest.Request) bool {
	return r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, func(o zktest.Request) bool {
		return o.Op == zktest.OpSetData && strings.HasPrefix(o.Path, "/q/b-")
	})
}

// takesForeign matches what removes elements of another library's queue.
func takesForeign(r zktest.Request) bool {
	return r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, func(o zktest.Request) bool {
		return o.Op == zktest.OpDelete && strings.HasPrefix(o.Path, "/q/qn-")
	})
}

func TestALimitOfAttemptsCostsNoRoundTripForEachElement(t *testing.T) {
	t.Parallel()
	const n = 500
	for _, latency := range []time.Duration{2 * time.Millisecond, 12 * time.Millisecond, 25 * time.Millisecond} {
		var took [2]time.Duration // by Deliveries, without and with a limit
		var cost [2]int64         // requests of ReceiveN
		for i, opts := range [][]zsync.QueueOption{nil, {zsync.WithMaxAttempts(5)}} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
				must(t, q.Send(t.Context(), counted(2*n)...))
				srv.SetLatency(latency)
				before := int64(srv.Counts().Total())
				ds, err := q.ReceiveN(t.Context(), n)
				must(t, err)
				if len(ds) != n {
					t.Fatalf("received %d of %d", len(ds), n)
				}
				cost[i] = int64(srv.Counts().Total()) - before
				for _, d := range ds {
					go d.Ack(t.Context())
				}
				time.Sleep(10 * time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began, left := time.Now(), n
				for d := range q.Deliveries(ctx) {
					go d.Ack(t.Context())
					if left--; left == 0 {
						break
					}
				}
				took[i] = time.Since(began)
			})
		}
		// A round trip for each element would be n of them, and not a few.
		if took[1] > 2*took[0]+10*latency || cost[1] > 2*cost[0]+8 {
			t.Errorf("latency %v: %d deliveries in %v, and %v with a limit; ReceiveN costs %d requests, and %d", latency, n, took[0], took[1], cost[0], cost[1])
		}
	}
}

// A may not give back what it has claimed. It does not wait for that at the head of the
// line, where B stands behind it, nor does it ask the servers ever more often.
func TestWhatOneMayNotGiveBackKeepsNobodyElseWaiting(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, producer := open(t, srv), open(t, srv), open(t, srv)
		must(t, zsync.NewQueue[int](producer, "/q").Send(t.Context(), counted(300)...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		srv.SetLatency(time.Millisecond)
		mine := zsync.NewQueue[int](a, "/q").Recv(ctx)
		for range 220 {
			<-mine
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(100 * time.Millisecond)
		var refused atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == a.ID() && writesBucket(r) {
				refused.Add(1)
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		time.Sleep(3 * time.Second) // A is slow, and gives back
		go func() {
			for range mine {
			}
		}()
		time.Sleep(100 * time.Millisecond)
		theirs := zsync.NewQueue[int](b, "/q").Recv(ctx)
		time.Sleep(100 * time.Millisecond)
		must(t, zsync.NewQueue[int](producer, "/q").Send(t.Context(), 1000))
		producer.Close() // nobody tells who waits
		began := time.Now()
		if v := <-theirs; v != 1000 || time.Since(began) > 2*time.Second {
			t.Errorf("B received %d after %v", v, time.Since(began))
		}
		time.Sleep(2 * time.Minute)
		refused.Store(0)
		time.Sleep(4 * time.Minute)
		if n := refused.Load(); n > 4*100 {
			t.Errorf("A is refused %d times in 4 minutes", n)
		}
	})
}

func TestAReceiveThatIsPolledLeavesOthersOfTheQueueTheirShare(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		ctx, cancel := context.WithCancel(t.Context())
		srv.SetLatency(5 * time.Millisecond)
		polled := async(func() error {
			for ctx.Err() == nil {
				short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
				if d, err := q.Receive(short); err == nil {
					d.Ack(ctx)
				}
				stop()
			}
			return nil
		})
		time.Sleep(time.Second)
		got := q.Recv(ctx)
		must(t, q.Send(t.Context(), counted(3)...))
		select {
		case <-got:
		case <-time.After(time.Second):
			t.Error("Recv receives nothing beside it")
		}
		cancel()
		must(t, <-polled)
	})
}

// The reply to a claim is late, and meanwhile what was claimed before is given back as the
// consumer is slow.
func TestOneConsumerKeepsTheOrderBesideAClaimThatIsLate(t *testing.T) {
	t.Parallel()
	const n = 2000
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue} {
		for at := range harness.Seeds(t, 4, 4, 8) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv, zsync.WithSessionTimeout(30*time.Second))
				must(t, zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout)).Send(t.Context(), counted(n)...))
				srv.SetLatency(time.Millisecond)
				var received atomic.Int32
				var late atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == s.ID() && (writesBucket(r) || takesForeign(r)) && received.Load() > int32(600+51*at) && received.Swap(-1<<30) > 0 {
						late.Store(true)
						return zktest.Delay(2500 * time.Millisecond)
					}
					return zktest.Pass
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				want := 0
				for v := range zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(layout), zsync.WithPrefetch(64)).Recv(ctx) {
					if v != want {
						t.Fatalf("%v, late behind %d: received %d; want %d", layout, 600+51*at, v, want)
					}
					want++
					received.Add(1)
					time.Sleep(time.Duration(20+30*at) * time.Microsecond)
					if late.CompareAndSwap(true, false) {
						time.Sleep(2600 * time.Millisecond)
					}
					if want == n {
						break
					}
				}
			})
		}
	}
}

// All asks for one element at a time, also when it has yielded an error: what it asks for
// counts as tried if the process is killed.
func TestAllAsksForNothingAheadThoughAnErrorWasYielded(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, kill := mortal(t, srv)
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(2))
		must(t, q.Send(t.Context(), counted(10)...))
		id := s.ID()
		srv.Intercept(first(zktest.Fail(zktest.CodeNoAuth), func(r zktest.Request) bool { return r.Session == id && writesBucket(r) }))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var failed atomic.Bool
		working := make(chan int)
		go func() {
			for d, err := range zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(2)).All(ctx) {
				switch {
				case err != nil:
					failed.Store(true)
				default:
					working <- d.Value
					<-ctx.Done()
				}
			}
		}()
		if v := <-working; v != 0 || !failed.Load() {
			t.Fatalf("works on %d, after an error: %v", v, failed.Load())
		}
		time.Sleep(3 * time.Second)
		kill()
		time.Sleep(time.Minute)
		left := 10
		for d := range q.Deliveries(within(t, time.Minute)) {
			if left--; d.Value > 0 && d.Attempt != 1 {
				t.Errorf("%d comes for attempt %d", d.Value, d.Attempt)
			}
		}
		if left != 0 {
			t.Errorf("%d do not come back", left)
		}
	})
}
