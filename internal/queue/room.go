package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file makes Send wait while the queue is full. The limit is soft: a producer sees all elements that it
// sends itself, but sees the elements of other producers only when it counts.

const (
	// countEvery is the age from which a client no longer uses its last count.
	countEvery = 100 * time.Millisecond

	// mostWait is the longest time between two counts of a client that waits for room.
	mostWait = time.Second

	// maxCounts is the largest number of counts after the first, if no two counts in a row are equal.
	maxCounts = 20
)

// The method `admit` waits until there is room for `n` elements, and counts them as sent. It adds `n` to
// q.unstored; the caller subtracts it when the elements are stored or refused. If `hurry` is set, it returns ErrFull
// instead of waiting. If the queue remembers the ID of the parcel `p`, it returns ErrKnown instead of waiting.
// The parcel can be nil.
func (q *producer) admit(ctx context.Context, n int, p *parcel, hurry bool) (err error) {
	limit := q.cfg.MaxLen
	switch {
	case limit == 0 || n == 0:
		return nil
	case n > limit:
		return session.Invalid("%d elements exceed the length of the queue (WithMaxLen %d)", n, limit)
	}
	start := time.Now()
	defer func() {
		if err == ErrFull {
			err = fmt.Errorf("%w (WithMaxLen %d)", err, limit)
		} else if err != nil && (ctx.Err() != nil || session.IsClosed(q.m.Closing)) {
			err = fmt.Errorf("waited %v for room (WithMaxLen %d): %w", time.Since(start).Round(time.Millisecond), limit, err)
		}
	}()
	var full <-chan struct{}
	if hurry {
		full = q.full
	}
	select {
	case q.turn <- struct{}{}:
	case <-full:
		return ErrFull
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
	defer func() { <-q.turn }()
	for {
		if time.Since(q.counted) >= countEvery || q.have+n > limit {
			if _, err := Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (any, error) { return nil, q.count(ctx, inc) }); err != nil {
				return err
			}
		}
		if q.have+n <= limit {
			q.have += n
			q.unstored.Add(int64(n))
			return nil
		}
		if p != nil && p.id != "" {
			o := &outbox{producer: q, group: []*parcel{p}}
			err := q.m.During(ctx, func(inc *session.Incarnation) error { return o.reread(ctx, inc) })
			if err = cmp.Or(err, p.err); err != nil {
				return err
			}
		}
		if hurry {
			return ErrFull
		}
		if err := q.pass(ctx); err != nil {
			return err
		}
	}
}

// The method `pass` waits until the next count. Meanwhile, each call of `admit` with `hurry` fails.
func (q *producer) pass(ctx context.Context) error {
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	for over := time.After(q.again); ; {
		select {
		case <-over:
			return nil
		case q.full <- struct{}{}:
		case <-ctx.Done():
			return session.CtxErr(ctx)
		case <-q.m.Closing:
			return q.m.Failure()
		}
	}
}

// The method `count` counts the elements. If there is little room, the count is exact.
func (q *producer) count(ctx context.Context, inc *session.Incarnation) error {
	limit, unstored := q.cfg.MaxLen, int(q.unstored.Load()) // before the count: these elements may be stored after it
	n, buckets, err := q.length(ctx, inc, func(n int) bool { return n+unstored >= limit || n+unstored <= limit-limit/10-10 })
	if err == nil {
		q.have, q.again, q.counted = n+unstored, min(max(countEvery, countEvery*time.Duration(buckets)/2), mostWait), time.Now()
	}
	return err
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
		nodes, err := znodes.GetSmall(ctx, inc, pathsOf(q.dir, all, bucket.text))
		if err != nil {
			return 0, 0, err
		}
		n = 0
		var changes []int64 // each Pzxid changes when an element is added or removed
		for _, b := range nodes {
			switch {
			case znodes.Concealed(b):
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

func (q *Common) buckets(ctx context.Context, inc *session.Incarnation) ([]bucket, error) {
	names, err := inc.Names(ctx, q.dir)
	return parseBuckets(names), err
}
