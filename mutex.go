package zsync

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A Mutex is a mutual exclusion lock that processes share by its path:
//
//	m := zsync.NewMutex(s, "/locks/accounts")
//	err := m.Do(ctx, func(ctx context.Context) error { … }) // ctx ends if the lock is lost
//	err = m.Lock(ctx)                                       // or, as with sync.Mutex, this, and then
//	err = m.Unlock()
//
// At most one live session holds it. Waiters are served in the order in which the servers stored
// them. Goroutines that use one *Mutex share one place ([WithHandoffs]). The n'th Unlock
// synchronizes before the m'th Lock for n < m.
//
// # Loss
//
// If the session ends, or another client deletes the znode, the Mutex is lost and another process
// may hold it. Unlock a lost Mutex, too: until then, Lock waits, so two goroutines with one *Mutex
// never work at once. Lock returns [ErrDeadlock] if the lost hold is not of a Do, and no Unlock
// comes within one to two session timeouts. Against late writes, use [Mutex.Token] or [Mutex.Txn].
//
// # Cost
//
// Lock of a free Mutex and Unlock take 1 round trip each. A handoff to another process takes 1, and
// a handoff between goroutines of one *Mutex none.
//
// # Znodes
//
// A contender is path/_c_<uuid>-lock-<seq>, as in Curator (docs/interop.md).
type Mutex struct {
	made
	local localLock
}

// NewMutex returns the Mutex at path.
func NewMutex(s *Session, path string, opts ...LockOption) *Mutex {
	c := newSetup(opts)
	if err := checkNew(s, path, c.err); err != nil {
		return &Mutex{made: made{s: s, path: path, err: err}}
	}
	return newMutex(s, path, c)
}

// newMutex does the work of NewMutex, but does not check its arguments.
func newMutex(s *Session, path string, c setup) *Mutex {
	base := "lock-"
	if c.layout == LayoutKazoo {
		base = "__lock__"
	}
	m := &Mutex{made: made{s: s, path: path}}
	ln := lock.New(s.m, path, c.layout.naming(), base)
	ln.Strict, ln.Settled, ln.Limits, ln.Kept = true, true, c.limits, c.layout == LayoutKazoo // kazoo's objects create the path once each
	ln.Kind, ln.Keeps = trace.Mutex, c.retain > 0
	m.local.init(s, "mutex", "lock", path, ln, c)
	return m
}

// Lock locks m. It waits until m is free, ctx ends, or the Session is closed.
func (m *Mutex) Lock(ctx context.Context) error { return opError("lock", m.path, m.lock(ctx)) }

func (m *Mutex) lock(ctx context.Context) error {
	_, _, err := m.acquire(ctx, &m.local, lock.Exclusive, false)
	return err
}

// TryLock tries to lock m and reports whether it succeeded. It waits for the servers, not for a
// holder. If m may be unused but retained, TryLock waits up to half a second. A lock unlocked
// before the call counts as free.
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	ok, err := m.tryLock(ctx)
	return ok, opError("trylock", m.path, err)
}

func (m *Mutex) tryLock(ctx context.Context) (bool, error) {
	return m.try(ctx, &m.local, lock.Exclusive)
}

// Unlock unlocks m. After [ErrLost], nothing is left to unlock.
func (m *Mutex) Unlock() error { return opError("unlock", m.path, m.unlock()) }

func (m *Mutex) unlock() error { return m.release(&m.local, lock.Exclusive) }

// Lost returns a channel that is closed when the present hold is lost. Without a hold, it is
// closed. Unlock does not close it.
func (m *Mutex) Lost() <-chan struct{} { return m.lost(&m.local, lock.Exclusive) }

// Token returns the fencing token of the present hold: a number greater than the token of every
// earlier hold of the path, even if the path was deleted since. Storage that remembers the
// greatest token can refuse a late write. The first call of a hold takes 1 round trip, later
// calls none.
func (m *Mutex) Token(ctx context.Context) (int64, error) {
	return m.token(ctx, &m.local)
}

// Txn applies writes to ZooKeeper, all or none, and only if the present hold is not lost: the
// servers check it. [Session.Txn] has the rest.
func (m *Mutex) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return m.txn(ctx, &m.local, ops)
}

// Revoke asks m's holder to release m: the holder's [Mutex.Revoked] is closed. The holder decides;
// later holders are not asked. To release a place that is only retained, Revoke joins the line for
// up to half a second. Without a holder, it returns [ErrNotLocked]. The owner in the znode becomes
// __REVOKE__.
func (m *Mutex) Revoke(ctx context.Context) (err error) {
	defer m.wrap("revoke", &err)
	if m.misuse() != nil {
		return m.misuse()
	}
	return m.s.m.During(ctx, func(inc *session.Incarnation) error {
		dir := m.local.Line.Dir
		holder, err := m.local.Line.First(ctx, inc, inc.NamesFresh)
		if err != nil {
			return err
		}
		if holder == "" {
			return ErrNotLocked
		}
		if recalled, err := m.local.Line.Recall(ctx, holder); recalled || err != nil {
			return err
		}
		// Names of znodes are unique, so a repeated write can only reach the same holder.
		_, err = inc.Set(ctx, session.ChildPath(dir, holder), []byte(lock.RevokeMessage), -1)
		if session.IsNoNode(err) {
			return nil // the holder has released m already
		}
		return err
	})
}

