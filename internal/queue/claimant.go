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

// A claimant is a Queue value in one ZooKeeper session, together with its claims. It loses them
// when the session ends, or when another client deletes its mark.
//
// Every transaction of a claimant checks its mark. A transaction that writes a board also expects
// the version of that board, and only one such transaction is under way at a time. So, while the
// mark exists, the claimant knows its own lines on all boards from memory.
type claimant struct {
	q    *core
	inc  *session.Incarnation
	mark string        // name of the mark
	turn chan struct{} // a goroutine puts a token in before it writes boards, and takes it out after

	held context.Context // ends with the claims; its cause is the loss
	lose context.CancelCauseFunc

	mu      sync.Mutex
	made    bool                       // the mark was created; guarded by mu
	version int32                      // version of the mark; guarded by mu
	ended   bool                       // the claimant must claim nothing more; guarded by mu
	users   int                        // number of enlist calls without their leave; guarded by mu
	timer   *time.Timer                // ends the claimant if it stays unused; guarded by mu
	items   map[string]map[int32]*item // claimed elements that are not settled, by bucket and number; guarded by mu
	known   map[string]*lot            // by bucket, if it has items: the board as the claimant wrote it last; guarded by mu
	past    map[string]spans           // by bucket: settled numbers that are still in the claimant's line; guarded by mu
	pastAt  map[string]time.Time       // by bucket: the time of its first number in past; guarded by mu
	returns []*entry                   // entries for boards; guarded by mu
	writing bool                       // a goroutine writes the returns; guarded by mu
	queue   []*entry                   // entries for deletions; guarded by mu
	running bool                       // a goroutine settles the queue; guarded by mu
	stake   *session.Stake             // from the first offer until the claimant has no items; guarded by mu
	silent  bool                       // the servers do not let the claimant ring the bell; guarded by mu
	blind   bool                       // the servers do not let the claimant ask whether the queue is paused; guarded by mu
	empty   chan struct{}              // if not nil, closed when the claimant has no items; guarded by mu

	watch *session.OwnWatch // watch of the mark; used only with the turn
}

// mark returns the name of the newest claimant's mark, or "" if its claims are lost.
func (q *core) mark() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.claimant; c != nil && c.held.Err() == nil {
		return c.mark
	}
	return ""
}

// enlist returns the claimant of a session. The caller may claim with it until the caller calls
// leave.
func (q *core) enlist(inc *session.Incarnation) (*claimant, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.claimant; c != nil && c.inc == inc && c.use() {
		return c, nil
	}
	leaving, stay := q.m.BeforeClose()
	if session.IsClosed(leaving) || session.IsClosed(q.m.Closing) {
		stay()
		return nil, session.ErrClosed // Close would not wait for new claims
	}
	c := &claimant{
		q: q, inc: inc, mark: randomDigits(markDigits), turn: make(chan struct{}, 1), users: 1,
		items: make(map[string]map[int32]*item), past: make(map[string]spans), pastAt: make(map[string]time.Time), known: make(map[string]*lot),
	}
	c.held, c.lose = context.WithCancelCause(context.Background())
	q.claimant = c
	unhook := inc.Ended.AfterFunc(func(cause error) { c.lose(inc.EndError(cause)) })
	q.m.Spawn(func() {
		defer stay()
		defer unhook()
		// Between Closing and leaving, Close waits for the program's functions. They settle their
		// elements, so the claimant leaves these elements in hand until then.
		select {
		case <-c.held.Done():
		case <-q.m.Closing:
			c.end(false)
			select {
			case <-c.held.Done():
			case <-leaving:
				c.end(true)
			}
		}
		c.finish()
	})
	return c, nil
}

// use adds a user. It reports false if c has ended.
func (c *claimant) use() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.held.Err() != nil {
		return false
	}
	if c.users++; c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	return true
}

// leave removes a user. If c then has no users and no items for whenIdle, c ends and deletes its
// mark.
func (c *claimant) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	c.restLocked()
}

