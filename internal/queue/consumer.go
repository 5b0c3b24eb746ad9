package queue

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/zsync/zsync/internal/session"
)

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
		c.p = q.join()
	}
	if o.Odd {
		c.faults = make(chan error, 1)
		q.listen(c.faults, true)
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
	c.q.listen(c.faults, false)
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
		if offer, back := c.q.present(c.ctx, it, c.Joining, c.p.notes()); offer {
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
func (q *core) present(ctx context.Context, it *item, o Joining, most int) (offer, back bool) {
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
	inc := it.ledger.inc
	if inc.Connection(ctx) != nil || !q.layout.stands(ctx, it.ledger) {
		return false, true
	}
	if !o.Hand {
		return true, false
	}
	select {
	case <-it.ledger.noting(it, most): // a consumer that dies of the element must be found to have tried
		if it.ledger.noted() {
			it.pump.presented()
			return true, false
		}
	case <-ctx.Done():
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	}
	return false, true
}

// setAside sends an element with a fault to the dead letters. Where nothing
// decodes it goes back instead, see [maxMisfits].
func (q *core) setAside(it *item) {
	f := Bury
	if it.misfit && q.skips.misfit(it.key(), it.fault) != nil {
		f = Return
	}
	it.ledger.settle(it, f)
}

// An item is a Claim.

func (it *item) describe() *Element {
	return &Element{ID: it.key(), Data: it.data, Value: it.value, Fault: it.fault, Sent: it.sent, Attempts: it.attempts()}
}

func (it *item) Element() Element {
	l := it.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	return *it.describe()
}

func (it *item) Data() []byte {
	l := it.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.final != nil {
		return nil
	}
	return it.data
}

func (it *item) Withdrawn() (down, over <-chan struct{}) {
	inc := it.ledger.inc
	return inc.Disconnection(), inc.Ctx.Done()
}

func (it *item) Taken() {
	p := it.pump
	it.ledger.settle(it, Remove)
	p.done()
}

func (it *item) Handed() {
	it.ledger.handed(it)
	it.pump.done()
}

func (it *item) PutBack() {
	p := it.pump
	p.putBack(it) // and the next consumer may have it
	p.done()
}

func (it *item) SetAside() {
	if l := it.ledger; !l.settled(it) {
		l.q.setAside(it)
	}
}

func (it *item) Context() context.Context {
	l := it.ledger
	if !l.inc.Alive() {
		l.end(true) // what was registered may not have run yet
	}
	return l.context(it)
}

func (it *item) Settle(ctx context.Context, s Settlement) error {
	l := it.ledger
	switch s.Fate {
	case Bury:
		if err := l.q.layout.lacks("Reject"); err != nil {
			return err
		}
	case Later:
		if err := l.q.layout.lacks("NackAfter"); err != nil {
			l.settleNow(ctx, it, entry{fate: Return, bump: true})
			return err
		}
	}
	_, err := l.settleNow(ctx, it, entry{fate: s.Fate, bump: !s.Untried, fault: s.Reason, due: dueAt(s.Due)})
	return err
}

func (q *core) Receive(ctx context.Context, n int, got func(Claim)) error {
	q = q.pull
	inner, leave := q.whileOpen(ctx)
	defer leave()
	if inner.Err() != nil {
		return cmp.Or(session.CtxErr(ctx), session.ErrClosed)
	}
	room := min(n, maxBatch) // a sum of them overflows nothing
	p := q.join()
	defer p.leave()
	for has := 0; ; {
		it, err := p.next(inner, room, nil)
		if err != nil {
			return err
		}
		for ; it != nil; it = p.poll() {
			offer, back := q.present(inner, it, Joining{Hand: true}, min(n-has, noteAhead))
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
