package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// collect takes n values from ch.
func collect[T any](t testing.TB, ch <-chan T, n int) []T {
	t.Helper()
	return harness.Collect(t, ch, n)
}

func wantLen[T any](t testing.TB, q *zsync.Queue[T], want int) {
	t.Helper()
	suite.WantLen(t, q, want)
}

func eventuallyEmpty[T any](t testing.TB, q *zsync.Queue[T]) {
	t.Helper()
	eventually(t, func() error {
		if n, err := q.Len(t.Context()); n != 0 || err != nil {
			return fmt.Errorf("Len = %d, %v; want 0", n, err)
		}
		return nil
	})
}

func TestQueueKeepsTheOrderOfSends(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b := zsync.NewQueue[int](connect(), "/q"), zsync.NewQueue[int](connect(), "/q")
		const n = 2500
		must(t, a.Send(t.Context(), counted(n)[:1200]...))
		for i := 1200; i < 1300; i++ {
			must(t, a.Send(t.Context(), i))
		}
		must(t, a.Send(t.Context(), counted(n)[1300:]...))
		wantLen(t, b, n)
		ctx, cancel := context.WithCancel(t.Context())
		ch := b.Recv(ctx)
		if got := collect(t, ch, n); !slices.Equal(got, counted(n)) {
			t.Errorf("received %v", got)
		}
		eventuallyEmpty(t, b)
		cancel()
		if _, ok := <-ch; ok {
			t.Error("received more than was sent")
		}
	})
}

func TestQueueTryRecvTakesTheFirstOrNothing(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b := zsync.NewQueue[string](connect(), "/q"), zsync.NewQueue[string](connect(), "/q")
		if v, ok, err := b.TryRecv(t.Context()); ok || err != nil {
			t.Fatalf("TryRecv of an empty queue = %q, %v, %v", v, ok, err)
		}
		must(t, a.Send(t.Context(), "one", "two"))
		if v, ok, err := b.Peek(t.Context()); v != "one" || !ok || err != nil {
			t.Fatalf("Peek = %q, %v, %v; want one", v, ok, err)
		}
		for _, want := range []string{"one", "two"} {
			if v, ok, err := b.TryRecv(t.Context()); v != want || !ok || err != nil {
				t.Fatalf("TryRecv = %q, %v, %v; want %q", v, ok, err, want)
			}
		}
		if v, ok, err := b.TryRecv(t.Context()); ok || err != nil {
			t.Fatalf("TryRecv of an empty queue = %q, %v, %v", v, ok, err)
		}
	})
}

func TestQueueDeliveriesStayUntilAckAndReturnByNack(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b := zsync.NewQueue[int](connect(), "/q"), zsync.NewQueue[int](connect(), "/q")
		must(t, a.Send(t.Context(), 1, 2, 3))
		ch := b.Deliveries(t.Context())
		ds := collect(t, ch, 3)
		wantLen(t, a, 3)
		must(t, ds[0].Ack(t.Context()))
		wantLen(t, a, 2)
		must(t, ds[0].Ack(t.Context())) // it is removed, as it was asked
		must(t, ds[1].Nack())
		wantErr(t, ds[1].Ack(t.Context()), zsync.ErrNotLocked)
		d := <-ch
		if d.Value != 2 || d.Attempt != 2 || ds[1].Attempt != 1 || d.ID != ds[1].ID {
			t.Errorf("delivered %+v again after %+v", d, ds[1])
		}
		must(t, d.Ack(t.Context()))
		must(t, ds[2].Ack(t.Context()))
		wantLen(t, a, 0)
		wantErr(t, ds[2].Nack(), zsync.ErrNotLocked)
	})
}

func TestQueueInFlushesWhenItIsClosed(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b := zsync.NewQueue[int](connect(), "/q"), zsync.NewQueue[int](connect(), "/q")
		in, done := a.In(t.Context())
		const n = 3000
		go func() {
			for i := range n {
				in <- i
			}
			close(in)
		}()
		got := collect(t, b.Recv(t.Context()), n)
		if !slices.Equal(got, counted(n)) {
			t.Errorf("received %v", got)
		}
		if err := <-done; err != nil {
			t.Errorf("done yields %v", err)
		}
		if _, ok := <-done; ok {
			t.Error("done is not closed")
		}
	})
}