// Revoked returns a channel that is closed if there is no hold, and when [Mutex.Revoke] or
// Curator's Revoker asks the present holder to release m. From then on, the goroutines of the
// process no longer hand m over.
func (m *Mutex) Revoked() <-chan struct{} {
	g, _, err := m.current(&m.local, nil)
	if err != nil {
		return session.ClosedChan
	}
	return g.Claim.Asked()
}

// Contenders returns the holder and the waiters of m, in order.
func (m *Mutex) Contenders(ctx context.Context) ([]Contender, error) {
	return m.contenders(ctx, &m.local.Line, firstHolds)
}

// Do runs f while it holds m, and returns f's error, the error of the release, or both joined. f's
// context ends with cause [ErrLost] after a loss, and [ErrClosed] at [Session.Close], which waits
// for f. Return soon from f then.
//
// Do is reentrant through its context: with a ctx from Do of the same path, it runs f at once, and
// returns ErrLost or [ErrNotLocked] if the outer hold is over by the time f returns. If f panics,
// Do unlocks m and panics. After the end of ctx, it unlocks in the background if need be.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return m.doThen(ctx, func() {}, f)
}

// doThen does the work of Do. It calls the function `rest` before it releases m. If ctx has ended,
// both happen in the background.
func (m *Mutex) doThen(ctx context.Context, rest func(), f func(ctx context.Context) error) error {
	return m.do(ctx, &m.local, "do", lock.Exclusive, rest, f)
}

// The method `parts` returns the lock of a Locker of this package, and the modes in which the
// Locker can hold it. The first mode is the mode of Lock.
func (m *Mutex) parts() (*localLock, []lock.HoldMode) {
	return &m.local, []lock.HoldMode{lock.Exclusive}
}

// The methods below do the work of a Mutex, an RWMutex or an Election, whose lock is q.

// The method `acquire` waits for a grant. For `pin` and the results, see localLock.acquire.
func (m *made) acquire(ctx context.Context, q *localLock, mode lock.HoldMode, pin bool) (context.Context, *lock.Grant, error) {
	if err := m.entering(ctx, q); err != nil {
		return nil, nil, err
	}
	return q.acquire(ctx, mode, pin)
}

// The method `entering` returns the reason why an acquisition cannot begin, or nil.
func (m *made) entering(ctx context.Context, q *localLock) error {
	err := m.check(ctx)
	if err == nil && (q.within(ctx).holds() || inLine(ctx, m.s, m.path, q.Line.Bases[0])) {
		err = ErrDeadlock
	}
	return err
}

func (m *made) try(ctx context.Context, q *localLock, mode lock.HoldMode) (bool, error) {
	if err := m.entering(ctx, q); err != nil {
		return false, err
	}
	g, err := q.try(ctx, mode)
	return g != nil, err
}

func (m *made) release(q *localLock, mode lock.HoldMode) error {
	if m.misuse() != nil {
		return m.misuse()
	}
	return q.Unlock(mode)
}

func (m *made) lost(q *localLock, modes ...lock.HoldMode) <-chan struct{} {
	if m.misuse() != nil {
		return session.ClosedChan
	}
	return q.Standing(modes...).Done()
}

func (m *made) token(ctx context.Context, q *localLock) (tok int64, err error) {
	err = m.withCurrent(ctx, q, func(g *lock.Grant, mode lock.HoldMode) (err error) {
		tok, err = g.Token(ctx, mode == lock.Exclusive)
		return err
	})
	return tok, opError("token", m.path, err)
}

func (m *made) txn(ctx context.Context, q *localLock, ops []any) (rs []zk.MultiResponse, err error) {
	err = m.withCurrent(ctx, q, func(g *lock.Grant, _ lock.HoldMode) (err error) {
		// The channel is not that of g. If g is the use of a reader, the RUnlock of another reader may end it.
		lost := m.lost(q, lock.Exclusive, lock.Shared)
		rs, err = m.s.sending(ctx, lost, ops, func(ops []any) ([]zk.MultiResponse, error) { return q.Txn(ctx, g, ops) })
		return err
	})
	return rs, opError("txn", m.path, err)
}

