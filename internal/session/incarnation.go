package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/trace"
)

// An Incarnation is one ZooKeeper session, from the handshake to its end. It begins once, ends
// once, and is never revived: the Manager replaces it with the next. Every ephemeral znode
// belongs to the incarnation that created it, so "do I still hold the lock?" has one answer. When
// the incarnation ends, its socket is closed and it never connects again.
//
// This file has its life: connections one after another, the end, and the states in which callers
// see it. How long the session is confirmed is not its business (package lease), nor are requests.
type Incarnation struct {
	Manager *Manager
	Watches *Watches

	// Ctx is cancelled, with an ErrLost or ErrClosed as its cause, when the session is over or
	// may be over.
	Ctx    context.Context
	cancel context.CancelCauseFunc

	Ended Ending // its hooks are the holds of the session; they run before its end on the servers

	ID      atomic.Int64               // the session id; 0 before the first handshake
	Timeout atomic.Int64               // the negotiated session timeout, in nanoseconds
	zxid    atomic.Int64               // the newest of a reply
	xid     atomic.Uint32              // of the last request, over all connections
	vetted  shared.Cache[struct{}]     // by path: the parent znodes that no other client can change
	lasting shared.Cache[int64]        // by path: the czxid of the persistent znode there, see Storable
	ids     atomic.Pointer[[]Identity] // of this client, see identities; nil before they were asked for
	own     sync.Map                   // by path: the last sighting of a znode that CreateOwn created
	first   chan struct{}              // closed when the first handshake has succeeded
	gone    chan struct{}              // closed when serve has returned
	drain   sync.Once                  // of shut

	mu   sync.Mutex
	link *link         // the newest, if any; guarded by mu
	up   chan struct{} // closed while a connection serves the session; guarded by mu
	down chan struct{} // closed while none does; guarded by mu

	LeaseMu   sync.Mutex
	Lease     lease.Lease // guarded by LeaseMu
	stakes    int         // number of holds of the session; guarded by LeaseMu
	asking    *inquiry    // under way; guarded by LeaseMu
	nobody    string      // a path at which no znode exists
	abandoned time.Time   // when the session was abandoned; guarded by LeaseMu; never changes once set
	over      bool        // the servers have confirmed the end of the session; guarded by LeaseMu
	password  []byte      // of the session; guarded by LeaseMu

	Attached sync.Map // data that other packages attach to the session, by their keys

	kick   chan struct{}                 // has a token when the watchdog should look again
	looked atomic.Pointer[lease.Instant] // time of the watchdog's last look

	last    chan struct{} // has a token while lastly runs, and permanently once shut proceeds
	largest atomic.Int64  // bytes of the largest znode in a late bundle

	disowned int // connections in a row that link.disowned has ended; only serve uses it

	sight sight
	trail trail
}

// newIncarnation returns a session that is not established until first is closed.
func newIncarnation(m *Manager) *Incarnation {
	inc := &Incarnation{
		Manager: m,
		first:   make(chan struct{}),
		gone:    make(chan struct{}),
		up:      make(chan struct{}),
		down:    make(chan struct{}),
		nobody:  "/" + NewGUID() + "/none",
		kick:    make(chan struct{}, 1),
		last:    make(chan struct{}, 1),
	}
	close(inc.down)
	inc.Timeout.Store(int64(m.Config.Timeout))
	inc.Lease = lease.New(m.Config.Timeout)
	inc.Ctx, inc.cancel = context.WithCancelCause(context.Background())
	inc.Watches = newWatches(inc.removeWatch, m.Spawn)
	return inc
}

// start begins to connect.
func (inc *Incarnation) start() {
	inc.Manager.Spawn(func() {
		defer close(inc.gone)
		inc.serve()
	})
	inc.Manager.Spawn(inc.watchdog)
}

