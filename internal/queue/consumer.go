package queue

import (
	"context"
	"slices"
)

// This file offers claimed elements to the program, while their claims are confirmed.

func (q *core) Join(ctx context.Context, o Joining) *Consumer {
	of, ahead := &q.push, q.cfg.Prefetch
	if o.Limit > 0 {
		of, ahead = &q.pull, 0
	}
	p := q.join(of, ahead)
	c := q.Enter(ctx, o, p.leave)
	// The function `offer` returns an item that the consumer may offer. If n is 0, it does not wait for one.
	offer := func(n int) (Item, error) {
		for {
			it, err := p.next(c.Ctx, n, o.Hand, c.Faults)
			switch {
			case it == nil:
				return nil, err
			case q.present(c, it):
				return it, nil
			case n == 0 && !it.c.settled(it): // `present` has put it back: a consumer will offer it again
				return nil, nil
			}
		}
	}
	c.Next = func() (Item, error) { return offer(min(max(o.Limit, 1), maxBatch)) } // so the sum of all rooms cannot overflow
	c.Poll = func() Item {
		it, _ := offer(0)
		return it
	}
	return c
}

// The method `present` returns true if a consumer may offer an item. Otherwise, it has put the item
// back, or decided the fate of the item.
func (q *core) present(c *Consumer, it *item) bool {
	if it.value == nil && it.fault == nil {
		q.check(it)
	}
	if it.fault != nil && !(it.misfit && c.Odd) {
		q.setAside(it)
		it.pump.done()
		return false
	}
	if c.Hand && q.cfg.MaxAttempts > 0 && !it.noted {
		it.c.decide(it, untried, nil) // claimed when all consumers were Recv's: the next claim records the attempt
		it.pump.done()
		return false
	}
	// While the client is disconnected, the program could take the element, but the removal could not reach
	// the servers. If the session then expired, another consumer could get the element too.
	if _, err := it.c.inc.OpenConn(c.Ctx); err != nil || !it.c.stands(c.Ctx) {
		it.PutBack()
		return false
	}
	return true
}

// The method `spent` makes an item without attempts left a dead letter, and returns true. It leaves
// misfits to the consumer, which may want their error.
func (q *core) spent(it *item) bool {
	if q.cfg.MaxAttempts == 0 || it.attempts < q.cfg.MaxAttempts {
		return false
	}
	if q.check(it); it.misfit {
		return false
	}
	q.setAside(it)
	return true
}

// setAside makes an element with a fault a dead letter. If too many elements in a row do not decode,
// setAside returns the element to the queue instead, and `left` has the reason: see [maxMisfits].
func (q *core) setAside(it *item) (fate *entry, left error) {
	s := Settlement{Fate: Bury, Reason: it.fault, Untried: true}
	if it.misfit {
		if left = q.Skips.Misfit(it.key(), it.fault); left != nil {
			s = untried
		}
	}
	fate, _ = it.c.decide(it, s, nil)
	return fate, left
}

// The following methods implement the interface Item.

func (it *item) Element() Element {
	it.c.mu.Lock()
	defer it.c.mu.Unlock()
	e := Element{ID: it.id(), Fault: it.fault, Sent: it.sent, Attempts: it.attempts}
	if it.final == nil {
		e.Data, e.Value = it.data, it.value
	}
	return e
}

func (it *item) Withdrawn() (down, over <-chan struct{}) {
	return it.c.inc.Disconnection(), it.c.held.Done()
}

func (it *item) Taken() {
	it.c.decide(it, Settlement{Fate: Remove}, nil)
	it.pump.done()
}

func (it *item) Handed() {
	c := it.c
	c.mu.Lock()
	if !it.posted && c.held.Err() == nil && (it.final == nil || it.final.with != nil) { // the claim is not lost, and the fate is not decided
		it.inHand = true
		c.q.m.Holds.Add(1)
		c.withdrawLocked(it) // perhaps `finish` has already returned the elements in hand
	}
	c.mu.Unlock()
	it.pump.done()
}

func (it *item) PutBack() {
	p := it.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.offering--; p.ctx.Err() != nil { // the method `run` ends, or has ended
		it.c.decide(it, untried, nil)
		return
	}
	p.ready = slices.Insert(p.ready, 0, it)
	p.changeLocked()
}

func (it *item) SetAside() {
	if !it.c.settled(it) {
		it.c.q.setAside(it)
	}
}

func (it *item) Context() context.Context {
	c := it.c
	c.lost()
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.ctx == nil {
		held := c.held
		if it.posted {
			held = context.Background() // the claimant may have ended since: that is no loss
		}
		it.ctx, it.cancel = context.WithCancelCause(held)
		if it.posted || it.final != nil && it.final.with == nil {
			it.cancel(it.lost)
		}
	}
	return it.ctx
}

func (it *item) Settle(ctx context.Context, s Settlement) error {
	_, err := it.c.settleNow(ctx, it, s, nil)
	return err
}
