package queue

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
)

// A foreign is the Engine of another library's layout. There is nothing to claim: what is deleted
// is one's own. So none of that is traced, nor noted while it is in hand.
type foreign struct {
	*core
	*format
	called string // by a program
}

// NewForeign is New for the layout of another library: SimpleDistributedQueue,
// DistributedQueue, both of Curator, or kazoo.
func NewForeign(m *session.Manager, cfg Config, called string) Engine {
	return newEngine(m, cfg, func(q *core) layout {
		q.unframe = formats[called].open
		return foreign{q, formats[called], called}
	})
}

func (q foreign) lacks(feature string) error {
	return session.Invalid("%s needs zsync's own layout, not %s", feature, q.called)
}

func (q foreign) store(g *posted, _ *session.Incarnation) error {
	for _, p := range g.group {
		prio := p.prio
		if q.cfg.Priorities == 1 {
			prio = -1
		}
		for _, data := range p.data {
			g.create(session.ChildPath(q.dir, q.name(prio)), q.frame(data), when(session.IsNoNode, g.o.makeQueue))
		}
	}
	return nil
}

func (q foreign) length(_ context.Context, _ *session.Incarnation, names []string) (int, error) {
	return len(q.elements(names)), nil
}

func (q foreign) count(ctx context.Context, inc *session.Incarnation, names []string, st *Stats) error {
	es := q.elements(names)
	st.Ready = len(es)
	err := q.countFronts(ctx, inc, es[:min(len(es), 1)], st)
	st.Attempts = 0 // the version says nothing
	return err
}

