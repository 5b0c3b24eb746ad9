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

// A Queue is a Go channel shared by processes. One sends, another receives:
//
//	err := q.Send(ctx, job)
//
//	for job := range q.Recv(ctx) { … }     // removed when it is taken
//	for d := range q.Deliveries(ctx) { … } // removed by d.Ack, returned by d.Nack
//	err := q.Work(ctx, 4, do)              // removed when do returns nil
//
// Elements are received in the order in which ZooKeeper stored them, smaller
// priorities first, and each goes to one consumer. With one consumer the channel
// keeps that order. An element that a consumer has claimed but not taken goes back
// to its place when the consumer's context ends, its process dies or its session
// expires.
//
// Nothing is stored twice when a reply is lost. An element is received twice only if
// it was taken right before its session ended, and its removal was not applied by then.
//
// # Loss
//
// A Send that waits, and a consumer, carry on in the next session. A delivery
// is lost with its session: others can claim the element when the servers have ended
// the session. Ack then returns [ErrLost], unless it was applied.
//
// # Errors
//
// Send returns [ErrTooLarge] if the elements of one call do not fit into one
// request. TrySend returns [ErrFull] where Send would wait for room, see
// [WithMaxLen].
//
// # Limits
//
// The elements of one Send must fit into 1 MiB. While several processes consume a
// backlog of several thousand, later elements may be received before earlier ones.
// At 40 million elements the listing of the buckets comes to 1 MiB.
//
// # Znodes
//
// An element is a znode whose data are the bytes that the codec makes. Elements
// are in buckets of about 1,000 below path: b-<priority>-<number>, and delayed ones
// in d-<priority>-<time>-<random digits>. So no listing is longer than a bucket, however long the
// queue is. The data of a bucket says which of its elements are claimed by which mark, and
// which were tried; t-<priority> says which bucket is the newest. With [WithKey] there is the znode keys besides.
//
// Beside path there are
//
//   - <path>-live: the marks, an ephemeral znode for each Queue value that has claimed
//     elements in a session
//   - <path>-consumers: a line of ephemeral znodes, one for each Queue value that
//     waits for elements
//   - <path>-senders and <path>-receipts: logs of transactions, deleted a minute after the last
//   - <path>-ids: see [Queue.SendID]
//   - <path>-dead: the dead letters
//
// path, its children and <path>-ids are persistent; the others are containers. See
// [WithQueueLayout] to share a path with other libraries.
//
// # Cost
//
// Send costs one transaction for all that the goroutines of a process send at
// about the same time. Claims, reads and removals are each one request for many
// elements. An idle queue costs nothing, however many consume. An element that is sent
// to it wakes two processes: the second in case that the first hangs.
//
// All consumers claim what they find free at the same time, each up to
// [WithPrefetch] elements, in different buckets if need be. When elements come one by
// one, processes take turns: each gets up to 16 as long as it waits for more, and
// then passes the turn on.
type Queue[T any] struct {
	made
	cfg queueConfig
	key func(T) string // of WithKey, or nil
	q   queue.Engine
}

// NewQueue returns the Queue at path. It does no I/O. A bad argument is reported
// by every method that returns, or yields, an error. The channels of [Queue.Recv]
// and [Queue.Deliveries] are closed at once then, and [Queue.Err] says why.
func NewQueue[T any](s *Session, path string, opts ...QueueOption) *Queue[T] {
	cfg := newQueueConfig(opts)
	key, ok := cfg.key.(func(T) string)
	if cfg.err == nil && cfg.key != nil && !ok {
		cfg.err = session.Invalid("WithKey: a %T, want a %T", cfg.key, key)
	}
	q := &Queue[T]{made: made{s: s, path: path, err: checkNew(s, path, cfg.err)}, cfg: cfg, key: key}
	if q.misuse() != nil {
		return q
	}
	engine := cfg.Config
	engine.Path, engine.Decode = path, func(data []byte) (any, error) { return codec.Decode[T](cfg.codec, data) }
	if q.q = queue.New(s.m, engine); cfg.layout != LayoutZsync {
		q.q = foreign.New(s.m, engine, cfg.layout.String())
	}
	return q
}

