// Package session keeps one ZooKeeper session after another. An Incarnation is one session; a Manager
// opens the next. The package sends requests through a session until they are answered, and waits for
// changes of znodes. Package znodes builds on these requests.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/wire"
)

// An Incarnation is one ZooKeeper session, from the handshake to its end. It begins once, ends
// once, and is never revived: the Manager replaces it with the next. So "do I still hold the lock?"
// has one answer.
//
// This file has the life of an incarnation: connections one after another, the end, and the states
// that callers see.
type Incarnation struct {
	Manager *Manager
	Watches *conn.Watches

	// Ctx is cancelled, with an ErrLost or ErrClosed as its cause, when the session is over or
	// may be over.
	Ctx    context.Context
	cancel context.CancelCauseFunc

	Ended Ending // each hold of the session has a hook here; the hook ends the hold, and runs before the servers end the session

	ID      atomic.Int64  // the session id; 0 before the first handshake
	Timeout atomic.Int64  // the negotiated session timeout, in nanoseconds
	gone    chan struct{} // closed when `serve` has returned
	begun   bool          // the first handshake has succeeded; used by `serve`
	over    bool          // the servers have confirmed the end of the session, for which the client has asked

	abandoned atomic.Pointer[time.Time] // when the session was abandoned; nil before that; never changes once set

	mu     sync.Mutex
	served *conn.Conn    // the connection that serves the session, or nil; guarded by mu
	turn   chan struct{} // closed when `served` changes; guarded by mu

	LeaseMu  sync.Mutex
	Lease    lease.Lease        // guarded by LeaseMu
	stakes   int                // number of holds of the session; guarded by LeaseMu
	asking   *Pending[struct{}] // the last inquiry, or nil; guarded by LeaseMu
	askAfter time.Time          // there is no inquiry before this time; guarded by LeaseMu
	leaveBy  time.Time          // when to leave the present server if no inquiry proves anything; zero before the first inquiry; guarded by LeaseMu

	Attached sync.Map // data that other packages attach to the session: see shared.Attached

	timers sync.Pool // of AwaitConnected

	kick   chan struct{}                 // has a token when the watchdog should look again
	looked atomic.Pointer[lease.Instant] // time of the watchdog's last look

	last chan struct{} // has a token from the reply to a handshake until the connection serves or ends; `shut` waits before it closes the connection

	conns    conn.Shared               // the data that the session's connections share
	conn     atomic.Pointer[conn.Conn] // the newest connection, or nil
	password []byte                    // of the session; used by `serve`, and after it by endOrphan
	trail    trail
}

// newIncarnation returns a session that is not established yet.
func newIncarnation(m *Manager) *Incarnation {
	inc := &Incarnation{
		Manager: m,
		gone:    make(chan struct{}),
		turn:    make(chan struct{}),
		last:    make(chan struct{}, 1),
		kick:    make(chan struct{}, 1),
	}
	inc.Timeout.Store(int64(m.Config.Timeout))
	inc.Lease = lease.New(m.Config.Timeout)
	inc.Ctx, inc.cancel = context.WithCancelCause(context.Background())
	inc.Watches = conn.NewWatches()
	inc.conns = conn.Shared{
		Ctx: inc.Ctx, Spawn: m.Spawn, Watches: inc.Watches, Auths: m.Config.Auths, SASL: m.Config.SASL, Dialer: m.Config.Dialer, TLS: m.Config.TLS, Requests: &m.Requests,
		Nobody: "/" + uuid.NewString() + "/none", Sending: inc.sending, Answered: inc.contact, Confirm: inc.confirm, Served: m.fit, CaughtUp: inc.caughtUp,
	}
	if m.Trace != nil {
		inc.conns.Deleted = m.Trace.Gone
	}
	return inc
}

