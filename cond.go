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
	"github.com/zsync/zsync/internal/znodes"
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
// signal. If a waiter dies with its signal, or its ctx ends, the next waiter that was in line at the
// time of the signal gets it. Two signals wake two waiters.
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
//  3. Signal lists the line, and gives a signal to the first waiter that has none, in one
//     transaction. The transaction fails if another signal was quicker. Then Signal tries the
//     next waiter.
//  4. A waiter that has a signal locks L. Then it deletes its znode and the signal, in one
//     transaction.
//  5. A waiter that lists the line may see a signal whose waiter was deleted. It passes
//     the signal on to the first waiter that has no signal and was in the line before the
//     signal. If there is none, it deletes the signal.
//  6. When its predecessor's znode is deleted, a waiter lists the line, for step 5, and
//     continues with step 2.
//
// It is tempting to delete the waiter's znode as the signal. But if the waiter has crashed, and
// its session has not ended yet, the signal would be lost.

// NewCond returns the Cond at path, with the lock l, which has another path.
func NewCond(s *Session, path string, l Locker) *Cond {
	c := &Cond{L: l, made: made{s: s, path: path}}
	if c.err = checkNew(s, path, nil); c.err == nil {
		c.line = lock.New(s.m, path, znodes.ProtectedName, "wait-")
	}
	return c
}

func (c *Cond) check() error {
	if c.misuse() == nil && isNil(c.L) {
		return session.Invalid("the Locker L is nil")
	}
	return c.misuse()
}

// Wait unlocks c.L, waits for a signal, and locks c.L again before it returns nil. After an error,
// the caller does not hold c.L. If c.L was not held, the error is [ErrNotLocked]. Inside [Mutex.Do]
// or [RWMutex.RDo] of c.L, ctx may be the context of Do: Wait releases that hold and takes it again.
// A loss in that time does not end ctx.
func (c *Cond) Wait(ctx context.Context) error {
	if err := c.check(); err != nil {
		if !isNil(c.L) {
			c.L.Unlock() // as after every other error
		}
		return opError("wait", c.path, err)
	}
	return c.waiting(ctx, "cond", c.wait)
}

func (c *Cond) wait(ctx context.Context) error {
	// Step 1. If it fails, L is unlocked too.
	var p *lock.Claim
	var roll *znodes.Roll
	inc, err := c.s.m.Incarnation(ctx)
	if err == nil {
		p, roll, err = c.line.Enter(ctx, inc, lock.Exclusive)
	}
	woken := false
	// Step 4, also if L panics. If the session ends before the deletion, the signal passes to another
	// waiter, and wakes it without need.
	defer func() {
		if p == nil {
			return
		}
		gone := c.remove(p, woken)
		if !woken {
			gone.Await(session.Grace) // a signal that p has, or gets at this instant, is passed on
			return
		}
		ctx, cancel := context.WithTimeout(ctx, session.ReleaseTime) // the caller holds L, and must learn of that soon
		defer cancel()
		gone.Outcome(ctx)
	}()
	// Unlock L, in the background if ctx ends. Choose the hold before the background work begins: later,
	// a Do may be over, and the current hold may belong to another goroutine.
	unlock, relock, spawn := c.L.Unlock, c.L.Lock, detached
	if q, modes := partsOf(c.L); q != nil {
		if d := q.within(ctx); d != nil || ours(c.L) {
			unlock, relock = q.yield(d, modes[0])
			spawn = c.s.m.Spawn
		}
	}
	unlocked, ok := session.Apart(ctx, spawn, unlock)
	if err == nil && ok && unlocked == nil {
		err = c.sleep(ctx, p, roll)
	}
	switch {
	case err != nil && !errors.Is(err, session.ErrEnded):
	case !ok: // L may still be locked
		err = session.CtxErr(ctx)
	case unlocked != nil && !errors.Is(unlocked, ErrLost):
		err = unlocked
	default:
		// We have a signal, or the session has ended, or L was lost. If L was lost, another process may
		// have held L before we entered the line, and we may have missed its signal.
		err = relock(ctx)
	}
	woken = err == nil
	return err
}

