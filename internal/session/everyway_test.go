package session

// This file lets a session leave servers, and return to them, in every way that a model of the servers
// allows. The code under test is `serve` with all that it calls: trail, pacer, writeAfter and package
// conn. The model has three servers, their leader, and the network.
//
// The model has these assumptions of docs/guarantees.md:
//
//   - zookeeper: The messages of a server reach the leader in order, or not at all. A handshake makes
//     its server the session's owner at once. All other requests wait in the leader's queue. The
//     leader refuses a request if another server is the owner by then. A server that loses its leader
//     closes its connections, and a new leader knows no owner.
//   - late-writes: After the client has closed a connection, the server passes on its requests within
//     SyncLimit, or never. A server that closes a connection during the handshake has not passed on
//     that handshake.
//   - commits: The leader's queue delays no request by SyncLimit.
//
// Time passes in steps. All that happens between two steps may come in any order. The client may choose
// any server that is not avoided.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/explore"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/wire"
)

// A journey bounds the events of a run.
type journey struct {
	writes    int  // of the client
	unique    bool // the first write is a deletion that is repeated
	moves     int  // connections that end, handshakes included
	steps     int  // of time
	losses    int  // servers whose messages to the leader are lost
	elections int
	holds     bool // each connection begins with a write
}

const (
	timeStep = 6 * time.Second // two steps are longer than SyncLimit, and four are longer than twice SyncLimit
	noOwner  = -1
)

// The kinds of messages. A write has its number as its kind.
const (
	aHandshake = -1 - iota
	aSync
	aFlush
)

// A lateMessage is on its way from a server to the leader, or in the leader's queue.
type lateMessage struct {
	kind   int
	xid    int32
	socket *lateSocket // the connection on which the client sent it
	sent   time.Time
}

// A lateWrite is a write of the client.
type lateWrite struct {
	*Pending[struct{}]
	socket *lateSocket
	guard  int // number of guards when the write was left to one
}

func (w *lateWrite) failed() bool { return IsClosed(w.Done) && w.Err != nil }

// A lateSocket is the client's end of a connection. The session's goroutine reads from it, and each
// read makes the next choices.
type lateSocket struct {
	net.Conn          // nil
	s        *travels // changes only in the session's goroutine, except `fresh`
	server   int
	in       []byte    // replies
	taken    bool      // the server has taken the handshake
	open     bool      // the handshake was answered
	closed   time.Time // zero: it is not
	flushes  int       // without a reply
}

// travels is one run.
type travels struct {
	*explore.Run
	journey
	inc    *Incarnation
	links  [3][]lateMessage // from each server to the leader
	queue  []lateMessage    // of the leader
	owner  int              // the session's server
	writes []*lateWrite
	guards []time.Time // the calls of writeAfter, by their argument
	proofs int         // replies to flushes
	broken time.Time   // a flush failed
	silent bool        // a server was silent to a handshake
	begun  bool        // the first server has caught up
	rest   int         // steps of time at the end

	mu    sync.Mutex
	fresh []freshBytes // guarded by mu
}

// freshBytes were written by the client, and the server has not seen them yet.
type freshBytes struct {
	socket *lateSocket
	p      []byte
	at     time.Time
}

var travelHosts = []string{"a:1", "b:1", "c:1"}

func (j journey) everyWay(t *testing.T, r *explore.Run) {
	var ended any
	harness.VirtualTime(t, func(t *testing.T) {
		defer func() { ended = recover() }() // the run must end in its bubble first
		s := &travels{Run: r, journey: j, owner: noOwner, rest: 5}
		cfg := testConfig()
		cfg.Timeout, cfg.Retry = SyncLimit, RetryPolicy{}
		cfg.Dialer = func(_, addr string, _ time.Duration) (net.Conn, error) {
			return &lateSocket{s: s, server: slices.Index(travelHosts, addr)}, nil
		}
		m := &Manager{Config: cfg, Hosts: travelHosts, Log: cfg.Log, Over: make(chan struct{}), tried: map[string]error{}, phase: &phase{over: make(chan struct{})}, outage: true}
		m.told, m.Pace = m.phase, pacer{hosts: travelHosts}
		s.inc = newIncarnation(m)
		s.inc.ID.Store(7)
		s.inc.begun = true
		s.inc.conns.CaughtUp = s.caughtUp
		if j.holds {
			s.inc.stakes = 1
		}
		m.cur = s.inc
		defer func() {
			s.inc.cancel(ErrClosed)
			c := s.inc.NewestConn()
			conn.Fail(c.Over())
			c.Close()
			m.wg.Wait()
		}()
		s.inc.serve()
		s.Fail("the session has ended")
	})
	if ended != nil {
		panic(ended)
	}
}

