package zsync

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/queue/foreign"
	"github.com/zsync/zsync/internal/session"
)

// A Queue is a Go channel that processes share: each element has one receiver.
//
//	err := q.Send(ctx, job)
//
//	for job := range q.Recv(ctx) { … }     // removed when the program takes it
//	for d := range q.Deliveries(ctx) { … } // removed by d.Ack, returned by d.Nack
//	err := q.Work(ctx, 4, do)              // removed when do returns nil
//
// An element is stored once, delivered at least once and removed once. A single consumer gets
// elements in the order in which the servers stored them, priority 0 first: docs/queue.md.
//
// # Loss
//
// Sends and consumers continue in the next session. Other consumers can claim the elements of the
// session that has ended. Then Ack returns [ErrLost], or says that the outcome is unknown.
//
// # Errors
//
// Send returns [ErrTooLarge] if its elements exceed one request of 1 MiB. TrySend returns [ErrFull]
// if there is no room ([WithMaxLen]).
//
// # Cost
//
// Send and Ack take 1 round trip, which goroutines share. An idle queue costs nothing; a new
// element wakes one consumer.
//
// # Znodes
//
// path is persistent. An element is a znode in a bucket below it, of about 1,000 elements. Names of
// other znodes begin with path, too: docs/interop.md.
type Queue[T any] struct {
	made
	cfg setup
	key func(T) string // the function of WithKey, or nil
	q   queue.Engine
}

// NewQueue returns the Queue at path. If an argument is bad, [Queue.Err] returns the reason, and
// the channels of [Queue.Recv] and Deliveries are closed.
func NewQueue[T any](s *Session, path string, opts ...QueueOption) *Queue[T] {
	cfg := newQueueSetup(opts)
	key, ok := cfg.key.(func(T) string)
	if cfg.err == nil && cfg.key != nil && !ok {
		cfg.err = session.Invalid("WithKey: a %T, want a %T", cfg.key, key)
	}
	q := &Queue[T]{made: made{s: s, path: path, err: checkNew(s, path, cfg.err)}, cfg: cfg, key: key}
	if q.misuse() != nil {
		return q
	}
	engine := cfg.Settings
	engine.Path, engine.Decode = path, func(data []byte) (any, error) { return codec.Decode[T](cfg.codec, data) }
	if q.q = queue.New(s.m, engine); cfg.queueLayout != LayoutZsync {
		q.q = foreign.New(s.m, engine, cfg.queueLayout.String())
	}
	return q
}

// Err returns the error of a bad argument of NewQueue, or nil.
func (q *Queue[T]) Err() error { return opError("newqueue", q.path, q.misuse()) }

// Send stores vs at the end of the queue, in order, all or none, and returns when they are stored.
// With [WithMaxLen], it waits for room. Goroutines that use one Queue value share transactions;
// their elements keep the order of the calls. All of vs, plus about 150 bytes for each element,
// must fit into one request of 1 MiB. Otherwise, Send returns [ErrTooLarge]: use [Queue.In].
func (q *Queue[T]) Send(ctx context.Context, vs ...T) error {
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: q.middle()}, vs))
}

// SendPriority is Send with a priority, from 0 (delivered first) to n-1, where n is the number of
// [WithPriorities]. Send uses the middle priority.
func (q *Queue[T]) SendPriority(ctx context.Context, priority int, vs ...T) error {
	if q.misuse() == nil && (priority < 0 || priority >= q.cfg.Priorities) {
		return opError("send", q.path, session.Invalid("priority %d; the queue has %d, from 0 (WithPriorities)", priority, q.cfg.Priorities))
	}
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: priority}, vs))
}

// SendAt is Send for elements that no consumer receives before t, by the consumer's clock. At t,
// they come before the other elements of their priority, in the order of their times. A t in the
// past means now.
func (q *Queue[T]) SendAt(ctx context.Context, t time.Time, vs ...T) error {
	if q.misuse() == nil && q.cfg.queueLayout != LayoutZsync {
		return opError("send", q.path, session.Invalid("SendAt needs zsync's own layout, not %v", q.cfg.queueLayout))
	}
	if now := time.Now(); t.Before(now) {
		t = now
	}
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: q.middle(), Due: t}, vs))
}

