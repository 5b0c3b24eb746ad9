package queue

import (
	"context"
	"errors"
	"fmt"
	"go/scanner"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

func TestContextOfADeliveryEndsWithItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		other := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, other.Send(t.Context(), counted(6)...))
		ctx, cancel := context.WithCancel(t.Context())
		ds := collect(t, q.Deliveries(ctx), 6)
		cancel()
		time.Sleep(time.Second)
		end := []func(d zsync.Delivery[int]) error{
			func(d zsync.Delivery[int]) error { return d.Ack(t.Context()) },
			func(d zsync.Delivery[int]) error { return d.Nack() },
			func(d zsync.Delivery[int]) error { return d.NackAfter(time.Hour) },
			func(d zsync.Delivery[int]) error { return d.Reject(t.Context(), "bad") },
		}
		for i, f := range end {
			c := ds[i].Context()
			if c.Err() != nil {
				t.Errorf("%d: ended while the claim stands: %v", i, context.Cause(c))
			}
			must(t, f(ds[i]))
			if !errors.Is(context.Cause(c), context.Canceled) || errors.Is(context.Cause(c), zsync.ErrLost) {
				t.Errorf("%d: the cause is %v", i, context.Cause(c))
			}
		}
		held := ds[4].Context()
		srv.Partition(s.ID())
		<-held.Done()
		if n := claimedNow(t, other); n != 2 {
			t.Errorf("when the context ended %d were claimed, want 2", n)
		}
		wantErr(t, context.Cause(held), zsync.ErrLost)
		wantErr(t, context.Cause(ds[5].Context()), zsync.ErrLost) // asked for only now
		srv.Heal(s.ID())
		wantErr(t, ds[4].Ack(t.Context()), zsync.ErrLost)
	})
}

func TestElementThatIsReturnedForLaterComesThenWithItsHistory(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(3))
		must(t, a.Send(t.Context(), 1, 2))
		ch := b.Deliveries(t.Context())
		first := <-ch
		sent := first.Sent
		for attempt := 1; attempt <= 3; attempt++ {
			if first.Value != 1 || first.Attempt != attempt || !first.Sent.Equal(sent) {
				t.Fatalf("attempt %d: %+v; sent at %v", attempt, first, sent)
			}
			start := time.Now()
			must(t, first.NackAfter(10*time.Second))
			if attempt == 1 {
				d := <-ch // is not held up
				if d.Value != 2 || time.Since(start) > time.Second {
					t.Fatalf("%+v after %v", d, time.Since(start))
				}
				must(t, d.Ack(t.Context()))
			}
			if attempt == 3 {
				break
			}
			first = <-ch
			if d := time.Since(start); d < 10*time.Second || d > 11*time.Second {
				t.Errorf("came back after %v", d)
			}
		}
		time.Sleep(time.Minute)
		ds := listDead(t, a)
		if len(ds) != 1 || ds[0].Attempts != 3 || !strings.Contains(ds[0].Reason, "3 times") || !ds[0].First.Equal(sent) {
			t.Errorf("dead letters: %+v", ds)
		}
		wantLen(t, a, 0)
	})
}

func TestNackBacksOffFromAttemptToAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q", zsync.WithRetryBackoff(zsync.Backoff{Min: time.Second, Max: time.Minute, Factor: 4}))
		must(t, q.Send(t.Context(), 1))
		ch := q.Deliveries(t.Context())
		d := <-ch
		for _, want := range []time.Duration{time.Second, 4 * time.Second, 16 * time.Second, time.Minute, time.Minute} {
			start := time.Now()
			must(t, d.Nack())
			d = <-ch
			if got := time.Since(start); got < want || got > want+100*time.Millisecond {
				t.Errorf("attempt %d came after %v, want %v", d.Attempt, got, want)
			}
		}
		start := time.Now()
		must(t, d.NackAfter(0))
		if d = <-ch; d.Attempt != 7 || time.Since(start) > 100*time.Millisecond {
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(start))
		}
		wantErr(t, zsync.NewQueue[int](s, "/q", zsync.WithRetryBackoff(zsync.Backoff{})).Err(), zsync.ErrInvalid)
	})
}

