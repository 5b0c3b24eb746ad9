package queue

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// This file adds a program's own operations, and what it sends, to one transaction.

// A txn is what is done in one transaction with the removal of an element. Until it has been
// applied the element stays in hand: a txn that is refused changes nothing.
type txn struct {
	*load
	at int                // where the operations begin in the transaction
	rs []zk.MultiResponse // of the program's operations
}

// A load is the operations of a transaction, some of which send to queues.
type load struct {
	m     *session.Manager
	ops   []any       // the program's own; their paths are the server's
	sends []*shipment // to queues
	size  int         // from above
}

// A shipment is what a load sends to one queue, all together: each transaction of a
// posted checks the tail, which that of another before it would have moved. What it knows
// of the queue is read for the first attempt and kept, by an outbox of its own: a Send
// checks versions, so what is stale is refused, and forgotten.
type shipment struct {
	posted
	q  *core // the first that is limited, if one is: the limit is that of a Queue value
	op int   // the first operation that sends there
	at int   // where its steps begin in the load
}

// newLoad makes a load of ops, those of go-zookeeper's Multi and *Outgoing, which may take so
// many bytes.
func newLoad(ctx context.Context, m *session.Manager, ops []any, limit int) (x *load, err error) {
	x = &load{m: m}
	for i, op := range ops {
		out, ok := op.(*Outgoing)
		if !ok {
			x.ops = append(x.ops, op)
			continue
		}
		q, ok := out.Engine.(*core)
		if !ok || q.m != m {
			return nil, session.Invalid("operation %d sends to a queue of another Session, or of another library's layout", i)
		}
		p, err := q.out.parcel(ctx, out.Batch)
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		x.send(q, p, i)
	}
	if len(x.ops) > 0 {
		x.ops, _, err = m.CheckOps(x.ops)
	}
	for _, op := range x.ops {
		x.size += sizeOf(m, op)
	}
	if err == nil && x.size > limit {
		err = fmt.Errorf("a transaction of %d bytes, %d more than fit: %w", x.size, x.size-limit, session.ErrTooLarge)
	}
	return x, err
}

// send adds what operation op sends to q.
func (x *load) send(q *core, p *parcel, op int) {
	x.size += p.size
	i := slices.IndexFunc(x.sends, func(s *shipment) bool { return s.q.dir == q.dir })
	if i < 0 {
		i, x.size = len(x.sends), x.size+q.out.overhead()
		x.sends = append(x.sends, &shipment{posted: posted{o: &outbox{producer: q.out.producer, brief: true}}, q: q, op: op})
	}
	s := x.sends[i]
	if s.group = append(s.group, p); s.q.cfg.MaxLen == 0 {
		s.q = q
	}
}

// awaitRoom waits until there is room in all queues. One element of the queue at home goes with
// the transaction.
func (x *load) awaitRoom(ctx context.Context, home string) error {
	for _, s := range x.sends {
		p := &parcel{}
		for _, o := range s.group {
			p.data = append(p.data, o.data...)
		}
		if s.q.dir == home && len(p.data) <= s.q.cfg.MaxLen {
			p.data = p.data[1:]
		}
		if len(p.data) == 0 {
			continue
		}
		if err := s.q.gate.enter(ctx, p, false); err != nil {
			return fmt.Errorf("operation %d: %w", s.op, err)
		}
	}
	return nil
}

// steps makes the steps of one attempt.
func (x *load) steps(inc *session.Incarnation) (steps []step, err error) {
	for _, op := range x.ops {
		steps = append(steps, step{op, incurable})
	}
	for _, s := range x.sends {
		if err := s.build(inc); err != nil {
			return nil, err
		}
		s.at = len(steps)
		steps = append(steps, s.posted.steps...)
	}
	return steps, nil
}

// answered is told that the load was applied, with the responses to its steps.
// It returns those to the program's operations.
func (x *load) answered(rs []zk.MultiResponse) []zk.MultiResponse {
	for _, s := range x.sends {
		s.learn(rs[s.at : s.at+len(s.posted.steps)])
	}
	return x.m.BareResponses(rs[:len(x.ops)])
}

// add adds the steps of x to a transaction.
func (x *txn) add(inc *session.Incarnation, at int, add func(any, func(*session.Incarnation, error) error)) error {
	steps, err := x.steps(inc)
	x.at, x.rs = at, nil
	for i, s := range steps {
		cure := s.cure
		if i < len(x.ops) {
			cure = func(_ *session.Incarnation, err error) error {
				x.rs = make([]zk.MultiResponse, len(x.ops))
				x.rs[i].Error = err
				return err
			}
		}
		add(s.op, cure)
	}
	return err
}

func (it *item) Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	c := it.c
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	x, err := newLoad(ctx, c.q.m, ops, session.MaxPacket/2)
	if err == nil {
		err = x.awaitRoom(ctx, c.q.dir)
	}
	if err != nil {
		return nil, err
	}
	t := &txn{load: x}
	e, err := c.settleNow(ctx, it, entry{fate: Remove, with: t, alone: true})
	switch {
	case e.with != t && err == nil:
		return nil, line.ErrNotLocked // settled, but not by this
	case e.with == t && session.IsClosed(e.done):
		return t.rs, e.err
	}
	return nil, err
}

// Through applies ops, those of go-zookeeper's Multi and *Outgoing, with commit, which applies
// operations in one transaction, and whose responses tell which was refused. What commit is given
// has the paths of the program. The responses are those to ops that are no *Outgoing.
func Through(ctx context.Context, m *session.Manager, ops []any, commit func(ops []any) ([]zk.MultiResponse, error)) ([]zk.MultiResponse, error) {
	x, err := newLoad(ctx, m, ops, session.MaxPacket)
	if err == nil {
		err = x.awaitRoom(ctx, "")
	}
	if err != nil {
		return nil, err
	}
	for {
		var steps []step
		err := m.During(ctx, func(inc *session.Incarnation) (err error) {
			steps, err = x.steps(inc)
			return err
		})
		if err != nil {
			return nil, err
		}
		rs, err := commit(bare(m, opsOf(steps)))
		if err == nil {
			return x.answered(rs), nil
		}
		i := session.FailedOp(rs)
		if i < len(x.ops) {
			return rs[:min(len(rs), len(x.ops))], err
		}
		for _, s := range x.sends {
			s.o.forget()
		}
		if e := m.During(ctx, func(inc *session.Incarnation) error { return steps[i].cure(inc, rs[i].Error) }); e != nil {
			return nil, err
		}
	}
}

// bare returns operations with the paths of the program.
func bare(m *session.Manager, ops []any) []any {
	out := make([]any, len(ops))
	for i, op := range ops {
		switch op := op.(type) {
		case *zk.CreateRequest:
			c := *op
			c.Path = m.Bare(op.Path)
			out[i] = &c
		case *zk.SetDataRequest:
			out[i] = &zk.SetDataRequest{Path: m.Bare(op.Path), Data: op.Data, Version: op.Version}
		case *zk.DeleteRequest:
			out[i] = &zk.DeleteRequest{Path: m.Bare(op.Path), Version: op.Version}
		case *zk.CheckVersionRequest:
			out[i] = &zk.CheckVersionRequest{Path: m.Bare(op.Path), Version: op.Version}
		}
	}
	return out
}