// The method `sleep` waits until p has a signal or is deleted. While it waits, it passes on the
// signals of deleted waiters ahead of p.
//
// For that, it is enough to watch the znode just ahead. Consider the first waiter W without a signal.
// Signals go to waiters in their order, so all waiters ahead of W have a signal, and are about to
// leave. When the last waiter ahead of W has left or crashed, W lists the line, and finds every
// signal without its waiter.
func (c *Cond) sleep(ctx context.Context, p *lock.Claim, roll *znodes.Roll) error {
	c.s.m.Waiters.Add(1)
	defer c.s.m.Waiters.Add(-1)
	inc := p.Incarnation
	own := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: p.Path}) // Step 2.
	defer inc.Watches.Leave(own)
	_, stat, err := inc.Get(ctx, p.Path)
	if err != nil || stat.Version > 0 {
		return unlessNoNode(err)
	}
	// Only a signal changes the data, so it is not necessary to read them again.
	list := func(context.Context, string) ([]string, error) { return roll.Names(), nil }
	for ; !session.IsClosed(own.Fired); list = inc.Names { // Step 6.
		line, _, err := c.settle(ctx, inc, list) // Step 5.
		i := slices.IndexFunc(line, func(w lock.Child) bool { return w.Name == p.Child.Name })
		if err != nil || i < 0 {
			return err // without an error, another client has deleted our znode, so we wake up without a signal
		}
		watches := []*conn.Watch{own}
		if i > 0 {
			ahead := znodes.ChildPath(c.line.Dir, line[i-1].Name)
			watches = append(watches, inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: ahead})) // it ignores a signal, which changes the data
			_, _, err = inc.Children(ctx, ahead)
		}
		if err == nil {
			err = inc.AwaitAny(ctx, watches, time.Time{})
		}
		for _, w := range watches[1:] {
			inc.Watches.Leave(w)
		}
		if err = unlessNoNode(err); err != nil {
			return err
		}
	}
	return nil
}

// The method `remove` deletes p's znode, and its signal too if the argument `signalled` is true. If
// the reply to that transaction is lost, it is sent again, and fails without harm, because both
// names are unique. If a signal of p stays, `remove` passes it on as soon as p's znode is deleted: at
// once, or when p's session has ended. Perhaps there is no waiter behind p to do that.
func (c *Cond) remove(p *lock.Claim, signalled bool) *znodes.Deletion {
	inc := p.Incarnation
	return znodes.Delete(inc, &znodes.Deletion{Paths: []string{p.Path}, By: func() error {
		err := error(zk.ErrNoNode)
		if signalled {
			if _, err = znodes.Multi(inc.Ctx, inc, &zk.DeleteRequest{Path: c.signalPath(p.Child), Version: -1}, &zk.DeleteRequest{Path: p.Path, Version: -1}); err == nil {
				return nil
			}
		}
		if session.IsNoNode(err) { // p has no signal, but can still get one until its znode is deleted
			err = znodes.RemoveNow(inc.Ctx, inc, p.Path)
		}
		if err != nil && !session.IsNoNode(err) && inc.Ctx.Err() == nil {
			return err
		}
		ctx := context.Background() // the calls below return when the Session ends
		c.s.m.During(ctx, func(now *session.Incarnation) error {
			if now != inc {
				if err := now.AwaitGone(ctx, p.Path); err != nil {
					return err
				}
			}
			stat, err := now.Exists(ctx, c.signalPath(p.Child))
			if err != nil || stat == nil {
				return err
			}
			_, _, err = c.settle(ctx, now, now.Names)
			return err
		})
		return nil
	}})
}

