package zktest

import (
	"maps"
	"slices"
	"time"
)

// This file does the timed work of a single server: sessions expire, containers are removed,
// lagging addresses catch up. way.go does the timed work of an ensemble.

// The method `clock` is the goroutine that ends sessions, reaps containers, and lets lagging
// addresses catch up, each at its time. Between these tasks the goroutine sleeps, so an idle server
// uses no CPU.
func (s *Server) clock() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.mu.Lock()
		next := s.elapse(time.Now())
		s.armed = next
		s.mu.Unlock()

		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-due:
		case <-s.wake:
		case <-s.quit:
			return
		}
	}
}

// The method `rearm` makes the clock call `elapse` at the given time or earlier. Server.mu is held.
func (s *Server) rearm(at time.Time) {
	if s.armed.IsZero() || at.Before(s.armed) {
		s.armed = at
		poke(s.wake)
	}
}

// The method `elapse` does all work that is due. It returns the time of the next work, or zero if
// there is none. Server.mu is held.
func (s *Server) elapse(now time.Time) (next time.Time) {
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if s.stopped {
		return next
	}
	var over []int64
	for id, x := range s.sessions {
		if x.deadline.After(now) {
			sooner(x.deadline)
		} else {
			over = append(over, id)
		}
	}
	slices.Sort(over)
	for _, id := range over {
		s.expire(s.sessions[id])
	}
	for _, e := range s.endpoints {
		if at, ok := e.advance(s, now); ok {
			sooner(at)
		}
	}
	if len(s.leader.tree.reapable) > 0 {
		if !s.reapAt.After(now) {
			if !s.reapAt.IsZero() {
				s.reap(now)
			}
			s.reapAt = now.Add(s.containerCheck)
		}
		sooner(s.reapAt)
	} else {
		s.reapAt = time.Time{}
	}
	return next
}

// The method `reap` deletes each childless node that is a container and has had children. It also
// deletes each childless node whose time to live is over.
func (s *Server) reap(now time.Time) {
	t := s.leader.tree
	for _, path := range slices.Sorted(maps.Keys(t.reapable)) {
		n := t.nodes[path]
		if len(n.children) > 0 {
			continue
		}
		if n.container && n.cversion > 0 || n.ttl > 0 && now.UnixMilli()-n.mtime > n.ttl {
			x := s.begin()
			ch := t.deletion(path)
			t.apply(x, &ch)
			x.changes = append(x.changes, ch)
			s.commit(x)
		}
	}
}

// oldestFirst returns paths in the order of the creation of their nodes.
func oldestFirst(t *tree, paths map[string]struct{}) []string {
	return slices.SortedFunc(maps.Keys(paths), func(a, b string) int {
		x, y := t.nodes[a], t.nodes[b]
		switch {
		case x.czxid < y.czxid:
			return -1
		case x.czxid > y.czxid:
			return 1
		case a < b:
			return -1
		}
		return 1
	})
}
