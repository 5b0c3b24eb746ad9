package queue

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// This file brings elements from the queue to the consumers of one Queue value. find.go searches for
// elements, and idle.go waits for new elements. consumer.go offers the elements, and settle.go
// settles them.

// The type `pump` claims elements for the consumers of one Queue value: see the method `step`. At
// first, it claims no element ahead. If a claim has filled all room, and a consumer has waited
// since the previous claim, the pump claims two elements ahead, and then doubles their number, up to the
// prefetch. It leaves the other elements to other clients.
type pump struct {
	q      *core
	of     **pump // the field of `q` that has this pump while it has consumers
	most   int    // limit of `ahead`; 0: the pump claims only elements that consumers wait for
	try    bool   // the pump has no consumers: it claims one element, and does not wait for one; see the method `seize`
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{} // closed when the method `run` has ended

	consumers int // number of consumers that have not left; guarded by q.mu

	mu       sync.Mutex    // guards the fields from here to `claiming`
	waiting  int           // number of items that consumers wait for
	hand     bool          // a consumer that settles its items has called `next`
	offering int           // number of items that consumers offer and the program has not taken
	ready    []*item       // claimed and read, in order
	changed  chan struct{} // closed and replaced when any of these changes
	ahead    int           // largest number of items that the pump may claim ahead
	starved  bool          // a consumer has waited since the last claim
	size     int           // mean size of the last claim's elements, in bytes; 0 before the first
	taken    int           // number of elements that the program has taken
	before   int           // the same at the last claim
	claimed  time.Time     // time of the last claim
	timer    *time.Timer   // calls `shed`
	claiming bool          // a claim is under way: its items come after the items in `ready`

	// The following fields belong to the goroutine that claims elements.

	found  *finding      // free elements that the pump has not claimed yet, or nil
	spread int           // number of buckets to choose from; more than 1 after other consumers were quicker
	pause  time.Duration // wait before the next search, if other consumers were quicker and there is one bucket
	synced bool          // for `try`: a sync was sent, because only a search after it proves that no element is free
	got    *item         // for `try`: the element; nil if none is free
	place  *lock.Claim   // the first place in the line of idle consumers, or nil
	claims int           // number of claims since the pump entered the line
	skips  int64         // value of Skipper.begun at that time
}

// The method `join` makes the caller a consumer. The caller must call `leave`.
func (q *core) join(of **pump, most int) *pump {
	q.mu.Lock()
	defer q.mu.Unlock()
	if *of == nil {
		p := &pump{q: q, of: of, most: most, changed: make(chan struct{}), over: make(chan struct{}), spread: 1}
		// The pump ends early if the Session is being closed, so that others can claim the elements ahead
		// while Close waits for functions.
		p.ctx, p.cancel = q.m.Until(context.Background(), q.m.Closing)
		p.timer = time.AfterFunc(shedEvery, p.shed)
		*of = p
		q.m.Spawn(p.run)
	}
	(*of).consumers++
	return *of
}

// The method `leave` ends a consumer. When the last consumer leaves, the pump returns the elements
// that are claimed ahead. The method waits a moment for that, so that the next consumer finds the
// elements in their positions. Without a session, no element is claimed.
func (p *pump) leave() {
	p.q.mu.Lock()
	p.consumers--
	last := p.consumers == 0
	if last {
		p.cancel()
		*p.of = nil
	}
	p.q.mu.Unlock()
	if inc := p.q.m.Present(); last && inc != nil {
		inc.AwaitConnected(p.over, session.Grace)
	}
}