func (c *claimant) restLocked() {
	if c.users > 0 || len(c.items) > 0 || c.timer != nil || c.ended {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(whenIdle, func() {
		c.mu.Lock()
		rests := c.timer == t && c.users == 0 && len(c.items) == 0
		c.ended = c.ended || rests
		c.mu.Unlock()
		if rests {
			c.lose(errRested)
		}
	})
	c.timer = t
}

var errRested = errors.New("zsync: BUG: the mark is deleted as nothing is claimed")

// end returns the elements that are claimed ahead, and stops all further claims. With all, it
// returns the elements in hand as well. An offered element returns later, by withdraw, unless the
// program takes it.
func (c *claimant) end(all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, items := range c.items {
		for _, it := range items {
			if it.final == nil && (it.place == ahead || all && it.place == inHand) {
				it.lost = c.inc.EndError(session.ErrClosed)
				c.enterLocked(it, entry{fate: Return, bump: it.place == inHand})
			}
		}
	}
}

// finish ends c. If the Session is being closed, finish first waits until c has no items. Then it
// closes all entries with the loss, and deletes the mark.
func (c *claimant) finish() {
	loss := context.Cause(c.held)
	if loss == nil { // the Session is being closed
		c.mu.Lock()
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
		loss = context.Cause(c.held)
	}
	c.turn <- struct{}{} // a write of a board may still be under way
	left := c.watch.Drop()
	<-c.turn
	c.mu.Lock()
	c.ended = true
	made := c.made
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
	c.traceLoss(lost, loss)
	if made && c.inc.Ctx.Err() == nil {
		c.inc.Delete(&session.Deletion{Paths: []string{c.path()}, MayStay: true}).Await(session.Grace)
	}
	left()
}

func (c *claimant) path() string { return session.ChildPath(c.q.live, c.mark) }

// Vanished is called when another client has deleted the mark.
func (c *claimant) Vanished(*session.OwnWatch) { c.lose(c.inc.Deleted()) }

// lost returns why the claims are lost, or nil.
func (c *claimant) lost() error {
	if !c.inc.Alive() {
		c.lose(c.inc.Loss()) // the hook of enlist might not have run yet
	}
	return context.Cause(c.held)
}

// ending returns why c must claim nothing more, or nil.
func (c *claimant) ending() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inc.Ctx.Err() != nil:
		return session.ErrEnded
	case c.q.m.Failure() != nil:
		return c.q.m.Failure()
	case c.held.Err() != nil, c.ended:
		return session.ErrVanished
	}
	return nil
}

// claim claims es, which are free elements of t. If the bucket was written since t was read, claim
// returns no items and no error.
//
// The claim notes the first hands of them as in hand: if the claim is lost, they count as tried. It
// does not note a spent element, which the program does not get.
func (c *claimant) claim(t *lot, es []element, hands int) ([]*item, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.flush() // a returned element may come before es
	if err := c.ending(); err != nil {
		return nil, err
	}
	if c.outdated(t, es) {
		return nil, nil
	}
	next, past := c.next(t)
	mine := next.lines[c.mark]
	mine.claimed = mine.claimed.union(spansOf(numbers(es)))
	var noted []int32
	for _, e := range es[:hands] {
		if !c.q.spent(int(e.tries) + next.tried[e.seq]) {
			noted = append(noted, e.seq)
		}
	}
	mine.hand = mine.hand.union(spansOf(noted))
	next.lines[c.mark] = mine
	with := t.exclusion(c.q.dir)
	c.mu.Lock()
	if !c.blind {
		with = append(with, c.q.unpaused()...)
	}
	c.mu.Unlock()
	rs, err := c.write(t.name, t.version, next, with...)
	if err != nil {
		switch {
		case outrun(err), session.IsNodeExists(err): // NodeExists: the queue is paused, and this server lags
			err = nil
		case session.FailedOp(rs) > 1 && session.IsAnswer(err, zk.ErrNoAuth) && !c.blind:
			c.mu.Lock()
			c.blind = true
			c.mu.Unlock()
			err = nil
		case session.FailedOp(rs) == 1 && session.IsAnswer(err, zk.ErrNoAuth):
			c.q.skips.Unreadable(t.name, -1, t.name, err)
			err = errBarred
		}
		return nil, err
	}
	t.board, t.version, t.keys, t.dead = next, t.version+1, t.keys+1, nil
	items := make([]*item, len(es))
	c.mu.Lock()
	c.wroteLocked(t, past)
	if c.items[t.name] == nil {
		c.items[t.name] = make(map[int32]*item)
	}
	for i, e := range es {
		items[i] = &item{element: e, c: c, attempts: next.tried[e.seq], hand: mine.hand.has(e.seq)}
		c.items[t.name][e.seq] = items[i]
	}
	c.mu.Unlock()
	c.traceDone(trace.Grant, "", items, zxidOf(rs))
	return items, nil
}

// errBarred means that the servers do not let this client write a bucket. The consumer passes over
// the bucket for a while.
var errBarred = errors.New("zsync: BUG: the bucket is passed over")

