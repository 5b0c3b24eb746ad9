package zktest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// This file makes, opens and closes a server, and has its options.

// A Server is a ZooKeeper server in memory, with one or more addresses. Its
// methods may be called by many goroutines at once.
type Server struct {
	tick           time.Duration
	minTimeout     time.Duration
	maxTimeout     time.Duration
	containerCheck time.Duration
	maxBuffer      int
	addrs          []string      // as the options gave them
	bubble         bool          // made in a testing/synctest bubble: no TCP
	syncLimit      int           // of an ensemble, in ticks
	electionTime   time.Duration // of an ensemble
	member         *member       // nil for a server without an ensemble

	wake chan struct{} // has room for one; see rearm
	quit chan struct{} // closed by Close
	wg   sync.WaitGroup

	// mu guards everything below, and the fields elsewhere whose comments name it.
	// It is the order of the transactions. No goroutine waits while it holds mu;
	// the only locks taken under it are within outputs.
	mu            *sync.Mutex // of a member, the ensemble's
	epoch         time.Time   // ticks are counted from here
	leader        *view
	endpoints     []*endpoint
	conns         map[*conn]struct{}
	sessions      map[int64]*session
	lastSession   int64 // the last id given
	lastEvent     int64 // see nextEvent
	scratch       []byte
	armed         time.Time // the next look of the clock; zero: none
	reapAt        time.Time // the next look at containers; zero: there are none
	latency       time.Duration
	intercept     func(Request) Action
	authRequired  bool
	authSchemes   []string                // of WithRequiredAuth; none: any
	saslUsers     map[string]string       // passwords; nil without SASL
	certificate   string                  // see WithClientCertificate
	unknown       map[Op]bool             // see WithoutRequests
	partitions    map[int64]chan struct{} // session to what Heal closes
	changeling    map[int64]bool          // sessions that get another id at their next reconnect
	requests      map[Op]int64
	notifications int64
	stopped       bool          // by Stop
	closed        bool          // by Close
	stalled       chan struct{} // not nil: nothing is carried out until it is closed
}

// An Option changes how [NewServer] makes a server.
type Option func(*Server)

// rule panics if a value that an option was given breaks the option's rule.
func rule(holds bool, format string, args ...any) {
	if !holds {
		panic("zktest: " + fmt.Sprintf(format, args...))
	}
}

// WithAddr sets the address that the server listens on, host:port; the port
// may be 0. The default is "127.0.0.1:0".
func WithAddr(addr string) Option {
	return withAddrs("WithAddr", []string{addr})
}

// WithAddrs gives one tree several addresses, as the servers of an ensemble
// are. A client may go from one to another with its session. Each can be taken
// down by itself with [Server.StopAddr], or made to lag with [Server.Freeze].
func WithAddrs(addrs ...string) Option {
	return withAddrs("WithAddrs", slices.Clone(addrs))
}

func withAddrs(option string, addrs []string) Option {
	return func(s *Server) {
		rule(len(addrs) > 0, "%s: no address is given; want at least one", option)
		for _, addr := range addrs {
			_, _, err := net.SplitHostPort(addr)
			rule(err == nil, "%s: the address %q is not host:port", option, addr)
		}
		s.addrs = addrs
	}
}

// WithTick sets the length of a tick, to which session timeouts are rounded up.
// Clients may ask for timeouts from 2 ticks to 20 ticks or 60 s, whichever is
// longer, unless [WithSessionTimeouts] says otherwise. The default is 20 ms, so
// sessions can be as short as 40 ms. ZooKeeper's ticks are far longer.
func WithTick(d time.Duration) Option {
	return func(s *Server) {
		rule(d > 0, "WithTick: the tick is %v; want more than 0", d)
		s.tick = d
	}
}

// WithSessionTimeouts sets the shortest and the longest session timeout that
// is granted. A client that asks for less or more gets these.
func WithSessionTimeouts(shortest, longest time.Duration) Option {
	return func(s *Server) {
		rule(0 < shortest && shortest <= longest, "WithSessionTimeouts: the timeouts are %v and %v; want 0 < shortest <= longest", shortest, longest)
		s.minTimeout, s.maxTimeout = shortest, longest
	}
}

// SetSessionTimeouts changes the limits of [WithSessionTimeouts], for later
// handshakes: a client that continues its session at this server then gets a
// new timeout too. So the members of an [Ensemble] can differ, as they do
// while an administrator changes the configuration of servers one by one.
func (s *Server) SetSessionTimeouts(shortest, longest time.Duration) {
	rule(0 < shortest && shortest <= longest, "SetSessionTimeouts: the timeouts are %v and %v; want 0 < shortest <= longest", shortest, longest)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minTimeout, s.maxTimeout = shortest, longest
}

// WithMaxBuffer sets the longest packet that the server accepts from a client,
// as ZooKeeper's jute.maxbuffer does. A longer one ends the connection. The
// default is ZooKeeper's, 1,048,575 bytes.
func WithMaxBuffer(n int) Option {
	return func(s *Server) {
		rule(n > 0, "WithMaxBuffer: the longest packet is %d bytes; want more than 0", n)
		s.maxBuffer = n
	}
}

