package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// This file settles what is claimed: each item once. What goes back is written on its board,
// see claimant.post. Everything else deletes the element:
//
//	check(mark) + delete(element) + what else becomes of it
//
// The deletion is the receipt. No element's name comes again, and nobody else deletes it while
// our mark exists. If a reply is lost the transaction is sent again. If that is refused, the
// mark is written, so that what was sent before is refused from then on, and we look: an
// element that is gone, while the mark exists behind that, was deleted by us.

// Fates that the program does not decide on.
const fateHand = Bury + 1 // none yet: it is in hand, and that is to be written down

// A stage is where a claimed item is.
type stage int

const (
	ahead   stage = iota // claimed ahead
	offered              // with a consumer, who has not taken it
	inHand               // delivered, neither acknowledged nor returned
)

// An item is an element that is claimed.
type item struct {
	element
	c        *claimant
	pump     *pump // from which it is being offered
	data     []byte
	size     int       // of that; it stays when the data is dropped
	attempts int       // how often it was delivered before
	sent     time.Time // when it was stored, by the servers' clock
	value    any       // as decoded
	fault    error     // why it goes to the dead letters
	misfit   bool      // it cannot be decoded by us
	decoded  bool

	place  stage           // guarded by claimant.mu, as is what follows
	note   <-chan struct{} // closed when it is on the board that it is in hand
	noted  bool            // that is on the board, or will be
	back   bool            // it is being given back
	posted bool            // what becomes of it is done
	final  *entry          // what becomes of it
	lost   error           // why it goes back without having been settled

	ctx    context.Context         // of the claim; nil until somebody asks
	cancel context.CancelCauseFunc // ends ctx
}

// read is told what was read of its znode.
func (it *item) read(n session.Node) {
	it.data, it.size, it.sent = n.Data, len(n.Data), time.UnixMilli(n.Stat.Ctime)
	it.attempts += int(it.tries) + int(n.Stat.Version) // an engine before this one has counted by versions
	if it.first > 0 {
		it.sent = time.UnixMilli(it.first)
	}
}

// drop forgets its data. Nobody reads them once its fate is posted.
func (it *item) drop() { it.data, it.value = nil, nil }

// An entry is what becomes of an item, or a note of its being in hand.
type entry struct {
	item   *item
	fate   Fate
	bump   bool          // it counts as an attempt
	due    int64         // of Later, in Unix milliseconds
	reason error         // of Bury
	with   *txn          // what else its transaction does, or nil; of Remove
	wait   time.Duration // how long it was not tried after it was refused last
	alone  bool          // it has a transaction of its own
	done   chan struct{}
	err    error // read it only after done is closed
}

func (e *entry) close(err error) {
	e.err = cmp.Or(e.err, err)
	close(e.done)
}

// tried returns how often its item was delivered, with this time if that counts.
func (e *entry) tried() int {
	if e.bump {
		return e.item.attempts + 1
	}
	return e.item.attempts
}

// decide decides what becomes of an item. It returns the entry of what was decided; ok tells
// whether that is what was asked for.
func (c *claimant) decide(it *item, e entry) (_ *entry, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.final == nil {
		c.enterLocked(it, e)
	}
	return it.final, it.final.fate == e.fate
}

func (c *claimant) settled(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return it.final != nil
}

func (c *claimant) enterLocked(it *item, model entry) {
	e := &model
	e.item, e.done, it.final = it, make(chan struct{}), e
	if e.with == nil {
		c.leaveLocked(it)
	}
	c.sendLocked(e)
}

// sendLocked has an entry carried out.
func (c *claimant) sendLocked(e *entry) {
	switch loss := context.Cause(c.held); {
	case loss != nil:
		e.close(loss)
	case e.fate == Return, e.fate == fateHand:
		c.noteLocked(e)
	default:
		if c.queue = append(c.queue, e); !c.running {
			c.running = true
			c.q.m.Spawn(c.run)
		}
	}
}

// handed is told that the program has taken an item, and settles it.
func (c *claimant) handed(it *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.final != nil && it.final.with == nil || it.posted {
		return // it is settled already
	}
	it.place = inHand
	c.q.m.Holds.Add(1)
	if context.Cause(c.held) != nil {
		c.leaveLocked(it)
	}
}

// leaveLocked is told that an item is in nobody's hands any more.
func (c *claimant) leaveLocked(it *item) {
	if it.place == inHand {
		it.place = offered
		c.q.m.Holds.Add(-1)
	}
	if it.cancel != nil {
		it.cancel(it.lost)
	}
}

