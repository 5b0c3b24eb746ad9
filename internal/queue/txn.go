package queue

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// This file applies a program's own operations, and its sends to queues, in one transaction: all or
// none. settle.go removes elements, and send.go stores them.

// The type `load` has the operations and sends of a program in one transaction. The transaction can
// also remove an element. Until it is applied, the element stays in hand: a refused load changes
// nothing.
type load struct {
	m     *session.Manager
	ops   []any       // the program's own operations, with paths as the servers know them
	sends []*shipment // one for each queue; each of the program has an outbox of its own, so that it keeps its knowledge of the queue from the first attempt to the last
	size  int         // upper bound, in bytes

	// The fields below are for a load that removes an element.

	at int                // index of its first operation in the transaction
	rs []zk.MultiResponse // responses to the program's operations
}

// newLoad returns the load of `ops`. Each element of `ops` is a request for go-zookeeper's Multi,
// or an *Outgoing. newLoad fails if the operations need more than `limit` bytes.
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
		p, err := q.parcel(ctx, out.Batch)
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		x.send(q, p, i)
	}
	if len(x.ops) > 0 {
		x.ops, _, err = m.CheckOps(x.ops)
	}
	if x.size += m.SizeOfOps(x.ops); err == nil && x.size > limit {
		err = fmt.Errorf("a transaction of %d bytes, %d too many: %w", x.size, x.size-limit, session.ErrTooLarge)
	}
	return x, err
}

// The method `send` adds the parcel `p` to the load. The operation with the index `op` sends `p` to
// `q`.
func (x *load) send(q *core, p *parcel, op int) {
	x.size += p.size
	i := slices.IndexFunc(x.sends, func(s *shipment) bool { return s.o.dir == q.dir })
	if i < 0 {
		i, x.size = len(x.sends), x.size+q.overhead()
		x.sends = append(x.sends, &shipment{o: &outbox{core: q, brief: true}, op: op})
	}
	s := x.sends[i]
	if s.group = append(s.group, p); s.o.cfg.MaxLen == 0 {
		s.o.core = q // the first with a limit, if there is one
	}
}

// awaitRoom waits until there is room in all queues. The argument `home` is the path of the queue
// whose element the transaction removes, or "". That queue needs room for one element fewer.
func (x *load) awaitRoom(ctx context.Context, home string) error {
	for _, s := range x.sends {
		p := &parcel{}
		for _, o := range s.group {
			p.data = append(p.data, o.data...)
		}
		if s.o.dir == home && len(p.data) <= s.o.cfg.MaxLen {
			p.data = p.data[1:]
		}
		if len(p.data) == 0 {
			continue
		}
		if err := s.o.gate.enter(ctx, p, false); err != nil {
			return fmt.Errorf("operation %d: %w", s.op, err)
		}
	}
	return nil
}

// The method `steps` returns the steps of one attempt.
func (x *load) steps(inc *session.Incarnation) (steps []step, err error) {
	for _, op := range x.ops {
		steps = append(steps, step{op, incurable})
	}
	for _, s := range x.sends {
		if err := s.build(inc); err != nil {
			return nil, err
		}
		s.at = len(steps)
		steps = append(steps, s.steps...)
	}
	return steps, nil
}

// The method `answered` is called with the responses to the steps, after the load was applied. It
// returns the responses to the program's operations.
func (x *load) answered(rs []zk.MultiResponse) []zk.MultiResponse {
	for _, s := range x.sends {
		s.learn(rs[s.at : s.at+len(s.steps)])
	}
	return x.m.BareResponses(rs[:len(x.ops)])
}

// The method `add` adds the steps of `x` to a transaction.
func (x *load) add(inc *session.Incarnation, at int, add func(any, func(*session.Incarnation, error) error)) error {
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
	e, err := c.settleNow(ctx, it, entry{fate: Remove, with: x, alone: true})
	switch {
	case e.with != x && err == nil:
		return nil, lock.ErrNotLocked // settled, but not by this load
	case e.with == x && session.IsClosed(e.done):
		return x.rs, e.err
	}
	return nil, err
}

// Through applies `ops`. Each operation is a request for go-zookeeper's Multi, or an *Outgoing.
// Through calls the function `commit`, which must apply its argument in one transaction. The paths
// in that argument are the program's. If the servers refuse the transaction, the responses that
// `commit` returns must show which operation they have refused. Through returns the response to
// each operation that is not an *Outgoing. Through works while the Session is being closed, if `commit`
// does.
func Through(ctx context.Context, m *session.Manager, ops []any, commit func(ops []any) ([]zk.MultiResponse, error)) ([]zk.MultiResponse, error) {
	x, err := newLoad(ctx, m, ops, session.MaxPacket)
	if err == nil {
		err = x.awaitRoom(ctx, "")
	}
	if err != nil {
		return nil, err
	}
	strip(m, x.ops)
	return x.apply(session.Finish(ctx), func(all []any) ([]zk.MultiResponse, error) {
		strip(m, all[len(x.ops):])
		rs, err := commit(all)
		for i := range rs { // the method `answered` expects the servers' paths
			if err == nil && rs[i].String != "" {
				rs[i].String = m.Full(rs[i].String)
			}
		}
		return rs, err
	})
}

// The function `strip` removes the chroot from the paths of `ops`.
func strip(m *session.Manager, ops []any) {
	for _, op := range ops {
		switch op := op.(type) {
		case *zk.CreateRequest:
			op.Path = m.Bare(op.Path)
		case *zk.SetDataRequest:
			op.Path = m.Bare(op.Path)
		case *zk.DeleteRequest:
			op.Path = m.Bare(op.Path)
		case *zk.CheckVersionRequest:
			op.Path = m.Bare(op.Path)
		}
	}
}

// The method `apply` applies the load with the function `commit`. It cures the refusals of steps that
// store elements. It returns the responses to the program's operations.
func (x *load) apply(ctx context.Context, commit func(ops []any) ([]zk.MultiResponse, error)) (rs []zk.MultiResponse, err error) {
	for {
		var steps []step
		err := x.m.During(ctx, func(inc *session.Incarnation) (err error) {
			steps, err = x.steps(inc)
			return err
		})
		if err != nil || len(steps) == 0 {
			return nil, err
		}
		rs, err := commit(opsOf(steps))
		if err == nil {
			return x.answered(rs), nil
		}
		// If the outcome is unknown, the responses show only which operation the last attempt has failed at.
		i := session.FailedOp(rs)
		if i < len(x.ops) || session.OutcomeOf(err) != session.Answered {
			for _, s := range x.sends {
				s.o.forget() // the transaction may have been applied, and then the versions have changed
			}
			return rs[:min(len(rs), len(x.ops))], err
		}
		if err := x.m.During(ctx, func(inc *session.Incarnation) error { return steps[i].cure(inc, rs[i].Error) }); err != nil {
			return nil, err // not the error of the refusal, which would mean that an operation of the program was at fault
		}
	}
}