func TestQueueElementClaimedByACancelledConsumerGoesBackAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(10)), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, a.Send(t.Context(), counted(100)...))
		ctx, cancel := context.WithCancel(t.Context())
		ch := b.Recv(ctx)
		got := collect(t, ch, 40) // quick enough to claim as many as it may
		time.Sleep(time.Second)   // and then it stops
		if n := claimedNow(t, a); n < 2 || n > 10 {
			t.Errorf("a consumer that has stopped reading holds back %d elements, want at most its prefetch of 10", n)
		}
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti {
				return zktest.Delay(10 * time.Millisecond)
			}
			return zktest.Pass
		})
		before := time.Now()
		cancel()
		if _, ok := <-ch; ok {
			t.Error("the cancelled channel still gives elements")
		}
		if d := time.Since(before); d > 20*time.Millisecond {
			t.Errorf("it took %v until the channel was closed", d)
		}
		if n := claimedNow(t, a); n > 0 {
			t.Errorf("%d elements that the cancelled consumer had claimed are not back", n)
		}
		if got = append(got, collect(t, c.Recv(t.Context()), 60)...); !slices.Equal(got, counted(100)) {
			t.Errorf("received %v", got)
		}
	})
}

// claimedNow returns how many elements of a queue are claimed.
func claimedNow[T any](t testing.TB, q *zsync.Queue[T]) int {
	t.Helper()
	st, err := q.Stats(t.Context())
	must(t, err)
	return st.Claimed
}

// mortal connects a session that can be killed, as with its process.
func mortal(t testing.TB, srv *zktest.Server) (s *zsync.Session, kill func()) {
	var dead atomic.Bool
	s = open(t, srv, zsync.WithDialer(harness.DialUnless(&dead, srv)))
	return s, func() {
		dead.Store(true)
		srv.Disconnect(s.ID())
	}
}

func TestQueueElementsOfADeadConsumerGoBack(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		dead, kill := mortal(t, srv)
		a, b, c := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](dead, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, a.Send(t.Context(), counted(50)...))
		got := collect(t, b.Recv(t.Context()), 10)
		synctest.Wait()
		kill()
		rest := collect(t, c.Recv(t.Context()), 40)
		if got = append(got, rest...); !slices.Equal(sorted(got), counted(50)) {
			t.Errorf("received %v", got)
		}
	})
}

func sorted(vs []int) []int {
	vs = slices.Clone(vs)
	slices.Sort(vs)
	return vs
}

func TestAckAfterTheSessionWasLostIsErrLostAndTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		first := open(t, srv)
		a, b, c := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](first, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, a.Send(t.Context(), 7))
		ctx, cancel := context.WithCancel(t.Context())
		d := <-b.Deliveries(ctx)
		cancel()
		next := c.Deliveries(t.Context())
		synctest.Wait()
		select {
		case d := <-next:
			t.Fatalf("delivered %v to two", d)
		default:
		}
		srv.Expire(first.ID())
		d2 := <-next
		if d2.Value != 7 || d2.Attempt != 2 {
			t.Errorf("delivered %+v, want 7 a second time", d2)
		}
		wantErr(t, d.Ack(t.Context()), zsync.ErrLost)
		wantErr(t, d.Nack(), zsync.ErrLost)
		wantLen(t, a, 1)
		must(t, d2.Ack(t.Context()))
		wantLen(t, a, 0)
	})
}