// outdated reports whether c has written the board of t since t was read. If so, c may have
// claimed es already. Then c's line would not show whether a claim without a reply was applied.
func (c *claimant) outdated(t *lot, es []element) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.known[t.name]; k != nil && k.version > t.version {
		return true
	}
	return slices.ContainsFunc(es, func(e element) bool { return c.items[t.name][e.seq] != nil || c.past[t.name].has(e.seq) })
}

// next returns the board to write after the board of t, with c's new line. That line no longer has
// past, c's settled numbers: the new board lists them among the removed elements.
func (c *claimant) next(t *lot) (next *board, past spans) {
	next = t.next()
	c.mu.Lock()
	defer c.mu.Unlock()
	past = c.past[t.name]
	next.forget(past)
	var claimed, hand []int32
	for n, it := range c.items[t.name] {
		if it.back { // this write returns it
			continue
		}
		if claimed = append(claimed, n); it.hand {
			hand = append(hand, n)
		}
	}
	next.lines[c.mark] = hold{spansOf(claimed), spansOf(hand)}
	return next, past
}

// wroteLocked records that c has written the board of t, and that c's line no longer has past.
func (c *claimant) wroteLocked(t *lot, past spans) {
	c.known[t.name] = &lot{bucket: t.bucket, version: t.version, board: t.board}
	if c.past[t.name] = c.past[t.name].minus(past); len(c.past[t.name]) == 0 {
		c.forgetLocked(t.name)
	}
}

// write writes a board at the version at which c read it, and creates the mark if c has none yet.
// The error is BadVersion or NoNode if another client has written or deleted the bucket since.
//
// If a reply is lost, c's line shows whether the write was applied: no other client writes that line
// while the mark exists.
func (c *claimant) write(bucket string, version int32, next *board, with ...any) (rs []zk.MultiResponse, err error) {
	path, data := session.ChildPath(c.q.dir, bucket), next.marshal()
	if len(data) > session.MaxPacket/2 {
		return nil, fmt.Errorf("the claims of bucket %s take %d bytes: %w", bucket, len(data), session.ErrTooLarge)
	}
	ops := append([]any{&zk.SetDataRequest{Path: path, Data: data, Version: version}}, with...)
	rs, _, err = c.transact(ops, false, func(int64) (bool, error) {
		n, err := c.look(path)
		return n.Stat != nil && parseBoard(n.Data).lines[c.mark].equal(next.lines[c.mark]), err
	})
	return rs, err
}

// transact checks the mark and applies ops, in one transaction and exactly once. With touch, it also
// writes the mark, which then has the zxid of the transaction. If transact returns an error, open
// reports whether the servers may have applied the transaction, or still may.
//
// Without a reply, transact sends the transaction again until the servers answer. If they refuse it
// then, transact writes the mark: from then on they refuse every earlier attempt, because it expects
// the old version of the mark. After that, applied looks whether an earlier attempt was applied. zxid
// is the zxid of the mark from before. If applied was, the responses are nil.
func (c *claimant) transact(ops []any, touch bool, applied func(zxid int64) (bool, error)) (rs []zk.MultiResponse, open bool, err error) {
	for try := 0; ; {
		first := c.check(touch)
		p, err := c.inc.StartMulti(session.Finishing, append([]any{first}, ops...))
		if err == nil {
			rs, err = p.Wait(session.Finishing, c.inc)
			// A request that was sent may be applied, even if the session has ended.
			open = open || session.OutcomeOf(err) == session.Unknown
		}
		switch {
		case err == nil:
			c.exists(rs[0].Stat)
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
			zxid, err := c.fence()
			if err != nil {
				return nil, true, err
			}
			if done, err := applied(zxid); done || err != nil {
				return nil, err != nil, err
			}
			open = false // no earlier attempt can cause the next refusal
		case session.FailedOp(rs) == 0:
			if err := c.unchecked(first, err); err != nil {
				return nil, false, err
			}
		default:
			return rs, false, err
		}
	}
}

// isOver reports whether err is the end of the session, or of the Session.
func isOver(err error) bool {
	return errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrClosed)
}

// look reads a znode as it is after the last answer. If the znode does not exist, Stat is nil.
func (c *claimant) look(path string) (n session.Node, err error) {
	n.Data, n.Stat, err = c.inc.GetFresh(session.Finishing, path)
	if session.IsNoNode(err) {
		return session.Node{}, nil
	}
	return n, err
}

