package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	sends []*shipment        // to other queues
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
	x.rooms = nil
}

// A shipment is what a txn sends to one queue, all together: each transaction of a
// posted checks the tail, which that of another before it would have moved. What it knows
// of the queue is read for the first attempt and kept, by an outbox of its own: a Send
// checks versions, so what is stale is refused, and forgotten.
type shipment struct {
	posted
	q  *core // the first that is limited, if one is: the limit is that of a Queue value
	op int   // the first operation that sends there
	at int   // where its steps begin in the transaction
}

// send adds what operation op sends to q.
func (x *txn) send(q *core, p *parcel, op int) {
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

// reservePatience is how long a Txn that has room in one queue waits for room in others.
const reservePatience = 500 * time.Millisecond

// reserve waits for room, in all queues. Who has room keeps others from sending, so all that
// goes to a queue is asked for at once, and whoever has room in one waits but for a while in
// another: those before it there may wait for the consumer of that queue, which may have to
// send to the first. Then it leaves all, waits for the other with nothing in its hands, and asks
// again for the rest. It has no patience then with queues whose paths come before that: of two
// that keep each other waiting the one that asks in the order of the paths goes on. It grows, so
// long lines, or slow servers, keep nobody for ever.
func (x *txn) reserve(ctx context.Context, home string) error {
	slices.SortFunc(x.sends, func(a, b *shipment) int { return cmp.Compare(a.q.dir, b.q.dir) })
	var first *shipment // where it has waited in vain
	for patience := reservePatience; ; patience = min(2*patience, time.Minute) {
		full, err := x.enter(ctx, home, first, patience)
		if err == nil {
			return nil
		}
		if x.leave(); full == nil {
			return err
		}
		first = full
	}
}

// enter asks for room in first, if there is one, and then in the others, with so much patience
// from the second on. If there was none then full tells where. What goes to home takes the
// place of the element that goes with it.
func (x *txn) enter(ctx context.Context, home string, first *shipment, patience time.Duration) (full *shipment, err error) {
	all := x.sends
	if first != nil {
		all = append([]*shipment{first}, slices.DeleteFunc(slices.Clone(all), func(s *shipment) bool { return s == first })...)
	}
	limited := ctx
	for _, s := range all {
		n, limit := 0, s.q.gate.maxLen
		for _, p := range s.group {
			n += len(p.data)
		}
		if s.q.dir == home && n <= limit {
			n--
		}
		if n == 0 || limit == 0 {
			continue
		}
		done, err := s.q.gate.enter(limited, n, first != nil && s.q.dir < first.q.dir)
		switch {
		case err == nil:
			x.rooms = append(x.rooms, done)
		case errors.Is(err, ErrFull), context.Cause(limited) == errNoRoom:
			return s, err
		default:
			return nil, fmt.Errorf("operation %d: %w", s.op, err)
		}
		if limited == ctx {
			var cancel context.CancelFunc
			limited, cancel = context.WithTimeoutCause(ctx, patience, errNoRoom)
			defer cancel()
		}
	}
	return nil, nil
}

// newTxn makes a txn of what Claim.Txn was given. With other queues of limited
// length it waits for room there, which is kept until leave.
func (l *ledger) newTxn(ctx context.Context, ops []any) (x *txn, err error) {
	x = &txn{}
	m := l.q.m
	for i, op := range ops {
		out, ok := op.(*Outgoing)
		if !ok {
			x.ops = append(x.ops, op)
			continue
		}
		to, ok := out.Engine.(layout)
		if !ok || to.common().m != m {
			return nil, session.Invalid("operation %d sends to a queue of another Session", i)
		}
		other := to.common()
		p, err := other.out.parcel(ctx, out.Batch)
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		x.send(other, p, i)
	}
	if len(x.ops) > 0 {
		x.ops, _, err = m.CheckOps(x.ops)
	}
	for _, op := range x.ops {
		x.size += sizeOf(m, op)
	}
	if err == nil && x.size > session.MaxPacket/2 {
		err = fmt.Errorf("a transaction of %d bytes, %d more than fit beside an element's removal: %w", x.size, x.size-session.MaxPacket/2, session.ErrTooLarge)
	}
	if err == nil {
		err = x.reserve(ctx, l.q.dir)
	}
	return x, err
}

func sizeOf(m *session.Manager, op any) int {
	switch op := op.(type) {
	case *zk.CreateRequest:
		return m.SizeOf(op.Path, op.Data)
	case *zk.SetDataRequest:
		return m.SizeOf(op.Path, op.Data)
	case *zk.DeleteRequest:
		return m.SizeOf(op.Path, nil)
	case *zk.CheckVersionRequest:
		return m.SizeOf(op.Path, nil)
	}
	return 512
}

func (it *item) Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	l := it.ledger
	if err := l.q.layout.lacks("Txn"); err != nil {
		return nil, err
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
		return nil, cmp.Or(err, line.ErrNotLocked) // settled, but not by this
	case session.IsClosed(e.done):
		x.leave()
		return x.rs, e.err
	}
	l.q.m.Spawn(func() { // it goes on, and the room is its
		defer x.leave()
		select {
		case <-e.done:
		case <-l.q.m.Over:
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
			if _, err := s.build(inc); err != nil {
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
		s.at = len(p.steps)
		for _, st := range s.steps {
			p.add(e, st.op, st.cure)
		}
	}
}

// answered is told that a txn was applied, with the responses to the whole
// transaction, if its reply came.
func (x *txn) answered(j *journal, rs []zk.MultiResponse) {
	if rs != nil {
		for _, s := range x.sends {
			s.announce(j.last, rs[s.at:s.at+len(s.steps)])
		}
		rs = rs[x.at : x.at+len(x.ops)]
	} else {
		rs = j.last.Recall(context.Background(), x.ops, j.zxid)
	}
	x.rs = j.m.BareResponses(rs)
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
		l.giveBackLocked(e.item)
	}
}