func (p *pump) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// The method `next` returns the item that a consumer offers next. The consumer must call `done`
// when the program has taken the item, or when the consumer has put the item back. Until `next`
// returns, the pump counts the caller as waiting for `n` items. If `n` is 0, `next` returns nil instead of
// waiting. If the channel `faults` delivers an error, `next` returns that error.
func (p *pump) next(ctx context.Context, n int, hand bool, faults <-chan error) (*item, error) {
	p.mu.Lock()
	p.waiting += n
	p.hand = p.hand || hand
	p.changeLocked()
	defer func() {
		p.waiting -= n
		p.mu.Unlock()
	}()
	for {
		if ctx.Err() != nil {
			return nil, session.CtxErr(ctx)
		}
		if it := p.takeLocked(); it != nil {
			if len(p.ready) <= p.ahead/2 {
				p.changeLocked()
			}
			return it, nil
		}
		if n == 0 {
			return nil, nil
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

// takeLocked returns the first ready item with a valid claim, or nil.
func (p *pump) takeLocked() *item {
	for len(p.ready) > 0 {
		it := p.ready[0]
		p.ready = p.ready[1:]
		if it.c.held.Err() == nil && !it.c.settled(it) {
			it.pump = p
			p.offering++
			return it
		}
		p.changeLocked() // the claim is lost, so there is room for another item
	}
	return nil
}

// The method `done` ends an offer. The next call of `next` wakes the pump.
func (p *pump) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offering--
	p.taken++
}

// The method `run` claims elements until the last consumer has left or the Session is being closed.
func (p *pump) run() {
	defer close(p.over)
	defer p.giveBack() // a consumer may have put an item back after the last session
	defer p.cancel()   // from here on, PutBack returns items to the queue
	for try := 0; ; try++ {
		err := p.q.m.During(p.ctx, p.session)
		if p.ctx.Err() != nil || p.q.m.Failure() != nil || errors.Is(err, session.ErrClosed) {
			return
		}
		if errors.Is(err, session.ErrVanished) {
			try = 0
			continue // another client has deleted the mark, or the place
		}
		p.q.Complain(err) // an operator may repair the cause, such as a missing permission: the pump tries again
		session.Sleep(p.ctx, max(p.q.m.Config.Retry.Delay(try), time.Second))
	}
}

// The method `session` claims elements in one ZooKeeper session, until `step` fails. For `try`, the error
// is errDone at the end.
func (p *pump) session(inc *session.Incarnation) error {
	if err := p.q.vet(p.ctx, inc); err != nil {
		return err
	}
	c, err := p.q.enlist(inc)
	if err != nil {
		return err
	}
	p.found, p.pause, p.synced = nil, 0, false
	for err == nil {
		err = p.step(inc, c)
	}
	p.leavePlace()
	if last := p.giveBack(); last != nil {
		inc.AwaitConnected(last.done, session.Grace)
	}
	c.leave()
	return err
}

// The method `giveBack` returns to the queue the elements that no consumer offers. It returns the entry of
// the last, or nil.
func (p *pump) giveBack() *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.giveBackLocked(0)
}

// giveBackLocked is giveBack for all elements except the first n.
func (p *pump) giveBackLocked(n int) (last *entry) {
	n = min(n, len(p.ready))
	for _, it := range p.ready[n:] {
		last, _ = it.c.decide(it, untried, nil)
	}
	p.ready = p.ready[:n:n]
	return last
}

// staleAfter is the maximum age of a finding: after that time, other elements may be the first.
const staleAfter = 50 * time.Millisecond

// maxBatch is the largest number of elements that the pump claims at once.
const maxBatch = bucketSize

// The method `step` brings elements from the queue to the consumers.
func (p *pump) step(inc *session.Incarnation, c *claimant) error {
	// 1. Wait until consumers have room for more.
	room, hands, limited, err := p.awaitRoom(inc)
	if err != nil {
		return err
	}
	// 2. Search for free elements, unless elements of the last search remain.
	f := p.found
	if f == nil || len(f.es) == 0 || time.Since(f.at) > staleAfter {
		return p.look(inc)
	}
	// 3. Claim elements, and read them.
	es := f.es[:min(len(f.es), room, maxBatch)]
	if hands = min(hands, len(es)); limited {
		hands = p.untried(f, es, hands)
		es = es[:hands]
	}
	if len(es) == 0 {
		p.leavePlace()
		return p.wait(p.ctx, inc, func() bool { return p.waiting > len(p.ready) })
	}
	p.mu.Lock()
	p.claiming = true
	p.mu.Unlock()
	items, err := c.obtain(f.lot, es, hands)
	switch {
	case err == errOutrun:
		return p.makeWay()
	case err != nil:
		return err
	}
	p.spread, p.pause, f.es = max(p.spread/2, 1), p.pause/2, f.es[len(es):]
	// 4. Give the items to the consumers.
	if p.try {
		if len(items) > 0 {
			p.got, err = items[0], errDone
		}
		return err
	}
	items = slices.DeleteFunc(items, p.q.spent)
	p.mu.Lock()
	if len(es) == room && p.starved {
		p.ahead = min(max(2*p.ahead, 2), p.most)
	}
	p.size, p.starved, p.before, p.claimed = meanSize(items), false, p.taken, time.Now()
	p.ready = append(p.ready, items...)
	p.timer.Reset(shedEvery)
	p.changeLocked()
	p.mu.Unlock()
	// 5. Leave the line to the next consumers if there are more elements than room, or after maxClaims
	//    claims.
	if p.claims++; p.place != nil && (len(f.es) > 0 || f.more || p.claims >= maxClaims && p.othersWait(inc)) {
		p.leavePlace()
	}
	return nil
}

// The method `awaitRoom` waits until consumers have room for more elements, and returns their number. Until
// then, it leaves the line of idle consumers. The first `hands` of the elements are in hand as soon as they are
// claimed, or all of them if attempts are limited.
func (p *pump) awaitRoom(inc *session.Incarnation) (room, hands int, limited bool, err error) {
	err = p.wait(p.ctx, inc, func() bool {
		if p.claiming = false; p.hand {
			hands = max(p.waiting-len(p.ready), 0)
		}
		if room, limited = p.roomLocked(), p.limitedLocked(); room == 0 {
			p.leavePlace()
		}
		return room > 0
	})
	return room, hands, limited, err
}

// The method `look` searches for free elements. If no element is free, it waits in the line. For `try`,
// it does not wait: after a search behind a sync, the error is errDone.
func (p *pump) look(inc *session.Incarnation) (err error) {
	if p.found = nil; p.place == nil {
		p.found, err = p.q.search(p.ctx, inc, finding{n: bucketSize / 2, spread: p.spread, watch: p.synced, odd: p.synced})
	}
	switch {
	case err != nil || p.found != nil && len(p.found.es) > 0:
		return err
	case !p.try:
		return p.idle(inc)
	case !p.synced:
		p.synced = true
		return inc.Sync(p.ctx, p.q.dir)
	}
	if p.q.cfg.KeepDead > 0 { // only to delete expired dead letters
		p.q.Sweep(inc)
	}
	return errDone
}

// The method `untried` is called with a limit of attempts: then the claim records all of its elements as in
// hand. It returns the number of elements of es to claim. It stops at an element that was tried before and
// that no consumer waits for, which means that it comes after the first n: so if the process crashes, an
// element counts as tried without a delivery at most once. It does not stop at an element without attempts
// left, which no consumer gets.
func (p *pump) untried(f *finding, es []*element, n int) int {
	tried := f.lot.next().tried
	for ; n < len(es); n++ {
		if k := int(es[n].tries) + tried[es[n].seq]; k > 0 && k < p.q.cfg.MaxAttempts {
			break
		}
	}
	return n
}

// The function `meanSize` returns the mean size of items, in bytes, at least 1.
func meanSize(items []*item) int {
	size := 0
	for _, it := range items {
		size += len(it.data)
	}
	return size/max(len(items), 1) + 1
}

const (
	maxClaims  = 16 // in one turn, if another consumer waits
	maxSpread  = 64
	firstPause = 2 * time.Millisecond
	maxPause   = 128 * time.Millisecond
)

// makeWay prepares the next search after a refused claim: another transaction has written the
// bucket since the last search. If other clients have marks on the boards, the next search chooses
// among more buckets. If there is no other bucket, the pump waits a little. If no other client
// consumes, the pump stays at the first bucket, to keep the order.
func (p *pump) makeWay() error {
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
	return session.Sleep(p.ctx, dice.Below(p.pause))
}

// roomLocked returns the number of elements that the pump may claim now. An offered item counts as
// claimed ahead. There is always room for the items that consumers wait for, even beyond the limit.
// The result is never negative, although consumers that leave at the same time can put back more
// items than there is room for.
func (p *pump) roomLocked() int {
	ahead := min(p.ahead, p.mostLocked())
	if p.size > 0 {
		ahead = min(ahead, max(p.q.cfg.PrefetchBytes/p.size, min(p.most, 1)))
	}
	n := max(ahead-p.offering-len(p.ready), p.waiting-len(p.ready), 0)
	if n <= ahead/2 && p.waiting == 0 {
		return 0 // wait until there is room for more elements in one claim
	}
	return n
}

// The method `wait` blocks until the function `so` returns true. It calls `so` with mu held.
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

// limitedLocked reports whether each claim records all its elements as in hand. Then all of them count
// as tried if the process crashes.
func (p *pump) limitedLocked() bool { return p.hand && p.q.cfg.MaxAttempts > 0 }

// mostLocked returns the largest number of elements that the pump may claim ahead: the number that the
// program takes in a second, by the time since the last claim, but at least 1. With a limit of attempts, it
// is the number that the program takes within the time batchTime, but at least batchLeast, because each
// claim costs a write. With a limit of one attempt, it is 0. It is also 0 until the program has taken two
// elements: it may have received the first from a channel, and may not have begun to work on it.
func (p *pump) mostLocked() int {
	n := math.MaxInt
	if d := time.Since(p.claimed); d > 0 {
		n = max(int(time.Duration(p.taken-p.before+1)*time.Second/d), 1)
	}
	switch {
	case !p.limitedLocked():
		return n
	case p.q.cfg.MaxAttempts == 1 || p.taken < 2:
		return 0
	}
	return min(n, max(n/int(time.Second/batchTime), batchLeast)+p.waiting, batchMost)
}

const (
	batchTime  = 20 * time.Millisecond
	batchLeast = 8
	batchMost  = 128

	// shedEvery is the time after a claim, and between two looks, after which the pump looks whether
	// its consumers have become slow.
	shedEvery = time.Second
)

// The method `shed` returns to the queue the elements that the pump has claimed too far ahead.
func (p *pump) shed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.claiming {
		p.giveBackLocked(p.mostLocked())
	}
	if len(p.ready) > 1 {
		p.timer.Reset(shedEvery)
	}
}
