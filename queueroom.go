package zsync

import (
	"context"
	"errors"
	"time"
)

// awaitRoom waits until n more elements fit into a queue of limited length,
// and returns with the caller first in the line of those who send; it must
// leave. The first of the line alone counts and watches, so the limit is exact
// among those who keep it, and one is woken when elements are consumed.
//
// Whoever is first when its session ends may be followed by another while its
// own elements are still under way, and the queue become longer by those.
func (q *queueCore) awaitRoom(ctx context.Context, n int) (leave func(), err error) {
	if n > q.cfg.maxLen {
		return nil, invalid("%d elements never fit into a queue of at most %d; see WithMaxLen", n, q.cfg.maxLen)
	}
	q.m.waiters.Add(1)
	defer q.m.waiters.Add(-1)
	err = q.m.during(ctx, func(inc *incarnation) error {
		place, err := q.firstPlace(ctx, inc)
		if err != nil {
			return err
		}
		for {
			fits, err := q.fits(ctx, inc, n)
			if err != nil {
				place.leave().await(grace)
				return err
			}
			if fits && inc.alive() {
				leave = func() { place.leave() }
				return nil
			}
		}
	})
	return leave, err
}

// firstPlace waits for the first place in the line of those who send.
func (q *queueCore) firstPlace(ctx context.Context, inc *incarnation) (*place, error) {
	for {
		p, err := q.room.contend(ctx, inc, q.room.bases[0], []byte(q.m.cfg.owner), exclusive)
		if !errors.Is(err, errVanished) {
			return p, err
		}
	}
}

// fits reports whether n more elements fit. If not it waits until something
// has been consumed, and the question must be asked again.
func (q *queueCore) fits(ctx context.Context, inc *incarnation, n int) (bool, error) {
	// Elements are consumed from the first bucket of a priority, or, if it is
	// delayed, from the next.
	watches := []*watch{inc.hub.join(watchKey{watchChildren, q.dir})}
	defer func() {
		for _, w := range watches {
			inc.hub.leave(w)
		}
	}()
	names, _, err := inc.children(ctx, q.dir)
	if isNoNode(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	last := ""
	for _, b := range parseBuckets(names) {
		kind := b.name[:len("b-00000")]
		if kind == last {
			continue
		}
		last = kind
		w := inc.hub.join(watchKey{watchChildren, childPath(q.dir, b.name)})
		watches = append(watches, w)
		if _, _, err := inc.children(ctx, w.key.path); err != nil && !isNoNode(err) {
			return false, err
		}
	}
	have, err := q.length(ctx, inc)
	if err != nil || have+n <= q.cfg.maxLen {
		return err == nil, err
	}
	return false, inc.awaitAny(ctx, watches, time.Time{})
}
