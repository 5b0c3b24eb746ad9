package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	site
	limit int           // 0: no limit
	turn  chan struct{} // a goroutine puts a token in before it counts, and takes it out after

	// Only the goroutine with the token uses these fields.

	have    int       // elements at the last count, plus the elements that this producer has sent since
	buckets int       // number of buckets at the last count
	counted time.Time // time of the last count

	mu   sync.Mutex
	full chan struct{} // closed while the goroutine with the token waits for room; guarded by mu
}

const (
	// countEvery is the age from which a producer no longer uses its last count.
	countEvery = 100 * time.Millisecond

	// mostWait is the longest time between two counts of a producer that waits for room.
	mostWait = time.Second

	// maxCounts is the largest number of counts after the first, if no two counts in a row are equal.
	maxCounts = 20
)

// The method `enter` waits until there is room for `p`. If `hurry` is set, it returns ErrFull
// instead of waiting. An element whose ID is known needs no room, because Send does not store it.
func (g *gate) enter(ctx context.Context, p *parcel, hurry bool) error {
	n, limit := len(p.data), g.limit
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
	refuse := func() error {
		if p.id != "" {
			if known, err := g.knows(ctx, p.id); err != nil || known {
				return err // if the ID is known, the transaction of p fails with ErrKnown
			}
		}
		return fmt.Errorf("%w (WithMaxLen %d)", ErrFull, limit)
	}
	var full <-chan struct{}
	if hurry {
		g.mu.Lock()
		full = g.full
		g.mu.Unlock()
	}
	select {
	case g.turn <- struct{}{}: // in the order of the calls
	case <-full: // the queue has been full during this call, even if the token is free now
		return refuse()
	case <-ctx.Done():
		return waited(session.CtxErr(ctx))
	}
	defer func() {
		g.mu.Lock()
		if session.IsClosed(g.full) {
			g.full = make(chan struct{})
		}
		g.mu.Unlock()
		<-g.turn
	}()
	for waits := 0; ; waits++ {
		if time.Since(g.counted) < countEvery && g.have+n <= limit {
			g.have += n
			return nil
		}
		if waits > 0 {
			if err := refuse(); hurry || !errors.Is(err, ErrFull) {
				return err
			}
			g.mu.Lock()
			if !session.IsClosed(g.full) {
				close(g.full)
			}
			g.mu.Unlock()
			g.m.Waiters.Add(1)
			err := g.m.Sleep(ctx, min(max(countEvery, countEvery*time.Duration(g.buckets)/2), mostWait))
			g.m.Waiters.Add(-1)
			if err != nil {
				return waited(err)
			}
		}
		have, buckets, err := g.count(ctx)
		switch {
		case err != nil && waits > 0 && ctx.Err() != nil:
			return waited(err)
		case err != nil:
			return err
		}
		g.have, g.buckets, g.counted = have, buckets, time.Now()
	}
}

// The method `count` counts the elements. If the queue seems to be full, the method counts again
// after a sync.
func (g *gate) count(ctx context.Context) (have, buckets int, err error) {
	err = g.m.During(ctx, func(inc *session.Incarnation) error {
		var before []tally
		for i, synced := 0, false; ; i++ {
			all, err := g.site.counts(ctx, inc)
			if err != nil {
				return err
			}
			have, buckets = 0, len(all)
			for _, b := range all {
				have += int(b.children)
			}
			// If an element moves to another bucket during the count, the count may miss it. So if
			// there is little room, two counts in a row must be equal, unless the queue changes all
			// the time.
			near := have < g.limit && have > g.limit-g.limit/10-10
			switch {
			case near && i < maxCounts && !slices.Equal(all, before):
				before = all
				continue
			case synced || have < g.limit:
				return nil
			}
			if err := inc.Sync(ctx, g.dir); err != nil {
				return err
			}
			synced = true
		}
	})
	return have, buckets, err
}

// The method `knows` reports whether the note of an ID exists.
func (g *gate) knows(ctx context.Context, id string) (known bool, err error) {
	err = g.m.During(ctx, func(inc *session.Incarnation) error {
		stat, err := inc.Exists(ctx, g.idPath(id))
		if known = stat != nil; session.IsAnswer(err, zk.ErrNoAuth) {
			known, err = true, nil // servers look for a znode before its ACL
		}
		return err
	})
	return known, err
}

// The method `buckets` lists the buckets.
func (q site) buckets(ctx context.Context, inc *session.Incarnation) ([]bucket, error) {
	names, err := inc.Names(ctx, q.dir)
	return parseBuckets(names), err
}

// The type `tally` is the number of elements in a bucket.
type tally struct {
	name     string
	children int32
	changed  int32 // changes when an element is added or removed
}

// The method `counts` returns the number of elements in each bucket. The result is not a snapshot
// of all buckets.
func (q site) counts(ctx context.Context, inc *session.Incarnation) (all []tally, err error) {
	buckets, err := q.buckets(ctx, inc)
	if err != nil {
		return nil, err
	}
	nodes, err := inc.GetSmall(ctx, pathsOf(q.dir, buckets, bucket.text))
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if n.Concealed() {
			return nil, zk.ErrNoAuth // nobody can say how many elements it has
		}
		if n.Stat != nil {
			all = append(all, tally{buckets[i].name, n.Stat.NumChildren, n.Stat.Cversion})
		}
	}
	return all, nil
}