// The method `serve` keeps the session connected until it ends. Only the goroutine of `serve` reads
// from the session's connections.
//
// A request without a reply fails when its connection has ended, and a write when the next server has
// caught up. Its sender then finds the outcome over a later connection: see Repeat. So `serve` leaves out
// the servers at which such a write may still be under way (see `trail`), and each later connection
// begins with a sync. The client sets the watches again before that sync. So a missed event arrives
// before every reply that shows the change.
//
// A broken connection does not end the session: only Alive and `handshake` do.
func (inc *Incarnation) serve() {
	m := inc.Manager
	defer func() { conn.Fail(inc.trail.late) }() // the session has ended, so no later server catches up
	for inc.Ctx.Err() == nil {
		addr, delay := m.Pace.pick(inc.longestDelay(), inc.mayUse)
		// Without a delay, there is no timer: Go's race detector has crashed when two threads
		// looked at two due timers of one synctest bubble.
		if delay > 0 {
			Sleep(inc.Ctx, delay)
		}
		if addr == "" || inc.Ctx.Err() != nil {
			continue // no server may continue the session now, or it has ended
		}
		c, err := inc.connect(addr) // the handshake; then the watches and a sync are sent
		reached := err == nil
		if reached {
			m.Pace.success()
			inc.connected(c)
			err = c.Read() // until the connection ends
		}
		if c != nil {
			inc.conclude(c, err)
			err = c.Reason(err)
			c.Close()
			if reached {
				inc.disconnected(err)
			}
			inc.trail.leave(addr, c.Over())
		}
		if !reached && inc.Ctx.Err() == nil { // otherwise, the error says nothing about the server
			m.dialed(addr, err)
		}
	}
}

// The method `conclude` draws the conclusions from the end of a connection, or of its handshake.
func (inc *Incarnation) conclude(c *conn.Conn, err error) {
	m := inc.Manager
	switch {
	case err == conn.ErrEnded:
		inc.over = true
	case (err == zk.ErrSessionMoved || err == zk.ErrSessionExpired) && inc.Ctx.Err() == nil:
		m.Pace.again() // the next handshake decides: see conn.Conn.disowned
	case errors.As(err, new(*sasl.RefusedError)), IsAnswer(err, wire.Code(wire.CodeWantsAuth)):
		// If every server has refused this client or was out of reach, another attempt would fail in the
		// same way, and each caller must get the reason.
		if m.unfit(c.Addr, err); m.noneFits() {
			inc.fail(err)
		}
	case errors.Is(err, zk.ErrAuthFailed):
		// A server or the mechanism of SASL refuses the credentials. If the mechanism fails for another
		// reason, such as a ticket that is not available now, the client tries again at the usual pace.
		inc.fail(err)
	case inc.Ctx.Err() == nil && !IsClosed(inc.Disconnection()) && c.Age() < conn.Lasting:
		m.unfit(c.Addr, fmt.Errorf("%w: %w", errShort, err))
	}
}

// The method `connect` opens the session over a new connection, or continues it. The connection is
// nil if the server was not reached within a limit, which is also the limit of the handshake.
func (inc *Incarnation) connect(addr string) (*conn.Conn, error) {
	timeout := time.Duration(inc.Timeout.Load())
	limit := timeout / 3 // no hold can be lost yet
	if inc.ID.Load() != 0 {
		// Servers that have not been tried share the remaining time equally. One share is for another
		// attempt. And there must be time for another server before the session must be abandoned.
		share := inc.left() / time.Duration(inc.Manager.Pace.untried()+1)
		limit = max(min(timeout/5, share, leastGrant(&inc.Manager.granted, addr, timeout)/3), 10*time.Millisecond)
	}
	c, err := conn.Dial(inc.Ctx, &inc.conns, addr, min(limit, 5*time.Second))
	if err != nil {
		return nil, err
	}
	inc.conn.Store(c)
	// A session must not be opened after the end. Either this check sees the end of the incarnation, or
	// the goroutine that ends it sees this connection: `end` runs before `seal` loads inc.conn.
	if inc.Ctx.Err() != nil {
		return c, net.ErrClosed
	}
	return c, inc.handshake(c)
}

// A new session's timeout up to maxGranted is accepted from a server, even if the client asked for
// much less.
const maxGranted = 2 * time.Minute

