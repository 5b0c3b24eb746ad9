package zktest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// This file has the addresses of a server: it accepts connections over TCP or in memory, and opens
// and closes addresses. conn.go serves the connections.

// The type `endpoint` is one address that clients connect to. Server.mu guards it.
type endpoint struct {
	addr   string // never changes once the server is made
	up     bool
	listen net.Listener // nil in a bubble, and while the address is down
	view   *view

	// Only for an endpoint that lags.
	lag     time.Duration // how far `view` is behind; `frozen` is a lag without end
	backlog []late        // transactions not yet applied to `view`
}

// The type `late` is a transaction that a lagging endpoint has not applied yet.
type late struct {
	txn *txn
	at  time.Time // when the leader committed it
}

const frozen = time.Duration(1<<63 - 1)

// inBubble reports whether the caller runs in a testing/synctest bubble. Go has no function for
// this, but the first line of a stack trace names the bubble.
func inBubble() bool {
	b := make([]byte, 256)
	b = b[:runtime.Stack(b, false)]
	header, _, _ := bytes.Cut(b, []byte("\n"))
	return bytes.Contains(header, []byte("synctest bubble"))
}

// lastPort counts the invented ports, for servers in bubbles and for the client's end of
// connections in memory. The ports run from 20000 to 59999, and then from 20000 again.
var lastPort atomic.Int32

func madeUpPort() int {
	return 20000 + int(uint32(lastPort.Add(1))%40000)
}

// The method `listen` opens e for connections. The first call sets e.addr to the address with the
// real port. Later calls use the same address.
func (s *Server) listen(e *endpoint) error {
	if s.bubble {
		host, port, err := net.SplitHostPort(e.addr)
		if err != nil {
			return err
		}
		if port == "0" {
			e.addr = net.JoinHostPort(host, strconv.Itoa(madeUpPort()))
		}
		e.up = true
		return nil
	}
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		return err
	}
	// Later calls do not write e.addr, because other goroutines may read it.
	if addr := l.Addr().String(); addr != e.addr {
		e.addr = addr
	}
	e.listen, e.up = l, true
	return nil
}

// The method `accept` starts a goroutine that accepts connections from e's listener until the
// listener is closed.
func (s *Server) accept(e *endpoint) {
	l := e.listen
	if l == nil {
		return
	}
	s.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err == nil {
				s.start(nc, e)
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// The process may be out of file descriptors, so wait and try again.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-s.quit:
				return
			}
		}
	})
}

// The method `shut` closes e. From then on, e refuses connections. Server.mu is held, or no other
// goroutine has the server yet.
func (e *endpoint) shut() {
	e.up = false
	if e.listen != nil {
		_ = e.listen.Close()
		e.listen = nil
	}
}

func (s *Server) shutListeners() {
	for _, e := range s.endpoints {
		e.shut()
	}
}

// The method `reopen` opens e again. If another process still uses the port after a minute,
// `reopen` panics, as NewServer does.
func (s *Server) reopen(e *endpoint) {
	var err error
	for range 3000 { // the tries take a minute: another process may use the port for a short connection
		s.mu.Lock()
		if s.closed || e.up || s.stopped || s.member != nil && !s.member.up { // Restart reopens all addresses
			s.mu.Unlock()
			return
		}
		if err = s.listen(e); err == nil {
			s.accept(e)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
	panic("zktest: cannot listen again: " + err.Error())
}

// The method `find` returns the endpoint with the address, or nil. The host "localhost" matches
// every endpoint with the same port. An endpoint with an address such as 0.0.0.0 matches every
// host.
func (s *Server) find(address string) *endpoint {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	for _, e := range s.endpoints {
		h, p, _ := net.SplitHostPort(e.addr)
		if p == port && (h == host || host == "localhost" || net.ParseIP(h).IsUnspecified()) {
			return e
		}
	}
	return nil
}

// mustFind is like `find`, but panics if the server does not have the address. Exported methods
// call it with their arguments.
func (s *Server) mustFind(addr string) *endpoint {
	e := s.find(addr)
	if e == nil {
		panic("zktest: " + addr + " is no address of this server")
	}
	return e
}

// Dial connects to the server in memory, without the network. It is a zk.Dialer for go-zookeeper.
// Like TCP, it returns an error if the address is stopped or is not the server's. Dial never waits,
// so it ignores `timeout`. A server that was made in a [testing/synctest] bubble must be dialled
// from within that bubble.
func (s *Server) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	s.mu.Lock()
	e := s.find(address)
	refused := s.closed || e == nil || !e.up
	s.mu.Unlock()
	if refused {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: textAddr(address), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	client := net.JoinHostPort("127.0.0.1", strconv.Itoa(madeUpPort()))
	near, far := newPipe(textAddr(client), textAddr(e.addr))
	s.start(far, e)
	return near, nil
}

// A textAddr is the net.Addr of an address in text form.
type textAddr string

func (a textAddr) Network() string { return "tcp" }
func (a textAddr) String() string  { return string(a) }
