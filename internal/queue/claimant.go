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
	"github.com/zsync/zsync/internal/znodes"
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
	q       *core
	inc     *session.Incarnation
	leaving <-chan struct{} // closed when the Session begins to close
	mark    string          // name of the mark
	turn    chan struct{}   // a goroutine puts a token in before it writes boards, and takes it out after

	held context.Context // ends with the claims; its cause is the loss
	lose context.CancelCauseFunc

	mu      sync.Mutex         // guards the fields from here to `stake`
	version int32              // version of the mark
	zxids   map[int32]int64    // by version: the zxids of the mark that `fence` has read
	seen    int64              // a connection over which, or after which, the servers have found the mark
	users   int                // callers of `enlist` that have not called `leave` yet
	timer   *time.Timer        // ends the claimant when it was unused for the time whenIdle
	lots    map[string]*claims // by name: the buckets with claimed elements
	returns []*entry           // entries that return items
	queue   []*entry           // entries for deletions
	running bool               // set while a goroutine settles the entries in `queue`
	stake   *session.Stake     // keeps the session confirmed, from the first offer until the claimant has no items

	watch *znodes.OwnWatch // watch of the mark; nil until the mark is created; used only by the goroutine that has the `turn`
}

// The type `claims` is a bucket, as the claimant wrote it last, with the claimed elements that are not settled.
type claims struct {
	lot
	items map[int32]*item // by number
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
		if c.held.Err() == nil && !session.IsClosed(c.leaving) {
			c.users++
			return c, nil
		}
	}
	leaving, stay := q.m.BeforeClose()
	if session.IsClosed(leaving) || session.IsClosed(q.m.Closing) {
		stay()
		return nil, session.ErrClosed // Close would not wait for new claims
	}
	c := &claimant{q: q, inc: inc, leaving: leaving, mark: randomDigits(markDigits), turn: make(chan struct{}, 1), users: 1}
	c.lots, c.zxids = make(map[string]*claims), make(map[int32]int64)
	c.held, c.lose = context.WithCancelCause(context.Background())
	// A program can use any number of queues in one session, so the mark of an unused queue is deleted.
	c.timer = time.AfterFunc(whenIdle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.users == 0 && len(c.lots) == 0 {
			c.lose(nil)
		}
	})
	q.claimant = c
	unhook := inc.Ended.AfterFunc(func(cause error) { c.lose(inc.EndError(cause)) })
	q.m.Spawn(func() {
		defer stay()
		defer unhook()
		c.finish()
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

// The method `finish` waits until the claims are lost. If the Session begins to close before that,
// `finish` returns to the queue the elements in hand, and waits until the claimant has no items: the
// pumps return the other elements. Then `finish` closes all entries with the error of the loss, and
// deletes the mark.
func (c *claimant) finish() {
	select {
	case <-c.held.Done():
	case <-c.leaving: // until now, Close has waited for the program's functions, which still settle their elements
		c.mu.Lock()
		for _, t := range c.lots {
			for _, it := range t.items {
				c.withdrawLocked(it)
			}
		}
		c.endLocked()
		c.mu.Unlock()
		select {
		case <-c.held.Done(): // `endLocked` has found no items, or the claims are lost
		case <-c.q.m.Over:
			c.lose(c.inc.EndError(session.ErrClosed))
		}
	}
	loss := context.Cause(c.held)
	c.turn <- struct{}{} // a write of a board may still be under way
	made, left := c.watch != nil, c.watch.Drop()
	<-c.turn
	c.mu.Lock()
	c.timer.Stop()
	c.stake.Drop()
	var lost []*item
	for _, t := range c.lots {
		for _, it := range t.items {
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
		// Unless the claimant was idle, consumers wait for this deletion: the boards may record claims of the mark.
		znodes.Delete(c.inc, &znodes.Deletion{Paths: []string{c.path()}, MayStay: loss == context.Canceled, By: func() error {
			return znodes.RemoveNow(c.inc.Ctx, c.inc, c.path())
		}}).Await(session.Grace)
		c.inc.Watches.Fire(zk.EventNodeDataChanged, c.q.dir) // the elements are free: wakes the consumers of this session
	}
	left()
}

func (c *claimant) path() string { return znodes.ChildPath(c.q.live, c.mark) }

// Vanished is called when another client has deleted the mark.
func (c *claimant) Vanished(*znodes.OwnWatch) { c.lose(c.inc.Deleted()) }

// The method `lost` returns the reason of the loss, or nil if the claims are not lost.
func (c *claimant) lost() error {
	if !c.inc.Alive() {
		c.lose(c.inc.Loss()) // the hook of `enlist` might not have run yet
	}
	if cause := context.Cause(c.held); cause != context.Canceled {
		return cause
	}
	return nil // a claimant without claims has lost none
}

// The method `obtain` claims `es`, which are free elements of `t`, and records `es[:hands]` as in hand. It
// reads the elements at the same time: if the claim succeeds, no other consumer has had them since the
// search, so the data is valid. The result has no item of a deleted element, and no item of an
// unreadable element, which returns to the queue. If another transaction has written the bucket since
// `t` was read, the error is errOutrun.
func (c *claimant) obtain(t *lot, es []*element, hands int) (items []*item, err error) {
	var nodes []session.Node
	var failure error
	read := make(chan struct{})
	// The read begins in the turn. So if an item of an earlier claim was removed since the search, the read
	// does not find its element: see `dropLocked`.
	c.turn <- struct{}{}
	c.q.m.Spawn(func() {
		defer close(read)
		nodes, failure = znodes.GetVisible(session.Finishing, c.inc, pathsOf(c.q.dir, es, (*element).key))
	})
	claimed, err := c.claim(t, es, hands)
	if err != nil {
		return nil, err
	}
	<-read
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
			it.data, it.czxid, it.sent = nodes[i].Data, nodes[i].Stat.Czxid, time.UnixMilli(cmp.Or(it.first, nodes[i].Stat.Ctime))
			items = append(items, it)
		}
	}
	c.mu.Unlock()
	return items, failure
}

var (
	errOutrun = errors.New("zsync: BUG: another claim was faster")
	errDone   = errors.New("zsync: BUG: the pump of a Take is done")
)

// The method `claim` is `obtain` without the read. It ends the turn of the caller.
func (c *claimant) claim(t *lot, es []*element, hands int) ([]*item, error) {
	defer func() { <-c.turn }()
	if c.flush() {
		return nil, errOutrun // returned elements may come before `es` in the queue
	}
	c.mu.Lock()
	kept := cmp.Or(c.lots[t.name], &claims{lot{bucket: t.bucket, czxid: t.czxid}, make(map[int32]*item)})
	c.mu.Unlock()
	if err := c.same(kept.czxid, t.czxid); err != nil {
		return nil, err
	}
	switch {
	case c.held.Err() != nil:
		return nil, session.ErrVanished
	case kept.version > t.version:
		// The claimant has written the board since `t` was read, and may have claimed `es` already. If the
		// reply to a new claim were lost, its line could not show whether the servers have applied the claim.
		return nil, errOutrun
	}
	if c.watch == nil { // the first claim
		since := c.inc.Watches.Connection()
		mark := znodes.Creation{Dir: znodes.Dir{Path: c.q.live}, Paths: []string{c.path()}, Data: c.q.m.Owner}
		if err := znodes.CreateEphemeral(session.Finishing, c.inc, &mark); err != nil {
			c.lose(nil) // the servers may have created the mark, so its name is not used again
			return nil, err
		}
		c.exists(nil, since)
		c.watch = znodes.WatchOwn(c.inc, c.path(), c)
		c.watch.Made(true) // as soon as the mark is deleted, another client can claim the elements
	}
	next := c.next(t, kept.items)
	line := next.lines[c.mark]
	next.lines[c.mark] = hold{line.claimed.union(numbers(es)), line.hand.union(numbers(es[:hands]))}
	var with []any
	blind := c.q.Skips.Skipped(pausedName)
	if !blind {
		with = c.q.unpaused()
	}
	if t.keys != nil {
		with = append(with, t.keys)
	}
	rs, err := c.write(t, next, with...)
	switch i := znodes.FailedOp(rs); {
	case err == nil:
	case outrun(err), session.IsNodeExists(err): // NodeExists: the queue is paused, and this server lags
		return nil, errOutrun
	case i > 1 && session.IsAnswer(err, zk.ErrNoAuth) && !blind:
		c.q.Skips.Skip(pausedName) // this client's claims do not check for a pause
		return nil, errOutrun
	case i == 1 && session.IsAnswer(err, zk.ErrNoAuth):
		c.q.Skips.Unreadable(t.name, err) // this client does not claim in the bucket
		return nil, errOutrun
	default:
		return nil, err
	}
	if t.dead = nil; t.keys != nil {
		t.keys.Version++
	}
	items := make([]*item, len(es))
	c.mu.Lock()
	kept.version, kept.board, kept.last, c.lots[t.name] = t.version, t.board, t.last, kept
	for i, e := range es {
		items[i] = &item{element: e, c: c, attempts: int(e.tries) + next.tried[e.seq], noted: i < hands}
		kept.items[e.seq] = items[i]
	}
	c.mu.Unlock()
	c.traceDone(trace.Grant, "", items, zxidOf(rs))
	return items, nil
}

// The method `next` returns the board that the claimant writes after the board of `t`, with the
// claimant's new line. The numbers in the old line that have no item are settled: the new board lists
// them as gone.
func (c *claimant) next(t *lot, items map[int32]*item) *board {
	next := t.next()
	c.mu.Lock()
	defer c.mu.Unlock()
	var claimed, hand, settled []int32
	for _, x := range next.lines[c.mark].claimed {
		for n := int64(x.a); n <= int64(min(x.b, t.last)); n++ {
			if items[int32(n)] == nil {
				settled = append(settled, int32(n))
			}
		}
	}
	next.forget(spansOf(settled))
	for n, it := range items {
		switch {
		case !it.back:
			if claimed = append(claimed, n); it.noted {
				hand = append(hand, n)
			}
		case !it.final.Untried:
			next.tried[n]++
		}
	}
	next.lines[c.mark] = hold{spansOf(claimed), spansOf(hand)}
	return next
}

// The method `write` makes `next` the board of `t`, if nobody has written the bucket since `t` was read. If
// another client has written or deleted the bucket, the error is BadVersion or NoNode.
//
// If a reply is lost, the claimant's line shows whether the write was applied: no other client writes
// that line while the mark exists.
func (c *claimant) write(t *lot, next *board, with ...any) ([]zk.MultiResponse, error) {
	path, data := znodes.ChildPath(c.q.dir, t.name), next.marshal()
	if len(data) > znodes.MaxPacket/2 {
		return nil, fmt.Errorf("the claims of bucket %s take %d bytes: %w", t.name, len(data), session.ErrTooLarge)
	}
	ops := append([]any{&zk.SetDataRequest{Path: path, Data: data, Version: t.version}}, with...)
	var stat *zk.Stat
	rs, _, err := c.transact(ops, false, func(int64) (done bool, err error) {
		var now []byte
		if now, stat, err = c.inc.GetFresh(session.Finishing, path); session.IsNoNode(err) {
			return false, nil
		}
		is, want := parseBoard(now).lines[c.mark], next.lines[c.mark]
		return slices.Equal(is.claimed, want.claimed) && slices.Equal(is.hand, want.hand), err
	})
	if err != nil {
		return rs, err
	}
	if rs != nil {
		stat = rs[1].Stat
	}
	if err := c.same(t.czxid, stat.Czxid); err != nil {
		return nil, err
	}
	t.board, t.version = next, t.version+1
	return rs, nil
}

// The method `same` compares the czxids of a bucket at two times. If they differ, another client has deleted the
// bucket and created it again, and the numbers of its elements have begun again. Then the claimant's lines are
// wrong, so `same` gives up the claims.
func (c *claimant) same(before, now int64) error {
	if before == now {
		return nil
	}
	c.lose(c.inc.Deleted())
	return session.ErrVanished
}

// The method `transact` checks the mark and applies `ops`, in one transaction and exactly once. If
// `touch` is set, the transaction writes the mark, which then has the zxid of the transaction. If
// `transact` returns an error, the result `open` says whether the servers may have applied the
// transaction, or may apply it later.
//
// If the reply is lost, `transact` calls `fence`: from then on, the servers refuse that attempt. If `touch` is
// set and the mark was unchanged before that, the attempt was not applied. Otherwise, `transact` calls `applied`,
// which looks whether the attempt was applied. The argument of `applied` is then the zxid of the transaction, if
// `touch` is set. If the attempt was applied, the responses are nil. If not, `transact` sends the transaction
// again.
//
// If the servers refuse to show the outcome, the claimant gives up its claims, and `finish` deletes its
// mark. Otherwise, no client would settle or return the elements while the session lives.
func (c *claimant) transact(ops []any, touch bool, applied func(zxid int64) (bool, error)) (rs []zk.MultiResponse, open bool, err error) {
	for try := 0; ; {
		since := c.inc.Watches.Connection()
		c.mu.Lock()
		version := c.version
		c.mu.Unlock()
		var first any = &zk.CheckVersionRequest{Path: c.path(), Version: version}
		if touch {
			first = &zk.SetDataRequest{Path: c.path(), Data: []byte(c.q.m.Owner), Version: version}
		}
		rs = nil
		p, err := znodes.StartMulti(session.Finishing, c.inc, append([]any{first}, ops...))
		if err == nil {
			rs, err = p.Wait(session.Finishing, c.inc)
			open = session.OutcomeOf(err) == session.Unknown // even if the session has ended
		}
		atMark := znodes.FailedOp(rs) == 0
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
			if try++; !open {
				continue
			}
			unchanged, zxid, err := c.fence(version)
			done := false
			if err == nil && !(touch && unchanged) {
				done, err = applied(zxid)
			}
			switch {
			case err != nil && session.OutcomeOf(err) == session.Answered:
				c.lose(c.inc.GivenUp(err))
				return nil, true, session.ErrVanished
			case err != nil:
				return nil, true, err
			case done:
				return nil, false, nil
			}
			open = false
		case atMark && session.IsBadVersion(err): // `fence` has written the mark; or another client has, which does no harm
			stat, err := c.inc.ExistsFresh(session.Finishing, c.path())
			if err != nil {
				return nil, false, err
			}
			c.exists(stat, 0)
		case atMark && session.IsNoNode(err):
			c.lose(c.inc.Deleted())
			return nil, false, session.ErrVanished
		default:
			return rs, false, err
		}
	}
}