// The method `handshake` opens or continues the session over c. Only the first handshake of an
// incarnation may open a session.
func (inc *Incarnation) handshake(c *conn.Conn) (err error) {
	ask, now := conn.Hello{ID: inc.ID.Load(), Password: inc.password, Timeout: inc.Manager.Config.Timeout}, time.Now()
	if ask.ID != 0 {
		ask.Timeout = time.Duration(inc.Timeout.Load())
		inc.LeaseMu.Lock()
		inc.Lease.Trying(now, leastGrant(&inc.Manager.granted, c.Addr, ask.Timeout))
		inc.LeaseMu.Unlock()
		inc.wake() // the session may now end before the watchdog would look
	}
	got, err := c.Connect(ask)
	if err != nil {
		closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) // by the server
		if ask.ID != 0 && !closed {
			inc.trail.unanswered(c.Addr)
		}
		return err
	}
	if want := inc.Manager.Config.Timeout; ask.ID == 0 && got.ID != 0 && got.Timeout > max(10*want, maxGranted) {
		// If this server hung, the client would wait for it during that timeout. A continued session keeps its timeout.
		c.Bye()
		return fmt.Errorf("%w: a session timeout of %v instead of %v: see WithSessionTimeout, and the server's minSessionTimeout", conn.ErrHandshake, got.Timeout, want)
	}
	// The SASL exchange comes first. So the client has authenticated even if it then asks the server to
	// end the session.
	refused := c.Authenticate(inc.Ctx, got.ID)
	inc.last <- struct{}{} // from now on, the server has renewed the session, so this method ends it if Close begins
	defer func() {
		if err != nil {
			<-inc.last
		}
	}()
	switch ended := context.Cause(inc.Ctx); {
	case got.ID == 0 && ask.ID == 0:
		return fmt.Errorf("%w: no session was given", conn.ErrHandshake)
	case got.ID == 0:
		// A process that was stopped gets this reply as soon as it continues, usually before its watchdog
		// runs. Then Alive records this reason, and the time at which the confirmation ended.
		if inc.Alive() {
			inc.Lose(LossExpired)
		}
		return zk.ErrSessionExpired
	case got.ID != ask.ID && (ask.ID != 0 || ended != nil):
		c.Bye() // no client will use this session
		inc.Lose(LossReplaced)
		return zk.ErrSessionExpired
	case ended != nil && ask.ID != 0 && !IsClosed(inc.Manager.farewell):
		// The incarnation ended during the handshake, which has renewed the session for another timeout.
		// endOrphan ends the session after the holders have had LossTime.
		inc.noteAbandoned()
		return ended
	case ended != nil:
		return inc.bye(c)
	}
	noteGrant(&inc.Manager.granted, c.Addr, ask.Timeout, got.Timeout)
	timeout := got.Timeout
	if ask.ID != 0 {
		// Servers may be configured differently. A new leader gives the session the timeout that
		// was granted first.
		timeout = min(timeout, ask.Timeout)
	}
	inc.Timeout.Store(int64(timeout))
	inc.LeaseMu.Lock()
	inc.Lease.Connected(now, ask.ID == 0, timeout)
	inc.leaveBy = time.Time{} // the limit of another server
	inc.LeaseMu.Unlock()
	if ask.ID != 0 { // a new session gets its watchdog when it is established: see `connected`
		inc.wake() // as above: the timeout may be shorter than the client expected
	}
	if refused != nil {
		return refused
	}
	switch err := c.Begin(got.ID, timeout, ask.ID != 0); {
	case err != nil && inc.Ctx.Err() != nil && (ask.ID == 0 || IsClosed(inc.Manager.farewell)):
		return inc.bye(c)
	case err != nil:
		return err
	}
	// The incarnation gets its id only here. If the connection breaks before the credentials are
	// answered, the next handshake asks for a new session.
	inc.password = got.Password
	inc.ID.Store(got.ID)
	return nil
}

// The method `bye` ends the session over c if, during the handshake, the incarnation was ended by Close,
// or was ended and has no holds yet.
func (inc *Incarnation) bye(c *conn.Conn) error {
	inc.end(ErrClosed)
	c.Bye()
	return context.Cause(inc.Ctx)
}

func (inc *Incarnation) sending() lease.Stamp {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.Lease.Sending(time.Now())
}

// The method `confirm` reports whether a connection must begin with a write that confirms the
// session. The write is necessary if the session has holds.
func (inc *Incarnation) confirm() bool {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	if inc.stakes > 0 {
		inc.Lease.Confirming()
	}
	return inc.stakes > 0
}