// Path returns the path that q was made with.
func (q *Queue[T]) Path() string { return q.path }

// Err returns what is wrong with the arguments that q was made with, or nil. It
// is for those who use methods that return channels: a channel that is closed
// though neither the context has ended nor the Session was closed is one of a
// queue with an Err.
func (q *Queue[T]) Err() error { return opError("newqueue", q.path, q.misuse()) }

// Send stores vs at the end of the queue, in order, all or none of them. It
// returns when they are stored.
//
// All of vs go into one request, so together they must stay below ZooKeeper's
// limit of 1 MiB, with about 100 bytes for each element and 1 KiB for the
// request, and more where the path is long; above it Send returns [ErrTooLarge] and
// stores nothing. To send more use [Queue.In] or several calls.
//
// If the reply is lost Send finds out what happened, in the next session too.
// If ctx ends first, either all of vs are stored or none, and Send does not
// know which; if the error came before they were sent, none are. With
// [WithMaxLen] Send waits until there is room.
//
// Sends of one goroutine keep their order, and so do Sends of many goroutines
// with the same Queue value, in the order of the calls. They share
// transactions, each of which costs one round trip; it writes one more znode,
// a receipt, which is deleted when nothing more comes for a moment.
func (q *Queue[T]) Send(ctx context.Context, vs ...T) error {
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: queue.Middle}, vs))
}

// SendPriority is Send with a priority, from 0, which is served first, to
// below the number given to [WithPriorities]. Send itself uses the middle one.
func (q *Queue[T]) SendPriority(ctx context.Context, priority int, vs ...T) error {
	if q.misuse() == nil && (priority < 0 || priority >= q.cfg.Priorities) {
		return opError("send", q.path, session.Invalid("priority %d is not from 0 to %d; see WithPriorities", priority, q.cfg.Priorities-1))
	}
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: priority}, vs))
}

// SendAt is Send for elements that cannot be received before t, by the clock
// of the consumer's machine. They are ordered by t, and go ahead of other
// elements once their time has come. A t in the past is as if it were now, and
// none is later than the year 292,278,994.
func (q *Queue[T]) SendAt(ctx context.Context, t time.Time, vs ...T) error {
	if q.misuse() == nil && q.cfg.layout != LayoutZsync {
		return opError("send", q.path, session.Invalid("SendAt needs zsync's own layout, not %v", q.cfg.layout))
	}
	if first := time.UnixMilli(1); t.Before(first) {
		t = first // the zero Time is a past one, not none
	}
	return opError("send", q.path, q.send(ctx, queue.Batch{Priority: queue.Middle, Due: t}, vs))
}

// send is Send of a batch whose elements are vs.
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
	ctx, end := q.tracers().queueing(ctx, "send", q.path, len(vs))
	err = q.q.Send(ctx, b)
	end(err)
	return err
}

// fill puts vs into b.
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

// Recv returns a channel of elements. An element is removed from the queue
// when it is taken from the channel. Some are claimed ahead, see
// [WithPrefetch]; when ctx ends those that were not taken go back at once. If
// the servers answer at once they are back when the channel of the last consumer
// is closed.
//
// The channel is closed when ctx ends or the Session is closed, at once if q was
// badly made (see [Queue.Err]), and at no other time: errors that retrying cannot cure go to the logger and Recv keeps
// trying. See [Queue.All] for an iterator that reports them.
//
// An element that is taken right before its session ends may not be removed: then it is
// received again, by any consumer.
func (q *Queue[T]) Recv(ctx context.Context) <-chan T {
	return consume(ctx, q, queue.Joining{}, value[T])
}

// value returns the value of what is claimed; that of a misfit is zero.
func value[T any](claim queue.Claim) T {
	v, _ := claim.Element().Value.(T) // an interface may hold nil
	return v
}

// offer offers d, in which what is claimed is, to whoever reads ch, and reports
// whether it was taken. If not it is put back.
func offer[D any](c queue.Consumer, claim queue.Claim, ch chan<- D, d D) bool {
	down, over := claim.Withdrawn()
	select {
	case ch <- d:
		// If a second outcome was ready too, the consumer has it all the same. The
		// claim was certain a moment ago, so nobody else has the element yet.
		return true
	case <-c.Leaving():
	case <-down:
	case <-over:
	}
	claim.PutBack()
	return false
}

