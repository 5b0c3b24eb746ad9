package zsync

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/txn"
)

// A Cond is a condition variable that processes share by its path:
//
//	for !condition() { // c.L is held, as with sync.Cond
//		if err := c.Wait(ctx); err != nil {
//			return err // c.L is not held
//		}
//	}
//	// use the condition, then c.L.Unlock()
//
// All processes must use the same lock L. Wait joins the line before it unlocks L, so it misses no
// signal. If a waiter gets a signal, and dies or its ctx ends before its Wait has returned, the
// next waiter that was there at the signal gets it. Two signals wake two waiters.
//
// # Loss
//
// If the session ends, or L was lost, Wait locks L again and returns nil.
//
// # Cost
//
// Each method takes 2 round trips. Wait also unlocks and locks L.
//
// # Znodes
//
// A waiter is path/_c_<uuid>-wait-<seq>; for signals, see docs/interop.md.
type Cond struct {
	made
	L    Locker // held while observing or changing the condition
	line lock.Line
}

// ZooKeeper has no recipe for a condition variable. The protocol is:
//
//  1. Wait enters the line, with L held, lists the line, and unlocks L.
//  2. It watches its own znode, and the znode just ahead in the line.
//  3. Signal lists the line, and marks the first waiter without a signal, in one
//     transaction that fails if another signal was quicker; then it tries the next.
//  4. A waiter that finds itself marked locks L, and then deletes its znode and the
//     signal, in one transaction.
//  5. A waiter that lists the line may see a signal whose waiter was deleted. It passes
//     the signal on to the first waiter that has no signal and was in the line before the
//     signal. If there is none, it deletes the signal.
//  6. When its predecessor's znode is deleted, a waiter lists the line, for step 5, and
//     continues with step 2.
//
// It is tempting to signal by deleting the waiter's znode. But if the waiter has died, and its
// session has not ended yet, the signal would be lost.

// NewCond returns the Cond at path, with the lock l, which has another path.
func NewCond(s *Session, path string, l Locker) *Cond {
	c := &Cond{L: l, made: made{s: s, path: path}}
	if c.err = checkNew(s, path, nil); c.err == nil {
		c.line = lock.New(s.m, path, session.ProtectedName, "wait-")
	}
	return c
}

// Path returns the path that c was made with.
func (c *Cond) Path() string { return c.path }

// check returns why no operation can begin, or nil.
func (c *Cond) check() error {
	if c.misuse() == nil && c.L == nil {
		return session.Invalid("the Locker L is nil")
	}
	return c.misuse()
}

// Wait unlocks c.L, waits for a signal, and locks c.L again before it returns nil. After an error,
// such as [ErrNotLocked] if c.L is not held, the caller does not hold c.L, and its signal passes to
// the next waiter. Inside [Mutex.Do] or [RWMutex.RDo] of c.L, ctx may be the context of Do: Wait
// releases that hold and takes it again. A loss in that time does not end ctx.
func (c *Cond) Wait(ctx context.Context) error {
	traced, end := c.tracers().waiting(ctx, "cond", c.path)
	start := time.Now()
	err := c.s.waited(ctx, start, c.wait(traced))
	end(err)
	return opError("wait", c.path, err)
}

func (c *Cond) wait(ctx context.Context) error {
	if c.L == nil {
		return c.check()
	}
	p, names, err := c.enter(ctx) // Step 1.
	relock, unlocked := c.unlock(ctx)
	if err == nil && unlocked == nil {
		err = c.sleep(ctx, p, names)
	}
	// Without relock, L may still be locked. unlocked is then the error of ctx. Its cause may be the
	// loss of another lock.
	if (err == nil || errors.Is(err, session.ErrEnded)) && unlocked != nil && (relock == nil || !errors.Is(unlocked, ErrLost)) {
		err = unlocked
	}
	if err != nil && !errors.Is(err, session.ErrEnded) {
		// A signal may reach us at this instant. Leaving is still right. A signal is created only while
		// our znode exists, and a waiter takes it only by deleting both at once. So after the deletion
		// of our znode, either no signal can come, or a signal is left without its waiter. The first
		// client that deletes this signal passes it on in the same transaction.
		c.leave(p)
		return err
	}
	// We are woken, or the session has ended, or L was lost. In the last case, another process
	// may have held L before we entered the line, and we may have missed its signal. In all
	// cases, the caller looks again.
	//
	// The signal is taken only with L held. If our process dies before that, or ctx ends, it
	// is passed on.
	if err := relock(ctx); err != nil {
		c.leave(p)
		return err
	}
	c.take(ctx, p)
	return nil
}

