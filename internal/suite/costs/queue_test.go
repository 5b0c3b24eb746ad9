package costs

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The table in the documentation.
func TestQueueRequestsForEachElement(t *testing.T) {
	t.Parallel()
	const n = 10_000
	each := func(total int64, n int) float64 { return float64(total) / float64(n) }
	check := func(t *testing.T, what string, got, most float64) {
		t.Helper()
		t.Logf("%-58s %.4f requests for each element", what, got)
		if got > most {
			t.Errorf("%s costs %.4f requests for each element, want at most %.4f", what, got, most)
		}
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		s := suite.Open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		harness.Must(t, q.Send(t.Context(), -1))
		check(t, "put: In", each(harness.Requests(srv, func() {
			in, done := q.In(t.Context())
			for i := range n {
				in <- i
			}
			close(in)
			harness.Must(t, <-done)
		}), n), 0.01)
		if _, ok, err := q.TryRecv(t.Context()); !ok || err != nil {
			t.Fatalf("TryRecv = %v, %v", ok, err)
		}
		recv := func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			harness.Collect(t, q.Recv(ctx), n)
		}
		check(t, "take: Recv, one consumer, 10,000 waiting", each(harness.Requests(srv, recv), n), 0.12)

		check(t, "put: Send of 100 elements", each(harness.Requests(srv, func() {
			for i := range n / 100 {
				harness.Must(t, q.Send(t.Context(), harness.Counted(n)[100*i:100*i+100]...))
			}
		}), n), 0.013)
		check(t, "take: Deliveries, each acknowledged by its goroutine", each(harness.Requests(srv, func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ch := q.Deliveries(ctx)
			var acks sync.WaitGroup
			for range n {
				d := <-ch
				acks.Go(func() { harness.Must(t, d.Ack(t.Context())) })
			}
			acks.Wait()
		}), n), 0.15)

		check(t, "put: Send of 1 element by each of 100 goroutines at once", each(harness.Requests(srv, func() {
			var senders sync.WaitGroup
			for range 100 {
				senders.Go(func() {
					for i := range 10 {
						harness.Must(t, q.Send(t.Context(), i))
					}
				})
			}
			senders.Wait()
		}), 1000), 0.03)
		check(t, "take: Deliveries, acknowledged one by one", each(harness.Requests(srv, func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ch := q.Deliveries(ctx)
			for range 1000 {
				d := <-ch
				harness.Must(t, d.Ack(t.Context()))
			}
		}), 1000), 1.8)

		check(t, "put: Send of 1 element at a time", each(harness.Requests(srv, func() {
			for i := range 1000 {
				harness.Must(t, q.Send(t.Context(), i))
			}
		}), 1000), 1.01)
		check(t, "take: TryRecv", each(harness.Requests(srv, func() {
			for range 100 {
				if _, ok, err := q.TryRecv(t.Context()); !ok || err != nil {
					t.Fatalf("TryRecv = %v, %v", ok, err)
				}
			}
		}), 100), 6.1)
		_, err := q.Clear(t.Context())
		harness.Must(t, err)

		// Four processes share 10,000 elements.
		suite.SendAll(t, q, harness.Counted(n))
		check(t, "take: Recv, four processes, 10,000 waiting", each(harness.Requests(srv, func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := make(chan int)
			for range 4 {
				ch := zsync.NewQueue[int](suite.Open(t, srv), "/q").Recv(ctx)
				go func() {
					for v := range ch {
						got <- v
					}
				}()
			}
			harness.Collect(t, got, n)
		}), n), 0.3)

		// One element at a time, on an empty queue.
		ctx, cancel := context.WithCancel(t.Context())
		ch := q.Recv(ctx)
		check(t, "put and take: one element on an empty queue", each(harness.Requests(srv, func() {
			for i := range 100 {
				harness.Must(t, q.Send(t.Context(), i))
				<-ch
				time.Sleep(time.Second)
			}
		}), 100), 15)
		cancel()
	})
}

