package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A pump claims elements for the consumers of one Queue value: see step. How many it claims ahead
// begins at one and doubles, up to the prefetch, whenever consumers had to wait though as many as
// possible had been claimed: a slow consumer leaves the rest to others.
type pump struct {
	q      *core
	most   int // how many may be claimed ahead at most; 0: only what somebody waits for
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{} // closed when what it had is back

	consumers int // who have not left; guarded by q.mu

	mu       sync.Mutex    // guards what follows
	running  bool          // somebody has waited for an item
	waiting  int           // those who wait for an item
	hands    int           // those of them who settle it themselves
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

	found  *finding      // what is free and not claimed yet, or nil
	spread int           // from how many buckets one is chosen; more than 1 after others were quicker
	pause  time.Duration // before the next claim, where others were quicker and there is one bucket
	place  *place        // in the line of the idle, or nil
	claims int           // since it was entered
	rung   bool          // the bell has woken us
}

// join makes the caller a consumer. It must leave.
func (q *core) join(of **pump, most int) *pump {
	q.mu.Lock()
	defer q.mu.Unlock()
	if *of == nil {
		p := &pump{q: q, most: most, changed: make(chan struct{}), over: make(chan struct{}), ahead: min(most, 1), spread: 1}
		p.ctx, p.cancel = context.WithCancel(context.Background())
		*of = p
	}
	(*of).consumers++
	return *of
}

// leave is the end of a consumer. After the last it waits a moment until what
// was claimed ahead is back, so that the next to come finds it in its place.
func (p *pump) leave() {
	p.q.mu.Lock()
	p.consumers--
	last := p.consumers == 0
	if last {
		p.cancel()
		if p.q.push == p {
			p.q.push = nil
		} else if p.q.pull == p {
			p.q.pull = nil
		}
	}
	p.q.mu.Unlock()
	p.mu.Lock()
	running := p.running
	p.running = true // and it never begins
	p.mu.Unlock()
	if last && running {
		if inc, err := p.q.m.Incarnation(session.Finishing); err == nil {
			inc.AwaitConnected(p.over, session.Grace)
		}
	}
}

