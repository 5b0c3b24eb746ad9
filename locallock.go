package zsync

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// A localLock is a lock as the goroutines of this process use it, with the tracers of its Session.
// The tracers see no lock that is a part of another primitive: it has no operation.
type localLock struct {
	lock.Lock
	s    *Session
	kind string // "mutex", "rwmutex" or "election", for the tracer
}

func (q *localLock) init(s *Session, kind, path string, ln lock.Line, c lockConfig, entries *[lock.Shared + 1]lock.Entry) {
	q.s, q.kind = s, kind
	q.Manager, q.Path, q.Line, q.Entries, q.Data = s.m, path, ln, entries, s.m.Owner
	q.Handoffs, q.Retain, q.Kept = c.handoffs, c.retain, &s.kept
}

// acquire waits for a grant; pin says that the caller is a Do.
func (q *localLock) acquire(ctx context.Context, mode lock.HoldMode, pin bool) (*lock.Grant, error) {
	end := func(string, error) {}
	if q.told(mode) {
		end = q.s.tracers.acquiring(ctx, q.traced(mode))
	}
	start := time.Now()
	g, behind, err := q.Acquire(ctx, mode, pin)
	if err != nil {
		err = waitEnded(ctx, q.s, err, start, q.contender(behind), behind.Place)
	}
	q.Waited(mode, start, err)
	if err != nil {
		end("", err)
		return nil, err
	}
	g.Within(q.s.m.FunctionOf(ctx))
	end(g.Name(), nil)
	return g, nil
}

// contender describes the contender that a wait is for.
func (q *localLock) contender(b lock.Behind) Contender {
	switch {
	case b.Own != nil:
		return ownContender(b.Own, string(q.Data), Mode(b.Mode))
	case b.Place == 0:
		return Contender{}
	}
	return headContender(b, Mode(b.Mode))
}

// try makes one attempt at a grant. It returns nil if another contender is ahead.
func (q *localLock) try(ctx context.Context, mode lock.HoldMode) (*lock.Grant, error) {
	g, err := q.Try(ctx, mode)
	g.Within(q.s.m.FunctionOf(ctx))
	if g != nil && q.told(mode) {
		q.s.tracers.got(ctx, q.traced(mode), g)
	}
	return g, err
}

// told reports whether a tracer sees operations in mode.
func (q *localLock) told(mode lock.HoldMode) bool {
	return q.Entry(mode).Op != "" && q.s.tracers.tracer != nil
}

// traced returns the description of q for a tracer.
func (q *localLock) traced(mode lock.HoldMode) func() Op {
	return func() Op {
		return q.s.tracers.traced(q.kind, q.Entry(mode).Op, q.Path)
	}
}

// follow reports g to the tracer. It returns the context that the tracer makes from ctx.
func (q *localLock) follow(ctx context.Context, mode lock.HoldMode, g *lock.Grant) context.Context {
	if !q.told(mode) {
		return ctx
	}
	return q.s.tracers.follow(ctx, q.traced(mode), g)
}

func (q *localLock) lost(modes ...lock.HoldMode) <-chan struct{} {
	return q.Standing(modes...).Done()
}

// yield begins to release the caller's hold in mode, for Cond.Wait. It chooses that hold. finish
// waits until the hold is released, and again acquires another. In a Do, d is that Do: the hold
// that again acquires belongs to d. Until then, d has no hold, and no loss ends its context.
func (q *localLock) yield(d *doCall, mode lock.HoldMode) (finish func() error, again func(ctx context.Context) error) {
	if d != nil {
		if had, ok := d.mode(); ok && had == mode {
			from, g := d.now()
			d.set(q, nil)
			return from.BeginRelease(g).Finish, func(ctx context.Context) error {
				g, err := q.reacquire(ctx, mode, true)
				if err == nil {
					q.follow(ctx, mode, g)
					d.set(q, g)
				}
				return err
			}
		}
	}
	return q.BeginUnlock(mode).Finish, func(ctx context.Context) error {
		g, err := q.reacquire(ctx, mode, false)
		q.follow(ctx, mode, g)
		return err
	}
}

