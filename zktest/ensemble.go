package zktest

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// This file has the methods by which a test makes, breaks and heals an
// ensemble. How the members agree is in member.go and quorum.go, and the
// network between them in way.go.

// An Ensemble is several servers that keep one tree as ZooKeeper's do: one
// leads, the others follow, and a majority agrees to every transaction. Members
// count from 0. Its methods may be called by many goroutines at once.
//
// Each member is a [Server] with an address of its own; the methods of that
// Server concern the clients of that member. [Server.Stop] and
// [Server.Restart] are [Ensemble.Crash] and [Ensemble.Restart] of the member,
// [Server.SetLag] and [Server.Freeze] are [Ensemble.SetLag].
//
// A test breaks the members themselves (Crash, Freeze, SetLag) and the ways
// between two of them, each direction by itself (Cut, SetDelay). A way is an
// ordered stream, like a TCP connection: a message that is sent during a cut
// arrives when the cut is healed, if neither member has closed the connection.
type Ensemble struct {
	tick         time.Duration
	syncLimit    time.Duration
	syncTicks    int
	electionTime time.Duration
	members      []*member
	ways         [][]*way // from, to

	wake chan struct{} // has room for one
	quit chan struct{} // closed by Close
	wg   sync.WaitGroup

	mu     sync.Mutex // guards all below, and is Server.mu of every member
	agenda agenda
	nth    int       // the number of the last event put on the agenda
	armed  time.Time // the next look at the agenda
	secret [passwordLen]byte
	closed bool

	backlog time.Duration // how long a request waits at the leader before it is looked at
}

const (
	defaultSyncLimit    = 5
	defaultElectionTime = 200 * time.Millisecond
	defaultDelay        = time.Millisecond
)

// WithSyncLimit sets for how many ticks the members of an ensemble wait for
// one another before they give each other up. The default is 5, as in the
// configuration that comes with ZooKeeper. It has no effect on a single
// server.
func WithSyncLimit(ticks int) Option {
	return func(s *Server) {
		rule(ticks > 0, "WithSyncLimit: the limit is %d ticks; want more than 0", ticks)
		s.syncLimit = ticks
	}
}

// WithElectionTime sets how long the members of an ensemble take to elect a
// leader, or to find the present one. The default is 200 ms. It has no effect
// on a single server.
func WithElectionTime(d time.Duration) Option {
	return func(s *Server) {
		rule(d >= 0, "WithElectionTime: the time is %v; want 0 or more", d)
		s.electionTime = d
	}
}

// NewEnsemble starts an ensemble of n members, each on a free port of the
// loopback interface. In a [testing/synctest] bubble they do not listen; see
// [NewServer]. The options hold for every member, but WithAddr and WithAddrs
// are not allowed. The last member leads at first.
func NewEnsemble(n int, opts ...Option) *Ensemble {
	rule(1 <= n && n <= 63, "NewEnsemble: %d members; want 1 to 63", n)
	e := &Ensemble{wake: make(chan struct{}, 1), quit: make(chan struct{})}
	_, _ = rand.Read(e.secret[:])
	for i := range n {
		s := newServer(&e.mu, opts)
		rule(len(s.addrs) == 1 && s.addrs[0] == "127.0.0.1:0", "NewEnsemble: WithAddr and WithAddrs do nothing here")
		s.lastSession = int64(i+1)<<56 | s.lastSession&(1<<56-1)
		s.member = &member{e: e, s: s, index: i, up: true, table: map[int64]time.Duration{}}
		e.members = append(e.members, s.member)
		e.tick, e.syncTicks, e.electionTime = s.tick, s.syncLimit, s.electionTime
	}
	e.syncLimit = time.Duration(e.syncTicks) * e.tick
	for from := range n {
		e.ways = append(e.ways, make([]*way, n))
		for to := range n {
			e.ways[from][to] = &way{e: e, to: e.members[to], delay: defaultDelay}
		}
	}
	for i, m := range e.members {
		func() {
			defer func() {
				if r := recover(); r != nil {
					for _, m := range e.members[:i] {
						_ = m.s.close()
					}
					panic(r)
				}
			}()
			m.s.open()
		}()
	}
	e.mu.Lock()
	e.elect()
	e.mu.Unlock()
	e.wg.Go(e.run)
	return e
}