// settlements are the ways in which an element leaves a consumer for another
// place, and where it is then.
var settlements = map[string]func(ctx context.Context, d zsync.Delivery[int]) error{
	"NackAfter": func(ctx context.Context, d zsync.Delivery[int]) error { return d.NackAfter(time.Second) },
	"Reject":    func(ctx context.Context, d zsync.Delivery[int]) error { return d.Reject(ctx, "reason") },
}

func TestElementThatIsMovedIsThereOnceWhateverIsLost(t *testing.T) {
	for name, settle := range settlements {
		for _, lose := range []zktest.Action{zktest.DropRequest, zktest.DropReply, zktest.Fail(codeNoAuth)} {
			for _, expire := range []bool{false, true} {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
					must(t, other.Send(t.Context(), 1, 2, 3))
					ctx, cancel := context.WithCancel(t.Context())
					ds := collect(t, q.Deliveries(ctx), 3)
					cancel()
					time.Sleep(time.Second)
					id, posts := s.ID(), 0
					oneByOne(srv, func(r zktest.Request) zktest.Action {
						if isPost(r) {
							if posts++; posts == 1 {
								if expire {
									go srv.Expire(id)
								}
								return lose
							}
						}
						return zktest.Pass
					})
					err := settle(t.Context(), ds[1])
					srv.Intercept(nil)
					time.Sleep(time.Minute)
					dead := len(listDead(t, other))
					n, err2 := other.Len(t.Context())
					must(t, err2)
					if n+dead != 3 {
						t.Errorf("%s, %v, expire %v: %d in the queue and %d dead letters, want 3 together; the error was %v", name, lose, expire, n, dead, err)
					}
					if err == nil && (name == "Reject") != (dead == 1) {
						t.Errorf("%s, %v, expire %v: no error, and %d dead letters", name, lose, expire, dead)
					}
				})
			}
		}
	}
}

func TestRejectSaysWhyInTheDeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 7))
		ch := q.Deliveries(t.Context())
		d := <-ch
		must(t, d.Nack())
		time.Sleep(time.Hour)
		d = <-ch
		must(t, d.Reject(t.Context(), "no such customer"+strings.Repeat("\xff", 2000)))
		wantErr(t, d.Ack(t.Context()), zsync.ErrNotLocked)
		ds := listDead(t, q)
		if len(ds) != 1 {
			t.Fatalf("%d dead letters", len(ds))
		}
		l := ds[0]
		if !strings.HasPrefix(l.Reason, "no such customer") || len(l.Reason) > 1000 || l.Attempts != 2 || !l.First.Equal(d.Sent) || string(l.Data) != "7" {
			t.Errorf("%+v; sent %v", l, d.Sent)
		}
		requeued(t, q, l)
		if d := <-ch; d.Value != 7 || d.Attempt != 1 {
			t.Errorf("%+v", d)
		}
		if left := childrenOf(t, s, "/q-dead"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		k := zsync.NewQueue[int](s, "/k", zsync.WithQueueLayout(zsync.LayoutKazooQueue))
		must(t, k.Send(t.Context(), 1))
		kd := <-k.Deliveries(t.Context())
		wantErr(t, kd.Reject(t.Context(), "x"), zsync.ErrInvalid)
		must(t, kd.Ack(t.Context()))
		wantErr(t, zsync.Delivery[int]{}.Reject(t.Context(), "x"), zsync.ErrInvalid)
		wantErr(t, zsync.Delivery[int]{}.NackAfter(1), zsync.ErrInvalid)
		wantErr(t, context.Cause(zsync.Delivery[int]{}.Context()), zsync.ErrInvalid)
	})
}

