package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A WorkOption changes [Queue.Work].
type WorkOption func(*setup)

// WithWorkTimeout ends the context of each call of [Queue.Work]'s function after d (default: no
// limit). A call that ignores it keeps worker and element.
func WithWorkTimeout(d time.Duration) WorkOption {
	return WorkOption(checked(func(c *setup) { c.timeout = d }, d > 0, "WithWorkTimeout(%v): must be more than 0", d))
}

// maxWorkers limits the goroutines of Work, which all wait for the next element.
const maxWorkers = 10_000

// workBackoff is the delay between attempts of Work, unless WithRetryBackoff sets another one.
var workBackoff = session.RetryPolicy{Min: 100 * time.Millisecond, Max: time.Minute, Factor: 2, Jitter: 0.5}

// Work calls f for each element, in up to n calls at once, at most 10,000, until ctx ends or the
// Session is closed. If f returns nil, Work removes the element. If f returns an error or panics,
// Work logs that and returns the element after a delay. The delay grows with each attempt: as in
// [WithRetryBackoff], by default from 100 ms to a minute, with a Jitter of one half. With the
// layouts of other libraries, there is no delay. After [WithMaxAttempts], or an error of
// [Permanent], the element becomes a dead letter with the error's text.
//
// The context of f has the values of ctx, but does not end with it. When ctx ends, Work takes no
// further element, waits for the calls under way, settles their elements and returns ctx's error.
// The context of f ends with cause [ErrLost] if the claim is lost, and [ErrClosed] at
// [Session.Close].
func (q *Queue[T]) Work(ctx context.Context, n int, f func(ctx context.Context, v T) error, opts ...WorkOption) error {
	var cfg setup
	session.ApplyEach("work", opts, &cfg.err, func(o WorkOption) { o(&cfg) })
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
	c := q.q.Join(ctx, queue.Joining{Hand: true})
	defer context.AfterFunc(c.Ctx, c.Leave)() // the elements that were claimed ahead do not wait for the calls under way
	var workers sync.WaitGroup
	for range min(n, maxWorkers) {
		workers.Go(func() {
			for {
				claim, err := c.Next()
				if err != nil {
					return
				}
				q.work(ctx, q.handed(ctx, claim), f, cfg.timeout)
			}
		})
	}
	workers.Wait()
	c.Leave()
	return opError("work", q.path, q.ending(ctx))
}

func (q *Queue[T]) work(ctx context.Context, d Delivery[T], f func(ctx context.Context, v T) error, timeout time.Duration) {
	claim := d.Context()
	function := q.s.m.Function(q.s.m.FunctionOf(ctx))
	defer function.End() // ends when the element is settled
	call, cancel, rest := session.EndingContext(function.In(context.WithoutCancel(ctx)))
	defer rest()
	defer cancel(nil)
	defer context.AfterFunc(claim, func() {
		if cause := context.Cause(claim); cause != context.Canceled { // if the cause is Canceled, f has settled the element, and continues
			cancel(cause)
		}
	})()
	defer function.AfterClose(cancel)()
	if timeout > 0 {
		var stop context.CancelFunc
		call, stop = context.WithTimeout(call, timeout)
		defer stop()
	}
	call = context.WithValue(call, (*WorkDelivery)(nil), WorkDelivery(atWork[T]{d}))
	var closed error
	permanent := false
	text, err := protect(func() error {
		if closed = function.Begin(); closed != nil {
			return closed
		}
		err := f(call, d.Value)
		permanent = errors.As(err, new(*permanentError))
		return err
	})
	// ctx may have ended, but the work is done. So Work waits for the result of the settlement
	// while the session lasts. After a loss, only a later session can find the result. Work waits
	// for that result until ctx ends.
	_, lost := d.claim.Withdrawn()
	settling, stop := session.WhileEither(ctx, lost)
	defer stop()
	if err != nil && closed == nil {
		q.s.m.Log.Error("zsync: work on an element has failed", "path", q.path, "element", d.ID, "attempt", d.Attempt, "err", err)
	}
	var op string
	switch {
	case context.Cause(claim) == context.Canceled: // f has settled the element
		return
	case closed != nil:
		op, err = "return", d.settle(settling, "return", queue.Settlement{Fate: queue.Return, Untried: true})
	case err == nil:
		op, err = "ack", d.Ack(settling)
	default:
		op, err = q.failed(settling, d, text, permanent)
	}
	if err != nil && !errors.Is(err, ErrNotLocked) { // with ErrNotLocked, f has settled the element meanwhile
		q.s.m.Log.Warn("zsync: cannot settle an element that was worked on", "path", q.path, "element", d.ID, "op", op, "err", err)
	}
}