// isOver reports whether err means that the ZooKeeper session has ended or the Session was closed.
func isOver(err error) bool {
	return errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrClosed)
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

// The method `fence` writes the mark. From then on, the servers refuse every earlier attempt that has
// no reply, because such an attempt expects the old `version` of the mark. The result `unchanged` is true
// if the mark still had that version before. The result `zxid` is the zxid of the write that followed
// that version: no fence replaces a version of the mark that it has not read.
func (c *claimant) fence(version int32) (unchanged bool, zxid int64, err error) {
	for {
		stat, err := c.inc.ExistsFresh(session.Finishing, c.path())
		if stat != nil {
			unchanged = stat.Version == version
			c.mu.Lock()
			c.zxids[stat.Version] = stat.Mzxid
			zxid = c.zxids[version+1]
			c.mu.Unlock()
			stat, err = c.inc.Set(session.Finishing, c.path(), []byte(c.q.m.Owner), stat.Version)
		}
		switch {
		case session.IsBadVersion(err): // an attempt was applied meanwhile, or this write, which had no reply
			continue
		case session.IsNoNode(err), err == nil && stat == nil:
			c.lose(c.inc.Deleted())
			err = session.ErrVanished
		case err == nil:
			c.exists(stat, 0)
		}
		return unchanged, zxid, err
	}
}