func (q *Queue[T]) send(ctx context.Context, b queue.Batch, vs []T) error {
	if q.misuse() != nil {
		return q.misuse()
	}
	if err := cmp.Or(session.CtxErr(ctx), q.s.m.Failure()); err != nil || len(vs) == 0 {
		return err
	}
	b, err := q.fill(b, vs)
	if err != nil {
		return err
	}
	ctx, end := q.queueing(ctx, "send", len(vs))
	if err = q.s.m.Explained(ctx, q.q.Send(ctx, b)); errors.Is(err, queue.ErrKnown) {
		end(0, nil) // SendID has succeeded, and sent nothing
	} else {
		end(len(vs), err)
	}
	return err
}

// The method `middle` returns the priority of elements for which the program names none.
func (q *Queue[T]) middle() int { return (q.cfg.Priorities - 1) / 2 }

func (q *Queue[T]) fill(b queue.Batch, vs []T) (queue.Batch, error) {
	for i, v := range vs {
		data, err := codec.Encode(q.cfg.codec, v)
		if err != nil {
			return b, fmt.Errorf("element %d: %w", i, err)
		}
		b.Data = append(b.Data, data)
		if q.key != nil {
			b.Keys = append(b.Keys, q.key(v))
		}
	}
	return b, nil
}

// Recv returns a channel of elements. An element is removed when the program takes it; if the
// session ends right after that, any consumer can receive it again. When ctx ends, elements that
// were claimed ahead ([WithPrefetch]) return to their places, usually before the channel is closed.
// The channel is also closed when the Session is closed, or if an argument was bad ([Queue.Err]).
// Recv logs errors that retrying cannot cure, and keeps trying; [Queue.All] yields them.
func (q *Queue[T]) Recv(ctx context.Context) <-chan T {
	return consume(ctx, q, queue.Joining{}, value[T])
}

// The function `value` returns the value of a claimed element. If the element could not be
// decoded, it returns zero.
func value[T any](claim queue.Item) T {
	v, _ := claim.Element().Value.(T) // if T is an interface, the Value may be nil
	return v
}

// A Delivery is a claimed element, in the queue until the consumer settles it.
//
//	for d := range q.Deliveries(ctx) {
//		if err := do(d.Context(), d.Value); err != nil {
//			d.Nack() // delivered again
//			continue
//		}
//		err = d.Ack(ctx) // removed
//	}
type Delivery[T any] struct {
	Value   T
	Attempt int       // 1 at the first delivery; a Nack adds 1, and so does a lost claim (see [WithMaxAttempts])
	Sent    time.Time // when it was stored, by the servers' clock
	ID      string    // unique within the queue, and the same at each attempt
	claim   queue.Item
	q       *Queue[T] // the queue of claim
}

// Deliveries returns a channel of elements that the consumer must settle. An element is delivered
// again if Nack returns it, or its claim is lost. Received elements can still be settled after the
// end of ctx, and [WithPrefetch] does not count them. The channel is closed like [Queue.Recv]'s.
func (q *Queue[T]) Deliveries(ctx context.Context) <-chan Delivery[T] {
	return consume(ctx, q, queue.Joining{Hand: true}, q.delivery)
}

func (q *Queue[T]) delivery(claim queue.Item) Delivery[T] {
	e := claim.Element()
	return Delivery[T]{Value: value[T](claim), Attempt: e.Attempts + 1, Sent: e.Sent, ID: e.ID, claim: claim, q: q}
}

