package zsync

import (
	"context"
	"sync"

	"github.com/zsync/zsync/internal/line"
)

// A Traced is what a tracer is told of one operation.
type Traced struct {
	// Op is the operation: lock, rlock, campaign, acquire, enter, or do of a Once;
	// wait of a Barrier, WaitGroup or Cond; send, receive, ack, nack or reject of
	// a Queue.
	Op      string
	Kind    string // the primitive: mutex, rwmutex, election, semaphore, once, double barrier, barrier, waitgroup, cond, queue
	Path    string // of the primitive
	Owner   string // of the Session; see WithOwner
	Session int64  // the ZooKeeper session at the time, or 0
	Hold    string // the name of the znode by which it is held; of holds, and of acquisitions that have ended with one
	Count   int    // of permits, or elements
}

// What follows are interfaces that an [Observer] may implement besides. The
// context that a start returns is what the end is given, and, where a function of
// the program runs meanwhile, its context is made of it: so spans have parents.
// Starts and ends are called in the goroutine of the operation, or, of the end of
// a hold, in another; they must not block. Every start has one end.
type (
	// An AcquireTracer is told how long a caller waits for a lock, permits, a
	// leadership, the function of a Once or a double barrier. Attempts that do
	// not wait (TryLock) are told when they succeed. err is why it gave up.
	AcquireTracer interface {
		AcquireStart(ctx context.Context, t Traced) context.Context
		AcquireEnd(ctx context.Context, t Traced, err error)
	}

	// A HoldTracer is told how long a caller holds what he has acquired. The
	// context of Do's function, of Run's and of Once's is made of that of the
	// start. err is [ErrLost], a [LostError], if the hold was lost.
	HoldTracer interface {
		HoldStart(ctx context.Context, t Traced) context.Context
		HoldEnd(ctx context.Context, t Traced, err error)
	}

	// A WaitTracer is told how long a caller waits for others, and holds nothing
	// then: in Wait of a Barrier, WaitGroup or Cond.
	WaitTracer interface {
		WaitStart(ctx context.Context, t Traced) context.Context
		WaitEnd(ctx context.Context, t Traced, err error)
	}

	// A QueueTracer is told what is sent, received and settled. What a consumer
	// was sent by itself, as by [Queue.Deliveries], has been received when the
	// channel has passed it on.
	QueueTracer interface {
		QueueStart(ctx context.Context, t Traced) context.Context
		QueueEnd(ctx context.Context, t Traced, err error)
	}
)

// tracers are the tracers that the observer of a Session is.
type tracers struct {
	acquire AcquireTracer
	hold    HoldTracer
	wait    WaitTracer
	queue   QueueTracer

	owner   string
	session func() int64
}

func tracersOf(o Observer) (t tracers) {
	t.acquire, _ = o.(AcquireTracer)
	t.hold, _ = o.(HoldTracer)
	t.wait, _ = o.(WaitTracer)
	t.queue, _ = o.(QueueTracer)
	return t
}

func (t *tracers) traced(kind, op, path string) Traced {
	return Traced{Kind: kind, Op: op, Path: path, Owner: t.owner, Session: t.session()}
}

// acquiring is the start of an acquisition. end is to be called once.
func (t *tracers) acquiring(ctx context.Context, what func() Traced) (end func(hold string, err error)) {
	if t.acquire == nil {
		return func(string, error) {}
	}
	ctx = t.acquire.AcquireStart(ctx, what())
	return func(hold string, err error) {
		now := what()
		now.Hold = hold
		t.acquire.AcquireEnd(ctx, now, err)
	}
}

// holding is the start of a hold. The end is told once, by whoever calls end first.
func (t *tracers) holding(ctx context.Context, what Traced) (_ context.Context, end func(err error)) {
	ctx = t.hold.HoldStart(ctx, what)
	var once sync.Once
	return ctx, func(err error) {
		once.Do(func() { t.hold.HoldEnd(ctx, what, err) })
	}
}

// follow tells the tracer of g, and of its end. It returns what ctx becomes.
func (t *tracers) follow(ctx context.Context, what func() Traced, g *line.Grant) context.Context {
	if t.hold == nil || g == nil {
		return ctx
	}
	now := what()
	now.Hold = g.Name()
	ctx, end := t.holding(ctx, now)
	g.Follow(end)
	return ctx
}

// got is acquiring for what was acquired without a wait, and follow.
func (t *tracers) got(ctx context.Context, what func() Traced, g *line.Grant) {
	t.acquiring(ctx, what)(g.Name(), nil)
	t.follow(ctx, what, g)
}

// waiting is the start of a wait for others.
func (t *tracers) waiting(ctx context.Context, kind, path string) (_ context.Context, end func(err error)) {
	if t == nil || t.wait == nil {
		return ctx, func(error) {}
	}
	what := t.traced(kind, "wait", path)
	ctx = t.wait.WaitStart(ctx, what)
	return ctx, func(err error) { t.wait.WaitEnd(ctx, what, err) }
}

// queueing is the start of what is done with n elements of a queue.
func (t *tracers) queueing(ctx context.Context, op, path string, n int) (_ context.Context, end func(err error)) {
	if t == nil || t.queue == nil {
		return ctx, func(error) {}
	}
	what := t.traced("queue", op, path)
	what.Count = n
	ctx = t.queue.QueueStart(ctx, what)
	return ctx, func(err error) { t.queue.QueueEnd(ctx, what, err) }
}
