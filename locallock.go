package zsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A localLock is a Mutex, an RWMutex or an Election: a line whose holds the goroutines of this
// process share. Its exported methods belong to all three. It reports its operations to the tracer and
// the observer of its Session. If it is part of another primitive, it has no Op, and nothing is reported.
type localLock struct {
	made
	local lock.Lock
	kind  string // "mutex", "rwmutex" or "election"
}

// Path returns the path that the primitive was made with.
func (q *localLock) Path() string { return q.path } // made has it, too, but the reference (go/doc) shows no method of a type that is embedded twice

// The method `init` makes q, whose znodes have names with `bases`, except in kazoo's layout. If c has
// an error, q reports it.
func (q *localLock) init(s *Session, path string, c setup, kind, op string, bases ...string) *lock.Line {
	if q.made = (made{s: s, path: path, err: c.err}); c.err != nil {
		return &q.local.Line
	}
	name, kazoo := znodes.ProtectedName, c.layout == LayoutKazoo
	if kazoo {
		name, bases = lock.KazooName, []string{"__lock__", "__rlock__"}[:len(bases)]
	}
	if plain := name; c.prior != nil {
		name = func(guid, base string) string { return plain(guid, lock.WithPriority(base, *c.prior, kazoo)) }
	}
	l, ln := &q.local, lock.New(s.m, path, name, bases...)
	ln.Strict, ln.Limits, ln.Keeps = true, c.limits, c.retain > 0
	ln.Kept = kazoo // each object of kazoo creates the path only once
	l.Manager, l.Line, l.Op = s.m, ln, op
	l.Handoffs, l.Retain, l.Kept = c.handoffs, c.retain, &s.kept
	q.kind = kind
	return &l.Line
}

// The method `acquire` waits for a grant, and reports the wait and the hold. The argument `pin` is
// true if the caller is a Do. The returned context is for the work with the hold.
func (q *localLock) acquire(ctx context.Context, mode lock.HoldMode, pin bool) (context.Context, *lock.Grant, error) {
	if err := q.entering(ctx, q.local.Line.Bases); err != nil {
		return nil, nil, err
	}
	_, o := q.s.begin(ctx, q.op(mode))
	g, behind, err := q.local.Acquire(ctx, mode, pin)
	if err != nil {
		err = waitEnded(ctx, q.s.m, err, o.began, firstAhead(behind, Mode(behind.Mode)), behind.Place)
		o.end(err)
		return nil, nil, err
	}
	return o.got(ctx, g), g, nil
}

// The method `op` describes a wait for q.
func (q *localLock) op(mode lock.HoldMode) Op {
	return Op{Kind: OpAcquire, Primitive: q.kind, Name: q.local.OpOf(mode), Path: q.path}
}

// The method `try` makes one attempt at a grant. It returns a nil grant if another contender is
// ahead. Such an attempt is not reported.
func (q *localLock) try(ctx context.Context, mode lock.HoldMode) (*lock.Grant, error) {
	if err := q.entering(ctx, q.local.Line.Bases); err != nil {
		return nil, err
	}
	start := time.Now()
	g, err := q.local.Try(ctx, mode)
	if g != nil {
		_, o := q.s.begin(ctx, q.op(mode))
		o.began = start
		o.got(ctx, g)
	}
	return g, err
}

// The method `parts` returns the lock of a Locker of this package, and the modes in which the
// Locker can hold it. The first mode is the mode of Lock.
func (q *localLock) parts() (*localLock, []lock.HoldMode) {
	return q, []lock.HoldMode{lock.Exclusive, lock.Shared}
}

func (q *localLock) release(mode lock.HoldMode) error {
	if q.misuse() != nil {
		return q.misuse()
	}
	return q.local.Unlock(mode)
}

