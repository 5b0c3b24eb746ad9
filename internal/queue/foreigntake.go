package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

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

// read reads the znode of an element, and returns the elements in it.
// What is not in its frame is one, with a fault. The item is nil, without an error, if
// the servers do not let us read it: then it is passed over for a while.
func (q foreign) read(ctx context.Context, inc *session.Incarnation, e element) (it *item, all [][]byte, err error) {
	data, stat, err := inc.Get(ctx, session.ChildPath(q.dir, e.name))
	if q.skips.unreadable(e.key(), err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	it = &item{element: e}
	it.read(data, stat)
	if all, it.fault = q.open(data); it.fault != nil {
		all = [][]byte{data}
	}
	if len(all) > 0 {
		it.data = all[0]
	}
	return it, all, nil
}

// first reads the first element. Unless that is aside, it must not share its znode with
// others.
func (q foreign) first(ctx context.Context, inc *session.Incarnation, _ int, aside bool) (*item, []any, error) {
	for synced := false; ; {
		names, err := inc.Names(ctx, q.dir)
		if err != nil {
			return nil, nil, err
		}
		changed := false
		var left *element // the first that did not decode
		for _, e := range q.elements(names) {
			if q.skips.skipped(e.key()) {
				if left == nil && q.skips.left(e.key()) {
					left = &e
				}
				continue
			}
			it, all, err := q.read(ctx, inc, e)
			switch {
			case session.IsNoNode(err):
				changed = true
				continue
			case err != nil:
				return nil, nil, err
			case it == nil:
				continue
			case len(all) == 1, len(all) > 1 && aside:
				return it, nil, nil
			case aside:
				continue // a znode without elements
			}
			if err := q.split(ctx, inc, it, all); err != nil {
				return nil, nil, err
			}
			changed = true
			break
		}
		switch {
		case changed:
		case synced && left != nil: // there is nothing else: that is told, again
			it, all, err := q.read(ctx, inc, *left)
			if len(all) != 1 {
				it = nil
			}
			if session.IsNoNode(err) {
				err = nil
			}
			return it, nil, err
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
// it is gone, and so does a second attempt.
func (q foreign) split(ctx context.Context, inc *session.Incarnation, it *item, all [][]byte) error {
	path := session.ChildPath(q.dir, it.name)
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
		ops[0] = &zk.DeleteRequest{Path: path, Version: it.version}
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

// serve watches the children of the queue, and claims by deleting.
func (q foreign) serve(p *pump, inc *session.Incarnation, l *ledger) error {
	ctx := p.ctx
	var es []element
	var since uint64                 // of the order, when es were listed
	refused := make(map[string]bool) // names of those that can be neither taken nor buried
	claimed := 0
	for {
		if err := p.awaitRoom(inc, patienceForRoom); err != nil {
			return err
		}
		if len(es) == 0 {
			var err error
			if since, err = q.order.await(ctx, inc, patienceForOrder); err != nil {
				return err
			}
			w := inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: q.dir})
			names, _, err := inc.Children(ctx, q.dir)
			if session.IsNoNode(err) {
				inc.Watches.Leave(w)
				if _, err := inc.Create(ctx, q.dir, nil); err != nil {
					return err
				}
				continue
			}
			again, full := q.skips.next() // before they are looked at: what comes due in between is not missed
			es = slices.DeleteFunc(q.elements(names), func(e element) bool { return full || refused[e.name] || q.skips.skipped(e.key()) })
			if err == nil && len(es) == 0 {
				q.m.Waiters.Add(1)
				err = inc.AwaitAny(ctx, []*session.Watch{w}, again)
				q.m.Waiters.Add(-1)
			}
			inc.Watches.Leave(w)
			if err != nil {
				return err
			}
			if len(es) == 0 {
				continue
			}
		}
		room := p.room()
		n := min(len(es), room)
		if n == 0 {
			continue
		}
		p.setClaiming(true)
		if since != q.order.now() { // what goes back may come before es
			p.setClaiming(false)
			es = nil
			continue
		}
		items, split, err := q.seize(ctx, inc, l, es[:n], refused)
		if es = es[n:]; split {
			es = nil // list them anew
		}
		claimed += len(items)
		full := p.fill(items, len(items), n == room)
		p.setClaiming(false)
		if err != nil {
			return err
		}
		if (full || claimed >= q.cfg.Prefetch) && q.othersWait(ctx, inc) {
			return nil
		}
	}
}

// seize reads and deletes elements, and buries those with a fault; what others
// were quicker to delete is left out. It ends at a znode that it has split.
// What the servers refuse is noted, so that it does not hold up what follows.
func (q foreign) seize(ctx context.Context, inc *session.Incarnation, l *ledger, es []element, refused map[string]bool) (items []*item, split bool, err error) {
	found := make([]*item, len(es))
	all := make([][][]byte, len(es))
	err = session.Parallel(len(es), func(i int) (err error) {
		if found[i], all[i], err = q.read(ctx, inc, es[i]); session.IsNoNode(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	for i, it := range found {
		switch {
		case it == nil:
			continue
		case len(all[i]) != 1:
			split = true
			err = q.split(ctx, inc, it, all[i])
		default:
			if q.check(it); it.fault == nil {
				items = append(items, it)
				continue
			}
			if it.misfit && q.skips.misfit(it.key(), it.fault) != nil {
				continue
			}
			err = q.bury(ctx, inc, it)
		}
		switch {
		case err == nil, outrun(err):
		case ctx.Err() == nil && session.OutcomeOf(err) == session.Answered, errors.Is(err, session.ErrTooLarge):
			refused[it.name] = true
			q.complain(err)
		default:
			return nil, split, err
		}
		if split {
			break
		}
	}
	items, err = q.deleteAll(l, items)
	return items, split, err
}

// bury moves an element to the dead letters, in one transaction.
func (q foreign) bury(ctx context.Context, inc *session.Incarnation, it *item) error {
	letter, err := q.letterNow(ctx, inc, it)
	if err != nil {
		return err
	}
	_, err = q.m.CommitAcrossSessions(ctx, q.receipts, append([]any{&zk.DeleteRequest{Path: session.ChildPath(q.dir, it.name), Version: it.version}}, letter...))
	if err == nil {
		q.report(it.key(), it.fault)
	}
	return err
}

// deleteAll deletes elements in one transaction, and puts them into the ledger
// as ours; those that others were quicker to delete are left out.
func (q foreign) deleteAll(l *ledger, items []*item) ([]*item, error) {
	if len(items) == 0 {
		return nil, nil
	}
	// The ledger is not over, nor the Session closed in good order, before we
	// know what is ours, and what is not taken has been put back.
	b := l.newBatch(slices.Clone(items))
	if b == nil {
		return nil, l.ending()
	}
	defer func() { l.claimed(b, items) }()
	for len(items) > 0 {
		ops := make([]any, len(items))
		for i, it := range items {
			ops[i] = &zk.DeleteRequest{Path: session.ChildPath(q.dir, it.name), Version: it.version}
		}
		// Once it is begun the outcome is waited for, whatever becomes of the
		// consumers: what is deleted must be given to them, or put back.
		rs, err := q.m.CommitAcrossSessions(context.Background(), q.receipts, ops)
		if err == nil {
			break
		}
		i := session.FailedOp(rs)
		if i < 0 || !outrun(rs[i].Error) {
			items = nil
			return nil, err
		}
		items = slices.Delete(items, i, i+1)
	}
	for _, it := range items {
		it.version = 0 // attempts are not counted
	}
	return items, nil
}

// stands is true while the session lives: what was taken is nobody else's any more.
func (foreign) stands(_ context.Context, l *ledger) bool { return l.inc.Alive() }

// post puts back what is returned. What was taken is gone already.
func (q foreign) post(p *posting) error {
	var returned []*entry
	var items []*item
	for _, e := range p.es {
		if e.fate == Return {
			returned, items = append(returned, e), append(items, e.item)
		}
	}
	i, err := q.restoreAll(items)
	if p.culprit = nil; i >= 0 {
		p.culprit = returned[i]
	}
	if err != nil && session.OutcomeOf(err) != session.Answered { // the Session is closed
		q.m.Log.Error("zsync: elements may be lost, as they could not be put back", "path", q.path, "elements", len(items), "err", err)
	}
	return err
}

func (foreign) bytes(e *entry) int { return len(e.item.stored) }

func (q foreign) restore(it *item) error {
	_, err := q.restoreAll([]*item{it})
	return err
}

// restoreAll puts elements that nobody has got back to their places, exactly once, but
// for one that is too large to carry a receipt. If the servers refuse that because of one
// of them it returns its index, and otherwise -1.
func (q foreign) restoreAll(items []*item) (culprit int, err error) {
	ctx := context.Background() // ends with the Session
	there := make(map[int]bool) // those that are back
	for {
		var ops []any
		var owners []int
		for i, it := range items {
			op := &zk.CreateRequest{Path: session.ChildPath(q.dir, it.key()), Data: it.stored, Acl: q.m.Config.ACL}
			switch {
			case there[i]:
			case oversized(q.m, q.receipts, op): // another library's
				if err := q.create(ctx, op.Path, op.Data); err != nil {
					return i, err
				}
				there[i] = true
			default:
				ops, owners = append(ops, op), append(owners, i)
			}
		}
		if len(ops) == 0 {
			return -1, nil
		}
		rs, err := q.m.CommitAcrossSessions(ctx, q.receipts, ops)
		i := session.FailedOp(rs)
		if err == nil || i < 0 || i >= len(owners) {
			return -1, err
		}
		switch culprit = owners[i]; {
		case session.IsNodeExists(err):
			there[culprit] = true
		case session.IsNoNode(err):
			// The queue was empty, and was deleted.
			if err := q.create(ctx, q.dir, nil); err != nil {
				return culprit, err
			}
		default:
			return culprit, err
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
	if err := q.create(ctx, q.dir, nil); err != nil { // others make it a container
		return err
	}
	remove, _ := q.removal(d)
	create := &zk.CreateRequest{Path: session.ChildPath(q.dir, q.prefix+d.Priority), Data: d.Framed, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	_, err := q.m.CommitAcrossSessions(ctx, q.receipts, append(remove, create))
	return err
}
