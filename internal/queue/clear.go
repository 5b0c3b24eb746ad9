package queue

import (
	"context"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file removes elements that nobody has claimed and nobody is to receive: all of
// them, or the one that was sent with an ID.

// Clear goes from the end of the queue to its front, and comes to what was given back
// for later at last. So it frees nothing on its way: an element that waits for its key
// waits for one that is removed after it, or that was claimed. It looks but once what
// there is: it does not run after producers.
func (q *core) Clear(ctx context.Context) (n int, err error) {
	lots, err := synced(ctx, q.site, q.survey)
	if err != nil {
		return 0, err
	}
	for _, back := range []bool{false, true} { // at last those that were given back for later
		for _, was := range slices.Backward(lots) {
			so := func(e element) bool { return e.seq <= was.last && (e.first > 0) == back }
			for more := !was.exhausted() && (was.delayed || !back); more; {
				some := 0
				_, err := q.removeFree(ctx, func(ctx context.Context, inc *session.Incarnation) (ops []any, err error) {
					ops, some, more, err = q.takeLast(ctx, inc, []bucket{was.bucket}, so)
					return ops, err
				})
				if err != nil {
					return n, err
				}
				n += some
			}
		}
	}
	if len(lots) > 1 {
		_, err = synced(ctx, q.site, q.survey) // what is empty now goes
	}
	return n, err
}

// survey reads all buckets, and deletes those that are empty and get no more.
func (q *core) survey(ctx context.Context, inc *session.Incarnation) ([]*lot, error) {
	names, err := inc.Names(ctx, q.dir)
	if err != nil {
		return nil, err
	}
	buckets := parseBuckets(names)
	lots, err := q.lots(ctx, inc, buckets)
	if err == nil {
		_, err = q.bury(ctx, inc, lots, false, false)
	}
	q.deleteEmpty(inc, lots, buckets)
	return lots, err
}

// removeFree applies what build returns, exactly once, and builds it anew while somebody
// else is quicker. It reports whether there was anything.
func (q *core) removeFree(ctx context.Context, build func(ctx context.Context, inc *session.Incarnation) ([]any, error)) (done bool, err error) {
	for {
		ops, err := synced(ctx, q.site, build)
		if err != nil || len(ops) == 0 {
			return false, err
		}
		if _, err = q.commit(ctx, ops); !outrun(err) {
			return err == nil, err
		}
	}
}

// takeLast returns operations that remove elements which are so and which nobody has
// claimed, of the first of these buckets that has any: the last n, as many as one
// transaction holds, and whether there are more.
func (q *core) takeLast(ctx context.Context, inc *session.Incarnation, buckets []bucket, so func(element) bool) (ops []any, n int, more bool, err error) {
	lots, err := q.lots(ctx, inc, buckets)
	if err == nil {
		_, err = q.bury(ctx, inc, lots, false, false)
	}
	if err != nil {
		return nil, 0, false, err
	}
	for _, t := range lots {
		if err := q.list(ctx, inc, t); err != nil {
			return nil, 0, false, err
		}
		taken := t.board.taken()
		es := slices.DeleteFunc(slices.Clone(t.elements), func(e element) bool { return taken.has(e.seq) || !so(e) })
		if len(es) == 0 {
			continue
		}
		slices.Reverse(es)
		ops = q.deletions(es)
		n, more = len(ops), len(ops) < len(es)
		es = es[:n]
		next := t.next()
		next.forget(spansOf(numbers(es)))
		ops = append(ops, &zk.SetDataRequest{Path: session.ChildPath(q.dir, t.name), Data: next.marshal(), Version: t.version})
		ops = append(ops, t.exclusion(q.dir)...)
		if slices.ContainsFunc(es, func(e element) bool { return keyOf(e.tag) != "" }) {
			// The bell: what waits for its key, or comes while Clear runs, may go.
			ops = append(ops, ring(q.dir))
		}
		return ops, n, more, nil
	}
	return nil, 0, false, nil
}

// deletions returns what deletes the first of es, as many as one transaction holds,
// however long the path is.
func (q *core) deletions(es []element) (ops []any) {
	size := 0
	for _, e := range es {
		path := session.ChildPath(q.dir, e.key())
		if size += q.m.SizeOf(path, nil); len(ops) == maxPost || len(ops) > 0 && size > session.MaxPacket/2 {
			break
		}
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	return ops
}

func (q *core) Cancel(ctx context.Context, id string) (canceled bool, err error) {
	tag := tagOf("", id)
	return q.removeFree(ctx, func(ctx context.Context, inc *session.Incarnation) ([]any, error) {
		data, _, err := inc.Get(ctx, q.idPath(tag[1:]))
		if err != nil && !session.IsNoNode(err) {
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
		ops, _, _, err := q.takeLast(ctx, inc, buckets, func(e element) bool { return strings.HasSuffix(e.tag, tag) })
		return ops, err
	})
}
