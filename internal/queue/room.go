package queue

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file makes Send wait while the queue is full, and counts elements. send.go stores the
// elements.

// The type `gate` makes producers wait while the queue is full. The limit is soft. A producer
// counts the elements at most once in the time countEvery. Between two counts, it adds only the
// elements that it sends itself, so the elements of other producers can exceed the limit.
type gate struct {
	*Common
	order chan struct{} // a Send puts a token in before it may wait, and takes it out after: so Sends keep their order
	turn  chan struct{} // a goroutine puts a token in before it counts, and takes it out after
	full  atomic.Bool   // the Send with the token of `order` waits for room

	// Only the goroutine with the token of `turn` uses these fields.

	have    int       // elements at the last count, plus the elements that this producer has sent since
	buckets int       // number of buckets at the last count
	counted time.Time // time of the last count
}

const (
	// countEvery is the age from which a producer no longer uses its last count.
	countEvery = 100 * time.Millisecond

	// mostWait is the longest time between two counts of a producer that waits for room.
	mostWait = time.Second

	// maxCounts is the largest number of counts after the first, if no two counts in a row are equal.
	maxCounts = 20
)

// The method `enter` waits until there is room for `n` elements. If `hurry` is set, it returns ErrFull
// instead of waiting. An element whose ID is known needs no room, because Send does not store it: `id`
// is the hash of the ID, or empty.
func (g *gate) enter(ctx context.Context, n int, id string, hurry bool) error {
	limit := g.cfg.MaxLen
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
		case g.order <- struct{}{}:
		case <-ctx.Done():
			return waited(session.CtxErr(ctx))
		}
		defer func() { <-g.order }()
		defer g.full.Store(false)
	}
	for waits := false; ; waits = true {
		var fits bool
		var wait time.Duration
		var err error
		if !hurry || !g.full.Load() {
			fits, wait, err = g.admit(ctx, n)
		}
		if err != nil && waits && ctx.Err() != nil {
			return waited(err)
		}
		if fits || err != nil {
			return err
		}
		if id != "" {
			if known, err := g.knows(ctx, id); err != nil || known {
				return err // if the ID is known, the transaction of the element fails with ErrKnown
			}
		}
		if hurry {
			return fmt.Errorf("%w (WithMaxLen %d)", ErrFull, limit)
		}
		g.full.Store(true)
		g.m.Waiters.Add(1)
		err = g.m.Sleep(ctx, wait)
		g.m.Waiters.Add(-1)
		if err != nil {
			return waited(err)
		}
	}
}

// The method `admit` reports whether there is room for `n` more elements, and then counts them as
// sent. If there is no room, the next count should be after the time `wait`.
func (g *gate) admit(ctx context.Context, n int) (fits bool, wait time.Duration, err error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return false, 0, session.CtxErr(ctx)
	}
	defer func() { <-g.turn }()
	if time.Since(g.counted) >= countEvery || g.have+n > g.cfg.MaxLen {
		// If there is little room, two counts in a row must be equal. If the queue seems to be full,
		// it is counted again after a sync.
		sure := func(n int) bool { return n >= g.cfg.MaxLen || n <= g.cfg.MaxLen-g.cfg.MaxLen/10-10 }
		err := g.m.During(ctx, func(inc *session.Incarnation) error {
			have, buckets, err := g.length(ctx, inc, sure)
			if err == nil && have >= g.cfg.MaxLen {
				if err = inc.Sync(ctx, g.dir); err == nil {
					have, buckets, err = g.length(ctx, inc, sure)
				}
			}
			if err == nil {
				g.have, g.buckets, g.counted = have, buckets, time.Now()
			}
			return err
		})
		if err != nil {
			return false, 0, err
		}
	}
	if fits = g.have+n <= g.cfg.MaxLen; fits {
		g.have += n
	}
	return fits, min(max(countEvery, countEvery*time.Duration(g.buckets)/2), mostWait), nil
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
func (g *gate) knows(ctx context.Context, id string) (known bool, err error) {
	path := g.idPath(id)
	err = g.m.During(ctx, func(inc *session.Incarnation) error {
		data, stat, err := inc.Get(ctx, path)
		switch {
		case session.IsNoNode(err):
			return nil
		case session.IsAnswer(err, zk.ErrNoAuth):
			known = true // servers look for a znode before its ACL
			return nil
		case err == nil:
			known, err = g.remembers(ctx, inc, path, session.Node{Data: data, Stat: stat})
		}
		return err
	})
	return known, err
}

// The method `remembers` reports whether the note `n` at `path` has not expired.
func (q *Common) remembers(ctx context.Context, inc *session.Incarnation, path string, n session.Node) (bool, error) {
	now, err := inc.Set(ctx, session.ParentPath(path), nil, -1) // for the servers' time
	if session.IsNoNode(err) {
		return false, nil // a sweep has deleted the note, and written `ids`: the servers refuse a transaction that replaces the note
	}
	return err == nil && !expired(n.Data, n.Stat, now), err
}

// The method `buckets` lists the buckets.
func (q *Common) buckets(ctx context.Context, inc *session.Incarnation) ([]bucket, error) {
	names, err := inc.Names(ctx, q.dir)
	return parseBuckets(names), err
}
