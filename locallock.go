package zsync

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// A localLock is a lock that the goroutines of this process share. It reports its operations to the
// tracer and the observer of its Session. If a lock is part of another primitive, it has no Op,
// and nothing is reported.
type localLock struct {
	lock.Lock
	s      *Session
	kind   string // "mutex", "rwmutex" or "election", for the tracer
	prefix string // begins the kind of a doKey: "", "rw " or "leader "
}

func (q *localLock) init(s *Session, kind, op, path string, ln lock.Line, c setup) {
	q.s, q.kind = s, kind
	q.Manager, q.Path, q.Line, q.Op = s.m, path, ln, op
	q.Handoffs, q.Retain, q.Kept = c.handoffs, c.retain, &s.kept
}

// The method `acquire` waits for a grant, and reports the wait and the hold. The argument `pin` is
// true if the caller is a Do. The returned context is for the work with the hold.
func (q *localLock) acquire(ctx context.Context, mode lock.HoldMode, pin bool) (context.Context, *lock.Grant, error) {
	_, o := q.s.begin(ctx, q.op(mode))
	g, behind, err := q.Acquire(ctx, mode, pin)
	if err != nil {
		err = waitEnded(ctx, q.s.m, err, o.began, q.contender(behind), behind.Place)
		o.end(err)
		return ctx, nil, err
	}
	g.Within(q.s.m.FunctionOf(ctx))
	return o.got(ctx, g), g, nil
}

// The method `op` describes a wait for q.
func (q *localLock) op(mode lock.HoldMode) Op {
	return Op{Kind: OpAcquire, Primitive: q.kind, Name: q.OpOf(mode), Path: q.Path}
}

// The method `contender` describes the contender for which a waiter waits.
func (q *localLock) contender(b lock.Behind) Contender {
	switch {
	case b.Own != nil:
		return ownContender(b.Own, string(q.Line.Data), Mode(b.Mode))
	case b.Place == 0:
		return Contender{}
	}
	return headContender(b, Mode(b.Mode))
}

// The method `try` makes one attempt at a grant. It returns a nil grant if another contender is
// ahead. Such an attempt is not reported.
func (q *localLock) try(ctx context.Context, mode lock.HoldMode) (*lock.Grant, error) {
	start := time.Now()
	g, err := q.Try(ctx, mode)
	if g != nil {
		g.Within(q.s.m.FunctionOf(ctx))
		_, o := q.s.begin(ctx, q.op(mode))
		o.began = start
		o.got(ctx, g)
	}
	return g, err
}

// The method `current` returns a hold of the lock q of m, and the mode. The caller is a goroutine that
// holds. It is in the Do d, if d is not nil.
func (m *made) current(q *localLock, d *doCall) (*lock.Grant, lock.HoldMode, error) {
	if m.misuse() != nil {
		return nil, 0, m.misuse()
	}
	return q.Current(d.bare())
}

// The method `contenders` does the work of the methods named Contenders, for the line of m. The
// function judge returns the mode of the i'th contender, and whether that contender holds.
func (m *made) contenders(ctx context.Context, l *lock.Line, judge func(all []lock.Child, i int) (Mode, bool)) (out []Contender, err error) {
	defer m.wrap("contenders", &err)
	if m.misuse() != nil {
		return nil, m.misuse()
	}
	err = m.s.m.During(ctx, func(inc *session.Incarnation) error {
		names, err := inc.Names(ctx, l.Dir)
		if err != nil {
			return err
		}
		all, err := l.InOrder(ctx, inc, names)
		if err != nil {
			return err
		}
		names = names[:0]
		for _, c := range all {
			names = append(names, c.Name)
		}
		out, err = describe(ctx, inc, l.Dir, names, func(i int) (Mode, bool) { return judge(all, i) })
		return err
	})
	return out, err
}

// firstHolds judges the contenders for an exclusive hold.
func firstHolds(_ []lock.Child, i int) (Mode, bool) { return ModeExclusive, i == 0 }

