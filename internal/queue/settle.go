package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// This file settles each claimed element exactly once, even if replies or sessions are lost. A returned
// element stays in its bucket, and claimant.flush writes the board. Every other fate deletes the element,
// in one transaction:
//
//	check(mark) + delete(element) + operations of the fate
//
// The deletion itself proves that the transaction was applied: no other client deletes the element while
// the claimant's mark exists. If the reply is lost, claimant.transact ensures that the servers no longer
// apply that attempt. Then the claimant looks for the element, and after that for the mark. If the mark
// exists and the element does not, the claimant itself has deleted the element. A transaction that was
// applied is not sent again, so it cannot delete another element with the same name.

// The type `item` is a claimed element.
type item struct {
	*element
	c        *claimant
	pump     *pump // the pump that offers it
	data     []byte
	czxid    int64     // of its znode, or 0 if this client has not read the znode
	attempts int       // number of deliveries before this claim
	sent     time.Time // time of the Send, by the servers' clock
	value    any       // decoded data
	fault    error     // reason for the dead letter
	misfit   bool      // this client cannot decode it

	inHand bool        // delivered, neither acknowledged nor returned; guarded by claimant.mu, like all fields below
	noted  bool        // the claim has recorded the item as in hand: if the claim is lost, this delivery counts
	back   bool        // a write of the board is under way, and returns the item
	posted bool        // its fate is carried out
	final  *entry      // its fate; nil until it is decided
	then   *Settlement // its fate if the servers refuse `final`, which has a load; or nil
	lost   error       // reason of the loss, if the claimant has ended and returned the item

	ctx    context.Context         // context of the claim; nil until the first call of Context
	cancel context.CancelCauseFunc // ends ctx
}

// The type `entry` is the fate of an item.
type entry struct {
	Settlement
	item *item
	with *load         // for Remove: the program's operations in the same transaction, which has no other entry; or nil
	wait time.Duration // time between the last refusal and this attempt; 0 before a refusal
	done chan struct{}
	err  error // read it only after `done` is closed
}

func (e *entry) close(err error) {
	if e.err = cmp.Or(e.err, err); e.with != nil {
		e.with.leave()
	}
	close(e.done)
}

// The method `decide` gives an item the fate of `s`, unless an earlier call has decided the fate.
// It returns the entry with the decided fate. If that fate is the fate of `s`, the result `ok` is
// true.
func (c *claimant) decide(it *item, s Settlement, with *load) (_ *entry, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.final == nil {
		c.enterLocked(it, s, with)
	} else if it.final.with != nil && s.Fate != Remove {
		it.then = &s // the program returns or rejects the element although its load has no result yet
	}
	return it.final, it.final.Fate == s.Fate
}

func (c *claimant) settled(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return it.final != nil
}

func (c *claimant) enterLocked(it *item, s Settlement, with *load) {
	it.final = &entry{Settlement: s, item: it, with: with, done: make(chan struct{})}
	if with == nil {
		c.leaveLocked(it)
	}
	c.sendLocked(it.final)
}

// sendLocked hands an entry to the goroutine that carries it out.
func (c *claimant) sendLocked(e *entry) {
	switch loss := context.Cause(c.held); {
	case loss != nil:
		e.close(loss)
	case e.Fate == Return:
		if c.returns = append(c.returns, e); len(c.returns) == 1 {
			c.q.m.Spawn(func() {
				c.turn <- struct{}{}
				defer func() { <-c.turn }()
				c.flush()
			})
		}
	default:
		if c.queue = append(c.queue, e); !c.running {
			c.running = true
			c.q.m.Spawn(c.run)
		}
	}
}

// withdrawLocked returns an item in hand, without a fate, if the Session begins to close.
func (c *claimant) withdrawLocked(it *item) {
	if it.final == nil && it.inHand && session.IsClosed(c.leaving) {
		it.lost = c.inc.EndError(session.ErrClosed)
		c.enterLocked(it, Settlement{Fate: Return}, nil)
	}
}

// leaveLocked ends the hold of the program on an item, and ends the context of the claim.
func (c *claimant) leaveLocked(it *item) {
	if it.inHand {
		it.inHand = false
		c.q.m.Holds.Add(-1)
	}
	if it.cancel != nil {
		it.cancel(it.lost)
	}
}