// withCurrent calls f with a hold of this process. If the process has several readers, the hold
// may belong to another goroutine, which unlocks it at this moment. In that case, f does
// nothing and returns ErrNotLocked, and withCurrent calls f again with another hold. So a
// goroutine that holds q during the whole call never gets ErrNotLocked. If q has no readers, a
// later hold is not the caller's.
func (m *made) withCurrent(ctx context.Context, q *localLock, f func(g *lock.Grant, mode lock.HoldMode) error) error {
	for {
		g, mode, err := m.current(q, q.within(ctx))
		if err != nil {
			return err
		}
		if err = f(g, mode); err == ErrNotLocked && len(q.Line.Bases) > 1 {
			continue
		}
		if errors.Is(err, ErrLost) {
			m.lost(q, lock.Exclusive, lock.Shared) // g may be the released hold of another goroutine; our hold is lost too, and Lost must show that before we return
		}
		return err
	}
}

// The method `do` does the work of Do and RDo. It calls the function `rest` before the release.
func (m *made) do(ctx context.Context, q *localLock, op string, mode lock.HoldMode, rest func(), f func(ctx context.Context) error) error {
	if m.misuse() == nil && f == nil {
		return opError(op, m.path, session.Invalid("the function is nil"))
	}
	if d := q.within(ctx); d != nil && ctx.Err() == nil {
		return d.nest(ctx, op, m.path, mode, f)
	}
	ctx, g, err := m.acquire(ctx, q, mode, true)
	if err != nil {
		return opError(op, m.path, err)
	}
	return q.do(ctx, q.key(mode), op, g, f, rest)
}

// The method `key` returns the key of a Do in mode.
func (q *localLock) key(mode lock.HoldMode) doKey {
	return doKey{q.s, q.Path, q.prefix + q.Line.Bases[mode]}
}

// The method `within` returns the call of Do, RDo or Run from which ctx comes, if that call is of
// this path and still runs. If ctx comes from a Do and an RDo, the result is the Do.
func (q *localLock) within(ctx context.Context) *doCall {
	if q.s == nil || q.s.m.FunctionOf(ctx) == nil {
		return nil
	}
	for mode := range q.Line.Bases {
		if d := q.key(lock.HoldMode(mode)).in(ctx); d != nil {
			return d
		}
	}
	return nil
}

// newDoCall returns the doCall of a new call of Do, which has the grant g of the lock q. For a
// grant that is not a lock's, q is nil. If Close begins before d's function begins, the function
// must not run, and g is lost.
func newDoCall(ctx context.Context, s *Session, q *localLock, g *lock.Grant) *doCall {
	d := &doCall{function: s.m.Function(s.m.FunctionOf(ctx))}
	d.set(q, g)
	return d
}

// The method `now` returns d's lock and grant. The grant may have been unlocked already.
func (d *doCall) now() (*localLock, *lock.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.q, d.g
}

// The method `set` replaces the grant of d by g, which may be nil.
func (d *doCall) set(q *localLock, g *lock.Grant) {
	d.mu.Lock()
	d.q, d.g = q, g
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

// The method `mode` returns the mode in which d holds a lock, even if that hold is lost. If the
// lock was unlocked, ok is false.
func (d *doCall) mode() (mode lock.HoldMode, ok bool) {
	q, g := d.now()
	if q == nil || g == nil {
		return 0, false
	}
	return q.ModeOf(g)
}

// The method `holds` reports whether d still has a hold to release. The hold may be lost.
func (d *doCall) holds() bool {
	if d == nil {
		return false
	}
	if q, _ := d.now(); q == nil {
		return true
	}
	_, ok := d.mode()
	return ok
}

// The method `bare` reports whether d has no hold: an Unlock has ended it, or Cond.Wait could not
// take it back. Then the lock may belong to another Do. A nil d is not bare.
func (d *doCall) bare() bool { return d != nil && !d.holds() }

// The method `stands` returns nil while d's hold is valid and is enough for mode.
func (d *doCall) stands(mode lock.HoldMode) error {
	had, ok := d.mode()
	switch q, g := d.now(); {
	case q == nil && !d.over.Load():
		return g.Err() // g is the grant of a Once, which shares a Mutex's line
	case !ok || d.over.Load():
		return ErrNotLocked // the function has unlocked the lock, or has returned
	case had != mode && mode == lock.Exclusive:
		return fmt.Errorf("%w, for reading, which cannot be upgraded", ErrDeadlock) // inside RDo, or after a Downgrade
	default:
		return g.Err()
	}
}

// untilLost returns a context that ends when d's hold is lost. The context ends before any other
// call or channel shows the loss. The context also ends, with cause ErrClosed, when the Session
// begins to close, and when stop is called.
func (d *doCall) untilLost(ctx context.Context) (_ context.Context, stop func()) {
	ctx, end, rest := session.EndingContext(ctx)
	d.mu.Lock()
	lost := d.lost
	d.mu.Unlock()
	leave := lost.AfterFunc(end)
	stay := d.function.AfterClose(end)
	return ctx, func() {
		leave()
		stay()
		end(nil)
		rest()
	}
}