// WithContainerCheck sets how often the server looks for containers to remove
// and for nodes whose time to live is over. The default is ZooKeeper's, one minute.
func WithContainerCheck(d time.Duration) Option {
	return func(s *Server) {
		rule(d > 0, "WithContainerCheck: the interval is %v; want more than 0", d)
		s.containerCheck = d
	}
}

const (
	defaultTick      = 20 * time.Millisecond
	defaultMaxBuffer = 0xfffff
)

// NewServer starts a server on a free port of the loopback interface. It
// panics if it cannot listen, or if an option makes no sense.
//
// In a testing/synctest bubble it does not listen at all: a goroutine that
// waits for the network would stop the bubble's clock. Use [Server.Dial]
// there. Addr returns an address as usual.
func NewServer(opts ...Option) *Server {
	s := newServer(new(sync.Mutex), opts)
	s.open()
	s.wg.Go(s.clock)
	return s
}

// newServer returns a server that does not run yet.
func newServer(mu *sync.Mutex, opts []Option) *Server {
	s := &Server{
		mu:             mu,
		syncLimit:      defaultSyncLimit,
		electionTime:   defaultElectionTime,
		tick:           defaultTick,
		containerCheck: time.Minute,
		maxBuffer:      defaultMaxBuffer,
		addrs:          []string{"127.0.0.1:0"},
		bubble:         inBubble(),
		wake:           make(chan struct{}, 1),
		quit:           make(chan struct{}),
		epoch:          time.Now(),
		leader:         &view{tree: newTree(), watches: newWatchTable()},
		conns:          map[*conn]struct{}{},
		sessions:       map[int64]*session{},
		partitions:     map[int64]chan struct{}{},
		changeling:     map[int64]bool{},
		unknown:        map[Op]bool{},
		requests:       map[Op]int64{},
	}
	for _, opt := range opts {
		opt(s)
	}
	if s.maxTimeout == 0 {
		s.minTimeout = 2 * s.tick
		s.maxTimeout = max(20*s.tick, time.Minute)
	}
	// As ZooKeeper does: the server's number in the first byte, then the time.
	s.lastSession = 1<<56 | int64(uint64(s.epoch.UnixMilli())<<24>>8)
	return s
}

// open makes the server's endpoints and takes connections to them. It panics
// if it cannot listen.
func (s *Server) open() {
	for _, addr := range s.addrs {
		e := &endpoint{addr: addr, view: s.leader}
		if err := s.listen(e); err != nil {
			s.shutListeners()
			panic(fmt.Sprintf("zktest: cannot listen: %v", err))
		}
		s.endpoints = append(s.endpoints, e)
	}
	for _, e := range s.endpoints {
		s.accept(e)
	}
}

// Start is [NewServer] for a test or benchmark, and closes the server at its
// end.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s := NewServer(opts...)
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// Addr returns the server's address, or the first of them, as "127.0.0.1:port".
func (s *Server) Addr() string {
	return s.endpoints[0].addr
}

// Addrs returns all addresses of the server, in the order of [WithAddrs].
func (s *Server) Addrs() []string {
	addrs := make([]string, len(s.endpoints))
	for i, e := range s.endpoints {
		addrs[i] = e.addr
	}
	return addrs
}

// Close drops all connections and returns when every goroutine of the server has
// ended. After five seconds, Close writes to standard error which goroutines it
// still waits for; a function given to [Server.Intercept] that does not return is
// such a case. Later calls return at once.
func (s *Server) Close() error {
	if s.member != nil {
		return s.member.e.Close()
	}
	return s.close()
}

func (s *Server) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.quit)
	s.shutListeners()
	s.dropConns(nil)
	s.mu.Unlock()

	complain := time.AfterFunc(5*time.Second, s.complain)
	defer complain.Stop()
	s.wg.Wait()
	return nil
}

// complain reports the goroutines that keep Close from returning.
func (s *Server) complain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(os.Stderr, "zktest: Server.Close still waits, for connections:")
	for c := range s.conns {
		fmt.Fprintf(os.Stderr, "  %s to %s: %s\n", c.remote, c.at.addr, c.doing())
	}
}

// doing describes the step that the connection is at. Server.mu is held.
func (c *conn) doing() string {
	switch {
	case c.now != "":
		return c.now
	case c.closing:
		return "closing"
	}
	return "waiting for requests"
}

// dropConns kills the connections to e, or all if e is nil. Server.mu is held.
func (s *Server) dropConns(e *endpoint) {
	for c := range s.conns {
		if e == nil || c.at == e {
			s.cut(c)
		}
	}
}

// cut kills one connection. Its session lives on. Server.mu is held.
func (s *Server) cut(c *conn) {
	c.closing = true
	c.at.view.watches.removeAll(c)
	if c.session != nil && c.session.conn == c {
		c.session.conn = nil
	}
	c.kill()
}