// Lost returns a channel that is closed when the present hold is lost. Without a hold, it is
// closed. A release does not close it.
func (q *localLock) Lost() <-chan struct{} {
	if q.misuse() != nil {
		return session.ClosedChan
	}
	return q.local.Standing(lock.Exclusive, lock.Shared).Done()
}

// The method `current` returns a hold of q for a goroutine that holds, in the Do d or, if d is nil, in
// none.
func (q *localLock) current(d *doCall) (*lock.Grant, error) {
	if q.misuse() != nil {
		return nil, q.misuse()
	}
	return q.local.Current(d.bare())
}

// Token returns the fencing token of the present hold, greater than those of all earlier holds, even
// if the path was deleted since: storage can refuse late writes. The first call of a hold takes 1
// round trip, later calls none.
func (q *localLock) Token(ctx context.Context) (tok int64, err error) {
	err = q.withCurrent(ctx, func(g *lock.Grant) (err error) {
		tok, err = g.Token(ctx)
		return err
	})
	return tok, opError("token", q.path, err)
}

// Txn applies writes to ZooKeeper, all or none, and only if the present hold is not lost: the
// servers check it. [Session.Txn] has the rest.
func (q *localLock) Txn(ctx context.Context, ops ...any) (rs []zk.MultiResponse, err error) {
	err = q.withCurrent(ctx, func(g *lock.Grant) (err error) {
		// This is not g's channel. If g is the use of a reader, the RUnlock of another reader may end it.
		rs, err = q.s.sending(ctx, q.Lost(), ops, func(ops []any) ([]zk.MultiResponse, error) { return g.Txn(ctx, ops) })
		return err
	})
	return rs, opError("txn", q.path, err)
}

// withCurrent calls f with a hold of this process. If the process has several readers, the hold may
// belong to another goroutine, which unlocks it at this moment. Then f does nothing and returns
// ErrNotLocked, and withCurrent calls f again with another hold. If q has no readers, a later hold is
// not the caller's.
func (q *localLock) withCurrent(ctx context.Context, f func(g *lock.Grant) error) error {
	for {
		g, err := q.current(q.within(ctx))
		if err != nil {
			return err
		}
		if err = f(g); err == ErrNotLocked && len(q.local.Line.Bases) > 1 {
			continue
		}
		if errors.Is(err, ErrLost) {
			q.Lost() // g may be the released hold of another goroutine; our hold is lost too, and Lost must show that before we return
		}
		return err
	}
}

// The method `do` does the work of Do and RDo, and of one leadership of Run: it runs f with a hold,
// and releases the hold, or the hold that Cond.Wait has acquired instead. If f has unlocked the hold in
// another way, `do` has nothing to release, and returns ErrNotLocked.
func (q *localLock) do(ctx context.Context, op string, mode lock.HoldMode, f func(ctx context.Context) error) error {
	if q.misuse() == nil && f == nil {
		return opError(op, q.path, session.Invalid("the function is nil"))
	}
	if d := q.within(ctx); d != nil && ctx.Err() == nil && !q.local.Elects {
		return d.nest(ctx, op, q.path, mode, f)
	}
	ctx, g, err := q.acquire(ctx, mode, true)
	if err != nil {
		return opError(op, q.path, err)
	}
	d := q.newDoCall(ctx, q.kind, q.local.Line.Bases[mode], g)
	if err := d.function.Begin(); err != nil {
		q.s.m.GiveUp(ctx, g.Release)
		return opError(op, q.path, err)
	}
	return doHolding(ctx, q.s, d, f, func() error {
		g := d.grant()
		if g == nil {
			d.function.End()
			return opError(op, q.path, ErrNotLocked)
		}
		return opError(op, q.path, d.giveUp(ctx, q.s.m, g.Release))
	})
}

// The method `within` returns the call of Do, RDo or Run from which ctx comes, if that call is of
// this path and still runs.
func (q *localLock) within(ctx context.Context) *doCall {
	return q.callOf(ctx, q.local.Line.Bases, func(d *doCall) bool { return d.kind == q.kind })
}