// StartEnsemble is [NewEnsemble] for a test or benchmark, and closes the
// ensemble at its end.
func StartEnsemble(tb testing.TB, n int, opts ...Option) *Ensemble {
	tb.Helper()
	e := NewEnsemble(n, opts...)
	tb.Cleanup(func() { _ = e.Close() })
	return e
}

// Close drops all connections and returns when every goroutine of the ensemble
// has ended.
func (e *Ensemble) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	close(e.quit)
	for _, m := range e.members {
		if m.s.stalled != nil {
			close(m.s.stalled)
			m.s.stalled = nil
		}
	}
	e.mu.Unlock()
	for _, m := range e.members {
		_ = m.s.close()
	}
	e.wg.Wait()
	return nil
}

// Size returns how many members there are.
func (e *Ensemble) Size() int { return len(e.members) }

// Server returns member i as its clients see it.
func (e *Ensemble) Server(i int) *Server { return e.member(i).s }

// Addrs returns the address of every member, in order.
func (e *Ensemble) Addrs() []string {
	var addrs []string
	for _, m := range e.members {
		addrs = append(addrs, m.s.Addr())
	}
	return addrs
}

// Addr returns the connect string of the whole ensemble.
func (e *Ensemble) Addr() string { return strings.Join(e.Addrs(), ",") }

// Dial connects in memory to the member that has the address. It can be given
// to go-zookeeper as a zk.Dialer; see [Server.Dial].
func (e *Ensemble) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	for _, m := range e.members {
		if m.s.find(address) != nil {
			return m.s.Dial(network, address, timeout)
		}
	}
	return nil, &net.OpError{Op: "dial", Net: network, Addr: textAddr(address), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

func (e *Ensemble) member(i int) *member {
	rule(0 <= i && i < len(e.members), "there is no member %d; they count from 0 to %d", i, len(e.members)-1)
	return e.members[i]
}

func (e *Ensemble) majority() int { return len(e.members)/2 + 1 }

// Leader returns the member that leads, or -1 if none does. If an older leader
// has not yet noticed that it was replaced, Leader returns the newer one.
func (e *Ensemble) Leader() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ld := e.leading(); ld != nil {
		return ld.m.index
	}
	return -1
}

// leading returns the newest leadership, or nil.
func (e *Ensemble) leading() *leadership {
	var newest *leadership
	for _, m := range e.members {
		if m.ld != nil && (newest == nil || m.epoch > newest.m.epoch) {
			newest = m.ld
		}
	}
	return newest
}

// Serving reports whether member i leads or follows, as far as it knows, and
// so answers its clients. It may be frozen, or be cut off and not know it yet.
func (e *Ensemble) Serving(i int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.member(i).serving()
}

// MemberOf returns the member that the client of a session is connected to, or -1.
// A connection that is cut off counts until it is closed.
func (e *Ensemble) MemberOf(session int64) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := -1
	var opened time.Time
	for _, m := range e.members {
		if x := m.s.sessions[session]; x != nil && x.conn != nil && (at < 0 || x.conn.opened.After(opened)) {
			at, opened = m.index, x.conn.opened
		}
	}
	return at
}

// Expire ends a session as the leader does when it has heard nothing of it for
// its timeout. The members learn of it as they do of every transaction.
func (e *Ensemble) Expire(session int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire(session)
}

func (e *Ensemble) expire(session int64) {
	if ld := e.leading(); ld != nil {
		ld.end(session)
	}
}

func (e *Ensemble) setSequence(path string, next int32) {
	if ld := e.leading(); ld != nil && ld.prep.get(path) != nil {
		x := ld.begin()
		x.changes = []change{{kind: changeSequence, path: path, version: next}}
		ld.prep.apply(x, &x.changes[0])
		ld.propose(x)
	}
}