func (p *pump) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// next returns the next item for a consumer to offer. It must call done when
// that is taken, or put back. It counts as n that wait until this returns. An error that
// comes through faults ends the wait.
func (p *pump) next(ctx context.Context, n int, hand bool, faults <-chan error) (*item, error) {
	p.mu.Lock()
	if p.waiting == 0 {
		p.pace.asked(time.Now())
	}
	p.waiting += n
	if hand {
		p.hands += n
	}
	p.changeLocked()
	if !p.running {
		p.running = true
		p.q.m.Spawn(p.run)
	}
	defer func() {
		p.waiting -= n
		if hand {
			p.hands -= n
		}
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
		if it.c.take(it) {
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

// putBack makes an item that was not taken the next again, or gives it back.
func (p *pump) putBack(it *item) {
	if !it.c.withdraw(it) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		it.c.decide(it, entry{fate: Return})
		return
	}
	// Behind those that come before it and were put back earlier.
	i := 0
	for i < len(p.ready) && p.ready[i].before(it.element) {
		i++
	}
	p.ready = append(p.ready[:i:i], append([]*item{it}, p.ready[i:]...)...)
	p.changeLocked()
}

// run claims until the last consumer has left.
func (p *pump) run() {
	defer close(p.over)
	for try := 0; ; try++ {
		err := p.q.m.During(p.ctx, p.session)
		if p.ctx.Err() != nil || p.q.m.Failure() != nil || errors.Is(err, session.ErrClosed) {
			return
		}
		if errors.Is(err, session.ErrVanished) {
			try = 0
			continue // somebody has deleted our mark, or our place
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
	if err := p.q.vet(p.ctx, inc); err != nil {
		return err
	}
	c, err := p.q.enlist(inc)
	if err != nil {
		return err
	}
	p.found, p.pause, p.rung = nil, 0, false
	for err == nil {
		err = p.step(inc, c)
	}
	p.leavePlace()
	p.mu.Lock()
	ready := p.ready
	p.ready = nil
	p.mu.Unlock()
	var last *entry
	for _, it := range ready {
		last, _ = c.decide(it, entry{fate: Return})
	}
	if last != nil {
		inc.AwaitConnected(last.done, session.Grace)
	}
	c.leave()
	return err
}

// staleAfter is how long what was found is believed to be the first that is free.
const staleAfter = 50 * time.Millisecond

// maxBatch is how many elements are claimed at once.
const maxBatch = bucketSize

// step takes elements from the queue to the consumers.
func (p *pump) step(inc *session.Incarnation, c *claimant) error {
	// 1. Wait until consumers have room for more.
	room, hands, err := p.awaitRoom(inc)
	if err != nil {
		return err
	}
	// 2. Look for what is free, unless that is known. If nothing is, stand in the line of the idle
	// until something is.
	if f := p.found; f == nil || len(f.es) == 0 || time.Since(f.at) > staleAfter {
		if p.place == nil {
			p.found, err = p.q.search(p.ctx, inc, quest{n: bucketSize / 2, spread: p.spread})
		} else {
			p.found = nil
		}
		if err == nil && p.found != nil {
			c.prune(p.found.all, p.found.from)
		}
		if err == nil && (p.found == nil || len(p.found.es) == 0) {
			err = p.idle(inc)
		}
		return err
	}
	// 3. Claim as many as there is room for, and read them at the same time, unless others are likely
	// to be quicker: if the claim is made nobody has had them since the search, and so the data
	// is theirs.
	es := p.found.es[:min(len(p.found.es), room, maxBatch)]
	var r *reading
	if p.spread == 1 && p.pause == 0 {
		r = p.read(inc, es)
	}
	p.setClaiming(true)
	defer p.setClaiming(false)
	items, err := c.claim(p.found.lot, es, hands, p.quick(hands))
	if err == errBarred {
		p.found = nil
		return nil
	}
	if err != nil {
		return err
	}
	if items == nil {
		return p.makeWay(inc)
	}
	p.spread, p.pause, p.found.es = max(p.spread/2, 1), p.pause/2, p.found.es[len(es):]
	if r == nil {
		r = p.read(inc, es)
	}
	// 4. Hand them over.
	items, err = p.fetch(c, items, r)
	if p.fill(items, len(es) == room); err != nil {
		return err
	}
	p.q.sweeper.Sweep(inc, sweepEvery)
	// 5. One who finds more than there is room for leaves the line to those behind, and so does one
	// who has claimed a while.
	if p.claims++; p.place != nil && (len(p.found.es) > 0 || p.found.more || p.claims >= maxClaims && p.place.othersWait(p.ctx)) {
		p.leavePlace()
	}
	return nil
}

// maxClaims is how many claims one has in one place of the line while others wait.
const maxClaims = 16

const (
	firstPause = 2 * time.Millisecond
	maxPause   = 128 * time.Millisecond
)

// makeWay is told that a claim was refused: its bucket was written meanwhile. If that may have been
// another consumer we look for another bucket; if there is no other we wait a little. An only
// consumer stays at the first, to keep the order.
func (p *pump) makeWay(inc *session.Incarnation) error {
	f := p.found
	p.found = nil
	if !f.others {
		return nil
	}
	p.spread = min(2*p.spread, maxSpread)
	if f.more {
		return nil
	}
	p.pause = min(max(2*p.pause, firstPause), maxPause)
	return session.Sleep(p.ctx, rand.N(p.pause))
}

// maxSpread bounds spread.
const maxSpread = 64

// A reading is what was read of claimed elements.
type reading struct {
	nodes []session.Node
	err   error
	done  chan struct{}
}

// read begins to read elements.
func (p *pump) read(inc *session.Incarnation, es []element) *reading {
	r := &reading{done: make(chan struct{})}
	paths := make([]string, len(es))
	for i, e := range es {
		paths[i] = session.ChildPath(p.q.dir, e.key())
	}
	p.q.m.Spawn(func() {
		defer close(r.done)
		r.nodes, r.err = inc.GetVisible(session.Finishing, paths)
	})
	return r
}

// fetch gives items what was read of them. Those that are gone are settled, and those that may not
// be read go back.
func (p *pump) fetch(c *claimant, items []*item, r *reading) (ours []*item, err error) {
	<-r.done
	if r.err != nil {
		for _, it := range items {
			c.decide(it, entry{fate: Return})
		}
		return nil, r.err
	}
	c.mu.Lock()
	for i, n := range r.nodes {
		switch it := items[i]; {
		case it.final != nil: // it was given back
		case n.Stat == nil:
			c.dropLocked(it, true)
		case hidden(n):
			c.enterLocked(it, entry{fate: Return})
			defer p.q.skips.Unreadable(it.bucket, it.seq, it.key(), errHidden)
		default:
			it.read(n)
			ours = append(ours, it)
		}
	}
	c.mu.Unlock()
	return ours, nil
}

func (p *pump) setClaiming(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claiming = on
}

// fill gives consumers what was claimed. most tells whether there was no room for more.
func (p *pump) fill(items []*item, most bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if most && p.starved {
		p.ahead = min(max(2*p.ahead, 1), p.most)
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
}

// roomLocked counts what is being offered as claimed ahead. But every consumer
// gets one, however few that may be. Consumers that leave together put back more
// than there is room for: there is none then, never less.
func (p *pump) roomLocked() int {
	ahead := min(p.ahead, p.slowedLocked())
	if p.size > 0 {
		ahead = min(ahead, max(p.q.cfg.PrefetchBytes/p.size, min(p.most, 1)))
	}
	n := max(ahead-p.offering-len(p.ready), p.waiting-len(p.ready), 0)
	if n <= ahead/2 && p.waiting == 0 {
		return 0 // claim many at once, or none
	}
	return n
}

// patience is how long a place is kept when there is no room, or nobody waits: a fast consumer
// comes back in less.
const patience = 5 * time.Millisecond

// awaitRoom waits until there is room, and returns how much, and how many wait for what they settle
// themselves.
func (p *pump) awaitRoom(inc *session.Incarnation) (room, hands int, err error) {
	err = p.until(inc, func() bool {
		room, hands = p.roomLocked(), max(p.hands-len(p.ready), 0)
		return room > 0
	})
	return room, hands, err
}

// wanted reports whether a consumer waits now, or will in a moment.
func (p *pump) wanted(inc *session.Incarnation) bool {
	limited, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return p.wait(limited, inc, func() bool { return p.waiting > 0 }) == nil
}

// until waits until so, which is called with mu held, is true. A place in the line is given up if
// that takes long.
func (p *pump) until(inc *session.Incarnation, so func() bool) error {
	if p.place != nil {
		limited, cancel := context.WithTimeout(p.ctx, patience)
		err := p.wait(limited, inc, so)
		cancel()
		if err == nil || p.ctx.Err() != nil || !inc.Alive() {
			return err
		}
		p.leavePlace()
	}
	return p.wait(p.ctx, inc, so)
}

func (p *pump) wait(ctx context.Context, inc *session.Incarnation, so func() bool) error {
	for {
		p.mu.Lock()
		ok, changed := so(), p.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		if err := session.AwaitIn(ctx, inc, changed); err != nil {
			return err
		}
	}
}

// slowedLocked returns how many elements may be claimed ahead of consumers that
// are slow: what they take in a second.
func (p *pump) slowedLocked() int { return p.pace.perSecond(time.Now(), p.waiting == 0) }

// quick returns how many items may be noted to be in hand at once, where attempts are limited: those
// that consumers take in a moment, because what is noted counts as tried if the process dies. At first
// that is not known.
func (p *pump) quick(hands int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.q.cfg.MaxAttempts < 2 || hands == 0 {
		return 0
	}
	n := min(p.noted, p.slowedLocked()/int(time.Second/noteAfter))
	p.noted = min(max(2*p.noted, 1), noteAhead)
	return n
}

const (
	// noteAhead is how many are noted at once at most.
	noteAhead = 128

	// noteAfter is in how much time consumers take what is noted at once.
	noteAfter = 20 * time.Millisecond
)

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
			it.c.decide(it, entry{fate: Return})
		}
		p.ready = p.ready[:n:n]
	}
	p.watchPaceLocked()
}
