package queue

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// awaitRoom waits until n more elements fit into a queue of limited length,
// and returns with the caller first in the line of those who send; it must
// leave. The first of the line alone counts and watches, so the limit is exact
// among those who keep it, and one is woken when elements are consumed.
//
// Whoever is first when its session ends may be followed by another while its
// own elements are still under way, and the queue become longer by those.
func (q *core) awaitRoom(ctx context.Context, n int) (leave func(), err error) {
	if n > q.cfg.MaxLen {
		return nil, session.Invalid("%d elements never fit into a queue of at most %d; see WithMaxLen", n, q.cfg.MaxLen)
	}
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		place, err := q.firstPlace(ctx, inc)
		if err != nil {
			return err
		}
		for {
			fits, err := q.fits(ctx, inc, n)
			if err != nil {
				place.Leave().Await(session.Grace)
				return err
			}
			if fits && inc.Alive() {
				leave = func() { place.Leave() }
				return nil
			}
		}
	})
	return leave, err
}

// tryRoom is awaitRoom, but ErrFull when it would have to wait for room.
func (q *core) tryRoom(ctx context.Context, n int) (leave func(), err error) {
	if n > q.cfg.MaxLen {
		return nil, session.Invalid("%d elements never fit into a queue of at most %d; see WithMaxLen", n, q.cfg.MaxLen)
	}
	full := func(inc *session.Incarnation) error {
		have, err := q.length(ctx, inc)
		if err == nil && have+n > q.cfg.MaxLen {
			err = ErrFull
		}
		return err
	}
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		if err := inc.Sync(ctx, q.dir); err != nil { // it is full only if the leader says so
			return err
		}
		if err := full(inc); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, turnPatience)
		defer cancel()
		place, err := q.firstPlace(limited, inc)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			return ErrFull // those who stand before us wait for room
		}
		if err != nil {
			return err
		}
		if err := full(inc); err != nil || !inc.Alive() {
			place.Leave().Await(session.Grace)
			return cmp.Or(err, session.ErrEnded)
		}
		leave = func() { place.Leave() }
		return nil
	})
	return leave, err
}

// firstPlace waits for the first place in the line of those who send.
func (q *core) firstPlace(ctx context.Context, inc *session.Incarnation) (*line.Claim, error) {
	for {
		p, err := q.room.Contend(ctx, inc, q.room.Bases[0], []byte(q.m.Config.Owner), line.Exclusive, nil)
		if !errors.Is(err, session.ErrVanished) {
			return p, err
		}
	}
}

// fits reports whether n more elements fit. If not it waits until something
// has been consumed, and the question must be asked again.
func (q *core) fits(ctx context.Context, inc *session.Incarnation, n int) (bool, error) {
	have, err := q.length(ctx, inc)
	if err != nil || have+n <= q.cfg.MaxLen {
		return err == nil, err
	}
	// Elements can be consumed from any bucket: those at the front may be in the
	// hands of a consumer that is slow. What is counted here is no newer than
	// the watches, so whatever goes after it fires one of them.
	watches := []*session.Watch{inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: q.dir})}
	defer func() {
		for _, w := range watches {
			inc.Watches.Leave(w)
		}
	}()
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return false, nil // the queue was deleted: count anew
	}
	if err != nil {
		return false, err
	}
	buckets := parseBuckets(names)
	for _, b := range buckets {
		watches = append(watches, inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: session.ChildPath(q.dir, b.name)}))
	}
	var listed atomic.Int64
	err = session.Parallel(len(buckets), func(i int) error {
		names, _, err := inc.Children(ctx, session.ChildPath(q.dir, buckets[i].name))
		listed.Add(int64(len(names)))
		return err
	})
	switch {
	case session.IsNoNode(err):
		return false, nil // a bucket was deleted, so something was consumed
	case err != nil:
		return false, err
	case int(listed.Load())+n <= q.cfg.MaxLen:
		return true, nil
	}
	return false, inc.AwaitAny(ctx, watches, time.Time{})
}