// Crash ends member i as SIGKILL does. Its connections to clients and to other
// members are closed, and the others learn of that as fast as the ways between
// them allow. [Ensemble.Restart] finds its log.
func (e *Ensemble) Crash(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).crash()
}

// Restart starts member i after a crash. The member looks for the leader, or
// for enough others to elect one, and then takes over the transactions that it
// has missed.
func (e *Ensemble) Restart(i int) {
	e.mu.Lock()
	m := e.member(i)
	m.restart()
	e.mu.Unlock()
	for _, p := range m.s.endpoints {
		m.s.reopen(p)
	}
}

// Freeze stops member i as SIGSTOP does: it does nothing, and its connections stay
// open and silent. It reads the messages that it is sent after [Ensemble.Thaw].
func (e *Ensemble) Freeze(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).freeze()
}

// Thaw lets a frozen member continue. First it runs the timers that have
// fired, then it reads the messages that it was sent.
func (e *Ensemble) Thaw(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).thaw()
}

// SetLag makes member i apply each transaction d after it has heard that it is
// committed; 0 ends that. During the lag, the member answers pings and reads from
// its older tree, and still agrees to transactions. A leader that lags answers a
// sync of its own client at once, as ZooKeeper's does. A lag longer than the test
// keeps the member at a chosen transaction.
func (e *Ensemble) SetLag(i int, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).setLag(max(d, 0))
}

// SetDelay sets how long a message from one member takes to another. The
// default is 1 ms. Messages keep their order.
func (e *Ensemble) SetDelay(from, to int, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).delay = max(d, 0)
}

// SetBacklog sets how long each request waits at the leader, in order, between
// its arrival and the moment at which the leader looks at it. The default is 0.
// Only then does the leader see whether the session is still the client of the
// member that passed the request on. A handshake that continues a session does
// not wait: the session may move to another member, and back, before the leader
// looks at a request.
func (e *Ensemble) SetBacklog(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.backlog = max(d, 0)
}

// Cut stops the messages from one member to another: nothing that it sends from
// now on arrives before [Ensemble.Heal]. Messages that it has already sent still
// arrive; see [Ensemble.CutLosing]. Neither member learns of the cut.
func (e *Ensemble) Cut(from, to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).shut(false)
}

// CutLosing is as [Ensemble.Cut], and also holds up what is already on its
// way.
func (e *Ensemble) CutLosing(from, to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).shut(true)
}

// Isolate cuts a member off from all others, in both directions. Clients can
// still reach it.
func (e *Ensemble) Isolate(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.member(i)
	for _, o := range e.members {
		if o != m {
			e.way(i, o.index).shut(false)
			e.way(o.index, i).shut(false)
		}
	}
}

// Heal ends the cut from one member to another.
func (e *Ensemble) Heal(from, to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).open()
	e.look()
}

// HealAll ends all cuts.
func (e *Ensemble) HealAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, row := range e.ways {
		for _, w := range row {
			w.open()
		}
	}
	e.look()
}

func (e *Ensemble) way(from, to int) *way {
	rule(from != to, "there is no way from member %d to itself", from)
	return e.ways[e.member(from).index][e.member(to).index]
}

// Dump writes the state of every member to w, for the log of a test that failed
// or hangs. The format is for people and may change.
func (e *Ensemble) Dump(w io.Writer) {
	e.mu.Lock()
	var b strings.Builder
	for _, m := range e.members {
		fmt.Fprintf(&b, "member %d: %s\n", m.index, m.describe())
		for to, way := range e.ways[m.index] {
			if way.cut {
				fmt.Fprintf(&b, "  cut from member %d, %d waiting\n", to, len(way.parcels))
			}
		}
		if m.ld != nil {
			m.ld.dump(&b)
		}
		b.WriteString(m.s.dump())
	}
	e.mu.Unlock()
	_, _ = io.WriteString(w, b.String())
}
