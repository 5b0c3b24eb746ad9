package zktest

import "time"

// This file makes an address of a single server lag: the address then serves an older copy of the
// tree. member.go has the lag of an ensemble's member.

// The type `view` is a tree with the watches on it. Server.leader is the current view, from which
// addresses serve reads. An address that lags has a view of its own; see [Server.Freeze].
type view struct {
	tree    *tree
	watches *watchTable
}

// The method `begin` returns a new transaction with the next zxid. A failed transaction takes a
// zxid, too.
func (s *Server) begin() *txn {
	s.leader.tree.zxid++
	return &txn{zxid: s.leader.tree.zxid, time: time.Now().UnixMilli()}
}

// The method `commit` publishes x, whose changes are already in the current tree. It fires the
// watches on the current view now, and adds x to the backlog of each endpoint that lags.
func (s *Server) commit(x *txn) {
	for i := range x.changes {
		s.fire(s.leader, &x.changes[i])
	}
	if len(s.leader.tree.reapable) > 0 && s.reapAt.IsZero() {
		s.rearm(s.epoch) // the epoch is in the past: call `elapse` now
	}
	for _, e := range s.endpoints {
		if e.lag == 0 {
			continue
		}
		now := time.Now()
		e.backlog = append(e.backlog, late{x, now})
		if e.lag != frozen {
			s.rearm(now.Add(e.lag))
		}
	}
}

// catchUp applies the backlog of e to its view.
func (e *endpoint) catchUp(s *Server) {
	for _, l := range e.backlog {
		e.replay(s, l.txn)
	}
	e.backlog = nil
}

// The method `replay` applies x to e's own view and fires the watches on it.
func (e *endpoint) replay(s *Server, x *txn) {
	for i := range x.changes {
		e.view.tree.apply(x, &x.changes[i])
	}
	e.view.tree.zxid = x.zxid
	for i := range x.changes {
		s.fire(e.view, &x.changes[i])
	}
}

// The method `advance` applies the transactions that are due. It returns the time of the next
// transaction, and false if there is none.
func (e *endpoint) advance(s *Server, now time.Time) (next time.Time, ok bool) {
	if e.lag == 0 || e.lag == frozen {
		return next, false
	}
	for len(e.backlog) > 0 {
		if next = e.backlog[0].at.Add(e.lag); next.After(now) {
			return next, true
		}
		e.replay(s, e.backlog[0].txn)
		e.backlog = e.backlog[1:]
	}
	return next, false
}

// setLag makes e lag by d. A d of 0 ends the lag.
func (s *Server) setLag(e *endpoint, d time.Duration) {
	if d == 0 {
		e.catchUp(s)
		s.moveWatches(e, s.leader)
	} else if e.lag == 0 {
		s.moveWatches(e, &view{tree: s.leader.tree.clone(), watches: newWatchTable()})
	}
	e.lag = d
	s.rearm(s.epoch) // the epoch is in the past: call `elapse` now
}

// moveWatches gives e another view with an equal tree, and moves the watches of e's clients there.
func (s *Server) moveWatches(e *endpoint, to *view) {
	from := e.view
	if from == to {
		return
	}
	for c := range s.conns {
		if c.at == e {
			from.watches.move(c, to.watches)
		}
	}
	e.view = to
}

// SetLag makes addr, an address of the server, lag by d: reads through addr return the tree as it
// was d earlier. A d of 0 ends the lag. As with a follower, a client never reads a state older than
// its own writes: a write, a new session or a sync through addr updates the state of addr. A watch
// that was set through addr fires when addr applies the change. addr refuses a client that has seen
// newer transactions through another address.
func (s *Server) SetLag(addr string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mustFind(addr)
	if s.member != nil {
		s.member.setLag(max(d, 0))
		return
	}
	s.setLag(e, max(d, 0))
}

// Freeze makes addr lag until [Server.Thaw]; see [Server.SetLag]. Reads through
// addr see no new transactions until a client of addr writes, syncs or begins a
// session.
func (s *Server) Freeze(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mustFind(addr)
	if s.member != nil {
		s.member.setLag(frozen)
		return
	}
	s.setLag(e, frozen)
}

// Thaw ends the lag of an address. The address applies all missing transactions at once.
func (s *Server) Thaw(addr string) {
	s.SetLag(addr, 0)
}
