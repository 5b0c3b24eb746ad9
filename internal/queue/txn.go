package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// This file adds a program's own operations to the removal of an element: see
// Claim.Txn.

// A txn is what is done in one transaction with the removal of an element. The
// ledger's journal sees to it that it is applied once. Until it has been, the
// element stays in hand: a txn that is refused changes nothing.
type txn struct {
	ops   []any              // the caller's; their paths are the server's
	sends []*sending         // to other queues
	size  int                // from above
	rooms []func()           // give up the room for them
	at    int                // where ops begin in the transaction
	rs    []zk.MultiResponse // of ops
}

// leave gives up the room.
func (x *txn) leave() {
	for _, f := range x.rooms {
		f()
	}
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

// prepare has the sends of e's txn, if it has any, prepared for one attempt.
func (p *posting) prepare(inc *session.Incarnation) error {
	for _, e := range p.es {
		if e.with == nil {
			continue
		}
		for _, s := range e.with.sends {
			if err := s.prepare(inc); err != nil {
				if !errors.Is(err, session.ErrEnded) {
					p.culprit = e
				}
				return err
			}
		}
	}
	return nil
}

// txn adds what else is done in the transaction that removes e's element.
func (p *posting) txn(e *entry) {
	x := e.with
	x.at = len(p.steps)
	for i, op := range x.ops {
		p.add(e, op, func(_ *session.Incarnation, err error) error {
			x.rs = make([]zk.MultiResponse, len(x.ops))
			x.rs[i].Error = err
			return err
		})
	}
	for _, s := range x.sends {
		for _, st := range s.g.steps {
			p.add(e, st.op, st.cure)
		}
	}
}

// answered is told that a txn was applied, with the responses to the whole
// transaction, if its reply came.
func (x *txn) answered(j *journal, rs []zk.MultiResponse) {
	if rs != nil {
		x.rs = j.m.BareResponses(rs[x.at : x.at+len(x.ops)])
	} else {
		x.rs = j.m.BareResponses(j.last.Recall(context.Background(), x.ops, j.zxid))
	}
}

// refuseTxnLocked tells that the servers have refused a txn. The element is in
// hand as before; if the session was lost meanwhile it goes back now.
func (l *ledger) refuseTxnLocked(e *entry, err error) {
	if e.err = err; e.gone {
		e.err = l.taken()
	}
	e.item.final = nil
	close(e.done)
	if l.ended {
		l.giveBackLocked(e.item.batch)
	}
}
