package zktest

import "time"

// This file lets an address lag behind its server: each view has a tree and
// the watches on it.

// A view is a tree together with the watches left on it. The leader's view is
// the truth; every address serves reads from it, unless the address lags (see
// [Server.Freeze]), which gives it a view of its own.
type view struct {
	tree    *tree
	watches *watchTable
}

// begin begins a transaction. Every one, a failed one too, has a zxid.
func (s *Server) begin() *txn {
	s.leader.tree.zxid++
	return &txn{zxid: s.leader.tree.zxid, time: time.Now().UnixMilli()}
}

// commit publishes x, whose changes are already in the leader's tree: it fires the
// watches on the leader's view now, and on a lagging endpoint when its time comes.
func (s *Server) commit(x *txn) {
	for i := range x.changes {
		s.fire(s.leader, &x.changes[i])
	}
	if len(s.leader.tree.reapable) > 0 && s.reapAt.IsZero() {
		s.rearm(s.epoch) // in the past: look now
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

// catchUp applies all transactions that e lags behind.
func (e *endpoint) catchUp(s *Server) {
	for _, l := range e.backlog {
		e.replay(s, l.txn)
	}
	e.backlog = nil
}

// replay applies x to e's own view and fires the watches there.
func (e *endpoint) replay(s *Server, x *txn) {
	for i := range x.changes {
		e.view.tree.apply(x, &x.changes[i])
	}
	e.view.tree.zxid = x.zxid
	for i := range x.changes {
		s.fire(e.view, &x.changes[i])
	}
}

// advance applies the transactions that are due and reports when the next one is.
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

// setLag makes e lag by d from now on; 0 ends it.
func (s *Server) setLag(e *endpoint, d time.Duration) {
	if d == 0 {
		e.catchUp(s)
		s.moveWatches(e, s.leader)
	} else if e.lag == 0 {
		s.moveWatches(e, &view{tree: s.leader.tree.clone(), watches: newWatchTable()})
	}
	e.lag = d
	s.rearm(s.epoch) // in the past: look now
}

// moveWatches gives e another view, which has applied the same transactions.
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

// SetLag makes reads through addr, an address of the server, return the tree of
// d ago; 0 ends that. As on a
// follower, a client never sees a state from before its own writes: a write, a new
// session or a sync through addr brings addr up to that moment. Watches set
// through addr fire when addr sees the change. addr refuses a client that has seen
// newer transactions elsewhere.
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

// Freeze makes addr lag without end, see [Server.SetLag]: until [Server.Thaw],
// reads through addr see nothing new, except that the client's own requests
// bring addr up to date.
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

// Thaw ends the lag of an address: it catches up at once.
func (s *Server) Thaw(addr string) {
	s.SetLag(addr, 0)
}
