package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

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

// A sending stores a parcel as a part of somebody else's transaction. What it
// knows of the queue is read for each attempt: a Send checks versions, so what is
// stale is refused.
type sending struct {
	q *core
	p *parcel
	g *posted // of the present attempt
}

// prepare returns the operations. They are good for one attempt.
func (s *sending) prepare(inc *session.Incarnation) ([]any, error) {
	s.g = &posted{o: &outbox{q: s.q}, group: []*parcel{s.p}}
	if err := s.g.o.locate(inc, s.g.group); err != nil {
		return nil, err
	}
	s.g.assemble()
	return s.g.ops, nil
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
		p, err := other.parcel(ctx, out.Batch)
		if err != nil {
			return x, fmt.Errorf("operation %d: %w", i, err)
		}
		done, err := other.reserve(ctx, out.Batch)
		if err != nil {
			return x, fmt.Errorf("operation %d: %w", i, err)
		}
		x.rooms = append(x.rooms, done)
		x.sends, x.size = append(x.sends, &sending{q: other, p: p}), x.size+p.size+other.out.overhead()
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
	return x, err
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
		return nil, session.Invalid("Txn needs zsync's own layout")
	}
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	x, err := l.newTxn(ctx, ops)
	if err != nil {
		return nil, err
	}
	e, err := l.settleNow(ctx, it, entry{fate: fateRemove, with: x, alone: true})
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
			if _, err := s.prepare(inc); err != nil {
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
func (p *posting) txn(e *entry, path string) {
	x := e.with
	p.add(e, &zk.DeleteRequest{Path: path, Version: -1}, func(_ *session.Incarnation, err error) (bool, error) {
		e.gone = session.IsNoNode(err) // by somebody who deletes what is not his
		return false, nil
	})
	x.at = len(p.ops)
	for i, op := range x.ops {
		p.add(e, op, func(_ *session.Incarnation, err error) (bool, error) {
			x.rs = make([]zk.MultiResponse, len(x.ops))
			x.rs[i].Error = err
			return false, nil
		})
	}
	for _, s := range x.sends {
		for i, op := range s.g.ops {
			p.add(e, op, func(inc *session.Incarnation, err error) (bool, error) { return s.g.refused(inc, i, err) })
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
		e.err = l.loss()
	}
	e.item.final = nil
	close(e.done)
	if l.ended {
		l.giveBackLocked(e.item.batch)
	}
}