func TestDeadLettersAreRequeuedAndPurgedByChoice(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), counted(9)...))
		ctx, cancel := context.WithCancel(t.Context())
		for i, d := range collect(t, q.Deliveries(ctx), 9) {
			must(t, d.Reject(t.Context(), fmt.Sprint("kind ", i%3)))
		}
		cancel()
		kind := func(k string) func(zsync.DeadLetter) bool {
			return func(d zsync.DeadLetter) bool { return d.Reason == "kind "+k }
		}
		if n, err := q.RequeueDead(t.Context(), kind("1")); n != 3 || err != nil {
			t.Errorf("RequeueDead = %d, %v", n, err)
		}
		wantLen(t, q, 3)
		n, err := q.PurgeDead(t.Context(), func(d zsync.DeadLetter) bool {
			removed(t, other, d) // as another may in the meantime
			return kind("2")(d)
		})
		if n != 0 || err != nil {
			t.Errorf("PurgeDead = %d, %v", n, err)
		}
		if left := listDead(t, q); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
		must(t, q.Send(t.Context(), 1))
		ctx, cancel = context.WithCancel(t.Context())
		for _, d := range collect(t, q.Deliveries(ctx), 4) {
			must(t, d.Reject(t.Context(), ""))
		}
		cancel()
		if n, err := other.PurgeDead(t.Context(), nil); n != 4 || err != nil {
			t.Errorf("PurgeDead = %d, %v", n, err)
		}
		if left := childrenOf(t, s, "/q-dead"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		_, err = zsync.NewQueue[int](nil, "/q").PurgeDead(t.Context(), nil)
		wantErr(t, err, zsync.ErrInvalid)
	})
}

func TestWorkAcknowledgesWhatSucceedsAndBacksOffFromWhatDoesNot(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(4))
		must(t, q.Send(t.Context(), counted(30)...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		calls, at := make(map[int]int), make(map[int][]time.Time)
		busy, most := 0, 0
		done := make(chan error, 1)
		go func() {
			done <- q.Work(ctx, 4, func(ctx context.Context, v int) error {
				mu.Lock()
				calls[v]++
				at[v] = append(at[v], time.Now())
				n := calls[v]
				busy++
				most = max(most, busy)
				mu.Unlock()
				defer func() { mu.Lock(); busy--; mu.Unlock() }()
				time.Sleep(10 * time.Millisecond)
				switch {
				case v == 3 && n == 1:
					return errors.New("not yet")
				case v == 4 && n == 1:
					panic("at the disco")
				case v == 5 && n == 1:
					runtime.Goexit()
				case v == 6:
					return errors.New("never")
				}
				return nil
			})
		}()
		time.Sleep(10 * time.Minute)
		wantLen(t, q, 0)
		cancel()
		wantErr(t, <-done, context.Canceled)
		for v := range 30 {
			want := 1
			switch v {
			case 3, 4, 5:
				want = 2
			case 6:
				want = 4
			}
			if calls[v] != want {
				t.Errorf("%d calls for %d, want %d", calls[v], v, want)
			}
		}
		if most != 4 {
			t.Errorf("%d calls at once, want 4", most)
		}
		for i, d := range at[6] {
			if i > 1 && d.Sub(at[6][i-1]) <= at[6][i-1].Sub(at[6][i-2])/2 {
				t.Errorf("no back-off: %v", at[6])
			}
		}
		if ds := listDead(t, q); len(ds) != 1 || ds[0].Attempts != 4 {
			t.Errorf("dead letters: %+v", ds)
		}
	})
}

