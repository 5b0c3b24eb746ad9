package netproxy

import (
	"context"
	"net"
	"sync"
	"time"
)

// This file forwards one client's connection, and applies the proxy's faults to it. netproxy.go
// chooses the faults.

// underWay is the maximum number of units that a link buffers in one direction.
const underWay = 256

// The type `link` is the connection of one client to the proxy, with the proxy's connection to a
// server for that client.
type link struct {
	p      *Proxy
	client net.Conn
	ctx    context.Context // ends when the link is dropped
	drop   context.CancelFunc

	mu        sync.Mutex
	losing    map[int32]bool // xids of requests whose reply is to be lost
	loseHello bool           // the reply to the connect request is to be lost
}

func newLink(p *Proxy, client net.Conn) *link {
	l := &link{p: p, client: client, losing: make(map[int32]bool)}
	l.ctx, l.drop = context.WithCancel(p.ctx)
	return l
}

// The method `run` forwards bytes in both directions until the link is dropped, and then closes
// both connections.
func (l *link) run() {
	defer l.client.Close()
	defer l.drop()
	if !l.passable() {
		return
	}
	server, err := l.p.dial(l.ctx)
	if err != nil {
		return // the client sees that the server has closed the connection
	}
	defer server.Close()

	var pumps sync.WaitGroup
	defer pumps.Wait()
	pumps.Go(func() { l.pump(server, l.client, l.request) })
	pumps.Go(func() { l.pump(l.client, server, l.reply) })

	<-l.ctx.Done()
	l.client.Close() // frees both pumps
	server.Close()
}

// The type `sent` is a unit with the time at which the proxy received it. last is true for the unit
// at the end of the stream.
type sent struct {
	unit
	at   time.Time
	last bool
}

// The method `pump` forwards units in order, with the latency and the partitions of the proxy. When
// either connection ends, pump drops the link. It calls inspect with each frame and the number of
// the frame. If inspect returns false, pump drops the link instead of forwarding the frame.
func (l *link) pump(to, from net.Conn, inspect func(n int, u unit) bool) {
	way := make(chan sent, underWay)
	var reading sync.WaitGroup
	defer reading.Wait() // after the drop, run closes the connection, so the reader ends
	defer l.drop()
	reading.Go(func() { l.read(from, way) })

	for n := 0; ; n++ {
		var s sent
		select {
		case s = <-way:
		case <-l.ctx.Done():
			return
		}
		if !l.arrived(s.at) || !l.passable() {
			return
		}
		if s.framed && !inspect(n, s.unit) {
			return
		}
		if _, err := to.Write(s.data); err != nil || s.last {
			return
		}
	}
}

// The method `read` splits the bytes of a connection into units, and sends them to the channel
// `way`.
func (l *link) read(from net.Conn, way chan<- sent) {
	cut := splitter{r: from}
	for {
		u, err := cut.next()
		select {
		case way <- sent{u, time.Now(), err != nil}:
		case <-l.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// The method `arrived` waits until the proxy's latency has passed since the time `at`. It reports whether the
// link is still open.
func (l *link) arrived(at time.Time) bool {
	wait := time.Until(at.Add(l.p.delay()))
	if wait <= 0 {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// The method `passable` waits until there is no partition, and reports whether the link is still
// open.
func (l *link) passable() bool {
	for {
		open := l.p.open()
		select {
		case <-open:
		case <-l.ctx.Done():
			return false
		}
		if l.p.open() == open {
			return l.ctx.Err() == nil
		}
		// The channel `open` was closed, but since then, another partition has begun.
	}
}

// The method `request` reports whether the client's n'th frame may pass. The first frame is the
// connect request; every other frame has the header {xid, op}.
func (l *link) request(n int, u unit) bool {
	xid, op := u.word(0), u.word(1)
	if n == 0 {
		xid, op = 0, OpConnect
	}
	switch l.p.judge(op, xid) {
	case DropRequest:
		return false
	case DropReply:
		l.mu.Lock()
		defer l.mu.Unlock()
		if n == 0 {
			l.loseHello = true
		} else {
			l.losing[xid] = true
		}
	}
	return l.ctx.Err() == nil
}

// The method `reply` reports whether the server's n'th frame may pass. The first frame is the reply
// to the connect request; every other frame has the header {xid, zxid, err}.
func (l *link) reply(n int, u unit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 {
		return !l.loseHello
	}
	return !l.losing[u.word(0)]
}