// The method `yield` begins to release the caller's hold in mode, for Cond.Wait. It chooses this
// hold before it returns. The result `finish` waits until this hold is released. The result `again`
// acquires another hold. If the caller is inside a Do, d is the call of that Do, and the new hold
// belongs to d. Until `again` has succeeded, d has no hold, and no loss ends d's context.
func (q *localLock) yield(d *doCall, mode lock.HoldMode) (finish func() error, again func(ctx context.Context) error) {
	if d != nil {
		if had, ok := d.mode(); ok && had == mode {
			from, g := d.now()
			d.set(q, nil)
			finish, _ = from.BeginRelease(g)
			return finish, func(ctx context.Context) error {
				g, err := q.reacquire(ctx, mode, true)
				if err == nil {
					d.set(q, g)
				}
				return err
			}
		}
	}
	// Perhaps an earlier Cond.Wait inside d has failed. Then d has no hold, and another Do may have
	// the lock. Wait must not release the hold of that Do.
	finish, _ = q.BeginUnlock(mode, d != nil)
	return finish, func(ctx context.Context) error {
		_, err := q.reacquire(ctx, mode, false)
		return err
	}
}

func (q *localLock) reacquire(ctx context.Context, mode lock.HoldMode, pin bool) (*lock.Grant, error) {
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	_, g, err := q.acquire(ctx, mode, pin)
	return g, err
}

// A doKey is the key under which a context has its doCall. Primitives of one path with different
// kinds do not nest; see `inLine`.
type doKey struct {
	s    *Session
	path string
	kind string
}

// A doCall is one call of Do, with the grant that it has.
type doCall struct {
	function session.Function
	over     atomic.Bool

	mu   sync.Mutex
	q    *localLock      // the lock of g; nil if g is not of a lock; guarded by mu
	g    *lock.Grant     // nil while Cond.Wait has released it; guarded by mu
	lost *session.Ending // ends when g is lost, and stays ended until d has another g; guarded by mu
}

// The method `nest` runs f inside d, which already has a hold in mode. The context of f ends with
// that hold.
func (d *doCall) nest(ctx context.Context, op, path string, mode lock.HoldMode, f func(ctx context.Context) error) error {
	if err := d.stands(mode); err != nil {
		return opError(op, path, err)
	}
	ctx, stop := d.untilLost(ctx)
	defer stop()
	err := f(ctx)
	// If d's hold was lost while f ran, report the loss. A shared hold is enough here, because f may
	// have downgraded the hold.
	return session.JoinErrors([]error{err, opError(op, path, d.stands(lock.Shared))})
}

// The method `in` returns the call of Do that made ctx, unless that call is over.
func (k doKey) in(ctx context.Context) *doCall {
	if k.s == nil || k.s.m.FunctionOf(ctx) == nil {
		return nil // ctx comes from no Do; this test avoids the allocation of a lookup
	}
	d, _ := ctx.Value(k).(*doCall)
	if d == nil || d.over.Load() {
		return nil
	}
	return d
}

// The function `inLine` reports whether ctx comes from a function that runs while a contender with
// this base is in the line of the path. Another exclusive contender with this base would wait for
// that function. The two may belong to different primitives, such as an Election and a Mutex.
func inLine(ctx context.Context, s *Session, path, base string) bool {
	if s.m.FunctionOf(ctx) == nil {
		return false
	}
	return slices.ContainsFunc([]string{base, "rw " + base, "leader " + base}, func(kind string) bool {
		return doKey{s, path, kind}.in(ctx).holds()
	})
}

// giveUp calls the function `release` through Manager.GiveUp. This function releases d's hold, and
// Close waits until it has returned.
func (d *doCall) giveUp(ctx context.Context, m *session.Manager, release func() error) error {
	return m.GiveUp(ctx, func() error {
		defer d.function.End()
		return release()
	})
}

// doHolding runs f, and then calls release. The context of f has d as a value. The context ends
// with the hold, or when the Session begins to close. The caller has called d.function.Begin.
func doHolding(ctx context.Context, key doKey, d *doCall, f func(ctx context.Context) error, release func() error) (err error) {
	ctx, stop := d.untilLost(d.function.In(context.WithValue(ctx, key, d)))
	defer func() {
		d.over.Store(true)
		stop()
		err = session.JoinErrors([]error{err, release()})
	}()
	return f(ctx)
}

// The method `do` runs f while a new doCall d has g. Then it calls the function `rest`, and
// releases g. If Cond.Wait has acquired another grant instead of g, `do` releases that grant. If f
// has unlocked g in another way, `do` has nothing to release, and returns ErrNotLocked.
func (q *localLock) do(ctx context.Context, key doKey, op string, g *lock.Grant, f func(ctx context.Context) error, rest func()) error {
	d := newDoCall(ctx, q.s, q, g)
	if err := d.function.Begin(); err != nil {
		finish, _ := q.BeginRelease(g)
		q.s.m.GiveUp(ctx, finish)
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
