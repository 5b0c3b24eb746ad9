package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// This file claims elements, so that an element never has two claims at the same time, even if
// replies are lost. It does not find the free elements: see find.go. It does not decide the fate of
// a claimed element: see settle.go.

// The type `claimant` is the owner of all claims of a Queue value in one ZooKeeper session. The
// claims are lost when the session ends, or when another client deletes the claimant's mark.
//
// Every transaction of a claimant checks the claimant's mark. A transaction that writes a board
// also checks the version of that board, and the claimant sends these transactions one at a time.
// So while the mark exists, the claimant knows its own lines on all boards from memory.
type claimant struct {
	q    *core
	inc  *session.Incarnation
	mark string        // name of the mark
	turn chan struct{} // a goroutine puts a token in before it writes boards, and takes it out after

	held context.Context // ends with the claims; its cause is the loss
	lose context.CancelCauseFunc

	mu      sync.Mutex
	version int32                      // version of the mark; guarded by mu
	seen    int64                      // a connection over which, or after which, the servers have found the mark; guarded by mu
	ended   bool                       // the claimant must claim nothing more; guarded by mu
	users   int                        // callers of `enlist` that have not called `leave` yet; guarded by mu
	timer   *time.Timer                // calls `rest` when the claimant was unused for the time whenIdle; guarded by mu
	items   map[string]map[int32]*item // claimed elements that are not settled, by bucket and number; guarded by mu
	known   map[string]*lot            // the buckets as the claimant wrote them last; guarded by mu
	returns []*entry                   // entries that return items; guarded by mu
	posting bool                       // set while a goroutine writes the `returns`; guarded by mu
	queue   []*entry                   // entries for deletions; guarded by mu
	running bool                       // set while a goroutine settles the entries in `queue`; guarded by mu
	stake   *session.Stake             // keeps the session confirmed, from the first offer until the claimant has no items; guarded by mu
	empty   chan struct{}              // if not nil, closed when the claimant has no items; guarded by mu

	watch *session.OwnWatch // watch of the mark; nil until the mark is created; used only by the goroutine that has the `turn`
}

// whenIdle is the time after which a claimant without users and items ends.
const whenIdle = 10 * time.Second

// The method `enlist` returns the claimant of a session. The caller may claim elements with that
// claimant until it calls the claimant's method `leave`.
func (q *core) enlist(inc *session.Incarnation) (*claimant, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.claimant; c != nil && c.inc == inc {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ended && c.held.Err() == nil {
			c.users++
			return c, nil
		}
	}
	leaving, stay := q.m.BeforeClose()
	if session.IsClosed(leaving) || session.IsClosed(q.m.Closing) {
		stay()
		return nil, session.ErrClosed // Close would not wait for new claims
	}
	c := &claimant{
		q: q, inc: inc, mark: randomDigits(markDigits), turn: make(chan struct{}, 1), users: 1,
		items: make(map[string]map[int32]*item), known: make(map[string]*lot),
	}
	c.held, c.lose = context.WithCancelCause(context.Background())
	c.timer = time.AfterFunc(whenIdle, c.rest)
	q.claimant = c
	unhook := inc.Ended.AfterFunc(func(cause error) { c.lose(inc.EndError(cause)) })
	q.m.Spawn(func() {
		defer stay()
		defer unhook()
		c.finish(leaving)
	})
	return c, nil
}

// The method `leave` removes a user.
func (c *claimant) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	c.timer.Reset(whenIdle)
}

// The method `rest` ends a claimant that has neither users nor items, so that its mark is deleted: a
// program can use any number of queues in one session.
func (c *claimant) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users == 0 && len(c.items) == 0 {
		c.ended = true
		c.lose(nil)
	}
}

