package queue

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// workingOn has a process work on the first element, as how says, until it is killed.
func workingOn(t *testing.T, srv *zktest.Server, how string, opts ...zsync.QueueOption) {
	t.Helper()
	s, kill := mortal(t, srv)
	q := zsync.NewQueue[int](s, "/q", opts...)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	got := make(chan int, 100)
	work := func(v int) {
		got <- v
		<-ctx.Done()
	}
	switch how {
	case "Work":
		go q.Work(ctx, 1, func(_ context.Context, v int) error { work(v); return nil })
	case "All":
		go func() {
			for d, err := range q.All(ctx) {
				if err == nil {
					work(d.Value)
				}
			}
		}()
	case "Receive":
		go func() {
			if d, err := q.Receive(ctx); err == nil {
				work(d.Value)
			}
		}()
	case "Deliveries":
		go func() {
			for d := range q.Deliveries(ctx) {
				work(d.Value)
			}
		}()
	}
	if v := <-got; v != 0 {
		t.Errorf("%s works on %d, want the first", how, v)
	}
	time.Sleep(time.Second)
	kill()
	time.Sleep(time.Minute)
}

// What kills its process takes nothing else to the dead letters.
func TestOnlyWhatWasHandedToAConsumerThatIsKilledWasTried(t *testing.T) {
	for _, c := range []struct {
		how    string
		limit  int
		beside int // what is counted besides: the one that is offered
	}{{"Work", 0, 0}, {"Work", 1, 0}, {"Work", 2, 0}, {"All", 0, 0}, {"All", 1, 0}, {"All", 2, 0}, {"Receive", 1, 0}, {"Deliveries", 0, 1}, {"Deliveries", 1, 1}, {"Deliveries", 3, 1}} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var opts []zsync.QueueOption
			if c.limit > 0 {
				opts = append(opts, zsync.WithMaxAttempts(c.limit))
			}
			q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
			must(t, q.Send(t.Context(), counted(20)...))
			workingOn(t, srv, c.how, opts...)
			tried, left := 0, 20
			for d := range q.Deliveries(within(t, time.Minute)) {
				left--
				switch {
				case d.Value == 0 && d.Attempt != 2:
					t.Errorf("%s, limit %d: the first comes back for attempt %d", c.how, c.limit, d.Attempt)
				case d.Value != 0 && d.Attempt > 1:
					tried++
				}
			}
			if c.limit == 1 {
				left-- // the first
			}
			if buried := left; tried+buried > c.beside {
				t.Errorf("%s, limit %d: %d that were not handed out count as tried, and %d are buried", c.how, c.limit, tried, buried)
			}
		})
	}
}

// killedWith7 kills a process that has received the one element of a queue, which is 7. It
// returns the queue of another.
func killedWith7(t *testing.T, srv *zktest.Server, opts ...zsync.QueueOption) *zsync.Queue[int] {
	t.Helper()
	dead, kill := mortal(t, srv)
	q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
	must(t, q.Send(t.Context(), 7))
	<-zsync.NewQueue[int](dead, "/q", opts...).Deliveries(t.Context())
	time.Sleep(time.Second)
	kill()
	return q
}

// killedWithOneEach kills three processes, each with the one element of a bucket, which is its
// priority, and has the servers let nobody write the first of these buckets.
func killedWithOneEach(t *testing.T, srv *zktest.Server) (q *zsync.Queue[int]) {
	t.Helper()
	opt := zsync.WithPriorities(4)
	q = zsync.NewQueue[int](open(t, srv), "/q", opt)
	var kills []func()
	for i := range 3 {
		must(t, q.SendPriority(t.Context(), i, i))
		s, kill := mortal(t, srv)
		d, err := zsync.NewQueue[int](s, "/q", opt).Receive(t.Context())
		must(t, err)
		if i == 0 {
			setACL(t, srv, "/q/"+strings.Split(d.ID, "/")[0], zk.WorldACL(zk.PermRead|zk.PermDelete|zk.PermAdmin))
		}
		kills = append(kills, kill)
	}
	time.Sleep(time.Second)
	for _, kill := range kills {
		kill()
	}
	time.Sleep(time.Minute)
	return q
}