// The method `run` settles the entries in c.queue until there are none. An entry with a load has a
// transaction of its own.
func (c *claimant) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		n := min(len(c.queue), maxPost)
		if i := slices.IndexFunc(c.queue[:n], func(e *entry) bool { return e.with != nil }); i >= 0 {
			n = max(i, 1)
		}
		es := c.queue[:n:n]
		c.queue = c.queue[n:]
		c.mu.Unlock()
		c.settle(es)
		c.mu.Lock()
	}
	c.running = false
}

// The method `settle` carries out entries in one transaction. If the servers refuse an entry,
// `settle` cures the cause or leaves the entry out. Then it sends the transaction again.
func (c *claimant) settle(es []*entry) {
	for len(es) > 0 {
		steps, owners, err := c.steps(es)
		ops, touch, open := opsOf(steps), es[0].with != nil, false
		if err == nil {
			err = znodes.CheckSize(c.q.m, append(ops, &zk.SetDataRequest{Path: c.path(), Data: []byte(c.q.m.Owner)}))
		}
		var rs []zk.MultiResponse
		if err == nil {
			var zxid int64
			// If the reply is lost, Recall needs the zxid of the transaction, which the mark then has.
			rs, open, err = c.transact(ops, touch, func(mark int64) (bool, error) {
				zxid = mark
				return c.deleted(es)
			})
			if err == nil {
				c.removed(es, rs, zxid)
				return
			}
		}
		if open || isOver(err) || context.Cause(c.held) != nil {
			c.orphaned(es, open)
			return
		}
		e := es[0]
		if i := znodes.FailedOp(rs) - 1; i >= 0 {
			if e = owners[i]; e.with != nil && 0 < i && i <= len(e.with.ops) { // an operation of the program: step 0 is the deletion
				e.with.rs = make([]zk.MultiResponse, len(e.with.ops))
				e.with.rs[i-1].Error = err
			}
			err = steps[i].cure(c.inc, err)
		} else if n := len(es) / 2; n > 0 { // the transaction is too large, or one of the entries is faulty
			c.settle(es[:n])
			es = es[n:]
			continue
		}
		switch {
		case isOver(err):
			c.orphaned(es, false)
			return
		case err != nil:
			c.refuse(e, err)
			es = slices.DeleteFunc(slices.Clone(es), func(o *entry) bool { return o == e })
		}
	}
}