func TestDeadLetterOfWorkHasTheLastErrorItsTimeAndItsAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithMaxAttempts(3))
		must(t, q.Send(t.Context(), "fails", "panics"))
		ctx, cancel := context.WithCancel(t.Context())
		attempts, last := map[string]int{}, map[string]time.Time{}
		done := async(func() error {
			return q.Work(ctx, 1, func(_ context.Context, v string) error {
				attempts[v]++
				last[v] = time.Now()
				if v == "panics" {
					panic(fmt.Sprint("at attempt ", attempts[v]))
				}
				return fmt.Errorf("no answer at attempt %d", attempts[v])
			})
		})
		time.Sleep(time.Minute)
		cancel()
		wantErr(t, <-done, context.Canceled)
		reasons := map[string]string{"fails": "no answer at attempt 3", "panics": "panic: at attempt 3\n"}
		for _, d := range listDead(t, q) {
			v := strings.Trim(string(d.Data), `"`)
			if !strings.HasPrefix(d.Reason, reasons[v]) || d.Attempts != 3 {
				t.Errorf("%s: %d attempts, %q", v, d.Attempts, d.Reason)
			}
			if late := d.Since.Sub(last[v]); late > time.Second || late < -time.Millisecond {
				t.Errorf("%s: a dead letter %v after its last attempt", v, late)
			}
			delete(reasons, v)
		}
		if len(reasons) > 0 {
			t.Errorf("no dead letters: %v", reasons)
		}
	})
}

// A workError that is a nil pointer is an error, and its methods panic.
type workError struct{ cause error }

func (e *workError) Error() string { return e.cause.Error() }
func (e *workError) Unwrap() error { return e.cause }

// A tongueTied error can be unwrapped, but has no text.
type tongueTied struct{}

func (tongueTied) Error() string { panic("no words") }

func TestAnErrorWhoseMethodsPanicCountsAsAPanicOfWorksFunction(t *testing.T) {
	for name, err := range map[string]error{"nil dereference": (*workError)(nil), "no words": tongueTied{}} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(2))
			must(t, q.Send(t.Context(), 1))
			wantErr(t, q.Work(within(t, time.Minute), 1, func(context.Context, int) error { return err }), context.DeadlineExceeded)
			ds := listDead(t, q)
			if len(ds) != 1 || ds[0].Attempts != 2 || !strings.HasPrefix(ds[0].Reason, "panic: ") {
				t.Errorf("%s: the dead letters are %+v", name, ds)
			}
		})
	}
}

func TestWorkMakesAPermanentErrorADeadLetterAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		cause := errors.New("no such customer")
		if err := zsync.Permanent(cause); zsync.Permanent(nil) != nil || !errors.Is(err, cause) || errors.Unwrap(err) != cause || err.Error() != cause.Error() {
			t.Error("Permanent hides its error")
		}
		if odd := zsync.Permanent(scanner.ErrorList{}); !errors.Is(odd, odd) { // of a type that cannot be compared
			t.Error("an error of Permanent is not itself")
		}
		must(t, q.Send(t.Context(), 1, 2))
		calls := map[int]int{}
		ctx, cancel := context.WithCancel(t.Context())
		done := async(func() error {
			return q.Work(ctx, 1, func(_ context.Context, v int) error {
				if calls[v]++; v == 1 && calls[v] == 1 {
					return errors.New("not yet")
				}
				return fmt.Errorf("order %d: %w", v, zsync.Permanent(cause))
			})
		})
		time.Sleep(10 * time.Minute)
		cancel()
		wantErr(t, <-done, context.Canceled)
		wantLen(t, q, 0)
		got := map[string]int{}
		for _, d := range listDead(t, q) {
			got[d.Reason] = d.Attempts
		}
		if want := map[string]int{"order 1: no such customer": 2, "order 2: no such customer": 1}; !maps.Equal(got, want) {
			t.Errorf("dead letters and their attempts: %v, want %v", got, want)
		}

		k := zsync.NewQueue[int](s, "/k", zsync.WithQueueLayout(zsync.LayoutKazooQueue))
		must(t, k.Send(t.Context(), 1))
		ctx, cancel = context.WithCancel(t.Context())
		n := 0
		err := k.Work(ctx, 1, func(context.Context, int) error {
			if n++; n == 3 {
				cancel()
			}
			return zsync.Permanent(cause)
		})
		wantErr(t, err, context.Canceled)
		wantLen(t, k, 1)
	})
}