func TestWhatOneOfTheDeadHadComesBackThoughWhatAnotherHadMayNot(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := killedWithOneEach(t, srv)
		for want := 1; want < 3; want++ {
			if v, ok, err := q.TryRecv(t.Context()); v != want || !ok || err != nil {
				t.Errorf("TryRecv = %v, %v, %v; want %d", v, ok, err, want)
			}
		}
		if v, ok, err := q.TryRecv(t.Context()); ok || err != nil { // it is passed over
			t.Errorf("TryRecv = %v, %v, %v; want nothing", v, ok, err)
		}
	})
}

func TestAnIdleConsumerReceivesAtOnceThoughWhatOneOfTheDeadHadMayNotComeBack(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := killedWithOneEach(t, srv)
		ch := q.Deliveries(t.Context())
		must(t, wantNext(t, ch, 1).Ack(t.Context()))
		must(t, wantNext(t, ch, 2).Ack(t.Context()))
		for i := range 20 {
			time.Sleep(10*time.Minute + time.Duration(i)*777*time.Millisecond)
			began := time.Now()
			must(t, q.SendPriority(t.Context(), 3, i))
			must(t, wantNext(t, ch, i).Ack(t.Context()))
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("an element comes after %v", took)
			}
		}
	})
}

// What a dead consumer of a queue with keys had comes back though there is always more.
func TestWhatTheDeadHadComesBackThoughTheQueueIsNeverEmpty(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		key := zsync.WithKey(func(v int) string { return fmt.Sprint(v % 1000) })
		p := killedWith7(t, srv, key)
		time.Sleep(time.Minute) // longer than the session
		srv.SetLatency(time.Millisecond)
		ctx, stop := context.WithCancel(t.Context())
		defer func() { stop(); time.Sleep(time.Second) }()
		next := 0
		send := func(n int) {
			vs := make([]int, n)
			for i := range vs {
				if next++; next%1000 == 7 {
					next++
				}
				vs[i] = next
			}
			p.Send(ctx, vs...)
		}
		send(200)
		go func() {
			for ctx.Err() == nil {
				send(100) // there is always more
				time.Sleep(10 * time.Millisecond)
			}
		}()
		ch := zsync.NewQueue[int](open(t, srv), "/q", key).Deliveries(ctx)
		start := time.Now()
		n := 0
		for time.Since(start) < 2*time.Minute {
			d := <-ch
			n++
			time.Sleep(time.Millisecond)
			if d.Value == 7 {
				return
			}
			go d.Ack(ctx)
		}
		left, _ := p.Len(t.Context())
		t.Errorf("what the dead consumer had is not back after two minutes, in which %d others were received (%d in the queue)", n, left)
	})
}

// deepBehindTheDead returns a queue, of a session of its own, of whose elements a dead
// consumer has had 7, and nobody has had 8,000 others. A request takes a millisecond.
func deepBehindTheDead(t *testing.T, srv *zktest.Server) *zsync.Queue[int] {
	t.Helper()
	p := killedWith7(t, srv)
	time.Sleep(time.Minute)
	for i := 100; i < 8100; i += 1000 {
		must(t, p.Send(t.Context(), counted(i + 1000)[i:]...))
	}
	srv.SetLatency(time.Millisecond)
	return zsync.NewQueue[int](open(t, srv), "/q")
}

// wantBackBesideMany fails unless what a dead consumer had is among 8,000 that next receives
// one after another from a queue that is never empty.
func wantBackBesideMany(t *testing.T, next func(t *testing.T, q *zsync.Queue[int]) int) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := deepBehindTheDead(t, srv)
		start := time.Now()
		for range 8000 {
			if next(t, q) == 7 {
				return
			}
		}
		t.Errorf("not back within %v, in which 8000 were received", time.Since(start))
	})
}

func TestWhatTheDeadHadComesBackToWhoReceivesOneByOne(t *testing.T) {
	wantBackBesideMany(t, func(t *testing.T, q *zsync.Queue[int]) int {
		d, err := q.Receive(t.Context())
		must(t, err)
		must(t, d.Ack(t.Context()))
		return d.Value
	})
}

func TestWhatTheDeadHadComesBackToWhoTriesAgainAndAgain(t *testing.T) {
	wantBackBesideMany(t, func(t *testing.T, q *zsync.Queue[int]) int {
		v, ok, err := q.TryRecv(t.Context())
		must(t, err)
		if !ok {
			t.Fatal("the queue is empty")
		}
		return v
	})
}

