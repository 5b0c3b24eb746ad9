package zsync

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// This file holds what is done to a Queue without consuming from it: to take one
// element, to look, to count, to clear.

// TryRecv removes the first element that nobody has claimed and returns it. ok
// is false if there was none. It does not wait for elements to come, but for
// the server's answers, and if a consumer has died, for up to three seconds, for
// the elements to come back that it had claimed.
//
// If ctx ends while the removal is under way, and it succeeds, the element is
// put back to its place. TryRecv costs about 6 requests; a consumer of many
// elements had better use [Queue.Recv].
func (q *Queue[T]) TryRecv(ctx context.Context) (v T, ok bool, err error) {
	var zero T
	if q.bad() != nil {
		return zero, false, opError("tryrecv", q.path, q.bad())
	}
	if ctx.Err() != nil {
		return zero, false, opError("tryrecv", q.path, ctxErr(ctx))
	}
	for {
		it, err := q.q.pluck(ctx)
		if err == nil && it != nil && it.missing {
			continue // it was buried
		}
		if err != nil || it == nil {
			return zero, false, opError("tryrecv", q.path, err)
		}
		return *it.value.(*T), true, nil
	}
}

// pluck removes the first free element. One with a fault goes to the dead
// letters and is returned as missing.
func (q *queueCore) pluck(ctx context.Context) (*item, error) {
	var taken *item
	err := q.m.during(ctx, func(inc *incarnation) error {
		var turn *lineClaim
		defer func() {
			if turn != nil {
				turn.leave()
			}
		}()
		for tries := 0; ; tries++ {
			if tries > 1 && turn == nil {
				turn = q.takeTurn(ctx, inc)
			}
			it, v, err := q.first(ctx, inc, false)
			if err != nil || it == nil {
				return err
			}
			ops := []any{&zk.DeleteRequest{Path: childPath(q.dir, it.key()), Version: it.version}}
			if v != nil {
				// Nobody has claimed it as long as nobody has claimed anything.
				ops = append(ops, &zk.CheckVersionRequest{Path: q.claims, Version: v.version})
			}
			fault := q.check(it)
			if it.misfit && !q.skips.misfit() {
				return q.leave(it.key(), fault)
			}
			if it.missing = fault != nil; it.missing {
				letter, err := q.letterNow(ctx, inc, it, fault)
				if err != nil {
					return err
				}
				ops = append(ops, letter...)
			}
			err = q.remove(ctx, it, ops)
			if isNoNode(err) || isBadVersion(err) {
				if err := inc.sync(ctx, q.dir); err != nil {
					return err
				}
				continue // somebody else was quicker
			}
			if err != nil {
				return err
			}
			if it.missing {
				q.buried(it.key(), fault)
			}
			taken = it
			return nil
		}
	})
	return taken, err
}

// turnPatience is how long one who only takes an element, or clears the queue,
// waits for a turn. A consumer that has the turn and finds nothing keeps it.
const turnPatience = 100 * time.Millisecond

// takeTurn waits for a turn among the consumers, who claim more quickly than
// others can look what is free. It returns nil if that takes too long. In another
// library's layout turns are not needed.
func (q *queueCore) takeTurn(ctx context.Context, inc *incarnation) *lineClaim {
	if q.foreign != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	place, err := q.line.contend(ctx, inc, q.line.bases[0], []byte(q.m.cfg.owner), exclusive)
	if err != nil {
		return nil
	}
	return place
}

// first returns the first free element, and what was seen of the claims, which
// another library's layout has not. The element is nil if there is none.
// With aside it writes nothing, and does not wait for what the dead had claimed.
func (q *queueCore) first(ctx context.Context, inc *incarnation, aside bool) (*item, *view, error) {
	if q.foreign != nil {
		it, err := q.firstForeign(ctx, inc, true)
		return it, nil, err
	}
	for synced := false; ; {
		v, err := q.look(ctx, inc, aside)
		if err != nil {
			return nil, nil, err
		}
		es, _, err := q.free(ctx, inc, v, 1)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range es {
			data, stat, err := inc.get(ctx, childPath(q.dir, e.key()))
			if isNoNode(err) {
				continue
			}
			if err != nil && outcomeOf(err) == answered {
				q.unreadable(e.key(), err)
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			it := &item{element: e}
			it.read(data, stat)
			return it, v, nil
		}
		if len(es) > 0 {
			continue // all of them were consumed in the meantime
		}
		if !synced {
			// This server may lag. There is nothing only if the leader says so.
			synced = true
			if err := inc.sync(ctx, q.dir); err != nil {
				return nil, nil, err
			}
			continue
		}
		if aside {
			return nil, v, nil
		}
		next, buried, err := q.under.visit(ctx, inc, v)
		if err != nil {
			return nil, nil, err
		}
		if next.IsZero() && !buried {
			return nil, v, nil
		}
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return nil, nil, ctxErr(ctx)
		case <-inc.ctx.Done():
			return nil, nil, errEnded
		}
	}
}