// A Delivery is an element that stays in the queue, claimed, until it is
// acknowledged.
type Delivery[T any] struct {
	Value   T
	Attempt int       // 1 the first time, more if it was returned, or lost with a consumer
	Sent    time.Time // when it was stored, by the servers' clock
	ID      string    // unique within the queue, and the same at each attempt
	claim   queue.Claim
	q       *Queue[T] // where claim is from
}

// Deliveries returns a channel of elements that the consumer must acknowledge:
// each is received at least once. An element that was received goes back to
// its place by Nack, and when the session ends; others then get it, with a
// greater Attempt. When ctx ends, deliveries that were received can still be
// acknowledged. Any number may be unacknowledged; [WithPrefetch] does not count
// those that were received.
//
// The channel is closed as that of [Queue.Recv]. With [WithMaxAttempts] an
// element that is about to be delivered once too often goes to the dead letters
// instead. The attempt is written down first, with the claim or for many at once.
func (q *Queue[T]) Deliveries(ctx context.Context) <-chan Delivery[T] {
	return consume(ctx, q, queue.Joining{Hand: true}, q.delivery)
}

// delivery makes a Delivery of what is claimed.
func (q *Queue[T]) delivery(claim queue.Claim) Delivery[T] {
	e := claim.Element()
	return Delivery[T]{Value: value[T](claim), Attempt: e.Attempts + 1, Sent: e.Sent, ID: e.ID, claim: claim, q: q}
}

// All is Deliveries as an iterator, which also yields errors. One that retrying
// does not seem to cure, such as a missing permission, is yielded each time it
// is met, and the iteration goes on; when ctx has ended or the Session was
// closed that is the last that is yielded.
//
// An element that cannot be decoded is yielded with the error and a Delivery
// without a Value, whose [Delivery.Data] are its bytes. It can be settled as any
// other; if it is not when the body of the loop has ended, it goes to the dead
// letters, as it would in Deliveries. (With other errors the Delivery is empty:
// its ID is "".)
//
// What was claimed ahead goes back when the loop ends, however it does: if the
// servers answer at once it is back in its place when the loop is over.
func (q *Queue[T]) All(ctx context.Context) iter.Seq2[Delivery[T], error] {
	return func(yield func(Delivery[T], error) bool) {
		if q.misuse() != nil {
			yield(Delivery[T]{}, opError("all", q.path, q.misuse()))
			return
		}
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		c := q.join(inner, queue.Joining{Hand: true, Odd: true})
		defer c.Leave() // what it had claimed ahead is back when the loop is over, as when a channel is closed
		for {
			claim, err := c.Next()
			if err != nil {
				over := session.IsClosed(c.Leaving()) || q.s.m.Failure() != nil
				if over {
					err = q.ending(ctx)
				}
				if !yield(Delivery[T]{}, opError("all", q.path, err)) || over {
					return
				}
				continue
			}
			fault := claim.Element().Fault
			more := yield(q.handed(ctx, claim), opError("all", q.path, fault))
			if fault != nil {
				claim.SetAside()
			}
			if !more {
				return
			}
		}
	}
}

// join adds a consumer for those who ask for the next element when they wait for it. It
// leaves when it must, though an element is being worked on, or Next is under way: that has
// been told to end then, by the context or by Closing; what it brings all the same is settled as
// any other.
func (q *Queue[T]) join(ctx context.Context, o queue.Joining) queue.Consumer {
	c := q.q.Join(ctx, o)
	q.s.m.Spawn(func() {
		select {
		case <-c.Leaving():
		case <-q.s.m.Closing:
		}
		c.Leave()
	})
	return c
}

// ending returns why a consumer with ctx gets no more elements.
func (q *Queue[T]) ending(ctx context.Context) error {
	return cmp.Or(session.CtxErr(ctx), q.s.m.Failure(), ErrClosed)
}

