package queue

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
)

// A pump claims elements for all consumers of one Queue value.
//
//  1. Wait until a consumer wants elements, and for the turn: all pumps stand in one
//     line, <path>-consumers.
//  2. Look for free elements. If there are none watch the bell, which is the data
//     of the queue's znode: every Send writes it, and so does whoever gives elements
//     back. Wait until it rings, a delayed element is due, or the live mark of a
//     claimant goes.
//  3. Claim as many as there is room for.
//  4. Leave the line when there is more, which is for whoever stands behind, when no
//     consumer here waits any more, or when others stand in line and this process
//     has had several claims.
//  5. While there is more go on without a turn: of those who claim from one bucket
//     at once one is quicker, and the others go on to other buckets. Then go to 1.
//
// So one element on an empty queue wakes one process, and an idle queue costs
// nothing. How many elements are claimed ahead begins at one and doubles, up to
// the prefetch, whenever consumers had to wait though as many as possible had
// been claimed: a slow consumer leaves the rest to others.
type pump struct {
	q      *core
	ctx    context.Context
	cancel context.CancelFunc

	consumers int // who have not left; guarded by q.mu

	mu       sync.Mutex    // guards what follows
	running  bool          // somebody has waited for an item
	waiting  int           // those who wait for an item
	offering int           // those who have one that is not taken yet
	ready    []*item       // claimed and read, in order
	changed  chan struct{} // closed and replaced when any of these changes
	ahead    int           // how many may be claimed ahead
	starved  bool          // a consumer has waited since the last claim
	size     int           // of an element of the last claim, in bytes; 0 before the first
	pace     pace
	noted    int  // how many may be noted at once, if that is not too many
	shedding bool // shed is about to be called
	claiming bool // a claim is under way: what it brings comes behind ready

	// What follows belongs to the goroutine that claims.

	found  *finding       // what is free and not claimed yet, or nil
	spread int            // from how many buckets one is chosen; more than 1 after others were quicker
	marks  *session.Watch // on the live marks, behind which they were looked for last while waiting
	due    time.Time      // when those of one that has been found go back, or zero
}

// join makes the caller a consumer. It must leave.
func (q *core) join() *pump {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pump == nil {
		q.pump = &pump{q: q, changed: make(chan struct{}), ahead: 1, spread: 1}
		q.pump.ctx, q.pump.cancel = context.WithCancel(context.Background())
	}
	q.pump.consumers++
	return q.pump
}

// leave is the end of a consumer. After the last it waits a moment until what
// was claimed ahead is back, so that the next to come finds it in its place.
func (p *pump) leave() {
	p.q.mu.Lock()
	p.consumers--
	last := p.consumers == 0
	if last {
		p.q.pump = nil
		p.cancel()
	}
	l := p.q.ledger
	p.q.mu.Unlock()
	if !last || l == nil {
		return
	}
	l.end(false) // from here on it claims nothing, so it is known whether anything goes back
	if l.offers() {
		p.q.order.leaving(p.q.m, l.posted)
	}
	l.inc.AwaitConnected(l.posted, session.Grace)
}

func (p *pump) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// waitLocked counts n more that consumers wait for. Nothing is claimed before the first
// has waited, so that the first claim makes room for all that it waits for.
func (p *pump) waitLocked(n int) {
	if p.waiting == 0 {
		p.pace.asked(time.Now())
	}
	p.waiting += n
	p.changeLocked()
	if !p.running {
		p.running = true
		p.q.m.Spawn(p.run)
	}
}

// next returns the next item for a consumer to offer. It must call done when
// that is taken, or put back. It counts as n that wait until this returns. An error that
// comes through faults ends the wait.
func (p *pump) next(ctx context.Context, n int, faults <-chan error) (*item, error) {
	p.mu.Lock()
	p.waitLocked(n)
	defer func() {
		p.waiting -= n
		p.mu.Unlock()
	}()
	for {
		if ctx.Err() != nil {
			return nil, session.CtxErr(ctx)
		}
		if it := p.takeLocked(); it != nil {
			p.pace.took(time.Now())
			if len(p.ready) <= p.ahead/2 {
				p.changeLocked()
			}
			return it, nil
		}
		p.starved = true
		changed := p.changed
		p.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
		case err = <-faults:
		case <-p.q.m.Closing:
			err = p.q.m.Failure()
		}
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// poll is next for one who does not wait: it returns nil if there is none.
func (p *pump) poll() *item {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeLocked()
}

// takeLocked returns the first item that is still ours, or nil.
func (p *pump) takeLocked() *item {
	for len(p.ready) > 0 {
		it := p.ready[0]
		p.ready = p.ready[1:]
		if it.ledger.take(it) {
			it.pump = p
			p.offering++
			return it
		}
	}
	return nil
}

// done is the end of an offer. That there may be room now is noticed when the
// consumer asks for the next.
func (p *pump) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offering--
}