// The name of a signal is the name of its waiter, without "_c_" and with this suffix. So it
// does not contain the text "_c_<uuid>-". After a create request whose reply was lost, a client
// looks for that text, and must find only the waiter.
const signalSuffix = "-signal"

func signalOf(waiter lock.Child) string { return strings.TrimPrefix(waiter.Name, "_c_") + signalSuffix }

func (c *Cond) signalPath(waiter lock.Child) string {
	return znodes.ChildPath(c.line.Dir, signalOf(waiter))
}

// The method `settle` passes on the signals whose waiters were deleted. Then it returns the waiters of
// a listing, and those of them without a signal, in their order. The function `list` makes the first
// listing. A signal is created while its waiter exists, and the waiter deletes both in one transaction. So
// if a listing shows a signal without its waiter, the waiter did not take the signal.
func (c *Cond) settle(ctx context.Context, inc *session.Incarnation, list func(context.Context, string) ([]string, error)) (line, waiting []lock.Child, err error) {
	for stays := make(map[string]bool); ; list = inc.Names {
		names, err := list(ctx, c.line.Dir)
		if err != nil {
			return nil, nil, err
		}
		if line, err = c.line.InOrder(ctx, inc, names); err != nil {
			return nil, nil, err
		}
		line = slices.DeleteFunc(line, func(w lock.Child) bool { return !strings.HasPrefix(w.Name, "_c_") })
		signalled := make(map[string]bool, len(line)) // by the name of a waiter's signal
		for _, w := range line {
			signalled[signalOf(w)] = false
		}
		lost := ""
		for _, name := range names {
			waiter, ok := strings.CutSuffix(name, signalSuffix)
			if _, waits := lock.ParseChild(waiter, c.line.Bases...); !ok || !waits {
				continue
			}
			if _, there := signalled[name]; there {
				signalled[name] = true
			} else if !stays[name] {
				lost = name
			}
		}
		waiting = slices.DeleteFunc(slices.Clone(line), func(w lock.Child) bool { return signalled[signalOf(w)] })
		if lost == "" {
			return line, waiting, nil
		}
		if stays[lost], err = c.pass(ctx, inc, waiting, znodes.ChildPath(c.line.Dir, lost)); err != nil {
			return nil, nil, err
		}
	}
}

// The method `pass` moves the signal at path to the first of the waiters without a signal, if that entered
// the line before the signal was given. If there is no such waiter, the method deletes the signal. Other
// clients may do the same at this moment, but the signal can be deleted only once. If another program
// has created a znode below the signal, it cannot be deleted. In that case, the method writes 0 as the
// zxid at which it was given: no waiter entered the line before 0, so no client passes it on again.
func (c *Cond) pass(ctx context.Context, inc *session.Incarnation, waiting []lock.Child, path string) (stays bool, err error) {
	data, stat, err := inc.Get(ctx, path)
	if err != nil {
		return false, unlessChanged(err)
	}
	given := stat.Czxid
	if n, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		given = n // the signal was passed on before
	}
	if given == 0 && stat.NumChildren > 0 {
		return true, nil
	}
	ops := []any{&zk.DeleteRequest{Path: path, Version: -1}}
	if len(waiting) > 0 {
		first, err := inc.Exists(ctx, znodes.ChildPath(c.line.Dir, waiting[0].Name))
		if err != nil || first == nil { // the waiter has just left, so `settle` lists the line again
			return false, err
		}
		if first.Czxid < given {
			ops = append(ops, c.mark(waiting[0], strconv.FormatInt(given, 10))...)
		}
	}
	_, err = znodes.Multi(ctx, inc, ops...)
	if errors.Is(err, zk.ErrNotEmpty) {
		ops[0] = &zk.SetDataRequest{Path: path, Data: []byte("0"), Version: stat.Version}
		_, err = znodes.Multi(ctx, inc, ops...)
		return err == nil, unlessChanged(err)
	}
	return false, unlessChanged(err)
}