// read reads the znode of an element, with the elements in it. What is not in its frame is
// one, with a fault. The item is nil, without an error, if the servers do not let us read it:
// then it is passed over for a while.
func (q foreign) read(ctx context.Context, inc *session.Incarnation, e element) (*item, error) {
	data, stat, err := inc.Get(ctx, session.ChildPath(q.dir, e.name))
	if q.skips.unreadable(e.key(), err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	it := &item{element: e}
	it.read(data, stat)
	if it.inside, it.fault = q.open(data); it.fault != nil {
		it.inside = [][]byte{data}
	}
	if len(it.inside) > 0 {
		it.data = it.inside[0]
	}
	return it, nil
}

// first reads the first element. Unless that is aside, it must not share its znode with
// others.
func (q foreign) first(ctx context.Context, inc *session.Incarnation, _ int, aside bool) (*item, []any, error) {
	for synced := false; ; {
		names, err := inc.Names(ctx, q.dir)
		if err != nil {
			return nil, nil, err
		}
		var es, left []element // left: those that did not decode; if there is nothing else that is told, again
		for _, e := range q.elements(names) {
			switch {
			case !q.skips.skipped(e.key()):
				es = append(es, e)
			case synced && q.skips.left(e.key()):
				left = append(left, e)
			}
		}
		changed := false
		for _, e := range append(es, left...) {
			it, err := q.read(ctx, inc, e)
			switch {
			case session.IsNoNode(err):
				changed = true
				continue
			case err != nil:
				return nil, nil, err
			case it == nil:
				continue
			case len(it.inside) == 1, len(it.inside) > 1 && aside:
				return it, nil, nil
			case aside:
				continue // a znode without elements
			}
			if err := q.split(ctx, inc, it); err != nil {
				return nil, nil, err
			}
			changed = true
			break
		}
		switch {
		case changed:
		case synced:
			return nil, nil, nil
		default: // there is nothing only if the leader says so
			synced = true
			if err := inc.Sync(ctx, q.dir); err != nil {
				return nil, nil, err
			}
		}
	}
}

// split gives each element of a znode that holds several, as Curator's putMulti
// makes them, or none, a znode of its own: <name>#<i>. Everybody's order is by
// name, so these are served in their places. If they do not fit into one
// transaction the last are taken out first, which leaves the others their i.
//
// Whoever has read the znode before finds that its version has changed, or that
// it is gone, and so does a second attempt. No name is used again for other data: its version
// would begin again, and another library could delete an element that it has not read.
func (q foreign) split(ctx context.Context, inc *session.Incarnation, it *item) error {
	path, all := session.ChildPath(q.dir, it.name), it.inside
	size, n := q.m.SizeOf(path, it.stored), len(all)
	ops := []any{nil}
	for ; n > 0 && len(ops) <= maxPost; n-- {
		part := fmt.Sprintf("%s#%05d", path, n-1)
		if size += q.m.SizeOf(part, nil); size > session.MaxPacket {
			break
		}
		ops = append(ops, &zk.CreateRequest{Path: part, Data: q.frame(all[n-1]), Acl: q.m.Config.ACL})
	}
	switch {
	case n == 0:
		ops[0] = q.deletion(it)
	case n < len(all):
		ops[0] = &zk.SetDataRequest{Path: path, Data: q.frame(all[:n]...), Version: it.version}
	default:
		return fmt.Errorf("%d elements in the znode %s, which cannot be taken apart: %w", n, q.m.Bare(path), session.ErrTooLarge)
	}
	_, err := inc.Multi(ctx, ops...)
	if outrun(err) {
		return nil
	}
	return err
}

// serve claims elements while it is our turn.
func (q foreign) serve(p *pump, inc *session.Incarnation, l *ledger) error {
	var es []element
	var since uint64                 // of the order, when es were listed
	refused := make(map[string]bool) // names of those that can be neither taken nor buried
	for claimed := 0; ; {
		if err := p.awaitRoom(inc, patienceForRoom); err != nil {
			return err
		}
		if len(es) == 0 {
			var err error
			if since, err = q.order.await(p.ctx, inc, patienceForOrder); err != nil {
				return err
			}
			if es, err = q.await(p.ctx, inc, refused); err != nil {
				return err
			}
			continue
		}
		room := min(p.room(), maxBatch)
		n := min(len(es), room)
		if n == 0 {
			continue
		}
		p.setClaiming(true)
		items, split, err := q.seize(p.ctx, inc, l, es[:n], since, refused)
		if es = es[n:]; split || since != q.order.now() { // what goes back may come before es
			es = nil
		}
		claimed += len(items)
		full := p.fill(items, len(items), n == room)
		p.setClaiming(false)
		if err != nil {
			return err
		}
		if (full || claimed >= q.cfg.Prefetch) && q.othersWait(p.ctx, inc) {
			return nil
		}
	}
}

// await lists the elements, but for those that are passed over. If there are none it waits
// until that may have changed.
func (q foreign) await(ctx context.Context, inc *session.Incarnation, refused map[string]bool) ([]element, error) {
	w := inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: q.dir})
	defer inc.Watches.Leave(w)
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		_, err = inc.Create(ctx, q.dir, []byte(marks.Dir))
		return nil, err
	}
	again, full := q.skips.next() // before they are looked at: what comes due in between is not missed
	es := slices.DeleteFunc(q.elements(names), func(e element) bool { return full || refused[e.name] || q.skips.skipped(e.key()) })
	if err != nil || len(es) > 0 {
		return es, err
	}
	q.sweeper.sweep(inc, 0)
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	return nil, inc.AwaitAny(ctx, []*session.Watch{w}, earlier(q.sweeper.next(), again))
}