func TestFunctionOfWorkReachesItsDelivery(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q, out := zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(3)), zsync.NewQueue[int](s, "/out")
		if d, ok := zsync.DeliveryFrom(t.Context()); ok {
			t.Errorf("a delivery without Work: %v", d)
		}
		must(t, q.Send(t.Context(), 1, 2, 3, 4))
		sent := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ids, attempts := map[int]string{}, map[int]int{}
		done := async(func() error {
			return q.Work(ctx, 1, func(ctx context.Context, v int) error {
				d, ok := zsync.DeliveryFrom(context.WithValue(ctx, t, t))
				attempts[v]++
				if !ok || d.Attempt() != attempts[v] || ids[v] != "" && d.ID() != ids[v] || sent.Sub(d.Sent()).Abs() > time.Second {
					t.Fatalf("%d: %v, attempt %d of %q, sent at %v; the ID was %q", v, ok, d.Attempt(), d.ID(), d.Sent(), ids[v])
				}
				ids[v] = d.ID()
				switch {
				case v == 1:
					must(t, d.Reject(ctx, "never"))
					return errors.New("never")
				case v == 2:
					must(t, d.Reject(ctx, "not now"))
					return nil
				case v == 3:
					_, err := d.Txn(ctx, out.SendOp(30))
					must(t, err)
				case attempts[v] == 1:
					must(t, d.NackAfter(time.Hour))
				}
				return nil
			})
		})
		time.Sleep(2 * time.Hour)
		cancel()
		wantErr(t, <-done, context.Canceled)
		wantLen(t, q, 0)
		wantLen(t, out, 1)
		got := map[string]string{}
		for _, d := range listDead(t, q) {
			got[string(d.Data)] = d.Reason
		}
		if want := map[string]string{"1": "never", "2": "not now"}; !maps.Equal(got, want) {
			t.Errorf("dead letters: %v", got)
		}
		if want := map[int]int{1: 1, 2: 1, 3: 1, 4: 2}; !maps.Equal(attempts, want) {
			t.Errorf("attempts: %v", attempts)
		}
	})
}

// The function gives up while its Txn is under way, and the servers then refuse the Txn.
func TestElementWhoseTxnIsRefusedAfterWorkHasReturnedItComesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if slices.ContainsFunc(r.Ops, func(op zktest.Request) bool { return op.Path == "/missing" }) {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		err := q.Work(ctx, 1, func(ctx context.Context, v int) error {
			d, _ := zsync.DeliveryFrom(ctx)
			if attempts = d.Attempt(); attempts == 2 {
				cancel()
				return nil
			}
			_, err := d.Txn(ctx, &zk.DeleteRequest{Path: "/missing", Version: -1})
			wantErr(t, err, context.DeadlineExceeded)
			return err
		}, zsync.WithWorkTimeout(100*time.Millisecond))
		wantErr(t, err, context.Canceled)
		wantLen(t, q, 0)
	})
}

// A caller without a limit in mind names the largest number.
func TestWorkNeedsNoGoroutineForEachOfVeryManyCalls(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(ctx, 1, 2, 3))
		before, running := runtime.NumGoroutine(), make(chan int, 3)
		ended := harness.Async(func() error {
			return q.Work(ctx, 30_000, func(_ context.Context, v int) error {
				running <- v
				<-ctx.Done()
				return nil
			})
		})
		collect(t, running, 3)
		if n := runtime.NumGoroutine() - before; n > 11_000 {
			t.Errorf("%d goroutines", n)
		}
		cancel()
		wantErr(t, <-ended, context.Canceled)
	})
}

func TestWorkDrainsWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), counted(10)...))
		ctx, cancel := context.WithCancel(t.Context())
		type key struct{}
		start := time.Now()
		var finished atomic.Int64
		err := q.Work(context.WithValue(ctx, key{}, 1), 2, func(c context.Context, v int) error {
			if c.Value(key{}) == nil {
				t.Error("the values of the context are lost")
			}
			cancel()
			select {
			case <-c.Done():
				t.Errorf("%d: %v", v, context.Cause(c))
			case <-time.After(time.Minute):
			}
			finished.Add(1)
			return nil
		})
		wantErr(t, err, context.Canceled)
		n := int(finished.Load())
		if n < 1 || n > 2 || time.Since(start) < time.Minute {
			t.Errorf("%d calls in %v", n, time.Since(start))
		}
		wantLen(t, q, 10-n)
	})
}

func TestCallsOfWorkEndWithTheirClaimAndTheirDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		causes := make(chan error, 3)
		calls := 0
		go q.Work(ctx, 1, func(c context.Context, v int) error {
			if calls++; calls == 3 {
				return nil
			}
			<-c.Done()
			causes <- context.Cause(c)
			return c.Err()
		}, zsync.WithWorkTimeout(time.Minute))
		wantErr(t, <-causes, context.DeadlineExceeded)
		time.Sleep(10 * time.Second) // the second call has begun
		srv.Expire(s.ID())
		wantErr(t, <-causes, zsync.ErrLost)
		time.Sleep(10 * time.Minute)
		wantLen(t, q, 0)
		cancel()
		f := func(context.Context, int) error { return nil }
		for _, err := range []error{q.Work(t.Context(), 0, f), q.Work(t.Context(), 1, nil), q.Work(t.Context(), 1, f, nil), q.Work(t.Context(), 1, f, zsync.WithWorkTimeout(0)), (&zsync.Queue[int]{}).Work(t.Context(), 1, f)} {
			if !errors.Is(err, zsync.ErrInvalid) {
				t.Errorf("%v, want ErrInvalid", err)
			}
		}
	})
}

func TestReceiveClaimsWhatIsAskedForAndNoMore(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		a, b := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](s, "/q")
		srv.SetLatency(time.Millisecond)
		must(t, a.Send(t.Context(), counted(50)...))
		next := 0
		var held []zsync.Delivery[int]
		for range 5 {
			d, err := b.Receive(t.Context())
			must(t, err)
			if d.Value != next {
				t.Errorf("received %d, want %d", d.Value, next)
			}
			next++
			held = append(held, d)
		}
		if n := claimedNow(t, a); n != 5 {
			t.Errorf("%d are claimed, want 5", n)
		}
		ds, err := b.ReceiveN(t.Context(), 20)
		must(t, err)
		for _, d := range ds {
			if d.Value != next {
				t.Errorf("received %d, want %d", d.Value, next)
			}
			next++
		}
		if len(ds) != 20 || claimedNow(t, a) != 25 {
			t.Errorf("received %d, and %d are claimed; want 20 and 25", len(ds), claimedNow(t, a))
		}
		for _, d := range append(held, ds...) {
			must(t, d.Ack(t.Context()))
		}
		ds, err = b.ReceiveN(t.Context(), 100)
		if len(ds) != 25 || err != nil {
			t.Errorf("received %d, %v; want the 25 that are left", len(ds), err)
		}
		for _, d := range ds {
			must(t, d.Ack(t.Context()))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = b.Receive(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		must(t, a.Send(t.Context(), 7))
		if v, ok, err := a.TryRecv(t.Context()); v != 7 || !ok || err != nil {
			t.Errorf("TryRecv = %d, %v, %v", v, ok, err)
		}
		_, err = b.ReceiveN(t.Context(), 0)
		wantErr(t, err, zsync.ErrInvalid)
		_, err = (&zsync.Queue[int]{}).Receive(t.Context())
		wantErr(t, err, zsync.ErrInvalid)
		must(t, s.Close())
		_, err = b.Receive(t.Context())
		wantErr(t, err, zsync.ErrClosed)
	})
}

func TestReceiveThatIsCancelledKeepsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		srv.SetLatency(time.Millisecond)
		got := 0
		for i := range 40 {
			must(t, a.Send(t.Context(), i))
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*700*time.Microsecond)
			d, err := b.Receive(ctx)
			cancel()
			if err == nil {
				got++
				must(t, d.Ack(t.Context()))
			}
		}
		if got == 0 || got == 40 {
			t.Errorf("%d of 40 were received: nothing was cancelled, or everything", got)
		}
		rest := 0
		for ; ; rest++ {
			if _, ok, err := a.TryRecv(t.Context()); err != nil || !ok {
				break
			}
		}
		if got+rest != 40 {
			t.Errorf("received %d and found %d, want 40 together", got, rest)
		}
	})
}

func TestTrySendIsErrFullWhereSendWouldWait(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(3))
		must(t, q.TrySend(t.Context(), 1, 2))
		start := time.Now()
		wantErr(t, q.TrySend(t.Context(), 3, 4), zsync.ErrFull)
		must(t, q.TrySend(t.Context(), 3))
		wantErr(t, q.TrySend(t.Context(), 4), zsync.ErrFull)
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v", d)
		}
		wantErr(t, q.TrySend(t.Context(), 1, 2, 3, 4), zsync.ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(3)).Send(ctx, 5, 6) }()
		time.Sleep(time.Second)
		if _, ok, err := q.TryRecv(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		cancel()
		<-waits
		time.Sleep(time.Second)
		must(t, q.TrySend(t.Context(), 7))
		wantLen(t, q, 3)
		free := zsync.NewQueue[int](s, "/free")
		must(t, free.TrySend(t.Context(), 1))
		wantErr(t, (&zsync.Queue[int]{}).TrySend(t.Context(), 1), zsync.ErrInvalid)
	})
}

func TestPrefetchIsBoundedInBytes(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a := zsync.NewQueue[[]byte](open(t, srv), "/q", zsync.WithCodec(zsync.Raw))
		b := zsync.NewQueue[[]byte](open(t, srv), "/q", zsync.WithCodec(zsync.Raw), zsync.WithPrefetchBytes(100_000))
		for range 60 {
			must(t, a.Send(t.Context(), make([]byte, 10_000)))
		}
		ch := b.Recv(t.Context())
		collect(t, ch, 40) // quickly
		time.Sleep(time.Second)
		if n := claimedNow(t, a); n > 10 || n < 2 {
			t.Errorf("%d elements of 10 kB are claimed ahead; want about 100 kB", n)
		}
		collect(t, ch, 20)
	})
}

func TestStatsCountsWhatIsInTheQueueAndWhoHasIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, zsync.WithOwner("worker"))
		q := zsync.NewQueue[int](s, "/q", zsync.WithPriorities(2))
		other := zsync.NewQueue[int](open(t, srv, zsync.WithOwner("other")), "/q")
		if st, err := other.Stats(t.Context()); err != nil || st.Ready != 0 || !st.Oldest.IsZero() {
			t.Errorf("of no queue: %+v, %v", st, err)
		}
		must(t, q.SendPriority(t.Context(), 1, counted(10)...))
		first := time.Now()
		time.Sleep(time.Hour)
		must(t, q.SendPriority(t.Context(), 0, 1, 2, 3, 4, 5, 6))
		must(t, q.SendAt(t.Context(), time.Now().Add(time.Hour), 1, 2))
		ds, err := q.ReceiveN(t.Context(), 4)
		must(t, err)
		d, err := other.Receive(t.Context())
		must(t, err)
		must(t, ds[3].Reject(t.Context(), "no"))
		must(t, ds[2].NackAfter(time.Minute))
		st, err := other.Stats(t.Context())
		must(t, err)
		if st.Ready != 11 || st.Claimed != 3 || st.Delayed != 3 || st.Dead != 1 || st.Oldest.Sub(first).Abs() > time.Second {
			t.Errorf("%+v; the first was sent at %v", st, first)
		}
		if want := []zsync.QueueHolder{{Owner: "worker", Claimed: 2}, {Owner: "other", Claimed: 1}}; !slices.Equal(st.Holders, want) {
			t.Errorf("holders %+v, want %+v", st.Holders, want)
		}
		must(t, d.Nack())
		k := zsync.NewQueue[int](s, "/k", zsync.WithQueueLayout(zsync.LayoutKazooQueue))
		must(t, k.Send(t.Context(), 1, 2))
		if st, err := k.Stats(t.Context()); err != nil || st.Ready != 2 || st.Oldest.IsZero() {
			t.Errorf("in kazoo's layout: %+v, %v", st, err)
		}
		_, err = (&zsync.Queue[int]{}).Stats(t.Context())
		wantErr(t, err, zsync.ErrInvalid)
	})
}