// The method `mark` returns the writes that give a signal to w. They fail if w has a signal
// already, or is deleted. For a signal that is passed on, data is the zxid at which it was first given.
//
// Only the name of the signal's znode shows that w has a signal. The version of w's znode is no
// proof: another program may have written that znode, and so have woken w. Then w waits for L,
// which the caller holds, and can still get a signal.
func (c *Cond) mark(w lock.Child, data string) []any {
	return []any{
		&zk.SetDataRequest{Path: znodes.ChildPath(c.line.Dir, w.Name), Version: -1},
		&zk.CreateRequest{Path: c.signalPath(w), Data: []byte(data), Acl: c.s.m.Config.ACL},
	}
}

// unlessChanged returns nil if err means that the znodes have changed since they were read. It
// returns any other err.
func unlessChanged(err error) error {
	if session.IsNoNode(err) || session.IsBadVersion(err) || session.IsNodeExists(err) {
		return nil
	}
	return err
}

// Signal wakes the waiter that has waited longest, if any. The caller may hold c.L. It gives one
// signal, even if its session is lost.
func (c *Cond) Signal(ctx context.Context) error {
	return opError("signal", c.path, c.signal(ctx, false))
}

// Broadcast wakes all waiters, and does not wait for them. The caller may hold c.L. If ctx ends
// first, Broadcast may have woken some of them.
func (c *Cond) Broadcast(ctx context.Context) error {
	return opError("broadcast", c.path, c.signal(ctx, true))
}

// The method `signal` gives a signal to the first waiter, or to all that wait now (step 3).
func (c *Cond) signal(ctx context.Context, all bool) error {
	if err := c.check(); err != nil {
		return err
	}
	todo, err := c.unwoken(ctx)
	for err == nil && len(todo) > 0 {
		var ops []any
		n := 0
		for size := 0; n == 0 || all && n < len(todo) && size < znodes.MaxPacket/2; n++ {
			ops = append(ops, c.mark(todo[n], "")...)
			size += 2 * znodes.SizeOf(c.s.m, c.signalPath(todo[n]), nil)
		}
		_, err = txn.Across(ctx, c.s.m, c.line.Dir, ops)
		if err == nil && all {
			todo = todo[n:]
			continue
		}
		if err == nil || unlessChanged(err) != nil {
			return err
		}
		// A waiter has got another signal, or has left. A Broadcast leaves out later waiters.
		was := todo
		todo, err = c.unwoken(ctx)
		if all {
			todo = slices.DeleteFunc(todo, func(w lock.Child) bool { return !slices.Contains(was, w) })
		}
	}
	return err
}

// The method `unwoken` passes on the signals of deleted waiters. Then it returns the waiters that
// can get a signal, in their order, with each waiter that unlocked L before the call of Signal. For
// that, the listing is fresh. The caller's hold of L cannot replace the sync: the caller may have got L
// directly from a goroutine of this process that waits through another Session.
func (c *Cond) unwoken(ctx context.Context) ([]lock.Child, error) {
	var waiting []lock.Child
	err := c.during(ctx, func(inc *session.Incarnation) (err error) {
		_, waiting, err = c.settle(ctx, inc, inc.NamesFresh)
		return err
	})
	return waiting, err
}

// Contenders returns, in their order, the waiters that have no signal yet.
func (c *Cond) Contenders(ctx context.Context) (cs []Contender, err error) {
	defer c.wrap("contenders", &err)
	waiting, err := c.unwoken(ctx)
	if err != nil {
		return nil, err
	}
	cs, err = c.contenders(ctx, &c.line, func([]lock.Child, int) (Mode, bool) { return ModeExclusive, false })
	return slices.DeleteFunc(cs, func(d Contender) bool {
		return !slices.ContainsFunc(waiting, func(w lock.Child) bool { return w.Name == d.Node })
	}), err
}
