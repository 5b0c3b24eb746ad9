package zsync

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// QueueStats says what is in a [Queue].
type QueueStats struct {
	Ready   int       // may be received now
	Claimed int       // belong to a consumer, in hand or ahead
	Delayed int       // wait for their time, by the clock of this machine
	Dead    int       // dead letters
	Oldest  time.Time // of those that stand first among the ready ones of each priority, and are not of SendAt: when the oldest was stored; zero if there is none

	Holders []QueueHolder // who has claimed what, most first
}

// A QueueHolder is a process, or more exactly a Queue value in one ZooKeeper
// session, that has claimed elements.
type QueueHolder struct {
	Owner   string // see [WithOwner]; empty if its session has ended and its elements are about to go back
	Claimed int
}

// Stats counts what is in the queue. It is no snapshot: what moves while it
// counts may be counted where it was, where it is, or not at all. It costs a
// sync, a listing of each bucket of about 1,000 elements, and what it takes to
// read the claims; it writes nothing. In the layouts of other libraries, where
// what is claimed is in the queue no more, only Ready, Dead and Oldest are told.
func (q *Queue[T]) Stats(ctx context.Context) (QueueStats, error) {
	if q.misuse() != nil {
		return QueueStats{}, opError("stats", q.path, q.misuse())
	}
	var st QueueStats
	err := q.q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		st, err = q.q.stats(ctx, inc)
		return err
	})
	return st, opError("stats", q.path, err)
}

func (q *queueCore) stats(ctx context.Context, inc *session.Incarnation) (st QueueStats, err error) {
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

func (q *queueCore) countDead(ctx context.Context, inc *session.Incarnation) (n int, err error) {
	names, _, err := inc.Children(ctx, q.dead)
	if err != nil && !session.IsNoNode(err) {
		return 0, err
	}
	for _, name := range names {
		if _, ok := parseDead(name); ok {
			n++
		}
	}
	return n, nil
}

// countBuckets counts what is in buckets, and returns the first free element of
// each priority. It notes which of those that are there are claimed.
func (q *queueCore) countBuckets(ctx context.Context, inc *session.Incarnation, v *view, buckets []bucket, st *QueueStats, claimed map[string]bool) ([]element, error) {
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
func (q *queueCore) holders(ctx context.Context, inc *session.Incarnation, v *view, claimed map[string]bool) (hs []QueueHolder, err error) {
	for guid, c := range v.holders {
		if len(c.batches) == 0 {
			continue
		}
		var h QueueHolder
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
	slices.SortFunc(hs, func(a, b QueueHolder) int { return b.Claimed - a.Claimed })
	return hs, nil
}