// The method `yield` begins to release the caller's hold in mode, for Cond.Wait. It chooses this
// hold before it returns. The result `finish` waits until this hold is released. The result `again`
// acquires another hold. If the caller is inside a Do, d is the call of that Do, and the new hold
// belongs to d. Until `again` has succeeded, d has no hold, and no loss ends d's context.
func (q *localLock) yield(d *doCall, mode lock.HoldMode) (finish func() error, again func(ctx context.Context) error) {
	g, own := d.grant(), false
	if had, ok := g.Mode(); ok && had == mode {
		d.set(nil) // before BeginRelease, which may find a loss
		if finish, own = g.BeginRelease(); !own {
			d.set(g) // the grant of a Once
		}
	}
	if !own {
		// Perhaps an earlier Cond.Wait inside d has failed. Then d has no hold, and another Do may have
		// the lock. Wait must not release the hold of that Do.
		finish = q.local.BeginUnlock(mode, d != nil)
	}
	return finish, func(ctx context.Context) error {
		_, g, err := q.acquire(ctx, mode, own)
		if own && err == nil {
			d.set(g)
		}
		return err
	}
}

// Contenders returns the holders and the waiters, in order.
func (q *localLock) Contenders(ctx context.Context) ([]Contender, error) {
	l := &q.local.Line
	return q.contenders(ctx, l, func(all []lock.Child, i int) (Mode, bool) {
		// If two znodes have the same number, they are the write znode and the read znode of one hold.
		ahead := all[:i]
		if i > 0 && all[i-1].Base != all[i].Base && all[i-1].SamePlace(all[i]) {
			ahead = all[:i-1]
		}
		mode := lock.HoldMode(slices.Index(l.Bases, all[i].Base))
		blocker, _ := l.Blocker(mode, ahead)
		return Mode(mode), blocker == nil
	})
}

// The method `contenders` does the work of the methods named Contenders, for the line of m. The
// function judge returns the mode of the i'th contender, and whether that contender holds.
func (m *made) contenders(ctx context.Context, l *lock.Line, judge func(all []lock.Child, i int) (Mode, bool)) (out []Contender, err error) {
	defer m.wrap("contenders", &err)
	err = m.during(ctx, func(inc *session.Incarnation) error {
		all, err := l.List(ctx, inc, inc.Names)
		if err != nil {
			return err
		}
		var names []string
		for _, c := range all {
			names = append(names, c.Name)
		}
		out, err = describe(ctx, inc, l.Dir, names, func(i int) (Mode, bool) { return judge(all, i) })
		return err
	})
	return out, err
}

// A doCall is one call of Do, with the grant that it has.
type doCall struct {
	function session.Function
	outer    *doCall // the call of the same Session in whose function this call was made, or nil
	over     atomic.Bool

	kind, path, base string // of the primitive, and of the name of its contender; primitives of one path with different kinds do not nest

	mu   sync.Mutex
	g    *lock.Grant     // nil while Cond.Wait has released it; guarded by mu
	lost *session.Ending // ends when g is lost or Resign ends it, and stays ended until d has another g; guarded by mu
}

// newDoCall returns the doCall of a new call of Do, which has the grant g. If Close begins before d's
// function begins, the function must not run, and g is lost.
func (m *made) newDoCall(ctx context.Context, kind, base string, g *lock.Grant) *doCall {
	d := &doCall{function: m.s.m.Function(m.s.m.FunctionOf(ctx)), kind: kind, path: m.path, base: base}
	d.set(g)
	return d
}

// The method `callOf` looks for the calls that have made ctx and still run. It returns the innermost
// call that fits and has a contender in the line of m's path, with one of `bases`.
func (m *made) callOf(ctx context.Context, bases []string, fits func(d *doCall) bool) *doCall {
	if m.s == nil {
		return nil
	}
	d, _ := ctx.Value(m.s).(*doCall)
	for d != nil && (d.over.Load() || d.path != m.path || !slices.Contains(bases, d.base) || !fits(d)) {
		d = d.outer
	}
	return d
}