// A slowCodec takes half a minute to decode what slow says.
type slowCodec struct{ slow string }

func (slowCodec) Marshal(v any) ([]byte, error) { return []byte(v.(string)), nil }

func (c slowCodec) Unmarshal(data []byte, v any) error {
	if string(data) == c.slow {
		time.Sleep(30 * time.Second)
	}
	*v.(*string) = string(data)
	return nil
}

func TestWhatIsReceivedHasItsValueThoughTheSessionIsLostMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[string](s, "/q", zsync.WithCodec(slowCodec{"two"}))
		must(t, q.Send(t.Context(), "one", "two"))
		time.AfterFunc(time.Second, func() { srv.Expire(s.ID()) })
		ds, err := q.ReceiveN(t.Context(), 2)
		must(t, err)
		for i, want := range []string{"one", "two"}[:len(ds)] {
			if ds[i].Value != want {
				t.Errorf("delivery %d is %q, want %q", i, ds[i].Value, want)
			}
		}
		if !errors.Is(context.Cause(ds[0].Context()), zsync.ErrLost) {
			t.Error("the first is not lost, so this shows nothing")
		}
	})
}

// The servers are gone when the function returns, so the result of its settlement can come only in a
// later session.
func TestWorkReturnsWithItsContextThoughTheServersAreGoneBeforeItsElementIsSettled(t *testing.T) {
	for name, result := range map[string]error{"acknowledged": nil, "failed": errors.New("fails"), "rejected": zsync.Permanent(errors.New("fails"))} {
		for _, lostReply := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost reply %v", name, lostReply), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(3))
					must(t, q.Send(t.Context(), 1))
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var gone time.Time
					err := q.Work(ctx, 1, func(context.Context, int) error {
						gone = time.Now()
						if !lostReply {
							srv.Stop()
							cancel()
							return result
						}
						srv.Intercept(func(r zktest.Request) zktest.Action {
							if r.Op != zktest.OpMulti {
								return zktest.Pass
							}
							srv.Intercept(nil)
							time.AfterFunc(time.Millisecond, srv.Stop)
							time.AfterFunc(2*time.Millisecond, cancel)
							return zktest.DropReply
						})
						return result
					})
					wantErr(t, err, context.Canceled)
					if d := time.Since(gone); d > harness.Timeout+time.Second {
						t.Errorf("Work has returned %v after the servers were gone, want the session timeout at most", d)
					}
					srv.Restart()
					time.Sleep(time.Hour)
					n, err := q.Len(t.Context())
					must(t, err)
					dead := 0
					for _, err := range q.Dead(t.Context()) {
						must(t, err)
						dead++
					}
					if n+dead > 1 || n+dead == 0 && !(lostReply && result == nil) {
						t.Errorf("%d elements and %d dead letters are left", n, dead)
					}
				})
			})
		}
	}
}
