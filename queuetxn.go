package zsync

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A QueueOp is a Send as an operation of a transaction, see [Queue.SendOp].
type QueueOp struct {
	out *queue.Outgoing
	err error
}

// SendOp returns a Send of vs for [Delivery.Txn] of the same Session.
func (q *Queue[T]) SendOp(vs ...T) QueueOp {
	op := QueueOp{out: new(queue.Outgoing), err: q.misuse()}
	if op.err == nil && len(vs) == 0 {
		op.err = session.Invalid("SendOp without elements")
	}
	if op.err == nil {
		op.out.Engine = q.q
		op.out.Batch, op.err = q.fill(queue.Batch{Priority: queue.Middle}, vs)
	}
	op.err = opError("send", q.path, op.err)
	return op
}

// Txn removes the element, as [Delivery.Ack] does, and applies ops, in one transaction: all or
// nothing, exactly once. ops are operations of [Session.Txn] and results of [Queue.SendOp],
// together about half of 1 MiB. Txn returns a response for each operation except a SendOp. For a
// SendOp to a limited queue ([WithMaxLen]), it waits for room first.
//
// If the servers refuse the transaction, nothing is applied, then or later, and the element stays
// claimed; a refused operation's error is Txn's. Other errors are as for Ack and Session.Txn. If
// ctx ends first, the transaction continues, and Ack returns its result; if the servers have
// refused it by then, Ack removes the element without ops. After Nack or Reject, the element
// returns or is a dead letter if the servers refuse the transaction. In the layouts of other
// libraries, Txn returns [ErrInvalid].
func (d Delivery[T]) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	if d.claim == nil {
		return nil, opError("txn", "", session.Invalid("the Delivery did not come from a Queue"))
	}
	all := make([]any, len(ops))
	for i, op := range ops {
		all[i] = op
		if s, ok := op.(QueueOp); ok {
			switch {
			case s.err != nil:
				return nil, s.err
			case s.out == nil:
				return nil, opError("txn", d.q.path, session.Invalid("operation %d is a QueueOp that did not come from SendOp", i))
			}
			all[i] = s.out
		}
	}
	ctx, end := d.q.tracers().queueing(ctx, "ack", d.q.path, 1)
	rs, err := d.claim.Txn(ctx, all)
	end(err)
	return rs, opError("txn", d.q.path, err)
}
