package queue

import (
	"cmp"
	"context"
	"fmt"
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

// The method `count` counts the elements. An element that moves to another bucket meanwhile can be missed.
func (q *producer) count(ctx context.Context, inc *session.Incarnation) error {
	unstored := int(q.unstored.Load()) // before the count: these elements may be stored after it
	n, changes, err := q.sum(ctx, inc)
	if err == nil {
		q.have, q.again, q.counted = n+unstored, min(max(countEvery, countEvery*time.Duration(len(changes))/2), mostWait), time.Now()
	}
	return err
}

// The method `sum` returns the sum of the elements of all buckets. The result `changes` has the zxids of the
// latest addition or removal of an element in each bucket.
func (q *Common) sum(ctx context.Context, inc *session.Incarnation) (n int, changes []int64, err error) {
	all, err := q.buckets(ctx, inc)
	if err != nil {
		return 0, nil, err
	}
	nodes, err := znodes.GetSmall(ctx, inc, pathsOf(q.dir, all, bucket.text))
	for _, b := range nodes {
		switch {
		case znodes.Concealed(b):
			return 0, nil, zk.ErrNoAuth // the number of its elements is unknown
		case b.Stat != nil:
			n, changes = n+int(b.Stat.NumChildren), append(changes, b.Stat.Pzxid)
		}
	}
	return n, changes, err
}

func (q *Common) buckets(ctx context.Context, inc *session.Incarnation) ([]bucket, error) {
	names, err := inc.Names(ctx, q.dir)
	return parseBuckets(names), err
}