// serve opens one connection after another, and reads from each, until the incarnation has ended.
func (inc *Incarnation) serve() {
	for inc.Ctx.Err() == nil {
		addr := inc.pick()
		if inc.Ctx.Err() != nil {
			return
		}
		l, err := inc.dial(addr)
		if err == nil {
			err = l.connect()
		}
		if err != nil {
			if l != nil {
				l.Close()
			}
			if inc.Ctx.Err() == nil { // else the error says nothing about the server
				inc.Manager.dialed(addr, err)
			}
			continue
		}
		inc.Manager.Pace.success()
		inc.connected()
		l.read()
		l.Close()
		inc.disconnected()
		l.over()
	}
}

// silence is how long a connection can be without a reply before the link closes it.
func (inc *Incarnation) silence() time.Duration {
	return time.Duration(float64(inc.Timeout.Load()) * lease.Silence)
}

// dial connects to a server.
func (inc *Incarnation) dial(addr string) (*link, error) {
	limit := inc.dialLimit()
	if least := inc.leastGrant(addr); inc.ID.Load() != 0 && least < time.Duration(inc.Timeout.Load()) {
		limit = min(limit, least/3) // time for another server before the session must be abandoned
	}
	deadline := time.Now().Add(limit)
	c, err := dial(inc.Ctx, &inc.Manager.Config, inc.Manager.Spawn, addr, limit)
	if err != nil {
		return nil, err
	}
	l := newLink(inc, c, addr, limit, deadline)
	inc.mu.Lock()
	inc.link = l
	inc.mu.Unlock()
	// Either connect sees the end of the incarnation, or the goroutine that ends it sees this
	// link: the link is stored before connect checks, and end runs before seal reads the link.
	return l, nil
}

// leastGrant returns the shortest timeout that a server may grant to a request for the session's
// timeout.
func (inc *Incarnation) leastGrant(addr string) time.Duration {
	return inc.Manager.grants.of(addr, time.Duration(inc.Timeout.Load()))
}

// handshake processes a server's reply to the connect request. It refuses a reply that does not
// continue this session.
func (inc *Incarnation) handshake(l *link, id int64, timeout time.Duration) error {
	if err := context.Cause(inc.Ctx); err != nil {
		return err
	}
	switch mine := inc.ID.Load(); {
	case id == 0 && mine == 0:
		return fmt.Errorf("%w: no session was given", errHandshake)
	case id == 0:
		// A process that was stopped gets this reply at once, usually before its watchdog runs.
		// Then Alive finds that the session was unconfirmed, and records that reason and since
		// when.
		if inc.Alive() {
			inc.Lose(LossExpired)
		}
		return zk.ErrSessionExpired
	case mine != 0 && id != mine:
		inc.Lose(LossReplaced)
		return zk.ErrSessionExpired
	}
	inc.Manager.grants.note(l.addr, grant{l.wanted, timeout})
	isNew := inc.ID.Load() == 0
	if isNew {
		inc.trail.came(l.addr)
	} else {
		// Servers may be configured differently. A new leader gives the session the timeout that
		// was granted first.
		timeout = min(timeout, time.Duration(inc.Timeout.Load()))
	}
	inc.Timeout.Store(int64(timeout))
	inc.LeaseMu.Lock()
	inc.Lease.Connected(l.asked, isNew, timeout)
	inc.LeaseMu.Unlock()
	return nil
}

// sending returns the stamp of requests that are about to be written together.
func (inc *Incarnation) sending() lease.Stamp {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.Lease.Sending(time.Now())
}

// nextXid returns an xid that no other request of the session has, over any connection. A
// follower or observer knows the result of a request by session and xid alone. If an xid were
// used again, the late result of a request from an earlier connection could be delivered as the
// result of another request, which might not have been executed.
//
// Pings, credentials and setWatches always have the xids that the protocol prescribes. No server
// proposes a transaction for them, so they have no late results. After 2^31 requests the xids
// begin again; by then the first have long been answered. 0 is left out: the leader uses it for
// the session's creation and for the expiry that it decides.
func (inc *Incarnation) nextXid() int32 {
	for {
		if xid := int32(inc.xid.Add(1) & math.MaxInt32); xid != 0 {
			return xid
		}
	}
}