// putBack makes an item that was not taken the next again.
func (p *pump) putBack(it *item) {
	if !it.ledger.withdraw(it) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Behind those that come before it and were put back earlier.
	i := 0
	for i < len(p.ready) && p.ready[i].before(it.element) {
		i++
	}
	p.ready = append(p.ready[:i:i], append([]*item{it}, p.ready[i:]...)...)
	p.changeLocked()
}

// before reports whether e stands before d in the queue, for two that were
// claimed one after the other.
func (e element) before(d element) bool {
	return cmp.Or(
		cmp.Compare(e.prio, d.prio), cmp.Compare(e.class, d.class),
		firstIf(e.due != 0, d.due != 0), cmp.Compare(e.due, d.due),
		cmp.Compare(len(e.bucket), len(d.bucket)), // longer if the number is
		cmp.Compare(e.bucket, d.bucket), cmp.Compare(e.seq-d.seq, 0), cmp.Compare(e.part, d.part),
	) < 0
}

// run claims until the last consumer has left.
func (p *pump) run() {
	for try := 0; ; try++ {
		err := p.q.m.During(p.ctx, p.session)
		if p.ctx.Err() != nil || p.q.m.Failure() != nil || errors.Is(err, session.ErrClosed) {
			return
		}
		if errors.Is(err, session.ErrVanished) {
			try = 0
			continue // somebody has given our claims back, or deleted our marks
		}
		// What retrying cannot cure, such as a missing permission, somebody
		// may cure on the servers. The channel stays open.
		p.q.complain(err)
		select {
		case <-time.After(max(p.q.m.Config.Retry.Delay(try), time.Second)):
		case <-p.ctx.Done():
		case <-p.q.m.Closing:
		}
	}
}

// session is run within one ZooKeeper session.
func (p *pump) session(inc *session.Incarnation) error {
	if former := p.q.newest(); former != nil {
		// What it gives back comes before what is not claimed yet.
		if err := session.AwaitIn(p.ctx, inc, former.posted); err != nil {
			return err
		}
	}
	l, err := newLedger(p.ctx, p.q, inc)
	if err != nil {
		return err
	}
	defer func() {
		p.mu.Lock()
		p.ready = nil
		p.mu.Unlock()
		l.end(false)
	}()
	p.found, p.due, p.marks = nil, time.Time{}, nil
	for {
		if err := p.awaitRoom(inc, 0); err != nil { // Step 1.
			return err
		}
		// Not in the line: others need not wait for what is ours.
		if _, err := p.q.order.await(p.ctx, inc, 0); err != nil {
			return err
		}
		place, err := p.q.line.Contend(p.ctx, inc, p.q.line.Bases[0], p.q.m.Owner, line.Exclusive)
		if errors.Is(err, session.ErrVanished) {
			continue
		}
		if err != nil {
			return err
		}
		err = p.q.layout.serve(p, inc, l)
		place.Leave()
		if err == nil || errors.Is(err, errNoRoom) { // Step 4.
			err = p.gather(inc, l)
		}
		if err != nil {
			return err
		}
	}
}

// room returns how many elements may be claimed now.
func (p *pump) room() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roomLocked()
}

// roomLocked counts what is being offered as claimed ahead. But every consumer
// gets one, however few that may be. Consumers that leave together put back more
// than there is room for: there is none then, never less.
func (p *pump) roomLocked() int {
	ahead := min(p.ahead, p.slowedLocked())
	if p.size > 0 {
		ahead = min(ahead, max(p.q.cfg.PrefetchBytes/p.size, 1))
	}
	n := max(ahead-p.offering-len(p.ready), p.waiting-len(p.ready), 0)
	if n <= ahead/2 && p.waiting == 0 {
		return 0 // claim many at once, or none
	}
	return n
}

// awaitRoom waits until there is room; with limit no longer than that.
func (p *pump) awaitRoom(inc *session.Incarnation, limit time.Duration) error {
	return p.until(inc, limit, func() bool { return p.roomLocked() > 0 })
}

// until waits until so, which is called with mu held, is true, or it is errNoRoom: with limit
// no longer than that.
func (p *pump) until(inc *session.Incarnation, limit time.Duration, so func() bool) error {
	return await(p.ctx, inc, limit, func() <-chan struct{} {
		p.mu.Lock()
		defer p.mu.Unlock()
		if so() {
			return nil
		}
		return p.changed
	})
}

// patienceForRoom is how long a turn is kept when there is no room, or nobody
// waits: a fast consumer comes back in less.
const patienceForRoom = 5 * time.Millisecond

