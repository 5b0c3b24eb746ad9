// Package netproxy is a TCP proxy between a ZooKeeper client and a real server. It causes
// partitions, closed and refused connections, latency, and lost requests and replies. It causes no
// faults of the server itself, such as a crash.
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

// A Proxy listens on loopback and forwards its connections to an upstream server. Its methods are
// safe for concurrent use.
type Proxy struct {
	tb       testing.TB
	addr     string
	upstream []string
	ctx      context.Context // ends when the proxy is closed
	close    context.CancelFunc
	running  sync.WaitGroup // counts the goroutines of the proxy

	mu        sync.Mutex
	listener  net.Listener // nil while the proxy refuses connections
	links     map[*link]struct{}
	accepted  int
	next      int           // the index of the upstream server that the next connection tries first
	latency   time.Duration // the delay of every byte
	healed    chan struct{} // closed while there is no partition
	onRequest func(op, xid int32) Verdict
}

// A Verdict is the decision of a test about a client's request.
type Verdict int

const (
	// Pass forwards the request and its reply.
	Pass Verdict = iota
	// DropRequest drops the connection without forwarding the request: the server never sees it.
	DropRequest
	// DropReply forwards the request, and drops the connection instead of forwarding the reply. The
	// server has carried out the request, but the client cannot know it.
	DropReply
)

// OpConnect is the op for a connect request in [Proxy.OnRequest]. A connect request has no header,
// so it has neither op nor xid.
const OpConnect int32 = -10

// Start returns a running proxy in front of upstream, which is one address "host:port", or several
// addresses separated by commas. If there are several, each connection uses the next server that
// answers. The proxy is closed at the end of the test.
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

// Partition stops all bytes in both directions. Connections stay open. The proxy accepts new
// connections, but forwards nothing on them. Neither side learns if the other closes its
// connection. Bytes that the proxy has already sent may still arrive.
func (p *Proxy) Partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.partitionedLocked() {
		p.healed = make(chan struct{})
	}
}

// Heal ends a partition. The bytes sent during the partition arrive now, as with TCP.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.partitionedLocked() {
		close(p.healed)
	}
}

// Disconnect closes all current connections at once, on both sides.
func (p *Proxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.drop()
	}
}

// Refuse stops listening: new connections fail as if no server ran. Current connections remain.
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
	for i := 0; err != nil && i < 6000; i++ { // another process may use the port for a short connection
		time.Sleep(10 * time.Millisecond) // real time: another process has the port
		l, err = net.Listen("tcp", p.addr)
	}
	if err != nil {
		p.tb.Errorf("netproxy: cannot listen again: %v", err)
		return
	}
	p.serveLocked(l)
}

// SetLatency delays all bytes by d in each direction. The bytes stay in order, and a client can
// send requests without waiting for earlier replies.
func (p *Proxy) SetLatency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// OnRequest makes the proxy call f before it forwards a request; a nil f lets all requests pass.
// The calls for one connection are in order, and calls for different connections may be concurrent.
// f may call any method of p except Close. If f begins a partition, the proxy still forwards this
// request, but no later bytes, so the reply does not arrive.
func (p *Proxy) OnRequest(f func(op, xid int32) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onRequest = f
}

// Conns returns the number of open client connections.
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

// serveLocked starts a goroutine that accepts connections from l until l is closed. p.mu is held.
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

// The method `admit` begins to serve the connection `client`, unless the proxy has closed the
// listener l after l accepted that connection.
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

// The method `dial` connects to the next upstream server that answers.
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

// The method `open` returns a channel that is closed at the end of the current partition, or is
// closed already.
func (p *Proxy) open() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healed
}

// The method `delay` returns the current latency.
func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latency
}

// The method `judge` returns the verdict of the test's function on a request.
func (p *Proxy) judge(op, xid int32) Verdict {
	p.mu.Lock()
	f := p.onRequest
	p.mu.Unlock()
	if f == nil {
		return Pass
	}
	return f(op, xid)
}