// enter makes a place at the end of the line, and lists who is in it. The error
// is ErrEnded if the session ends.
func (c *Cond) enter(ctx context.Context) (*lock.Claim, []string, error) {
	if c.misuse() != nil {
		return nil, nil, c.misuse()
	}
	inc, err := c.s.m.Incarnation(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, roll, err := c.line.Enter(ctx, inc, c.line.Bases[0], c.s.m.Owner)
	if err != nil {
		return nil, nil, err
	}
	return p, roll.Names(), nil
}

// unlock unlocks L, and returns the function that locks it again. Unlocking cannot be refused:
// if ctx ends before it is done, it continues in the background.
//
// If ctx comes from a Do of a lock of this package, that Do's hold is unlocked, and the new
// hold belongs to it. The choice of the hold is made here, before the background: later, the
// Do may be over, and the hold may belong to another goroutine.
func (c *Cond) unlock(ctx context.Context) (relock func(context.Context) error, err error) {
	if c.misuse() != nil {
		return nil, c.L.Unlock()
	}
	unlock := c.L.Unlock
	relock = func(ctx context.Context) error { return c.L.Lock(outside{ctx}) }
	if l, ours := c.L.(interface {
		yield(context.Context) (finish func() error, again func(context.Context) error)
	}); ours {
		unlock, relock = l.yield(ctx)
	}
	done := make(chan error, 1)
	c.s.m.Spawn(func() { done <- unlock() })
	if err, ok := session.AwaitGrace(done, ctx.Done()); ok {
		return relock, err
	}
	return nil, session.CtxErr(ctx)
}

// An outside is a context that no longer says that it comes from Do.
type outside struct{ context.Context }

func (o outside) Value(key any) any {
	if _, ok := key.(doKey); ok {
		return nil
	}
	return o.Context.Value(key)
}

// sleep waits until p is woken.
func (c *Cond) sleep(ctx context.Context, p *lock.Claim, names []string) error {
	c.s.m.Waiters.Add(1)
	defer c.s.m.Waiters.Add(-1)
	own := p.Incarnation.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: p.Path}) // Step 2.
	defer p.Incarnation.Watches.Leave(own)
	_, stat, err := p.Incarnation.Get(ctx, p.Path)
	switch {
	case session.IsNoNode(err), err == nil && stat.Version > 0:
		// We have been signalled already; or another client has deleted our znode, and we wake up
		// without a signal.
		return nil
	case err != nil:
		return err
	}
	// Only a signal changes the data, so it needs not be read again.
	return c.guard(ctx, p, names, own.Fired)
}

// guard passes on the signals of dead waiters ahead of p, until woken is closed or p has
// vanished.
func (c *Cond) guard(ctx context.Context, p *lock.Claim, names []string, woken <-chan struct{}) error {
	for {
		var err error
		if names, err = c.mend(ctx, p.Incarnation, names); err != nil { // Step 5.
			return err
		}
		ahead, err := p.AheadAmong(ctx, names)
		if errors.Is(err, session.ErrVanished) {
			return nil
		}
		if err != nil {
			return err
		}
		gone, leave, err := c.watchLast(ctx, p.Incarnation, ahead)
		if err != nil {
			return err
		}
		select {
		case <-woken:
			leave()
			return nil
		case <-gone:
			leave()
		case <-ctx.Done():
			leave()
			return session.CtxErr(ctx)
		case <-p.Incarnation.Ctx.Done():
			leave()
			return session.ErrEnded
		}
		if names, err = c.list(ctx, p.Incarnation.Children); err != nil { // Step 6.
			return err
		}
	}
}

