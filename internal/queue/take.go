package queue

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// pluck removes the first free element. One with a fault goes to the dead
// letters and is returned as missing.
func (q *core) pluck(ctx context.Context) (*item, error) {
	var taken *item
	if _, err := q.order.await(ctx, q.m, 0); err != nil {
		return nil, err
	}
	err := q.m.During(ctx, func(inc *session.Incarnation) error {
		beaten, was := -1, ""
		for {
			it, t, err := q.first(ctx, inc, min(1<<(3*min(max(beaten, 0), 2)), maxSpread), false)
			if err != nil || it == nil {
				return err
			}
			// What is still there was refused for another's sake. One that is gone may have
			// been cancelled; when the second is as well, others take what is first.
			if was != "" && was != it.key() {
				beaten++
			}
			was = it.key()
			ops := []any{&zk.DeleteRequest{Path: session.ChildPath(q.dir, it.key()), Version: it.version}}
			if t != nil {
				ops = append(ops, t.claiming(q.dir, it.element)...) // nobody else has claimed it then
			}
			if keyOf(it.tag) != "" {
				ops = append(ops, &zk.SetDataRequest{Path: q.dir, Version: -1}) // the bell: the next with its key may go
			}
			fault := q.check(it)
			if it.misfit && !q.skips.misfit() {
				return q.skips.leave(it.key(), fault)
			}
			if it.missing = fault != nil; it.missing {
				letter, err := q.letterNow(ctx, inc, it, fault)
				if err != nil {
					return err
				}
				ops = append(ops, letter...)
			}
			err = q.remove(ctx, it, ops)
			if outrun(err) {
				// Somebody else was quicker. If others consume we make way for them at once.
				others, err := q.othersConsume(ctx, inc)
				if err != nil {
					return err
				}
				if others {
					beaten, was = max(beaten, 0)+1, ""
				}
				continue
			}
			if err != nil {
				return err
			}
			if it.missing {
				q.report(it.key(), fault)
			}
			taken = it
			return nil
		}
	})
	return taken, err
}

