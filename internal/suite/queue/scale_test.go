package queue

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// How a queue scales. All runs are in virtual time with 1 ms to the server, so
// the figures are round trips and nothing else, the same on every machine. The
// short runs are small; ZSYNC_TEST_LONG=1 measures the sizes of docs/benchmarks.md.

// A distantConn is a connection whose packets need longer to come back.
type distantConn struct {
	net.Conn
	r *io.PipeReader
}

func (c *distantConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *distantConn) Close() error {
	c.r.Close()
	return c.Conn.Close()
}

// distant makes the connections of a Session d longer, there and back. Packets
// keep their order, and any number is on its way.
func distant(srv *zktest.Server, d time.Duration) zsync.Option {
	return zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
		nc, err := srv.Dial(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		type chunk struct {
			b   []byte
			at  time.Time
			err error
		}
		r, w := io.Pipe()
		ch := make(chan chunk, 1<<16)
		go func() {
			defer close(ch)
			for {
				b := make([]byte, 64<<10)
				n, err := nc.Read(b)
				ch <- chunk{b[:n], time.Now().Add(d), err}
				if err != nil {
					return
				}
			}
		}()
		go func() {
			for c := range ch {
				time.Sleep(time.Until(c.at))
				if _, err := w.Write(c.b); err != nil || c.err != nil {
					w.CloseWithError(c.err)
					for range ch {
					}
					return
				}
			}
		}()
		return &distantConn{nc, r}, nil
	})
}

// A taker is a process that consumes.
type taker struct {
	q   *zsync.Queue[int]
	got int // read it when nothing consumes any more
}

// takeTogether has processes consume n elements, and returns how many each has
// got and how long they took.
func takeTogether(t *testing.T, n int, takers []*taker) (took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	left, done := n, make(chan struct{})
	begin := time.Now()
	for _, k := range takers {
		all.Go(func() {
			for range k.q.Recv(ctx) {
				k.got++
				mu.Lock()
				if left--; left == 0 {
					took = time.Since(begin)
					close(done)
				}
				mu.Unlock()
			}
		})
	}
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		t.Errorf("after 10 minutes %d of %d elements are left", left, n)
		took = 10 * time.Minute
	}
	cancel()
	all.Wait()
	return took
}

// fill stores n elements without the latency.
func fill(t *testing.T, srv *zktest.Server, q *zsync.Queue[int], n int) {
	t.Helper()
	srv.SetLatency(0)
	for ; n > 0; n -= 1000 {
		must(t, q.Send(t.Context(), counted(min(n, 1000))...))
	}
	time.Sleep(time.Second) // what the producer tidies up
	srv.SetLatency(time.Millisecond)
}

// size is how large a measurement is, in the short run and the long one.
func size(short, long int) int {
	if longTests() {
		return long
	}
	return short
}

// rateTogether returns how many elements a second so many processes take
// together, and the same of the nearest of them alone.
func rateTogether(t *testing.T, n, near int, opts ...func(*zktest.Server) zsync.Option) (perSecond, ofNear float64) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		fill(t, srv, zsync.NewQueue[int](open(t, srv), "/q"), n)
		var takers []*taker
		for range near {
			takers = append(takers, &taker{q: zsync.NewQueue[int](open(t, srv), "/q")})
		}
		for _, o := range opts {
			takers = append(takers, &taker{q: zsync.NewQueue[int](open(t, srv, o(srv)), "/q")})
		}
		took := takeTogether(t, n, takers)
		sum := 0
		for _, k := range takers[:near] {
			sum += k.got
		}
		perSecond, ofNear = float64(n)/took.Seconds(), float64(sum)/took.Seconds()
	})
	return perSecond, ofNear
}