// watchLast returns a channel that is closed when the last znode of ahead is deleted. Without one,
// it returns nil.
//
// That znode is enough. Signal marks the first waiter without a signal, so all waiters ahead of the
// first unmarked one are marked, and are about to leave. When the last of them has left, or has
// died, the first unmarked waiter lists the line, and finds every signal whose waiter is dead.
func (c *Cond) watchLast(ctx context.Context, inc *session.Incarnation, ahead []lock.Child) (gone <-chan struct{}, leave func(), err error) {
	if len(ahead) == 0 {
		return nil, func() {}, nil
	}
	last := session.ChildPath(c.line.Dir, ahead[len(ahead)-1].Name)
	// A watch of children ignores changes of the data, and so does not fire when that waiter
	// is signalled.
	w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: last})
	leave = func() { inc.Watches.Leave(w) }
	_, _, err = inc.Children(ctx, last)
	switch {
	case session.IsNoNode(err):
		return session.ClosedChan, leave, nil
	case err != nil:
		leave()
		return nil, nil, err
	}
	return w.Fired, leave, nil
}

// list lists the line and its signals.
func (c *Cond) list(ctx context.Context, list func(context.Context, string) ([]string, *zk.Stat, error)) ([]string, error) {
	names, _, err := list(ctx, c.line.Dir)
	if session.IsNoNode(err) {
		return nil, nil
	}
	return names, err
}

// take deletes p and its signal: the wake-up has reached its caller. Step 4.
//
// If the reply is lost, the transaction is sent again and fails, for both names are unique.
// Without a connection, take does not wait for it. If the session ends before the transaction
// gets through, the signal is passed on, and wakes another waiter for nothing.
func (c *Cond) take(ctx context.Context, p *lock.Claim) {
	if p == nil {
		return
	}
	r := p.Incarnation.Delete(&session.Deletion{Paths: []string{p.Path}, By: func() error {
		_, err := p.Incarnation.Multi(p.Incarnation.Ctx,
			&zk.DeleteRequest{Path: c.signalPath(p.Child), Version: -1},
			&zk.DeleteRequest{Path: p.Path, Version: -1})
		unsignalled := session.IsNoNode(err) // woken otherwise; a signal can still come until the deletion
		if unsignalled {
			err = p.Incarnation.RemoveNow(p.Incarnation.Ctx, p.Path)
		}
		if unsignalled || err != nil && p.Incarnation.Ctx.Err() != nil {
			c.bequeath(p)
		}
		return err
	}})
	select {
	case <-r.Done:
	case <-r.Refused:
	case <-ctx.Done():
	case <-p.Incarnation.Disconnection():
	case <-p.Incarnation.Ctx.Done():
	}
}

// leave deletes p without a wake-up of its caller. If p has a signal, the signal remains
// without its waiter, and so is passed on: by us if we can, otherwise by the waiter behind us.
func (c *Cond) leave(p *lock.Claim) {
	if p == nil {
		return
	}
	p.Incarnation.Delete(&session.Deletion{Paths: []string{p.Path}, By: func() error {
		err := p.Incarnation.RemoveNow(p.Incarnation.Ctx, p.Path)
		if err != nil && !session.IsNoNode(err) && p.Incarnation.Ctx.Err() == nil {
			return err
		}
		c.bequeath(p)
		return nil
	}}).Await(session.Grace)
}

// bequeath passes on the signal of p, if it has one, as soon as p is deleted: at once, or with its
// session. Perhaps no other client could do that.
func (c *Cond) bequeath(p *lock.Claim) {
	ctx := context.Background() // ends with the Session
	c.s.m.During(ctx, func(inc *session.Incarnation) error {
		if inc != p.Incarnation {
			if err := inc.AwaitGone(ctx, p.Path); err != nil {
				return err
			}
		}
		stat, err := inc.Exists(ctx, c.signalPath(p.Child))
		if err != nil || stat == nil {
			return err
		}
		names, err := c.list(ctx, inc.Children)
		if err == nil {
			_, err = c.mend(ctx, inc, names)
		}
		return err
	})
}

// The name of a signal is its waiter's name without "_c_", and with this suffix. So it does not
// contain "_c_<uuid>-". A client whose create has lost its reply looks for that text, and must find
// only the waiter.
const signalSuffix = "-signal"