func (c *lateSocket) Write(p []byte) (int, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.fresh = append(c.s.fresh, freshBytes{c, bytes.Clone(p), time.Now()})
	return len(p), nil
}

func (c *lateSocket) Read(p []byte) (n int, err error) {
	// The model decides whether a server was silent for too long.
	timer := reflect.ValueOf(c.s.inc.NewestConn()).Elem().FieldByName("timer")
	(*time.Timer)(timer.UnsafePointer()).Stop()
	for len(c.in) == 0 {
		synctest.Wait()
		c.s.take()
		c.s.At(func() string { return c.s.state(c) })
		next := c.s.next(c)
		if err := next[c.s.Pick(len(next))](); err != nil {
			c.s.inc.Manager.Pace.Next = c.s.Pick(len(travelHosts))
			return 0, err
		}
	}
	n = copy(p, c.in)
	c.in = c.in[n:]
	return n, nil
}

// Close forgets the syncs and flushes on this connection: without a client, they change nothing.
func (c *lateSocket) Close() error {
	s := c.s
	if c.closed = time.Now(); c.flushes > 0 {
		s.broken = c.closed
	}
	moot := func(m lateMessage) bool { return m.socket == c && (m.kind == aSync || m.kind == aFlush) }
	s.links[c.server] = slices.DeleteFunc(s.links[c.server], moot)
	s.queue = slices.DeleteFunc(s.queue, moot)
	return nil
}

// take lets the servers take what the client has written.
func (s *travels) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.fresh {
		c := f.socket
		for p := f.p; c.taken && len(p) > 0; {
			size := 4 + binary.BigEndian.Uint32(p)
			xid, op, body := int32(binary.BigEndian.Uint32(p[4:])), binary.BigEndian.Uint32(p[8:]), p[12:size]
			p = p[size:]
			m := lateMessage{aSync, xid, c, f.at}
			switch op {
			case wire.OpDelete:
				m.kind = slices.IndexFunc(s.writes, func(w *lateWrite) bool { return bytes.Contains(body, []byte(w.Call.Path)) })
				if m.kind < 0 {
					m.kind = aFlush
					c.flushes++
				}
			case wire.OpSync:
			default: // a ping
				continue
			}
			s.links[c.server] = append(s.links[c.server], m)
		}
	}
	s.fresh = nil
}

// next returns all that can happen next. If such a function returns an error, the connection c ends.
func (s *travels) next(c *lateSocket) (acts []func() error) {
	can := func(what string, i int, act func() error) {
		acts = append(acts, func() error {
			s.Note("%d s: "+what, time.Now().Second(), i)
			return act()
		})
	}
	ends := func(what string, err error) {
		if s.moves > 0 && s.begun {
			can(what, c.server, func() error {
				s.moves--
				s.silent = s.silent || !c.open && err != io.EOF
				return err
			})
		}
	}
	if s.settled() {
		s.moves, s.steps, s.losses, s.elections = 0, 0, 0, 0
	}
	if !c.taken {
		can("a handshake with server %d", c.server, func() error {
			c.taken = true
			s.links[c.server] = append(s.links[c.server], lateMessage{aHandshake, 0, c, time.Time{}})
			return nil
		})
		ends("a handshake with server %d, which is silent and does not read it", os.ErrDeadlineExceeded)
		ends("a handshake with server %d, which closes the connection", io.EOF)
		return acts
	}
	for i, l := range s.links {
		if len(l) > 0 {
			can("the leader gets a message of server %d", i, func() error { s.forward(i); return nil })
		}
	}
	if len(s.queue) > 0 {
		can("the leader looks at message %d", s.queue[0].kind, func() error { s.execute(); return nil })
	}
	if len(acts) > 0 && (!s.begun || s.settled()) {
		return acts[:1]
	}
	if len(s.writes) == 0 {
		can("a write over server %d", c.server, func() error { s.write(c); return nil })
		return acts
	}
	ends("the connection with server %d ends", os.ErrDeadlineExceeded)
	if c.open && len(s.writes) < s.journey.writes {
		can("a write over server %d", c.server, func() error { s.write(c); return nil })
	}
	for i, l := range s.links {
		if len(l) > 0 && s.losses > 0 {
			can("the leader drops server %d", i, func() error {
				s.losses--
				s.links[i] = nil
				if i == c.server {
					return io.EOF
				}
				return nil
			})
		}
	}
	if s.elections > 0 {
		can("election %d", s.elections, func() error {
			s.elections--
			s.links, s.queue, s.owner = [3][]lateMessage{}, nil, noOwner
			return io.EOF
		})
	}
	switch {
	case s.steps > 0 && s.mayWait():
		can("time passes, %d", s.steps, func() error { s.steps--; time.Sleep(timeStep); return nil })
	case len(acts) == 0 && s.rest > 0 && !s.quiet():
		can("time passes at the end, %d", s.rest, func() error { s.rest--; time.Sleep(timeStep); return nil })
	case len(acts) == 0:
		s.end(c)
	}
	return acts
}