// The method `finish` waits until the claims are lost. If the Session begins to close before that,
// `finish` returns to the queue the elements in hand, and waits until the claimant has no items: the
// pumps return the other elements. Then `finish` closes all entries with the error of the loss, and
// deletes the mark.
func (c *claimant) finish(leaving <-chan struct{}) {
	select {
	case <-c.held.Done():
	case <-leaving: // until now, Close has waited for the program's functions, which still settle their elements
		c.mu.Lock()
		c.ended = true
		for _, items := range c.items {
			for _, it := range items {
				if it.final == nil && it.inHand {
					it.lost = c.inc.EndError(session.ErrClosed)
					c.enterLocked(it, Settlement{Fate: Return}, nil)
				}
			}
		}
		empty := session.ClosedChan
		if len(c.items) > 0 {
			empty = make(chan struct{})
			c.empty = empty
		}
		c.mu.Unlock()
		select {
		case <-empty:
		case <-c.held.Done():
		case <-c.q.m.Over:
		}
		c.lose(c.inc.EndError(session.ErrClosed))
	}
	loss := context.Cause(c.held)
	c.turn <- struct{}{} // a write of a board may still be under way
	made, left := c.watch != nil, c.watch.Drop()
	<-c.turn
	c.mu.Lock()
	c.ended = true
	c.timer.Stop()
	c.stake.Drop()
	var lost []*item
	for _, items := range c.items {
		for _, it := range items {
			lost = append(lost, it)
			c.leaveLocked(it)
		}
	}
	for _, e := range slices.Concat(c.returns, c.queue) {
		e.close(loss)
	}
	c.returns, c.queue = nil, nil
	c.mu.Unlock()
	if c.q.trace != nil && len(lost) > 0 {
		c.q.trace.Line(c.q.m.TraceLoss(c.traceLine(trace.Loss, lost), loss))
	}
	if made && c.inc.Ctx.Err() == nil {
		c.inc.Delete(&session.Deletion{Paths: []string{c.path()}, MayStay: true}).Await(session.Grace)
		c.inc.Watches.Fire(zk.EventNodeDataChanged, c.q.dir) // the elements are free: wakes the consumers of this session
	}
	left()
}

func (c *claimant) path() string { return session.ChildPath(c.q.live, c.mark) }

// Vanished is called when another client has deleted the mark.
func (c *claimant) Vanished(*session.OwnWatch) { c.lose(c.inc.Deleted()) }

// The method `lost` returns the reason of the loss, or nil if the claims are not lost.
func (c *claimant) lost() error {
	if !c.inc.Alive() {
		c.lose(c.inc.Loss()) // the hook of `enlist` might not have run yet
	}
	if cause := context.Cause(c.held); cause != context.Canceled {
		return cause
	}
	return nil // by `rest`: a claimant without claims has lost none
}

