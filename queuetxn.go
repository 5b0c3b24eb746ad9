package zsync

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A QueueOp is a Send as an operation of a transaction: see [Queue.SendOp].
type QueueOp struct {
	out *queue.Outgoing
	err error
}

// SendOp returns an operation for [Delivery.Txn] that does what Send does with vs.
// Both queues must be of one Session.
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

// Txn removes the element, as [Delivery.Ack] does, in one transaction with ops:
// all or none, exactly once, whatever replies are lost. ops are those of
// [Session.Txn], and what [Queue.SendOp] returns; what they create, write, delete,
// check or send is there when and only when the element is gone. The responses are
// those to ops, one for each that is not a SendOp.
//
// If the servers refuse the transaction nothing is done, then or later, and the
// element stays claimed, as if Txn had not been called. If it is one of ops that they
// refuse the error is that operation's; the responses tell which. If the session ends before the reply nothing is applied later, and the
// errors are those of Ack: lost, or unknown. If ctx ends first, it goes
// on in the background, and Ack tells what came of it; if it was refused by then Ack
// acknowledges the element without it. Where the queue of a SendOp is limited
// ([WithMaxLen]) Txn waits for room first. Without ops it is Ack.
//
// # Errors
//
// Those of Ack and of [Session.Txn]. Together ops may have about half of
// ZooKeeper's limit of 1 MiB. In the layouts of other libraries, in which what was
// received is in the queue no more, it is not possible, and the error is
// [ErrInvalid].
//
// # Cost
//
// A transaction of its own, and one request more for each SendOp.
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