// The method `contact` is called when a request was answered at the time `now`, with the proof p, and
// after each stride of a long packet.
func (inc *Incarnation) contact(s lease.Stamp, p lease.Proof, now time.Time) {
	if p == lease.Quorum {
		inc.trail.written = s.At
	}
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	if inc.Lease.Answered(s, p, now) {
		inc.leaveBy = time.Time{} // the program's own writes confirm, too
	}
}

// The method `caughtUp` is called when a server that continues the session has answered the first
// sync: see trail.caughtUp. After writeAfter, the session ceases to avoid the servers that it has left.
func (inc *Incarnation) caughtUp(addr string) {
	late, since, wait := inc.trail.caughtUp(addr)
	if !wait {
		conn.Fail(late)
		late = nil
	}
	if !since.IsZero() {
		inc.Manager.Log.Info("zsync: servers are left out for now, as they may still carry out writes that had no answer",
			"addr", strings.Join(slices.Sorted(maps.Keys(inc.trail.left)), ","), "session", Text(inc.ID.Load()))
		inc.Manager.Spawn(func() {
			inc.writeAfter(since)
			conn.Fail(late)
		})
	}
}

// The method `writeAfter` waits until the session has avoided a server, which it left at the time
// `since`, for long enough. Then it sends writes that change nothing, until the leader answers one: it
// has taken all earlier writes from its queue. Without a reply, writeAfter returns at the time at
// which `bars` also permits the server.
func (inc *Incarnation) writeAfter(since time.Time) {
	timeout := time.Duration(inc.Timeout.Load())
	limit := avoidance(timeout)
	for wait := limit - time.Since(since) + time.Millisecond; time.Since(since) < 2*limit; wait = timeout / 100 {
		Sleep(inc.Ctx, wait)
		c, err := inc.OpenConn(inc.Ctx)
		if err != nil {
			return
		}
		p := NewPending(inc.Flush())
		c.Send(p)
		if <-p.Done; proved(p) { // without a reply, p fails when the connection has ended
			return
		}
	}
}

// Flush returns a write that changes nothing: it deletes a znode that does not exist. A read that
// follows over the same connection sees the results of all requests of the session that the leader has
// received before. If the client has no permission for the deletion, its server may answer without the
// leader. Then the read is only as new as the sync that the caller sends with it.
func (inc *Incarnation) Flush() Call[struct{}] {
	c := DeleteCall(inc.conns.Nobody, -1)
	c.Moot = true
	return c
}

// The method `left` returns the time for which the session still counts as alive if no further
// reply comes.
func (inc *Incarnation) left() time.Duration {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.Lease.Left(time.Now(), inc.stakes > 0)
}

// Alive reports whether the session counts as alive: see `left`. The result does not depend on the
// watchdog.
func (inc *Incarnation) Alive() bool {
	if inc.Ctx.Err() != nil {
		return false
	}
	if left := inc.left(); left <= 0 {
		why := LossCutOff
		if m := inc.looked.Load(); m != nil && m.Since(time.Now()) > time.Duration(inc.Timeout.Load()/5) {
			why = LossPaused // the watchdog could not run: the process was stopped, or the machine slept
		}
		inc.seal(inc.loss(why, time.Now().Add(left), nil))
		return false
	}
	return true
}

// Lose ends the incarnation because its session has ended or may have ended.
func (inc *Incarnation) Lose(why LossCause) { inc.seal(inc.loss(why, time.Now(), nil)) }

func (inc *Incarnation) loss(why LossCause, since time.Time, cause error) error {
	return inc.Manager.Config.Lost(why, inc.ID.Load(), since, cause)
}

// Abandon ends the incarnation, all its holds, and its session on the servers. Unlike Lose, Abandon
// leaves the connection open: `shut` ends the session over that connection.
func (inc *Incarnation) Abandon() {
	inc.noteAbandoned() // this comes before `end`, because `shut` reads the time after `end`
	inc.end(inc.GivenUp(nil))
}

// The method `noteAbandoned` records the time at which the session was first abandoned. At that time, the
// holders learn of their loss.
func (inc *Incarnation) noteAbandoned() {
	now := time.Now()
	inc.abandoned.CompareAndSwap(nil, &now)
}