// The method `claim` claims `es`, which are free elements of `t`, and records `es[:hands]` as in hand. If
// another transaction has written the bucket since `t` was read, the error is errOutrun.
func (c *claimant) claim(t *lot, es []*element, hands int) ([]*item, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.flush() // returned elements may come before `es` in the queue
	c.mu.Lock()
	known := cmp.Or(c.known[t.name], t)
	mine := slices.ContainsFunc(es, func(e *element) bool { return c.items[t.name][e.seq] != nil })
	c.mu.Unlock()
	if known.czxid != t.czxid {
		c.lose(c.inc.Deleted()) // another client has deleted the bucket and created it again: the numbers of its elements begin again
	}
	switch {
	case c.inc.Ctx.Err() != nil:
		return nil, session.ErrEnded
	case c.q.m.Failure() != nil:
		return nil, c.q.m.Failure()
	case c.held.Err() != nil:
		return nil, session.ErrVanished
	case mine || known.version > t.version:
		// The claimant has written the board since `t` was read, and may have claimed `es` already. If the
		// reply to a new claim were lost, its line could not show whether the servers have applied the claim.
		return nil, errOutrun
	}
	if c.watch == nil { // the first claim
		since := c.inc.Watches.Connection()
		mark := session.Creation{Dir: session.Dir{Path: c.q.live}, Paths: []string{c.path()}, Data: c.q.m.Owner}
		if err := c.inc.CreateEphemeral(session.Finishing, &mark); err != nil {
			c.lose(nil) // the servers may have created the mark, so its name is not used again
			return nil, err
		}
		c.exists(nil, since)
		c.watch = c.inc.WatchOwn(c.path(), c)
		c.watch.Made(true) // as soon as the mark is deleted, another client can claim the elements
	}
	next := c.next(t)
	line := next.lines[c.mark]
	next.lines[c.mark] = hold{line.claimed.union(numbers(es)), line.hand.union(numbers(es[:hands]))}
	with := t.exclusion(c.q.dir)
	blind := c.q.Skips.Skipped(pausedName)
	if !blind {
		with = append(with, c.q.unpaused()...)
	}
	rs, err := c.write(t, next, with...)
	if err != nil {
		switch {
		case outrun(err), session.IsNodeExists(err): // NodeExists: the queue is paused, and this server lags
			err = errOutrun
		case session.FailedOp(rs) > 1 && session.IsAnswer(err, zk.ErrNoAuth) && !blind:
			c.q.Skips.Skip(pausedName) // this client's claims do not check for a pause
			err = errOutrun
		case session.FailedOp(rs) == 1 && session.IsAnswer(err, zk.ErrNoAuth):
			c.q.Skips.Unreadable(t.name, err)
			err = errBarred
		}
		return nil, err
	}
	t.keys, t.dead = t.keys+1, nil
	items := make([]*item, len(es))
	c.mu.Lock()
	if c.items[t.name] == nil {
		c.items[t.name] = make(map[int32]*item)
	}
	for i, e := range es {
		items[i] = &item{element: e, c: c, attempts: next.tried[e.seq], noted: i < hands}
		c.items[t.name][e.seq] = items[i]
	}
	c.mu.Unlock()
	c.traceDone(trace.Grant, "", items, zxidOf(rs))
	return items, nil
}

// The method `obtain` claims elements with the method `claim`, and reads them at the same time. If the
// claim succeeds, the data is valid: no other consumer has had the elements since the search. The
// result has no item of a deleted element, and no item of an unreadable element, which returns to the
// queue.
func (c *claimant) obtain(t *lot, es []*element, hands int) (items []*item, err error) {
	var nodes []session.Node
	var failure error
	done := make(chan struct{})
	c.q.m.Spawn(func() {
		defer close(done)
		nodes, failure = c.inc.GetVisible(session.Finishing, pathsOf(c.q.dir, es, (*element).key))
	})
	claimed, err := c.claim(t, es, hands)
	if err != nil {
		return nil, err
	}
	<-done
	c.mu.Lock()
	for i, it := range claimed {
		switch {
		case failure != nil:
			c.enterLocked(it, untried, nil)
		case nodes[i].Stat == nil:
			c.dropLocked(it)
		case hidden(nodes[i]):
			c.enterLocked(it, untried, nil)
			defer c.q.Skips.Unreadable(it.key(), zk.ErrNoAuth)
		default:
			it.read(nodes[i])
			items = append(items, it)
		}
	}
	c.mu.Unlock()
	return items, failure
}

var (
	errOutrun = errors.New("zsync: BUG: another claim was faster")
	errBarred = errors.New("zsync: BUG: the bucket is passed over") // the servers refuse to let this client write it
	errDone   = errors.New("zsync: BUG: the pump of a Take is done")
)

// The method `next` returns the board that the claimant writes after the board of `t`, with the
// claimant's new line. The numbers in the old line that have no item are settled: the new board lists
// them as gone.
func (c *claimant) next(t *lot) *board {
	next := t.next()
	c.mu.Lock()
	defer c.mu.Unlock()
	var claimed, hand, settled []int32
	for _, x := range next.lines[c.mark].claimed {
		for n := int64(x.a); n <= int64(min(x.b, t.last)); n++ {
			if c.items[t.name][int32(n)] == nil {
				settled = append(settled, int32(n))
			}
		}
	}
	next.forget(spansOf(settled))
	for n, it := range c.items[t.name] {
		if it.back { // this write returns the item
			continue
		}
		if claimed = append(claimed, n); it.noted {
			hand = append(hand, n)
		}
	}
	next.lines[c.mark] = hold{spansOf(claimed), spansOf(hand)}
	return next
}