// All is [Queue.Deliveries] as an iterator that also yields errors. An error that retrying does not
// cure comes with an empty Delivery, whose ID is "", and All continues. At the end, All yields the
// error of ctx, or [ErrClosed]. The error of an element that cannot be decoded comes with a Delivery
// that has only [Delivery.Data]; unless the loop settles it, the element becomes a dead letter.
func (q *Queue[T]) All(ctx context.Context) iter.Seq2[Delivery[T], error] {
	return func(yield func(Delivery[T], error) bool) {
		if q.misuse() != nil {
			yield(Delivery[T]{}, opError("all", q.path, q.misuse()))
			return
		}
		c := q.q.Join(ctx, queue.Joining{Hand: true, Odd: true})
		defer c.Leave()                           // when the loop has ended, the elements that were claimed ahead are back in the queue
		defer context.AfterFunc(c.Ctx, c.Leave)() // also while the program works on an element
		for {
			claim, err := c.Next()
			if err != nil {
				over := session.IsClosed(c.Ctx.Done()) || q.s.m.Failure() != nil
				if over {
					err = q.ending(ctx)
				}
				if !yield(Delivery[T]{}, opError("all", q.path, err)) || over {
					return
				}
				continue
			}
			more := func() bool {
				fault := claim.Element().Fault
				if fault != nil {
					defer claim.SetAside() // also if the loop panics
				}
				return yield(q.handed(ctx, claim), opError("all", q.path, fault))
			}()
			if !more {
				return
			}
		}
	}
}

func (q *Queue[T]) ending(ctx context.Context) error {
	return cmp.Or(session.CtxErr(ctx), q.s.m.Failure(), ErrClosed)
}

// The method `handed` returns a claimed element as a Delivery for the program, and reports it to
// the tracer.
func (q *Queue[T]) handed(ctx context.Context, claim queue.Item) Delivery[T] {
	d := q.delivery(claim)
	claim.Handed()
	q.received(ctx)
	return d
}

// The function `consume` returns a channel. It sends to the channel each element that a consumer
// claims, converted by wrap. It closes the channel when ctx ends or the Session is closed.
func consume[T, D any](ctx context.Context, q *Queue[T], o queue.Joining, wrap func(queue.Item) D) <-chan D {
	ch := make(chan D)
	if q.misuse() != nil {
		if q.s.misuse() == nil {
			q.s.m.Log.Error("zsync: cannot consume", "path", q.path, "err", q.misuse())
		}
		close(ch)
		return ch
	}
	q.s.m.Spawn(func() {
		defer close(ch)
		c := q.q.Join(ctx, o)
		defer c.Leave()
		for {
			claim, err := c.Next()
			if err != nil {
				return
			}
			down, over := claim.Withdrawn()
			select {
			case ch <- wrap(claim):
				// The reader has the element, even if another case of the select was ready too. The
				// claim was valid a moment ago, so no other consumer has the element yet.
				if o.Hand {
					claim.Handed()
				} else {
					claim.Taken()
				}
				q.received(ctx) // last, because the program determines how long its tracer takes
				continue
			case <-c.Ctx.Done():
			case <-down:
			case <-over:
			}
			claim.PutBack()
		}
	})
	return ch
}

// Data returns a copy of the element's stored bytes, without the frame of another library's
// layout. It is nil when the Delivery is settled.
func (d Delivery[T]) Data() []byte {
	if d.claim == nil {
		return nil
	}
	return bytes.Clone(d.claim.Element().Data)
}

// Ack removes the element from the queue; goroutines share transactions. nil means that this
// process removed it, and [ErrLost] that the claim was lost. After an error of ctx or of the
// servers, the removal continues; call Ack again for the result. After another settlement, Ack
// returns [ErrNotLocked]. docs/queue.md explains all results.
func (d Delivery[T]) Ack(ctx context.Context) error {
	return d.settle(ctx, "ack", queue.Settlement{Fate: queue.Remove})
}

// Nack returns the element to its place, and it is delivered again with a greater Attempt. With
// [WithRetryBackoff], Nack is [Delivery.NackAfter]. If the servers refuse or are away, the session
// tries again. Errors are as for Ack.
func (d Delivery[T]) Nack() error {
	var after time.Duration
	if d.q != nil && d.q.cfg.backoff != nil {
		after = session.RetryPolicy(*d.q.cfg.backoff).Delay(d.Attempt)
	}
	return d.NackAfter(after)
}

