package queue

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file offers claimed elements to the program, each only while its claim is confirmed. It does
// not claim elements: see pump.go. It does not settle them: see settle.go.

// errHidden is the error for an element that the client cannot read.
var errHidden = zk.ErrNoAuth

// A consumer offers the elements that a pump claims.
type consumer struct {
	Joining
	q      *core
	p      *pump // nil if ctx had ended before Join
	ctx    context.Context
	over   func()     // ends ctx, and lets Session.Close continue
	faults chan error // errors that keep the consumer from consuming; nil without Odd

	leaves atomic.Bool   // Leave was called
	left   chan struct{} // closed at the end of the first Leave
}

func (q *core) Join(ctx context.Context, o Joining) Consumer {
	c := &consumer{Joining: o, q: q, left: make(chan struct{})}
	c.ctx, c.over = WhileOpen(ctx, q.m)
	if c.ctx.Err() == nil {
		kind := takes
		if o.Hand {
			kind = settles
		}
		c.p = q.join(kind, q.cfg.Prefetch)
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
		it, err := c.p.next(c.ctx, 1, c.faults)
		if err != nil {
			return nil, err
		}
		if offer, back := c.q.present(c.ctx, it, c.Odd); offer {
			return it, nil
		} else if back {
			it.PutBack()
		} else {
			c.p.done()
		}
	}
}

// present reports whether the consumer may offer an item. If not, back reports whether the caller
// must put the item back, to be offered later. If neither, present has set the item aside. With odd,
// misfits are offered too.
func (q *core) present(ctx context.Context, it *item, odd bool) (offer, back bool) {
	if !it.decoded && it.fault == nil {
		q.check(it)
	}
	if it.fault != nil && !(it.misfit && odd) {
		q.setAside(it)
		return false, false
	}
	// A consumer offers no element without a connection. If the program took it, the removal could
	// not reach the servers. If the session then expires, another consumer can get the element too.
	offer = it.c.inc.Connection(ctx) == nil && it.c.stands(ctx)
	return offer, !offer
}

// setAside makes an element with a fault a dead letter. If too many elements in a row do not
// decode, it returns the element to the queue instead: see [maxMisfits].
func (q *core) setAside(it *item) {
	e := entry{fate: Bury, reason: it.fault}
	if it.misfit && q.skips.Misfit(it.bucket, it.seq, it.fault) != nil {
		e = entry{fate: Return}
	}
	it.c.decide(it, e)
}

// take records that a consumer wants to offer an item. It reports false if the claim is lost, or if
// the fate of the item is decided.
func (c *claimant) take(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held.Err() != nil || it.final != nil {
		return false
	}
	it.place = offered
	return true
}

// withdraw records that the program has not taken an offered item. It reports whether a consumer
// can offer the item again.
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
	p.putBack(it) // from here on, another consumer can have it
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
	inner, leave := WhileOpen(ctx, q.m)
	defer leave()
	if inner.Err() != nil {
		return cmp.Or(session.CtxErr(ctx), session.ErrClosed)
	}
	room := min(n, maxBatch) // so the sum of all rooms cannot overflow
	p := q.join(receives, 0)
	defer p.leave()
	for has := 0; ; {
		it, err := p.next(inner, room, nil)
		if err != nil {
			return err
		}
		for ; it != nil; it = p.poll() {
			offer, back := q.present(inner, it, false)
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
