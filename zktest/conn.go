package zktest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// This file serves one connection of a client: it reads requests, applies the
// faults of fault.go to them, and writes replies and events in order. It does
// not carry requests out; see ops.go, reads.go and session.go.

// A conn is one connection of a client. Two goroutines serve it: the reader
// takes requests one by one and carries each out under Server.mu; the writer
// sends the bytes in output.
type conn struct {
	s      *Server
	nc     net.Conn
	at     *endpoint
	remote string // the client's address
	r      *bufio.Reader
	out    output
	opened time.Time

	done   chan struct{} // closed by kill
	killed sync.Once

	reply []byte    // the reader's, for building replies
	ops   []Request // the reader's, for decoding multis

	// Guarded by Server.mu.
	session   *session              // nil before the handshake
	ids       []identity            // the identities that the client has proved
	nonce     string                // of an exchange of SASL that has begun
	watched   map[watchKey]struct{} // what it watches, in at.view.watches
	lastEvent int64                 // the last event that was sent to it
	closing   bool                  // no further request is carried out
	now       string                // the step that the reader is at, for Dump and a Close that hangs
	received  int64                 // packets
	sent      int64                 // packets
}

// start serves nc, which a client opened to e.
func (s *Server) start(nc net.Conn, e *endpoint) {
	c := &conn{
		s: s, nc: nc, at: e, remote: nc.RemoteAddr().String(),
		r:       bufio.NewReaderSize(nc, 16<<10),
		out:     newOutput(),
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

// kill ends the connection at once.
func (c *conn) kill() {
	c.killed.Do(func() {
		close(c.done)
		_ = c.nc.Close()
	})
}

// finish ends the connection once everything queued for the client has left.
// Server.mu is held.
func (c *conn) finish() {
	if c.closing {
		return
	}
	c.closing = true
	if c.session == nil || c.s.partitions[c.session.id] == nil {
		// A client that does not read must not keep the connection open.
		_ = c.nc.SetWriteDeadline(time.Now().Add(lastWords + c.s.latency))
	}
	c.out.finish()
}

// send queues a packet for the client. Server.mu is held, which makes the
// order of the packets on every connection the order of the transactions.
func (c *conn) send(b []byte) {
	c.sent++
	if c.out.append(b, c.s.latency) > outputLimit {
		c.kill()
	}
}

// forget takes the connection, which has ended, out of the server.
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

// serve is the reader.
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
	// Stay until the writer has sent the last words or the client has closed the
	// connection. Further requests are thrown away.
	_, _ = io.Copy(io.Discard, c.r)
}

// next reads one request and carries it out. It reports whether there may be
// another.
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

// readFrame reads a packet. The buffer for a packet that claims to be large grows
// only as bytes arrive.
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
	frame := make([]byte, min(n, step))
	for read := 0; ; {
		m, err := io.ReadFull(c.r, frame[read:])
		if err != nil {
			return nil, false
		}
		read += m
		if read == n {
			return frame, true
		}
		frame = append(frame, make([]byte, min(n-read, len(frame)))...)
	}
}

// write is the writer.
func (c *conn) write() {
	defer c.kill()
	var spare []byte
	for {
		b, gate, wait, ok := c.out.take(spare)
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
		case wait > 0:
			if !c.sleep(wait) {
				return
			}
		default:
			select {
			case <-c.out.wake:
			case <-c.done:
				return
			}
		}
	}
}

// sleep waits for d and reports whether the connection is still there.
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

// carryOut carries out one request, faults included. It reports whether the
// connection takes another.
func (c *conn) carryOut(r *Request) bool {
	s := c.s
	if !c.lockConnected() {
		return false
	}
	r.Session, r.RemoteAddr, r.Addr = c.session.id, c.remote, c.at.addr
	c.received++
	s.count(r.Op)
	s.touch(c.session)
	action := c.refuse(r)
	if f := s.intercept; f != nil && action == Pass {
		c.now = "intercept " + r.Op.String() + " " + r.Path
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
	if !action.kind.fails() {
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

// answer sends b, the reply to r. If action drops or cuts the reply, it sends that
// part only.
func (c *conn) answer(r *Request, action Action, b []byte, code int32) {
	switch action.kind {
	case actDropReply:
		c.finish()
		return
	case actHangReply:
		c.send(b[:4])
		c.hang()
		return
	}
	c.send(b)
	if action.kind == actRefuse || r.Op == OpCloseSession || r.Op.proves() && code != CodeOK || code == CodeUnimplemented && opNames[r.Op] == "" {
		c.finish()
	}
}

// repeats reports whether the connection may take a request after one with
// such an action.
func (k actionKind) repeats() bool { return k == actPass || k == actFail }

// fails reports whether such an action answers with a code instead of carrying
// the request out.
func (k actionKind) fails() bool { return k == actFail || k == actRefuse }

// lockConnected locks Server.mu when the network lets the connection's bytes
// through. It reports false, without the lock, if the connection is over.
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

// hang makes the connection deaf and dumb, but leaves it open. Server.mu is held.
func (c *conn) hang() {
	c.now = "hanging"
	c.out.silence()
}