func (s *travels) write(c *lateSocket) {
	call := DeleteCall(fmt.Sprintf("/w%d/", len(s.writes)), -1)
	call.Moot = s.unique && len(s.writes) == 0
	w := &lateWrite{NewPending(call), c, 0}
	s.writes = append(s.writes, w)
	if !s.inc.NewestConn().Send(w.Pending) {
		s.Fail("a connection takes no write")
	}
}

// settled reports whether all writes were sent, and none of them is on its way.
func (s *travels) settled() bool {
	write := func(m lateMessage) bool { return m.kind >= 0 }
	return len(s.writes) == s.journey.writes && !slices.ContainsFunc(s.queue, write) &&
		!slices.ContainsFunc(slices.Concat(s.links[:]...), write)
}

// quiet reports whether the client waits for nothing, and avoids no server.
func (s *travels) quiet() bool {
	for _, x := range s.inc.trail.left {
		if x.moved {
			return false
		}
	}
	return !slices.ContainsFunc(s.writes, func(w *lateWrite) bool { return !IsClosed(w.Done) })
}

// mayWait reports whether time may pass before a message moves on.
func (s *travels) mayWait() bool {
	for _, l := range s.links {
		if slices.ContainsFunc(l, func(m lateMessage) bool { return m.age() > SyncLimit-timeStep }) {
			return false
		}
	}
	return !slices.ContainsFunc(s.queue, func(m lateMessage) bool { return m.age() >= 2*SyncLimit-timeStep })
}

// age returns the time since the client has closed the message's connection.
func (m lateMessage) age() time.Duration {
	if m.socket.closed.IsZero() {
		return 0
	}
	return time.Since(m.socket.closed)
}

// forward lets the leader receive a message of a server.
func (s *travels) forward(server int) {
	m := s.links[server][0]
	s.links[server] = s.links[server][1:]
	if m.kind != aHandshake {
		s.queue = append(s.queue, m)
		return
	}
	s.owner = server
	if m.socket.closed.IsZero() {
		m.socket.open = true
		p := wire.AppendInt64(words(0, int64(SyncLimit/time.Millisecond)), 7)
		m.socket.in = frame(wire.AppendBuffer(p, make([]byte, 16)))
	}
}

// execute lets the leader look at the first message of its queue.
func (s *travels) execute() {
	m := s.queue[0]
	s.queue = s.queue[1:]
	if s.owner == noOwner {
		s.owner = m.socket.server
	}
	code := int32(0)
	switch {
	case s.owner != m.socket.server:
		code = wire.CodeSessionMoved
	case m.kind == aFlush:
		code = wire.CodeNoNode
	case m.kind >= 0:
		if w := s.writes[m.kind]; w.failed() && !w.Call.Moot {
			s.Fail("write %d is executed after it has failed", m.kind)
		}
	}
	if m.socket.closed.IsZero() {
		if m.kind == aFlush && code == wire.CodeNoNode {
			m.socket.flushes--
			s.proofs++
		}
		m.socket.in = append(m.socket.in, frame(replyTo(m.xid, code))...)
	}
}

