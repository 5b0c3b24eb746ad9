package queue

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A Sweeper deletes what nobody looks for: receipts of those who were killed,
// IDs that are forgotten, dead letters that are not to be kept. The head of the consumers' line sweeps when it has
// nothing else to do, and a producer when it has become idle, once in sweepEvery; and who
// is never idle when it is that late.
type Sweeper struct {
	DeadLetters
	senders, ids string        // empty if there are none
	keep         time.Duration // for how long dead letters are kept; 0: for ever

	mu  sync.Mutex
	due time.Time // when to sweep; guarded by mu
}

// NewSweeper returns a Sweeper, which keeps dead letters for so long.
func NewSweeper(dead DeadLetters, senders, ids string, keep time.Duration) *Sweeper {
	return &Sweeper{DeadLetters: dead, senders: senders, ids: ids, keep: keep, due: time.Now()}
}

const (
	// sweepEvery is how often a process sweeps a queue.
	sweepEvery = 6 * time.Hour

	// sweepAtOnce is how many notes are deleted in one transaction.
	sweepAtOnce = 500
)

// Next returns when to sweep.
func (s *Sweeper) Next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
}

// begin reports whether it has been time to sweep for so long; then the caller does.
func (s *Sweeper) begin(late time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Add(-late).Before(s.due) {
		return false
	}
	s.due = now.Add(min(max(cmp.Or(s.keep, sweepEvery), time.Minute), sweepEvery))
	return true
}

// again is told that a sweep was interrupted.
func (s *Sweeper) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Now()
}

// Sweep deletes what is left over, if it has been time to for so long: in the background, as it
// may take long, and nobody waits for it. What the servers refuse is left for the next time.
func (s *Sweeper) Sweep(inc *session.Incarnation, late time.Duration) {
	if !s.begin(late) {
		return
	}
	s.Manager.Spawn(func() {
		for _, f := range []func(context.Context, *session.Incarnation) error{s.abandoned(s.senders), s.abandoned(s.Receipts), s.sweepIDs, s.sweepDead} {
			if err := f(inc.Ctx, inc); session.OutcomeOf(err) != session.Answered {
				s.again()
				return
			}
		}
	})
}

// read reads the children of dir whose names are of, and returns them with the Stat of dir,
// written since they were listed: its Mtime is the servers' time.
func (s *Sweeper) read(ctx context.Context, inc *session.Incarnation, dir string, of func(name string) bool) (paths []string, nodes []session.Node, now *zk.Stat, err error) {
	names, err := inc.Names(ctx, dir)
	for _, name := range names {
		if of(name) {
			paths = append(paths, session.ChildPath(dir, name))
		}
	}
	if err != nil || len(paths) == 0 {
		return nil, nil, nil, err
	}
	if now, err = inc.Set(ctx, dir, nil, -1); err == nil {
		nodes, err = inc.GetSmall(ctx, paths)
	}
	return paths, nodes, now, err
}

// sweepIDs deletes the notes of IDs that are forgotten. Another sweep, or a SendID
// that asks for the time, writes the directory too: then what is left is left for
// the next time. So nothing is deleted but what was read: to make a note anew one
// has to delete the old one, and to write it changes its version.
func (s *Sweeper) sweepIDs(ctx context.Context, inc *session.Incarnation) error {
	if s.ids == "" {
		return nil
	}
	shards, stat, err := inc.Children(ctx, s.ids)
	// One process is enough; by whose clock that is does not matter much.
	if err != nil || time.Since(time.UnixMilli(stat.Mtime)) < sweepEvery/2 {
		return err
	}
	if _, err := inc.Set(ctx, s.ids, nil, stat.Version); err != nil {
		return err // another was quicker
	}
	for _, shard := range shards {
		dir := session.ChildPath(s.ids, shard)
		paths, nodes, now, err := s.read(ctx, inc, dir, func(string) bool { return true })
		if err != nil {
			return err
		}
		var old []any
		for i, n := range nodes {
			if n.Stat != nil && len(n.Data) > 0 && parseNote(n.Data).over(n.Stat, now) { // what may not be read stays
				old = append(old, &zk.DeleteRequest{Path: paths[i], Version: n.Stat.Version})
			}
		}
		for some := range slices.Chunk(old, sweepAtOnce) {
			// Who has read a note before it is deleted finds that ids has moved on.
			ops := []any{&zk.CheckVersionRequest{Path: dir, Version: now.Version}, &zk.SetDataRequest{Path: s.ids, Version: -1}}
			_, err := inc.Multi(ctx, append(ops, some...)...)
			if session.OutcomeOf(err) != session.Answered {
				return err
			}
			if err != nil {
				break // the other directories are not
			}
		}
	}
	return nil
}

// sweepDead deletes the dead letters that are older than they are to be kept. No
// name of one comes again.
func (s *Sweeper) sweepDead(ctx context.Context, inc *session.Incarnation) error {
	if s.keep == 0 {
		return nil
	}
	var now *zk.Stat
	for d, err := range s.Letters(ctx) { // the oldest first
		if session.IsAnswer(err, zk.ErrNoAuth) && d != nil && d.paths != nil {
			err = nil // it is as old as the others
		}
		if err == nil && now == nil {
			now, err = inc.Set(ctx, s.Dir, nil, -1) // for the servers' time
		}
		if err != nil || time.UnixMilli(now.Mtime).Sub(d.Since) < s.keep {
			return err
		}
		if _, err := s.Discard(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// abandoned deletes the receipts in dir that nobody has written for long. Who lives writes its own
// with each transaction, and deletes it a moment after the last: only one
// that was cut off for so long in between finds it deleted, and says that the outcome is
// unknown. Each is deleted at the version at which it was read, so not if it is written now.
func (s *Sweeper) abandoned(dir string) func(ctx context.Context, inc *session.Incarnation) error {
	return func(ctx context.Context, inc *session.Incarnation) error {
		if dir == "" {
			return nil
		}
		paths, nodes, now, err := s.read(ctx, inc, dir, func(name string) bool { return strings.HasSuffix(name, "-receipt") })
		if err != nil {
			return err
		}
		for i, n := range nodes {
			if n.Stat == nil || time.Duration(now.Mtime-n.Stat.Mtime)*time.Millisecond < session.SweptAfter {
				continue
			}
			_, err := inc.Multi(ctx, &zk.DeleteRequest{Path: paths[i], Version: n.Stat.Version})
			if session.OutcomeOf(err) != session.Answered {
				return err
			}
		}
		return nil
	}
}
