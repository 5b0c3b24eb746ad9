package zsync

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/local"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A Mutex is a mutual exclusion lock shared by every process that names the
// same path:
//
//	err := m.Do(ctx, func(ctx context.Context) error { … }) // ctx ends if the lock is lost
//
// or, as with sync.Mutex, Lock and Unlock.
//
// At most one live session holds the Mutex. Waiters are served in the order in
// which the servers saw them arrive; see [WithHandoffs] for the goroutines
// that use one *Mutex, which share one place in the line. In the terminology
// of the Go memory model, the n'th Unlock synchronizes before the m'th Lock
// for n < m, for callers in one process.
//
// # Loss
//
// If the session ends, or somebody deletes the znode, the Mutex is no longer
// held and another process may hold it already: [Mutex.Lost] is closed, and
// Unlock returns [ErrLost]. A Lock that only waits carries on in the next
// session, at the back of the line. A lost hold must be unlocked, too: until then
// Lock waits, so that two goroutines of a process do not meet. If no Do has it and it is not
// unlocked within one to two session timeouts, Lock returns [ErrDeadlock]. Code that writes
// elsewhere while holding m should pass [Mutex.Token] along, and code that writes to ZooKeeper should
// use [Mutex.Txn].
//
// # Errors
//
// Unlock and Token return [ErrNotLocked] if m is not locked, and ErrLost if
// the hold was lost. Lock and TryLock return [ErrDeadlock] with a ctx that
// comes from Do of the same path. Lock returns [ErrMixed] behind a contender
// of another kind of lock, or of another layout.
//
// # Znodes
//
// Each Lock writes one ephemeral, sequential znode, path/_c_<uuid>-lock-<seq>,
// whose data is the owner in plain text ([WithOwner]). path is a
// container, created if missing, and removed by the servers once empty. Its parents
// are persistent.
// With [LayoutKazoo] the name is <guid>__lock__<seq>. Children with other
// names are ignored.
//
// # Cost
//
// Lock costs 2 requests in 1 round trip when the Mutex is free, and 1 in the
// background if it is held for longer than 10 ms: a watch on its own znode.
//
// A wait adds two watches in 1 round trip: one on that znode, and one on the
// znode just ahead in the line, which fires only when that one goes. After the
// wait nothing more is sent. If more than one was ahead, listings are made
// in the meantime: as a rule one to four, and eight at most. If the servers
// answer within 0.2 ms it is one, after the wait.
//
// Unlock costs 1, and a notification. A hand-over between goroutines that use
// one *Mutex costs none. With [WithRetention] a Lock that follows an Unlock of
// the same process costs none either, as long as nobody else comes.
//
// # Algorithm
//
// The algorithm is "Locks" from the ZooKeeper recipes, with unique names
// against lost replies, as Curator's InterProcessMutex has them.
type Mutex struct {
	made
	local localLock
}

// NewMutex returns the Mutex at path. It does no I/O; a bad argument is
// reported by every method.
func NewMutex(s *Session, path string, opts ...LockOption) *Mutex {
	c := newLockConfig(opts)
	if err := checkNew(s, path, c.err); err != nil {
		return &Mutex{made: made{s: s, path: path, err: err}}
	}
	return newMutex(s, path, c)
}

// newMutex is NewMutex without a look at its arguments.
func newMutex(s *Session, path string, c lockConfig) *Mutex {
	entries := &mutexEntries
	if c.layout == LayoutKazoo {
		entries = &kazooMutexEntries
	}
	base := entries.Of(local.Exclusive).Base
	m := &Mutex{made: made{s: s, path: path}}
	ln := line.New(s.m, path, c.layout.naming(), base)
	ln.Strict, ln.Settled, ln.Limits, ln.Kept = true, true, c.limits.ofLine(), c.layout == LayoutKazoo // its objects make it once each
	ln.Kind, ln.Keeps = trace.Mutex, c.retain > 0
	m.local.init(s, path, ln, c, entries)
	return m
}