func TestQueueSendIsAppliedOnceWhateverHappensToItsReply(t *testing.T) {
	for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		for _, expire := range []bool{false, true} {
			for k := range 3 { // at the first Send, which makes things, and later
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					q := zsync.NewQueue[int](s, "/q")
					other := zsync.NewQueue[int](open(t, srv), "/q")
					for i := range k {
						must(t, q.Send(t.Context(), i))
					}
					var once sync.Once
					srv.Intercept(func(r zktest.Request) zktest.Action {
						a := zktest.Pass
						if r.Op == zktest.OpMulti && r.Session == s.ID() {
							once.Do(func() {
								a = fault
								if expire {
									id := s.ID()
									time.AfterFunc(0, func() { srv.Expire(id) })
								}
							})
						}
						return a
					})
					must(t, q.Send(t.Context(), k))
					must(t, q.Send(t.Context(), k+1))
					got := collect(t, other.Recv(t.Context()), k+2)
					time.Sleep(3 * time.Minute) // what no transaction has used for a minute is deleted
					eventuallyEmpty(t, other)
					if !slices.Equal(got, counted(k+2)) {
						t.Errorf("received %v", got)
					}
					if n := childrenOf(t, s, "/q-receipts"); len(n) != 0 {
						t.Errorf("receipts are left: %v", n)
					}
				})
			}
		}
	}
}

func TestQueuePoisonGoesToTheDeadLettersAndStopsNobody(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		raw := zsync.NewQueue[[]byte](connect(), "/q", zsync.WithCodec(zsync.Raw))
		var told atomic.Int32
		s := connect(zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if e.Kind == zsync.EventDead {
				told.Add(1)
			}
		})))
		q := zsync.NewQueue[int](s, "/q")
		must(t, raw.Send(t.Context(), []byte("1"), []byte("{poison"), []byte("2"), []byte("more")))
		if got := collect(t, q.Recv(t.Context()), 2); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("received %v", got)
		}
		var dead []zsync.DeadLetter
		eventually(t, func() error {
			dead = nil
			for d, err := range q.Dead(t.Context()) {
				must(t, err)
				dead = append(dead, d)
			}
			if len(dead) != 2 || told.Load() != 2 {
				return fmt.Errorf("dead letters %v, reported %d times", dead, told.Load())
			}
			return nil
		})
		if !bytes.Equal(dead[0].Data, []byte("{poison")) {
			t.Errorf("dead letter %q", dead[0].Data)
		}
		removed(t, q, dead[0])
		requeued(t, q, dead[1])
		if again, err := suite.Requeue(t.Context(), q, dead[1]); again || err != nil {
			t.Errorf("a letter that is not there is put back: %v, %v", again, err)
		}
	})
}

func TestQueueElementJustBelowTheLimitPassesAndOneAboveIsRefused(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		q := zsync.NewQueue[[]byte](connect(), "/q", zsync.WithCodec(zsync.Raw))
		wantErr(t, q.Send(t.Context(), make([]byte, 1<<20)), zsync.ErrTooLarge)
		wantErr(t, q.Send(t.Context(), make([]byte, 600<<10), make([]byte, 600<<10)), zsync.ErrTooLarge)
		wantLen(t, q, 0)
		big := bytes.Repeat([]byte("x"), 1<<20-1500)
		must(t, q.Send(t.Context(), big))
		if got := <-q.Recv(t.Context()); !bytes.Equal(got, big) {
			t.Error("a large element came back different")
		}
		eventuallyEmpty(t, q)
	})
}

func TestQueueMaxAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(3))
		must(t, q.Send(t.Context(), 1, 2))
		ch := q.Deliveries(t.Context())
		for try := 1; try <= 3; try++ {
			d := <-ch
			for d.Value != 1 {
				must(t, d.Ack(t.Context()))
				d = <-ch
			}
			if d.Attempt != try {
				t.Errorf("attempt %d, want %d", d.Attempt, try)
			}
			must(t, d.Nack())
		}
		time.Sleep(time.Second)
		n := 0
		for d, err := range q.Dead(t.Context()) {
			must(t, err)
			if n++; string(d.Data) != "1" {
				t.Errorf("dead letter %q", d.Data)
			}
		}
		if n != 1 {
			t.Errorf("%d dead letters", n)
		}
	})
}

func TestQueueAttemptIsCountedWhenTheConsumerDies(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		dying := open(t, srv)
		a, b := zsync.NewQueue[int](dying, "/q", zsync.WithMaxAttempts(5)), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, b.Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		<-a.Deliveries(ctx)
		cancel()
		srv.Partition(dying.ID())
		if d := <-b.Deliveries(t.Context()); d.Attempt != 2 {
			t.Errorf("attempt %d, want 2", d.Attempt)
		}
	})
}

