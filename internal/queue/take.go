package queue

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file has the operations that need no consumer: Take, Peek, List and Requeue. idle.go waits
// for elements.

// Take claims an element and then removes it. If the element becomes a dead letter, or the claim is
// lost before the removal, Take tries the next.
func (q *core) Take(outer context.Context) (_ *Element, err error) {
	ctx, leave := WhileOpen(outer, q.m)
	defer leave()
	defer func() {
		if err != nil && ctx.Err() != nil && outer.Err() == nil {
			err = session.ErrClosed
		}
	}()
	for {
		it, err := q.seize(ctx)
		if err != nil || it == nil {
			return nil, err
		}
		c := it.c
		if q.check(it); it.fault != nil {
			fate, left := q.setAside(it)
			if err := c.await(ctx, fate); left != nil || err != nil && (c.lost() == nil || isOver(err)) {
				return nil, cmp.Or(left, err) // if it was left, the next search finds the element in its position
			}
			continue
		}
		e := &Element{ID: it.id(), Data: it.data, Value: it.value, Sent: it.sent, Attempts: it.attempts}
		// The removal has a load, so it fails if the servers refuse it. Without the load, the claimant
		// would try a refused removal again, and would remove an element that the caller does not get.
		removal, err := c.settleNow(ctx, it, Settlement{Fate: Remove}, &load{m: q.m})
		known := session.IsClosed(removal.done)
		if known {
			err = removal.err // the result may have come just after the end of ctx
		}
		switch {
		case err == nil, !known, errors.Is(err, session.ErrClosed) && !errors.Is(err, session.ErrLost), session.IsNoNode(err):
			// If it is open whether the servers apply the removal, the caller gets the element: two
			// deliveries are better than none. If they refuse it, the element returns. With NoNode, this
			// client may have removed the element.
			c.decide(it, untried, nil)
			return e, nil
		case c.lost() == nil || isOver(err):
			c.settleNow(ctx, it, untried, nil)
			return nil, err
		}
	}
}

// The method `seize` claims the first free element and reads it, with a pump of its own. If no element
// is free, it returns nil. If ctx ends first, the element returns to its position.
func (q *core) seize(ctx context.Context) (*item, error) {
	p := &pump{q: q, ctx: ctx, waiting: 1, spread: 1, try: true}
	return Detached(ctx, q.m, func() (*item, error) {
		for {
			switch err := q.m.During(ctx, p.session); {
			case err == errDone:
				return p.got, nil
			case !errors.Is(err, session.ErrVanished): // otherwise, the mark was deleted, by its claimant or another client
				return nil, err
			}
		}
	}, func(it *item) { it.c.decide(it, untried, nil) })
}

func (q *core) Peek(ctx context.Context) (*Element, error) {
	return Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (*Element, error) {
		for {
			f, err := q.search(ctx, inc, finding{n: 1, spread: 1, aside: true, watch: true, odd: true})
			if err != nil || len(f.es) == 0 {
				return nil, err
			}
			e := f.es[0]
			ls, err := q.fill(ctx, inc, []Element{{ID: e.id(), Attempts: int(e.tries) + f.lot.board.tried[e.seq], found: e}})
			switch {
			case err != nil:
				return nil, err
			case len(ls) == 0: // a consumer has removed the element since the search
				q.listings.Delete(e.bucket) // the consumer may have left no trace on the board
			case !q.Skips.Unreadable(e.key(), ls[0].Fault):
				return &ls[0], nil
			}
		}
	})
}

func (q *core) Requeue(ctx context.Context, d *Letter) error {
	prio, tag, err := placeOf(d)
	if err != nil {
		return err
	}
	p := &parcel{prio: prio, data: [][]byte{d.Framed}, tags: []string{tag}}
	x := &load{m: q.m, ops: d.Removal, sends: []*outbox{{producer: &q.producer, group: []*parcel{p}}}}
	ctx = session.Finish(ctx)
	_, err = x.apply(ctx, func(ops []any) ([]zk.MultiResponse, error) { return q.Commit(ctx, ops) })
	return err
}

// pageSize is the number of elements that List reads at once.
const pageSize = 64

func (q *core) List(ctx context.Context, s Status) iter.Seq2[Element, error] {
	return func(yield func(Element, error) bool) {
		buckets, err := Synced(ctx, q.Common, q.buckets)
		groups := grouped(buckets, func(b bucket) bucket { return b })
		for i := 0; i < len(groups) && err == nil; i++ {
			var rows []Element
			err = q.m.During(ctx, func(inc *session.Incarnation) error {
				lots, _, err := q.lots(ctx, inc, groups[i], true)
				inOrder(lots)
				rows = nil
				for i := 0; i < len(lots) && err == nil; i++ {
					var some []Element
					some, err = q.rows(ctx, inc, lots[i])
					rows = append(rows, some...)
				}
				return err
			})
			slices.SortStableFunc(rows, func(a, b Element) int { return cmp.Compare(a.found.due, b.found.due) })
			rows = slices.DeleteFunc(rows, func(r Element) bool { return r.State != s })
			for len(rows) > 0 && err == nil {
				page := rows[:min(len(rows), pageSize)]
				rows = rows[len(page):]
				var ls []Element
				err = q.m.During(ctx, func(inc *session.Incarnation) (err error) {
					ls, err = q.fill(ctx, inc, page)
					return err
				})
				for _, l := range ls {
					if !yield(l, nil) {
						return
					}
				}
			}
		}
		if err != nil {
			yield(Element{}, err)
		}
	}
}

// The method `rows` lists the elements of a lot. The Owner of a claimed element is the mark of its claim.
func (q *core) rows(ctx context.Context, inc *session.Incarnation, t *lot) (rows []Element, err error) {
	names, err := inc.Names(ctx, znodes.ChildPath(q.dir, t.name))
	if err != nil {
		return nil, err
	}
	t.elements = parseElements(t.bucket, names)
	tried, now := t.next().tried, time.Now().UnixMilli()
	for _, e := range t.elements {
		r := Element{ID: e.id(), Attempts: int(e.tries) + tried[e.seq], State: Ready, found: e}
		for mark, h := range t.board.lines {
			if h.claimed.has(e.seq) {
				r.State, r.Owner = Claimed, mark
			}
		}
		if e.due > now && r.State == Ready {
			r.State, r.Due = Delayed, time.UnixMilli(e.due)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// The method `fill` reads the elements of `rows`, and leaves out removed elements.
func (q *core) fill(ctx context.Context, inc *session.Incarnation, rows []Element) (ls []Element, err error) {
	var paths, marks []string
	for _, r := range rows {
		paths = append(paths, znodes.ChildPath(q.dir, r.found.key()))
		if r.State == Claimed {
			marks = append(marks, znodes.ChildPath(q.live, r.Owner)) // all rows have the same state, so all of them have a mark, or none has
		}
	}
	nodes, err := znodes.GetVisible(ctx, inc, paths)
	if err != nil {
		return nil, err
	}
	owners, err := znodes.GetSmall(ctx, inc, marks)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if n.Stat == nil {
			continue
		}
		l := rows[i]
		l.Data = n.Data
		if first := l.found.first; first > 0 {
			l.Sent = time.UnixMilli(first)
		} else if !znodes.Concealed(n) {
			l.Sent = time.UnixMilli(n.Stat.Ctime)
		}
		if len(marks) > 0 {
			l.Owner = string(owners[i].Data)
		}
		if l.Fault = zk.ErrNoAuth; !hidden(n) {
			l.Value, l.Fault = q.cfg.Decode(l.Data)
		}
		ls = append(ls, l)
	}
	return ls, nil
}
