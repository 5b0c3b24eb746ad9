package zsync

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A WorkOption changes [Queue.Work].
type WorkOption func(*workConfig)

type workConfig struct {
	timeout time.Duration
	err     error
}

// WithWorkTimeout gives each call of the function of [Queue.Work] a deadline,
// d after it has begun: its context ends then. The function must heed that; a
// call that goes on keeps its worker and its element.
func WithWorkTimeout(d time.Duration) WorkOption {
	return func(c *workConfig) {
		if d <= 0 {
			c.err = session.Invalid("WithWorkTimeout(%v): must be more than 0", d)
		}
		c.timeout = d
	}
}

// workBackoff is how Work backs off without WithRetryBackoff.
var workBackoff = session.Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Factor: 2, Jitter: 0.5}

// Work calls f for each element, n calls at once, until ctx ends or the Session
// is closed. When f returns nil the element is removed; when f returns an error,
// or panics, that is logged, and the element is returned, to be delivered again
// after a while that grows from attempt to attempt: as [WithRetryBackoff] says,
// or from 100 ms to a minute. (In the layouts of other libraries it is returned at
// once.) Each element is worked on at least once; see [WithMaxAttempts] for those
// that never succeed.
//
// The context of f has the values of ctx, but does not end with it: when ctx
// ends Work takes no more elements, waits for the calls under way, settles their
// elements and returns ctx's error. It ends when the claim is lost, with cause
// [ErrLost] (see [Delivery.Context]), with [WithWorkTimeout], and with cause [ErrClosed]
// when [Session.Close] is called, which waits for f.
func (q *Queue[T]) Work(ctx context.Context, n int, f func(ctx context.Context, v T) error, opts ...WorkOption) error {
	var cfg workConfig
	for i, o := range opts {
		if o == nil {
			cfg.err = session.Invalid("work option %d is nil", i)
			continue
		}
		o(&cfg)
	}
	switch {
	case q.misuse() != nil:
		return opError("work", q.path, q.misuse())
	case n < 1:
		return opError("work", q.path, session.Invalid("%d workers: must be at least 1", n))
	case f == nil:
		return opError("work", q.path, session.Invalid("the function is nil"))
	case cfg.err != nil:
		return opError("work", q.path, cfg.err)
	}
	c := q.join(ctx, queue.Joining{Hand: true})
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for {
				claim, err := c.Next()
				if err != nil {
					return
				}
				q.work(ctx, q.handed(ctx, claim), f, cfg)
			}
		})
	}
	workers.Wait()
	c.Leave()
	return opError("work", q.path, q.ending(ctx))
}

// work works on one element.
func (q *Queue[T]) work(ctx context.Context, d Delivery[T], f func(ctx context.Context, v T) error, cfg workConfig) {
	claim := d.Context()
	function := q.s.m.Function(q.s.m.FunctionOf(ctx))
	defer function.End() // when the element is settled
	call, cancel, rest := endingContext(function.In(context.WithoutCancel(ctx)))
	defer rest()
	defer cancel(nil)
	defer context.AfterFunc(claim, func() { cancel(context.Cause(claim)) })()
	defer function.AfterClose(cancel)()
	if cfg.timeout > 0 {
		var stop context.CancelFunc
		call, stop = context.WithTimeout(call, cfg.timeout)
		defer stop()
	}
	var closed error
	err := protect(func() error {
		if closed = function.Begin(); closed != nil {
			return closed
		}
		return f(call, d.Value)
	})
	op := "ack"
	if closed != nil {
		op, err = "return", d.claim.Settle(context.WithoutCancel(ctx), queue.Settlement{Fate: queue.Return, Untried: true})
	} else if err == nil {
		// ctx may have ended; the work is done all the same.
		err = d.claim.Settle(context.WithoutCancel(ctx), queue.Settlement{Fate: queue.Remove})
	} else {
		q.s.m.Log.Error("zsync: work on an element has failed", "path", q.path, "element", d.ID, "attempt", d.Attempt, "err", err)
		var after time.Duration
		if q.cfg.layout == LayoutZsync {
			b := workBackoff
			if r := q.cfg.retry; r != nil {
				b = session.Backoff(*r)
			}
			after = b.Delay(d.Attempt)
		}
		op, err = "nack", d.nack(after)
	}
	if err != nil {
		q.s.m.Log.Warn("zsync: cannot settle an element that was worked on", "path", q.path, "element", d.ID, "op", op, "err", err)
	}
}

// protect calls f, and makes an error of its panic, or of the end of its
// goroutine.
func protect(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("the function has ended its goroutine")
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
			done <- err
		}()
		err = f()
	}()
	return <-done
}

// Receive waits for an element and returns it, to be settled as one of
// [Queue.Deliveries]. Nothing is claimed ahead, so it suits work that is slow or
// seldom; for a busy queue use Deliveries. If ctx ends first nothing is claimed.
//
// # Cost
//
// About 15 requests.
func (q *Queue[T]) Receive(ctx context.Context) (Delivery[T], error) {
	ds, err := q.receive(ctx, 1)
	if err != nil {
		return Delivery[T]{}, opError("receive", q.path, err)
	}
	return ds[0], nil
}

// ReceiveN is [Queue.Receive] for up to n elements: it waits for the first, and
// returns what else could be claimed with it, in order. [WithPrefetch] does not
// limit n; what is claimed at once is at most 1,000.
func (q *Queue[T]) ReceiveN(ctx context.Context, n int) ([]Delivery[T], error) {
	ds, err := q.receive(ctx, n)
	return ds, opError("receive", q.path, err)
}

func (q *Queue[T]) receive(ctx context.Context, n int) (ds []Delivery[T], err error) {
	switch {
	case q.misuse() != nil:
		return nil, q.misuse()
	case n < 1:
		return nil, session.Invalid("%d elements: must be at least 1", n)
	}
	ctx, end := q.tracers().queueing(ctx, "receive", q.path, n)
	err = q.q.Receive(ctx, n, func(claim queue.Claim) { ds = append(ds, q.delivery(claim)) })
	end(err)
	return ds, err
}

// ErrFull is returned by [Queue.TrySend] when there is no room.
var ErrFull = queue.ErrFull

// TrySend is [Queue.Send], but where Send waits because of [WithMaxLen] it
// returns [ErrFull], and stores nothing.
//
// # Cost
//
// That of Send, and that of [WithMaxLen].
func (q *Queue[T]) TrySend(ctx context.Context, vs ...T) error {
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: queue.Middle, NoWait: true}, vs))
}