// Return is an immediate Nack for an element that the consumer has not tried. It uses no attempt,
// unless the claim is lost before the return is recorded.
func (d Delivery[T]) Return() error {
	return d.settle(context.Background(), "return", queue.Settlement{Fate: queue.Return, Untried: true})
}

// NackAfter is Nack with a delay, by the consumer's clock, in which no consumer receives the
// element. After the delay, it comes before elements that were sent later. During the delay, only
// elements of the same key wait. If the claim is lost first, the element is back at once.
func (d Delivery[T]) NackAfter(delay time.Duration) error {
	s := queue.Settlement{Fate: queue.Return}
	if delay > 0 {
		s = queue.Settlement{Fate: queue.Later, Due: time.Now().Add(delay)}
	}
	return d.settle(context.Background(), "nack", s)
}

// Reject makes the element a dead letter, because no other attempt would help. The dead letter has
// the reason, cut to 1,000 bytes. Errors are as for Ack.
func (d Delivery[T]) Reject(ctx context.Context, reason string) error {
	return d.settle(ctx, "reject", queue.Settlement{Fate: queue.Bury, Reason: errors.New(reason)})
}

func (d Delivery[T]) settle(ctx context.Context, op string, s queue.Settlement) error {
	if d.claim == nil {
		return opError(op, "", session.Invalid("the Delivery did not come from a Queue"))
	}
	ctx, end := d.q.queueing(ctx, op, 1)
	err := d.claim.Settle(ctx, s)
	end(1, err)
	return opError(op, d.q.path, err)
}

// The method `received` reports to the tracer that a consumer with ctx got an element.
func (q *Queue[T]) received(ctx context.Context) {
	_, end := q.queueing(ctx, "receive", 1)
	end(1, nil)
}

// Context returns a context that ends with the claim. If the claim is lost, the context ends before
// another consumer can get the element, with cause [ErrLost] ([LostError]). After a settlement, the
// cause is [context.Canceled].
func (d Delivery[T]) Context() context.Context {
	if d.claim == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(session.Invalid("the Delivery did not come from a Queue"))
		return ctx
	}
	return d.claim.Context()
}

func ask[T, R any](ctx context.Context, q *Queue[T], op string, f func(queue.Engine, context.Context) (R, error)) (r R, err error) {
	if err = q.misuse(); err == nil {
		r, err = f(q.q, ctx)
	}
	return r, opError(op, q.path, err)
}

// TryRecv removes the first element that no consumer has claimed, and returns it. ok is false if
// there is none. It waits for the servers, but not for new elements. To receive many elements, use
// [Queue.Recv]. If ctx or the ZooKeeper session ends before the removal, or the Session is closed,
// the element is back in the queue, and another consumer can receive it. If only elements that
// cannot be decoded are left, TryRecv returns an error.
func (q *Queue[T]) TryRecv(ctx context.Context) (v T, ok bool, err error) {
	e, err := ask(ctx, q, "tryrecv", queue.Engine.Take)
	if err != nil || e == nil {
		return v, false, err
	}
	q.received(ctx)
	v, _ = e.Value.(T)
	return v, true, nil
}

// Len returns the number of elements in the queue, with claimed and delayed ones. It counts until
// two counts agree, at most 21 times.
func (q *Queue[T]) Len(ctx context.Context) (int, error) {
	return ask(ctx, q, "len", queue.Engine.Len)
}

// Peek returns the first unclaimed element, and leaves it in the queue. If there is none, ok is
// false. If it cannot decode it, it returns the error.
func (q *Queue[T]) Peek(ctx context.Context) (v T, ok bool, err error) {
	e, err := ask(ctx, q, "peek", queue.Engine.Peek)
	if err != nil || e == nil {
		return v, false, err
	}
	v, _ = e.Value.(T)
	return v, e.Fault == nil, opError("peek", q.path, e.Fault)
}

// Clear removes all elements that exist when it begins and are unclaimed, and returns their number.
// It begins at the end, so no removal frees an element of the same key, unless both are delayed. If
// it fails, some may be removed.
func (q *Queue[T]) Clear(ctx context.Context) (int, error) {
	return ask(ctx, q, "clear", queue.Engine.Clear)
}