// patienceForOrder is how long a turn is kept while something goes back.
const patienceForOrder = 100 * time.Millisecond

func (p *pump) setClaiming(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claiming = on
}

// maxClaims is how many claims one turn has while others wait.
const maxClaims = 16

// maxBatch is how many elements are claimed at once, so that it can always be
// written down again which of them are in hand.
const maxBatch = bucketSize

// gather claims elements while there are more than can be claimed at once. What
// comes one by one it leaves to those who stand in the line, and so it does where
// elements have keys: one claim at a time is made there.
func (p *pump) gather(inc *session.Incarnation, l *ledger) error {
	search := func() error { return p.search(inc, 0) }
	for p.more() && (p.found.more || !p.found.lot.keyed) {
		if _, err := p.step(inc, l, 0, search); err != nil {
			return err
		}
		if p.found == nil { // somebody else was quicker
			if err := search(); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve claims elements while it is our turn.
func (p *pump) serve(inc *session.Incarnation, l *ledger) error {
	for claims := 0; ; {
		n, err := p.step(inc, l, patienceForRoom, func() error { return p.await(inc) })
		switch {
		case err != nil:
			return err
		case n > 0 && p.more():
			return nil // Step 4. There is something for the next too.
		case n > 0:
			if claims++; claims >= maxClaims && p.q.othersWait(p.ctx, inc) {
				return nil
			}
		}
	}
}

// step waits for room, with limit no longer than that, and claims what was found, or
// else finds something.
func (p *pump) step(inc *session.Incarnation, l *ledger, limit time.Duration, find func() error) (n int, err error) {
	if err := p.awaitRoom(inc, limit); err != nil {
		return 0, err
	}
	if p.foundNothing() { // Step 2.
		return 0, find()
	}
	if err := p.q.under.look(p.ctx, inc); err != nil {
		return 0, err
	}
	p.q.sweeper.sweep(inc, sweepEvery)
	return p.claim(inc, l) // Step 3.
}

// more reports whether more elements than have been claimed were found, or may be.
func (p *pump) more() bool { return p.found != nil && (len(p.found.es) > 0 || p.found.more) }

// staleAfter is how long what was found is believed to be the first that is free.
const staleAfter = 20 * time.Millisecond

// foundNothing reports that nothing is known to be free.
func (p *pump) foundNothing() bool {
	if p.found != nil && (len(p.found.es) == 0 || time.Since(p.found.at) > staleAfter) {
		p.found = nil
	}
	return p.found == nil
}

// search looks for free elements, when what goes back is back; with limit it waits for
// that no longer.
func (p *pump) search(inc *session.Incarnation, limit time.Duration) error {
	since, err := p.q.order.await(p.ctx, inc, limit)
	if err != nil {
		return err
	}
	if p.found, err = p.q.search(p.ctx, inc, bucketSize/2, p.spread, false); err != nil {
		return err
	}
	if p.found.at, p.found.since = time.Now(), since; len(p.found.es) == 0 {
		p.spread = 1 // nobody has anything to make way for
	}
	return nil
}

// maxSpread bounds spread.
const maxSpread = 64

// claim is step 3, of what was found. It returns how many were claimed.
func (p *pump) claim(inc *session.Incarnation, l *ledger) (n int, err error) {
	room := min(p.room(), maxBatch)
	f := p.found
	if n = min(len(f.es), room); n == 0 {
		return 0, nil
	}
	var r *reading
	if p.spread == 1 { // others are not likely to be quicker
		r = read(p.ctx, inc, p.q.dir, f.es[:n])
	}
	p.setClaiming(true)
	defer p.setClaiming(false)
	b, err := l.claim(f.lot, f.es[:n], f.since)
	if err != nil {
		return 0, err
	}
	if b == nil {
		p.found = nil
		return 0, p.makeWay(inc)
	}
	if r == nil {
		r = read(p.ctx, inc, p.q.dir, f.es[:n])
	}
	p.spread = max(p.spread/2, 1)
	f.es = f.es[n:]
	items, err := l.fetch(b, r)
	if err != nil {
		return 0, err
	}
	p.fill(items, n, n == room)
	return n, nil
}

// makeWay is told that a claim was refused: its bucket was written meanwhile. If that may
// have been another consumer we look for another bucket. An only consumer stays at the
// first, to keep the order: others cancel, clear or take something, or it was our own
// process that gave something back.
func (p *pump) makeWay(inc *session.Incarnation) error {
	others, err := p.q.othersConsume(p.ctx, inc)
	if p.spread = min(2*p.spread, maxSpread); !others {
		p.spread = 1
	}
	return err
}

// othersConsume reports whether another Queue value has something claimed. What is read
// after it is not older than what made a write fail before it.
func (q *core) othersConsume(ctx context.Context, inc *session.Incarnation) (bool, error) {
	if err := inc.Sync(ctx, q.dir); err != nil {
		return false, err
	}
	marks, err := inc.Names(ctx, q.live)
	return err == nil && q.order.others(marks), err
}

// wanted reports whether a consumer waits now, or will in a moment.
func (p *pump) wanted(inc *session.Incarnation) bool {
	return p.until(inc, patienceForRoom, func() bool { return p.waiting > 0 }) == nil
}

// fill gives consumers the n that were claimed, and reports whether these are as
// many as may be ahead. most tells whether there was no room for more.
func (p *pump) fill(items []*item, n int, most bool) (full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full = n+p.offering >= p.ahead
	if most && p.starved {
		p.ahead = min(2*p.ahead, p.q.cfg.Prefetch)
	}
	p.starved = false
	size := 0
	for _, it := range items {
		size += it.size
	}
	p.size = size/max(len(items), 1) + 1
	p.ready = append(p.ready, items...)
	p.watchPaceLocked()
	p.changeLocked()
	return full
}

// othersWait reports whether another pump is in the line.
func (q *core) othersWait(ctx context.Context, inc *session.Incarnation) bool {
	names, _, err := inc.Children(ctx, q.line.Dir)
	return err == nil && len(line.ParseChildren(names, q.line.Bases...)) > 1
}

// await looks for free elements, and if there are none waits until that may have
// changed.
func (p *pump) await(inc *session.Incarnation) error {
	q := p.q
	watches := []*session.Watch{inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: q.dir})}
	defer func() {
		for _, w := range watches {
			inc.Watches.Leave(w)
		}
	}()
	// The bell is read first: what comes after that rings it.
	data, stat, err := inc.Get(p.ctx, q.dir)
	if session.IsNoNode(err) {
		_, err = inc.Create(p.ctx, q.dir, []byte(marks.Dir))
		return err
	}
	if err != nil {
		return err
	}
	if !ours(data) {
		return q.m.Mixed(q.dir)
	}
	q.zxid.Store(stat.Czxid)
	if err := p.search(inc, patienceForOrder); err != nil || len(p.found.es) > 0 {
		return err
	}
	// As long as the watch on the live marks is the one behind which this pump has
	// visited, nobody has died since. It stays set while we claim. Others of this
	// process may have set a new one, have visited, and have left without giving back
	// what they had found: then it is another watch, and this pump visits.
	marks := inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: q.live})
	watches = append(watches, marks)
	if p.marks != marks || !inc.Watches.Armed(marks) || !p.due.IsZero() && !time.Now().Before(p.due) {
		var buried bool
		switch p.due, buried, err = q.under.visit(p.ctx, inc); {
		case refusal(err): // which keeps nobody from consuming
			q.complain(err)
			p.due = time.Now().Add(refusedFor)
		case err != nil || buried:
			return err
		}
		p.marks = marks
	}
	q.sweeper.sweep(inc, 0)
	if !p.wanted(inc) && q.othersWait(p.ctx, inc) {
		return errNoRoom
	}
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	defer q.under.looked() // the watch on the marks has
	return inc.AwaitAny(p.ctx, watches, earlier(q.sweeper.next(), earlier(p.found.due, p.due)))
}

