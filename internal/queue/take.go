package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// pluck removes the first free element. One with a fault goes to the dead
// letters and is returned as missing.
func (q *core) pluck(ctx context.Context) (*item, error) {
	var taken *item
	err := q.m.During(ctx, func(inc *session.Incarnation) error {
		var turn *line.Claim
		defer func() {
			if turn != nil {
				turn.Leave()
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
			ops := []any{&zk.DeleteRequest{Path: session.ChildPath(q.dir, it.key()), Version: it.version}}
			if v != nil {
				// Nobody has claimed it as long as nobody has claimed anything.
				ops = append(ops, &zk.CheckVersionRequest{Path: q.claims, Version: v.version})
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
			if session.IsNoNode(err) || session.IsBadVersion(err) {
				if err := inc.Sync(ctx, q.dir); err != nil {
					return err
				}
				continue // somebody else was quicker
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

// turnPatience is how long one who only takes an element, or clears the queue,
// waits for a turn. A consumer that has the turn and finds nothing keeps it.
const turnPatience = 100 * time.Millisecond

// takeTurn waits for a turn among the consumers, who claim more quickly than
// others can look what is free. It returns nil if that takes too long. In another
// library's layout turns are not needed.
func (q *core) takeTurn(ctx context.Context, inc *session.Incarnation) *line.Claim {
	if q.foreign != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	place, err := q.line.Contend(ctx, inc, q.line.Bases[0], []byte(q.m.Config.Owner), line.Exclusive, nil)
	if err != nil {
		return nil
	}
	return place
}

// first returns the first free element, and what was seen of the claims, which
// another library's layout has not. The element is nil if there is none.
// With aside it writes nothing, and does not wait for what the dead had claimed.
func (q *core) first(ctx context.Context, inc *session.Incarnation, aside bool) (*item, *view, error) {
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
			data, stat, err := inc.Get(ctx, session.ChildPath(q.dir, e.key()))
			if session.IsNoNode(err) {
				continue
			}
			if err != nil && session.OutcomeOf(err) == session.Answered {
				q.skips.unreadable(e.key(), err)
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
			if err := inc.Sync(ctx, q.dir); err != nil {
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
			return nil, nil, session.CtxErr(ctx)
		case <-inc.Ctx.Done():
			return nil, nil, session.ErrEnded
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
	var state atomic.Int32 // 1: the caller has left; 2: the outcome has come
	done := make(chan error, 1)
	q.m.Spawn(func() {
		defer stay()
		_, err := q.m.CommitAcrossSessions(context.Background(), q.receipts, ops)
		if state.CompareAndSwap(0, 2) {
			done <- err
			return
		}
		if err == nil && !it.missing {
			if _, err := q.restore([]*item{it}); err != nil {
				q.m.Log.Error("zsync: cannot put an element back", "path", q.cfg.Path, "element", it.key(), "err", err)
			}
		}
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if state.CompareAndSwap(0, 1) {
			return session.CtxErr(ctx)
		}
		return <-done
	}
}

// restore puts elements that nobody has got back to their places, exactly once,
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
				err := q.m.During(ctx, func(inc *session.Incarnation) error {
					_, err := inc.Create(ctx, op.Path, op.Data)
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
		rs, err := q.m.CommitAcrossSessions(ctx, q.receipts, ops)
		i := session.FailedOp(rs)
		if err == nil || i < 0 || i >= len(owners) {
			return -1, err
		}
		switch culprit = owners[i]; {
		case session.IsNodeExists(err):
			there[culprit] = true
		case session.IsNoNode(err):
			// What holds it was empty, and was deleted.
			err = q.m.During(ctx, func(inc *session.Incarnation) error {
				_, err := inc.Create(ctx, q.dir, nil)
				if bucket := session.ChildPath(q.dir, items[culprit].bucket); err == nil && bucket != q.dir {
					// It had a successor, so nobody else may put anything into
					// it: the version says so, not the data. See queuelayout.go.
					_, err = inc.Multi(ctx, &zk.CreateRequest{Path: bucket, Acl: q.m.Config.ACL},
						&zk.SetDataRequest{Path: bucket, Data: []byte("sealed")})
					if session.IsNodeExists(err) {
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

func (q *core) length(ctx context.Context, inc *session.Incarnation) (int, error) {
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
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
	err = session.Parallel(len(buckets), func(i int) error {
		stat, err := inc.Exists(ctx, session.ChildPath(q.dir, buckets[i].name))
		if stat != nil {
			n.Add(int64(stat.NumChildren))
		}
		return err
	})
	return int(n.Load()), err
}

func (q *core) Clear(ctx context.Context) (n int, err error) {
	var turn *line.Claim
	defer func() {
		if turn != nil {
			turn.Leave()
		}
	}()
	for misses := 0; ; {
		var paths []string
		var v *view
		err := q.m.During(ctx, func(inc *session.Incarnation) (err error) {
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
		_, err = q.m.CommitAcrossSessions(ctx, q.receipts, ops)
		switch {
		case err == nil:
			n += min(len(paths), maxPost)
		case !session.IsNoNode(err) && !session.IsBadVersion(err):
			return n, err
		default:
			misses++
		}
	}
}

// clearable lists elements that nobody has claimed, delayed ones too.
func (q *core) clearable(ctx context.Context, inc *session.Incarnation) (paths []string, v *view, err error) {
	if err := inc.Sync(ctx, q.dir); err != nil {
		return nil, nil, err
	}
	if q.foreign == nil {
		if v, err = q.look(ctx, inc, false); err != nil {
			return nil, nil, err
		}
	}
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return nil, v, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if q.foreign != nil {
		for _, e := range q.foreign.elements(names) {
			paths = append(paths, session.ChildPath(q.dir, e.name))
		}
		return paths, nil, nil
	}
	for _, b := range parseBuckets(names) {
		names, _, err := inc.Children(ctx, session.ChildPath(q.dir, b.name))
		if err != nil && !session.IsNoNode(err) {
			return nil, nil, err
		}
		for _, e := range parseElements(b, names) {
			if !v.claimed[e.key()] {
				paths = append(paths, session.ChildPath(q.dir, e.key()))
			}
		}
		if len(paths) >= maxPost {
			break
		}
	}
	return paths, v, nil
}
