package zsync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

func TestContextOfADeliveryEndsWithItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := NewQueue[int](s, "/q")
		other := NewQueue[int](open(t, srv), "/q")
		must(t, other.Send(t.Context(), counted(6)...))
		ctx, cancel := context.WithCancel(t.Context())
		ds := collect(t, q.Deliveries(ctx), 6)
		cancel()
		time.Sleep(time.Second)
		end := []func(d Delivery[int]) error{
			func(d Delivery[int]) error { return d.Ack(t.Context()) },
			func(d Delivery[int]) error { return d.Nack() },
			func(d Delivery[int]) error { return d.NackAfter(time.Hour) },
			func(d Delivery[int]) error { return d.Reject(t.Context(), "bad") },
		}
		for i, f := range end {
			c := ds[i].Context()
			if c.Err() != nil {
				t.Errorf("%d: ended while the claim stands: %v", i, context.Cause(c))
			}
			must(t, f(ds[i]))
			if !errors.Is(context.Cause(c), context.Canceled) || errors.Is(context.Cause(c), ErrLost) {
				t.Errorf("%d: the cause is %v", i, context.Cause(c))
			}
		}
		held := ds[4].Context()
		srv.Partition(s.ID())
		<-held.Done()
		if n := other.q.claimedNow(t); n != 2 {
			t.Errorf("when the context ended %d were claimed, want 2", n)
		}
		wantErr(t, context.Cause(held), ErrLost)
		wantErr(t, context.Cause(ds[5].Context()), ErrLost) // asked for only now
		srv.Heal(s.ID())
		wantErr(t, ds[4].Ack(t.Context()), ErrLost)
	})
}

func TestElementThatIsReturnedForLaterComesThenWithItsHistory(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := NewQueue[int](open(t, srv), "/q"), NewQueue[int](open(t, srv), "/q", WithMaxAttempts(3))
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
		q := NewQueue[int](open(t, srv), "/q", WithRetryBackoff(Backoff{Min: time.Second, Max: time.Minute, Factor: 4}))
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
		wantErr(t, NewQueue[int](q.s, "/q", WithRetryBackoff(Backoff{})).Err(), ErrInvalid)
	})
}

// settlements are the ways in which an element leaves a consumer for another
// place, and where it is then.
var settlements = map[string]func(ctx context.Context, d Delivery[int]) error{
	"NackAfter": func(ctx context.Context, d Delivery[int]) error { return d.NackAfter(time.Second) },
	"Reject":    func(ctx context.Context, d Delivery[int]) error { return d.Reject(ctx, "reason") },
}

func TestElementThatIsMovedIsThereOnceWhateverIsLost(t *testing.T) {
	for name, settle := range settlements {
		for _, lose := range []zktest.Action{zktest.DropRequest, zktest.DropReply, zktest.Fail(codeNoAuth)} {
			for _, expire := range []bool{false, true} {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					q, other := NewQueue[int](s, "/q"), NewQueue[int](open(t, srv), "/q")
					must(t, other.Send(t.Context(), 1, 2, 3))
					ctx, cancel := context.WithCancel(t.Context())
					ds := collect(t, q.Deliveries(ctx), 3)
					cancel()
					time.Sleep(time.Second)
					id, posts := s.ID(), 0
					srv.Intercept(func(r zktest.Request) zktest.Action {
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
		q := NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 7))
		ch := q.Deliveries(t.Context())
		d := <-ch
		must(t, d.Nack())
		time.Sleep(time.Hour)
		d = <-ch
		must(t, d.Reject(t.Context(), "no such customer"+strings.Repeat("\xff", 2000)))
		wantErr(t, d.Ack(t.Context()), ErrNotLocked)
		ds := listDead(t, q)
		if len(ds) != 1 {
			t.Fatalf("%d dead letters", len(ds))
		}
		l := ds[0]
		if !strings.HasPrefix(l.Reason, "no such customer") || len(l.Reason) > maxReason || l.Attempts != 2 || !l.First.Equal(d.Sent) || string(l.Data) != "7" {
			t.Errorf("%+v; sent %v", l, d.Sent)
		}
		must(t, l.Requeue(t.Context()))
		if d := <-ch; d.Value != 7 || d.Attempt != 1 {
			t.Errorf("%+v", d)
		}
		if left := childrenOf(t, q.s, "/q-dead"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		k := NewQueue[int](q.s, "/k", WithQueueLayout(LayoutKazooQueue))
		must(t, k.Send(t.Context(), 1))
		kd := <-k.Deliveries(t.Context())
		wantErr(t, kd.Reject(t.Context(), "x"), ErrInvalid)
		must(t, kd.Ack(t.Context()))
		wantErr(t, Delivery[int]{}.Reject(t.Context(), "x"), ErrInvalid)
		wantErr(t, Delivery[int]{}.NackAfter(1), ErrInvalid)
		wantErr(t, context.Cause(Delivery[int]{}.Context()), ErrInvalid)
	})
}

func TestDeadLettersAreRequeuedAndPurgedByChoice(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q, other := NewQueue[int](open(t, srv), "/q"), NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), counted(9)...))
		ctx, cancel := context.WithCancel(t.Context())
		for i, d := range collect(t, q.Deliveries(ctx), 9) {
			must(t, d.Reject(t.Context(), fmt.Sprint("kind ", i%3)))
		}
		cancel()
		kind := func(k string) func(DeadLetter) bool {
			return func(d DeadLetter) bool { return d.Reason == "kind "+k }
		}
		if n, err := q.RequeueDead(t.Context(), kind("1")); n != 3 || err != nil {
			t.Errorf("RequeueDead = %d, %v", n, err)
		}
		wantLen(t, q, 3)
		n, err := q.PurgeDead(t.Context(), func(d DeadLetter) bool {
			must(t, d.Remove(t.Context())) // as another may in the meantime
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
		if left := childrenOf(t, q.s, "/q-dead"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		_, err = NewQueue[int](nil, "/q").PurgeDead(t.Context(), nil)
		wantErr(t, err, ErrInvalid)
	})
}