func TestConsumerProcessesTogetherAreNoSlowerThanOne(t *testing.T) {
	t.Parallel()
	one, _ := rateTogether(t, size(5000, 50_000), 1)
	t.Logf("with 1 ms of latency one process takes %.0f elements a second", one)
	cases := map[int]float64{4: 1, 20: 1.5, 100: 1.5}
	for _, k := range []int{4, 20, 100} {
		if k > 20 && !longTests() {
			continue
		}
		together, _ := rateTogether(t, size(max(5000, 1000*k), max(50_000, 2500*k)), k)
		t.Logf("%3d together take %.0f, %.2f times as many", k, together, together/one)
		if together < cases[k]*one {
			t.Errorf("%d processes together take %.0f elements a second, want at least %.1f times the %.0f of one", k, together, cases[k], one)
		}
	}
}

// finishTogether returns how many elements a second so many processes consume by finish, and the
// requests for each element. finish consumes until ctx ends, and calls done for each element.
func finishTogether(t *testing.T, processes, n int, finish func(ctx context.Context, q *zsync.Queue[int], done func()) error) (perSecond, requests float64) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		fill(t, srv, zsync.NewQueue[int](open(t, srv), "/q"), n)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var queues []*zsync.Queue[int]
		for range processes {
			queues = append(queues, zsync.NewQueue[int](open(t, srv), "/q"))
		}
		var left atomic.Int64
		left.Store(int64(n))
		finished := make(chan struct{})
		done := func() {
			if left.Add(-1) == 0 {
				close(finished)
			}
		}
		var all sync.WaitGroup
		began, before := time.Now(), srv.Counts().Total()
		for _, q := range queues {
			all.Go(func() {
				if err := finish(ctx, q, done); !errors.Is(err, context.Canceled) {
					t.Errorf("got error %v, want that of the context", err)
				}
			})
		}
		select {
		case <-finished:
		case <-time.After(10 * time.Minute):
			t.Errorf("after 10 minutes %d of %d elements are left", left.Load(), n)
		}
		perSecond = float64(n) / time.Since(began).Seconds()
		requests = float64(srv.Counts().Total()-before) / float64(n)
		cancel()
		all.Wait()
	})
	return perSecond, requests
}

// workOne finishes elements by Work with one goroutine, whose function takes no time.
func workOne(ctx context.Context, q *zsync.Queue[int], done func()) error {
	return q.Work(ctx, 1, func(context.Context, int) error { done(); return nil })
}

// receiveOne finishes elements by Receive and Ack.
func receiveOne(ctx context.Context, q *zsync.Queue[int], done func()) error {
	for {
		d, err := q.Receive(ctx)
		if err != nil {
			return err
		}
		if err := d.Ack(ctx); err != nil {
			return err
		}
		done()
	}
}

// Each process more finishes more: a claim covers many elements, and no process waits for another.
func TestElementsAreFinishedFasterWithEachProcess(t *testing.T) {
	t.Parallel()
	for name, finish := range map[string]func(context.Context, *zsync.Queue[int], func()) error{"Work": workOne, "Receive": receiveOne} {
		n := size(2000, 50_000)
		if name == "Receive" {
			n = size(1000, 5000)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			former := 0.0
			for _, c := range []struct {
				processes int
				least     float64 // elements a second
			}{{1, 300}, {5, 1300}, {20, 5000}, {60, 12_000}} {
				if c.processes > 5 && !longTests() {
					continue
				}
				rate, requests := finishTogether(t, c.processes, n, finish)
				t.Logf("with 1 ms of latency, %s in %d processes finishes %.0f elements a second, with %.1f requests for each", name, c.processes, rate, requests)
				if name == "Work" && rate < c.least {
					t.Errorf("Work in %d processes finishes %.0f elements a second; want at least %.0f", c.processes, rate, c.least)
				}
				if rate < former {
					t.Errorf("%s in %d processes finishes %.0f elements a second, and fewer processes finish %.0f", name, c.processes, rate, former)
				}
				former = rate
			}
		})
	}
}

