//go:build linux

package chaos

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
)

// This file has the network of proxies, for systems without namespaces. The servers in it are the
// business of chaos.go.

// The type `proxies` is a network on loopback with a proxy for each ordered pair of servers. A
// server opens some connections for votes directly to the advertised address of the other server,
// so the proxies do not see them.
type proxies struct {
	clients [Servers + 1]int // ports
	quorum  [Servers + 1]int
	votes   [Servers + 1]int
	links   map[[2]int][2]*proxy // for each way: the proxy for the quorum, and the proxy for the votes

	mu    sync.Mutex
	moved *sync.Cond // signals every change of a field below
	shut  map[[2]int]bool
	ended bool
}

func newProxies() (*proxies, error) {
	p := &proxies{links: map[[2]int][2]*proxy{}, shut: map[[2]int]bool{}}
	p.moved = sync.NewCond(&p.mu)
	// Each listener finds a free port and releases it for the server.
	for _, ports := range []*[Servers + 1]int{&p.clients, &p.quorum, &p.votes} {
		for i := 1; i <= Servers; i++ {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			defer l.Close()
			ports[i] = l.Addr().(*net.TCPAddr).Port
		}
	}
	for i := 1; i <= Servers; i++ {
		for j := 1; j <= Servers; j++ {
			if i == j {
				continue
			}
			var pair [2]*proxy
			for k, port := range []int{p.quorum[j], p.votes[j]} {
				x, err := newProxy(p, i, j, port)
				if err != nil {
					p.close()
					return nil, err
				}
				pair[k] = x
			}
			p.links[[2]int{i, j}] = pair
		}
	}
	return p, nil
}

func (p *proxies) client(i int) string { return fmt.Sprintf("127.0.0.1:%d", p.clients[i]) }

func (p *proxies) members(i int) string {
	var b strings.Builder
	for j := 1; j <= Servers; j++ {
		quorum, votes := p.quorum[j], p.votes[j]
		if pair, ok := p.links[[2]int{i, j}]; ok {
			quorum, votes = pair[0].port(), pair[1].port()
		}
		fmt.Fprintf(&b, "server.%d=127.0.0.1:%d:%d\n", j, quorum, votes)
	}
	return b.String()
}

func (p *proxies) command(_ int, argv ...string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }

func (p *proxies) set(ways [][2]int, pass bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range ways {
		p.shut[w] = !pass
	}
	p.moved.Broadcast()
	return nil
}

// The method `wait` waits until the way from one server to another is open. It returns false if the
// network is closed first.
func (p *proxies) wait(from, to int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.shut[[2]int{from, to}] && !p.ended {
		p.moved.Wait()
	}
	return !p.ended
}

func (p *proxies) close() {
	p.mu.Lock()
	p.ended = true
	p.moved.Broadcast()
	p.mu.Unlock()
	for _, pair := range p.links {
		for _, x := range pair {
			x.close()
		}
	}
}

// The type `proxy` forwards the connections from one server to another.
type proxy struct {
	p        *proxies
	from, to int
	upstream string
	l        net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newProxy(p *proxies, from, to, port int) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	x := &proxy{p: p, from: from, to: to, upstream: fmt.Sprintf("127.0.0.1:%d", port), l: l, conns: map[net.Conn]struct{}{}}
	x.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			x.wg.Go(func() { x.serve(c) })
		}
	})
	return x, nil
}

func (x *proxy) port() int { return x.l.Addr().(*net.TCPAddr).Port }

func (x *proxy) serve(near net.Conn) {
	defer x.release(near)
	x.hold(near)
	if !x.p.wait(x.from, x.to) || !x.p.wait(x.to, x.from) { // like a TCP handshake, in both directions
		return
	}
	far, err := net.Dial("tcp", x.upstream)
	if err != nil {
		return
	}
	defer x.release(far)
	x.hold(far)
	var both sync.WaitGroup
	both.Go(func() { x.pump(far, near, x.from, x.to) })
	both.Go(func() { x.pump(near, far, x.to, x.from) })
	both.Wait()
}

func (x *proxy) hold(c net.Conn) {
	x.mu.Lock()
	x.conns[c] = struct{}{}
	x.mu.Unlock()
}

func (x *proxy) release(c net.Conn) {
	_ = c.Close()
	x.mu.Lock()
	delete(x.conns, c)
	x.mu.Unlock()
}

// The method `pump` forwards to dst all bytes from src, and then the end of the stream.
func (x *proxy) pump(dst, src net.Conn, from, to int) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if !x.p.wait(from, to) {
			return
		}
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				_ = src.Close()
				return
			}
		}
		if err != nil {
			_ = dst.Close()
			return
		}
	}
}

func (x *proxy) close() {
	if x == nil {
		return
	}
	_ = x.l.Close()
	x.mu.Lock()
	for c := range x.conns {
		_ = c.Close()
	}
	x.mu.Unlock()
	x.wg.Wait()
}