// How a Mutex is entered, by layout.
var (
	mutexEntries      = local.Entries{local.Exclusive: {Base: "lock-", Rule: line.Exclusive, Op: "lock"}}
	kazooMutexEntries = local.Entries{local.Exclusive: {Base: "__lock__", Rule: line.Exclusive, Op: "lock"}}
)

// Path returns the path that m was made with.
func (m *Mutex) Path() string { return m.path }

// Lock locks m. It waits until m is free, ctx ends, or the Session is closed.
//
// When Lock returns an error m is not held by the caller and nothing of it is
// left in the line. A ctx that has ended already fails even if m is free. With
// a ctx that comes from [Mutex.Do] of the same path, Lock returns
// [ErrDeadlock].
func (m *Mutex) Lock(ctx context.Context) error {
	return opError("lock", m.path, m.lock(ctx))
}

func (m *Mutex) lock(ctx context.Context) error {
	if err := m.check(ctx); err != nil {
		return err
	}
	g, err := m.local.acquire(ctx, local.Exclusive, false)
	m.local.follow(ctx, local.Exclusive, g)
	return err
}

// check is what every acquisition asks first.
func (m *Mutex) check(ctx context.Context) error {
	switch {
	case m.misuse() != nil:
		return m.misuse()
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	case m.holderOf(ctx).holds():
		return ErrDeadlock
	}
	return nil
}

// TryLock tries to lock m and reports whether it succeeded. It waits for the
// servers' answers, but not for a holder, unless that one may only keep his place
// ([WithRetention]): for him it waits up to half a second. Before it reports false
// it has asked a server that has caught up with the others, so what was unlocked
// before is found free. It costs 3 requests. With a ctx that comes from [Mutex.Do]
// of the same path, TryLock returns [ErrDeadlock].
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	ok, err := m.tryLock(ctx)
	return ok, opError("trylock", m.path, err)
}

func (m *Mutex) tryLock(ctx context.Context) (bool, error) {
	if err := m.check(ctx); err != nil {
		return false, err
	}
	g, err := m.local.try(ctx, local.Exclusive)
	return g != nil, err
}

// Unlock unlocks m. It returns [ErrNotLocked] if m is not locked, and
// [ErrLost] if the hold was lost, in which case there is nothing to unlock any
// more.
//
// Unlock cannot fail to give up. It returns within half a second, and at once if
// the connection is down: what is not done by then the Session goes on with.
func (m *Mutex) Unlock() error {
	if m.misuse() != nil {
		return opError("unlock", m.path, m.misuse())
	}
	return opError("unlock", m.path, m.unlock())
}

func (m *Mutex) unlock() error { return m.local.Unlock(local.Exclusive) }

// current returns what this process holds, for the goroutine that has it.
func (m *Mutex) current() (*line.Grant, error) {
	if m.misuse() != nil {
		return nil, m.misuse()
	}
	g, _, err := m.local.Current()
	return g, err
}

// Lost returns a channel that is closed when the present hold is lost: the
// session has ended, or may have, or the znode was found deleted. While m is
// not locked, the channel is closed already. It is not closed by Unlock.
func (m *Mutex) Lost() <-chan struct{} {
	if m.misuse() != nil {
		return session.ClosedChan
	}
	return m.local.lost(local.Exclusive)
}

// Token returns the fencing token of the present hold: a number greater than
// that of every earlier hold of the same path, by whomever, and whatever
// happened to the path in between. It is the zxid of a write that is made
// while the hold stands. A storage service that remembers the greatest token
// it has seen can refuse a late write of a former holder.
//
// The first call of a hold costs one write, the others nothing. The errors are
// [ErrNotLocked] and [ErrLost].
func (m *Mutex) Token(ctx context.Context) (int64, error) {
	g, err := m.current()
	if err != nil {
		return 0, opError("token", m.path, err)
	}
	tok, err := g.Token(ctx, true)
	return tok, opError("token", m.path, err)
}