func TestADistantConsumerHardlySlowsDownTheNearOnes(t *testing.T) {
	t.Parallel()
	n := 50_000 // fewer are taken too soon to compare
	alone, _ := rateTogether(t, n, 2)
	_, near := rateTogether(t, n, 2, func(srv *zktest.Server) zsync.Option { return distant(srv, 100*time.Millisecond) })
	t.Logf("two processes take %.0f elements a second, and %.0f beside one at 100 ms", alone, near)
	if near < 0.9*alone {
		t.Errorf("two processes take %.0f elements a second beside a distant one, want at least 90%% of the %.0f that they take alone", near, alone)
	}
}

// A surrounding is what a queue has beside the elements that are measured.
type surrounding struct {
	name  string
	short int
	long  int
	make  func(t *testing.T, srv *zktest.Server, n int)
}

var surroundings = []surrounding{
	{"backlog", 5000, 1_000_000, func(t *testing.T, srv *zktest.Server, n int) {
		fill(t, srv, zsync.NewQueue[int](open(t, srv), "/q"), n)
	}},
	{"unacknowledged deliveries", 2000, 20_000, func(t *testing.T, srv *zktest.Server, n int) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		fill(t, srv, q, n)
		srv.SetLatency(0)
		ctx, cancel := context.WithCancel(t.Context())
		collect(t, q.Deliveries(ctx), n)
		cancel()
		time.Sleep(time.Second)
	}},
	{"delayed elements", 2000, 30_000, func(t *testing.T, srv *zktest.Server, n int) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		at := time.Now().Add(240 * time.Hour)
		for i := 0; i < n; i += 1000 {
			must(t, q.SendAt(t.Context(), at.Add(time.Duration(i)*time.Second), counted(min(1000, n-i))...))
		}
	}},
	{"busy consumers", 20, 200, func(t *testing.T, srv *zktest.Server, n int) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		for i := range n {
			must(t, q.Send(t.Context(), i))
			_, err := zsync.NewQueue[int](open(t, srv), "/q").Receive(t.Context())
			must(t, err)
		}
	}},
	{"priorities ever used", 10, 100, func(t *testing.T, srv *zktest.Server, n int) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPriorities(max(n, 1)))
		for i := range n {
			must(t, q.SendPriority(t.Context(), i, i))
			if _, ok, err := q.TryRecv(t.Context()); !ok || err != nil {
				t.Fatalf("TryRecv = %v, %v", ok, err)
			}
		}
	}},
}

// costAmong returns how many requests it costs to put and take one element at a
// time, and each of 1,000 at once.
func costAmong(t *testing.T, s surrounding, n int) (single, many float64) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s.make(t, srv, n)
		srv.SetLatency(time.Millisecond)
		p, q := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ch := q.Recv(ctx)
		for range 5 { // it learns how quick its consumer is
			must(t, p.Send(t.Context(), counted(1000)...))
			collect(t, ch, 1000)
		}
		many = float64(requests(srv, func() {
			for range 3 {
				must(t, p.Send(t.Context(), counted(1000)...))
				collect(t, ch, 1000)
			}
		})) / 3000
		// Those who hold something have their sessions confirmed, whatever happens, and
		// all at the same time: so it takes long to measure how often.
		const window = 400
		idle := float64(requests(srv, func() { time.Sleep(window * time.Second) })) / window
		begin := time.Now()
		all := requests(srv, func() {
			for i := range window / 4 {
				must(t, p.Send(t.Context(), i))
				collect(t, ch, 1)
				time.Sleep(time.Second)
			}
		})
		single = (float64(all) - idle*time.Since(begin).Seconds()) / (window / 4)
	})
	return single, many
}

func TestWhatAnElementCostsDoesNotGrowWithWhatElseIsInTheQueue(t *testing.T) {
	for _, s := range surroundings {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			few := 1
			if s.name == "backlog" {
				few = 1000
			}
			n := size(s.short, s.long)
			single, many := costAmong(t, s, few)
			single2, many2 := costAmong(t, s, n)
			t.Logf("%d %s: %.2f requests for one element, %.3f for each of many", few, s.name, single, many)
			t.Logf("%d %s: %.2f requests for one element, %.3f for each of many", n, s.name, single2, many2)
			if single2 > 1.5*single || many2 > 1.5*many {
				t.Errorf("with %d %s an element costs %.2f requests, one of many %.3f, want at most half more than the %.2f and %.3f with %d", n, s.name, single2, many2, single, many, few)
			}
		})
	}
}

