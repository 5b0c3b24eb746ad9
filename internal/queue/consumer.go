package queue

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// errHidden is why an element cannot be read.
var errHidden = zk.ErrNoAuth

// A consumer is offered what a pump claims.
type consumer struct {
	Joining
	q      *core
	p      *pump // nil if there was nothing to wait for
	ctx    context.Context
	over   func()     // ends ctx, and lets Session.Close go on
	faults chan error // with Odd: what keeps it from consuming

	leaves atomic.Bool   // somebody has called Leave
	left   chan struct{} // closed when that is done
}

func (q *core) Join(ctx context.Context, o Joining) Consumer {
	c := &consumer{Joining: o, q: q, left: make(chan struct{})}
	c.ctx, c.over = q.whileOpen(ctx)
	if c.ctx.Err() == nil {
		c.p = q.join(&q.push, q.cfg.Prefetch)
	}
	if o.Odd {
		c.faults = make(chan error, 1)
		q.faults.Store(c.faults, true)
	}
	return c
}

func (c *consumer) Leaving() <-chan struct{} { return c.ctx.Done() }

func (c *consumer) Leave() {
	if c.leaves.Swap(true) {
		<-c.left
		return
	}
	if c.p != nil {
		c.p.leave()
	}
	c.q.faults.Delete(c.faults)
	c.over()
	close(c.left)
}

func (c *consumer) Next() (Claim, error) {
	if c.p == nil {
		return nil, session.CtxErr(c.ctx)
	}
	for {
		it, err := c.p.next(c.ctx, 1, c.Hand, c.faults)
		if err != nil {
			return nil, err
		}
		if offer, back := c.q.present(c.ctx, it, c.Joining); offer {
			return it, nil
		} else if back {
			it.PutBack()
		} else {
			c.p.done()
		}
	}
}

// present reports whether an item may be offered, after having set it aside if
// it must not; back tells that it is to be offered again later.
func (q *core) present(ctx context.Context, it *item, o Joining) (offer, back bool) {
	if !it.decoded && it.fault == nil {
		q.check(it)
	}
	if it.fault != nil && !(it.misfit && o.Odd) {
		q.setAside(it)
		return false, false
	}
	// Nothing is offered while there is no connection: the removal of what is
	// taken then could not get through, and if the session is lost others may
	// get the element too.
	if it.c.inc.Connection(ctx) != nil || !it.c.stands(ctx) {
		return false, true
	}
	if !o.Hand || q.cfg.MaxAttempts == 0 {
		return true, false
	}
	select {
	case <-it.pump.noting(it): // a consumer that dies of the element must be found to have tried
		if it.c.lost() == nil && q.m.Failure() == nil {
			it.pump.presented()
			return true, false
		}
	case <-ctx.Done():
	case <-it.c.inc.Disconnection():
	case <-it.c.inc.Ctx.Done():
	}
	return false, true
}

// noteAtLeast is how many are noted at once at least, if so many are claimed.
const noteAtLeast = 8

// noting is told that an item is about to be offered. What it returns is closed when the board says
// that it is in hand. With it others are noted that are about to be offered: to note each by itself
// would take a round trip for each. If the process dies those count as tried too, though they were
// not, but not twice: what was tried before is noted by itself. So is everything where one attempt
// is all there is.
func (p *pump) noting(it *item) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := it.c
	c.mu.Lock()
	noted, note := it.noted || it.final != nil, it.note
	items := []*item{it}
	if it.attempts == 0 && p.q.cfg.MaxAttempts > 1 {
		p.noted = min(max(2*p.noted, 1), noteAhead)
		for _, other := range p.ready {
			if len(items) < max(noteAtLeast, min(p.noted, p.slowedLocked()/int(time.Second/noteAfter))) && other.c == c && other.bucket == it.bucket && other.attempts == 0 && !other.noted && other.final == nil {
				items = append(items, other)
			}
		}
	}
	c.mu.Unlock()
	switch {
	case !noted:
		return c.note(items).done
	case note == nil: // the claim says so
		return session.ClosedChan
	}
	return note
}

// setAside sends an element with a fault to the dead letters. Where nothing
// decodes it goes back instead, see [maxMisfits].
func (q *core) setAside(it *item) {
	e := entry{fate: Bury, reason: it.fault}
	if it.misfit && q.skips.Misfit(it.bucket, it.seq, it.fault) != nil {
		e = entry{fate: Return}
	}
	it.c.decide(it, e)
}

// take is told that a consumer wants to offer an item. It is false if the item
// is not ours any more.
func (c *claimant) take(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held.Err() != nil || it.final != nil {
		return false
	}
	it.place = offered
	return true
}

// withdraw is told that an offered item was not taken. It reports whether the
// item can be offered again.
func (c *claimant) withdraw(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	it.place = ahead
	if c.ended && it.final == nil {
		c.enterLocked(it, entry{fate: Return})
	}
	return !c.ended && it.final == nil
}

// An item is a Claim.

func (it *item) Element() Element {
	it.c.mu.Lock()
	defer it.c.mu.Unlock()
	return Element{ID: it.id(), Data: it.data, Value: it.value, Fault: it.fault, Sent: it.sent, Attempts: it.attempts}
}

func (it *item) Data() []byte {
	it.c.mu.Lock()
	defer it.c.mu.Unlock()
	if it.final != nil {
		return nil
	}
	return it.data
}

func (it *item) Withdrawn() (down, over <-chan struct{}) {
	return it.c.inc.Disconnection(), it.c.held.Done()
}

func (it *item) Taken() {
	it.c.decide(it, entry{fate: Remove})
	it.pump.done()
}

func (it *item) Handed() {
	it.c.handed(it)
	it.pump.done()
}

func (it *item) PutBack() {
	p := it.pump
	p.putBack(it) // and the next consumer may have it
	p.done()
}

func (it *item) SetAside() {
	if !it.c.settled(it) {
		it.c.q.setAside(it)
	}
}

func (it *item) Context() context.Context { return it.c.context(it) }

func (it *item) Settle(ctx context.Context, s Settlement) error {
	_, err := it.c.settleNow(ctx, it, entry{fate: s.Fate, bump: !s.Untried, reason: s.Reason, due: dueAt(s.Due)})
	return err
}

func (q *core) Receive(ctx context.Context, n int, got func(Claim)) error {
	inner, leave := q.whileOpen(ctx)
	defer leave()
	if inner.Err() != nil {
		return cmp.Or(session.CtxErr(ctx), session.ErrClosed)
	}
	room := min(n, maxBatch) // a sum of them overflows nothing
	p := q.join(&q.pull, 0)
	defer p.leave()
	for has := 0; ; {
		it, err := p.next(inner, room, true, nil)
		if err != nil {
			return err
		}
		for ; it != nil; it = p.poll() {
			offer, back := q.present(inner, it, Joining{Hand: true})
			if back {
				it.PutBack()
				break
			}
			if offer {
				got(it)
				it.Handed()
				has++
			} else {
				p.done()
			}
			if has == n {
				break
			}
		}
		if has > 0 {
			return nil
		}
	}
}
