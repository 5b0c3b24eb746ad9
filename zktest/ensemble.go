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

// This file has the methods with which a test makes, breaks and heals an ensemble. member.go and
// quorum.go have the agreement of the members. way.go has the network between the members.

// An Ensemble is several servers with one tree. As in ZooKeeper, one server leads, the others
// follow, and a majority logs every transaction. Members are numbered from 0. The methods of an
// Ensemble are safe for concurrent use.
//
// Each member is a [Server] with an address of its own. The methods of this Server affect only the
// clients of the member. For a member, [Server.Stop] is the same as [Ensemble.Crash], and
// [Server.Restart] is the same as [Ensemble.Restart]. [Server.SetLag] and [Server.Freeze] do the
// same as [Ensemble.SetLag].
//
// A test can break a member (Crash, Freeze, SetLag), or the way from one member to another (Cut,
// SetDelay). A way is one direction of an ordered stream, like a TCP connection. A message that is
// sent during a cut arrives after the cut is healed, unless a member has closed the connection by
// then.
type Ensemble struct {
	tick         time.Duration
	syncLimit    time.Duration
	syncTicks    int
	electionTime time.Duration
	members      []*member
	ways         [][]*way // by the sending and the receiving member

	timer *time.Timer   // fires at the time `armed`
	quit  chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu     sync.Mutex // guards all fields below, and is Server.mu of every member
	agenda []event
	armed  time.Time // the time of the next event; zero: none
	secret [passwordLen]byte
	closed bool

	backlog time.Duration // see SetBacklog
}

const (
	defaultSyncLimit    = 5
	defaultElectionTime = 200 * time.Millisecond
	defaultDelay        = time.Millisecond
)

// WithSyncLimit sets the number of ticks for which a leader and a follower wait for each other's
// messages before they close the connection. The default is 5, as in ZooKeeper's sample
// configuration. It has no effect on a single server.
func WithSyncLimit(ticks int) Option {
	return func(s *Server) {
		rule(ticks > 0, "WithSyncLimit: the limit is %d ticks; want more than 0", ticks)
		s.syncLimit = ticks
	}
}

// WithElectionTime sets the time that the members of an ensemble take to elect a leader, or to find
// the current leader. The default is 200 ms. It has no effect on a single server.
func WithElectionTime(d time.Duration) Option {
	return func(s *Server) {
		rule(d >= 0, "WithElectionTime: the time is %v; want 0 or more", d)
		s.electionTime = d
	}
}

// NewEnsemble starts an ensemble of n members, each on a free port of the
// loopback interface. In a [testing/synctest] bubble they do not listen; see
// [NewServer]. The options apply to every member. WithAddr and WithAddrs are
// not allowed. The last member is the first leader.
func NewEnsemble(n int, opts ...Option) *Ensemble {
	rule(1 <= n && n <= 63, "NewEnsemble: %d members; want 1 to 63", n)
	e := &Ensemble{timer: time.NewTimer(time.Hour), quit: make(chan struct{})}
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

// StartEnsemble is [NewEnsemble] for a test or benchmark. It closes the ensemble at the end of the
// test.
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

// Size returns the number of members.
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

// Dial connects in memory to the member with the address. It is a zk.Dialer for go-zookeeper; see
// [Server.Dial].
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

// Leader returns the member that leads, or -1 if none does. A leader whose replacement has been
// elected does not count, whether it has noticed that or not, and even if its replacement is down.
func (e *Ensemble) Leader() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ld := e.leading(); ld != nil {
		return ld.m.index
	}
	return -1
}

// The method `leading` returns the leadership of the newest epoch, or nil if that leadership has
// ended.
func (e *Ensemble) leading() *leadership {
	var newest *member
	for _, m := range e.members {
		if newest == nil || m.epoch > newest.epoch || m.epoch == newest.epoch && m.ld != nil {
			newest = m
		}
	}
	return newest.ld
}

// Serving reports whether member i leads or follows in its own view, so that it serves clients. The
// member may be frozen, or cut off without having noticed.
func (e *Ensemble) Serving(i int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.member(i).serving()
}

// MemberOf returns the member to which the client of a session is connected, or -1. A connection
// without traffic counts until it is closed.
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

// Expire makes the leader end a session, as if the client had been silent for the session timeout.
// The other members learn of the end of the session as they learn of every transaction.
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

// Crash ends member i as SIGKILL does. Its connections to clients and to other members are closed.
// The other members learn of the crash only after the delays of the ways. The log of member i
// survives until [Ensemble.Restart].
func (e *Ensemble) Crash(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).crash()
}

// Restart starts member i after a crash. The member looks for the leader, or
// for enough members to elect one. Then it gets the transactions that it has
// missed.
func (e *Ensemble) Restart(i int) {
	e.mu.Lock()
	m := e.member(i)
	m.restart()
	e.mu.Unlock()
	for _, p := range m.s.endpoints {
		m.s.reopen(p)
	}
}

// Freeze stops member i as SIGSTOP does: the member does nothing, and its connections stay open and
// silent. It reads its messages after [Ensemble.Thaw].
func (e *Ensemble) Freeze(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).freeze()
}

// Thaw lets a frozen member continue. The member first runs its timers that have fired, and then
// reads its messages.
func (e *Ensemble) Thaw(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).thaw()
}

// SetLag makes member i lag: it applies each transaction when the time d has passed since the
// leader reported the transaction as committed. A d of 0 ends the lag. During the lag, the member
// answers pings and reads from its older tree, and still logs transactions. A leader that lags
// answers a sync of its own client at once, like ZooKeeper's leader. A lag longer than the test
// keeps the member at a chosen transaction.
func (e *Ensemble) SetLag(i int, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.member(i).setLag(max(d, 0))
}

// SetDelay sets the travel time of a message from one member to another. The default is 1 ms.
// Messages keep their order.
func (e *Ensemble) SetDelay(from, to int, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).delay = max(d, 0)
}

// SetBacklog sets the time that each request waits in the leader's queue before the leader looks at
// that request. The default is 0. After that time, the leader checks that the session's client is
// still connected to the member that sent the request. A handshake that continues a session does
// not wait, so the session can move to another member and back before that check.
func (e *Ensemble) SetBacklog(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.backlog = max(d, 0)
}

// Cut stops the messages from one member to another: later messages do not
// arrive before [Ensemble.Heal]. Earlier messages still arrive; see
// [Ensemble.CutLosing]. Neither member learns of the cut.
func (e *Ensemble) Cut(from, to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).shut(false)
}

// CutLosing is like [Ensemble.Cut], and also stops the messages that are already on their way.
func (e *Ensemble) CutLosing(from, to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way(from, to).shut(true)
}

// Isolate cuts all ways between a member and the others, in both directions. Clients can still
// reach the member.
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
