package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/lock"
)

// An operation is an Op that has begun. The Tracer of its Session sees its beginning and its end,
// and the Observer sees how a wait for a hold ended.
type operation struct {
	s     *Session
	op    Op
	began time.Time
	ctx   context.Context // the result of the tracer's Start; nil without a tracer
}

// The method `begin` reports the start of op to the tracer. The caller calls `end` once. The returned
// context is the tracer's, or ctx. An op without a name is a part of another, and not reported.
func (s *Session) begin(ctx context.Context, op Op) (context.Context, operation) {
	o := operation{s: s, op: op, began: time.Now()}
	if s != nil && s.tracer != nil && op.Name != "" {
		o.op.Owner, o.op.Session = s.m.Config.Owner, s.ID()
		ctx = s.tracer.Start(ctx, o.op)
		o.ctx = ctx
	}
	return ctx, o
}

// The method `end` reports the end of o.
func (o *operation) end(err error) {
	if o.op.Kind == OpAcquire {
		o.s.m.Waited(o.op.Name, o.op.Path, o.began, err)
	}
	o.endSpan(err)
}

// The method `endSpan` reports the end of o to the tracer alone.
func (o *operation) endSpan(err error) {
	if o.ctx == nil {
		return
	}
	if o.op.Kind != OpHold { // after a loss, the Session may have another ZooKeeper session
		o.op.Session = o.s.ID()
	}
	o.s.tracer.End(o.ctx, o.op, err)
}

// The method `got` reports that the wait o has ended with the grant g, and that a hold begins, until g
// ends. The returned context is for the work with the hold.
func (o *operation) got(ctx context.Context, g *lock.Grant) context.Context {
	if o.ctx != nil {
		o.op.Hold = g.Name()
	}
	if o.end(nil); o.ctx == nil {
		return ctx
	}
	held := o.op
	held.Kind = OpHold
	ctx, hold := o.s.begin(ctx, held)
	g.Follow(hold.end)
	return ctx
}

// The method `waiting` calls f, the wait of a Barrier, WaitGroup or Cond, and reports it to the
// tracer. f gets the context that the tracer makes from ctx. If ctx has ended the wait, the error
// says how long the wait was.
func (m *made) waiting(ctx context.Context, primitive string, f func(ctx context.Context) error) error {
	traced, o := m.s.begin(ctx, Op{Kind: OpWait, Primitive: primitive, Name: "wait", Path: m.path})
	var err error
	if m.misuse() != nil {
		err = f(traced) // Cond.Wait unlocks its lock even then
	} else {
		err = waited(ctx, m.s.m, o.began, m.s.m.WhileOpen(traced, f))
	}
	o.end(err)
	return opError("wait", m.path, err)
}

// The method `queueing` reports the start of an operation with n elements of a queue to the tracer.
// The caller calls `end` with the number of elements that it has sent, received or settled.
func (m *made) queueing(ctx context.Context, name string, n int) (_ context.Context, end func(n int, err error)) {
	ctx, o := m.s.begin(ctx, Op{Kind: OpQueue, Primitive: "queue", Name: name, Path: m.path, Count: n})
	return ctx, func(n int, err error) { o.op.Count = n; o.end(err) }
}