// contact records that a request was answered at now, and with which proof.
func (inc *Incarnation) contact(s lease.Stamp, p lease.Proof, now time.Time) {
	inc.LeaseMu.Lock()
	confirmed := inc.Lease.Answered(s, p, now) && inc.stakes > 0
	inc.LeaseMu.Unlock()
	if confirmed {
		inc.Manager.Pace.confirmed()
	}
}

// left returns for how much longer the session counts as alive if no further reply comes.
func (inc *Incarnation) left() time.Duration {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.Lease.Left(time.Now(), inc.stakes > 0)
}

// Alive reports whether the session counts as alive, see left. It does not depend on the watchdog.
func (inc *Incarnation) Alive() bool {
	if inc.Ctx.Err() != nil {
		return false
	}
	if left := inc.left(); left <= 0 {
		why := LossCutOff
		if inc.overslept() {
			why = LossPaused
		}
		inc.loseSince(why, time.Now().Add(left))
		return false
	}
	return true
}

// Lose ends the incarnation because its session has ended or may have ended.
func (inc *Incarnation) Lose(why LossReason) { inc.loseSince(why, time.Now()) }

func (inc *Incarnation) loseSince(why LossReason, since time.Time) {
	lost := inc.Manager.Config.Lost(why, inc.ID.Load(), since)
	inc.seal(lost)
}

// giveUp ends the incarnation, all its holds, and its session on the servers. Unlike Lose, it
// leaves the connection open: shut ends the session over it after holders have had LossTime.
//
// There may be several reasons to abandon a session. The first counts: an incarnation is
// abandoned once.
func (inc *Incarnation) giveUp() {
	inc.abandon() // before end, because shut reads it after end
	inc.end(inc.Manager.Config.Lost(LossGivenUp, inc.ID.Load(), time.Now()))
}

// abandon records when the session was abandoned, which is when its holders learn of their loss.
func (inc *Incarnation) abandon() {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	if inc.abandoned.IsZero() {
		inc.abandoned = time.Now()
	}
}

// leftAt returns the time at which the session was abandoned, or a zero time.
func (inc *Incarnation) leftAt() time.Time {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.abandoned
}

// endedOnServer records that the servers have ended the session at the client's request.
func (inc *Incarnation) endedOnServer() {
	inc.LeaseMu.Lock()
	inc.over = true
	inc.LeaseMu.Unlock()
}

// ended reports whether endedOnServer was called.
func (inc *Incarnation) ended() bool {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.over
}

// LossTime is the time that holders have to react after the library gives up their holds, before
// another session can be granted them. It is a tenth of the session timeout. A client that is cut
// off has as much time between the report of its losses and the end of its session.
func (inc *Incarnation) LossTime() time.Duration { return time.Duration(inc.Timeout.Load() / 10) }

// leaveTime waits, if the session was abandoned, until its holders have had their time. It
// reports whether there is a connection that has been there all the time. A connection made
// during the wait does not count: no holder has had time since it began. All holders learned of
// the loss when the incarnation ended.
func (inc *Incarnation) leaveTime() (connected bool) {
	left, down := inc.leftAt(), inc.Disconnection()
	if left.IsZero() {
		return !IsClosed(down)
	}
	// Several cases may be ready at once; whichever is picked, down is checked again. Without a
	// connection, endOrphan waits as long. If the session expires first, that too is later than
	// LossTime, because the session was confirmed for longer when it was abandoned. A caller of
	// Close gives up its holds itself, so Close waits for no holder.
	select {
	case <-time.After(time.Until(left.Add(inc.LossTime()))):
	case <-down:
	case <-inc.Manager.Over:
	}
	return !IsClosed(down)
}

