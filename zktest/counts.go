package zktest

import (
	"maps"
	"slices"
)

// This file counts requests, events, watches, sessions, znodes and connections, so that a test can
// check the cost of a piece of code. It does not limit them.

// Counts has counters of a server's work since its start, and the present sizes of its state.
type Counts struct {
	// Requests has the number of requests of each kind that have arrived, by the names of [Op.String].
	// It includes intercepted requests, but no pings. A handshake counts as "connect", and a multi
	// counts as one request.
	Requests map[string]int64

	Pings         int64
	Notifications int64 // watch events sent to clients

	Watches     int // current watches: one for each connection, path and kind
	Sessions    int // sessions that have not ended
	Znodes      int // including the 4 that every server has
	Connections int // open connections
}

// Counts returns the present counts. To see the cost of a piece of code, take the counts before and
// after the code, and use [Counts.Sub].
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Counts{
		Requests:      make(map[string]int64, len(s.requests)),
		Pings:         s.requests[OpPing],
		Notifications: s.notifications,
		Watches:       s.leader.watches.count,
		Sessions:      len(s.sessions),
		Znodes:        len(s.leader.tree.nodes),
		Connections:   len(s.conns),
	}
	for _, e := range s.endpoints {
		if e.view != s.leader {
			c.Watches += e.view.watches.count
		}
	}
	for op, n := range s.requests {
		if op != OpPing {
			c.Requests[op.String()] += n
		}
	}
	return c
}

// Total returns the number of requests of all kinds. Pings are not among them.
func (c Counts) Total() int64 {
	var total int64
	for _, n := range c.Requests {
		total += n
	}
	return total
}

// Sub returns the difference between c and an earlier Counts. The result leaves out kinds of
// requests whose counts are equal.
func (c Counts) Sub(earlier Counts) Counts {
	d := c
	d.Requests = maps.Clone(c.Requests)
	for name, n := range earlier.Requests {
		if d.Requests[name] -= n; d.Requests[name] == 0 {
			delete(d.Requests, name)
		}
	}
	d.Pings -= earlier.Pings
	d.Notifications -= earlier.Notifications
	d.Watches -= earlier.Watches
	d.Sessions -= earlier.Sessions
	d.Znodes -= earlier.Znodes
	d.Connections -= earlier.Connections
	return d
}

// The method `count` counts a request that has arrived. All unknown kinds count as one kind, so
// that a client cannot fill the memory with unknown kinds. Server.mu is held.
func (s *Server) count(op Op) {
	if _, ok := opNames[op]; !ok {
		op = 0
	}
	s.requests[op]++
}

// A Watch is a watch of a client, on a node or on the list of its children.
type Watch struct {
	Path     string
	Children bool // true: on the list of the node's children; false: on the node, which may not exist
}

// Watches returns the watches that a session has at this server, sorted by path. A session without
// a connection has none, because its client sets the watches again after a reconnection.
func (s *Server) Watches(session int64) []Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	var watches []Watch
	for c := range s.conns {
		if c.session == nil || c.session.id != session {
			continue
		}
		for _, key := range slices.SortedFunc(maps.Keys(c.watched), compareKeys) {
			watches = append(watches, Watch{Path: key.path, Children: key.children})
		}
	}
	return watches
}