func TestWhatTheDeadHadComesBackToWhoClaimsFromADeepQueueWithoutATurn(t *testing.T) {
	var ch <-chan zsync.Delivery[int]
	wantBackBesideMany(t, func(t *testing.T, q *zsync.Queue[int]) int {
		if ch == nil {
			ch = q.Deliveries(t.Context())
		}
		d := <-ch
		must(t, d.Ack(t.Context()))
		time.Sleep(time.Millisecond)
		return d.Value
	})
}

// What counts an attempt of a large element does not fit into one request with all that
// the dead had besides.
func TestLargeElementOfTheDeadComesBackBesideManyOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const prios = 60
		opts := []zsync.QueueOption{zsync.WithPriorities(prios), zsync.WithCodec(zsync.Raw), zsync.WithPrefetchBytes(64 << 20)}
		dead, kill := mortal(t, srv)
		p := zsync.NewQueue[[]byte](open(t, srv), "/q", opts...)
		for prio := 1; prio < prios; prio++ {
			must(t, p.SendPriority(t.Context(), prio, []byte("x")))
		}
		largestBy(t, func(data []byte) error { return p.SendPriority(t.Context(), 0, data) })
		collect(t, zsync.NewQueue[[]byte](dead, "/q", opts...).Deliveries(t.Context()), prios)
		time.Sleep(time.Second)
		kill()
		time.Sleep(time.Minute)
		s := open(t, srv)
		var got atomic.Int64
		ch := zsync.NewQueue[[]byte](s, "/q", opts...).Deliveries(t.Context())
		go func() {
			for range ch {
				got.Add(1)
			}
		}()
		time.Sleep(10 * time.Minute)
		if n := got.Load(); n != prios || s.Stats().Reconnects > 0 {
			t.Errorf("%d of %d back after ten minutes, %d reconnects", n, prios, s.Stats().Reconnects)
		}
	})
}

// Those who leave before they have looked for the dead have not looked for others.
func TestWhatTheDeadHadComesBackThoughOthersLeaveWhileTheyLook(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := deepBehindTheDead(t, srv)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() {
			for ctx.Err() == nil {
				limited, cancel := context.WithTimeout(ctx, 500*time.Microsecond)
				q.TryRecv(limited) // always too short
				cancel()
			}
		}()
		start := time.Now()
		ch := q.Deliveries(ctx)
		for range 8000 {
			d := <-ch
			if d.Value == 7 {
				return
			}
			time.Sleep(10 * time.Millisecond)
			must(t, d.Ack(t.Context()))
		}
		t.Errorf("in %v what the dead had has not come back", time.Since(start))
	})
}

// A consumer that always finds free elements receives what a killed process had claimed, too: soon after the session of
// the process has expired. How often the consumer searches makes no difference.
func TestAnElementOfAKilledProcessComesBackThoughTheQueueIsNeverEmpty(t *testing.T) {
	for _, pause := range []time.Duration{50 * time.Millisecond, 2 * time.Second} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			dead, kill := mortal(t, srv)
			q := zsync.NewQueue[int](open(t, srv), "/q")
			must(t, q.Send(t.Context(), 0))
			_, err := zsync.NewQueue[int](dead, "/q").Receive(t.Context())
			must(t, err)
			must(t, q.Send(t.Context(), counted(1000)[1:]...))
			began := time.Now()
			time.AfterFunc(5*time.Second, kill)
			for time.Since(began) <= 5*time.Second+2*harness.Timeout {
				v, ok, err := q.TryRecv(t.Context())
				switch must(t, err); {
				case !ok:
					t.Fatalf("every %v: the queue is empty", pause)
				case v == 0:
					return
				}
				time.Sleep(pause)
			}
			t.Errorf("every %v: it has not come back", pause)
		})
	}
}

// The first transaction of a consumer creates its mark and claims elements. If it is sent again because its reply was
// lost, the servers say that the mark exists: the claim was applied.
func TestAClaimIsTheConsumersThoughItsReplyIsLost(t *testing.T) {
	for _, lost := range []zktest.Action{zktest.DropReply, zktest.DropRequest} {
		for n := range 3 {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), 0, 1, 2))
				var sent atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == s.ID() && r.Op == zktest.OpMulti && int(sent.Add(1)) == n+1 {
						return lost
					}
					return zktest.Pass
				})
				q := zsync.NewQueue[int](s, "/q")
				for want := range 3 {
					d, err := q.Receive(within(t, time.Second))
					must(t, err)
					if d.Value != want {
						t.Errorf("%v of transaction %d: received %d, want %d", lost, n, d.Value, want)
					}
					must(t, d.Ack(t.Context()))
				}
			})
		}
	}
}