func (c *Cond) signalPath(waiter lock.Child) string {
	return session.ChildPath(c.line.Dir, strings.TrimPrefix(waiter.Name, "_c_")+signalSuffix)
}

// waiterOf returns the name of the waiter that a signal is for. It reports false for a name that is
// not a signal's.
func (c *Cond) waiterOf(signal string) (string, bool) {
	name, ok := strings.CutSuffix(signal, signalSuffix)
	if _, waits := lock.ParseChild(name, c.line.Bases...); !ok || !waits {
		return "", false
	}
	return "_c_" + name, true
}

// unsignalled returns the waiters without a signal, in their order.
func (c *Cond) unsignalled(ctx context.Context, inc *session.Incarnation, names []string) ([]lock.Child, error) {
	all, err := c.line.InOrder(ctx, inc, names)
	if err != nil {
		return nil, err
	}
	signalled := make(map[string]bool)
	for _, name := range names {
		if waiter, ok := c.waiterOf(name); ok {
			signalled[waiter] = true
		}
	}
	return slices.DeleteFunc(all, func(w lock.Child) bool { return signalled[w.Name] }), nil
}

// orphans returns the signals among names whose waiters were deleted.
func (c *Cond) orphans(names []string) []string {
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
	}
	var out []string
	for _, name := range names {
		if waiter, ok := c.waiterOf(name); ok && !present[waiter] {
			out = append(out, name)
		}
	}
	return out
}

// mend passes on the signals of deleted waiters among names, and returns a listing without such
// signals. A signal is created while its waiter exists, and the waiter deletes both in one
// transaction. So if a listing shows a signal without its waiter, the waiter did not take the
// signal.
func (c *Cond) mend(ctx context.Context, inc *session.Incarnation, names []string) (_ []string, err error) {
	stays := make(map[string]bool)
	for {
		lost := slices.DeleteFunc(c.orphans(names), func(name string) bool { return stays[name] })
		if len(lost) == 0 {
			return names, nil
		}
		if stays[lost[0]], err = c.pass(ctx, inc, names, session.ChildPath(c.line.Dir, lost[0])); err != nil {
			return nil, err
		}
		if names, err = c.list(ctx, inc.Children); err != nil {
			return nil, err
		}
	}
}

// pass gives the signal at path to the first waiter that has no signal and came before this one. If
// there is no such waiter, it deletes the signal. Other clients may do the same at this moment,
// without harm: the signal can be deleted only once. If another program has created a znode below
// the signal, the signal cannot be deleted. Then pass writes 0 into it, on condition that the
// signal is unchanged. No waiter came before a signal that was given at 0, so no client passes it
// on again.
func (c *Cond) pass(ctx context.Context, inc *session.Incarnation, names []string, path string) (stays bool, err error) {
	data, stat, err := inc.Get(ctx, path)
	if err != nil {
		return false, unlessChanged(err)
	}
	given := stat.Czxid
	if n, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		given = n // it has been passed on before
	}
	if given == 0 && stat.NumChildren > 0 {
		return true, nil
	}
	waiting, err := c.unsignalled(ctx, inc, names)
	if err != nil {
		return false, err
	}
	ops := []any{&zk.DeleteRequest{Path: path, Version: -1}}
	for _, w := range waiting {
		stat, err := inc.Exists(ctx, session.ChildPath(c.line.Dir, w.Name))
		if err != nil {
			return false, err
		}
		if stat == nil {
			continue // it has just left
		}
		if stat.Czxid < given {
			ops = append(ops, c.mark(w, strconv.FormatInt(given, 10))...)
		}
		break
	}
	_, err = inc.Multi(ctx, ops...)
	if errors.Is(err, zk.ErrNotEmpty) {
		ops[0] = &zk.SetDataRequest{Path: path, Data: []byte("0"), Version: stat.Version}
		_, err = inc.Multi(ctx, ops...)
		return err == nil, unlessChanged(err)
	}
	return false, unlessChanged(err)
}

