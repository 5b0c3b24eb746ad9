package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file offers claimed elements to the program. A consumer offers an element only while the
// claim is confirmed. If attempts are limited, the board must show the attempt before the offer.
// pump.go claims elements, and settle.go settles them.

// errHidden is the error for an element that the client cannot read.
var errHidden = zk.ErrNoAuth

// The type `consumer` offers the elements that a pump claims.
type consumer struct {
	*Subscriber
	Joining
	q *core
	p *pump // nil if the consumer's context had ended before Join
}

func (q *core) Join(ctx context.Context, o Joining) Consumer {
	c := &consumer{Subscriber: q.Enter(ctx, o), Joining: o, q: q}
	if c.Ctx.Err() == nil {
		c.p = q.join(&q.push, q.cfg.Prefetch)
	}
	return c
}

func (c *consumer) Leave() {
	c.Part(func() {
		if c.p != nil {
			c.p.leave()
		}
	})
}

func (c *consumer) Next() (Item, error) {
	if c.p == nil {
		return nil, session.CtxErr(c.Ctx)
	}
	for {
		it, err := c.p.next(c.Ctx, 1, c.Hand, c.Faults)
		if err != nil {
			return nil, err
		}
		if offer, back := c.q.present(c.Ctx, it, c.Joining); offer {
			return it, nil
		} else if back {
			it.PutBack()
		} else {
			c.p.done()
		}
	}
}

// The method `present` decides whether a consumer may offer an item. If the result `offer` is true,
// the caller may offer the item. If the result `back` is true, the caller must put the item back,
// and a consumer will offer the item again. If both are false, `present` has set the item aside.
func (q *core) present(ctx context.Context, it *item, o Joining) (offer, back bool) {
	if !it.decoded && it.fault == nil {
		q.check(it)
	}
	if it.fault != nil && !(it.misfit && o.Odd) {
		q.setAside(it)
		return false, false
	}
	// A consumer offers no element while the client is disconnected: the program could take the
	// element, but the removal could not reach the servers. If the session then expired, another
	// consumer could get the element too.
	if it.c.inc.Connection(ctx) != nil || !it.c.stands(ctx) {
		return false, true
	}
	if !o.Hand || q.cfg.MaxAttempts == 0 {
		return true, false
	}
	select {
	case <-it.pump.noting(it): // if the element crashes the process, the board must show the attempt
		if it.c.lost() == nil && q.m.Failure() == nil {
			return true, false
		}
	case <-ctx.Done():
	case <-it.c.inc.Disconnection():
	case <-it.c.inc.Ctx.Done():
	}
	return false, true
}

// noteAtLeast is the minimum number of items that the method `noting` notes in one write. It notes
// fewer items if fewer are ready.
const noteAtLeast = 8

// The method `noting` records on the board that an item is in hand, before a consumer offers the
// item. It returns a channel that is closed when the servers have applied the write.
//
// The same write also notes the next items, because a separate write for each item would cost a
// round trip. If the process crashes, these items count as tried, although the program never
// received them. That happens to an item at most once, because a second attempt has a note for one
// item alone. Every item is noted alone while the pace is not known, or if only one attempt is
// allowed.
func (p *pump) noting(it *item) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := it.c
	c.mu.Lock()
	noted, note := it.noted || it.final != nil, it.note
	items := []*item{it}
	if it.attempts == 0 && p.q.cfg.MaxAttempts > 1 && p.pacedLocked() {
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
	case note == nil: // the write that claimed the item has noted it
		return session.ClosedChan
	}
	return note
}

// setAside makes an element with a fault a dead letter. If too many elements in a row do not
// decode, setAside returns the element to the queue instead: see [maxMisfits].
func (q *core) setAside(it *item) {
	e := entry{fate: Bury, reason: it.fault}
	if it.misfit && q.skips.Misfit(it.bucket, it.seq, it.fault) != nil {
		e = entry{fate: Return}
	}
	it.c.decide(it, e)
}

// The method `take` records that a consumer wants to offer an item. It returns false if the claim
// is lost, or if the fate of the item is already decided.
func (c *claimant) take(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held.Err() != nil || it.final != nil {
		return false
	}
	it.place = offered
	return true
}

// The method `withdraw` records that the program has not taken an offered item. It reports whether
// a consumer can offer the item again.
func (c *claimant) withdraw(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	it.place = ahead
	if c.ended && it.final == nil {
		c.enterLocked(it, entry{fate: Return})
	}
	return !c.ended && it.final == nil
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

func (q *core) Receive(ctx context.Context, n int, got func(Item)) error {
	inner, leave := WhileOpen(ctx, q.m)
	defer leave()
	if inner.Err() != nil {
		return cmp.Or(session.CtxErr(ctx), session.ErrClosed)
	}
	room := min(n, maxBatch) // so the sum of all rooms cannot overflow
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
