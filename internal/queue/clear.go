package queue

import (
	"context"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
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
			there := func(context.Context, *session.Incarnation) ([]bucket, error) { return []bucket{was.bucket}, nil }
			for more := !was.exhausted() && (was.delayed || !back); more; {
				some := 0
				some, more, err = q.removeLast(ctx, maxPost, there, so)
				if n += some; err != nil {
					return n, err
				}
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
	lots, _, err := q.lots(ctx, inc, buckets, true)
	q.deleteEmpty(inc, lots, buckets)
	return lots, err
}

// removeLast removes up to `most` unclaimed elements with so(e), as many as fit into a transaction: the last of
// the first bucket with such elements. It returns their number, and whether the bucket has more. It looks only at the
// buckets that the function `buckets` returns.
func (q *core) removeLast(ctx context.Context, most int, buckets func(context.Context, *session.Incarnation) ([]bucket, error), so func(*element) bool) (n int, more bool, err error) {
	for {
		ops, err := Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (ops []any, err error) {
			some, err := buckets(ctx, inc)
			if err != nil {
				return nil, err
			}
			lots, _, err := q.lots(ctx, inc, some, true)
			for _, t := range lots {
				if err != nil || len(ops) > 0 {
					break
				}
				q.listings.Delete(t.name) // it may show an element that was removed and left no trace on its board
				err = q.list(ctx, inc, t)
				es := slices.DeleteFunc(t.unclaimed(), func(e *element) bool { return !so(e) })
				slices.Reverse(es)
				if ops = q.Deletions(pathsOf(q.dir, es[:min(len(es), most)], (*element).key)); len(ops) == 0 {
					continue
				}
				n, more = len(ops), len(ops) < len(es)
				next := t.next()
				next.forget(numbers(es[:n]))
				ops = append(ops, &zk.SetDataRequest{Path: znodes.ChildPath(q.dir, t.name), Data: next.marshal(), Version: t.version})
				if slices.ContainsFunc(es[:n], (*element).keyed) {
					// Ring the bell: other elements with these keys may be free now, for example elements
					// that were sent during Clear.
					ops = append(ops, ring(q.dir))
				}
			}
			return ops, err
		})
		if err != nil || len(ops) == 0 {
			return 0, false, err
		}
		if _, err = q.Commit(ctx, ops); err == nil {
			return n, more, nil
		} else if !outrun(err) { // otherwise, another client was faster
			return 0, false, err
		}
	}
}

// Deletions returns operations that delete `paths`, as many of the first as fit into a transaction.
func (q *Common) Deletions(paths []string) (ops []any) {
	size := 0
	for _, path := range paths[:min(len(paths), maxPost)] {
		if size += znodes.SizeOf(q.m, path, nil); len(ops) > 0 && size > znodes.MaxPacket/2 {
			break
		}
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	return ops
}

func (q *core) Cancel(ctx context.Context, id string) (bool, error) {
	tag, sent := tagOf("", id), int64(0) // sent: the time of the transaction that wrote the element and the note
	// Before the queue forgot the ID, another element may have had it.
	n, _, err := q.removeLast(ctx, 1, func(ctx context.Context, inc *session.Incarnation) ([]bucket, error) {
		data, stat, err := inc.Get(ctx, q.idPath(tag[1:]))
		if session.IsNoNode(err) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		sent = stat.Mtime
		_, first := parseNote(data)
		b, ok := parseBucket(first)
		if !ok {
			return nil, nil
		}
		// The element is in its first bucket or, if a consumer has returned it with the fate
		// Later, in a delayed bucket. Only a consumer that has claimed the element can move it.
		// Cancel reads the first bucket before the delayed buckets. So if Cancel finds the
		// element in none of them, a consumer has claimed or removed the element.
		buckets, err := q.buckets(ctx, inc)
		buckets = slices.DeleteFunc(buckets, func(o bucket) bool { return o.name != b.name && (o.prio != b.prio || !o.delayed) })
		slices.Reverse(buckets)
		return buckets, err
	}, func(e *element) bool { return strings.HasSuffix(e.tag, tag) && (e.first == 0 || e.first >= sent) })
	return n > 0, err
}
