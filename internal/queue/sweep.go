package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/znodes"
)

// This file deletes znodes that no client needs: receipts of crashed processes, notes of expired IDs
// and expired dead letters. A process sweeps once in the time sweepEvery, or more often if dead letters expire in less time. A
// sweep that is due is started by:
//
//   - a consumer at the front of the line, if no element is free,
//   - a producer, after each transaction,
//   - a call of Take, if no element is free and dead letters expire.

const (
	sweepEvery  = 6 * time.Hour
	sweepAtOnce = 500 // the largest number of notes that a transaction deletes
)

// Sweep sweeps in the background, if the next sweep is due. It returns the time at which the next sweep
// is due after that. If the servers refuse a deletion, the next sweep tries again.
func (q *Common) Sweep(inc *session.Incarnation) (next time.Time) {
	s := shared.Attached(&q.m.Attached, func() *shared.Pace { return new(shared.Pace) }) // of all Queue values of a Session
	key := fmt.Sprint(q.dir, " ", q.cfg.KeepDead)
	due := s.Due(key, min(max(cmp.Or(q.cfg.KeepDead, sweepEvery), time.Minute), sweepEvery))
	if next = s.Next(key); !due {
		return next
	}
	q.m.Spawn(func() {
		for _, f := range []func(context.Context, *session.Incarnation) error{q.sweepReceipts, q.sweepIDs, q.sweepDead} {
			if err := f(inc.Ctx, inc); session.OutcomeOf(err) != session.Answered {
				s.Again(key, 0)
				return
			}
		}
	})
	return next
}

// The method `old` returns deletions of the children of `dir` for which is(name, node, now) is true. Each
// deletion names the version that was read. A child that the client cannot read stays. Before it reads the
// children, it writes `dir`. The argument `now` is the Stat from that write: the Mtime of that Stat is the
// servers' time.
func (q *Common) old(ctx context.Context, inc *session.Incarnation, dir string, is func(name string, n session.Node, now *zk.Stat) bool) (ops []any, err error) {
	names, err := inc.Names(ctx, dir)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	now, err := inc.Set(ctx, dir, nil, -1)
	if err != nil {
		return nil, err
	}
	nodes, err := znodes.GetSmall(ctx, inc, pathsOf(dir, names, func(name string) string { return name }))
	for i, n := range nodes {
		if n.Stat != nil && !znodes.Concealed(n) && is(names[i], n, now) {
			ops = append(ops, &zk.DeleteRequest{Path: znodes.ChildPath(dir, names[i]), Version: n.Stat.Version})
		}
	}
	return ops, err
}

// sweepIDs deletes the notes of expired IDs, but no note that changes after sweepIDs has read it. Each
// deletion names the version of the note, which changes if a producer writes the note. Each transaction
// also writes the znode `ids`, at the version that the last write of this sweep has left there. So if
// another sweep has deleted a note since, and a producer has created it again, the servers refuse the
// transaction. They also refuse a producer's transaction that replaces a note that it has read before.
func (q *Common) sweepIDs(ctx context.Context, inc *session.Incarnation) error {
	shards, stat, err := inc.Children(ctx, q.ids)
	// In half of the time sweepEvery, the sweep of one process is enough. This machine's clock
	// is exact enough to measure that time.
	if err != nil || time.Since(time.UnixMilli(stat.Mtime)) < sweepEvery/2 {
		return err
	}
	if stat, err = inc.Set(ctx, q.ids, nil, stat.Version); err != nil {
		return err // another process was faster
	}
	version := stat.Version
	for _, shard := range shards {
		old, err := q.old(ctx, inc, znodes.ChildPath(q.ids, shard), func(_ string, n session.Node, now *zk.Stat) bool {
			return len(n.Data) > 0 && expired(n.Data, n.Stat, now)
		})
		if err != nil {
			return err
		}
		for some := range slices.Chunk(old, sweepAtOnce) {
			rs, err := znodes.Multi(ctx, inc, append([]any{&zk.SetDataRequest{Path: q.ids, Version: version}}, some...)...)
			switch {
			case err == nil:
				version++
			case session.OutcomeOf(err) != session.Answered || znodes.FailedOp(rs) == 0:
				return err
			} // if the servers refuse a deletion, these notes wait for the next sweep
		}
	}
	return nil
}

func (q *Common) sweepDead(ctx context.Context, inc *session.Incarnation) error {
	if q.cfg.KeepDead == 0 {
		return nil
	}
	var now *zk.Stat
	for d, err := range q.Letters(ctx) { // the oldest first
		if session.IsAnswer(err, zk.ErrNoAuth) && d != nil && d.Removal != nil {
			err = nil // a letter that this client cannot read expires, too
		}
		if err == nil && d.Since.IsZero() {
			continue // the servers conceal its age
		}
		if err == nil && now == nil {
			now, err = inc.Set(ctx, q.Dead, nil, -1) // for the servers' time
		}
		if err != nil || time.UnixMilli(now.Mtime).Sub(d.Since) < q.cfg.KeepDead {
			return err
		}
		if err := q.Discard(ctx, d); err != nil && !session.IsNoNode(err) {
			return err
		}
	}
	return nil
}

// sweepReceipts deletes the receipts that no client has written during the time znodes.SweptAfter. Only
// a process that was cut off for that time finds its receipt deleted: its call returns an error, and the
// outcome is unknown. If the process writes its receipt after the read, the servers refuse the deletion.
func (q *Common) sweepReceipts(ctx context.Context, inc *session.Incarnation) error {
	old, err := q.old(ctx, inc, q.Receipts, func(name string, n session.Node, now *zk.Stat) bool {
		return strings.HasSuffix(name, "-receipt") && time.Duration(now.Mtime-n.Stat.Mtime)*time.Millisecond >= znodes.SweptAfter
	})
	for _, op := range old {
		if _, err = znodes.Multi(ctx, inc, op); session.OutcomeOf(err) != session.Answered {
			return err
		}
	}
	return err
}