// context returns the context of a claim.
func (c *claimant) context(it *item) context.Context {
	c.lost()
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.ctx == nil {
		it.ctx, it.cancel = context.WithCancelCause(c.held)
		if it.posted || it.final != nil && it.final.with == nil {
			it.cancel(it.lost)
		}
	}
	return it.ctx
}

// run settles until nothing is left to settle.
func (c *claimant) run() {
	for {
		es := c.next500()
		if es == nil {
			return
		}
		c.settle(es)
	}
}

// next500 takes what one transaction settles.
func (c *claimant) next500() []*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	size, n := 4096, 0
	for n < len(c.queue) && n < maxPost {
		e := c.queue[n]
		if size += 4*c.q.m.SizeOf(c.q.dir+"/"+e.item.key(), nil) + maxReason; e.fate != Remove {
			size += e.item.size
		}
		if n > 0 && (size > session.MaxPacket/2 || e.alone || c.queue[0].alone) {
			break
		}
		n++
	}
	if n == 0 {
		c.running = false
		return nil
	}
	es := c.queue[:n:n]
	c.queue = c.queue[n:]
	return es
}

// settle carries out entries in one transaction, or more where something is refused.
func (c *claimant) settle(es []*entry) {
	open := false // an attempt without a reply may have been applied, or may be yet
	for try := 0; len(es) > 0; {
		steps, owners, err := c.steps(es)
		if err == nil {
			err = session.CheckSize(opsOf(steps))
		}
		unsent := err != nil
		var rs []zk.MultiResponse
		if !unsent {
			first := c.check()
			if es[0].with != nil { // what is written tells the transaction, and so the responses, when the reply is lost
				first = &zk.SetDataRequest{Path: c.path(), Data: []byte(c.q.m.Owner), Version: first.(*zk.CheckVersionRequest).Version}
			}
			rs, open, err = c.attempt(append([]any{first}, opsOf(steps)...), open)
		}
		switch {
		case err == nil:
			if rs[0].Stat != nil {
				c.wrote(rs[0].Stat)
			}
			c.removed(es, rs, 0)
			return
		case isOver(err), context.Cause(c.held) != nil:
			c.orphaned(es, open)
			return
		case !unsent && session.OutcomeOf(err) != session.Answered:
			if c.inc.Pause(session.Finishing, try) != nil {
				c.orphaned(es, open)
				return
			}
			try++
			continue
		case open:
			switch applied, zxid, e := c.applied(es); {
			case e != nil:
				c.orphaned(es, true)
				return
			case applied:
				c.removed(es, nil, zxid)
				return
			}
			open = false
			continue // what it is refused for now is nobody else's fault
		}
		i := session.FailedOp(rs)
		switch {
		case i == 0:
			if _, err := c.unchecked(c.check(), err, false); err != nil {
				c.orphaned(es, false)
				return
			}
		case i < 0 && len(es) > 1: // each by itself will tell
			c.mu.Lock()
			for _, e := range es {
				e.alone = true
			}
			c.queue = slices.Concat(es, c.queue)
			c.mu.Unlock()
			return
		default:
			e := es[0]
			if i > 0 {
				e, err = owners[i-1], steps[i-1].cure(c.inc, err)
			}
			if d, ok := opAt(steps, i-1).(*zk.DeleteRequest); ok && session.IsNoNode(err) && d.Path == session.ChildPath(c.q.dir, e.item.key()) {
				err = errMissing // by somebody who deletes what is not his
			}
			if isOver(err) {
				c.orphaned(es, false)
				return
			}
			if err != nil {
				c.refuse(e, err)
				es = slices.DeleteFunc(slices.Clone(es), func(o *entry) bool { return o == e })
			}
		}
	}
}

// attempt sends a transaction once. open tells that this attempt, or an earlier one, may have been
// applied. One that was sent may have been, also if the session ends before its reply.
func (c *claimant) attempt(ops []any, open bool) (rs []zk.MultiResponse, _ bool, err error) {
	p, err := c.inc.StartMulti(session.Finishing, ops)
	if err != nil {
		return nil, open, err
	}
	rs, err = p.Wait(session.Finishing, c.inc)
	return rs, open || session.OutcomeOf(err) == session.Unknown, err
}

// isOver reports that err is the end of the session, or of the Session.
func isOver(err error) bool {
	return errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrClosed)
}

