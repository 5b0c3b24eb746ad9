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

// This file has the addresses of a server: it accepts connections over TCP or
// in memory, and takes addresses down and up. The connections themselves are
// in conn.go.

// An endpoint is one address that clients connect to. Server.mu guards it.
type endpoint struct {
	addr   string // never changes once the server is made
	up     bool
	listen net.Listener // nil in a bubble, and while it is down
	view   *view

	// Of an endpoint that lags.
	lag     time.Duration // how far behind; frozen means without end
	backlog []late        // transactions not yet applied to view
}

// A late is a transaction that an endpoint has yet to apply.
type late struct {
	txn *txn
	at  time.Time // when the leader committed it
}

const frozen = time.Duration(1<<63 - 1)

// inBubble reports whether the caller runs in a testing/synctest bubble. No
// function reports that, but the first line of a stack trace does.
func inBubble() bool {
	b := make([]byte, 256)
	b = b[:runtime.Stack(b, false)]
	header, _, _ := bytes.Cut(b, []byte("\n"))
	return bytes.Contains(header, []byte("synctest bubble"))
}

// lastPort is the last port that was made up, for servers in bubbles and for
// the client's end of connections in memory. It counts from 20000 to 60000 and
// over again.
var lastPort atomic.Int32

func madeUpPort() int {
	return 20000 + int(uint32(lastPort.Add(1))%40000)
}

// listen makes e ready for connections. It sets e.addr to the address that is
// listened on, which is the same each time.
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
	// The second time this is the same address, and others may be reading it.
	if addr := l.Addr().String(); addr != e.addr {
		e.addr = addr
	}
	e.listen, e.up = l, true
	return nil
}

// accept starts taking connections from e's listener, until it is closed.
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
			// The process may be out of file descriptors: wait, and try again.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-s.quit:
				return
			}
		}
	})
}

// shut refuses connections to e from now on. Server.mu is held, or s not yet
// shared.
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

// reopen takes connections to e again. Another process may have taken the port;
// then reopen panics, after a while, as NewServer does.
func (s *Server) reopen(e *endpoint) {
	var err error
	for range 3000 { // for a minute: a connection of another process may have the port
		s.mu.Lock()
		if s.closed || e.up {
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

// find returns the endpoint that address leads to, or nil. "localhost" is as
// good as "127.0.0.1".
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

// mustFind is find for an address that the caller of the API gave.
func (s *Server) mustFind(addr string) *endpoint {
	e := s.find(addr)
	if e == nil {
		panic("zktest: " + addr + " is no address of this server")
	}
	return e
}

// Dial connects to the server in memory, without the network. It can be given to
// go-zookeeper as a zk.Dialer. Like TCP, it refuses an address that is stopped or
// that the server does not have. Dial never waits, so it ignores timeout. A server
// made in a [testing/synctest] bubble must be dialled from within that bubble.
func (s *Server) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	s.mu.Lock()
	e := s.find(address)
	refused := s.closed || e == nil || !e.up
	s.mu.Unlock()
	if refused {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: textAddr(address), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	server, err := net.ResolveTCPAddr("tcp", e.addr)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: textAddr(address), Err: err}
	}
	client := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: madeUpPort()}
	near, far := newPipe(client, server)
	s.start(far, e)
	return near, nil
}

// A textAddr is an address in any text.
type textAddr string

func (a textAddr) Network() string { return "tcp" }
func (a textAddr) String() string  { return string(a) }