// Txn applies writes to ZooKeeper, all or none, and only while the present hold
// stands: the servers themselves check it. If it is lost the error is
// [ErrLost]. See [Session.Txn] for ops, lost replies and
// costs.
func (m *Mutex) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	g, err := m.current()
	if err != nil {
		return nil, opError("txn", m.path, err)
	}
	rs, err := m.local.Txn(ctx, g, ops)
	return rs, opError("txn", m.path, err)
}

// Revoke asks whoever holds m to give it up: its [Mutex.Revoked] tells it. What
// comes of that is up to the holder, and no later hold is told of it. A place that is
// only kept, see [WithRetention], is given up. It returns [ErrNotLocked] if nobody holds m.
//
// The holder may be a program that uses Curator's InterProcessMutex.makeRevocable,
// and is asked as Curator's Revoker does it: the data of its znode become
// __REVOKE__, so Contenders shows that for its owner. It costs 3 requests in 2 round trips;
// where the holder uses [WithRetention] it stands in the line first, for half a second at most.
func (m *Mutex) Revoke(ctx context.Context) error {
	return opError("revoke", m.path, m.revoke(ctx))
}

func (m *Mutex) revoke(ctx context.Context) error {
	if m.misuse() != nil {
		return m.misuse()
	}
	return m.s.m.During(ctx, func(inc *session.Incarnation) error {
		dir := m.local.Line.Dir
		holder, err := m.local.Line.First(ctx, inc, inc.ChildrenFresh)
		if err != nil {
			return err
		}
		if holder == "" {
			return ErrNotLocked
		}
		if recalled, err := m.local.Line.Recall(ctx, holder); recalled || err != nil {
			return err
		}
		// Names are unique: written twice, it asks the same one.
		_, err = inc.Set(ctx, session.ChildPath(dir, holder), []byte(line.RevokeMessage), -1)
		if session.IsNoNode(err) {
			return nil // it has given up meanwhile
		}
		return err
	})
}

// Revoked returns a channel that is closed when the present holder is asked to give
// m up, by [Mutex.Revoke] or by Curator's Revoker. While m is not locked it is
// closed already. The whole process is asked: a goroutine that is handed m by
// another one of the process is asked too, and from then on m is handed on to other
// processes only.
//
// # Cost
//
// The first call of a hold costs one request, and sets a watch; after that a Token
// costs one more.
func (m *Mutex) Revoked() <-chan struct{} {
	g, err := m.current()
	if err != nil {
		return session.ClosedChan
	}
	return g.Claim.Asked()
}

// Contenders returns who holds m and who waits, in their order. It costs one
// listing and one read for every 128 of them.
func (m *Mutex) Contenders(ctx context.Context) ([]Contender, error) {
	if m.misuse() != nil {
		return nil, opError("contenders", m.path, m.misuse())
	}
	cs, err := contenders(ctx, &m.local.Line, func(all []line.Child, i int) (Mode, bool) {
		return ModeExclusive, i == 0
	})
	return cs, opError("contenders", m.path, err)
}

// Do runs f while it holds m. f's context ends, with cause [ErrLost], when the
// hold is lost, and with cause [ErrClosed] when [Session.Close] is called, which waits
// for f; f should then stop as soon as it can. Do returns f's error, or
// else that of the release: [ErrLost] if the hold was lost while f ran. If
// both fail the error matches both.
//
// Do is reentrant along its context: with a ctx that comes from Do of the same
// path it runs f at once, without a second znode, or returns [ErrLost] or
// [ErrNotLocked] if what that Do held is lost or unlocked, or has been by the time
// f returns. If f panics m is
// unlocked and the panic goes on. When ctx has ended Do does not wait for
// servers that do not answer; m is then unlocked in the background.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if m.misuse() == nil && f == nil {
		return opError("do", m.path, session.Invalid("the function is nil"))
	}
	if m.misuse() == nil && ctx.Err() == nil {
		if d := m.holderOf(ctx); d != nil {
			return d.nest(ctx, "do", m.path, local.Exclusive, f)
		}
	}
	return m.doThen(ctx, func() {}, f)
}