// handed makes a Delivery of what is claimed, which the program has then.
func (q *Queue[T]) handed(ctx context.Context, claim queue.Claim) Delivery[T] {
	d := q.delivery(claim)
	claim.Handed()
	q.received(ctx)
	return d
}

// consume returns a channel on which each element of a consumer is offered, as wrap makes
// it of what is claimed, until ctx ends or the Session is closed; then it is closed.
func consume[T, D any](ctx context.Context, q *Queue[T], o queue.Joining, wrap func(queue.Claim) D) <-chan D {
	ch := make(chan D)
	if q.misuse() != nil {
		if q.s != nil {
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
			switch {
			case err != nil:
				return
			case !offer(c, claim, ch, wrap(claim)):
				continue
			case o.Hand:
				claim.Handed()
			default:
				claim.Taken()
			}
			q.received(ctx) // last: how long the tracer takes is the program's own
		}
	})
	return ch
}

// Data returns the element as it is stored, without the frame that the layouts
// of other libraries may have; the bytes are the caller's. It is nil once the Delivery
// is settled.
func (d Delivery[T]) Data() []byte {
	if d.claim == nil {
		return nil
	}
	return bytes.Clone(d.claim.Data())
}

// Ack removes the element from the queue. It returns [ErrLost] if the claim was
// lost, because the session ended or the element was deleted; then another
// consumer has got the element, or will get it, and Ack takes nothing from it.
//
// If the session ends before the reply, Ack looks in the next one whether the element is
// there: then it is lost. If it is gone, nothing tells whether it was Ack that removed
// it: the error says so, and is go-zookeeper's ErrNoNode. If the Session is
// closed before it is known the error is [ErrClosed] alone. If ctx ends first, or has ended
// before, Ack goes on in the background, because the work is done; calling it
// again tells what came of it. If the servers refuse, as
// without permission, Ack returns their error, the element stays claimed, and
// the session goes on trying. Acks of many goroutines share transactions. After
// Nack the error is [ErrNotLocked].
func (d Delivery[T]) Ack(ctx context.Context) error {
	return d.settle(ctx, "ack", queue.Settlement{Fate: queue.Remove})
}

// Nack returns the element to its place in the queue, to be delivered again
// with a greater Attempt; with [WithRetryBackoff] it is [Delivery.NackAfter]. While
// the connection is down it returns at once; then, and when the servers refuse,
// the session goes on trying. The errors are [ErrLost], and the servers', as of
// Ack, and [ErrNotLocked] after Ack.
func (d Delivery[T]) Nack() error {
	var after time.Duration
	if d.q != nil && d.q.cfg.retry != nil {
		after = session.Backoff(*d.q.cfg.retry).Delay(d.Attempt)
	}
	return d.nack(after)
}

// Return is Nack at once, for an element with which nothing was tried: it counts as no
// attempt, unless the claim is lost before that is recorded.
func (d Delivery[T]) Return() error {
	return d.settle(context.Background(), "return", queue.Settlement{Fate: queue.Return, Untried: true})
}

// NackAfter is Nack for an element that nobody is to receive before delay is over,
// by the clocks of the consumers' machines. It is then served before those that
// came later; its ID, Attempt and Sent stay. It leaves its place,
// so it holds up nobody. If the claim is lost before that is written down, the
// element is back in its former place at once. It needs [LayoutZsync]: in others it
// is Nack, with an error that is [ErrInvalid].
func (d Delivery[T]) NackAfter(delay time.Duration) error {
	return d.nack(delay)
}

func (d Delivery[T]) nack(after time.Duration) error {
	s := queue.Settlement{Fate: queue.Return}
	if after > 0 {
		s = queue.Settlement{Fate: queue.Later, Due: time.Now().Add(after)}
	}
	return d.settle(context.Background(), "nack", s)
}

// Reject sends the element to the dead letters, with the reason, of which 1,000
// bytes are kept. Use it for an element that no other attempt would help. Losses
// and errors are those of [Delivery.Ack]. In the layouts of other libraries, in
// which what was received is in the queue no more, it is not possible, and the
// error is [ErrInvalid].
func (d Delivery[T]) Reject(ctx context.Context, reason string) error {
	return d.settle(ctx, "reject", queue.Settlement{Fate: queue.Bury, Reason: errors.New(reason)})
}