// wroteLocked records that the claimant has written the board of `t`.
func (c *claimant) wroteLocked(t *lot) {
	if len(c.known) > maxKnown {
		clear(c.known)
	}
	c.known[t.name] = &lot{bucket: t.bucket, czxid: t.czxid, version: t.version, board: t.board, last: t.last}
}

// maxKnown is the largest number of buckets in `known`. The claimant never writes the boards of most
// of them again, because clients delete empty buckets.
const maxKnown = 1000

// The method `write` makes `next` the board of `t`, if nobody has written the bucket since `t` was read. If
// another client has written or deleted the bucket, the error is BadVersion or NoNode.
//
// If a reply is lost, the claimant's line shows whether the write was applied: no other client writes
// that line while the mark exists.
func (c *claimant) write(t *lot, next *board, with ...any) ([]zk.MultiResponse, error) {
	path, data := session.ChildPath(c.q.dir, t.name), next.marshal()
	if len(data) > session.MaxPacket/2 {
		return nil, fmt.Errorf("the claims of bucket %s take %d bytes: %w", t.name, len(data), session.ErrTooLarge)
	}
	ops := append([]any{&zk.SetDataRequest{Path: path, Data: data, Version: t.version}}, with...)
	rs, _, err := c.transact(ops, false, func(int64) (bool, error) {
		data, _, err := c.inc.GetFresh(session.Finishing, path)
		if session.IsNoNode(err) {
			return false, nil
		}
		is, want := parseBoard(data).lines[c.mark], next.lines[c.mark]
		return slices.Equal(is.claimed, want.claimed) && slices.Equal(is.hand, want.hand), err
	})
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.board, t.version = next, t.version+1
		c.wroteLocked(t)
	}
	return rs, err
}

// The method `transact` checks the mark and applies `ops`, in one transaction and exactly once. If
// `touch` is set, the transaction writes the mark, which then has the zxid of the transaction. If
// `transact` returns an error, the result `open` says whether the servers may have applied the
// transaction, or may apply it later.
//
// If a reply is lost, `transact` sends the transaction again until the servers answer. If they refuse
// it, `transact` first writes the mark: from then on, the servers refuse every earlier attempt. If
// `touch` is set and the mark was unchanged before that, no attempt was applied. Otherwise, `transact`
// calls `applied`, which looks whether an earlier attempt was applied. The argument of `applied` is the
// zxid of the mark before that write. If an earlier attempt was applied, the responses are nil.
func (c *claimant) transact(ops []any, touch bool, applied func(zxid int64) (bool, error)) (rs []zk.MultiResponse, open bool, err error) {
	var sent int32 // the version of the mark that the first attempt without a reply expects
	for try := 0; ; {
		since, first := c.inc.Watches.Connection(), c.check(touch)
		if w, ok := first.(*zk.SetDataRequest); ok && !open {
			sent = w.Version
		}
		rs = nil
		p, err := c.inc.StartMulti(session.Finishing, append([]any{first}, ops...))
		if err == nil {
			rs, err = p.Wait(session.Finishing, c.inc)
			open = open || session.OutcomeOf(err) == session.Unknown // even if the session has ended
		}
		switch {
		case err == nil:
			c.exists(rs[0].Stat, since)
			return rs, false, nil
		case isOver(err):
			return nil, open, err
		case context.Cause(c.held) != nil:
			return nil, open, session.ErrVanished
		case session.OutcomeOf(err) != session.Answered:
			if err := c.inc.Pause(session.Finishing, try); err != nil {
				return nil, open, err
			}
			try++
		case open:
			was, err := c.fence()
			done := false
			if err == nil && !(touch && was.Version == sent) {
				done, err = applied(was.Mzxid)
			}
			if err != nil {
				return nil, true, c.unknown(err)
			}
			if done {
				return nil, false, nil
			}
			open = false // no earlier attempt can cause the next refusal
		case session.FailedOp(rs) == 0:
			if err := c.unchecked(err); err != nil {
				return nil, false, err
			}
		default:
			return rs, false, err
		}
	}
}