// doThen is Do, not nested, which releases when rest has returned: behind its caller if
// his ctx has ended.
func (m *Mutex) doThen(ctx context.Context, rest func(), f func(ctx context.Context) error) error {
	if err := m.check(ctx); err != nil {
		return opError("do", m.path, err)
	}
	g, err := m.local.acquire(ctx, local.Exclusive, true)
	if err != nil {
		return opError("do", m.path, err)
	}
	return m.local.do(m.local.follow(ctx, local.Exclusive, g), m.doKey(), "do", g, f, rest)
}

func (m *Mutex) doKey() doKey { return doKey{m.s, m.path, m.local.Line.Bases[0]} }

// holderOf returns the Do of this path in which ctx was made, if that still
// runs.
func (m *Mutex) holderOf(ctx context.Context) *doCall { return m.doKey().in(ctx) }

// newDoCall returns the call of Do that has g, of q unless that is nil. Close may begin now: if d's
// function has not begun by then it must not run, and g is lost.
func newDoCall(ctx context.Context, s *Session, q *localLock, g *line.Grant) *doCall {
	d := &doCall{function: s.m.Function(s.m.FunctionOf(ctx))}
	d.set(q, g)
	return d
}

// now returns what d has; its grant may have been unlocked since.
func (d *doCall) now() (*localLock, *line.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.q, d.g
}

// set gives d another grant, or none.
func (d *doCall) set(q *localLock, g *line.Grant) {
	d.mu.Lock()
	d.q, d.g = q, g
	if d.lost == nil || g != nil && d.lost.Cause() != nil {
		d.lost = new(session.Ending)
	}
	lost := d.lost
	d.mu.Unlock()
	if g != nil { // else what it had may be lost now, and that is not told
		g.Within(&d.function)
		g.AfterLoss(func(why error) {
			d.mu.Lock()
			has := d.g == g
			d.mu.Unlock()
			if has {
				lost.End(why)
			}
		})
	}
}

// mode returns in which mode d has a lock, if it has it and it was not unlocked.
// It may be lost.
func (d *doCall) mode() (mode local.Mode, ok bool) {
	q, g := d.now()
	if q == nil || g == nil {
		return 0, false
	}
	return q.ModeOf(g)
}

// holds reports whether d has what it is the Do of, and has not unlocked it.
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

// stands returns nil while d has its lock for mode, or one that will do.
func (d *doCall) stands(mode local.Mode) error {
	had, ok := d.mode()
	switch q, g := d.now(); {
	case q == nil && !d.over.Load():
		return g.Err() // that of a Once, whose line a Mutex shares
	case !ok || d.over.Load():
		return ErrNotLocked // the function has unlocked it, or has returned
	case had != mode && mode == local.Exclusive:
		return ErrDeadlock // the function has downgraded it
	default:
		return g.Err()
	}
}

// yield is for Cond.Wait.
func (m *Mutex) yield(ctx context.Context) (finish func() error, again func(context.Context) error) {
	return m.local.yield(m.holderOf(ctx), local.Exclusive)
}

// untilLost returns a context that ends when the Session is being closed, with cause ErrClosed, or
// with the loss of what d has, before any other call or channel shows the loss. stop ends it.
func (d *doCall) untilLost(ctx context.Context) (_ context.Context, stop func()) {
	ctx, end, rest := endingContext(ctx)
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

// alsoErr is the error of two things of which the second was done in any case.
func alsoErr(err, also error) error {
	switch {
	case also == nil:
		return err
	case err == nil:
		return also
	}
	return errors.Join(err, also)
}