// check returns the first operation of every transaction of c: it creates, writes or checks the mark.
func (c *claimant) check(touch bool) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.made:
		return &zk.CreateRequest{Path: c.path(), Data: []byte(c.q.m.Owner), Acl: c.q.m.Config.ACL, Flags: zk.FlagEphemeral}
	case touch:
		return &zk.SetDataRequest{Path: c.path(), Data: []byte(c.q.m.Owner), Version: c.version}
	}
	return &zk.CheckVersionRequest{Path: c.path(), Version: c.version}
}

// exists records that the mark exists, and its version if stat is not nil. The first call begins to
// watch it.
func (c *claimant) exists(stat *zk.Stat) {
	c.mu.Lock()
	made := c.made
	if c.made = true; stat != nil {
		c.version = max(c.version, stat.Version)
	}
	c.mu.Unlock()
	if !made {
		c.watch = c.inc.WatchOwn(c.path(), c)
		c.watch.Made(true) // as soon as the mark is deleted, another client can claim the elements
	}
}

// unchecked handles a refusal of the operation that check returned. If it returns nil, the caller
// must send the transaction again.
func (c *claimant) unchecked(op any, err error) error {
	_, makes := op.(*zk.CreateRequest)
	switch {
	case makes && session.IsNoNode(err):
		return c.inc.MakeDir(session.Finishing, session.Dir{Path: c.q.live})
	case !makes && session.IsBadVersion(err): // fence has written it, or another client, which does no harm
		stat, err := c.inc.ExistsFresh(session.Finishing, c.path())
		c.exists(stat)
		return err
	case !makes && session.IsNoNode(err):
		c.lose(c.inc.Deleted())
		return session.ErrVanished
	}
	return err
}

// fence writes the mark, or creates it. From then on, the servers refuse every earlier attempt without
// a reply, because it expects the old version of the mark, or creates the mark. zxid is that of the
// mark before, if c has made it before.
func (c *claimant) fence() (zxid int64, err error) {
	c.mu.Lock()
	made, version := c.made, c.version
	c.mu.Unlock()
	ctx, path := session.Finishing, c.path()
	if !made {
		if err := c.inc.MakeDir(ctx, session.Dir{Path: c.q.live}); err != nil {
			return 0, err
		}
		_, err := c.inc.Multi(ctx, c.check(false))
		if session.IsNodeExists(err) { // an earlier attempt was applied, of this or of the transaction
			err = nil
		}
		if err == nil {
			c.exists(nil)
		}
		return 0, err
	}
	stat, err := c.inc.ExistsFresh(ctx, path)
	if stat != nil {
		zxid = stat.Mzxid
		stat, err = c.inc.Set(ctx, path, []byte(c.q.m.Owner), version)
		if session.IsBadVersion(err) { // an earlier attempt was applied, of this write or of the transaction
			stat, err = c.inc.ExistsFresh(ctx, path)
		}
	}
	switch {
	case session.IsNoNode(err), err == nil && stat == nil:
		c.lose(c.inc.Deleted())
		return 0, session.ErrVanished
	case err == nil:
		c.exists(stat)
	}
	return zxid, err
}

// returnLocked begins to return an item by a write of its board.
func (c *claimant) returnLocked(e *entry) {
	if c.returns = append(c.returns, e); c.writing {
		return
	}
	c.writing = true
	c.q.m.Spawn(func() {
		c.turn <- struct{}{}
		defer func() { <-c.turn }()
		c.flush()
	})
}

// flush writes all returns on their boards, bucket by bucket. The caller has the turn.
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
		c.writing = c.writing && es != nil // a later return starts another goroutine
		c.mu.Unlock()
		if es == nil {
			return
		}
		rs, err := c.post(es[0].item.bucket, es)
		c.posted(es, rs, err)
	}
}