// rateOf returns how many deliveries a second one consumer acknowledges, each by
// a goroutine of its own.
func rateOf(t *testing.T, n int, opts ...zsync.QueueOption) (perSecond float64) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		fill(t, srv, zsync.NewQueue[int](open(t, srv), "/q"), n)
		q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := time.Now()
		ch := q.Deliveries(ctx)
		var acks sync.WaitGroup
		for range n {
			d := <-ch
			acks.Go(func() { must(t, d.Ack(t.Context())) })
		}
		acks.Wait()
		perSecond = float64(n) / time.Since(begin).Seconds()
	})
	return perSecond
}

func TestALimitOfAttemptsCostsHalfTheRateAtMost(t *testing.T) {
	t.Parallel()
	n := size(3000, 50_000)
	without, with := rateOf(t, n), rateOf(t, n, zsync.WithMaxAttempts(3))
	t.Logf("%.0f deliveries a second, %.0f with WithMaxAttempts", without, with)
	if with < 0.5*without {
		t.Errorf("%.0f deliveries a second with WithMaxAttempts, want at least half the %.0f without", with, without)
	}
}

func TestALimitOfLengthCostsTwoRequestsASendAtMost(t *testing.T) {
	t.Parallel()
	for _, n := range []int{10, size(3000, 20_000)} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			fill(t, srv, zsync.NewQueue[int](open(t, srv), "/q"), n)
			cost := func(opts ...zsync.QueueOption) float64 {
				q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
				must(t, q.Send(t.Context(), 1))
				return float64(requests(srv, func() {
					for i := range 50 {
						must(t, q.Send(t.Context(), i))
					}
				})) / 50
			}
			without, with := cost(), cost(zsync.WithMaxLen(10*n+1000))
			t.Logf("%d elements: a Send costs %.2f requests, %.2f with WithMaxLen", n, without, with)
			if with > without+2 {
				t.Errorf("with %d elements a Send costs %.2f requests with WithMaxLen, want at most two more than %.2f", n, with, without)
			}
		})
	}
}

// A consumer that has become slow claims no more than it will soon take.
func TestAConsumerThatHasBecomeSlowDoesNotHoard(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		p := zsync.NewQueue[int](open(t, srv), "/q")
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, p.Send(t.Context(), counted(1000)...))
		ch := q.Recv(t.Context())
		collect(t, ch, 1000) // it is quick
		var slow sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		slow.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ch:
					time.Sleep(time.Second) // and slow from now on
				case <-ctx.Done():
				}
			}
		})
		defer slow.Wait()
		defer cancel()
		time.Sleep(10 * time.Second)
		idle := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		time.Sleep(time.Second)
		for i := range 120 {
			must(t, p.Send(t.Context(), i))
			time.Sleep(time.Second / 120)
		}
		got := 0
		for wait := time.After(5 * time.Second); wait != nil; {
			select {
			case <-idle:
				got++
			case <-wait:
				wait = nil
			}
		}
		t.Logf("of 120 elements the idle consumer got %d", got)
		if got < 100 {
			t.Errorf("of 120 elements the idle consumer got %d, want at least 100", got)
		}
	})
}

func TestTryRecvGetsItsShareBesideABusyConsumer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		n := size(20_000, 100_000)
		q := zsync.NewQueue[int](open(t, srv), "/q")
		fill(t, srv, q, n)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var busy sync.WaitGroup
		busy.Go(func() {
			for range zsync.NewQueue[int](open(t, srv), "/q").Recv(ctx) {
			}
		})
		time.Sleep(20 * time.Millisecond)
		var worst time.Duration
		for range 5 {
			begin := time.Now()
			if _, ok, err := q.TryRecv(t.Context()); !ok || err != nil {
				t.Errorf("TryRecv = %v, %v", ok, err)
			}
			worst = max(worst, time.Since(begin))
		}
		cancel()
		busy.Wait()
		t.Logf("TryRecv took %v at most", worst)
		if worst > 50*time.Millisecond {
			t.Errorf("TryRecv took %v, want at most 50 ms", worst)
		}
	})
}

