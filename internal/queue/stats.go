package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file counts the elements of a queue and the claims of each consumer, and pauses the consumers.

func (q *core) Len(ctx context.Context) (int, error) {
	return Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (int, error) {
		n, _, err := q.length(ctx, inc, func(int) bool { return false })
		return n, err
	})
}

func (q *core) Stats(ctx context.Context) (Totals, error) {
	return Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (st Totals, err error) {
		dead, err := q.Unread(ctx, inc)
		if err != nil {
			return st, err
		}
		names, err := inc.Names(ctx, q.dir)
		if err != nil {
			return st, err
		}
		st.Dead, st.Paused = len(dead), slices.Contains(names, pausedName)
		lots, _, err := q.lots(ctx, inc, parseBuckets(names), true)
		if err != nil {
			return st, err
		}
		all := make([][]Element, len(lots))
		err = znodes.Parallel(len(lots), func(i int) (err error) {
			if lots[i].children > 0 {
				all[i], err = q.rows(ctx, inc, lots[i])
			}
			if session.IsAnswer(err, zk.ErrNoAuth) {
				err = nil // this client may not list the bucket
			}
			return err
		})
		if err != nil {
			return st, err
		}
		owned := make(map[string]int) // by mark, the number of its claims
		looks := make(map[int]int)    // by priority, how often Stats has looked for the age of the first element
		for _, r := range slices.Concat(all...) {
			if r.State == Claimed {
				st.Claimed++
				owned[r.Owner]++
				continue
			}
			if st.Attempts = max(st.Attempts, r.Attempts); r.State == Delayed {
				st.Delayed++
				continue
			}
			if st.Ready++; r.found.due > 0 || looks[r.found.prio] == 100 {
				continue
			}
			looks[r.found.prio]++
			stat, err := inc.Exists(ctx, znodes.ChildPath(q.dir, r.found.key()))
			switch {
			case stat != nil:
				looks[r.found.prio], st.Oldest = 100, earlier(st.Oldest, time.UnixMilli(stat.Ctime))
			case err != nil && !session.IsAnswer(err, zk.ErrNoAuth):
				return st, err
			} // if there is no Stat, a consumer has removed the element since the listing, or this client may not read it
		}
		marks := slices.Sorted(maps.Keys(owned))
		nodes, err := znodes.GetSmall(ctx, inc, pathsOf(q.live, marks, func(mark string) string { return mark }))
		for i, n := range nodes {
			st.Holders = append(st.Holders, Holder{Owner: string(n.Data), Claimed: owned[marks[i]]})
		}
		slices.SortStableFunc(st.Holders, func(a, b Holder) int { return b.Claimed - a.Claimed })
		return st, err
	})
}

// Pause keeps all consumers from claiming elements, until `Resume` is called.
//
// While the znode "paused" exists, the servers refuse every claim: see `unpaused`. A search also looks for
// the znode, but only to save requests. Consumers that find no free element wait in their line, and need
// no event when a pause begins. The transaction of `Resume` wakes the first of them.
func (q *core) Pause(ctx context.Context) error {
	for {
		err := q.m.During(ctx, func(inc *session.Incarnation) error {
			err := q.vet(ctx, inc)
			if err == nil {
				_, err = q.locate(ctx, inc, 0) // creates the queue
			}
			return err
		})
		if err == nil {
			_, err = q.Commit(ctx, q.unpaused()[:1])
		}
		switch {
		case session.IsNodeExists(err):
			return nil
		case !session.IsNoNode(err):
			return err
		}
		q.forget() // another client has deleted the queue
	}
}

func (q *core) Resume(ctx context.Context) error {
	_, err := q.Commit(ctx, []any{q.unpaused()[1], ring(q.dir)})
	if session.IsNoNode(err) {
		return nil
	}
	return err
}
