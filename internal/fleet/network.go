package main

import (
	"cmp"
	"encoding/binary"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// This file has the network between the processes and the members of the ensemble. The network can
// stall a direction and reset a connection. The file faults.go decides when.
//
// A network delivers each message at a separate instant. Virtual time advances only when every
// goroutine of the bubble waits, so all effects of a message are over before the next message
// arrives. The duration of a message follows from the seed, the connection, the direction, and the
// number of the message in that direction. So the duration does not depend on the order in which
// goroutines run.
type network struct {
	seed uint64
	base time.Duration // the scale of the duration of messages: see the method `takes`
	dial func(member int) (net.Conn, error)

	mu      sync.Mutex
	taken   map[int64]bool         // the instants at which messages arrive, in Unix nanoseconds; guarded by mu
	stalled map[wayOf]int          // by direction: how many faults stall it; guarded by mu
	cables  map[*cable]struct{}    // guarded by mu
	dials   map[int]int            // by process: the number of its dials; guarded by mu
	names   map[int]map[string]int // by process: the member behind each address; guarded by mu
}

// A wayOf is one direction between a process and a member.
type wayOf struct {
	process, member int
	up              bool // to the member
}

// The type `cable` is one connection.
type cable struct {
	n       *network
	process int
	member  int
	nth     int // the number of earlier dials of the process
	up      lane
	down    lane
	server  net.Conn
	client  *socket
}

// The type `lane` is one direction of a cable. The network's mu guards it.
type lane struct {
	c       *cable
	way     wayOf
	queue   []message   // in order
	timer   *time.Timer // calls `arrive` at the arrival of the first message of the queue; nil: none was sent
	count   uint64
	last    time.Time // the arrival of the last message in the queue
	deliver func(payload []byte)
}

// The type `message` is a number of bytes that arrive together. A nil payload is the end of the
// stream.
type message struct {
	payload []byte
	at      time.Time // the time of its arrival; zero while it is stalled
}

func newNetwork(seed uint64, base time.Duration, dial func(member int) (net.Conn, error)) *network {
	return &network{
		seed: seed, base: base, dial: dial,
		taken: map[int64]bool{}, stalled: map[wayOf]int{}, cables: map[*cable]struct{}{},
		dials: map[int]int{}, names: map[int]map[string]int{},
	}
}

// The function `mix` returns a hash of ns.
func mix(ns ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, n := range ns {
		h ^= n
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 27
		h *= 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// The method `takes` returns the duration of a message: usually up to three times the base,
// sometimes much longer.
func (n *network) takes(h uint64) time.Duration {
	d := n.base/2 + time.Duration(h%uint64(5*n.base/2))
	if h>>40%40 == 0 {
		d *= 20
	}
	return d
}

// The method `instant` returns the first instant, at t or later, at which no other message arrives.
func (n *network) instant(t time.Time) time.Time {
	for n.taken[t.UnixNano()] {
		t = t.Add(1)
	}
	n.taken[t.UnixNano()] = true
	return t
}

// The method `dialer` returns the dial function of a process. The k-th address that the process
// dials leads to the k-th member in `order`. So the program does not depend on the library's
// shuffle of the servers.
func (n *network) dialer(process int, order []int) func(network, address string, timeout time.Duration) (net.Conn, error) {
	return func(_, address string, timeout time.Duration) (net.Conn, error) {
		n.mu.Lock()
		names := n.names[process]
		if names == nil {
			names = map[string]int{}
			n.names[process] = names
		}
		member, ok := names[address]
		if !ok {
			member = order[len(names)%len(order)]
			names[address] = member
		}
		nth := n.dials[process]
		n.dials[process]++
		up, down := wayOf{process, member, true}, wayOf{process, member, false}
		blocked := n.stalled[up] > 0 // a stall in the other direction does not stop the dial
		n.mu.Unlock()
		trip := 2 * n.takes(mix(n.seed, 1, uint64(process), uint64(nth)))
		if blocked && timeout > 0 {
			trip = timeout - 1 // just before the end of the caller's context
		}
		time.Sleep(trip)
		if blocked {
			return nil, os.ErrDeadlineExceeded
		}
		server, err := n.dial(member)
		if err != nil {
			return nil, err
		}
		c := &cable{n: n, process: process, member: member, nth: nth, server: server}
		c.client = newSocket(c)
		c.up = lane{c: c, way: up, deliver: c.toServer}
		c.down = lane{c: c, way: down, deliver: c.toClient}
		n.mu.Lock()
		n.cables[c] = struct{}{}
		n.mu.Unlock()
		go c.hear()
		return c.client, nil
	}
}

// The method `hear` sends the bytes of the server to the process.
func (c *cable) hear() {
	buf := make([]byte, 4<<10)
	for {
		k, err := c.server.Read(buf)
		if k > 0 {
			c.send(&c.down, append([]byte(nil), buf[:k]...))
		}
		if err != nil {
			c.send(&c.down, nil)
			return
		}
	}
}

// The method `send` sends p as one message or as several. In the second case, the first messages
// have one packet each.
func (c *cable) send(l *lane, p []byte) {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		h := mix(n.seed, 2, uint64(c.process), uint64(c.nth), b2u(l.way.up), l.count)
		l.count++
		part := p
		if h>>32%2 == 0 && len(p) >= 4 {
			if k := 4 + int(binary.BigEndian.Uint32(p)); 4 < k && k < len(p) {
				part = p[:k]
			}
		}
		l.queue = append(l.queue, message{payload: part})
		if n.stalled[l.way] == 0 {
			l.schedule(len(l.queue)-1, n.takes(h))
		}
		if p = p[len(part):]; len(p) == 0 {
			return
		}
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// The method `schedule` makes message i of the queue arrive after d, and after all earlier messages.
func (l *lane) schedule(i int, d time.Duration) {
	at := time.Now().Add(d)
	if !at.After(l.last) {
		at = l.last.Add(1)
	}
	at = l.c.n.instant(at)
	l.queue[i].at, l.last = at, at
	if i == 0 {
		l.arm()
	}
}

// The method `arm` sets the timer to the arrival of the first message.
func (l *lane) arm() {
	switch {
	case len(l.queue) == 0 || l.queue[0].at.IsZero():
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Until(l.queue[0].at), l.arrive)
	default:
		l.timer.Reset(time.Until(l.queue[0].at))
	}
}

// The method `arrive` delivers the first message of the queue if the message is due.
func (l *lane) arrive() {
	n := l.c.n
	n.mu.Lock()
	if len(l.queue) == 0 || l.queue[0].at.IsZero() || l.queue[0].at.After(time.Now()) {
		n.mu.Unlock()
		return
	}
	m := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	delete(n.taken, m.at.UnixNano())
	l.arm()
	n.mu.Unlock()
	l.deliver(m.payload)
}

func (c *cable) toServer(payload []byte) {
	if payload == nil {
		c.server.Close()
		return
	}
	c.server.Write(payload) // a pipe of zktest never blocks in Write
}

func (c *cable) toClient(payload []byte) {
	c.client.arrive(payload)
	if payload == nil {
		c.n.mu.Lock()
		delete(c.n.cables, c)
		c.n.mu.Unlock()
	}
}

// The method `stall` holds all messages in one direction until the caller calls `resume`. Messages
// that have not arrived yet stall, too.
func (n *network) stall(w wayOf) (resume func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stalled[w]++; n.stalled[w] == 1 {
		n.lanes(w, func(l *lane) {
			for i := range l.queue {
				delete(n.taken, l.queue[i].at.UnixNano())
				l.queue[i].at = time.Time{}
			}
		})
	}
	return func() { n.resume(w) }
}

// The method `resume` ends one stall of a direction. After the last stall, the messages continue in
// order.
func (n *network) resume(w wayOf) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stalled[w]--; n.stalled[w] > 0 {
		return
	}
	n.lanes(w, func(l *lane) {
		for i := range l.queue {
			l.schedule(i, n.takes(mix(n.seed, 3, uint64(l.c.process), uint64(l.c.nth), l.count, uint64(i))))
		}
	})
}

// The method `open` ends one stall of a direction, calls f, and stalls the direction again.
func (n *network) open(w wayOf, f func()) {
	n.resume(w)
	f()
	n.stall(w)
}

// The method `lanes` calls f for each lane of a direction, in the order of the connections.
func (n *network) lanes(w wayOf, f func(l *lane)) {
	for _, c := range n.sorted() {
		if c.process != w.process || c.member != w.member {
			continue
		}
		if w.up {
			f(&c.up)
		} else {
			f(&c.down)
		}
	}
}

// The method `kill` resets the connections of a process to a member. If `member` is -1, it resets
// the connections to all members. Messages that the process has already sent still arrive, and then
// the end of the stream.
func (n *network) kill(process, member int) {
	n.mu.Lock()
	var all []*cable
	for _, c := range n.sorted() {
		if c.process == process && (member < 0 || c.member == member) {
			all = append(all, c)
			c.down.queue = nil
		}
	}
	n.mu.Unlock()
	for _, c := range all {
		c.client.reset()
	}
}

// The method `sorted` returns the cables by process, and by the number of the connection within a
// process.
func (n *network) sorted() []*cable {
	var all []*cable
	for c := range n.cables {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *cable) int { return cmp.Or(a.process-b.process, a.nth-b.nth) })
	return all
}

// The type `socket` is the process's end of a cable.
type socket struct {
	c       *cable
	mu      sync.Mutex
	changed *sync.Cond
	buf     []byte
	err     error     // the result of Read when `buf` is empty; guarded by mu
	closed  bool      // the process has closed the socket, or the connection was reset; guarded by mu
	readBy  time.Time // guarded by mu
	timer   *time.Timer
}

func newSocket(c *cable) *socket {
	s := &socket{c: c}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// The method `arrive` makes bytes from the member, or the end of the stream, available to Read.
func (s *socket) arrive(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil || s.closed:
	case p == nil:
		s.err = io.EOF
	default:
		s.buf = append(s.buf, p...)
	}
	s.changed.Broadcast()
}

// The method `reset` ends the connection for the process, at once.
func (s *socket) reset() {
	s.mu.Lock()
	if s.err == nil {
		s.err = syscall.ECONNRESET
	}
	s.buf = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	s.end()
}

// The method `end` sends the end of the stream to the member, after all earlier messages.
func (s *socket) end() {
	s.mu.Lock()
	over := s.closed
	s.closed = true
	s.mu.Unlock()
	if !over {
		s.c.send(&s.c.up, nil)
	}
}

func (s *socket) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed && s.err == nil:
			return 0, net.ErrClosed
		case !s.readBy.IsZero() && !time.Now().Before(s.readBy):
			return 0, os.ErrDeadlineExceeded
		case len(s.buf) > 0:
			k := copy(p, s.buf)
			s.buf = s.buf[k:]
			return k, nil
		case s.err != nil:
			return 0, s.err
		}
		s.changed.Wait()
	}
}

func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	over := s.closed || s.err != nil
	s.mu.Unlock()
	if over {
		return 0, net.ErrClosed
	}
	if len(p) > 0 {
		s.c.send(&s.c.up, append([]byte(nil), p...))
	}
	return len(p), nil
}

func (s *socket) Close() error {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
	if s.timer != nil {
		s.timer.Stop()
	}
	return nil
}

func (s *socket) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (s *socket) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }

func (s *socket) SetDeadline(t time.Time) error      { return s.SetReadDeadline(t) }
func (s *socket) SetWriteDeadline(t time.Time) error { return nil }

func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBy = t
	switch {
	case t.IsZero() || s.closed:
		if s.timer != nil {
			s.timer.Stop()
		}
	case s.timer != nil:
		s.timer.Reset(time.Until(t))
	default:
		s.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
	s.changed.Broadcast()
	return nil
}