// The method `steps` returns the operations that carry out entries. The result `owners` has the
// entry to which each operation belongs.
func (c *claimant) steps(es []*entry) (steps []step, owners []*entry, err error) {
	var e *entry
	add := func(op any, cure func(*session.Incarnation, error) error) {
		steps, owners = append(steps, step{op, cure}), append(owners, e)
	}
	q, moved := c.q, false
	var ringer *entry // an entry that needs the bell
	for _, e = range es {
		add(&zk.DeleteRequest{Path: znodes.ChildPath(q.dir, e.item.key()), Version: -1}, when(session.IsNoNode, func(*session.Incarnation) error {
			return errMissing // another client has deleted the element without a claim
		}))
		keyed := e.item.keyed()
		if moved = moved || keyed && e.Fate == Later; keyed || e.Fate == Later {
			ringer = e
		}
		tried := e.item.attempts
		if !e.Untried {
			tried++
		}
		switch {
		case e.with != nil:
			var load []step
			load, err = e.with.steps(session.Finishing, c.inc)
			for _, s := range load {
				add(s.op, s.cure)
			}
		case e.Fate == Bury:
			for _, op := range q.Make(fmt.Sprintf("%05d%s", e.item.prio, keyOf(e.item.tag)), e.item.data, e.item.sent, tried, e.Reason) {
				add(op, when(session.IsNoNode, func(inc *session.Incarnation) error {
					return znodes.MakeDir(session.Finishing, inc, znodes.Dir{Path: q.Dead})
				}))
			}
		case e.Fate == Later:
			due := dueAt(e.Due)
			at := slotOf(e.item.prio, due, time.Now().UnixMilli())
			var dir string
			var cure func(*session.Incarnation, error) error
			if dir, cure, err = q.slot(session.Finishing, c.inc, at); session.IsNoNode(err) {
				err = errMissing // another client has deleted the queue
			} else if err == nil {
				name := laterName(due, int32(tried), e.item.sent.UnixMilli(), e.item.id(), e.item.tag)
				add(&zk.CreateRequest{Path: znodes.ChildPath(dir, name), Data: e.item.data, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}, cure)
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	e = ringer
	if path := znodes.ChildPath(q.dir, keysName); moved {
		add(&zk.SetDataRequest{Path: path, Version: -1}, created(session.Finishing, path))
	}
	if e != nil {
		add(ring(q.dir), incurable)
	}
	return steps, owners, nil
}

// The method `deleted` returns true if this claimant has deleted the elements of a transaction. The
// servers no longer apply any earlier attempt of that transaction.
func (c *claimant) deleted(es []*entry) (bool, error) {
	if there, err := c.there(c.inc, es); there || err != nil {
		return false, err
	}
	// The elements do not exist. If the mark does not exist, another client may have claimed and deleted them.
	mark, err := c.inc.Exists(session.Finishing, c.path())
	if err == nil && mark == nil {
		c.lose(c.inc.Deleted())
		err = session.ErrVanished
	}
	return err == nil, err
}

// The method `there` reports whether the element of an entry exists.
func (c *claimant) there(inc *session.Incarnation, es []*entry) (bool, error) {
	if err := inc.Sync(session.Finishing, c.q.dir); err != nil {
		return false, err
	}
	looks, err := inc.LookAtAll(session.Finishing, pathsOf(c.q.dir, es, func(e *entry) string { return e.item.key() })...)
	if err != nil {
		return false, err
	}
	for i, l := range looks {
		// Another client may have created the bucket again, and the name belongs to another element.
		if !session.IsNoNode(l.Err) && (l.Err != nil || l.Val.Stat.Czxid == es[i].item.czxid) {
			return true, nil
		}
	}
	return false, nil
}

// The method `removed` closes the entries of an applied transaction. The argument `rs` has the
// responses to the transaction. If the reply was lost, `rs` is nil, and `zxid` is the zxid of the
// transaction.
func (c *claimant) removed(es []*entry, rs []zk.MultiResponse, zxid int64) {
	fates := map[string][]*item{}
	for _, e := range es {
		switch {
		case e.with != nil && rs == nil:
			e.with.learn(nil)
			e.with.rs = znodes.BareResponses(c.q.m, znodes.Recall(session.Finishing, c.inc, e.with.ops, zxid))
		case e.with != nil:
			e.with.rs = znodes.BareResponses(c.q.m, e.with.learn(rs[2:])) // the first two are the check of the mark and the deletion
		}
		word := map[Fate]string{Remove: trace.Removed, Later: trace.Delayed, Bury: trace.Buried}[e.Fate]
		fates[word] = append(fates[word], e.item)
	}
	for _, r := range rs {
		c.q.filled(r.String)
	}
	for word, items := range fates {
		c.traceDone(trace.Release, word, items, zxidOf(rs))
	}
	c.mu.Lock()
	for _, e := range es {
		c.leaveLocked(e.item)
		c.dropLocked(e.item)
		e.close(nil)
	}
	c.mu.Unlock()
	for _, e := range es { // c.mu is free while the log and the observer are called
		if e.Fate == Bury {
			c.q.Report(e.item.id(), e.Reason)
		}
	}
}

// retryAfter is the time between a refusal and the next attempt. It doubles with each refusal, up
// to a minute.
const retryAfter = time.Second

// The method `refuse` handles an entry that the servers have refused. They have applied none of its
// operations. A refused load fails: its item stays in hand, and the fate of the item is open again.
// Every other fate stays decided, and the claimant tries to carry it out again, because the servers
// may then allow it.
func (c *claimant) refuse(e *entry, err error) {
	missing, it := err == errMissing, e.item
	var again *entry
	c.mu.Lock()
	switch loss := context.Cause(c.held); {
	case missing:
		c.leaveLocked(it)
		c.dropLocked(it)
		err = c.inc.Deleted()
	case e.with != nil:
		if it.final = nil; it.then != nil {
			c.enterLocked(it, *it.then, nil)
		}
		c.withdrawLocked(it)
	case loss != nil:
		err = loss
	default:
		again = &entry{Settlement: e.Settlement, item: it, wait: min(max(2*e.wait, retryAfter), time.Minute), done: make(chan struct{})}
		it.final, it.back = again, false
	}
	e.close(err)
	c.mu.Unlock()
	if missing {
		c.traceDone(trace.Release, trace.Missing, []*item{it}, 0)
		if keyOf(it.tag) != "" { // another element of the key may be free
			znodes.Multi(session.Finishing, c.inc, ring(c.q.dir))
		}
	}
	if again == nil {
		return
	}
	if e.wait == 0 {
		c.q.m.Log.Error("zsync: cannot settle an element; the Session keeps trying", "path", c.q.cfg.Path, "element", it.id(), "err", err)
	}
	c.q.m.Spawn(func() {
		session.AwaitFor(c.held.Done(), again.wait) // if the claimant ends, sendLocked closes the entry
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendLocked(again)
	})
}

// The method `orphaned` closes entries whose claims were lost before a result was known. If `open`
// is set, an attempt may have been applied. In this case, `orphaned` waits until the mark is
// deleted. From then on, the servers apply no transaction of this claimant, and the method looks
// for the elements: one transaction deletes all of them, or none.
func (c *claimant) orphaned(es []*entry, open bool) {
	end := func(err error) {
		err = cmp.Or(err, c.lost(), c.inc.Loss())
		for _, e := range es {
			e.close(err)
		}
	}
	if !open {
		end(nil)
		return
	}
	c.q.m.Spawn(func() {
		there := false
		err := c.q.m.During(session.Finishing, func(inc *session.Incarnation) (err error) {
			if err = inc.AwaitGone(session.Finishing, c.path()); err == nil {
				there, err = c.there(inc, es)
			}
			return err
		})
		switch {
		case err != nil && session.OutcomeOf(err) == session.Answered:
			end(fmt.Errorf("the claim was lost before the answer, so whether it was applied is unknown: %v", err)) // %v: this is no refusal of the fate
		case err != nil:
			end(session.ErrClosed) // the servers may have applied it
		case there:
			end(nil)
		default:
			end(fmt.Errorf("the claim was lost before the answer, and the element is gone, so whether it was applied is unknown: %w", zk.ErrNoNode))
		}
	})
}

var errMissing = errors.New("zsync: BUG: the element is gone")

// settleNow decides the fate of an item, and waits until that fate is carried out. It returns the
// entry with the decided fate.
func (c *claimant) settleNow(ctx context.Context, it *item, s Settlement, with *load) (e *entry, err error) {
	for {
		loss := c.lost()
		var ok bool
		if e, ok = c.decide(it, s, with); !ok {
			// it.lost no longer changes: if the servers refuse a load, it.then becomes the fate at once.
			return e, cmp.Or(loss, it.lost, lock.ErrNotLocked)
		}
		err = c.await(ctx, e)
		if e.with == nil || e.with == with || !session.IsClosed(e.done) || c.settled(it) {
			return e, err
		}
		// The load of another caller was refused, so the fate is undecided again.
	}
}

// The method `await` waits until a fate is carried out. If the fate is Return or Later, it waits no
// longer than ReleaseTime, and only while there is a connection: the caller does not need the
// result.
func (c *claimant) await(ctx context.Context, e *entry) error {
	limited, down := ctx, (<-chan struct{})(nil)
	if e.Fate == Return || e.Fate == Later {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, session.ReleaseTime)
		defer cancel()
		down = c.inc.Disconnection()
	}
	// If several channels are ready, the result takes precedence.
	select {
	case <-e.done:
	case <-down:
	case <-c.q.m.Over:
	case <-limited.Done():
	}
	switch over := session.IsClosed(c.q.m.Over); {
	case session.IsClosed(e.done):
		return e.err
	case over && e.Fate == Return:
		return c.inc.EndError(session.ErrClosed) // if the write was not applied, the element is free when the mark is deleted
	case over: // the servers may have carried out the fate, so ErrLost would be wrong: it says that another consumer gets the element
		return session.ErrClosed
	}
	return session.CtxErr(ctx)
}