// LossTime is the time for which a holder can react after the library gives up its hold, before
// another session can be granted it. A client that is cut off has as much time between the report of
// its losses and the end of its session.
func (inc *Incarnation) LossTime() time.Duration { return time.Duration(inc.Timeout.Load() / 10) }

// The method `fail` ends the incarnation, and the whole Session with it, because of a refusal of
// credentials, which no retry can cure. If the servers have accepted them before, perhaps no call
// returns the error, so `fail` also logs it.
func (inc *Incarnation) fail(err error) {
	if inc.ID.Load() != 0 || inc.Manager.Expiries.Load() > 0 {
		inc.Manager.Log.Error("zsync: the credentials are refused, and the session ends", "session", Text(inc.ID.Load()), "err", err)
	}
	inc.Manager.fail(err)
	inc.seal(err)
}

// The method `seal` ends the incarnation. First the holders learn of the end. Then `seal` closes
// the socket, so that no queued request can reach a server.
func (inc *Incarnation) seal(cause error) {
	inc.end(cause)
	if c := inc.NewestConn(); c != nil {
		c.Close()
	}
}

// The method `shut` is called once. It ends the incarnation, and waits until `serve` has returned. If the
// session is alive and connected, `shut` also closes it on the server, which deletes the session's
// ephemeral znodes. If the session was abandoned, the holders first have LossTime.
func (inc *Incarnation) shut() {
	inc.end(context.Cause(inc.Manager.over)) // the first cause stays
	select {                                 // a handshake that ends the session has ended it, or its server is silent
	case inc.last <- struct{}{}:
		<-inc.last
	case <-time.After(min(time.Second, inc.LossTime())): // endOrphan has to wait for that time, too
	}
	c := inc.serving() // the session has ended, so no other connection will serve it
	if left := inc.abandoned.Load(); left != nil {
		// Several cases may be ready at once; each is right. Without a connection, endOrphan waits for the
		// same time. If the session expires first, holders have had LossTime, too: when the session was
		// abandoned, the servers had to keep it for longer. A caller of Close gives up its holds itself, so
		// Close waits for no holder. But a failure of the whole Session does not shorten the time.
		select {
		case <-time.After(time.Until(left.Add(inc.LossTime()))):
		case <-inc.Disconnection():
		case <-inc.Manager.farewell:
		}
	}
	if c != nil {
		c.Bye()
		AwaitFor(inc.gone, time.Second)
	}
	inc.seal(ErrClosed)
	<-inc.gone // a handshake may have read its reply before `seal`, and then calls `noteAbandoned`
	// Perhaps there was no connection, so no server was asked to end the session. Or the server
	// that was asked is silent. In both cases, endOrphan asks another server. If the silent
	// server forwards the request later, that ends the same session.
	if left := inc.abandoned.Load(); left != nil && !inc.over {
		inc.endOrphan(*left)
	}
}

// The method `end` ends the incarnation. When it returns, every hook of inc.Ended has returned, and
// every holder can know its loss. Every request that ends the session on the servers is written after
// that: after closeSession, another session can be granted the lock within a round trip.
func (inc *Incarnation) end(cause error) {
	inc.cancel(cause)
	inc.Ended.End(inc.Loss())
	<-inc.Ended.Done() // another goroutine may be running the hooks
}

func (inc *Incarnation) connected(c *conn.Conn) {
	m := inc.Manager
	kind, text := EventConnected, "zsync: session established"
	if inc.begun {
		kind, text = EventReconnected, "zsync: reconnected"
		m.Reconnects.Add(1)
	} else {
		inc.begun = true
		m.Trace.Line(trace.Record{Event: trace.Session, Session: Text(inc.ID.Load()), Timeout: time.Duration(inc.Timeout.Load()).String(), Zxid: inc.conns.Zxid.Load()})
	}
	// Change the state before the channel is closed: a goroutine that waits for the channel may then
	// read the state.
	entered := m.enter(inc, StateConnected, Report{Kind: kind})
	inc.serveBy(c)
	<-inc.last // from now on, `shut` ends the session over c
	inc.wake()
	if entered {
		m.Log.Info(text, "session", Text(inc.ID.Load()), "timeout", time.Duration(inc.Timeout.Load()))
		m.tell()
	}
}

