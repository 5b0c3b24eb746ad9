package queue

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// wantRising fails at the first of vs that is less than one before it.
func wantRising(t *testing.T, vs []int) {
	t.Helper()
	for i := 1; i < len(vs); i++ {
		if vs[i] < vs[i-1] {
			t.Fatalf("%d was received after %d, as number %d", vs[i], vs[i-1], i)
		}
	}
}

// isBucketWrite matches the transactions that write buckets: claims, and what gives back.
func isBucketWrite(r zktest.Request) bool {
	return r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, func(o zktest.Request) bool {
		return o.Op == zktest.OpSetData && len(o.Path) > 5 && o.Path[:5] == "/q/b-"
	})
}

// A Cancel writes the bucket whose elements a consumer is about to claim, so the claim
// is refused; but nobody else consumes, so there is nobody to make way for.
func TestAnOnlyConsumerKeepsTheOrderThoughOthersCancelBesideIt(t *testing.T) {
	t.Parallel()
	cancelled := 0                                 // by all programs: one may come too late each time
	for seed := range harness.Seeds(t, 4, 2, 40) { // what is received does not depend on the race detector, which sees both ways to receive
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			q := zsync.NewQueue[int](a, "/q")
			const n = 900
			for i := range n {
				_, err := q.SendID(t.Context(), strconv.Itoa(i), i)
				must(t, err)
			}
			for i := n; i < 5*n; i += 100 {
				vs := counted(i + 100)[i:]
				must(t, q.Send(t.Context(), vs...))
			}
			srv.SetLatency(time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan int)
			go func() {
				dice, n := rand.New(rand.NewPCG(uint64(seed), 1)), 0
				for ctx.Err() == nil {
					if ok, _ := q.Cancel(ctx, strconv.Itoa(100+dice.IntN(800))); ok {
						n++
					}
				}
				over <- n
			}()
			var got []int
			consumer := zsync.NewQueue[int](b, "/q", zsync.WithPrefetch(8))
			if seed%2 == 0 {
				got = collect(t, consumer.Recv(ctx), n)
			} else {
				for range n / 3 {
					v, _, err := consumer.TryRecv(t.Context())
					must(t, err)
					got = append(got, v)
				}
			}
			cancel()
			cancelled += <-over
			wantRising(t, got)
		})
	}
	if cancelled == 0 {
		t.Error("nothing was cancelled")
	}
}

// What is returned changes its bucket, and makes the claim of the next fail.
func TestAnOnlyConsumerThatReturnsElementsGetsTheOthersInOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(16))
		for i := 0; i < 4000; i += 500 {
			must(t, q.Send(t.Context(), counted(i + 500)[i:]...))
		}
		srv.SetLatency(time.Millisecond)
		var firsts []int
		dice := rand.New(rand.NewPCG(1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for d := range q.Deliveries(ctx) {
			if d.Attempt == 1 {
				firsts = append(firsts, d.Value)
			}
			if dice.IntN(4) == 0 && d.Attempt < 3 {
				go d.Nack()
			} else {
				go d.Ack(t.Context())
			}
			if len(firsts) == 2500 {
				break
			}
		}
		wantRising(t, firsts)
	})
}

// Its removal, and that it is put back, go on in the background.
func TestTryRecvAfterOneThatWasCancelledReturnsTheSameElement(t *testing.T) {
	for at := range 60 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			q := zsync.NewQueue[int](open(t, srv), "/q")
			must(t, q.Send(t.Context(), counted(3)...))
			srv.SetLatency(2 * time.Millisecond)
			var got []int
			for len(got) < 3 {
				short, stop := context.WithTimeout(t.Context(), time.Duration(at)*time.Millisecond/2)
				if v, ok, _ := q.TryRecv(short); ok {
					got = append(got, v)
				} else if v, ok, err := q.TryRecv(within(t, time.Minute)); err != nil {
					t.Fatal(err)
				} else if ok {
					got = append(got, v)
				}
				stop()
			}
			if !slices.Equal(got, counted(3)) {
				t.Errorf("cancelled after %d half milliseconds: received %v", at, got)
			}
		})
	}
}

// While the connection is down nothing can be given back.
func TestReceiveAfterARecvThatEndedInAnOutageGoesOnInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), counted(100)...))
		ctx, cancel := context.WithCancel(t.Context())
		ch := q.Recv(ctx)
		got := collect(t, ch, 20) // and more is claimed
		time.Sleep(time.Second)
		srv.Partition(s.ID())
		cancel()
		for v := range ch {
			got = append(got, v)
		}
		time.AfterFunc(time.Second, func() { srv.Heal(s.ID()) })
		for len(got) < 100 {
			d, err := q.Receive(within(t, time.Minute))
			must(t, err)
			got = append(got, d.Value)
			must(t, d.Ack(t.Context()))
		}
		if !slices.Equal(got, counted(100)) {
			t.Errorf("received %v", got)
		}
	})
}

func TestReceiveAfterANackInAnOutageReturnsTheSameElement(t *testing.T) {
	for _, lose := range []bool{true, false} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			q := zsync.NewQueue[int](s, "/q")
			must(t, q.Send(t.Context(), counted(10)...))
			d, err := q.Receive(within(t, time.Minute))
			must(t, err)
			time.Sleep(time.Second)
			if lose {
				srv.Intercept(harness.First(zktest.DropRequest, isBucketWrite))
			} else {
				srv.Partition(s.ID())
				time.AfterFunc(time.Second, func() { srv.Heal(s.ID()) })
			}
			must(t, d.Nack())
			for i := range 10 {
				d, err := q.Receive(within(t, time.Minute))
				must(t, err)
				if d.Value != i {
					t.Errorf("lost %v: received %d, want %d", lose, d.Value, i)
				}
				must(t, d.Ack(t.Context()))
			}
		})
	}
}

// While the servers refuse to write a bucket what was claimed of it cannot go back.
func TestAnOnlyConsumerKeepsTheOrderThoughTheServersRefuseForAWhile(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 10, 4, 40) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			q := zsync.NewQueue[int](s, "/q", zsync.WithPrefetch(8))
			for i := 0; i < 2000; i += 200 {
				must(t, q.Send(t.Context(), counted(i + 200)[i:]...))
			}
			srv.SetLatency(time.Millisecond)
			dice := rand.New(rand.NewPCG(uint64(seed), 1))
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan struct{})
			defer func() { cancel(); <-over }()
			go func() {
				defer close(over)
				for ctx.Err() == nil {
					nap(dice, 3000)
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if isBucketWrite(r) {
							return zktest.Fail(codeNoAuth)
						}
						return zktest.Pass
					})
					nap(dice, 3000)
					srv.Intercept(nil)
				}
			}()
			var got []int
			for len(got) < 1500 {
				short, stop := context.WithTimeout(ctx, 2*time.Second)
				for v := range q.Recv(short) {
					if got = append(got, v); len(got)%5 == 0 {
						time.Sleep(10 * time.Millisecond)
					}
				}
				stop()
			}
			if !slices.Equal(got, counted(len(got))) {
				wantRising(t, got)
				t.Error("something is missing")
			}
		})
	}
}
