// Package netproxy is a TCP proxy between a ZooKeeper client and a real server. It causes the faults that a
// server cannot be asked for: a partition, a dropped connection, a refused one, latency, a lost request, a lost
// reply.
package netproxy

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Proxy listens on loopback and passes what it gets to an upstream server.
// Its methods may be called from any goroutine.
type Proxy struct {
	tb       testing.TB
	addr     string
	upstream []string
	ctx      context.Context // done when the proxy is closed
	close    context.CancelFunc
	running  sync.WaitGroup // every goroutine of the proxy

	mu        sync.Mutex
	listener  net.Listener // nil while connections are refused
	links     map[*link]struct{}
	accepted  int
	next      int           // index of the upstream server that the next connection tries first
	latency   time.Duration // that every byte spends under way
	healed    chan struct{} // closed while there is no partition
	onRequest func(op, xid int32) Verdict
}

// A Verdict is the treatment of a client's request.
type Verdict int

const (
	// Pass forwards the request and its reply.
	Pass Verdict = iota
	// DropRequest drops the connection without forwarding the request: the server never sees it.
	DropRequest
	// DropReply forwards the request and drops the connection when the reply comes, without
	// forwarding that: the server has carried the request out, and the client cannot know.
	DropReply
)

// OpConnect is the op given to the [Proxy.OnRequest] function for a connect request,
// which has no header and so no op or xid of its own.
const OpConnect int32 = -10

// Start returns a running proxy in front of upstream: "host:port", or several, separated by commas. With
// several, each connection uses the next server that answers. The proxy is closed when the test ends.
func Start(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("netproxy: %v", err)
	}
	p := &Proxy{
		tb:       tb,
		addr:     l.Addr().String(),
		upstream: strings.Split(upstream, ","),
		links:    make(map[*link]struct{}),
		healed:   make(chan struct{}),
	}
	p.ctx, p.close = context.WithCancel(context.Background())
	close(p.healed)
	p.mu.Lock()
	p.serveLocked(l)
	p.mu.Unlock()
	tb.Cleanup(p.Close)
	return p
}

// Addr returns the address to dial, "127.0.0.1:port". It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Close drops every connection, stops listening, and returns when the proxy's goroutines
// have ended. Closing twice is no error.
func (p *Proxy) Close() {
	p.close()
	p.Refuse()
	p.Disconnect()
	p.running.Wait()
}

// Partition lets nothing pass in either direction from now on. Connections stay open, and new ones are
// accepted and stay silent. Neither side learns when the other hangs up. Bytes that have left the
// proxy already may still arrive.
func (p *Proxy) Partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.partitionedLocked() {
		p.healed = make(chan struct{})
	}
}

// Heal ends a partition. It delivers the bytes that were sent during the partition, as TCP does.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.partitionedLocked() {
		close(p.healed)
	}
}

// Disconnect drops all present connections, at once and on both sides.
func (p *Proxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.drop()
	}
}

// Refuse stops listening: new connections fail as if no server ran. Present connections stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// Accept listens again after [Proxy.Refuse].
func (p *Proxy) Accept() {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.ctx.Err() != nil {
		return
	}
	l, err := net.Listen("tcp", p.addr)
	for i := 0; err != nil && i < 6000; i++ { // a connection of another process may have the port for a while
		time.Sleep(10 * time.Millisecond)
		l, err = net.Listen("tcp", p.addr)
	}
	if err != nil {
		p.tb.Errorf("netproxy: cannot listen again: %v", err)
		return
	}
	p.serveLocked(l)
}

// SetLatency delays everything by d, in each direction, from now on. Order is kept,
// and many requests may be under way at once.
func (p *Proxy) SetLatency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// OnRequest makes the proxy ask f about every request from now on; nil lets all pass. The proxy calls f before
// it passes the request on: in order for each connection, and concurrently for several. f may call any method of
// p except Close. If f begins a partition, this request passes and nothing after it does, so the reply stays
// away.
func (p *Proxy) OnRequest(f func(op, xid int32) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onRequest = f
}

// Conns returns the number of client connections now open.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Accepted returns the number of connections that clients have made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// serveLocked accepts connections from l until it is closed. p.mu is held.
func (p *Proxy) serveLocked(l net.Listener) {
	p.listener = l
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				p.tb.Errorf("netproxy: accept: %v", err)
				return
			}
			p.admit(l, client)
		}
	})
}

// admit begins to serve client, unless l has been closed since it accepted client.
func (p *Proxy) admit(l net.Listener, client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != l {
		client.Close()
		return
	}
	p.accepted++
	k := newLink(p, client)
	p.links[k] = struct{}{}
	p.running.Go(func() {
		k.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, k)
	})
}

// dial connects to the next upstream server that answers.
func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	first := p.next
	p.next++
	p.mu.Unlock()
	var d net.Dialer
	var errs []error
	for i := range p.upstream {
		c, err := d.DialContext(ctx, "tcp", p.upstream[(first+i)%len(p.upstream)])
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// partitionedLocked reports whether there is a partition. p.mu is held.
func (p *Proxy) partitionedLocked() bool {
	select {
	case <-p.healed:
		return false
	default:
		return true
	}
}

// open returns a channel that is closed when there is no partition.
func (p *Proxy) open() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healed
}

// delay returns the latency in force.
func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latency
}

// judge asks the test about a request.
func (p *Proxy) judge(op, xid int32) Verdict {
	p.mu.Lock()
	f := p.onRequest
	p.mu.Unlock()
	if f == nil {
		return Pass
	}
	return f(op, xid)
}
