package zktest

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"time"
)

// This file has the sessions of a single server: handshakes, expiry, and the move of a session to
// another connection. In an ensemble, the leader has the sessions; see quorum.go.

const passwordLen = 16

// The type `session` is one ZooKeeper session. Server.mu guards it.
type session struct {
	id       int64
	password []byte
	timeout  time.Duration // granted at the session's first handshake
	granted  time.Duration // granted at its latest handshake; `touch` uses it
	deadline time.Time     // the time at which the session expires if the client stays silent; always the end of a tick
	conn     *conn         // nil while the client is not connected

	// Only in a member: the session's requests that the member has not answered, from this
	// connection and from earlier connections.
	queue []*pending
}

// The method `touch` moves the deadline after a sign of life of the session's client. As in
// ZooKeeper, the session expires at the first tick after its timeout.
func (x *session) touch(s *Server) {
	quiet := time.Since(s.epoch) + x.granted
	x.deadline = s.epoch.Add((quiet/s.tick + 1) * s.tick)
}

// The method `touch` is called when the server has received a packet from the client of x.
func (s *Server) touch(x *session) {
	if s.member != nil {
		s.member.touch(x.id, x.granted)
		return
	}
	x.touch(s)
}

// newSession begins a session. That is a transaction, so it takes a zxid.
func (s *Server) newSession(timeout time.Duration) *session {
	s.lastSession++
	x := &session{id: s.lastSession, password: make([]byte, passwordLen), timeout: timeout, granted: timeout}
	_, _ = rand.Read(x.password)
	s.sessions[x.id] = x
	s.commit(s.begin())
	x.touch(s)
	s.rearm(x.deadline)
	return x
}

// endSession removes the session and, in one transaction, its ephemerals. It does not close the
// connection.
func (s *Server) endSession(x *session) {
	delete(s.sessions, x.id)
	t := s.leader.tree
	txn := s.begin()
	for _, path := range oldestFirst(t, t.ephemerals[x.id]) {
		ch := t.deletion(path)
		t.apply(txn, &ch)
		txn.changes = append(txn.changes, ch)
	}
	s.commit(txn)
}

// The method `expire` ends the session and closes its connection.
func (s *Server) expire(x *session) {
	s.endSession(x)
	if x.conn != nil {
		x.conn.finish()
		x.conn = nil
	}
}

// The method `handshake` answers the first packet of the connection. It reports whether requests
// may follow.
func (c *conn) handshake(frame []byte) bool {
	s := c.s
	r, ok := decodeConnect(frame)
	if !ok {
		c.kill()
		return false
	}
	r.RemoteAddr, r.Addr = c.remote, c.at.addr
	if !c.lockUnpartitioned(r.Session) {
		return false
	}
	c.received++
	s.rouse()
	s.count(OpConnect)
	action := Pass
	if f := s.intercept; f != nil {
		c.now, c.op, c.path = intercepting, OpConnect, ""
		s.mu.Unlock()
		action = f(r)
		if action.delay > 0 && !c.sleep(action.delay) {
			return false
		}
		if !c.lockUnpartitioned(r.Session) {
			return false
		}
	}
	wait, ok := c.greet(&r, action)
	s.mu.Unlock()
	if wait == nil {
		return ok
	}
	select {
	case ok = <-wait:
	case <-c.done:
		ok = false
	}
	return ok
}

// The method `greet` carries out the handshake r, with Server.mu held. It returns whether requests
// may follow, or a channel that receives this result later.
func (c *conn) greet(r *Request, action Action) (wait <-chan bool, ok bool) {
	s := c.s
	if c.closing {
		return nil, false
	}
	c.now = ""
	switch action.kind {
	case actDropRequest:
		c.finish()
		return nil, false
	case actHang:
		c.hang()
		return nil, false
	}
	// A server must not serve a client that has seen a newer transaction, because the client would
	// then see an older state. ZooKeeper closes the connection without a reply.
	if r.zxid > c.at.view.tree.zxid {
		c.finish()
		return nil, false
	}
	if s.member != nil {
		return s.member.connect(c, r, action)
	}
	var x *session
	if !action.kind.fails() {
		x = s.resume(c, r)
	}
	return nil, c.welcome(x, r, action)
}

// The method `welcome` answers the handshake r. If x is nil, the reply says that the session has
// expired. Otherwise x is the client's session. The method reports whether requests may follow.
func (c *conn) welcome(x *session, r *Request, action Action) bool {
	b := connectReply(c.reply[:0], x, r.readOnly)
	switch action.kind {
	case actDropReply:
		c.finish()
		return false
	case actHangReply:
		c.send(b[:4])
		c.hang()
		return false
	case actDoze:
		c.doze()
	}
	c.send(b)
	if x == nil {
		c.finish()
	}
	return x != nil
}

// The method `resume` returns the session that a connect request asks for, and moves it to c. If
// the request names no session, `resume` begins one. If the session has expired or the password is
// wrong, `resume` returns nil.
func (s *Server) resume(c *conn, r *Request) *session {
	timeout := s.grant(r)
	id := r.Session
	if s.changeling[id] {
		delete(s.changeling, id)
		id = 0
	}
	var x *session
	if id == 0 {
		x = s.newSession(timeout)
		c.at.catchUp(s)
	} else {
		x = s.sessions[id]
		// ZooKeeper closes the old connection before it looks at the password.
		if x != nil {
			x.leave(c)
		}
		if x == nil || !bytes.Equal(x.password, r.password) {
			return nil
		}
	}
	x.granted = timeout
	c.adopt(x)
	x.touch(s)
	s.rearm(x.deadline)
	return x
}

// The method `leave` closes the connection of x, unless that connection is c.
func (x *session) leave(c *conn) {
	if x.conn != nil && x.conn != c {
		x.conn.finish()
		x.conn = nil
	}
}

// The method `adopt` makes c the connection of x.
func (c *conn) adopt(x *session) {
	x.conn = c
	c.session = x
	if gate := c.s.partitions[x.id]; gate != nil {
		c.out.shut(gate)
	}
}

// The method `grant` returns the session timeout for the connect request r.
func (s *Server) grant(r *Request) time.Duration {
	return min(max(time.Duration(r.timeout)*time.Millisecond, s.minTimeout), s.maxTimeout)
}

// connectReply appends the reply to a connect request. If x is nil, the reply says that the session
// has expired.
func connectReply(b []byte, x *session, readOnly bool) []byte {
	expired := session{password: make([]byte, passwordLen)}
	if x == nil {
		x = &expired
	}
	b = appendInt32(b, 0) // length
	b = appendInt32(b, 0) // protocol version
	b = appendInt32(b, int32(x.granted/time.Millisecond))
	b = appendInt64(b, x.id)
	b = appendBuffer(b, x.password)
	if readOnly {
		b = appendBool(b, false) // this is no read-only server
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// lockUnpartitioned waits for the end of a freeze or of a partition of the session `id`, and then
// locks Server.mu. If the connection ends first, lockUnpartitioned returns false, and does not
// lock.
func (c *conn) lockUnpartitioned(id int64) bool {
	s := c.s
	for {
		s.mu.Lock()
		gate := s.stalled
		if gate == nil {
			gate = s.partitions[id]
		}
		if gate == nil {
			return true
		}
		s.mu.Unlock()
		select {
		case <-gate:
		case <-c.done:
			return false
		}
	}
}
