package zktest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// This file has the options of a server, and starts and closes it. conn.go serves its connections,
// and fault.go has its faults.

// A Server is a ZooKeeper server in memory, with one or more addresses. Its methods are safe for
// concurrent use.
type Server struct {
	tick           time.Duration
	minTimeout     time.Duration
	maxTimeout     time.Duration
	containerCheck time.Duration
	maxBuffer      int
	addrs          []string      // the arguments of WithAddr or WithAddrs
	bubble         bool          // the server was made in a testing/synctest bubble, so it uses no TCP
	syncLimit      int           // for an ensemble, in ticks
	electionTime   time.Duration // for an ensemble
	member         *member       // nil for a single server

	wake chan struct{} // has room for one value; see rearm
	quit chan struct{} // closed by Close
	wg   sync.WaitGroup

	// mu guards all fields below, and other fields whose comments name mu. Transactions happen
	// under mu, so mu puts them in order. A goroutine that holds mu never waits, and locks no other
	// mutex than output.mu.
	mu            *sync.Mutex // in a member, it is Ensemble.mu
	epoch         time.Time   // the begin of the first tick
	leader        *view
	endpoints     []*endpoint
	conns         map[*conn]struct{}
	sessions      map[int64]*session
	lastSession   int64 // the last session id
	lastEvent     int64 // see nextEvent
	scratch       []byte
	armed         time.Time // the time of the next call of `elapse`; zero: none
	reapAt        time.Time // the time of the next call of `reap`; zero: none
	latency       time.Duration
	intercept     func(Request) Action
	authRequired  bool
	authSchemes   []string                // the schemes of WithRequiredAuth; empty: any scheme
	saslUsers     map[string]string       // by user: the password; nil without SASL
	certificate   string                  // see WithClientCertificate
	unknown       map[Op]bool             // see WithoutRequests
	existsOpen    bool                    // exists needs no permission, as in ZooKeeper before 3.8.4 and 3.9.2
	partitions    map[int64]chan struct{} // by session: the channel that Heal closes
	changeling    map[int64]bool          // the sessions of ChangeSession
	requests      map[Op]int64
	notifications int64
	stopped       bool          // by Stop
	closed        bool          // by Close
	stalled       chan struct{} // not nil: the server is frozen until the channel is closed
	dozing        chan struct{} // not nil: some replies wait for the next request, see Doze
}

// An Option changes how [NewServer] makes a server.
type Option func(*Server)

// The function `rule` panics if `holds` is false: the argument of an option is then invalid.
func rule(holds bool, format string, args ...any) {
	if !holds {
		panic("zktest: " + fmt.Sprintf(format, args...))
	}
}

// WithAddr sets the server's address, as host:port; the port may be 0. The default is
// "127.0.0.1:0".
func WithAddr(addr string) Option {
	return withAddrs("WithAddr", []string{addr})
}

// WithAddrs gives the server several addresses with one tree, so that it looks like an ensemble. A
// client can move from one address to another with its session. [Server.StopAddr] closes a single
// address, and [Server.Freeze] makes a single address lag.
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

// WithTick sets the length of a tick, to which session timeouts are rounded up. The shortest
// session timeout is 2 ticks. The longest is 20 ticks, or 60 s if that is longer.
// [WithSessionTimeouts] changes these limits. The default tick is 20 ms, far shorter than
// ZooKeeper's, so session timeouts can be as short as 40 ms.
func WithTick(d time.Duration) Option {
	return func(s *Server) {
		rule(d > 0, "WithTick: the tick is %v; want more than 0", d)
		s.tick = d
	}
}

// WithSessionTimeouts sets the shortest and the longest session timeout that the server grants. A
// client that asks for a shorter timeout gets the shortest, and a client that asks for a longer
// timeout gets the longest.
func WithSessionTimeouts(shortest, longest time.Duration) Option {
	return func(s *Server) {
		rule(0 < shortest && shortest <= longest, "WithSessionTimeouts: the timeouts are %v and %v; want 0 < shortest <= longest", shortest, longest)
		s.minTimeout, s.maxTimeout = shortest, longest
	}
}

// SetSessionTimeouts changes the limits of [WithSessionTimeouts], for later
// handshakes. A client that continues its session at this server gets a new
// timeout, too. The members of an [Ensemble] can have different limits, as they
// do while an operator changes the configuration of one server after another.
func (s *Server) SetSessionTimeouts(shortest, longest time.Duration) {
	rule(0 < shortest && shortest <= longest, "SetSessionTimeouts: the timeouts are %v and %v; want 0 < shortest <= longest", shortest, longest)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minTimeout, s.maxTimeout = shortest, longest
}

// WithMaxBuffer sets the maximum length of a packet from a client, as
// ZooKeeper's jute.maxbuffer does. The server closes the connection of a client
// that sends a longer packet. The default is ZooKeeper's, 1,048,575 bytes.
func WithMaxBuffer(n int) Option {
	return func(s *Server) {
		rule(n > 0, "WithMaxBuffer: the longest packet is %d bytes; want more than 0", n)
		s.maxBuffer = n
	}
}

// WithContainerCheck sets the interval between two searches for empty containers and for nodes
// whose time to live is over. The default is ZooKeeper's, one minute.
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

// NewServer starts a server on a free port of the loopback interface. It panics if it cannot
// listen, or if the argument of an option is invalid.
//
// In a testing/synctest bubble, the server does not listen, because a goroutine
// that waits for the network would stop the bubble's clock. Use [Server.Dial]
// with the address that Addr returns.
func NewServer(opts ...Option) *Server {
	s := newServer(new(sync.Mutex), opts)
	s.open()
	s.wg.Go(s.clock)
	return s
}

// newServer returns a server without starting it.
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
	// As in ZooKeeper, a session id begins with a byte for the server, followed by the time.
	s.lastSession = 1<<56 | int64(uint64(s.epoch.UnixMilli())<<24>>8)
	return s
}

// The method `open` makes the server's endpoints and accepts connections to them. It panics if it
// cannot listen.
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

// Start is [NewServer] for a test or benchmark. It closes the server at the end of the test.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s := NewServer(opts...)
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// Addr returns the server's first address, such as "127.0.0.1:port".
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

// Close closes all connections and returns when every goroutine of the server has ended. A function
// of [Server.Intercept] that does not return keeps Close waiting. After five seconds, Close lists
// the remaining connections on standard error. If Close is called again, it returns at once.
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

// The method `complain` lists the connections whose goroutines delay the return of Close.
func (s *Server) complain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(os.Stderr, "zktest: Server.Close still waits, for connections:")
	for c := range s.conns {
		fmt.Fprintf(os.Stderr, "  %s to %s: %s\n", c.remote, c.at.addr, c.doing())
	}
}

// The method `doing` describes the current step of the connection. Server.mu is held.
func (c *conn) doing() string {
	switch {
	case c.now == intercepting:
		return strings.TrimSpace(fmt.Sprintf("%s %v %s", c.now, c.op, c.path))
	case c.now != "":
		return c.now
	case c.closing:
		return "closing"
	}
	return "waiting for requests"
}

// dropConns kills the connections to e, or all connections if e is nil. Server.mu is held.
func (s *Server) dropConns(e *endpoint) {
	for c := range s.conns {
		if e == nil || c.at == e {
			s.cut(c)
		}
	}
}

// The method `cut` kills one connection. The session remains. Server.mu is held.
func (s *Server) cut(c *conn) {
	c.closing = true
	c.at.view.watches.removeAll(c)
	if c.session != nil && c.session.conn == c {
		c.session.conn = nil
	}
	c.kill()
}
