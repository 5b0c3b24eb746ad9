package zsync

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// SendOp returns a Send of vs as an operation of [Session.Txn], [Delivery.Txn] or the Txn of a
// lock, an [Election] or a [Semaphore]. The elements are stored together with the other writes, all
// or none, exactly once. q must belong to the transaction's Session. SendOp itself sends nothing.
//
// The transaction has no response for a SendOp. If q is limited ([WithMaxLen]), the transaction
// first waits for room. A SendOp can cost three more requests.
func (q *Queue[T]) SendOp(vs ...T) QueueOp {
	op := QueueOp{out: new(queue.Batch), err: q.misuse()}
	if op.err == nil && len(vs) == 0 {
		op.err = session.Invalid("SendOp without elements")
	}
	if op.err == nil {
		*op.out, op.err = q.fill(queue.Batch{Priority: q.middle(), To: q.q}, vs)
	}
	op.err = opError("send", q.path, op.err)
	return op
}

// Txn removes the element, as [Delivery.Ack] does, and applies ops, in one transaction: all or
// nothing, exactly once. ops are operations of [Session.Txn] and results of [Queue.SendOp],
// together about half of 1 MiB. Txn returns responses as Session.Txn does. If the queue of a SendOp
// is limited ([WithMaxLen]), Txn waits for room first.
//
// If the servers refuse the transaction, nothing is ever applied, and the element stays claimed.
// Txn returns the error of the refused operation. Other errors are as for Ack and Session.Txn. If
// ctx ends first, the transaction continues, and a later Ack returns its result; if it was refused,
// that Ack removes the element without ops, and a later Nack or Reject takes effect.
func (d Delivery[T]) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	if d.claim == nil {
		return nil, opError("txn", "", session.Invalid("the Delivery did not come from a Queue"))
	}
	all, bare, err := outgoing(ops)
	if err != nil {
		return nil, opError("txn", d.q.path, err)
	}
	ctx, end := d.q.queueing(ctx, "ack", 1)
	rs, err := d.claim.Txn(ctx, all)
	end(1, err)
	return rs, opError("txn", d.q.path, znodes.Refused(bare, rs, err))
}
