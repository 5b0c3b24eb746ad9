package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// This file counts what is in a queue, and tells who has claimed it.

// synced returns what f finds in whatever session, when the server has caught up.
func synced[R any](ctx context.Context, q *core, f func(ctx context.Context, inc *session.Incarnation) (R, error)) (r R, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		if err = inc.Sync(ctx, q.dir); err == nil {
			r, err = f(ctx, inc)
		}
		return err
	})
	return r, err
}

func (q *core) Len(ctx context.Context) (int, error) { return synced(ctx, q, q.length) }

func (q *core) Stats(ctx context.Context) (Stats, error) { return synced(ctx, q, q.stats) }

func (q *core) stats(ctx context.Context, inc *session.Incarnation) (st Stats, err error) {
	dead, err := q.deadLetters.names(ctx, inc)
	if err != nil {
		return st, err
	}
	st.Dead = len(dead)
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	err = q.layout.count(ctx, inc, names, &st)
	return st, err
}

func (q own) count(ctx context.Context, inc *session.Incarnation, names []string, st *Stats) error {
	claimed := make(map[string][]int32)
	fronts, err := q.countBuckets(ctx, inc, parseBuckets(names), st, claimed)
	if err != nil {
		return err
	}
	if st.Holders, err = q.holders(ctx, inc, claimed); err != nil {
		return err
	}
	return q.countFronts(ctx, inc, fronts, st)
}

// countFronts looks at the elements that stand first.
func (q *core) countFronts(ctx context.Context, inc *session.Incarnation, fronts []element, st *Stats) error {
	for _, e := range fronts {
		stat, err := inc.Exists(ctx, session.ChildPath(q.dir, e.key()))
		if err != nil {
			return err
		}
		if stat == nil {
			continue // consumed in the meantime
		}
		st.Attempts = max(st.Attempts, int(e.tries)+int(stat.Version))
		if t := time.UnixMilli(stat.Ctime); st.Oldest.IsZero() || t.Before(st.Oldest) {
			st.Oldest = t
		}
	}
	return nil
}

// countBuckets counts what is in buckets, and returns the first free element of
// each priority. It notes which of those that are there are claimed.
func (q *core) countBuckets(ctx context.Context, inc *session.Incarnation, buckets []bucket, st *Stats, claimed map[string][]int32) ([]element, error) {
	lots, err := q.lots(ctx, inc, buckets)
	if err != nil {
		return nil, err
	}
	err = session.Parallel(len(lots), func(i int) error {
		if lots[i].children == 0 {
			return nil
		}
		return q.list(ctx, inc, lots[i])
	})
	now := time.Now().UnixMilli()
	fronts := make(map[int]element)
	for _, t := range lots {
		for _, e := range t.elements {
			switch {
			case t.claimed.has(e.seq):
				st.Claimed++
				claimed[t.name] = append(claimed[t.name], e.seq)
				continue
			case e.due > now:
				st.Delayed++
			default:
				st.Ready++
				if f, ok := fronts[e.prio]; e.due == 0 && (!ok || e.before(f)) {
					fronts[e.prio] = e
				}
			}
			st.Attempts = max(st.Attempts, int(e.tries))
		}
	}
	return slices.Collect(maps.Values(fronts)), err
}

// holders tells who has claimed how many of those that are claimed.
func (q *core) holders(ctx context.Context, inc *session.Incarnation, claimed map[string][]int32) (hs []Holder, err error) {
	names, err := inc.Names(ctx, q.claims)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if len(name) == len(noGUID) {
			paths = append(paths, session.ChildPath(q.claims, name), session.ChildPath(q.live, name))
		}
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(nodes); i += 2 {
		h := Holder{Owner: string(nodes[i+1].Data)}
		for bucket, had := range parseRecord(nodes[i].Data).holdings {
			for _, n := range claimed[bucket] {
				if had.owned.has(n) { // it may name what has gone already
					h.Claimed++
				}
			}
		}
		if h.Claimed > 0 {
			hs = append(hs, h)
		}
	}
	slices.SortFunc(hs, func(a, b Holder) int { return b.Claimed - a.Claimed })
	return hs, nil
}
