package netproxy

import (
	"context"
	"net"
	"sync"
	"time"
)

// This file carries one client's connection, and applies the proxy's faults to it.

// underWay is how many units may be between a link's two ends in one direction.
const underWay = 256

// A link is one client's connection together with the connection made for it to a server.
type link struct {
	p      *Proxy
	client net.Conn
	ctx    context.Context // done when the link is dropped
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

// run carries bytes both ways until the link is dropped, then closes both connections.
func (l *link) run() {
	defer l.client.Close()
	defer l.drop()
	if !l.passable() {
		return
	}
	server, err := l.p.dial(l.ctx)
	if err != nil {
		return // for the client, as if the server hung up
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

// A sent unit is under way since at; the unit that ends the stream has last set.
type sent struct {
	unit
	at   time.Time
	last bool
}

// pump carries units from one connection to the other, in order, as the faults in force allow, until either
// ends; then it drops the link. For every frame, inspect gets the frame and its number and reports whether the
// frame may pass.
func (l *link) pump(to, from net.Conn, inspect func(n int, u unit) bool) {
	way := make(chan sent, underWay)
	var reading sync.WaitGroup
	defer reading.Wait() // run closes from once the link is dropped, which frees the reader
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

// read cuts what from receives into units and puts them on their way.
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

// arrived waits until a unit that was sent at the given time has been under way for the latency in force. It
// reports whether the link is still open.
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

// passable waits until there is no partition, and reports whether the link is still open.
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
		// Another partition has begun since open was closed.
	}
}

// request decides about the client's n'th frame. The first is the connect
// request; every other has the header {xid, op}.
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

// reply decides about the server's n'th frame. The first answers the connect
// request; every other has the header {xid, zxid, err}.
func (l *link) reply(n int, u unit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 {
		return !l.loseHello
	}
	return !l.losing[u.word(0)]
}
