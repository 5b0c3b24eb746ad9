package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

func (q *core) stats(ctx context.Context, inc *session.Incarnation) (st Stats, err error) {
	if err := inc.Sync(ctx, q.dir); err != nil {
		return st, err
	}
	if st.Dead, err = q.countDead(ctx, inc); err != nil {
		return st, err
	}
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	var fronts []element
	if q.foreign != nil {
		es := q.foreign.elements(names)
		if st.Ready = len(es); st.Ready > 0 {
			fronts = es[:1]
		}
	} else {
		v, err := q.look(ctx, inc, true)
		if err != nil {
			return st, err
		}
		claimed := make(map[string]bool)
		if fronts, err = q.countBuckets(ctx, inc, v, parseBuckets(names), &st, claimed); err != nil {
			return st, err
		}
		if st.Holders, err = q.holders(ctx, inc, v, claimed); err != nil {
			return st, err
		}
	}
	for _, e := range fronts {
		stat, err := inc.Exists(ctx, session.ChildPath(q.dir, e.key()))
		if err != nil {
			return st, err
		}
		if stat == nil {
			continue // consumed in the meantime
		}
		if t := time.UnixMilli(stat.Ctime); st.Oldest.IsZero() || t.Before(st.Oldest) {
			st.Oldest = t
		}
	}
	return st, nil
}

// countBuckets counts what is in buckets, and returns the first free element of
// each priority. It notes which of those that are there are claimed.
func (q *core) countBuckets(ctx context.Context, inc *session.Incarnation, v *view, buckets []bucket, st *Stats, claimed map[string]bool) ([]element, error) {
	var mu sync.Mutex
	now := time.Now().UnixMilli()
	fronts := make(map[int]element)
	err := session.Parallel(len(buckets), func(i int) error {
		names, _, err := inc.Children(ctx, session.ChildPath(q.dir, buckets[i].name))
		if err != nil && !session.IsNoNode(err) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range parseElements(buckets[i], names) {
			switch {
			case v.claimed[e.key()]:
				st.Claimed++
				claimed[e.key()] = true
			case e.due > now:
				st.Delayed++
			default:
				st.Ready++
				if f, ok := fronts[e.prio]; e.due == 0 && (!ok || e.before(f)) {
					fronts[e.prio] = e
				}
			}
		}
		return nil
	})
	var es []element
	for _, e := range fronts {
		es = append(es, e)
	}
	return es, err
}

// holders tells who has claimed how many of those that are claimed.
func (q *core) holders(ctx context.Context, inc *session.Incarnation, v *view, claimed map[string]bool) (hs []Holder, err error) {
	for guid, c := range v.holders {
		if len(c.batches) == 0 {
			continue
		}
		var h Holder
		for _, name := range c.batches {
			for _, key := range q.cache.named(name) {
				if claimed[key] { // a batch may name what has gone already
					h.Claimed++
				}
			}
		}
		if c.live {
			owner, _, err := inc.Get(ctx, session.ChildPath(q.claims, guid+"-"+liveSuffix))
			if err != nil && !session.IsNoNode(err) {
				return nil, err
			}
			h.Owner = string(owner)
		}
		if h.Claimed > 0 {
			hs = append(hs, h)
		}
	}
	slices.SortFunc(hs, func(a, b Holder) int { return b.Claimed - a.Claimed })
	return hs, nil
}