// The method `unknown` is called with the error of an attempt to find out whether a transaction was
// applied. If the servers have refused that attempt, the claimant gives up its claims, and `finish`
// deletes its mark. Otherwise, no client would settle or return the elements of the transaction
// while the session lives.
func (c *claimant) unknown(err error) error {
	if session.OutcomeOf(err) != session.Answered {
		return err
	}
	c.lose(c.inc.GivenUp(err))
	return session.ErrVanished
}

// isOver reports whether err means that the ZooKeeper session has ended or the Session was closed.
func isOver(err error) bool {
	return errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrClosed)
}

// The method `check` returns the first operation of every transaction of the claimant. The
// operation checks the mark, or writes it if `touch` is set.
func (c *claimant) check(touch bool) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if touch {
		return &zk.SetDataRequest{Path: c.path(), Data: []byte(c.q.m.Owner), Version: c.version}
	}
	return &zk.CheckVersionRequest{Path: c.path(), Version: c.version}
}

// The method `exists` records that the mark exists, and its version if `stat` is not nil. The servers have
// found it over the connection with the number `since` or a later one; 0: unknown.
func (c *claimant) exists(stat *zk.Stat, since int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen = max(c.seen, since); stat != nil {
		c.version = max(c.version, stat.Version)
	}
}

// The method `unchecked` is called when the servers have refused the operation that `check`
// returned. If it returns nil, the caller must send the transaction again.
func (c *claimant) unchecked(err error) error {
	switch {
	case session.IsBadVersion(err): // `fence` has written the mark; or another client has, which does no harm
		stat, err := c.inc.ExistsFresh(session.Finishing, c.path())
		c.exists(stat, 0)
		return err
	case session.IsNoNode(err):
		c.lose(c.inc.Deleted())
		return session.ErrVanished
	}
	return err
}

// The method `fence` writes the mark. From then on, the servers refuse every earlier attempt that has
// no reply, because such an attempt expects the old version of the mark. The result `was` is the Stat
// of the mark before that.
func (c *claimant) fence() (was zk.Stat, err error) {
	c.mu.Lock()
	version := c.version
	c.mu.Unlock()
	ctx := session.Finishing
	stat, err := c.inc.ExistsFresh(ctx, c.path())
	if stat != nil {
		was = *stat
		stat, err = c.inc.Set(ctx, c.path(), []byte(c.q.m.Owner), version)
		if session.IsBadVersion(err) { // an earlier attempt was applied, of this write or of the transaction
			if stat, err = c.inc.ExistsFresh(ctx, c.path()); stat != nil {
				was = *stat
			}
		}
	}
	switch {
	case session.IsNoNode(err), err == nil && stat == nil:
		c.lose(c.inc.Deleted())
		return was, session.ErrVanished
	case err == nil:
		c.exists(stat, 0)
	}
	return was, err
}

// The method `flush` returns all items in c.returns, bucket by bucket. The caller has the `turn`.
func (c *claimant) flush() {
	for {
		c.mu.Lock()
		var es []*entry
		for _, e := range c.returns {
			if len(es) == 0 || e.item.bucket == es[0].item.bucket {
				es = append(es, e)
				e.item.back = true
			}
		}
		c.returns = slices.DeleteFunc(c.returns, func(e *entry) bool { return e.item.bucket == es[0].item.bucket })
		c.posting = c.posting && es != nil // a later return starts another goroutine
		c.mu.Unlock()
		if es == nil {
			return
		}
		rs, err := c.post(es[0].item.bucket, es)
		if errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrVanished) {
			err = c.lost()
		}
		var back []*item
		c.mu.Lock()
		for _, e := range es {
			if err != nil && context.Cause(c.held) == nil {
				e.item.back = false
				c.refuseLocked(e, err) // tries again later
				continue
			}
			if err == nil {
				back = append(back, e.item)
				c.dropLocked(e.item)
			}
			e.close(err)
		}
		c.mu.Unlock()
		c.traceDone(trace.Release, trace.Returned, back, zxidOf(rs))
	}
}

