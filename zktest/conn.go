package zktest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// This file serves one connection of a client: it reads requests, applies the faults of fault.go to
// them, and writes replies and events in order. ops.go, reads.go and session.go carry out the
// requests.

// The type `conn` is one connection of a client. Two goroutines serve it. The reader takes requests
// one by one and carries out each under Server.mu. The writer sends the bytes in `out`.
type conn struct {
	s      *Server
	nc     net.Conn
	at     *endpoint
	remote string // the client's address
	r      *bufio.Reader
	out    output
	opened time.Time

	done   chan struct{} // closed by `kill`
	killed sync.Once

	frame []byte    // buffer for packets; only the reader uses it
	reply []byte    // buffer for replies; only the reader uses it
	ops   []Request // buffer for decoding multis; only the reader uses it

	// Guarded by Server.mu.
	session   *session              // nil before the handshake
	ids       []identity            // the identities that the client has proved
	nonce     string                // of the SASL exchange under way, or ""
	watched   map[watchKey]struct{} // the keys of the client's watches in `at.view.watches`
	lastEvent int64                 // the number of the last event sent to the client, see nextEvent
	closing   bool                  // no further request is carried out
	now       string                // the current step of the reader, for Dump and for a Close that hangs
	op        Op                    // of the request, while `now` is intercepting
	path      string                // of the request, while `now` is intercepting
	received  int64                 // packets
	sent      int64                 // packets
}

// intercepting is the step of a reader that calls the function of [Server.Intercept].
const intercepting = "intercept"