// The method `failed` settles an element after Work's function has returned an error with the text.
func (q *Queue[T]) failed(ctx context.Context, d Delivery[T], text string, permanent bool) (op string, _ error) {
	switch n := q.cfg.MaxAttempts; {
	case q.cfg.queueLayout != LayoutZsync:
		return "nack", d.NackAfter(0)
	case permanent, n > 0 && d.Attempt >= n:
		return "reject", d.Reject(ctx, text)
	}
	return "nack", d.NackAfter(cmp.Or((*session.RetryPolicy)(q.cfg.backoff), &workBackoff).Delay(d.Attempt))
}

// Permanent returns an error with the text of err. It makes [Queue.Work] give up: the element
// becomes a dead letter at once. Permanent(nil) is nil. In the layouts of other libraries, Work
// ignores Permanent and tries again.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ error } // errors.Is compares pointers, as it might panic if it compared the errors

func (e *permanentError) Unwrap() error { return e.error }

// A WorkDelivery is a [Delivery] without its Value, for the function that [Queue.Work] calls. If
// the function settles it, Work does not. Its ID is the same at each attempt.
type WorkDelivery interface {
	ID() string   // see [Delivery].ID
	Attempt() int // see [Delivery].Attempt
	Sent() time.Time
	NackAfter(delay time.Duration) error
	Reject(ctx context.Context, reason string) error
	Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)
}

// DeliveryFrom returns the delivery for which [Queue.Work] calls its function, or false. ctx is the
// context of that function, or is derived from it.
func DeliveryFrom(ctx context.Context) (d WorkDelivery, ok bool) {
	d, ok = ctx.Value((*WorkDelivery)(nil)).(WorkDelivery)
	return d, ok
}

// An atWork turns a Delivery into a WorkDelivery: instead of the Delivery's fields, it has methods
// of the same names.
type atWork[T any] struct{ Delivery[T] }

func (d atWork[T]) ID() string      { return d.Delivery.ID }
func (d atWork[T]) Attempt() int    { return d.Delivery.Attempt }
func (d atWork[T]) Sent() time.Time { return d.Delivery.Sent }

// The function `protect` calls f, and returns its error with the error's text. If f or a method of the
// error panics or ends its goroutine, protect returns an error that says so.
func protect(f func() error) (text string, err error) {
	over := make(chan struct{})
	fail := func(why string) { text, err = why, errors.New(why) }
	go func() {
		defer close(over)
		defer func() {
			if r := recover(); r != nil {
				fail(fmt.Sprintf("panic: %v\n%s", r, debug.Stack()))
			}
		}()
		fail("the function has ended its goroutine") // unless it returns
		said, failed := "", f()
		if failed != nil {
			said = failed.Error()
		}
		text, err = said, failed
	}()
	<-over
	return text, err
}

// Receive waits for an element and returns it; the consumer settles it as in [Queue.Deliveries].
// It claims nothing ahead, so it suits slow or rare work: each call costs 4 to 15 requests. If
// ctx ends first, nothing is claimed.
func (q *Queue[T]) Receive(ctx context.Context) (Delivery[T], error) {
	ds, err := q.receive(ctx, 1)
	if err != nil {
		return Delivery[T]{}, opError("receive", q.path, err)
	}
	return ds[0], nil
}

// ReceiveN is [Queue.Receive] for up to n elements: it waits for the first, and returns it with
// those that it can claim at once, in order, at most 1,000.
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
	ctx, end := q.queueing(ctx, "receive", n)
	start := time.Now()
	c := q.q.Join(ctx, queue.Joining{Hand: true, Limit: n})
	claim, err := c.Next()
	for ; claim != nil; claim = c.Poll() {
		ds = append(ds, q.delivery(claim)) // before Handed: if the Session is closed then, the Item has no Value
		if claim.Handed(); len(ds) == n {
			break
		}
	}
	c.Leave()
	err = waited(ctx, q.s.m, start, err)
	end(len(ds), err)
	return ds, err
}

// TrySend is [Queue.Send], but returns [ErrFull] if Send would wait for room.
func (q *Queue[T]) TrySend(ctx context.Context, vs ...T) error {
	return opError("trysend", q.path, q.send(ctx, queue.Batch{Priority: q.middle(), NoWait: true}, vs))
}
