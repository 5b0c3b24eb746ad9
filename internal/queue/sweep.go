package queue

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A sweeper deletes what the dead have left and nobody looks for: journals of
// producers that were killed. The head of the consumers' line sweeps when it has
// nothing else to do, and a producer when it has become idle, once in sweepEvery.
type sweeper struct {
	senders string // where the journals of producers are

	mu   sync.Mutex
	last time.Time // guarded by mu
}

const (
	// sweepEvery is how often a process sweeps a queue.
	sweepEvery = 6 * time.Hour

	// abandonedAfter is how long a journal of a producer must not have been written,
	// by the servers' clock. A living producer writes its own with every Send and
	// deletes it a moment after the last: only one that has been cut off for so long
	// while it sends finds it deleted, and is told that the outcome is unknown.
	abandonedAfter = 12 * time.Hour
)

// next returns when to sweep.
func (s *sweeper) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Add(sweepEvery)
}

// begin reports whether the caller is to sweep now.
func (s *sweeper) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.IsZero() && time.Since(s.last) < sweepEvery {
		return false
	}
	s.last = time.Now()
	return true
}

// again is told that a sweep was interrupted.
func (s *sweeper) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Time{}
}

// sweep deletes what is left over, if it is time to. What the servers refuse is
// left for the next time.
func (s *sweeper) sweep(ctx context.Context, inc *session.Incarnation) error {
	if !s.begin() {
		return nil
	}
	err := s.sweepSenders(ctx, inc)
	if err == nil || session.OutcomeOf(err) == session.Answered {
		return nil
	}
	s.again()
	return err
}

// sweepSenders deletes the journals of producers that nobody has written for long.
// Each is deleted at the version at which it was read, so not if it is written now.
func (s *sweeper) sweepSenders(ctx context.Context, inc *session.Incarnation) error {
	names, _, err := inc.Children(ctx, s.senders)
	if err != nil {
		return err
	}
	var paths []string
	for _, name := range names {
		if len(name) == len(noGUID) { // others stand in the line for room
			paths = append(paths, session.ChildPath(s.senders, name))
		}
	}
	if len(paths) == 0 {
		return nil
	}
	now, err := inc.Set(ctx, s.senders, nil, -1) // for the servers' time
	if err != nil {
		return err
	}
	nodes, err := inc.GetVisible(ctx, paths)
	if err != nil {
		return err
	}
	for i, n := range nodes {
		if n.Stat == nil || time.Duration(now.Mtime-n.Stat.Mtime)*time.Millisecond < abandonedAfter {
			continue
		}
		_, err := inc.Multi(ctx, &zk.DeleteRequest{Path: paths[i], Version: n.Stat.Version})
		if err != nil && session.OutcomeOf(err) != session.Answered {
			return err
		}
	}
	return nil
}
