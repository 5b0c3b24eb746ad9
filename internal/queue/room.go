package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file makes Send wait while the queue is full, and counts elements. The limit is soft. A producer
// counts the elements at most once in the time countEvery. Between two counts, it adds only the elements
// that it sends itself, so the elements of other producers can exceed the limit.

const (
	// countEvery is the age from which a producer no longer uses its last count.
	countEvery = 100 * time.Millisecond

	// mostWait is the longest time between two counts of a producer that waits for room.
	mostWait = time.Second

	// maxCounts is the largest number of counts after the first, if no two counts in a row are equal.
	maxCounts = 20
)

// The method `admit` waits until there is room for `n` elements, or returns ErrFull if `hurry` is set. An
// element whose ID is known needs no room: `id` is the hash of the ID, or empty.
func (q *producer) admit(ctx context.Context, n int, id string, hurry bool) error {
	limit := q.cfg.MaxLen
	switch {
	case limit == 0:
		return nil
	case n > limit:
		return session.Invalid("%d elements exceed the length of the queue (WithMaxLen %d)", n, limit)
	}
	start := time.Now()
	waited := func(err error) error {
		return fmt.Errorf("waited %v for room (WithMaxLen %d): %w", time.Since(start).Round(time.Millisecond), limit, err)
	}
	if !hurry {
		select {
		case q.order <- struct{}{}:
		case <-ctx.Done():
			return waited(session.CtxErr(ctx))
		}
		defer func() { <-q.order }()
		defer q.waits.Store(false)
	}
	for {
		wait, err := countEvery, error(nil)
		if !hurry || !q.waits.Load() {
			wait, err = q.reserve(ctx, n)
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return waited(err)
		case wait == 0 || err != nil:
			return err
		}
		if id != "" {
			if known, err := q.knows(ctx, id); err != nil || known {
				return err // if the ID is known, the transaction of the element fails with ErrKnown
			}
		}
		if hurry {
			return fmt.Errorf("%w (WithMaxLen %d)", ErrFull, limit)
		}
		q.waits.Store(true)
		q.m.Waiters.Add(1)
		err = q.m.Sleep(ctx, wait)
		q.m.Waiters.Add(-1)
		if err != nil {
			return waited(err)
		}
	}
}

// The method `reserve` returns 0 if there is room for `n` more elements, and then counts them as sent. If
// there is no room, it returns the time until the next count.
func (q *producer) reserve(ctx context.Context, n int) (wait time.Duration, err error) {
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, session.CtxErr(ctx)
	}
	defer func() { <-q.turn }()
	if time.Since(q.counted) >= countEvery || q.have+n > q.cfg.MaxLen {
		// If there is little room, two counts in a row must be equal. If the queue seems to be full,
		// it is counted again after a sync.
		sure := func(n int) bool { return n >= q.cfg.MaxLen || n <= q.cfg.MaxLen-q.cfg.MaxLen/10-10 }
		err := q.m.During(ctx, func(inc *session.Incarnation) error {
			have, buckets, err := q.length(ctx, inc, sure)
			if err == nil && have >= q.cfg.MaxLen {
				if err = inc.Sync(ctx, q.dir); err == nil {
					have, buckets, err = q.length(ctx, inc, sure)
				}
			}
			if err == nil {
				q.have, q.again, q.counted = have, min(max(countEvery, countEvery*time.Duration(buckets)/2), mostWait), time.Now()
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if q.have+n > q.cfg.MaxLen {
		return q.again, nil
	}
	q.have += n
	return 0, nil
}

// The method `length` counts the elements until two counts in a row are equal: then the queue had that
// length at a moment between these two. One count alone can miss an element that moves to another
// bucket during the count. It suffices if `sure(n)` is true. If the queue changes all the time, the
// result is the last count.
func (q *Common) length(ctx context.Context, inc *session.Incarnation, sure func(n int) bool) (n, buckets int, err error) {
	var before []int64
	for i := 0; ; i++ {
		all, err := q.buckets(ctx, inc)
		if err != nil {
			return 0, 0, err
		}
		nodes, err := inc.GetSmall(ctx, pathsOf(q.dir, all, bucket.text))
		if err != nil {
			return 0, 0, err
		}
		n = 0
		var changes []int64 // each Pzxid changes when an element is added or removed
		for _, b := range nodes {
			switch {
			case b.Concealed():
				return 0, 0, zk.ErrNoAuth // the number of its elements is unknown
			case b.Stat != nil:
				n, changes = n+int(b.Stat.NumChildren), append(changes, b.Stat.Pzxid)
			}
		}
		if i > 0 && slices.Equal(changes, before) || i == maxCounts || sure(n) {
			return n, len(changes), nil
		}
		before = changes
	}
}

// The method `knows` reports whether the queue remembers an ID.
func (q *producer) knows(ctx context.Context, id string) (known bool, err error) {
	path := q.idPath(id)
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		data, stat, err := inc.Get(ctx, path)
		if session.IsAnswer(err, zk.ErrNoAuth) {
			known = true // servers look for a znode before its ACL
			return nil
		}
		if err == nil {
			var now *zk.Stat
			now, err = inc.Set(ctx, session.ParentPath(path), nil, -1) // for the servers' time
			known = err == nil && !expired(data, stat, now)
		}
		if session.IsNoNode(err) { // the queue never had the ID, or a sweep has deleted the note
			return nil
		}
		return err
	})
	return known, err
}

// The method `buckets` lists the buckets.
func (q *Common) buckets(ctx context.Context, inc *session.Incarnation) ([]bucket, error) {
	names, err := inc.Names(ctx, q.dir)
	return parseBuckets(names), err
}