// The method `entering` returns the reason why a contender cannot enter the line of m's path, or nil.
// If ctx was made by a function that has a contender there, with one of `bases`, the new contender
// would wait for that function. The two may belong to different primitives, such as an Election and a
// Mutex.
func (m *made) entering(ctx context.Context, bases []string) error {
	err := m.check(ctx)
	if err == nil && m.callOf(ctx, bases, (*doCall).holds) != nil {
		err = ErrDeadlock
	}
	return err
}

// The method `grant` returns d's grant, which may have been unlocked already. d may be nil.
func (d *doCall) grant() *lock.Grant {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.g
}

// The method `ending` returns the Ending that ends d's contexts.
func (d *doCall) ending() *session.Ending {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

// The method `set` replaces the grant of d by g, which may be nil.
func (d *doCall) set(g *lock.Grant) {
	d.mu.Lock()
	d.g = g
	if d.lost == nil || g != nil && d.lost.Cause() != nil {
		d.lost = new(session.Ending)
	}
	lost := d.lost
	d.mu.Unlock()
	if g != nil { // if g is nil, d no longer notices the loss of its former hold
		g.Within(&d.function)
		g.Loss().AfterFunc(func(why error) {
			d.mu.Lock()
			has := d.g == g
			d.mu.Unlock()
			if has {
				lost.End(why)
			}
		})
	}
}

// The method `holds` reports whether d still has a hold to release. The hold may be lost.
func (d *doCall) holds() bool {
	_, ok := d.grant().Mode()
	return ok
}

// The method `bare` reports whether d has no hold: after an Unlock, or a Wait that could not take it
// back. Then the lock may belong to another Do. A nil d is not bare.
func (d *doCall) bare() bool { return d != nil && !d.holds() }

// The method `stands` returns nil while d's hold is valid and is enough for mode.
func (d *doCall) stands(mode lock.HoldMode) error {
	g := d.grant()
	had, ok := g.Mode()
	switch {
	case !ok || d.over.Load():
		return ErrNotLocked // the function has unlocked the lock, or has returned
	case had != mode && mode == lock.Exclusive:
		return fmt.Errorf("%w, for reading, which cannot be upgraded", ErrDeadlock) // inside RDo, or after a Downgrade
	}
	return g.Err()
}

// untilLost returns a context that ends when d's hold is lost, before any other call or channel shows
// the loss. It also ends when the Session begins to close, with cause ErrClosed, and at `stop`.
func (d *doCall) untilLost(ctx context.Context) (_ context.Context, stop func()) {
	ctx, end, rest := session.EndingContext(ctx)
	leave := d.ending().AfterFunc(end)
	stay := d.function.AfterClose(end)
	return ctx, func() {
		leave()
		stay()
		end(nil)
		rest()
	}
}

// The method `nest` runs f inside d, whose hold ends the context of f.
func (d *doCall) nest(ctx context.Context, op, path string, mode lock.HoldMode, f func(ctx context.Context) error) error {
	if err := d.stands(mode); err != nil {
		return opError(op, path, err)
	}
	ctx, stop := d.untilLost(ctx)
	defer stop()
	err := f(ctx)
	// Report a loss while f ran. A shared hold is enough here, because f may have downgraded the hold.
	return session.JoinErrors([]error{err, opError(op, path, d.stands(lock.Shared))})
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
func doHolding(ctx context.Context, s *Session, d *doCall, f func(ctx context.Context) error, release func() error) (err error) {
	d.outer, _ = ctx.Value(s).(*doCall)
	ctx, stop := d.untilLost(d.function.In(context.WithValue(ctx, s, d)))
	defer func() {
		d.over.Store(true)
		stop()
		err = session.JoinErrors([]error{err, release()})
	}()
	return f(ctx)
}
