package queue

import (
	"context"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file removes unclaimed elements without a delivery.

// Clear lists the queue once, and removes the elements of that listing from the end of the queue to its
// front. At the end, it removes the elements that a consumer has returned with the fate Later. In this
// order, no removal makes another element free: an element that waits because of its key waits for a
// claimed element, or for an element that Clear removes later. There is one exception: if the buckets of
// two delayed elements with one key overlap in time (see `soonest`), Clear can remove the earlier first.
func (q *core) Clear(ctx context.Context) (n int, err error) {
	lots, err := Synced(ctx, q.Common, q.survey)
	if err != nil {
		return 0, err
	}
	for _, back := range []bool{false, true} { // false: all other elements; true: the elements that were returned with the fate Later
		for _, was := range slices.Backward(lots) {
			so := func(e *element) bool { return e.seq <= was.last && (e.first > 0) == back }
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
		_, err = Synced(ctx, q.Common, q.survey) // deletes the buckets that are empty now
	}
	return n, err
}

// The method `survey` reads all buckets. It deletes the empty buckets to which producers no longer
// add elements.
func (q *core) survey(ctx context.Context, inc *session.Incarnation) ([]*lot, error) {
	buckets, err := q.buckets(ctx, inc)
	if err != nil {
		return nil, err
	}
	lots, _, err := q.lots(ctx, inc, buckets, false)
	q.deleteEmpty(inc, lots, buckets)
	return lots, err
}

// removeFree applies the operations that `build` returns, exactly once. If another client was
// faster, removeFree calls `build` again. It returns true if it has removed an element.
func (q *core) removeFree(ctx context.Context, build func(ctx context.Context, inc *session.Incarnation) ([]any, error)) (done bool, err error) {
	for {
		ops, err := Synced(ctx, q.Common, build)
		if err != nil || len(ops) == 0 {
			return false, err
		}
		if _, err = q.Commit(ctx, ops); !outrun(err) {
			return err == nil, err
		}
	}
}

// takeLast returns operations that remove `n` unclaimed elements with so(e), as many as fit into a
// transaction: the last of the first bucket with such elements. If it has more, `more` is true.
func (q *core) takeLast(ctx context.Context, inc *session.Incarnation, buckets []bucket, so func(*element) bool) (ops []any, n int, more bool, err error) {
	lots, _, err := q.lots(ctx, inc, buckets, false)
	if err != nil {
		return nil, 0, false, err
	}
	for _, t := range lots {
		q.listings.Delete(t.name) // it may show an element that was removed and left no trace on its board
		if err := q.list(ctx, inc, t); err != nil {
			return nil, 0, false, err
		}
		es := slices.DeleteFunc(t.unclaimed(), func(e *element) bool { return !so(e) })
		if len(es) == 0 {
			continue
		}
		slices.Reverse(es)
		size := 0
		for _, e := range es {
			path := session.ChildPath(q.dir, e.key())
			if size += q.m.SizeOf(path, nil); n == maxPost || n > 0 && size > session.MaxPacket/2 {
				more = true
				break
			}
			ops, n = append(ops, &zk.DeleteRequest{Path: path, Version: -1}), n+1
		}
		es = es[:n]
		next := t.next()
		next.forget(numbers(es))
		ops = append(ops, &zk.SetDataRequest{Path: session.ChildPath(q.dir, t.name), Data: next.marshal(), Version: t.version})
		ops = append(ops, t.exclusion(q.dir)...)
		if slices.ContainsFunc(es, (*element).keyed) {
			// Ring the bell: other elements with these keys may be free now, for example elements
			// that were sent during Clear.
			ops = append(ops, ring(q.dir))
		}
		return ops, n, more, nil
	}
	return nil, 0, false, nil
}

func (q *core) Cancel(ctx context.Context, id string) (canceled bool, err error) {
	tag := tagOf("", id)
	return q.removeFree(ctx, func(ctx context.Context, inc *session.Incarnation) ([]any, error) {
		data, _, err := inc.Get(ctx, q.idPath(tag[1:]))
		if err != nil && !session.IsNoNode(err) {
			return nil, err
		}
		_, first := parseNote(data)
		b, ok := parseBucket(first)
		if !ok {
			return nil, nil
		}
		buckets, err := q.buckets(ctx, inc)
		if err != nil {
			return nil, err
		}
		// The element is in its first bucket or, if a consumer has returned it with the fate
		// Later, in a delayed bucket. Only a consumer that has claimed the element can move it.
		// Cancel reads the first bucket before the delayed buckets. So if Cancel finds the
		// element in none of them, a consumer has claimed or removed the element.
		buckets = slices.DeleteFunc(buckets, func(o bucket) bool { return o.name != b.name && (o.prio != b.prio || !o.delayed) })
		slices.Reverse(buckets)
		ops, _, _, err := q.takeLast(ctx, inc, buckets, func(e *element) bool { return strings.HasSuffix(e.tag, tag) })
		return ops, err
	})
}