func (d Delivery[T]) settle(ctx context.Context, op string, s queue.Settlement) error {
	if d.claim == nil {
		return opError(op, "", session.Invalid("the Delivery did not come from a Queue"))
	}
	ctx, end := d.q.tracers().queueing(ctx, op, d.q.path, 1)
	err := d.claim.Settle(ctx, s)
	end(err)
	return opError(op, d.q.path, err)
}

// received tells the tracer of an element that a consumer with ctx got.
func (q *Queue[T]) received(ctx context.Context) {
	_, end := q.tracers().queueing(ctx, "receive", q.path, 1)
	end(nil)
}

// Context returns a context that ends with the claim. If the claim is lost,
// because the session is over or may be, or another client has deleted its mark, its
// cause is [ErrLost] ([LostError]), and it ends before anybody else can get the
// element. When the Delivery is settled it ends too, with no other cause than
// [context.Canceled].
func (d Delivery[T]) Context() context.Context {
	if d.claim == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(session.Invalid("the Delivery did not come from a Queue"))
		return ctx
	}
	return d.claim.Context()
}

// This file holds what is done to a Queue without consuming from it: to take one
// element, to look, to count, to clear.

// ask calls f of q's engine, unless q was badly made.
func ask[T, R any](ctx context.Context, q *Queue[T], op string, f func(queue.Engine, context.Context) (R, error)) (r R, err error) {
	if err = q.misuse(); err == nil {
		r, err = f(q.q, ctx)
	}
	return r, opError(op, q.path, err)
}

// TryRecv removes the first element that nobody has claimed and returns it. ok
// is false if there was none. It does not wait for elements to come, but for
// the servers' answers.
//
// An element that cannot be decoded goes to the dead letters. After three in a row
// those that follow are left in the queue, and the error says so, each time as long as
// there is nothing else.
//
// If ctx ends while the removal is on its way, TryRecv returns the element, and the
// Session completes the removal. If the session ends before the reply, TryRecv returns the
// element too; another consumer may then receive it as well. To receive many elements, use
// [Queue.Recv].
//
// # Cost
//
// About 6 requests, however much is claimed ahead of what it finds; 1 more for every
// 100 buckets that it passes over, and 1 for each priority that has delayed elements
// which have changed since this Queue value listed them. With [WithKey] it is also 1
// for each bucket in which something is claimed that has changed since.
func (q *Queue[T]) TryRecv(ctx context.Context) (v T, ok bool, err error) {
	e, err := ask(ctx, q, "tryrecv", queue.Engine.Take)
	if err != nil || e == nil {
		return v, false, err
	}
	q.received(ctx)
	v, _ = e.Value.(T)
	return v, true, nil
}

// Len returns how many elements are in the queue, those that are claimed or
// delayed included.
//
// # Cost
//
// A sync, a listing, and 1 request for each bucket of
// about 1,000 elements, which are on their way at once.
func (q *Queue[T]) Len(ctx context.Context) (int, error) {
	return ask(ctx, q, "len", queue.Engine.Len)
}

// Peek returns the first element that nobody has claimed, and leaves it where
// it is. ok is false if there is none. One that cannot be decoded is an error.
//
// # Cost
//
// About 6 requests.
func (q *Queue[T]) Peek(ctx context.Context) (v T, ok bool, err error) {
	e, err := ask(ctx, q, "peek", queue.Engine.Peek)
	if err != nil || e == nil {
		return v, false, err
	}
	if err = e.Fault; err == nil {
		v, err = codec.Decode[T](q.cfg.codec, e.Data)
	}
	return v, err == nil, opError("peek", q.path, err)
}

// Clear removes the elements that are there when it begins and that nobody has
// claimed, delayed ones too, and returns how many it has removed: the last first,
// so that it frees none for a consumer that waits for the key of another, see
// [WithKey]. When it fails it may have removed some.
//
// # Cost
//
// 6 requests, and 5 more for every 500 elements.
func (q *Queue[T]) Clear(ctx context.Context) (int, error) {
	return ask(ctx, q, "clear", queue.Engine.Clear)
}