func TestQueuePriorityAndDelay(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[string](s, "/q", zsync.WithPriorities(3), zsync.WithPrefetch(1))
		must(t, q.SendPriority(t.Context(), 2, "low"))
		must(t, q.Send(t.Context(), "middle"))
		must(t, q.SendPriority(t.Context(), 0, "high"))
		must(t, q.SendAt(t.Context(), time.Now().Add(time.Minute), "later"))
		must(t, q.SendAt(t.Context(), time.Now().Add(time.Second), "sooner"))
		wantErr(t, q.SendPriority(t.Context(), 3, "x"), zsync.ErrInvalid)
		wantLen(t, q, 5)
		start := time.Now()
		ch := q.Recv(t.Context())
		if got := collect(t, ch, 4); !slices.Equal(got, []string{"high", "middle", "low", "sooner"}) {
			t.Errorf("received %v", got)
		}
		if d := time.Since(start); d < time.Second-time.Millisecond || d > 1100*time.Millisecond {
			t.Errorf("received the delayed element after %v", d)
		}
		<-ch
		if d := time.Since(start); d < time.Minute-time.Millisecond || d > time.Minute+time.Second {
			t.Errorf("received the last after %v", d)
		}
	})
}

func TestQueueMaxLenMakesSendWait(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(3)), zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(3))
		wantErr(t, a.Send(t.Context(), 1, 2, 3, 4), zsync.ErrInvalid)
		must(t, a.Send(t.Context(), 1, 2, 3))
		wantErr(t, b.Send(within(t, time.Second), 9), context.DeadlineExceeded)
		sent := async(func() error { return b.Send(t.Context(), 4, 5) })
		pendingStill(t, sent)
		if v, ok, err := a.TryRecv(t.Context()); v != 1 || !ok || err != nil {
			t.Fatalf("TryRecv = %v, %v, %v", v, ok, err)
		}
		pendingStill(t, sent)
		if v, ok, err := a.TryRecv(t.Context()); v != 2 || !ok || err != nil {
			t.Fatalf("TryRecv = %v, %v, %v", v, ok, err)
		}
		must(t, <-sent)
		wantLen(t, a, 3)
	})
}

func TestQueueClearAndAll(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		q := zsync.NewQueue[int](connect(), "/q")
		must(t, q.Send(t.Context(), counted(1500)...))
		if n, err := q.Clear(t.Context()); n != 1500 || err != nil {
			t.Fatalf("Clear = %d, %v", n, err)
		}
		wantLen(t, q, 0)
		must(t, q.Send(t.Context(), 1, 2, 3))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		enough := errors.New("enough")
		var got []int
		for d, err := range q.All(ctx) {
			if err != nil {
				wantErr(t, err, enough, context.Canceled)
				break
			}
			got = append(got, d.Value)
			must(t, d.Ack(t.Context()))
			if len(got) == 3 {
				cancel(enough)
			}
		}
		if !slices.Equal(got, []int{1, 2, 3}) {
			t.Errorf("received %v", got)
		}
	})
}

func TestOneElementWakesOneOfAThousandIdleConsumers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var got atomic.Int32
		for range 50 {
			q := zsync.NewQueue[int](open(t, srv, longSession), "/q")
			for range 20 {
				ch := q.Recv(t.Context())
				go func() {
					for range ch {
						got.Add(1)
					}
				}()
			}
			synctest.Wait()
		}
		q := zsync.NewQueue[int](open(t, srv, longSession), "/q")
		must(t, q.Send(t.Context(), 0))
		time.Sleep(3 * time.Minute) // the receipt that no Send uses is deleted
		idle := srv.Counts()
		time.Sleep(time.Hour)
		if d := srv.Counts().Sub(idle); d.Total() != 0 || d.Notifications != 0 {
			t.Errorf("1,000 idle consumers cost %v and %d notifications in an hour", d.Requests, d.Notifications)
		}
		for i := range 5 {
			before := srv.Counts()
			must(t, q.Send(t.Context(), i))
			time.Sleep(time.Minute)
			d := srv.Counts().Sub(before)
			if d.Notifications != 1 {
				t.Errorf("one element caused %d notifications, want 1", d.Notifications)
			}
			if got.Load() != int32(i)+2 {
				t.Errorf("%d elements received, want %d", got.Load(), i+2)
			}
		}
	}, longSessions)
}