func (inc *Incarnation) disconnected(err error) {
	if inc.Manager.Config.LossOnSuspend && inc.Ctx.Err() == nil {
		inc.noteAbandoned() // this comes before Lose, because `shut` reads the time after Lose
		inc.Lose(LossSuspended)
	}
	entered := inc.Manager.enter(inc, StateSuspended, Report{Kind: EventSuspended})
	inc.serveBy(nil)
	if entered {
		inc.Manager.Log.Info("zsync: connection dropped", "session", Text(inc.ID.Load()), "err", err)
		inc.Manager.tell()
	}
}

func (inc *Incarnation) serveBy(c *conn.Conn) {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	close(inc.turn)
	inc.served, inc.turn = c, make(chan struct{})
}

// Disconnection returns a channel that is closed while no connection serves the session.
func (inc *Incarnation) Disconnection() <-chan struct{} {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	if inc.served == nil {
		return ClosedChan
	}
	return inc.turn
}

// The method `serving` returns the connection that serves the session, or nil.
func (inc *Incarnation) serving() *conn.Conn {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.served
}

// OpenConn waits until a connection serves the session, and returns it.
func (inc *Incarnation) OpenConn(ctx context.Context) (*conn.Conn, error) {
	for {
		inc.mu.Lock()
		c, turn := inc.served, inc.turn
		inc.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil, CtxErr(ctx)
		case inc.Ctx.Err() != nil:
			return nil, ErrEnded
		case c != nil:
			return c, nil
		}
		if err := AwaitIn(ctx, inc, turn); err != nil && err != ErrEnded {
			return nil, inc.Manager.unserved(err)
		}
	}
}

// AwaitIn waits for `done`. It returns an error if ctx or the session ends first.
func AwaitIn[T any](ctx context.Context, inc *Incarnation, done <-chan T) error {
	// If `done` and ctx are both ready, either result is right: the caller has not learned of
	// `done` yet, and cleans up after an error.
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return CtxErr(ctx)
	case <-inc.Ctx.Done():
		return ErrEnded
	}
}

// NewestConn returns the newest connection of the session, which may have ended. It is nil before the
// first connection.
func (inc *Incarnation) NewestConn() *conn.Conn { return inc.conn.Load() }

// TraceLine returns a record of the trace about a hold through inc. The argument `hold` is the name
// of the hold's znode.
func (inc *Incarnation) TraceLine(event, kind, path, hold string) trace.Record {
	return trace.Record{
		Event: event, Kind: kind, Path: inc.Manager.Bare(path), Hold: hold,
		// `Blind` is read first. In the other order, a packet between the two reads could clear
		// `Blind`, and the record would then have an old `Zxid`, but no `Blind`.
		Blind: inc.conns.Blind.Load(), Zxid: inc.conns.Zxid.Load(), Session: Text(inc.ID.Load()),
	}
}

// TraceLoss returns l with the reason of a loss.
func (m *Manager) TraceLoss(l trace.Record, why error) trace.Record {
	var since time.Time
	if l.Reason, since = m.Config.Reason(why); !since.IsZero() {
		l.Since = &since
	}
	return l
}

// EndError returns the error for holders if the incarnation ends with this cause. It matches
// ErrLost.
func (inc *Incarnation) EndError(cause error) error {
	if errors.Is(cause, ErrLost) {
		return cause
	}
	lost := inc.loss(LossClosed, time.Now(), nil)
	if cause == nil || errors.Is(cause, ErrClosed) {
		return lost
	}
	return fmt.Errorf("%w: %w", lost, cause) // the Session has failed permanently, and the caller must learn why
}

// Loss is EndError for an incarnation that has ended.
func (inc *Incarnation) Loss() error { return inc.EndError(context.Cause(inc.Ctx)) }

// Deleted returns the loss of a hold in this session after the hold's znode was deleted.
func (inc *Incarnation) Deleted() error { return inc.loss(LossDeleted, time.Now(), nil) }

// GivenUp returns the loss of a hold, or of all holds of this session, that this process ends
// itself. The argument `why` may be nil.
func (inc *Incarnation) GivenUp(why error) error { return inc.loss(LossGivenUp, time.Now(), why) }