// fail ends the incarnation, and the whole Session with it, because of an error that no retry can
// cure.
func (inc *Incarnation) fail(err error) {
	inc.Manager.fail(err)
	inc.seal(err)
}

// seal ends the incarnation. Holders learn of it first. Then it closes the socket, so that no
// queued request can reach a server.
func (inc *Incarnation) seal(cause error) {
	inc.end(cause)
	inc.mu.Lock()
	l := inc.link
	inc.mu.Unlock()
	if l != nil {
		l.Close()
	}
}

// shut waits until every part of the incarnation has ended. If the session is alive and
// connected, shut also closes it on the server, which deletes its ephemeral znodes.
func (inc *Incarnation) shut() {
	inc.drain.Do(func() {
		inc.end(ErrClosed)     // the first cause stays
		inc.last <- struct{}{} // lastly has returned, and later calls of it take the other branch
		if inc.leaveTime() {
			inc.newestLink().bye()
			AwaitFor(inc.gone, time.Second)
		}
		inc.seal(ErrClosed)
		// Perhaps no server was asked to end the session, because there was no connection, or the
		// server that was asked is silent. Then endOrphan asks another. If the silent server
		// forwards the request later, it ends the same session.
		if left := inc.leftAt(); !left.IsZero() && !inc.ended() {
			inc.Manager.Spawn(func() { inc.endOrphan(left) })
		}
	})
	<-inc.gone
}

// lastly calls f, which ends the session over a connection that was made during Close. shut does
// not close that connection before f returns.
func (inc *Incarnation) lastly(f func()) {
	select {
	case inc.last <- struct{}{}:
		inc.end(ErrClosed)
		f()
		<-inc.last
	default: // shut has called end
		f()
	}
}

// end ends the incarnation. When it returns, every hook of Ended has returned, even if another
// goroutine called end first: every hold of the session is lost, and its holder can know. So
// every request that ends the session on the servers is written after end.
//
// Close depends on that order: after closeSession, another session can be granted the lock within
// a round trip. A session that ends in another way lives on for a tenth of its timeout.
func (inc *Incarnation) end(cause error) {
	inc.cancel(cause)
	inc.Ended.End(inc.Loss())
	<-inc.Ended.Done() // another goroutine may be running the hooks
}

func (inc *Incarnation) connected() {
	m := inc.Manager
	inc.newestLink().open()
	began, said := m.outage.end()
	again := IsClosed(inc.first)
	kind, text := EventConnected, "zsync: session established"
	if again {
		kind, text = EventReconnected, "zsync: reconnected"
		m.reconnects.Add(1)
	}
	// The state comes first: a goroutine that is woken by one of the channels closed next may ask
	// for it.
	entered := m.enter(inc, StateConnected, Event{Kind: kind})
	inc.mu.Lock()
	inc.down = make(chan struct{})
	close(inc.up)
	inc.mu.Unlock()
	inc.wake()
	if !again {
		m.traceBegin(inc)
		close(inc.first)
	}
	if entered {
		m.Log.Info(text, "session", Text(inc.ID.Load()), "timeout", time.Duration(inc.Timeout.Load()))
		m.tell()
	}
	if said { // at the level of the message that it ends
		m.Log.Warn(TextReconnected, "since", time.Now(), "lasted", time.Since(began).Round(time.Millisecond), "session", Text(inc.ID.Load()))
	}
}

func (inc *Incarnation) disconnected() {
	if IsClosed(inc.Disconnection()) {
		return // only a handshake has failed
	}
	inc.Manager.outage.begin()
	if inc.Manager.Config.LossOnSuspend && inc.Ctx.Err() == nil {
		inc.abandon() // before its end, because shut reads it after the end
		inc.Lose(LossSuspended)
	}
	entered := inc.Manager.enter(inc, StateSuspended, Event{Kind: EventSuspended})
	inc.mu.Lock()
	inc.up = make(chan struct{})
	close(inc.down)
	inc.mu.Unlock()
	if entered {
		inc.Manager.Log.Info("zsync: connection dropped", "session", Text(inc.ID.Load()))
		inc.Manager.tell()
	}
}