// seize reads elements and claims those that can be taken, when the order is still at since;
// what others were quicker to delete is left out. It ends at a znode that it has split.
// What the servers refuse is noted, so that it does not hold up what follows.
func (q foreign) seize(ctx context.Context, inc *session.Incarnation, l *ledger, es []element, since uint64, refused map[string]bool) (items []*item, split bool, err error) {
	found := make([]*item, len(es))
	err = session.Parallel(len(es), func(i int) (err error) {
		if found[i], err = q.read(ctx, inc, es[i]); session.IsNoNode(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	for _, it := range found {
		if it == nil {
			continue
		}
		ready, err := q.prepare(ctx, inc, it)
		switch {
		case ready:
			items = append(items, it)
		case err == nil, outrun(err):
		case ctx.Err() == nil && refusal(err):
			refused[it.name] = true
			q.complain(err)
		default:
			return nil, split, err
		}
		if split = len(it.inside) != 1; split {
			break
		}
	}
	if len(items) == 0 {
		return nil, split, nil
	}
	b, err := l.claimAll(&batch{items: items, since: since})
	if b == nil {
		return nil, split, err
	}
	return b.items, split, nil
}

// prepare reports whether an item can be taken. If not, it was split or buried, or is left.
func (q foreign) prepare(ctx context.Context, inc *session.Incarnation, it *item) (ready bool, err error) {
	if len(it.inside) != 1 {
		return false, q.split(ctx, inc, it)
	}
	if q.check(it); it.fault == nil {
		return true, nil
	}
	if it.misfit && q.skips.misfit(it.key(), it.fault) != nil {
		return false, nil
	}
	letter, err := q.letterNow(ctx, inc, it)
	if err != nil {
		return false, err
	}
	_, err = q.commit(ctx, append([]any{q.deletion(it)}, letter...))
	if err == nil {
		q.report(it.key(), it.fault)
	}
	return false, err
}

// stands is true while the session lives: what was taken is nobody else's any more.
func (foreign) stands(_ context.Context, l *ledger) bool { return l.inc.Alive() }

func (q foreign) post(p *posting) error {
	err := q.transfer(p)
	if err != nil && session.OutcomeOf(err) != session.Answered { // the Session is closed
		q.m.Log.Error("zsync: elements may be lost, as they could not be put back", "path", q.path, "elements", len(p.es), "err", err)
	}
	return err
}

func (foreign) bytes(e *entry) int { return len(e.item.stored) }

func (q foreign) restore(it *item) error {
	return q.transfer(&posting{es: []*entry{{item: it, fate: Return}}, absent: make(map[string]bool)})
}

// transfer deletes what is to be claimed, but for what others were quicker to delete, and
// puts back to its place what is returned and nobody has got. It does so in one transaction,
// exactly once, but for what is too large to carry a receipt. What was taken is gone already.
//
// Once it is begun the outcome is waited for, whatever becomes of the consumers: what is
// deleted must be given to them, or put back.
func (q foreign) transfer(p *posting) error {
	ctx := session.Finishing // ends with the Session
	for {
		p.steps, p.culprit, p.made = nil, nil, nil
		if p.forgo(); p.want != nil {
			for _, it := range p.want.items {
				if op := q.deletion(it); !p.absent[op.Path] {
					p.made = append(p.made, it)
					p.add(nil, op, p.without(op.Path, outrun))
				}
			}
		}
		for _, e := range p.es {
			op := &zk.CreateRequest{Path: session.ChildPath(q.dir, e.item.key()), Data: e.item.stored, Acl: q.m.Config.ACL}
			switch {
			case e.fate != Return || p.absent[op.Path]:
			case oversized(q.m, q.receipts, op): // another library's
				if err := q.create(ctx, op.Path, op.Data); err != nil {
					p.culprit = e
					return err
				}
				p.absent[op.Path] = true
			default:
				p.add(e, op, func(inc *session.Incarnation, err error) error {
					if session.IsNoNode(err) { // the queue was empty, and was deleted
						return q.create(ctx, q.dir, []byte(marks.Dir))
					}
					return p.without(op.Path, session.IsNodeExists)(inc, err)
				})
			}
		}
		var ops []any
		for _, s := range p.steps {
			ops = append(ops, s.op)
		}
		if ops == nil {
			return nil
		}
		rs, err := q.commit(ctx, ops)
		if err == nil {
			for _, it := range p.made {
				it.version = 0 // attempts are not counted
			}
			return nil
		}
		if i := session.FailedOp(rs); i >= 0 && i < len(p.steps) {
			err = p.steps[i].cure(nil, err)
		}
		if err != nil {
			return err
		}
	}
}

func (q foreign) Clear(ctx context.Context) (n int, err error) {
	var there map[string]bool // the znodes that were there when it began
	for {
		found := 0
		done, err := q.removeFree(ctx, func(ctx context.Context, inc *session.Incarnation) ([]any, error) {
			names, err := inc.Names(ctx, q.dir)
			if err != nil {
				return nil, err
			}
			es := q.elements(names)
			if there == nil {
				there = make(map[string]bool, len(es))
				for _, e := range es {
					there[whole(e.name)] = true
				}
			}
			ops := q.deletions(slices.DeleteFunc(es, func(e element) bool { return !there[whole(e.name)] }))
			found = len(ops)
			return ops, nil
		})
		if !done {
			return n, err
		}
		n += found
	}
}

// class is what stands in the name of a znode, before its number.
func (foreign) class(e element) string { return e.class }

func (q foreign) Requeue(ctx context.Context, d *Letter) error {
	if err := q.create(ctx, q.dir, []byte(marks.Dir)); err != nil { // others make it a container
		return err
	}
	remove, _ := q.removal(d)
	create := &zk.CreateRequest{Path: session.ChildPath(q.dir, q.prefix+d.Priority), Data: d.Framed, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	_, err := q.commit(ctx, append(remove, create))
	return err
}
