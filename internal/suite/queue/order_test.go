package queue

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
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

// Several producers send elements with delays of different lengths, so the buckets of these elements
// overlap in time. The elements become due before the consumer begins.
func TestDelayedElementsComeInTheOrderOfTheirTimes(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 8, 8, 200) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			dice := rand.New(rand.NewPCG(uint64(seed), 23))
			var opts []zsync.QueueOption
			keys := 1
			if seed%2 == 1 {
				keys += dice.IntN(5)
				opts = append(opts, zsync.WithKey(func(v int) string { return strconv.Itoa(v % keys) }))
			}
			var qs []*zsync.Queue[int]
			for range 3 {
				qs = append(qs, zsync.NewQueue[int](open(t, srv), "/q", opts...))
			}
			start := time.Now()
			due := time.Hour + time.Duration(dice.IntN(100))*time.Second
			const n = 400
			for i := range n {
				// The later it is sent, the shorter is its delay.
				time.Sleep(time.Until(start.Add(due * time.Duration(i) / n)))
				at := due + time.Duration(dice.IntN(100_000))*time.Millisecond
				must(t, qs[dice.IntN(len(qs))].SendAt(t.Context(), start.Add(at), int(at/time.Millisecond)))
			}
			time.Sleep(200 * time.Second)
			byKey := make([][]int, keys)
			for _, v := range collect(t, qs[0].Recv(t.Context()), n) {
				byKey[v%keys] = append(byKey[v%keys], v)
			}
			for _, vs := range byKey {
				wantRising(t, vs)
			}
		})
	}
}

// A time in the past means now, so earlier times do not change the order.
func TestElementsForThePastComeInTheOrderOfTheirSends(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		for i, at := range []time.Time{time.Now().Add(time.Millisecond), time.Now(), time.Now().Add(-time.Hour), {}} {
			must(t, q.SendAt(t.Context(), at, i))
			time.Sleep(2 * time.Millisecond)
		}
		if got := collect(t, q.Recv(t.Context()), 4); !slices.Equal(got, counted(4)) {
			t.Errorf("received %v", got)
		}
	})
}

// Many elements are due at the same time, and one bucket does not have room for them.
func TestElementsForTheSameTimeComeInTheOrderOfTheirSends(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		due, want := time.Now().Add(time.Minute), counted(8000)
		for vs := range slices.Chunk(want, 1000) {
			must(t, q.SendAt(t.Context(), due, vs...))
		}
		var got []int
		for _, item := range listed(t, q, zsync.QueueDelayed) {
			got = append(got, item.Value)
		}
		if !slices.Equal(got, want) {
			t.Error("List does not keep the order")
		}
		time.Sleep(time.Until(due))
		if !slices.Equal(collect(t, q.Recv(t.Context()), len(want)), want) {
			t.Error("Recv does not keep the order")
		}
	})
}

// A consumer holds elements of more than a hundred buckets, which are longer than a search reads at
// once. They are between the beginning of the first bucket and the time of its element.
func TestDelayedElementsComeInOrderAcrossManyBuckets(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		base := time.Unix(time.Now().Unix()/1024*1024+20_480, 0)
		send := func(second int) { must(t, q.SendAt(t.Context(), base.Add(time.Duration(second)*time.Second), second)) }
		send(400)
		time.Sleep(time.Until(base) - 10*time.Second)
		for i := range 250 {
			send(i)
			time.Sleep(time.Second)
		}
		held, err := q.ReceiveN(t.Context(), 1)
		must(t, err)
		for len(held) < 220 {
			ds, err := q.ReceiveN(t.Context(), 220-len(held))
			must(t, err)
			held = append(held, ds...)
		}
		time.Sleep(time.Until(base) + 450*time.Second)
		other := zsync.NewQueue[int](open(t, srv), "/q")
		if got := collect(t, other.Recv(t.Context()), 31); !slices.Equal(got, append(counted(250)[220:], 400)) {
			t.Errorf("received %v", got)
		}
	})
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

// Sessions of the only consumer end soon after one another. When one ends, the consumer may have
// listed the marks less than a second before, and the mark of that session was among them. An element
// may come again, but none comes for the first time after a later one.
func TestAnOnlyConsumerKeepsTheOrderThoughItsSessionsEndSoonAfterOneAnother(t *testing.T) {
	t.Parallel()
	const n = 10000
	for seed := range harness.Seeds(t, 4, 8, 200) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			dice := rand.New(rand.NewPCG(uint64(seed)+20, 3))
			q := zsync.NewQueue[int](open(t, srv), "/q")
			for i := 0; i < n; i += 100 {
				must(t, q.Send(t.Context(), counted(i + 100)[i:]...))
			}
			pace := time.Duration(dice.IntN(600)) * time.Microsecond
			s := open(t, srv)
			srv.SetLatency(time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			var expiring sync.WaitGroup
			defer expiring.Wait()
			defer cancel()
			expiring.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(10+dice.IntN(500)) * time.Millisecond)
					srv.Expire(s.ID())
				}
			})
			next := 0
			for v := range zsync.NewQueue[int](s, "/q").Recv(ctx) {
				if v > next {
					t.Fatalf("received %d; want %d first", v, next)
				}
				if next = max(next, v+1); next == n {
					break
				}
				time.Sleep(pace)
			}
		})
	}
}