// first returns the first free element, and its bucket, which another library's
// layout has not. The element is nil if there is none. With spread it may be the
// first of one of so many buckets. With aside it writes nothing, and does not wait
// for what the dead had claimed.
func (q *core) first(ctx context.Context, inc *session.Incarnation, spread int, aside bool) (*item, *lot, error) {
	if q.foreign != nil {
		it, err := q.firstForeign(ctx, inc, true)
		return it, nil, err
	}
	if !aside {
		if err := q.under.look(ctx, inc); err != nil {
			return nil, nil, err
		}
	}
	missed := false
	for synced := false; ; {
		f, err := q.search(ctx, inc, maxPost, spread, aside)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range f.es {
			data, stat, err := inc.Get(ctx, session.ChildPath(q.dir, e.key()))
			if session.IsNoNode(err) {
				// Somebody consumes them as we look: what follows goes next. A single one
				// may have been cancelled.
				if missed && !aside {
					spread = min(spread+1, maxSpread)
				}
				missed = true
				break
			}
			if q.skips.unreadable(e.key(), err) {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			it := &item{element: e}
			it.read(data, stat)
			return it, f.lot, nil
		}
		if len(f.es) > 0 {
			continue // consumed in the meantime
		}
		if !synced {
			// This server may lag. There is nothing only if the leader says so.
			synced = true
			if err := inc.Sync(ctx, q.dir); err != nil {
				return nil, nil, err
			}
			continue
		}
		if aside || f.taken == 0 {
			return nil, nil, nil
		}
		next, buried, err := q.under.visit(ctx, inc)
		if err != nil {
			return nil, nil, err
		}
		if next.IsZero() && !buried {
			return nil, nil, nil
		}
		if err := session.AwaitIn(ctx, inc, time.After(time.Until(next))); err != nil {
			return nil, nil, err
		}
	}
}

// remove applies ops, which remove it, exactly once. If ctx ends before the
// outcome is known the removal is undone, and Session.Close waits for that.
func (q *core) remove(ctx context.Context, it *item, ops []any) error {
	leaving, stay := q.m.BeforeClose()
	if session.IsClosed(leaving) {
		stay()
		return session.ErrClosed
	}
	var state atomic.Int32 // 1: the caller has left, and the order waits; 2: the outcome has come
	done := make(chan error, 1)
	q.m.Spawn(func() {
		defer stay()
		rs, err := q.m.CommitAcrossSessions(context.Background(), q.receipts, ops)
		if err == nil {
			q.traceTaken(it, rs)
		}
		if state.CompareAndSwap(0, 2) {
			done <- err
			return
		}
		tried := sync.OnceFunc(q.order.end)
		defer tried()
		if err == nil && !it.missing {
			if err := q.putBack(it, leaving, tried); err != nil {
				q.m.Log.Error("zsync: cannot put an element back", "path", q.cfg.Path, "element", it.key(), "err", err)
			}
		}
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		q.order.begin(true) // the next TryRecv must not get what comes after it
		if state.CompareAndSwap(0, 1) {
			return session.CtxErr(ctx)
		}
		q.order.end()
		return <-done
	}
}

// traceTaken tells that it was removed by who had not claimed it.
func (q *core) traceTaken(it *item, rs []zk.MultiResponse) {
	if q.m.Trace == nil || q.foreign != nil {
		return
	}
	l := trace.Line{Event: trace.Take, Kind: trace.Element, Path: q.m.Bare(q.dir), Elements: []string{it.key()}, Fate: trace.Removed, Zxid: zxidOf(rs)}
	if it.missing {
		l.Fate = trace.Buried
	}
	q.m.Trace.Line(l)
}

// putBack puts an element that was removed, and that nobody has got, back to its
// place, exactly once. It exists nowhere else, so what the servers refuse is tried
// again, until the Session is being closed: then once more. An outcome that is in doubt
// is no answer, see [session.OutcomeOf]: the element might be there twice. ErrUnprotected
// says that nothing was sent. tried is called after the first attempt.
func (q *core) putBack(it *item, leaving <-chan struct{}, tried func()) error {
	last := false
	for wait := retryAfter; ; wait = min(2*wait, time.Minute) {
		err := q.putBackNow(it)
		tried()
		if err == nil || last || session.OutcomeOf(err) != session.Answered && !errors.Is(err, session.ErrUnprotected) {
			return err
		}
		if wait == retryAfter {
			q.m.Log.Warn("zsync: an element that was taken for nobody is put back later", "path", q.cfg.Path, "element", it.key(), "err", err)
		}
		select {
		case <-time.After(wait):
		case <-leaving: // if both are ready it is tried again all the same
			last = true
		}
	}
}

// putBackNow is one attempt of putBack.
//
// In our own layout no name comes again, so it becomes one of the delayed that are
// due, which go ahead of the others: its time is that at which it was sent, so
// several keep their order.
func (q *core) putBackNow(it *item) error {
	if q.foreign != nil {
		_, err := q.restore([]*item{it})
		return err
	}
	ctx := context.Background() // ends with the Session
	due := it.due
	if due == 0 { // now at the latest, by our own clock too
		due = max(min(it.sent.UnixMilli(), time.Now().UnixMilli()), 1)
	}
	for {
		var dir string
		err := q.m.During(ctx, func(inc *session.Incarnation) error {
			if _, err := inc.Create(ctx, q.dir, nil); err != nil {
				return err
			}
			stat, err := inc.Exists(ctx, q.dir)
			if err != nil {
				return err
			}
			if stat == nil {
				return zk.ErrNoNode // deleted since
			}
			dir = session.ChildPath(q.dir, delayedName(it.prio, stat.Czxid))
			if _, err = inc.Create(ctx, dir, nil); err == nil && keyOf(it.tag) != "" {
				_, err = inc.Create(ctx, session.ChildPath(q.dir, keysName), nil)
			}
			return err
		})
		if err != nil {
			return err
		}
		ops := []any{
			&zk.CreateRequest{Path: session.ChildPath(dir, laterName(due, int32(it.attempts()), it.sent.UnixMilli(), it.tag)), Data: it.data, Acl: q.m.Config.ACL, Flags: zk.FlagSequence},
			&zk.SetDataRequest{Path: q.dir, Version: -1}, // the bell
		}
		if keyOf(it.tag) != "" {
			ops = append(ops, &zk.SetDataRequest{Path: session.ChildPath(q.dir, keysName), Version: -1})
		}
		_, err = q.m.CommitAcrossSessions(ctx, q.receipts, ops)
		if !session.IsNoNode(err) {
			return err
		}
	}
}

// restore puts elements of another library's layout, that nobody has got, back to their places, exactly once,
// but for one that is too large to carry a receipt. If the servers refuse that because of one of them it
// returns its index, and otherwise -1.
func (q *core) restore(items []*item) (culprit int, err error) {
	ctx := context.Background() // ends with the Session
	there := make(map[int]bool) // those that are back
	for {
		var ops []any
		var owners []int
		for i, it := range items {
			op := &zk.CreateRequest{Path: session.ChildPath(q.dir, it.key()), Data: it.stored(), Acl: q.m.Config.ACL}
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

func (q *core) length(ctx context.Context, inc *session.Incarnation) (int, error) {
	names, err := inc.Names(ctx, q.dir)
	if err != nil {
		return 0, err
	}
	if q.foreign != nil {
		return len(q.foreign.elements(names)), nil
	}
	buckets := parseBuckets(names)
	paths := make([]string, len(buckets))
	for i, b := range buckets {
		paths[i] = session.ChildPath(q.dir, b.name)
	}
	nodes, err := inc.GetVisible(ctx, paths)
	n := 0
	for _, node := range nodes {
		if node.Stat != nil {
			n += int(node.Stat.NumChildren)
		}
	}
	return n, err
}

// Clear goes from the end of the queue to its front, and comes to what was given back
// for later at last. So it frees nothing on its way: an element that waits for its key
// waits for one that is removed after it, or that was claimed. It looks but once what
// there is: it does not run after producers.
func (q *core) Clear(ctx context.Context) (n int, err error) {
	if q.foreign != nil {
		return q.clearForeign(ctx)
	}
	lots, err := q.survey(ctx)
	if err != nil {
		return 0, err
	}
	for _, back := range []bool{false, true} {
		for _, t := range slices.Backward(lots) {
			for more := !t.exhausted() && (t.delayed || !back); more; {
				var removed int
				removed, more, err = q.clear(ctx, t, back)
				if n += removed; err != nil {
					return n, err
				}
			}
		}
	}
	if len(lots) > 1 {
		_, err = q.survey(ctx) // what is empty now goes
	}
	return n, err
}

// survey reads all buckets, and deletes those that are empty and get no more.
func (q *core) survey(ctx context.Context) (lots []*lot, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		lots = nil
		if err := inc.Sync(ctx, q.dir); err != nil {
			return err
		}
		names, err := inc.Names(ctx, q.dir)
		if err != nil {
			return err
		}
		buckets := parseBuckets(names)
		if lots, err = q.lots(ctx, inc, buckets); err == nil {
			q.deleteEmpty(inc, lots, buckets)
		}
		return err
	})
	return lots, err
}

// clear removes the last elements of a bucket that nobody has claimed, as many as fit
// into a transaction, of those that were in it when it was read as was. back says
// whether these are those that were given back for later, or all others.
func (q *core) clear(ctx context.Context, was *lot, back bool) (n int, more bool, err error) {
	var ops []any
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		ops, n, more = nil, 0, false
		if err := inc.Sync(ctx, q.dir); err != nil {
			return err
		}
		lots, err := q.lots(ctx, inc, []bucket{was.bucket})
		if err != nil || len(lots) == 0 {
			return err
		}
		t := lots[0]
		if err := q.list(ctx, inc, t); err != nil {
			return err
		}
		es := slices.DeleteFunc(slices.Clone(t.elements), func(e element) bool {
			return t.claimed.has(e.seq) || e.seq > was.last || (e.first > 0) != back
		})
		if len(es) == 0 {
			return nil
		}
		ops = q.deletions(func(yield func(name string) bool) {
			for _, e := range slices.Backward(es) {
				if !yield(e.key()) {
					return
				}
			}
		})
		n = len(ops)
		more, es = n < len(es), es[len(es)-n:]
		ops = append(ops, t.claiming(q.dir, es...)...)
		if slices.ContainsFunc(es, func(e element) bool { return keyOf(e.tag) != "" }) {
			// The bell: what comes while this runs may have waited for its key.
			ops = append(ops, &zk.SetDataRequest{Path: q.dir, Version: -1})
		}
		return nil
	})
	if err != nil || ops == nil {
		return 0, false, err
	}
	_, err = q.m.CommitAcrossSessions(ctx, q.receipts, ops)
	switch {
	case err == nil:
		return n, more, nil
	case outrun(err):
		return 0, true, nil // somebody else was quicker
	}
	return 0, false, err
}

// deletions returns what deletes the first of these names, as many as one transaction
// holds, however long the path is.
func (q *core) deletions(names iter.Seq[string]) (ops []any) {
	size := 0
	for name := range names {
		path := session.ChildPath(q.dir, name)
		if size += q.m.SizeOf(path, nil); len(ops) == maxPost || len(ops) > 0 && size > session.MaxPacket/2 {
			break
		}
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	return ops
}

func (q *core) stats(ctx context.Context, inc *session.Incarnation) (st Stats, err error) {
	if err := inc.Sync(ctx, q.dir); err != nil {
		return st, err
	}
	if st.Dead, err = q.countDead(ctx, inc); err != nil {
		return st, err
	}
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	var fronts []element
	if q.foreign != nil {
		es := q.foreign.elements(names)
		if st.Ready = len(es); st.Ready > 0 {
			fronts = es[:1]
		}
	} else {
		claimed := make(map[string]spans)
		if fronts, err = q.countBuckets(ctx, inc, parseBuckets(names), &st, claimed); err != nil {
			return st, err
		}
		if st.Holders, err = q.holders(ctx, inc, claimed); err != nil {
			return st, err
		}
	}
	for _, e := range fronts {
		stat, err := inc.Exists(ctx, session.ChildPath(q.dir, e.key()))
		if err != nil {
			return st, err
		}
		if stat == nil {
			continue // consumed in the meantime
		}
		if q.foreign == nil { // in others the version says nothing
			st.Attempts = max(st.Attempts, int(e.tries)+int(stat.Version))
		}
		if t := time.UnixMilli(stat.Ctime); st.Oldest.IsZero() || t.Before(st.Oldest) {
			st.Oldest = t
		}
	}
	return st, nil
}

// countBuckets counts what is in buckets, and returns the first free element of
// each priority. It notes which of those that are there are claimed.
func (q *core) countBuckets(ctx context.Context, inc *session.Incarnation, buckets []bucket, st *Stats, claimed map[string]spans) ([]element, error) {
	lots, err := q.lots(ctx, inc, buckets)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	now := time.Now().UnixMilli()
	fronts := make(map[int]element)
	err = session.Parallel(len(lots), func(i int) error {
		t := lots[i]
		if t.children == 0 {
			return nil
		}
		if err := q.list(ctx, inc, t); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		var taken []int32
		for _, e := range t.elements {
			switch {
			case t.claimed.has(e.seq):
				st.Claimed++
				taken = append(taken, e.seq)
			case e.due > now:
				st.Delayed++
				st.Attempts = max(st.Attempts, int(e.tries))
			default:
				st.Ready++
				st.Attempts = max(st.Attempts, int(e.tries))
				if f, ok := fronts[e.prio]; e.due == 0 && (!ok || e.before(f)) {
					fronts[e.prio] = e
				}
			}
		}
		claimed[t.name] = spansOf(taken)
		return nil
	})
	return slices.Collect(maps.Values(fronts)), err
}

// holders tells who has claimed how many of those that are claimed.
func (q *core) holders(ctx context.Context, inc *session.Incarnation, claimed map[string]spans) (hs []Holder, err error) {
	names, err := inc.Names(ctx, q.claims)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if len(name) == len(noGUID) {
			paths = append(paths, session.ChildPath(q.claims, name), session.ChildPath(q.live, name))
		}
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(nodes); i += 2 {
		h := Holder{Owner: string(nodes[i+1].Data)}
		for bucket, had := range parseRecord(nodes[i].Data).holdings {
			for _, x := range claimed[bucket] {
				for n := x.a; n <= x.b; n++ {
					if had.owned.has(n) { // it may name what has gone already
						h.Claimed++
					}
				}
			}
		}
		if h.Claimed > 0 {
			hs = append(hs, h)
		}
	}
	slices.SortFunc(hs, func(a, b Holder) int { return b.Claimed - a.Claimed })
	return hs, nil
}

func (q *core) Cancel(ctx context.Context, id string) (canceled bool, err error) {
	for {
		var ops []any
		err := q.m.During(ctx, func(inc *session.Incarnation) (err error) {
			if err = inc.Sync(ctx, q.dir); err == nil {
				ops, err = q.cancelling(ctx, inc, id)
			}
			return err
		})
		if err != nil || ops == nil {
			return false, err
		}
		_, err = q.m.CommitAcrossSessions(ctx, q.receipts, ops)
		if err == nil || !outrun(err) {
			return err == nil, err
		}
	}
}

// cancelling returns operations that remove the element with an ID, if it is there
// and nobody has claimed it.
func (q *core) cancelling(ctx context.Context, inc *session.Incarnation, id string) ([]any, error) {
	tag := tagOf("", id)
	data, _, err := inc.Get(ctx, q.idPath(tag[1:]))
	if session.IsNoNode(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, ok := parseBucket(parseNote(data).bucket)
	if !ok {
		return nil, nil
	}
	names, err := inc.Names(ctx, q.dir)
	if err != nil {
		return nil, err
	}
	// It is where it was put, or, given back for later, among what waits. Who gives
	// it back so has it in hand; so if it is in neither, looked at in this order, it
	// was claimed in between, or is gone.
	buckets := slices.DeleteFunc(parseBuckets(names), func(o bucket) bool { return o.name != b.name && (o.prio != b.prio || !o.delayed) })
	slices.Reverse(buckets)
	lots, err := q.lots(ctx, inc, buckets)
	if err != nil {
		return nil, err
	}
	for _, t := range lots {
		if err := q.list(ctx, inc, t); err != nil {
			return nil, err
		}
		for _, e := range t.elements {
			if strings.HasSuffix(e.tag, tag) && !t.claimed.has(e.seq) {
				return append([]any{
					&zk.DeleteRequest{Path: session.ChildPath(q.dir, e.key()), Version: -1},
					&zk.SetDataRequest{Path: q.dir, Version: -1}, // the bell: what waits for its key may go
				}, t.claiming(q.dir, e)...), nil
			}
		}
	}
	return nil, nil
}
