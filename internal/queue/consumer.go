package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A consumer is offered what a pump claims.
type consumer struct {
	Joining
	q     *core
	p     *pump // nil if there was nothing to wait for
	ctx   context.Context
	leave func() // ends ctx, and lets Session.Close go on
	ready bool   // somebody waits for an element, and has none yet
}

func (q *core) Join(ctx context.Context, o Joining) Consumer {
	c := &consumer{Joining: o, q: q}
	c.ctx, c.leave = q.whileOpen(ctx)
	if c.ctx.Err() == nil {
		c.p = q.join(0)
	}
	return c
}

func (c *consumer) Leaving() <-chan struct{} { return c.ctx.Done() }

func (c *consumer) Leave() {
	if c.p != nil {
		c.p.leave()
	}
	c.leave()
}

func (c *consumer) Next() (Claim, error) {
	if c.p == nil {
		return nil, session.CtxErr(c.ctx)
	}
	if c.Ready != nil && c.q.cfg.MaxAttempts > 0 && !c.ready {
		select {
		case <-c.Ready:
			c.ready = true
		case <-c.ctx.Done():
		}
	}
	for {
		it, err := c.p.next(c.ctx, 1, false)
		if err != nil {
			return nil, err
		}
		it.pump = c.p
		if offer, back := c.q.present(c.ctx, it, c.Joining, c.p.notes()); offer {
			it.to = c
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
		it.fault = q.check(it)
	}
	if it.fault != nil && !(it.misfit && o.Odd) {
		q.setAside(it)
		return false, false
	}
	// Nothing is offered while there is no connection: the removal of what is
	// taken then could not get through, and if the session is lost others may
	// get the element too.
	inc := it.ledger.inc
	if inc.Connection(ctx) != nil || !it.ledger.stands(ctx) {
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
	if it.misfit && !q.skips.misfit() {
		q.skips.leave(it.key(), it.fault)
		it.ledger.settle(it, Return)
		return
	}
	it.ledger.settle(it, Bury)
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
	if it.to != nil {
		it.to.ready = false
	}
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
	switch foreign := l.q.foreign; {
	case foreign != nil && s.Fate == Bury:
		return foreign.lacks("Reject")
	case foreign != nil && s.Fate == Later:
		l.settleNow(ctx, it, entry{fate: Return, bump: true})
		return foreign.lacks("NackAfter")
	}
	_, err := l.settleNow(ctx, it, entry{fate: s.Fate, bump: s.Fate == Return && !s.Untried, fault: s.Reason, due: dueAt(s.Due), tries: it.attempts() + 1})
	return err
}

// settleNow decides the fate of an item and waits until it is carried out. It
// returns the entry of the fate that was decided.
func (l *ledger) settleNow(ctx context.Context, it *item, model entry) (e *entry, err error) {
	alive := l.inc.Alive()
	if !alive {
		l.end(true) // what was registered may not have run yet
	}
	for {
		var ok bool
		e, ok = l.decide(it, model)
		var loss error
		l.mu.Lock()
		if l.lost || l.void {
			loss = l.lossLocked()
		}
		l.mu.Unlock()
		switch {
		case !ok && loss != nil:
			return e, loss
		case !ok:
			return e, line.ErrNotLocked
		case e.fate == Return && e.bump && loss != nil && !alive:
			return e, loss
		}
		err = l.await(ctx, e)
		if e.with == nil || e.with == model.with || !session.IsClosed(e.done) || l.settled(it) {
			return e, err
		}
		// Another's txn was refused, so nothing is decided.
	}
}

// await waits until a fate is carried out.
func (l *ledger) await(ctx context.Context, e *entry) error {
	var down <-chan struct{}
	if e.fate == Return || e.fate == Later {
		down = l.inc.Disconnection()
	}
	select {
	case <-e.done:
		return e.err
	case <-down:
		return nil
	case <-l.q.m.Closing:
		select {
		case <-e.done:
			return e.err
		default:
		}
		if e.fate == Return {
			return l.inc.EndError(session.ErrClosed) // it goes back, sooner or later
		}
		// It may have been carried out, so it is not told to be lost: that would say
		// that somebody else gets the element.
		return session.ErrClosed
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
}

func (q *core) Receive(ctx context.Context, n int) (claims []Claim, err error) {
	q = q.pull
	inner, leave := q.whileOpen(ctx)
	defer leave()
	if inner.Err() != nil {
		return nil, cmp.Or(session.CtxErr(ctx), session.ErrClosed)
	}
	room := min(n, maxBatch) // a sum of them overflows nothing
	p := q.join(room)
	defer p.leave()
	for counted := true; ; counted = false {
		it, err := p.next(inner, room, counted)
		if err != nil {
			return nil, err
		}
		for ; it != nil; it = p.poll() {
			it.pump, it.to = p, nil
			offer, back := q.present(inner, it, Joining{Hand: true}, min(n-len(claims), noteAhead))
			if back {
				it.PutBack()
				break
			}
			if offer {
				it.Handed()
				claims = append(claims, it)
			} else {
				p.done()
			}
			if len(claims) == n {
				break
			}
		}
		if len(claims) > 0 {
			return claims, nil
		}
	}
}

// newTxn makes a txn of what Claim.Txn was given. With other queues of limited
// length it waits for room there, which is kept until leave.
func (l *ledger) newTxn(ctx context.Context, ops []any) (x *txn, err error) {
	x = &txn{}
	defer func() {
		if err != nil {
			x.leave()
		}
	}()
	m := l.q.m
	var needs needs
	for i, op := range ops {
		out, ok := op.(*Outgoing)
		if !ok {
			x.ops = append(x.ops, op)
			continue
		}
		other, ok := out.Engine.(*core)
		if !ok || other.m != m {
			return x, session.Invalid("operation %d sends to a queue of another Session", i)
		}
		p, err := other.out.parcel(ctx, out.Batch)
		if err != nil {
			return x, fmt.Errorf("operation %d: %w", i, err)
		}
		needs.add(other, out.Batch, i)
		x.send(other, p)
	}
	for _, op := range x.ops {
		x.size += sizeOf(m, op)
	}
	if len(x.ops) > 0 {
		x.ops, _, err = m.CheckOps(x.ops)
	}
	if err == nil && x.size > session.MaxPacket/2 {
		err = fmt.Errorf("a transaction of %d bytes, %d more than fit beside an element's removal: %w", x.size, x.size-session.MaxPacket/2, session.ErrTooLarge)
	}
	if err == nil {
		x.rooms, err = needs.reserve(ctx)
	}
	return x, err
}

// A need is for room in a queue, from the first operation op of a Txn that sends
// there.
type need struct {
	q     *core
	batch Batch
	op    int
}

// needs are those of a Txn. Who has asked for room keeps others from sending, so all
// that goes to a queue is asked for at once, and queues in the order of their paths:
// a Txn waits for no room that it has itself, nor two for each other's.
type needs []need

func (ns *needs) add(q *core, b Batch, op int) {
	i := slices.IndexFunc(*ns, func(n need) bool { return n.q.dir == q.dir })
	if i < 0 {
		b.Data = slices.Clone(b.Data)
		*ns = append(*ns, need{q, b, op})
		return
	}
	n := &(*ns)[i]
	n.batch.Data = append(n.batch.Data, b.Data...)
	if n.q.cfg.MaxLen == 0 {
		n.q = q // the limit is that of a Queue value
	}
}

// reserve returns what gives the room up.
func (ns needs) reserve(ctx context.Context) (rooms []func(), err error) {
	slices.SortFunc(ns, func(a, b need) int { return cmp.Compare(a.q.dir, b.q.dir) })
	for _, n := range ns {
		done, err := n.q.reserve(ctx, n.batch)
		if err != nil {
			return rooms, fmt.Errorf("operation %d: %w", n.op, err)
		}
		rooms = append(rooms, done)
	}
	return rooms, nil
}

// send adds what is sent to q. All that goes to a queue is sent together: each sending
// checks the tail, which that before it would have moved.
func (x *txn) send(q *core, p *parcel) {
	x.size += p.size
	for _, s := range x.sends {
		if s.dir == q.dir {
			s.group = append(s.group, p)
			return
		}
	}
	x.size += q.out.overhead()
	x.sends = append(x.sends, &sending{producer: q.out.producer, group: []*parcel{p}})
}

// leave gives up the room.
func (x *txn) leave() {
	for _, f := range x.rooms {
		f()
	}
}

func sizeOf(m *session.Manager, op any) int {
	switch op := op.(type) {
	case *zk.CreateRequest:
		if op != nil {
			return m.SizeOf(m.Full(op.Path), op.Data)
		}
	case *zk.SetDataRequest:
		if op != nil {
			return m.SizeOf(m.Full(op.Path), op.Data)
		}
	}
	return 512
}

func (it *item) Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	l := it.ledger
	if l.q.foreign != nil {
		return nil, l.q.foreign.lacks("Txn")
	}
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	x, err := l.newTxn(ctx, ops)
	if err != nil {
		return nil, err
	}
	e, err := l.settleNow(ctx, it, entry{fate: Remove, with: x, alone: true})
	switch {
	case e == nil || e.with != x:
		x.leave()
		if err == nil {
			err = line.ErrNotLocked // settled, but not by this
		}
		return nil, err
	case session.IsClosed(e.done):
		x.leave()
		return x.rs, e.err
	}
	l.q.m.Spawn(func() { // it goes on, and the room is its
		defer x.leave()
		select {
		case <-e.done:
		case <-l.q.m.Closing:
		}
	})
	return nil, err
}