func BenchmarkQueuePut(b *testing.B) {
	q := zsync.NewQueue[[]byte](connectBench(b), "/q", zsync.WithCodec(zsync.Raw))
	v := make([]byte, 100)
	in, done := q.In(b.Context())
	b.ResetTimer()
	for range b.N {
		in <- v
	}
	close(in)
	harness.Must(b, <-done)
}

func BenchmarkQueueTake(b *testing.B) {
	q := zsync.NewQueue[[]byte](connectBench(b), "/q", zsync.WithCodec(zsync.Raw))
	v := make([]byte, 100)
	in, done := q.In(b.Context())
	for range b.N {
		in <- v
	}
	close(in)
	harness.Must(b, <-done)
	ch := q.Recv(b.Context())
	b.ResetTimer()
	for range b.N {
		<-ch
	}
}

func connectBench(b *testing.B) *zsync.Session {
	s, err := zsync.Connect(b.Context(), zktest.Start(b).Addr())
	harness.Must(b, err)
	b.Cleanup(func() { s.Close() })
	return s
}

func TestQueueTakesALongBacklogAsFastAsAShortOne(t *testing.T) {
	t.Parallel()
	long := 20_000
	switch {
	case harness.Long():
		long = 100_000
	case harness.UnderRace:
		long = 5000
	}
	rate := func(t *testing.T, backlog int) (perSecond float64) {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			q := zsync.NewQueue[int](suite.Open(t, srv), "/q")
			suite.SendAll(t, q, harness.Counted(backlog))
			srv.SetLatency(time.Millisecond) // time is virtual: only round trips count
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begin := time.Now()
			harness.Collect(t, q.Recv(ctx), backlog)
			perSecond = float64(backlog) / time.Since(begin).Seconds()
		})
		return perSecond
	}
	a, b := rate(t, 1000), rate(t, long)
	t.Logf("with 1 ms of latency: %.0f elements a second of 1,000, %.0f of %d", a, b, long)
	if b < 0.8*a {
		t.Errorf("%.0f elements a second of a backlog of %d, want at least 80%% of the %.0f of 1,000", b, long, a)
	}
}

// A worker has had bursts, so it claims ahead. Then it works on one element for long, while another
// worker is idle. It sends only the two confirmations in each quarter of the timeout that a hold costs.
func TestABusyConsumerBesideAnIdleOneSendsNoRequest(t *testing.T) {
	t.Parallel()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		q := zsync.NewQueue[bool](suite.Open(t, srv), "/q")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			worker := zsync.NewQueue[bool](suite.Open(t, srv), "/q")
			go worker.Work(ctx, 1, func(ctx context.Context, long bool) error {
				if long {
					time.Sleep(time.Hour)
				}
				return nil
			})
		}
		suite.SendAll(t, q, make([]bool, 200))
		time.Sleep(10 * time.Second)
		harness.Must(t, q.Send(t.Context(), true))
		time.Sleep(10 * time.Second)
		n := harness.Requests(srv, func() { time.Sleep(time.Minute) })
		if n > 60 { // 24 quarters in a minute, and the second that Requests waits
			t.Errorf("the consumers have sent %d requests in a minute, want about 48", n)
		}
		harness.Must(t, q.Send(t.Context(), false))
		time.Sleep(time.Second)
		if n, err := q.Len(t.Context()); n != 1 || err != nil {
			t.Errorf("Len = %d, %v: the idle consumer has not taken the element", n, err)
		}
		time.Sleep(time.Hour)
	})
}

// A process sweeps once in six hours, although it makes a Queue value for each call.
func TestQueueValuesThatEachSendOnceSweepOnce(t *testing.T) {
	t.Parallel()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		harness.Must(t, zsync.NewQueue[int](s, "/q").Send(t.Context(), 0))
		n := harness.Requests(srv, func() {
			for i := range 100 {
				harness.Must(t, zsync.NewQueue[int](s, "/q").Send(t.Context(), i))
			}
		})
		if n > 300 { // two reads and a transaction
			t.Errorf("100 Queue values have sent %d requests, want 300", n)
		}
	})
}