// The method `flush` returns all items in c.returns, bucket by bucket. The caller has the `turn`. The
// result is false if there were none.
func (c *claimant) flush() (some bool) {
	for {
		var es []*entry
		var t *claims
		c.mu.Lock()
		c.returns = slices.DeleteFunc(c.returns, func(e *entry) bool {
			if t == nil {
				t = c.lots[e.item.bucket]
			}
			ok := e.item.bucket == t.name
			if ok {
				es, e.item.back = append(es, e), true
			}
			return ok
		})
		c.mu.Unlock()
		if t == nil {
			return some
		}
		some = true
		rs, err := c.write(&t.lot, c.next(&t.lot, t.items), ring(c.q.dir))
		for outrun(err) {
			var n session.Node
			if n.Data, n.Stat, err = c.inc.GetFresh(session.Finishing, znodes.ChildPath(c.q.dir, t.name)); session.IsNoNode(err) {
				err = nil // a deleted bucket has no elements
			} else if err == nil {
				if err = c.same(t.czxid, n.Stat.Czxid); err != nil {
					break
				}
				now := newLot(t.bucket, n)
				t.version, t.board, t.last = now.version, now.board, now.last
				rs, err = c.write(&t.lot, c.next(&t.lot, t.items), ring(c.q.dir))
			}
		}
		if err != nil {
			c.lost() // if the session has ended, the claims are lost, too
			for _, e := range es {
				c.refuse(e, err)
			}
			continue
		}
		var back []*item
		c.mu.Lock()
		for _, e := range es {
			back = append(back, e.item)
			c.dropLocked(e.item)
			e.close(nil)
		}
		c.mu.Unlock()
		c.traceDone(trace.Release, trace.Returned, back, zxidOf(rs))
	}
}

