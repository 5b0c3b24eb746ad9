package zktest

import (
	"maps"
	"slices"
	"time"
)

// This file has the faults of a single server: sessions that expire, lost requests and replies,
// partitions, latency, crashes. ensemble.go has the faults between the members of an ensemble.

// An Action says what happens to an intercepted request. The zero value is [Pass].
type Action struct {
	kind  actionKind
	code  int32
	delay time.Duration
}

type actionKind int8

const (
	actPass actionKind = iota
	actDropRequest
	actDropReply
	actHang
	actHangReply
	actDoze
	actFail
	actRefuse
)

var (
	// Pass carries out the request normally.
	Pass = Action{}

	// DropRequest loses the request: the server does not carry it out. The server sends the earlier
	// replies and closes the connection.
	DropRequest = Action{kind: actDropRequest}

	// DropReply loses the reply: the server carries out the request, but does not answer it. The
	// server sends the earlier replies and closes the connection.
	DropReply = Action{kind: actDropReply}

	// Hang makes the connection silent: the server does not carry out the request, discards all
	// later requests on the connection, and sends nothing more on it. The connection stays open
	// until the client or [Server.Disconnect] closes it. The session expires after its timeout.
	Hang = Action{kind: actHang}

	// HangReply carries out the request, and sends only the first four bytes of the reply: its
	// length. Then it acts like [Hang].
	HangReply = Action{kind: actHangReply}

	// Doze carries out the request, and sends nothing on the connection until the server receives
	// another request or handshake, from any client. Followers of ZooKeeper 3.6.0 to 3.8.0 sometimes
	// do that after a write (ZOOKEEPER-4537).
	Doze = Action{kind: actDoze}
)

// Fail answers the request with `code`, such as [CodeNoNode], and does not carry the request out.
// For a connect request, the only error in ZooKeeper's protocol is an expired session, so Fail
// answers with that error whatever the code is. A read of a znode that does not exist answers
// [CodeNoNode] instead of [CodeNoAuth], as ZooKeeper looks for the znode before its ACL.
func Fail(code int32) Action {
	return Action{kind: actFail, code: code}
}

// Delay carries out the request after the time d. Later requests on the same connection wait, too;
// requests on other connections do not wait.
func Delay(d time.Duration) Action {
	return Action{delay: d}
}

// Intercept makes the server call f for every later request, including pings, handshakes and auth,
// and carry out the action that f returns. A nil f ends the interception. f is called on the
// goroutine of the connection, so calls for different connections are concurrent. f may call the
// server's methods except Close. f must not change anything that the request points to.
func (s *Server) Intercept(f func(Request) Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Sessions returns the ids of all current sessions, in ascending order.
func (s *Server) Sessions() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sessions))
}

// Expire ends a session at once, as if its client had been silent for the session
// timeout. The server deletes the session's ephemerals and closes its connection.
// If the client reconnects, the server answers that the session has expired. If
// there is no such session, Expire does nothing.
func (s *Server) Expire(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != nil {
		s.member.e.expire(session)
	} else if x := s.sessions[session]; x != nil {
		s.expire(x)
	}
}

// Disconnect closes the connection of a session. Until the session expires, the client may
// reconnect and continue the session.
func (s *Server) Disconnect(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.session != nil && c.session.id == session {
			s.cut(c)
		}
	}
}

// Partition cuts off the client of a session: its connection stays open, but no
// packet arrives in either direction, and neither side learns of the cut. If the
// client connects again and asks for the same session, it gets no answer. The
// session expires after its timeout, and the client does not learn of it. The
// server reads the client's packets after [Server.Heal].
//
// If the client asks for a new session, it gets a new session, because the server cannot recognize
// the client. Partition does nothing for the session id 0, which a client without a session has.
func (s *Server) Partition(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session == 0 || s.partitions[session] != nil {
		return
	}
	gate := make(chan struct{})
	s.partitions[session] = gate
	for c := range s.conns {
		if c.session != nil && c.session.id == session {
			c.out.shut(gate)
		}
	}
}

// Heal ends a partition. All packets that the partition has stopped arrive.
func (s *Server) Heal(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gate := s.partitions[session]; gate != nil {
		close(gate)
		delete(s.partitions, session)
	}
}

// ChangeSession makes the server grant a new session when the client next asks to continue this
// session. ZooKeeper would continue the session or answer that the session has expired. But some
// other servers with ZooKeeper's protocol grant a new session. The old session remains until it
// expires.
func (s *Server) ChangeSession(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changeling[session] = true
}

// SetLatency delays every packet from the server by d, as a long network link does. A client can
// still send requests before the replies to earlier requests arrive.
func (s *Server) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// Stop crashes the server: it closes all connections at once, including connections of partitioned
// clients, and no address accepts new connections. The tree and the sessions survive, and no
// session expires before [Server.Restart].
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != nil {
		s.member.crash()
		return
	}
	s.stopped = true
	s.shutListeners()
	s.dropConns(nil)
}

// Restart makes all addresses accept connections again. Each session then lasts
// at least its whole timeout, so that its client can reconnect. If the server
// was not stopped, Restart only reopens the addresses that [Server.StopAddr]
// closed.
func (s *Server) Restart() {
	s.mu.Lock()
	if s.member != nil {
		s.member.restart()
	}
	if s.stopped {
		s.stopped = false
		for _, x := range s.sessions {
			x.touch(s)
		}
		s.rearm(s.epoch) // the epoch is in the past: call `elapse` now
	}
	s.mu.Unlock()
	for _, e := range s.endpoints {
		s.reopen(e)
	}
}

// StopAddr closes one address and its connections. The sessions remain and can move to the other
// addresses.
func (s *Server) StopAddr(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mustFind(addr)
	e.shut()
	s.dropConns(e)
}

// RestartAddr reopens an address that [Server.StopAddr] closed.
func (s *Server) RestartAddr(addr string) {
	s.reopen(s.mustFind(addr))
}
