package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A pump claims elements for all consumers of one Queue value.
//
// The pumps of all processes stand in one line, <path>-consumers, and only the
// first of it looks at the queue:
//
//  1. Wait until a consumer wants elements, and for the turn.
//  2. Look for free elements. If there are none watch the bell, which is the
//     data of the queue's znode: every Send writes it, and so does whoever gives
//     elements back. Wait until it rings, a delayed element is due, or the live
//     mark of a claimant goes.
//  3. Claim as many as there is room for.
//  4. Pass the turn on when no consumer here waits any more, or when others
//     stand in line and this process has had its share: as much as it may
//     claim ahead, of a queue that has more, or several claims of one that has
//     not.
//
// So one element on an empty queue wakes one process, and an idle queue costs
// nothing. How many elements are claimed ahead begins at one and doubles, up to
// the prefetch, whenever consumers had to wait though as many as possible had
// been claimed: a slow consumer leaves the rest to others.
type pump struct {
	q      *core
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	consumers int           // who have not left
	waiting   int           // those who wait for an item
	offering  int           // those who have one that is not taken yet
	ready     []*item       // claimed and read, in order
	changed   chan struct{} // closed and replaced when any of these changes
	ahead     int           // how many may be claimed ahead
	starved   bool          // a consumer has waited since the last claim
	size      int           // of an element of the last claim, in bytes; 0 before the first
}

// join makes the caller a consumer. It must leave.
func (q *core) join() *pump {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pump == nil {
		p := &pump{q: q, changed: make(chan struct{}), ahead: 1}
		p.ctx, p.cancel = context.WithCancel(context.Background())
		q.pump = p
		q.m.Spawn(p.run)
	}
	q.pump.mu.Lock()
	q.pump.consumers++
	q.pump.mu.Unlock()
	return q.pump
}

// leave is the end of a consumer. After the last it waits a moment until what
// was claimed ahead is back, so that the next to come finds it in its place.
func (p *pump) leave() {
	p.q.mu.Lock()
	p.mu.Lock()
	p.consumers--
	last := p.consumers == 0
	p.mu.Unlock()
	if last {
		p.q.pump = nil
		p.cancel()
	}
	l := p.q.ledger
	p.q.mu.Unlock()
	if !last || l == nil {
		return
	}
	select {
	case <-l.posted:
	case <-l.inc.Disconnection():
	case <-l.inc.Ctx.Done():
	case <-time.After(session.Grace):
	}
}