func (q *localLock) reacquire(ctx context.Context, mode lock.HoldMode, pin bool) (*lock.Grant, error) {
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	return q.acquire(ctx, mode, pin)
}

// A doKey is the key under which Do puts itself into a context. Locks of one
// path that do not exclude each other have different kinds.
type doKey struct {
	s    *Session
	path string
	kind string
}

// A doCall is one call of Do, and the grant that it has.
type doCall struct {
	function session.Function
	over     atomic.Bool

	mu   sync.Mutex
	q    *localLock      // the lock of g; nil if g is not a lock's; guarded by mu
	g    *lock.Grant     // nil while Cond.Wait has given it up; guarded by mu
	lost *session.Ending // of the g that it has, or had last; guarded by mu
}

// endingContext returns a context made from ctx, and two functions. end ends that context, and may
// be called under a lock. After the last call of end, the caller must call rest, without holding a
// lock.
//
// The end of a context calls Done and Value of its parent. So the parent is a context of this
// package, and only rest calls ctx, which is the user's. A context made from the result ends
// without calls of ctx, or in a goroutine of its own.
func endingContext(ctx context.Context) (_ context.Context, end context.CancelCauseFunc, rest context.CancelFunc) {
	ours, rest := context.WithCancel(ctx)
	ctx, end = context.WithCancelCause(ours)
	return ctx, end, rest
}

// nest runs f inside d, which holds mode already. The context of f ends with that hold.
func (d *doCall) nest(ctx context.Context, op, path string, mode lock.HoldMode, f func(ctx context.Context) error) error {
	if err := d.stands(mode); err != nil {
		return opError(op, path, err)
	}
	ctx, stop := d.untilLost(ctx)
	defer stop()
	err := f(ctx)
	// d may have lost its hold while f ran. A shared hold is enough here: f may have downgraded the
	// hold.
	return alsoErr(err, opError(op, path, d.stands(lock.Shared)))
}

// in returns the run of Do that made ctx, unless it is over.
func (k doKey) in(ctx context.Context) *doCall {
	if k.s == nil || k.s.m.FunctionOf(ctx) == nil {
		return nil // ctx comes from no function; to look for k would cost an allocation
	}
	d, _ := ctx.Value(k).(*doCall)
	if d == nil || d.over.Load() {
		return nil
	}
	return d
}

// giveUp runs release, which releases d's hold, as Manager.GiveUp does. Close waits for d until
// release has returned.
func (d *doCall) giveUp(ctx context.Context, m *session.Manager, release func() error) error {
	return m.GiveUp(ctx, func() error {
		defer d.function.End()
		return release()
	})
}

// doHolding runs f, and then releases. The context of f names d. It ends with the hold, or when the
// Session is being closed. The function of d has begun.
func doHolding(ctx context.Context, key doKey, d *doCall, f func(ctx context.Context) error, release func() error) (err error) {
	ctx, stop := d.untilLost(d.function.In(context.WithValue(ctx, key, d)))
	defer func() {
		d.over.Store(true)
		stop()
		err = alsoErr(err, release())
	}()
	return f(ctx)
}

// do runs f while d has g. When rest has returned, it releases g, or the grant that Cond.Wait has
// put in its place. If f has unlocked g in another way, d has nothing to release.
func (q *localLock) do(ctx context.Context, key doKey, op string, g *lock.Grant, f func(ctx context.Context) error, rest func()) error {
	d := newDoCall(ctx, q.s, q, g)
	if err := d.function.Begin(); err != nil {
		q.s.m.GiveUp(ctx, q.BeginRelease(g).Finish)
		return opError(op, q.Path, err)
	}
	return doHolding(ctx, key, d, f, func() error {
		q, g := d.now()
		if g == nil {
			d.function.End()
			return opError(op, q.Path, ErrNotLocked)
		}
		return opError(op, q.Path, d.giveUp(ctx, q.s.m, func() error {
			rest()
			return q.BeginRelease(g).Finish()
		}))
	})
}