// The method `start` serves nc, a connection from a client to e.
func (s *Server) start(nc net.Conn, e *endpoint) {
	c := &conn{
		s: s, nc: nc, at: e, remote: nc.RemoteAddr().String(),
		r:       bufio.NewReader(nc),
		out:     newOutput(nc),
		opened:  time.Now(),
		done:    make(chan struct{}),
		watched: map[watchKey]struct{}{},
		now:     "handshake",
	}
	host, _, _ := net.SplitHostPort(c.remote)
	c.ids = []identity{{"ip", host}}
	if s.certificate != "" {
		c.ids = append(c.ids, identity{"x509", s.certificate})
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !e.up {
		_ = nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.wg.Go(c.serve)
}

// The method `kill` ends the connection at once.
func (c *conn) kill() {
	c.killed.Do(func() {
		close(c.done)
		_ = c.nc.Close()
	})
}

// The method `finish` ends the connection after all queued bytes are sent to the client. Server.mu
// is held.
func (c *conn) finish() {
	if c.closing {
		return
	}
	c.closing = true
	if c.session == nil || c.s.partitions[c.session.id] == nil {
		// Without a deadline, a client that does not read would keep the connection open.
		_ = c.nc.SetWriteDeadline(time.Now().Add(lastWords + c.s.latency))
	}
	c.out.finish()
}

// The method `send` queues a packet for the client. Server.mu is held, so packets on every
// connection have the order of the transactions.
func (c *conn) send(b []byte) {
	c.sent++
	if c.out.append(b, c.s.latency) > outputLimit {
		c.kill()
	}
}

// The method `forget` removes from the server a connection that has ended.
func (c *conn) forget() {
	c.kill()
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	c.closing = true
	c.at.view.watches.removeAll(c)
	if c.session != nil && c.session.conn == c {
		c.session.conn = nil
	}
	delete(s.conns, c)
}

// The method `serve` is the reader.
func (c *conn) serve() {
	defer c.forget()
	first, err := c.r.Peek(4)
	if err != nil {
		return
	}
	if !c.lockUnpartitioned(0) {
		return
	}
	c.s.mu.Unlock()
	if answer, ok := c.s.fourLetter(string(first)); ok {
		_ = c.nc.SetWriteDeadline(time.Now().Add(lastWords))
		_, _ = c.nc.Write([]byte(answer))
		return
	}
	frame, ok := c.readFrame()
	if !ok {
		return
	}
	c.s.wg.Go(c.write)
	if c.handshake(frame) {
		for c.next() {
		}
	}
	// Wait until the writer has sent the last bytes or the client has closed the connection.
	// Discard further requests.
	_, _ = io.Copy(io.Discard, c.r)
}

// The method `next` reads one request and carries the request out. It reports whether another
// request may follow.
func (c *conn) next() bool {
	frame, ok := c.readFrame()
	if !ok {
		c.kill()
		return false
	}
	r, ok := decodeRequest(frame, &c.ops)
	if !ok {
		c.kill()
		return false
	}
	for c.out.size() > outputHigh {
		select {
		case <-c.out.room:
		case <-c.done:
			return false
		}
	}
	return c.carryOut(&r)
}

// readFrame reads a packet, which is valid until the next call. The buffer for a large packet grows
// only when its first bytes have arrived, because the client may send a wrong length.
func (c *conn) readFrame() ([]byte, bool) {
	length, err := c.r.Peek(4)
	if err != nil {
		return nil, false
	}
	n := int(int32(binary.BigEndian.Uint32(length)))
	_, _ = c.r.Discard(len(length))
	if n < 0 || n > c.s.maxBuffer {
		return nil, false
	}
	const step = 64 << 10
	if cap(c.frame) > outputHigh {
		c.frame = nil
	}
	frame := slices.Grow(c.frame[:0], min(n, step))[:min(n, step)]
	for read := 0; ; {
		m, err := io.ReadFull(c.r, frame[read:])
		if err != nil {
			return nil, false
		}
		read += m
		if read == n {
			c.frame = frame
			return frame, true
		}
		frame = slices.Grow(frame, n-read)[:n]
	}
}

// The method `write` is the writer.
func (c *conn) write() {
	defer c.kill()
	defer c.out.timer.Stop()
	var spare []byte
	for {
		b, gate, ok := c.out.take(spare)
		if !ok {
			return
		}
		switch {
		case b != nil:
			poke(c.out.room)
			if _, err := c.nc.Write(b); err != nil {
				return
			}
			if spare = b; cap(spare) > outputHigh {
				spare = nil
			}
		case gate != nil:
			select {
			case <-gate:
			case <-c.done:
				return
			}
		default:
			select {
			case <-c.out.wake:
			case <-c.out.timer.C:
			case <-c.done:
				return
			}
		}
	}
}

// The method `sleep` waits for d, or until the connection ends. It reports whether the connection
// is still open.
func (c *conn) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

// carryOut carries out one request, with the faults that apply to the request. It reports whether
// another request may follow.
func (c *conn) carryOut(r *Request) bool {
	s := c.s
	if !c.lockConnected() {
		return false
	}
	r.Session, r.RemoteAddr, r.Addr = c.session.id, c.remote, c.at.addr
	c.received++
	s.rouse()
	s.count(r.Op)
	s.touch(c.session)
	action := c.refuse(r)
	if f := s.intercept; f != nil && action == Pass {
		c.now, c.op, c.path = intercepting, r.Op, r.Path
		s.mu.Unlock()
		action = f(*r)
		if action.delay > 0 && !c.sleep(action.delay) {
			return false
		}
		if !c.lockConnected() {
			return false
		}
		c.now = ""
	}
	defer s.mu.Unlock()
	if s.member != nil {
		return s.member.take(c, r, action)
	}

	switch action.kind {
	case actDropRequest:
		c.finish()
		return false
	case actHang:
		c.hang()
		return false
	}
	b := startFrame(c.reply[:0])
	code := action.code
	if !c.fails(r, action) {
		b, code = s.handle(c, r, b)
	}
	if code != CodeOK {
		b = b[:frameStart]
	}
	zxid := c.at.view.tree.zxid
	if r.Op.proves() {
		zxid = 0
	}
	finishFrame(b, r.Xid, zxid, code)
	c.reply = b
	if cap(c.reply) > outputHigh {
		c.reply = nil
	}
	c.answer(r, action, b, code)
	return action.kind.repeats() && !c.closing
}

// The method `answer` sends b, the reply to r. For some actions, it sends only a part of b, or
// nothing. It ends the connection if no request may follow.
func (c *conn) answer(r *Request, action Action, b []byte, code int32) {
	switch action.kind {
	case actDropReply:
		c.finish()
		return
	case actHangReply:
		c.send(b[:4])
		c.hang()
		return
	case actDoze:
		c.doze()
	}
	c.send(b)
	if action.kind == actRefuse || r.Op == OpCloseSession || r.Op.proves() && code != CodeOK || code == CodeUnimplemented && opNames[r.Op] == "" {
		c.finish()
	}
}

// The method `repeats` reports whether another request may follow a request with an action of the
// kind k.
func (k actionKind) repeats() bool { return k == actPass || k == actFail || k == actDoze }

// The method `fails` reports whether an action of the kind k answers a request with a code, without
// carrying the request out.
func (k actionKind) fails() bool { return k == actFail || k == actRefuse }

// The method `fails` reports whether the server answers r with the code of the action. As ZooKeeper,
// the server looks for a znode before its ACL, so it carries out the read of a missing znode, and
// answers NoNode.
func (c *conn) fails(r *Request, action Action) bool {
	if action.kind == actFail && action.code == CodeNoAuth {
		switch r.Op {
		case OpExists, OpGetData, OpGetChildren, OpGetChildren2:
			return c.at.view.tree.get(r.Path) != nil
		}
	}
	return action.kind.fails()
}

// lockConnected waits for the end of a freeze or a partition that affects the connection, and then
// locks Server.mu. If the connection ends first, lockConnected returns false, and does not lock.
func (c *conn) lockConnected() bool {
	s := c.s
	for {
		s.mu.Lock()
		gate := s.stalled
		if gate == nil && c.session != nil {
			gate = s.partitions[c.session.id]
		}
		if gate == nil {
			if c.closing {
				s.mu.Unlock()
				return false
			}
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

// The method `doze` stops all unsent bytes until the next request or handshake. Server.mu is held.
func (c *conn) doze() {
	if c.s.dozing == nil {
		c.s.dozing = make(chan struct{})
	}
	c.out.shut(c.s.dozing)
}

// The method `rouse` is called when a request arrives. It ends every [Doze]. Server.mu is held.
func (s *Server) rouse() {
	if s.dozing != nil {
		close(s.dozing)
		s.dozing = nil
	}
}

// The method `hang` leaves the connection open, but sends nothing more on it. Server.mu is held.
func (c *conn) hang() {
	c.now = "hanging"
	c.out.silence()
}
