package zsync

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/local"
	"github.com/zsync/zsync/internal/session"
)

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
	g    *line.Grant     // nil while Cond.Wait has given it up; guarded by mu
	lost *session.Ending // of the g that it has, or had last; guarded by mu
}

// endingContext returns a context made from ctx, and end, which ends it, also under a lock. The caller
// calls rest without locks, after the last call of end.
//
// The end of a context calls Done and Value of its parent. So the parent is a context of this package,
// and only rest calls ctx, which is the user's. A context made from the result ends without calls of ctx,
// or in a goroutine of its own.
func endingContext(ctx context.Context) (_ context.Context, end context.CancelCauseFunc, rest context.CancelFunc) {
	ours, rest := context.WithCancel(ctx)
	ctx, end = context.WithCancelCause(ours)
	return ctx, end, rest
}

// nest runs f inside d, which holds mode already. The context of f ends with that hold.
func (d *doCall) nest(ctx context.Context, op, path string, mode local.Mode, f func(ctx context.Context) error) error {
	if err := d.stands(mode); err != nil {
		return opError(op, path, err)
	}
	ctx, stop := d.untilLost(ctx)
	defer stop()
	err := f(ctx)
	// The check before f proves nothing about the time of f. A shared hold is enough here: f may have
	// downgraded it.
	return alsoErr(err, opError(op, path, d.stands(local.Shared)))
}

// in returns the run of Do that made ctx, unless it is over.
func (k doKey) in(ctx context.Context) *doCall {
	if k.s == nil || k.s.m.FunctionOf(ctx) == nil {
		return nil // ctx comes from no function at all; the look for k would cost an allocation
	}
	d, _ := ctx.Value(k).(*doCall)
	if d == nil || d.over.Load() {
		return nil
	}
	return d
}

// giveUp runs release, which releases what d has, as Manager.GiveUp does. Close waits for d
// until release has returned.
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

// do runs f while it has g, and gives up g, or what Cond.Wait has locked in its
// place, when rest has returned. If f has unlocked g in another
// way, g is not d's.
func (q *localLock) do(ctx context.Context, key doKey, op string, g *line.Grant, f func(ctx context.Context) error, rest func()) error {
	d := newDoCall(ctx, q.s, q, g)
	if err := d.function.Begin(); err != nil {
		q.s.m.GiveUp(ctx, func() error { return q.Release(g) })
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
			return q.Release(g)
		}))
	})
}