func TestQueueBacklogCostsNoMoreForEachElementThanAShortQueue(t *testing.T) {
	t.Parallel()
	cost := func(t *testing.T, backlog int) (perElement float64) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			q := zsync.NewQueue[int](open(t, srv), "/q")
			in, done := q.In(t.Context())
			for i := range backlog {
				in <- i
			}
			close(in)
			must(t, <-done)
			before := srv.Counts()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ch := q.Recv(ctx)
			const n = 1000
			for i := range n {
				if v := <-ch; v != i {
					t.Fatalf("received %d, want %d", v, i)
				}
			}
			cancel()
			synctest.Wait()
			perElement = float64(srv.Counts().Sub(before).Total()) / n
		})
		return perElement
	}
	short, long := cost(t, 1000), cost(t, 20_000)
	if short > 1.3 || long > 1.1*short+0.1 {
		t.Errorf("an element costs %.2f requests with 1,000 waiting and %.2f with 20,000", short, long)
	}
}

func TestQueueChannelsCloseWithTheSessionAndGiveBack(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](o, "/q")
		must(t, q.Send(t.Context(), counted(10)...))
		ch, ds := q.Recv(t.Context()), q.Deliveries(t.Context())
		<-ch
		<-ds
		s.Close()
		for range ch {
		}
		for range ds {
		}
		if names := childrenOf(t, o, "/q-live"); len(names) != 0 {
			t.Errorf("claims are left after Close: %v", names)
		}
		collect(t, other.Recv(t.Context()), 9)
		eventuallyEmpty(t, other)
	})
}

func TestQueueRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for name, q := range map[string]*zsync.Queue[int]{
			"nil session":  zsync.NewQueue[int](nil, "/q"),
			"relative":     zsync.NewQueue[int](s, "q"),
			"nil option":   zsync.NewQueue[int](s, "/q", nil),
			"nil codec":    zsync.NewQueue[int](s, "/q", zsync.WithCodec(nil)),
			"prefetch":     zsync.NewQueue[int](s, "/q", zsync.WithPrefetch(0)),
			"length":       zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(-1)),
			"attempts":     zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(0)),
			"priorities":   zsync.NewQueue[int](s, "/q", zsync.WithPriorities(0)),
			"layout":       zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(9)),
			"limit abroad": zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(zsync.LayoutKazooQueue), zsync.WithMaxLen(3)),
		} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			wantErr(t, q.Send(ctx, 1), zsync.ErrInvalid)
			wantErr(t, q.SendPriority(ctx, 0, 1), zsync.ErrInvalid)
			wantErr(t, q.SendAt(ctx, time.Now(), 1), zsync.ErrInvalid)
			_, _, err := q.TryRecv(ctx)
			wantErr(t, err, zsync.ErrInvalid)
			_, _, err = q.Peek(ctx)
			wantErr(t, err, zsync.ErrInvalid)
			_, err = q.Len(ctx)
			wantErr(t, err, zsync.ErrInvalid)
			_, err = q.Clear(ctx)
			wantErr(t, err, zsync.ErrInvalid)
			for _, err := range q.All(ctx) {
				wantErr(t, err, zsync.ErrInvalid)
			}
			for _, err := range q.Dead(ctx) {
				wantErr(t, err, zsync.ErrInvalid)
			}
			in, done := q.In(ctx)
			in <- 1
			close(in)
			wantErr(t, <-done, zsync.ErrInvalid)
			wantErr(t, q.Err(), zsync.ErrInvalid)
			if _, ok := <-q.Recv(ctx); ok {
				t.Errorf("%s: received an element", name)
			}
			wantErr(t, zsync.Delivery[int]{}.Ack(t.Context()), zsync.ErrInvalid)
			wantErr(t, zsync.Delivery[int]{}.Nack(), zsync.ErrInvalid)
			if q.Path() == "" || !strings.HasSuffix(q.Path(), "q") {
				t.Errorf("Path = %q", q.Path())
			}
		}
	})
}
