package zktest

import (
	"maps"
	"slices"
	"time"
)

// This file has the faults of a single server: sessions that expire, lost
// requests and replies, partitions, latency, crashes. The faults between the
// members of an ensemble are in ensemble.go.

// An Action is the treatment of an intercepted request. The zero value is [Pass].
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
	actFail
	actRefuse
)

var (
	// Pass carries out the request normally.
	Pass = Action{}

	// DropRequest loses the request: it is not carried out. The server sends the
	// replies before it and closes the connection.
	DropRequest = Action{kind: actDropRequest}

	// DropReply loses the reply: the request is carried out. The server sends the
	// replies before it and closes the connection.
	DropReply = Action{kind: actDropReply}

	// Hang does not carry out the request, and sends nothing more on its
	// connection, which stays open until the client or a disconnection ends it.
	// The server throws away all further requests on it, so the session expires in
	// the end.
	Hang = Action{kind: actHang}

	// HangReply carries out the request and sends four bytes of the reply,
	// its length; then it is as [Hang].
	HangReply = Action{kind: actHangReply}
)

// Fail does not carry out the request and answers with code, such as [CodeNoNode].
// To a connect request, ZooKeeper can only answer that the session has expired; so
// does Fail, with any code.
func Fail(code int32) Action {
	return Action{kind: actFail, code: code}
}

// Delay carries out the request after d. The requests behind it on the same
// connection wait too; other connections do not.
func Delay(d time.Duration) Action {
	return Action{delay: d}
}

// Intercept makes f decide about every request from now on, including pings,
// handshakes and auth; nil ends that. f is called on the goroutine of the
// connection, and so concurrently for many connections. f may call the
// server's methods except Close. It must not change anything that the request
// points to.
func (s *Server) Intercept(f func(Request) Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Sessions returns the ids of the sessions that have not ended, in ascending order.
func (s *Server) Sessions() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sessions))
}

// Expire ends a session at once, as if the server had heard nothing of it for its
// timeout: it deletes its ephemerals and closes its connection. If the client
// comes back, the server answers that the session has expired. If there is no such
// session, Expire does nothing.
func (s *Server) Expire(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != nil {
		s.member.e.expire(session)
	} else if x := s.sessions[session]; x != nil {
		s.expire(x)
	}
}

// Disconnect closes the connection of a session. The session lives on, and its
// client may come back to it until it expires.
func (s *Server) Disconnect(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.session != nil && c.session.id == session {
			s.cut(c)
		}
	}
}

// Partition cuts off the client of a session: nothing passes in either direction,
// though its connection stays open and neither side learns of the cut. If the
// client connects again and asks for the same session, it gets no answer. The
// session expires when its timeout is over, and the client does not hear of that
// either. The client's packets are kept until [Server.Heal].
//
// A client that asks for a new session gets through: the server cannot know
// that it is the same client. A client that has no session at the moment has the
// id 0, and Partition does nothing.
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

// Heal ends a partition. Everything that was on its way arrives.
func (s *Server) Heal(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gate := s.partitions[session]; gate != nil {
		close(gate)
		delete(s.partitions, session)
	}
}

// ChangeSession makes the server grant a new session when the client next comes
// back to this one, expired or not. ZooKeeper would resume the session or answer
// that it has expired; other servers that speak its protocol do as ChangeSession
// does. A session that has not expired remains.
func (s *Server) ChangeSession(session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changeling[session] = true
}

// SetLatency delays every packet that the server sends by d, as a long link
// does: replies come later, but a client may still send requests without
// waiting for replies.
func (s *Server) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// Stop crashes the server: all connections are dropped at once, even of
// partitioned clients, and no address accepts new ones. The tree and the sessions
// survive, and no session expires before [Server.Restart].
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

// Restart accepts connections again, on all addresses. Each session gets its
// whole timeout for its client to come back. On a server that was not stopped
// it only brings back the addresses that [Server.StopAddr] took down.
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
		s.rearm(s.epoch) // in the past: look now
	}
	s.mu.Unlock()
	for _, e := range s.endpoints {
		s.reopen(e)
	}
}

// StopAddr takes one address down: its connections are dropped, and it accepts
// no new ones. The sessions live on and can move to the other addresses.
func (s *Server) StopAddr(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mustFind(addr)
	e.shut()
	s.dropConns(e)
}

// RestartAddr brings back an address that [Server.StopAddr] took down.
func (s *Server) RestartAddr(addr string) {
	s.reopen(s.mustFind(addr))
}