// post writes the returns of a bucket on its board.
func (c *claimant) post(bucket string, es []*entry) (rs []zk.MultiResponse, err error) {
	c.mu.Lock()
	t := c.known[bucket]
	c.mu.Unlock()
	for {
		if t == nil {
			n, err := c.look(session.ChildPath(c.q.dir, bucket))
			if err != nil || n.Stat == nil { // a deleted bucket had no elements left
				return nil, err
			}
			b, _ := parseBucket(bucket)
			t = &lot{bucket: b, version: n.Stat.Version, board: parseBoard(n.Data)}
		}
		next, past := c.next(t)
		for _, e := range es {
			if e.bump {
				next.tried[e.item.seq]++
			}
		}
		var with []any
		c.mu.Lock()
		if !c.silent {
			with = append(with, ring(c.q.dir))
		}
		c.mu.Unlock()
		rs, err = c.write(bucket, t.version, next, with...)
		switch {
		case err == nil:
			c.mu.Lock()
			defer c.mu.Unlock()
			t.board, t.version = next, t.version+1
			c.wroteLocked(t, past)
			return rs, nil
		case with != nil && errors.Is(err, zk.ErrNoAuth) && session.FailedOp(rs) != 1:
			c.mu.Lock()
			c.silent = true // the bell only wakes other consumers sooner
			c.mu.Unlock()
		case !outrun(err):
			return nil, err
		}
		t = nil
	}
}

// posted handles the result of post: it closes the entries, or tries refused entries again later.
func (c *claimant) posted(es []*entry, rs []zk.MultiResponse, err error) {
	if errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrVanished) {
		err = c.lost()
	}
	var back []*item
	c.mu.Lock()
	for _, e := range es {
		if err != nil && context.Cause(c.held) == nil {
			e.item.back = false
			c.refuseLocked(e, err)
			continue
		}
		if err == nil {
			back = append(back, e.item)
			c.dropLocked(e.item, false)
		}
		e.close(err)
	}
	c.mu.Unlock()
	c.traceDone(trace.Release, trace.Returned, back, zxidOf(rs))
}

// dropLocked removes an item from the claimed items. If its element was deleted, c's line has the
// number until c writes the board again.
func (c *claimant) dropLocked(it *item, gone bool) {
	if delete(c.items[it.bucket], it.seq); len(c.items[it.bucket]) == 0 {
		delete(c.items, it.bucket)
		delete(c.known, it.bucket)
	}
	if gone {
		if c.past[it.bucket] = c.past[it.bucket].union(only(it.seq)); c.pastAt[it.bucket].IsZero() {
			c.pastAt[it.bucket] = time.Now()
		}
	}
	it.posted = true
	it.drop()
	if len(c.items) > 0 {
		return
	}
	c.stake.Drop()
	c.stake = nil
	if c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
	c.restLocked()
}

// prune forgets the past of deleted buckets. all is a listing that began after from. If it lacks a
// bucket that had a past before from, the bucket was deleted, and its name never comes again.
func (c *claimant) prune(all []bucket, from time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.past) < 100 {
		return
	}
	there := make(map[string]bool, len(all))
	for _, b := range all {
		there[b.name] = true
	}
	for name := range c.past {
		if !there[name] && c.pastAt[name].Before(from) {
			c.forgetLocked(name)
		}
	}
}

func (c *claimant) forgetLocked(name string) {
	delete(c.past, name)
	delete(c.pastAt, name)
}

// stands reports whether the session, and with it every claim, is confirmed. While c has items, its
// stake keeps the session confirmed.
func (c *claimant) stands(ctx context.Context) bool {
	c.mu.Lock()
	staked := c.stake != nil
	c.mu.Unlock()
	if !staked {
		s, err := c.inc.Stake(ctx)
		if err != nil {
			return false
		}
		c.mu.Lock()
		if c.stake != nil || len(c.items) == 0 {
			s.Drop() // another consumer was quicker, or c has no items left
		} else {
			c.stake = s
		}
		c.mu.Unlock()
	}
	return c.lost() == nil
}

// traceLine returns a record of the trace about items.
func (c *claimant) traceLine(event string, items []*item) trace.Record {
	t := c.inc.TraceLine(event, trace.Element, c.q.dir, "")
	t.Claim = c.mark
	for _, it := range items {
		t.Elements = append(t.Elements, it.key())
	}
	slices.Sort(t.Elements)
	return t
}

// traceDone writes to the trace what the transaction zxid did to items. If the caller does not know
// the zxid, it is 0.
func (c *claimant) traceDone(event, fate string, items []*item, zxid int64) {
	if c.q.trace != nil && len(items) > 0 {
		t := c.traceLine(event, items)
		t.Fate, t.Zxid, t.Blind = fate, zxid, false
		c.q.trace.Line(t)
	}
}

// traceLoss writes to the trace that the claims of items are lost.
func (c *claimant) traceLoss(items []*item, why error) {
	if c.q.trace != nil && len(items) > 0 {
		c.q.trace.Line(c.q.m.TraceLoss(c.traceLine(trace.Loss, items), cmp.Or(why, session.ErrClosed)))
	}
}