// steps makes the operations that carry out entries, and says whose each is.
func (c *claimant) steps(es []*entry) (steps []step, owners []*entry, err error) {
	var e *entry
	add := func(op any, cure func(*session.Incarnation, error) error) {
		steps, owners = append(steps, step{op, cure}), append(owners, e)
	}
	q, bell, moved := c.q, false, false
	for _, e = range es {
		add(&zk.DeleteRequest{Path: session.ChildPath(q.dir, e.item.key()), Version: -1}, incurable)
		keyed := keyOf(e.item.tag) != ""
		bell, moved = bell || keyed || e.fate == Later, moved || keyed && e.fate == Later
		switch {
		case e.with != nil:
			err = e.with.add(c.inc, len(steps)+1, add)
		case e.fate == Bury:
			for _, op := range q.letter(e.item, e.reason, e.tried()) {
				add(op, when(session.IsNoNode, func(inc *session.Incarnation) error {
					return inc.MakeDir(session.Finishing, session.Dir{Path: q.dead})
				}))
			}
		case e.fate == Later:
			at := slotOf(e.item.prio, e.due, time.Now().UnixMilli())
			var dir string
			if dir, err = q.slots.bucket(c.inc, at); err == nil {
				name := laterName(e.due, int32(e.tried()), e.item.sent.UnixMilli(), e.item.id(), e.item.tag)
				add(&zk.CreateRequest{Path: session.ChildPath(dir, name), Data: e.item.data, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}, q.slots.cure(at))
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if keys := session.ChildPath(q.dir, keysName); moved {
		add(&zk.SetDataRequest{Path: keys, Version: -1}, when(session.IsNoNode, func(inc *session.Incarnation) error {
			_, err := inc.Create(session.Finishing, keys, nil)
			return err
		}))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if bell && !c.silent {
		add(ring(q.dir), func(_ *session.Incarnation, err error) error {
			c.mu.Lock()
			c.silent = true // it only wakes others sooner
			c.mu.Unlock()
			return nil
		})
	}
	return steps, owners, nil
}

// applied finds out whether an attempt without a reply was applied, and sees to it that otherwise
// it never is. zxid is that of the transaction, if it has written the mark.
func (c *claimant) applied(es []*entry) (_ bool, zxid int64, _ error) {
	if n, err := c.look(session.Finishing, c.path()); err != nil {
		return false, 0, err
	} else if n.Stat != nil {
		zxid = n.Stat.Mzxid
	}
	if err := c.fence(session.Finishing); err != nil {
		return false, 0, err
	}
	paths := make([]string, len(es))
	for i, e := range es {
		paths[i] = session.ChildPath(c.q.dir, e.item.key())
	}
	there, err := c.thereOf(c.inc, paths)
	if err != nil || there > 0 {
		return false, 0, err
	}
	// They are gone: deleted by us if our mark exists behind that. Otherwise another may have had them.
	stat, err := c.inc.ExistsFresh(session.Finishing, c.path())
	if err == nil && stat == nil {
		c.lose(c.inc.Deleted())
		err = session.ErrVanished
	}
	return err == nil, zxid, err
}

// thereOf returns how many of these znodes exist.
func (c *claimant) thereOf(inc *session.Incarnation, paths []string) (there int, err error) {
	if err := inc.Sync(session.Finishing, c.q.dir); err != nil {
		return 0, err
	}
	looks, err := inc.LookAtAll(session.Finishing, paths...)
	for _, l := range looks {
		if !session.IsNoNode(l.Err) {
			there++
		}
	}
	return there, err
}

// removed is told that entries were carried out, with the responses; or, of a txn, with its zxid.
func (c *claimant) removed(es []*entry, rs []zk.MultiResponse, zxid int64) {
	fates := map[string][]*item{}
	for _, e := range es {
		switch {
		case e.with != nil && rs == nil:
			e.with.rs = c.q.m.BareResponses(c.inc.Recall(session.Finishing, e.with.ops, zxid))
		case e.with != nil:
			e.with.rs = e.with.answered(rs[e.with.at:])
		}
		word := map[Fate]string{Remove: trace.Removed, Later: trace.Delayed, Bury: trace.Buried}[e.fate]
		fates[word] = append(fates[word], e.item)
	}
	for _, r := range rs {
		c.q.slots.learn(r.String)
	}
	for word, items := range fates {
		c.traceDone(trace.Release, word, items, zxidOf(rs))
	}
	c.mu.Lock()
	for _, e := range es {
		c.leaveLocked(e.item)
		c.dropLocked(e.item, true)
		e.close(nil)
	}
	c.mu.Unlock()
	for _, e := range es { // the log and the observer are not called under a lock
		if e.fate == Bury {
			c.q.Report(e.item.id(), e.reason)
		}
	}
}

// refuse tells that the servers have refused an entry, and that nothing was applied. A txn is over
// then, and the item is as before. Everything else stays decided, and is tried again: what
// they refuse, they may allow later.
func (c *claimant) refuse(e *entry, err error) {
	c.mu.Lock()
	missing := err == errMissing
	switch {
	case missing:
		c.leaveLocked(e.item)
		c.dropLocked(e.item, true)
		e.close(c.inc.Deleted())
	case e.with != nil:
		e.item.final = nil
		e.close(err)
	default:
		defer func(first bool) {
			if first {
				c.q.m.Log.Error("zsync: cannot settle an element, and goes on trying", "path", c.q.path, "element", e.item.id(), "err", err)
			}
		}(e.wait == 0)
		c.refuseLocked(e, err)
	}
	c.mu.Unlock()
	if missing {
		c.traceDone(trace.Release, trace.Missing, []*item{e.item}, 0)
	}
}

// retryAfter is how long it takes until something is tried again that the
// servers have refused. It doubles, up to a minute, until they allow it.
const retryAfter = time.Second

// refuseLocked has an entry tried again later.
func (c *claimant) refuseLocked(e *entry, err error) {
	if loss := context.Cause(c.held); loss != nil {
		e.close(loss)
		return
	}
	next := *e
	next.alone = true
	next.wait = min(max(2*e.wait, retryAfter), time.Minute)
	if e.fate != fateHand { // who waits for a note offers nothing before it is written down
		next.done = make(chan struct{})
		e.item.final = &next
		e.close(err)
	}
	c.refused[&next] = true
	time.AfterFunc(next.wait, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refused[&next] {
			delete(c.refused, &next)
			c.sendLocked(&next)
		}
	})
}

// orphaned is told that the claims were lost before entries were carried out; open tells that an
// attempt may have been applied. That is found out behind the end of the mark.
func (c *claimant) orphaned(es []*entry, open bool) {
	if !open {
		c.closeAll(es, c.loss())
		return
	}
	c.q.m.Spawn(func() {
		err := c.q.m.During(session.Finishing, func(inc *session.Incarnation) error {
			if err := inc.AwaitGone(session.Finishing, c.path()); err != nil {
				return err
			}
			for _, e := range es { // they were one transaction
				there, err := c.thereOf(inc, []string{session.ChildPath(c.q.dir, e.item.key())})
				if err != nil {
					return err
				}
				if there > 0 {
					return errNotApplied
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, errNotApplied):
			c.closeAll(es, c.loss())
		case err != nil:
			c.closeAll(es, session.ErrClosed) // it may have been carried out
		default:
			c.closeAll(es, fmt.Errorf("the claim was lost before the answer, and the element is gone, so whether it was applied is unknown: %w", zk.ErrNoNode))
		}
	})
}

var errMissing = errors.New("zsync: BUG: the element is gone")

// opAt returns an operation, or nil if there is none.
func opAt(steps []step, i int) any {
	if i < 0 {
		return nil
	}
	return steps[i].op
}

var errNotApplied = errors.New("zsync: BUG: it was not applied")

// loss is why the claims are lost, once they are.
func (c *claimant) loss() error { return cmp.Or(c.lost(), c.inc.Loss()) }

func (c *claimant) closeAll(es []*entry, err error) {
	for _, e := range es {
		e.close(err)
	}
}

// settleNow decides what becomes of an item and waits until that is carried out. It
// returns the entry of what was decided.
func (c *claimant) settleNow(ctx context.Context, it *item, model entry) (e *entry, err error) {
	for {
		loss := c.lost()
		var ok bool
		if e, ok = c.decide(it, model); !ok {
			return e, cmp.Or(loss, it.lost, line.ErrNotLocked)
		}
		err = c.await(ctx, e)
		if e.with == nil || e.with == model.with || !session.IsClosed(e.done) || c.settled(it) {
			return e, err
		}
		// Another's txn was refused, so nothing is decided.
	}
}

// await waits until a fate is carried out. What gives an element back needs no answer.
func (c *claimant) await(ctx context.Context, e *entry) error {
	var down <-chan struct{}
	var limit <-chan time.Time
	if e.fate == Return || e.fate == Later {
		timer := time.NewTimer(session.ReleaseTime)
		defer timer.Stop()
		down, limit = c.inc.Disconnection(), timer.C
	}
	// If several are ready, what came of it goes before everything else.
	select {
	case <-e.done:
	case <-down:
	case <-limit:
	case <-c.q.m.Over:
	case <-ctx.Done():
	}
	switch {
	case session.IsClosed(e.done):
		return e.err
	case down != nil && ctx.Err() == nil && !session.IsClosed(c.q.m.Over):
		return nil
	case !session.IsClosed(c.q.m.Over):
		return session.CtxErr(ctx)
	case e.fate == Return:
		return c.inc.EndError(session.ErrClosed) // it goes back, sooner or later
	}
	// It may have been carried out, so it is not told to be lost: that would say
	// that somebody else gets the element.
	return session.ErrClosed
}