// Disconnection returns a channel that is closed while no connection serves the session.
func (inc *Incarnation) Disconnection() <-chan struct{} {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.down
}

// Connection waits until a connection serves the session.
func (inc *Incarnation) Connection(ctx context.Context) error {
	inc.mu.Lock()
	up := inc.up
	inc.mu.Unlock()
	if IsClosed(up) {
		return nil // with a connection, this is cheaper than the select below
	}
	// Several cases may be ready at once; every choice is right: the next request also finds that
	// ctx or the incarnation has ended.
	select {
	case <-up:
	case <-ctx.Done():
		return CtxErr(ctx)
	case <-inc.Ctx.Done():
		return ErrEnded
	}
	return nil
}

// newestLink returns the link that was made last.
func (inc *Incarnation) newestLink() *link {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.link
}

// seen records the zxid of a reply.
func (inc *Incarnation) seen(zxid int64) {
	if zxid > inc.zxid.Load() { // no race: only the reading goroutine stores, and one link reads at a time
		inc.zxid.Store(zxid)
	}
}

// newest reports whether l is the link that was made last. An older link carries nothing.
func (inc *Incarnation) newest(l *link) bool {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.link == l
}

// removeWatch asks the server to drop an idle watch.
func (inc *Incarnation) removeWatch(key WatchKey) {
	for {
		if l := inc.newestLink(); l.removeWatch(key) { // there is a link, or there would be no watches
			return
		}
	}
}

// TraceLine returns a record of the trace about a hold through inc with the znode of this name.
func (inc *Incarnation) TraceLine(event, kind, path, hold string) trace.Line {
	return trace.Line{
		Event: event, Kind: kind, Path: inc.Manager.Bare(path), Hold: hold,
		// Blind is read first: an event between the two reads can only make both better.
		Blind: inc.sight.blind.Load(), Zxid: inc.sight.zxid.Load(), Session: Text(inc.ID.Load()),
	}
}

// TraceLoss returns l with the reason of a loss.
func (m *Manager) TraceLoss(l trace.Line, why error) trace.Line {
	var since time.Time
	if l.Reason, since = m.Config.Reason(why); !since.IsZero() {
		l.Since = &since
	}
	return l
}

func (m *Manager) traceBegin(inc *Incarnation) {
	m.Trace.Line(trace.Line{Event: trace.Session, Session: Text(inc.ID.Load()), Timeout: time.Duration(inc.Timeout.Load()).String(), Zxid: inc.sight.zxid.Load()})
}

func (m *Manager) traceEnd(inc *Incarnation, why error) {
	if m.Trace != nil && inc.ID.Load() != 0 {
		m.Trace.Line(m.TraceLoss(trace.Line{Event: trace.Expired, Session: Text(inc.ID.Load()), Zxid: inc.sight.zxid.Load()}, why))
	}
}

// EndError returns the error for holders if the incarnation ends with this cause. It matches
// ErrLost.
func (inc *Incarnation) EndError(cause error) error {
	if errors.Is(cause, ErrLost) {
		return cause
	}
	lost := inc.Manager.Config.Lost(LossClosed, inc.ID.Load(), time.Now())
	if cause == nil || errors.Is(cause, ErrClosed) {
		return lost
	}
	return fmt.Errorf("%w: %w", lost, cause) // the Session has failed permanently, and the caller must learn why
}

// Loss is EndError for an incarnation that has ended.
func (inc *Incarnation) Loss() error { return inc.EndError(context.Cause(inc.Ctx)) }

// Deleted returns the loss of a hold in this session whose znode was deleted.
func (inc *Incarnation) Deleted() error {
	return inc.Manager.Config.Lost(LossDeleted, inc.ID.Load(), time.Now())
}