// remove applies ops, which remove it, exactly once. If ctx ends before the
// outcome is known the removal is undone, and Session.Close waits for that.
func (q *queueCore) remove(ctx context.Context, it *item, ops []any) error {
	leaving, stay := q.s.beforeClose()
	if isClosed(leaving) {
		stay()
		return ErrClosed
	}
	var state atomic.Int32 // 1: the caller has left; 2: the outcome has come
	done := make(chan error, 1)
	q.m.spawn(func() {
		defer stay()
		_, err := q.m.commitOnce(context.Background(), q.receipts, ops)
		if state.CompareAndSwap(0, 2) {
			done <- err
			return
		}
		if err == nil && !it.missing {
			if _, err := q.restore([]*item{it}); err != nil {
				q.m.log.Error("zsync: cannot put an element back", "path", q.path, "element", it.key(), "err", err)
			}
		}
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if state.CompareAndSwap(0, 1) {
			return ctxErr(ctx)
		}
		return <-done
	}
}

// restore puts elements that nobody has got back to their places, exactly once,
// but for one that is too large to carry a receipt. If the servers refuse that because of one of them it
// returns its index, and otherwise -1.
func (q *queueCore) restore(items []*item) (culprit int, err error) {
	ctx := context.Background() // ends with the Session
	there := make(map[int]bool) // those that are back
	for {
		var ops []any
		var owners []int
		for i, it := range items {
			op := &zk.CreateRequest{Path: childPath(q.dir, it.key()), Data: it.stored(), Acl: q.m.cfg.acl}
			switch {
			case there[i]:
			case q.oversized(op): // another library's
				err := q.m.during(ctx, func(inc *incarnation) error {
					_, err := inc.create(ctx, op.Path, op.Data)
					return err
				})
				if err != nil {
					return i, err
				}
				there[i] = true
			default:
				ops, owners = append(ops, op), append(owners, i)
			}
		}
		switch {
		case len(ops) == 0:
			return -1, nil
		case q.foreign == nil:
			ops = append(ops, &zk.SetDataRequest{Path: q.dir, Version: -1}) // the bell
		}
		rs, err := q.m.commitOnce(ctx, q.receipts, ops)
		i := failedOp(rs)
		if err == nil || i < 0 || i >= len(owners) {
			return -1, err
		}
		switch culprit = owners[i]; {
		case isNodeExists(err):
			there[culprit] = true
		case isNoNode(err):
			// What holds it was empty, and was deleted.
			err = q.m.during(ctx, func(inc *incarnation) error {
				_, err := inc.create(ctx, q.dir, nil)
				if bucket := childPath(q.dir, items[culprit].bucket); err == nil && bucket != q.dir {
					// It had a successor, so nobody else may put anything into
					// it: the version says so, not the data. See queuelayout.go.
					_, err = inc.multi(ctx, &zk.CreateRequest{Path: bucket, Acl: q.m.cfg.acl},
						&zk.SetDataRequest{Path: bucket, Data: []byte("sealed")})
					if isNodeExists(err) {
						err = nil
					}
				}
				return err
			})
			if err != nil {
				return culprit, err
			}
		default:
			return culprit, err
		}
	}
}

// oversized reports that ops are too large for a transaction with a receipt.
func (q *queueCore) oversized(ops ...*zk.CreateRequest) bool {
	size := q.m.sizeOf(childPath(q.receipts, noGUID), nil)
	for _, op := range ops {
		size += q.m.sizeOf(op.Path, op.Data) + q.m.sizeOf(op.Path, nil)
	}
	return size > maxPacket
}

// Len returns how many elements are in the queue, those that are claimed or
// delayed included. It costs a sync, a listing, and 1 request for each bucket of
// about 1,000 elements, which are on their way at once.
func (q *Queue[T]) Len(ctx context.Context) (int, error) {
	if q.bad() != nil {
		return 0, opError("len", q.path, q.bad())
	}
	var n int
	err := q.q.m.during(ctx, func(inc *incarnation) (err error) {
		if err = inc.sync(ctx, q.q.dir); err == nil {
			n, err = q.q.length(ctx, inc)
		}
		return err
	})
	return n, opError("len", q.path, err)
}

func (q *queueCore) length(ctx context.Context, inc *incarnation) (int, error) {
	names, _, err := inc.children(ctx, q.dir)
	if isNoNode(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if q.foreign != nil {
		return len(q.foreign.elements(names)), nil
	}
	buckets := parseBuckets(names)
	var n atomic.Int64
	err = parallel(len(buckets), func(i int) error {
		stat, err := inc.exists(ctx, childPath(q.dir, buckets[i].name))
		if stat != nil {
			n.Add(int64(stat.NumChildren))
		}
		return err
	})
	return int(n.Load()), err
}

// Peek returns the first element that nobody has claimed, and leaves it where
// it is. ok is false if there is none. It costs about 6 requests.
func (q *Queue[T]) Peek(ctx context.Context) (v T, ok bool, err error) {
	if q.bad() != nil {
		return v, false, opError("peek", q.path, q.bad())
	}
	var it *item
	err = q.q.m.during(ctx, func(inc *incarnation) (err error) {
		if err = inc.sync(ctx, q.q.dir); err != nil {
			return err
		}
		if q.q.foreign != nil {
			it, err = q.q.firstForeign(ctx, inc, false)
			return err
		}
		it, _, err = q.q.first(ctx, inc, true)
		return err
	})
	if err != nil || it == nil {
		return v, false, opError("peek", q.path, err)
	}
	if err = it.fault; err == nil {
		v, err = decode[T](q.q.cfg.codec, it.data)
	}
	return v, err == nil, opError("peek", q.path, err)
}

// Clear removes the elements that nobody has claimed, delayed ones too, those
// that come while it runs perhaps not, and returns how many it has removed. When
// it fails it may have removed some. It costs about 6 requests for every 500
// elements, and 4 to find that none is left.
func (q *Queue[T]) Clear(ctx context.Context) (int, error) {
	if q.bad() != nil {
		return 0, opError("clear", q.path, q.bad())
	}
	n, err := q.q.clear(ctx)
	return n, opError("clear", q.path, err)
}

func (q *queueCore) clear(ctx context.Context) (n int, err error) {
	var turn *lineClaim
	defer func() {
		if turn != nil {
			turn.leave()
		}
	}()
	for misses := 0; ; {
		var paths []string
		var v *view
		err := q.m.during(ctx, func(inc *incarnation) (err error) {
			if misses > 1 && turn == nil {
				turn = q.takeTurn(ctx, inc)
			}
			paths, v, err = q.clearable(ctx, inc)
			return err
		})
		if err != nil || len(paths) == 0 {
			return n, err
		}
		var ops []any
		if v != nil {
			ops = append(ops, &zk.CheckVersionRequest{Path: q.claims, Version: v.version})
		}
		for _, path := range paths[:min(len(paths), maxPost)] {
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		}
		_, err = q.m.commitOnce(ctx, q.receipts, ops)
		switch {
		case err == nil:
			n += min(len(paths), maxPost)
		case !isNoNode(err) && !isBadVersion(err):
			return n, err
		default:
			misses++
		}
	}
}

// clearable lists elements that nobody has claimed, delayed ones too.
func (q *queueCore) clearable(ctx context.Context, inc *incarnation) (paths []string, v *view, err error) {
	if err := inc.sync(ctx, q.dir); err != nil {
		return nil, nil, err
	}
	if q.foreign == nil {
		if v, err = q.look(ctx, inc, false); err != nil {
			return nil, nil, err
		}
	}
	names, _, err := inc.children(ctx, q.dir)
	if isNoNode(err) {
		return nil, v, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if q.foreign != nil {
		for _, e := range q.foreign.elements(names) {
			paths = append(paths, childPath(q.dir, e.name))
		}
		return paths, nil, nil
	}
	for _, b := range parseBuckets(names) {
		names, _, err := inc.children(ctx, childPath(q.dir, b.name))
		if err != nil && !isNoNode(err) {
			return nil, nil, err
		}
		for _, e := range parseElements(b, names) {
			if !v.claimed[e.key()] {
				paths = append(paths, childPath(q.dir, e.key()))
			}
		}
		if len(paths) >= maxPost {
			break
		}
	}
	return paths, v, nil
}
