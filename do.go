package zsync

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/local"
	"github.com/zsync/zsync/internal/session"
)

// A doKey is the key under which Do puts itself into a context. The kind tells
// locks of one path apart that do not exclude each other.
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
	q    *localLock      // whose grant it is; nil if it is not that of a lock; guarded by mu
	g    *line.Grant     // nil while Cond.Wait has given it up; guarded by mu
	lost *session.Ending // of the g that it has, or had last; guarded by mu
}

// endingContext returns a context of ctx, what ends it, and what is called without
// locks when nobody calls that any more.
//
// The end of a context calls Done and Value of the one that it was made of: so that
// is one of ours, and only rest calls the user's. What is made of it in turn ends
// without calls, or in goroutines of its own.
func endingContext(ctx context.Context) (_ context.Context, end context.CancelCauseFunc, rest context.CancelFunc) {
	ours, rest := context.WithCancel(ctx)
	ctx, end = context.WithCancelCause(ours)
	return ctx, end, rest
}

// nest runs f inside d, which has what it needs: as long as that is held.
func (d *doCall) nest(ctx context.Context, op, path string, mode local.Mode, f func(ctx context.Context) error) error {
	if err := d.stands(mode); err != nil {
		return opError(op, path, err)
	}
	ctx, stop := d.untilLost(ctx)
	defer stop()
	err := f(ctx)
	// What was so before f says nothing of the time in which it ran. A reader is
	// enough here: f may have downgraded it.
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

// doHolding runs f with a context that says so and that ends with the hold, or when the Session
// is being closed, and releases. d has begun its function.
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
// place, when rest has returned. What f may have unlocked otherwise is not its own any
// more.
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