// The method `post` returns items on the board of their bucket.
func (c *claimant) post(bucket string, es []*entry) (rs []zk.MultiResponse, err error) {
	c.mu.Lock()
	t := c.known[bucket]
	c.mu.Unlock()
	for {
		if t == nil {
			data, stat, err := c.inc.GetFresh(session.Finishing, session.ChildPath(c.q.dir, bucket))
			switch {
			case session.IsNoNode(err):
				return nil, nil // a deleted bucket has no elements
			case err != nil:
				return nil, err
			}
			b, _ := parseBucket(bucket)
			t = newLot(b, session.Node{Data: data, Stat: stat})
		}
		next := c.next(t)
		for _, e := range es {
			if !e.Untried {
				next.tried[e.item.seq]++
			}
		}
		if rs, err = c.write(t, next, ring(c.q.dir)); !outrun(err) {
			return rs, err
		}
		t = nil
	}
}

// dropLocked removes an item from the claimed items, after its fate was carried out.
func (c *claimant) dropLocked(it *item) {
	if delete(c.items[it.bucket], it.seq); len(c.items[it.bucket]) == 0 {
		delete(c.items, it.bucket)
	}
	it.posted, it.data, it.value = true, nil, nil // no caller needs the data any longer
	if len(c.items) > 0 {
		return
	}
	c.stake.Drop()
	c.stake = nil
	if c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
	c.timer.Reset(whenIdle)
}

// The method `stands` returns true if the session is confirmed and the mark exists. Then every claim
// of the claimant is valid. While the claimant has items, its stake keeps the session confirmed.
//
// After an outage, `stands` reads the mark. Another client may have deleted the mark during the
// outage, and another consumer may have the elements.
func (c *claimant) stands(ctx context.Context) bool {
	c.mu.Lock()
	staked, seen := c.stake != nil, c.seen
	c.mu.Unlock()
	again := c.inc.Watches.Connection() != seen
	if !staked {
		lapse := c.inc.Lapse()
		s, err := c.inc.Stake(ctx)
		if err != nil {
			return false
		}
		c.mu.Lock()
		if c.stake != nil || len(c.items) == 0 {
			s.Drop() // another consumer was quicker, or the claimant has no items left
		} else {
			c.stake = s
		}
		c.mu.Unlock()
		again = again || lapse.Outage()
	}
	if again {
		on := c.inc.Watches.Connection()
		switch stat, err := c.inc.Exists(ctx, c.path()); {
		case err != nil && session.OutcomeOf(err) != session.Answered:
			return false
		case err == nil && (stat == nil || stat.EphemeralOwner != c.inc.ID.Load()):
			c.lose(c.inc.Deleted())
		case err == nil:
			c.exists(stat, on)
		}
	}
	return c.lost() == nil
}

// traceLine returns a trace record about items.
func (c *claimant) traceLine(event string, items []*item) trace.Record {
	t := c.inc.TraceLine(event, trace.Element, c.q.dir, "")
	t.Claim = c.mark
	for _, it := range items {
		t.Elements = append(t.Elements, it.key())
	}
	slices.Sort(t.Elements)
	return t
}

// traceDone writes to the trace how a transaction has changed items. The argument `zxid` is the
// transaction's zxid, or 0 if the caller does not know it.
func (c *claimant) traceDone(event, fate string, items []*item, zxid int64) {
	if c.q.trace != nil && len(items) > 0 {
		t := c.traceLine(event, items)
		t.Fate, t.Zxid, t.Blind = fate, zxid, false
		c.q.trace.Line(t)
	}
}
