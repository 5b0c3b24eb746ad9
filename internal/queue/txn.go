package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file applies a program's own operations, and its sends to queues, in one transaction.

// newLoad returns the load of `ops`, as soon as there is room in all queues to which it sends. Each element
// of `ops` is a request for go-zookeeper's Multi, or a *Batch. newLoad fails if the operations need more than
// `limit` bytes. The argument `home` is the path of the queue whose element the transaction removes, or "":
// that queue needs room for one element fewer. While the Session is being closed, newLoad looks for room,
// but does not wait. It also does not wait after `lost` is closed, because the transaction then fails with
// the loss.
func newLoad(outer context.Context, m *session.Manager, ops []any, limit int, lost <-chan struct{}, home string) (x *load, err error) {
	x = &load{m: m}
	size := 0
	for i, op := range ops {
		out, ok := op.(*Batch)
		if !ok {
			x.ops = append(x.ops, op)
			continue
		}
		q, ok := out.To.(*core)
		if !ok || q.m != m {
			return nil, session.Invalid("operation %d sends to a queue of another Session, or of another library's layout", i)
		}
		p, err := q.parcel(outer, *out)
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		size += p.size
		at := slices.IndexFunc(x.sends, func(o *outbox) bool { return o.dir == q.dir })
		if at < 0 {
			at, size = len(x.sends), size+q.overhead()
			x.sends = append(x.sends, &outbox{producer: &q.producer, op: i})
		}
		o := x.sends[at]
		o.need += len(p.data)
		if o.group = append(o.group, p); o.cfg.MaxLen == 0 {
			o.producer = &q.producer // the first with a limit, if there is one
		}
	}
	if len(x.ops) > 0 {
		x.ops, _, err = znodes.CheckOps(m, x.ops)
	}
	if size += znodes.SizeOfOps(m, x.ops); err == nil && size > limit {
		err = fmt.Errorf("a transaction of %d bytes, %d too many: %w", size, size-limit, session.ErrTooLarge)
	}
	if err != nil {
		return nil, err
	}
	ctx, stop := m.Until(session.Finish(outer), lost)
	defer stop()
	for _, o := range x.sends {
		if o.dir == home && o.need <= o.cfg.MaxLen {
			o.need--
		}
		x.leave() // while the load waits for room in one queue, other calls can use the room in another
		err := o.admit(ctx, o.need, nil, false)
		if err != nil && session.IsClosed(lost) && outer.Err() == nil {
			return x, nil
		} else if err != nil {
			return nil, fmt.Errorf("operation %d: %w", o.op, err)
		}
		o.room = o.need
	}
	return x, nil
}

func (it *item) Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	c := it.c
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	x, err := newLoad(ctx, c.q.m, ops, znodes.MaxPacket/2, c.held.Done(), c.q.dir)
	if err != nil {
		return nil, err
	}
	e, err := c.settleNow(ctx, it, Settlement{Fate: Remove}, x)
	if e.with != x { // settled, but not by this load
		x.leave()
		return nil, cmp.Or(err, lock.ErrNotLocked)
	}
	if session.IsClosed(e.done) {
		return x.rs, e.err
	}
	return nil, err
}

// Through applies `ops`, which are requests for go-zookeeper's Multi or of the type *Batch. The function
// `commit` must apply its argument, which has the program's paths, in one transaction. Its responses must
// show which operation the servers have refused. Through returns the response to each operation that is
// not a *Batch. When `lost` is closed, it no longer waits for room. It works while the Session is being
// closed, if `commit` does.
func Through(ctx context.Context, m *session.Manager, lost <-chan struct{}, ops []any, commit func(ops []any) ([]zk.MultiResponse, error)) ([]zk.MultiResponse, error) {
	x, err := newLoad(ctx, m, ops, znodes.MaxPacket, lost, "")
	if err != nil {
		return nil, err
	}
	defer x.leave()
	strip(m, x.ops)
	return x.apply(session.Finish(ctx), func(all []any) ([]zk.MultiResponse, error) {
		strip(m, all[len(x.ops):])
		return commit(all)
	})
}

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
