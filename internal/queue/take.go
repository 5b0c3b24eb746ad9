package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// This file takes, or looks at, the first element without a consumer: nothing is claimed,
// it is removed at once, and put back if nobody is there any more to get it.

func (q *core) Take(ctx context.Context) (*Element, error) {
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	for {
		it, err := q.pluck(ctx)
		if err != nil || it == nil {
			return nil, err
		}
		if it.fault == nil { // else it was buried
			return it.describe(), nil
		}
	}
}

// pluck removes the first free element. One with a fault goes to the dead
// letters.
func (q *core) pluck(ctx context.Context) (*item, error) {
	var taken *item
	err := q.m.During(ctx, func(inc *session.Incarnation) error {
		if _, err := q.order.await(ctx, inc, 0); err != nil {
			return err
		}
		beaten, was := -1, ""
		for {
			it, claim, err := q.layout.first(ctx, inc, min(1<<(3*min(max(beaten, 0), 2)), maxSpread), false)
			if err == nil && it == nil {
				if q.sweeper.keep > 0 { // for the sake of those dead letters alone that are not to be kept
					q.sweeper.sweep(inc, 0)
				}
			}
			if err != nil || it == nil {
				return err
			}
			// What is still there was refused for another's sake. One that is gone may have
			// been cancelled; when the second is as well, others take what is first.
			if was != "" && was != it.key() {
				beaten++
			}
			was = it.key()
			ops := append([]any{q.deletion(it)}, claim...)
			q.check(it)
			if it.misfit {
				if err := q.skips.misfit(it.key(), it.fault); err != nil {
					return err
				}
			}
			if it.fault != nil {
				letter, err := q.letterNow(ctx, inc, it)
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
			if it.fault != nil {
				q.report(it.key(), it.fault)
			}
			taken = it
			return nil
		}
	})
	return taken, err
}

func (q *core) Peek(ctx context.Context) (*Element, error) {
	it, err := synced(ctx, q, func(ctx context.Context, inc *session.Incarnation) (*item, error) {
		it, _, err := q.layout.first(ctx, inc, 1, true)
		return it, err
	})
	if err != nil || it == nil {
		return nil, err
	}
	return it.describe(), nil
}

// first returns the first of one of so many buckets as spread. Unless it is aside it waits
// for what the dead had claimed.
func (q own) first(ctx context.Context, inc *session.Incarnation, spread int, aside bool) (it *item, with []any, err error) {
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
		if len(f.es) == 0 && !synced {
			// This server may lag. There is nothing only if the leader says so.
			synced = true
			if err := inc.Sync(ctx, q.dir); err != nil {
				return nil, nil, err
			}
			continue
		}
		if len(f.es) == 0 {
			var next time.Time
			buried := false
			if f.busy && !aside {
				if next, buried, err = q.under.visit(ctx, inc); err != nil {
					return nil, nil, err
				}
			}
			switch {
			case buried || !next.IsZero():
				if err := session.AwaitIn(ctx, inc, time.After(time.Until(next))); err != nil {
					return nil, nil, err
				}
				continue
			case f.left == nil:
				return nil, nil, nil
			}
			f = f.left // that it does not decode is told, again
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
			with := f.lot.claiming(q.dir, e)
			if keyOf(e.tag) != "" {
				with = append(with, ring(q.dir)) // the bell: the next with its key may go
			}
			return it, with, nil
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
	done, left := make(chan error), make(chan struct{}) // the outcome goes to the caller, unless that has left
	q.m.Spawn(func() {
		defer stay()
		rs, err := q.commit(session.Finishing, ops)
		if err == nil {
			q.traceTaken(it, rs)
		}
		select {
		case done <- err:
			return
		case <-left:
		}
		tried := sync.OnceFunc(q.order.end)
		defer tried()
		if err == nil && it.fault == nil {
			if err := q.putBack(it, leaving, tried); err != nil {
				q.m.Log.Error("zsync: cannot put an element back", "path", q.path, "element", it.key(), "err", err)
			}
		}
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		q.order.begin(true) // the next TryRecv must not get what comes after it
		close(left)
		return session.CtxErr(ctx)
	}
}

// traceTaken tells that it was removed by who had not claimed it.
func (q *core) traceTaken(it *item, rs []zk.MultiResponse) {
	if q.trace == nil {
		return
	}
	l := trace.Line{Event: trace.Take, Kind: trace.Element, Path: q.m.Bare(q.dir), Elements: []string{it.key()}, Fate: trace.Removed, Zxid: zxidOf(rs)}
	if it.fault != nil {
		l.Fate = trace.Buried
	}
	q.trace.Line(l)
}

// putBack puts an element that was removed, and that nobody has got, back to its
// place, exactly once. It exists nowhere else, so what the servers refuse is tried
// again, until the Session is being closed: then once more. An outcome that is in doubt
// is no answer, see [session.OutcomeOf]: the element might be there twice. ErrUnprotected
// says that nothing was sent. tried is called after the first attempt.
func (q *core) putBack(it *item, leaving <-chan struct{}, tried func()) error {
	last := false
	for wait := retryAfter; ; wait = min(2*wait, time.Minute) {
		err := q.layout.restore(it)
		tried()
		if err == nil || last || session.OutcomeOf(err) != session.Answered && !errors.Is(err, session.ErrUnprotected) {
			return err
		}
		if wait == retryAfter {
			q.m.Log.Warn("zsync: an element that was taken for nobody is put back later", "path", q.path, "element", it.key(), "err", err)
		}
		select {
		case <-time.After(wait):
		case <-leaving: // if both are ready it is tried again all the same
			last = true
		}
	}
}

// restore makes an element one of the delayed that are due, because no name comes again.
// They go ahead of the others: its time is that at which it was sent, so several keep
// their order.
func (q own) restore(it *item) error {
	ctx := session.Finishing // ends with the Session
	due := it.due
	if due == 0 { // now at the latest, by our own clock too
		due = max(min(it.sent.UnixMilli(), time.Now().UnixMilli()), 1)
	}
	for {
		var create *zk.CreateRequest
		err := q.m.During(ctx, func(inc *session.Incarnation) error {
			if _, err := inc.Create(ctx, q.dir, []byte(marks.Dir)); err != nil {
				return err
			}
			stat, err := inc.Exists(ctx, q.dir)
			if err != nil {
				return err
			}
			if stat == nil {
				return zk.ErrNoNode // deleted since
			}
			create = q.later(it, stat.Czxid, due, it.attempts())
			if _, err = inc.Create(ctx, session.ParentPath(create.Path), nil); err == nil && keyOf(it.tag) != "" {
				_, err = inc.Create(ctx, session.ChildPath(q.dir, keysName), nil)
			}
			return err
		})
		if err != nil {
			return err
		}
		ops := []any{create, ring(q.dir)} // the bell
		if keyOf(it.tag) != "" {
			ops = append(ops, &zk.SetDataRequest{Path: session.ChildPath(q.dir, keysName), Version: -1})
		}
		_, err = q.commit(ctx, ops)
		if !session.IsNoNode(err) {
			return err
		}
	}
}