func (p *pump) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// next returns the next item for a consumer to offer. It must call done when
// that is taken, or put back.
func (p *pump) next(ctx context.Context) (*item, error) {
	p.mu.Lock()
	p.waiting++
	p.changeLocked()
	defer func() {
		p.waiting--
		p.mu.Unlock()
	}()
	for {
		if ctx.Err() != nil {
			return nil, session.CtxErr(ctx)
		}
		for len(p.ready) > 0 {
			it := p.ready[0]
			p.ready = p.ready[1:]
			if it.ledger.take(it) {
				p.offering++
				if len(p.ready) <= p.ahead/2 {
					p.changeLocked()
				}
				return it, nil
			}
		}
		p.starved = true
		changed := p.changed
		p.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
		case <-p.q.m.Closing:
			err = p.q.m.Failure()
		}
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// expect makes room for so many more than consumers wait for, or takes it back.
func (p *pump) expect(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting += n
	p.changeLocked()
}

// poll is next for one who does not wait: it returns nil if there is none.
func (p *pump) poll() *item {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ready) > 0 {
		it := p.ready[0]
		p.ready = p.ready[1:]
		if it.ledger.take(it) {
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
	switch {
	case e.prio != d.prio:
		return e.prio < d.prio
	case e.class != d.class:
		return e.class < d.class
	case (e.due == 0) != (d.due == 0):
		return e.due != 0
	case e.due != d.due:
		return e.due < d.due
	case len(e.bucket) != len(d.bucket): // the number is longer
		return len(e.bucket) < len(d.bucket)
	case e.bucket != d.bucket:
		return e.bucket < d.bucket
	case e.seq != d.seq:
		return e.seq-d.seq < 0
	}
	return e.part < d.part
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
		select {
		case <-former.posted:
		case <-p.ctx.Done():
			return session.CtxErr(p.ctx)
		case <-inc.Ctx.Done():
			return session.ErrEnded
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
	for {
		if err := p.awaitRoom(inc, 0); err != nil { // Step 1.
			return err
		}
		place, err := p.q.line.Contend(p.ctx, inc, p.q.line.Bases[0], []byte(p.q.m.Config.Owner), line.Exclusive, nil)
		if errors.Is(err, session.ErrVanished) {
			continue
		}
		if err != nil {
			return err
		}
		if p.q.foreign != nil {
			err = p.turnForeign(inc, l)
		} else {
			err = p.turn(inc, l)
		}
		place.Leave()
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
	ahead := p.ahead
	if p.size > 0 {
		ahead = min(ahead, max(p.q.cfg.PrefetchBytes/p.size, 1))
	}
	n := max(ahead-p.offering-len(p.ready), p.waiting-len(p.ready), 0)
	if n <= ahead/2 && p.waiting == 0 {
		return 0 // claim many at once, or none
	}
	return n
}

// errNoRoom means that consumers have had as much as they want, for a while.
var errNoRoom = errors.New("zsync: no room")

// awaitRoom waits until there is room; with limit no longer than that.
func (p *pump) awaitRoom(inc *session.Incarnation, limit time.Duration) error {
	var expired <-chan time.Time
	if limit > 0 {
		expired = time.After(limit)
	}
	for {
		p.mu.Lock()
		room, changed := p.roomLocked(), p.changed
		p.mu.Unlock()
		if room > 0 {
			return nil
		}
		select {
		case <-changed:
		case <-expired:
			return errNoRoom
		case <-p.ctx.Done():
			return session.CtxErr(p.ctx)
		case <-inc.Ctx.Done():
			return session.ErrEnded
		}
	}
}

// patienceForRoom is how long a turn is kept when there is no room, or nobody
// waits: a fast consumer comes back in less.
const patienceForRoom = 5 * time.Millisecond

// maxClaims is how many claims one turn has while others wait.
const maxClaims = 16

// maxBatch is how many elements are claimed at once, so that it can always be
// written down again which of them are in hand.
const maxBatch = bucketSize

// turn claims elements while it is our turn.
func (p *pump) turn(inc *session.Incarnation, l *ledger) error {
	q, ctx := p.q, p.ctx
	claims := 0
	var es []element
	var v *view
	for {
		if err := p.awaitRoom(inc, patienceForRoom); err == errNoRoom {
			return nil // Step 4.
		} else if err != nil {
			return err
		}
		if len(es) == 0 { // Step 2.
			w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: q.dir})
			var next time.Time
			var err error
			v, es, next, err = p.search(inc)
			if err == nil && len(es) == 0 && !p.wanted() && q.othersWait(ctx, inc) {
				err = errNoRoom
			}
			if err == nil && len(es) == 0 {
				err = p.idle(inc, l, v, w, next)
			}
			inc.Watches.Leave(w)
			if err == errNoRoom {
				return nil // Step 4.
			} else if err != nil {
				return err
			}
			if len(es) == 0 {
				continue
			}
		}
		room := p.room()
		n := min(len(es), room, maxBatch)
		if n == 0 {
			continue
		}
		var others bool
		var asked sync.WaitGroup
		asked.Go(func() { others = q.othersWait(ctx, inc) })
		b, ok, err := l.claim(ctx, v, es[:n]) // Step 3.
		asked.Wait()
		if err != nil {
			return err
		}
		if !ok {
			es = nil
			if err := inc.Sync(ctx, q.claims); err != nil {
				return err
			}
			continue
		}
		es = es[n:]
		items, err := l.fetch(ctx, b)
		if err != nil {
			return err
		}
		claims++
		full := p.fill(items, n, n == min(room, maxBatch))
		if others && (full && len(es) > 0 || claims >= maxClaims) { // Step 4.
			return nil
		}
	}
}

// wanted reports whether a consumer waits now, or will in a moment.
func (p *pump) wanted() bool {
	expired := time.After(patienceForRoom)
	for {
		p.mu.Lock()
		waiting, changed := p.waiting, p.changed
		p.mu.Unlock()
		if waiting > 0 {
			return true
		}
		select {
		case <-changed:
		case <-p.ctx.Done():
			return false
		case <-expired:
			return false
		}
	}
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
		size += len(it.stored())
	}
	p.size = size/max(len(items), 1) + 1
	p.ready = append(p.ready, items...)
	p.changeLocked()
	return full
}

// othersWait reports whether another pump is in the line.
func (q *core) othersWait(ctx context.Context, inc *session.Incarnation) bool {
	names, _, err := inc.Children(ctx, q.line.Dir)
	return err == nil && len(line.ParseChildren(names, q.line.Bases...)) > 1
}

// search is the first half of step 2. The caller has joined the watch on the
// bell, which is read first: what comes after that rings it.
func (p *pump) search(inc *session.Incarnation) (v *view, es []element, next time.Time, err error) {
	q := p.q
	for {
		_, stat, err := inc.Get(p.ctx, q.dir)
		if session.IsNoNode(err) {
			if _, err = inc.Create(p.ctx, q.dir, nil); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, nil, next, err
		}
		q.zxid.Store(stat.Czxid)
		if v, err = q.look(p.ctx, inc, false); err != nil {
			return nil, nil, next, err
		}
		dead, buried, err := q.under.visit(p.ctx, inc, v)
		if err != nil {
			return nil, nil, next, err
		}
		if buried {
			continue
		}
		es, next, err = q.free(p.ctx, inc, v, bucketSize/2)
		if !dead.IsZero() && (next.IsZero() || dead.Before(next)) {
			next = dead
		}
		return v, es, next, err
	}
}

// idle is the second half of step 2.
func (p *pump) idle(inc *session.Incarnation, l *ledger, v *view, bell *session.Watch, next time.Time) error {
	watches := []*session.Watch{bell}
	for _, mark := range p.q.liveMarks(v, l.guid) {
		w := inc.Watches.Join(session.WatchKey{Kind: session.WatchExists, Path: mark})
		defer inc.Watches.Leave(w)
		stat, err := inc.Exists(p.ctx, mark)
		if err != nil || stat == nil {
			return err // or gone since we looked
		}
		watches = append(watches, w)
	}
	p.q.m.Waiters.Add(1)
	defer p.q.m.Waiters.Add(-1)
	return inc.AwaitAny(p.ctx, watches, next)
}