// The process of the first idle consumer hangs: the servers do not know that yet. Its neighbour receives
// elements as soon as they have ended the session of the first.
func TestAnIdleConsumerThatHangsHoldsUpItsNeighbourForItsSessionTimeout(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		var hangs atomic.Bool
		s := open(t, srv, zsync.WithDialer(harness.DialUnless(&hangs, srv)))
		zsync.NewQueue[int](s, "/q").Recv(t.Context())
		time.Sleep(time.Second)
		ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		time.Sleep(time.Second)
		hangs.Store(true)
		srv.Partition(s.ID())
		begin := time.Now()
		must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), counted(4)...))
		collect(t, ch, 4)
		took := time.Since(begin)
		t.Logf("the elements came after %v", took)
		if took > harness.Timeout+time.Second {
			t.Errorf("the elements came after %v, want the session timeout at most", took)
		}
	})
}

func bucketsOf(t *testing.T, s *zsync.Session, path string) (n, most int) {
	for _, name := range childrenOf(t, s, path) {
		if name[:2] == "b-" {
			n++
			most = max(most, len(childrenOf(t, s, path+"/"+name)))
		}
	}
	return n, most
}

func TestNoBucketGrowsBeyondAThousandThoughEachProducerSendsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for i := range 2500 {
			must(t, zsync.NewQueue[int](s, "/q").Send(t.Context(), i))
		}
		n, most := bucketsOf(t, s, "/q")
		if most > 1100 {
			t.Errorf("%d buckets, of at most %d elements", n, most)
		}
	})
}

func TestNoBucketGrowsBeyondAThousandByTxns(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		from, to := zsync.NewQueue[int](s, "/from"), zsync.NewQueue[int](s, "/to")
		for range 5 {
			vs := make([]int, 500)
			must(t, from.Send(t.Context(), vs...))
		}
		ch := from.Deliveries(t.Context())
		for range 2500 {
			d := <-ch
			_, err := d.Txn(t.Context(), to.SendOp(d.Value))
			must(t, err)
		}
		n, most := bucketsOf(t, s, "/to")
		if most > 1100 {
			t.Errorf("%d buckets, of at most %d elements", n, most)
		}
	})
}

// The claims of a consumer that is never idle and keeps one element are written into bucket after
// bucket, and none of them has much of that.
func TestTheClaimsOfAConsumerThatIsNeverIdleDoNotGrow(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		in := zsync.NewQueue[int](s, "/q")
		var got atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			ch := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(ctx)
			go func() {
				<-ch // is long at work on one of them
				got.Add(1)
				for d := range ch {
					got.Add(1)
					go d.Ack(t.Context())
				}
			}()
		}
		const rounds, each = 20, 500
		want, most := 0, 0
		for round := range rounds {
			var sends sync.WaitGroup
			for i := range each {
				due := time.Now().Add(-time.Duration(rand.IntN(1000)) * time.Second)
				if i%20 == 0 {
					due = time.Now().Add(1000 * time.Hour)
				} else {
					want++
				}
				sends.Go(func() { must(t, in.SendAt(t.Context(), due, 1)) })
			}
			sends.Wait()
			time.Sleep(5 * time.Second)
			for _, name := range childrenOf(t, s, "/q") {
				d, _, err := s.Get(t.Context(), "/q/"+name)
				must(t, err)
				most = max(most, len(d))
			}
			if n := int(got.Load()); n != want {
				t.Fatalf("round %d: received %d of %d", round, n, want)
			}
		}
		if most > 5000 { // 5 for each number of a bucket
			t.Errorf("the claims in a bucket have grown to %d bytes", most)
		}
	})
}