// caughtUp calls the method of the incarnation. It fails if a write then waits without a reason.
func (s *travels) caughtUp(addr string) {
	var since time.Time
	for other, x := range s.inc.trail.left {
		if other != addr && !x.moved && x.at.After(since) {
			since = x.at
		}
	}
	s.inc.caughtUp(addr)
	s.begun = true
	if !since.IsZero() {
		s.guards = append(s.guards, since)
	}
	for i, w := range s.writes {
		if w.socket.closed.IsZero() || IsClosed(w.Done) || w.guard > 0 {
			continue
		}
		if w.guard = len(s.guards); w.Call.Moot || !s.silent {
			s.Fail("write %d waits, and it need not", i)
		}
	}
}

// end checks the last state, long after the last event.
func (s *travels) end(c *lateSocket) {
	for i, w := range s.writes {
		if !IsClosed(w.Done) {
			s.Fail("write %d has no outcome at the end", i)
		}
	}
	for _, addr := range travelHosts {
		if !s.inc.mayUse(addr) {
			s.Fail("server %s is avoided for ever", addr)
		}
	}
	if !c.open {
		s.Fail("the session has no server at the end")
	}
	s.End()
}

// state names the state, with times relative to now.
func (s *travels) state(c *lateSocket) string {
	var b strings.Builder
	ago := func(at time.Time) time.Duration {
		if at.IsZero() {
			return -1
		}
		return min(time.Since(at), 4*timeStep)
	}
	fmt.Fprint(&b, s.moves, s.steps, s.losses, s.elections, s.owner, s.proofs, s.silent, s.begun, s.rest, ago(s.broken) == 0, c.server, c.taken, c.open, c.flushes)
	for _, at := range s.guards {
		fmt.Fprint(&b, " guard", ago(at))
	}
	message := func(m lateMessage) {
		fmt.Fprint(&b, " ", m.kind, m.socket.server, ago(m.socket.closed))
		if m.socket.closed.IsZero() { // else the client gets no reply
			fmt.Fprint(&b, " sent", ago(m.sent))
		}
	}
	for i, addr := range travelHosts {
		b.WriteString(" |")
		for _, m := range s.links[i] {
			message(m)
		}
		if x, ok := s.inc.trail.left[addr]; ok {
			fmt.Fprint(&b, ago(x.at), x.asked, x.moved, min(max(s.inc.trail.written.Sub(x.at), -1), 4*timeStep))
		}
	}
	b.WriteString(" queue")
	for _, m := range s.queue {
		message(m)
	}
	for _, w := range s.writes {
		fmt.Fprint(&b, " write", w.socket.server, ago(w.socket.closed), IsClosed(w.Done), w.failed(), w.guard, slices.Contains(s.inc.trail.late, conn.Request(w.Pending)))
	}
	return b.String()
}

func TestEveryWayBackToAServerExecutesNoWriteThatHasFailed(t *testing.T) {
	harness.InMemory(t)
	journeys := []journey{{writes: 1, moves: 2, steps: 1}}
	if !harness.UnderRace {
		journeys = []journey{
			{writes: 1, moves: 2, steps: 2},
			{writes: 1, unique: true, moves: 2, steps: 1},
			{writes: 1, moves: 2, steps: 1, holds: true},
			{writes: 1, moves: 1, steps: 2, losses: 1, elections: 1},
		}
	}
	if harness.Long() {
		journeys = append(journeys,
			journey{writes: 1, moves: 2, steps: 4},
			journey{writes: 1, moves: 2, steps: 3, holds: true},
			journey{writes: 1, moves: 2, steps: 3, losses: 1, elections: 1},
			journey{writes: 1, moves: 3, steps: 3},
			journey{writes: 2, moves: 2, steps: 2},
		)
	}
	for _, j := range journeys {
		start := time.Now()
		found := explore.Retrying(1_000_000, 10, func(r *explore.Run) { j.everyWay(t, r) })
		t.Logf("%+v: %v, %v", j, found, time.Since(start).Round(time.Millisecond))
		if found.Fault != "" || found.Cut {
			t.Fatalf("%+v: %s", j, found.Fault)
		}
	}
}