// dropLocked removes an item from the claimed items, after its fate was carried out.
func (c *claimant) dropLocked(it *item) {
	t := c.lots[it.bucket]
	if delete(t.items, it.seq); len(t.items) == 0 {
		delete(c.lots, it.bucket) // from now on, the numbers in the claimant's line have no elements: `obtain` drops a claim of one
	}
	it.posted, it.data, it.value = true, nil, nil // no caller needs the data any longer
	c.endLocked()
}

// endLocked is called when the claimant may have no items left. If the Session begins to close, the claimant
// then ends.
func (c *claimant) endLocked() {
	if len(c.lots) > 0 {
		return
	}
	c.stake.Drop()
	c.stake = nil
	c.timer.Reset(whenIdle)
	if session.IsClosed(c.leaving) {
		c.lose(c.inc.EndError(session.ErrClosed)) // ends the wait of `finish`
	}
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
	lapse := c.inc.Lapse()
	if !staked {
		s, err := c.inc.Stake(ctx)
		if err != nil {
			return false
		}
		c.mu.Lock()
		if c.stake == nil && len(c.lots) > 0 && c.held.Err() == nil {
			c.stake, s = s, nil
		}
		c.mu.Unlock()
		s.Drop() // if another consumer was quicker, or the claimant has no items left, or has lost them
	}
	if on := c.inc.Watches.Connection(); on != seen || lapse.Outage() {
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