// mark returns the writes that give w a signal. They fail if w has one, or is deleted. data is
// empty, or the zxid at which a signal that is passed on was first given.
//
// Only the name of the signal shows that w has one. The version of w's znode does not: another
// program may have written the znode and so woken w, which may now wait for L, which the caller
// holds.
func (c *Cond) mark(w lock.Child, data string) []any {
	return []any{
		&zk.SetDataRequest{Path: session.ChildPath(c.line.Dir, w.Name), Version: -1},
		&zk.CreateRequest{Path: c.signalPath(w), Data: []byte(data), Acl: c.s.m.Config.ACL},
	}
}

// unlessChanged drops an error that means that the line has changed since the listing.
func unlessChanged(err error) error {
	if session.IsNoNode(err) || session.IsBadVersion(err) || session.IsNodeExists(err) {
		return nil
	}
	return err
}

// Signal wakes the longest waiter, if any, and does not wait for it. The caller may hold c.L.
// Signal gives one signal, even if its session is lost.
func (c *Cond) Signal(ctx context.Context) error {
	return opError("signal", c.path, c.signal(ctx))
}

func (c *Cond) signal(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	for { // Step 3.
		waiting, err := c.waiting(ctx)
		if err != nil || len(waiting) == 0 {
			return err
		}
		_, err = txn.Across(ctx, c.s.m, c.line.Dir, c.mark(waiting[0], ""))
		if err == nil || unlessChanged(err) != nil {
			return err
		}
		// Another signal was quicker, or the waiter has left.
	}
}

// waiting passes on the signals of deleted waiters, and then returns the waiters that can be given
// a signal, in their order.
//
// Each waiter that had unlocked L before Signal was called must be among them, however the caller
// has learned of that. So waiting begins with a sync, which brings the server up to the leader. It
// is not enough that the caller holds L: it may have got L directly from a goroutine of this
// process that waits through another Session, and this Session's server may not know of that waiter
// yet.
func (c *Cond) waiting(ctx context.Context) ([]lock.Child, error) {
	var waiting []lock.Child
	err := c.s.m.During(ctx, func(inc *session.Incarnation) error {
		names, err := c.list(ctx, inc.ChildrenFresh)
		if err == nil {
			names, err = c.mend(ctx, inc, names)
		}
		if err == nil {
			waiting, err = c.unsignalled(ctx, inc, names)
		}
		return err
	})
	return waiting, err
}

// Broadcast wakes all waiters, and does not wait for them. The caller may hold c.L. If ctx ends
// first, Broadcast may have woken some of them.
func (c *Cond) Broadcast(ctx context.Context) error {
	return opError("broadcast", c.path, c.broadcast(ctx))
}

func (c *Cond) broadcast(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	todo, err := c.waiting(ctx)
	for err == nil && len(todo) > 0 {
		var ops []any
		n := 0
		for size := 0; n < len(todo) && size < session.MaxPacket/2; n++ {
			ops = append(ops, c.mark(todo[n], "")...)
			size += 2 * c.s.m.SizeOf(c.signalPath(todo[n]), nil)
		}
		err = c.s.m.During(ctx, func(inc *session.Incarnation) error { _, err := inc.Multi(ctx, ops...); return err })
		if err == nil {
			todo = todo[n:]
			continue
		}
		if err = unlessChanged(err); err != nil {
			break
		}
		// Another client has signalled a waiter, a waiter has left, or the transaction was applied and
		// its reply was lost. Waiters that came later get no signal.
		now, e := c.waiting(ctx)
		err = e
		todo = slices.DeleteFunc(todo, func(w lock.Child) bool { return !slices.Contains(now, w) })
	}
	return err
}

// Contenders returns the waiters without a signal, in their order.
func (c *Cond) Contenders(ctx context.Context) ([]Contender, error) {
	if c.misuse() != nil {
		return nil, opError("contenders", c.path, c.misuse())
	}
	waiting, err := c.waiting(ctx)
	if err != nil {
		return nil, opError("contenders", c.path, err)
	}
	cs, err := contenders(ctx, &c.line, func([]lock.Child, int) (Mode, bool) { return ModeExclusive, false })
	cs = slices.DeleteFunc(cs, func(d Contender) bool {
		return !slices.ContainsFunc(waiting, func(w lock.Child) bool { return w.Name == d.Node })
	})
	return cs, opError("contenders", c.path, err)
}