// slowedLocked returns how many elements may be claimed ahead of consumers that
// are slow: what they take in a second.
func (p *pump) slowedLocked() int { return p.pace.perSecond(time.Now(), p.waiting == 0) }

// notes returns how many items may be noted at once, where attempts are limited: those
// that consumers take until the next would be noted were attempts not limited, because
// what is noted counts as tried if the process dies. At first that is not known.
func (p *pump) notes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := max(min(p.noted, p.slowedLocked()/int(time.Second/noteAfter)), 1)
	p.noted = min(max(2*p.noted, 1), noteAhead)
	return n
}

// presented is told that an item is offered from now on: what went before, as to write
// it down, is not the consumer's time.
func (p *pump) presented() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.took(time.Now())
}

// shedEvery is how often a pump looks whether its consumers have become slow.
const shedEvery = time.Second

// watchPaceLocked sees to it that what is claimed ahead of consumers that become
// slow goes back.
func (p *pump) watchPaceLocked() {
	if !p.shedding && len(p.ready) > 1 {
		p.shedding = true
		time.AfterFunc(shedEvery, p.shed)
	}
}

// shed gives back what is claimed too far ahead.
func (p *pump) shed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shedding = false
	if n := p.slowedLocked(); n < len(p.ready) && !p.claiming {
		for _, it := range p.ready[n:] {
			it.ledger.settle(it, Return)
		}
		p.ready = p.ready[:n:n]
	}
	p.watchPaceLocked()
}
