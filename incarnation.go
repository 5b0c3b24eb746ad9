package zsync

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// An incarnation is one ZooKeeper session, from handshake to end. It begins
// once, ends once, and is never revived: the public [Session] is the manager
// that replaces it with the next. Every ephemeral znode belongs to the
// incarnation that created it, so "does my lock still stand?" has one answer.
//
// It wraps one [zk.Conn], which is sealed when the incarnation ends: its
// socket is closed, its dialer refuses, and no call is given to it any more.
type incarnation struct {
	m    *manager
	hub  *hub
	conn *zk.Conn // set before ready is closed

	// ctx is cancelled, with cause an ErrLost or ErrClosed, when the session is
	// over or may be over.
	ctx context.Context
	end context.CancelCauseFunc

	id      atomic.Int64           // the session id; 0 before the first handshake
	timeout atomic.Int64           // the negotiated session timeout, in nanoseconds
	heard   atomic.Pointer[moment] // when the last answered request was sent; nil before the first
	vetted  sync.Map               // by path: the directories that nobody else may change
	ready   chan struct{}          // closed when conn is set
	first   chan struct{}          // closed when the first handshake has succeeded
	parked  chan struct{}          // closed when conn, after the end, is between two attempts to connect
	quit    chan struct{}          // closed when conn.Close has been called
	gone    chan struct{}          // closed when every goroutine of conn has ended
	park    sync.Once              // closes parked
	drain   sync.Once              // shuts conn down

	mu   sync.Mutex
	link *link                    // the newest, if any; guarded by mu
	up   chan struct{}            // closed while a connection serves the session; guarded by mu
	down chan struct{}            // closed while none does; guarded by mu
	sent map[string]chan struct{} // by path of a create: closed when it has been written; guarded by mu

	liveMu sync.Mutex
	live   liveness // guarded by liveMu
	stakes int      // what is held through the session; guarded by liveMu
	asking *inquiry // under way; guarded by liveMu
	nobody string   // a path where there is no znode

	kick   chan struct{}          // has a token when the watchdog should look again
	looked atomic.Pointer[moment] // when the watchdog has last looked

	bundles map[string][]string // by token; guarded by mu
	book    book                // of receipts
	largest atomic.Int64        // bytes of the largest znode in a late bundle
}

// A session through which nothing is held is given up after this part of its
// timeout without an answer, so that what only waits goes on in another. When
// something is held it is liveness that decides.
const patience = 3.0 / 4

// A connection is given up after this part of the timeout without a reply, so
// that time is left to try another server. Pings go every third.
const silent = 1.0 / 2

// newIncarnation begins a session. It is not established before first is
// closed.
func newIncarnation(m *manager) *incarnation {
	inc := &incarnation{
		m:       m,
		ready:   make(chan struct{}),
		first:   make(chan struct{}),
		quit:    make(chan struct{}),
		parked:  make(chan struct{}),
		gone:    make(chan struct{}),
		up:      make(chan struct{}),
		down:    make(chan struct{}),
		sent:    make(map[string]chan struct{}),
		bundles: make(map[string][]string),
		nobody:  "/" + newGUID() + "/none",
		kick:    make(chan struct{}, 1),
	}
	close(inc.down)
	inc.timeout.Store(int64(m.cfg.timeout))
	inc.ctx, inc.end = context.WithCancelCause(context.Background())
	inc.hub = newHub(inc.removeWatch, m.spawn)
	return inc
}

// start begins to connect.
func (inc *incarnation) start() {
	conn, events, err := zk.Connect(inc.m.hosts, inc.m.cfg.timeout,
		zk.WithDialer(inc.dial),
		zk.WithHostProvider(&hostProvider{inc}),
		zk.WithEventCallback(inc.event),
		zk.WithLogger(inc.m.zkLog),
		zk.WithLogInfo(false),
	)
	if err != nil {
		panic("zsync: BUG: " + err.Error()) // only an empty list of servers is refused
	}
	inc.conn = conn
	close(inc.ready)
	inc.m.spawn(func() {
		defer close(inc.gone)
		for range events { // closed when the loop of conn has ended
		}
	})
	inc.m.spawn(inc.watchdog)
}

// silence is how long a connection may stay without a reply.
func (inc *incarnation) silence() time.Duration {
	return time.Duration(float64(inc.timeout.Load()) * silent)
}

// dial is go-zookeeper's dialer.
func (inc *incarnation) dial(_, addr string, _ time.Duration) (net.Conn, error) {
	<-inc.ready
	limit := inc.dialLimit()
	deadline := time.Now().Add(limit)
	c, err := inc.m.dial(inc.ctx, addr, limit)
	if err != nil {
		if inc.ctx.Err() == nil { // else it says nothing of the server
			inc.m.dialed(addr, err)
		}
		return nil, err
	}
	l := newLink(inc, c, addr, deadline)
	inc.mu.Lock()
	inc.link = l
	inc.mu.Unlock()
	// Either we see the end here, or whoever ends the incarnation sees the
	// link there: it is set before, and end is called before it is read.
	if inc.ctx.Err() != nil {
		l.Close()
		return nil, context.Cause(inc.ctx)
	}
	return l, nil
}

// handshake is told of a server's reply to the connect request, and refuses
// what would not continue this very session.
func (inc *incarnation) handshake(l *link, id int64, timeout time.Duration) error {
	if err := context.Cause(inc.ctx); err != nil {
		return err
	}
	switch mine := inc.id.Load(); {
	case id == 0 && mine == 0:
		return fmt.Errorf("%w: no session was given", errHandshake)
	case id == 0:
		inc.lose(lossExpired)
		return zk.ErrSessionExpired
	case mine != 0 && id != mine:
		inc.lose(lossReplaced)
		return zk.ErrSessionExpired
	}
	isNew := inc.id.Load() == 0
	if !isNew {
		// Servers may be configured differently. What was granted first is
		// what a new leader gives to the session.
		timeout = min(timeout, time.Duration(inc.timeout.Load()))
	}
	inc.timeout.Store(int64(timeout))
	inc.liveMu.Lock()
	inc.live.connect(l.asked, isNew, timeout)
	inc.liveMu.Unlock()
	inc.heardAt(l.asked)
	return nil
}

// A moment is a time by two clocks. The monotonic clock is never set, but it
// stands still while the machine sleeps or is moved, which the servers do not.
// The wall clock goes on, or is set when the machine is back, but it may be set
// at any other time too. What is later by either is late: to give up a session
// for nothing does less harm than to believe in one that has ended.
type moment struct{ mono, wall time.Time }

func momentOf(t time.Time) *moment { return &moment{mono: t, wall: t.Round(0)} }

// since returns how long ago m was, by the clock that says more.
func (m *moment) since(now time.Time) time.Duration {
	return max(now.Sub(m.mono), now.Round(0).Sub(m.wall))
}

// sending is told that a request is about to be written.
func (inc *incarnation) sending() stamp {
	inc.liveMu.Lock()
	defer inc.liveMu.Unlock()
	return inc.live.send(time.Now())
}

// contact is told that a request was answered, and what that proves.
func (inc *incarnation) contact(s stamp, p proof) {
	inc.liveMu.Lock()
	inc.live.answer(s, p, time.Now())
	inc.liveMu.Unlock()
	inc.heardAt(s.at)
}

// heardAt records that a request sent at this time has been answered.
func (inc *incarnation) heardAt(at time.Time) {
	m := momentOf(at)
	for {
		old := inc.heard.Load()
		if old != nil && !at.After(old.mono) || inc.heard.CompareAndSwap(old, m) {
			return
		}
	}
}

// left is how long the session may still be believed in if nothing more is
// heard.
func (inc *incarnation) left() time.Duration {
	inc.liveMu.Lock()
	left, staked := inc.live.left(time.Now()), inc.stakes > 0
	inc.liveMu.Unlock()
	if staked {
		return left
	}
	m := inc.heard.Load()
	if m == nil {
		return time.Duration(inc.timeout.Load()) // nothing is held yet
	}
	return time.Duration(float64(inc.timeout.Load())*patience) - m.since(time.Now())
}

// alive reports whether the session certainly stands. It does not rely on the
// watchdog having had its turn.
func (inc *incarnation) alive() bool {
	if inc.ctx.Err() != nil {
		return false
	}
	if left := inc.left(); left <= 0 {
		why := lossCutOff
		if inc.overslept() {
			why = lossPaused
		}
		inc.loseSince(why, time.Now().Add(left))
		return false
	}
	return true
}

// lose ends the incarnation because its session is over, or may be.
func (inc *incarnation) lose(why lossReason) { inc.loseSince(why, time.Now()) }

func (inc *incarnation) loseSince(why lossReason, since time.Time) {
	lost := inc.m.cfg.lost(why, inc.id.Load(), since)
	inc.seal(lost)
}

// giveUp ends the incarnation, and its session on the servers, with everything
// that is held through it. It is lose without the end of the connection, over
// which shut closes the session.
func (inc *incarnation) giveUp() {
	inc.end(inc.m.cfg.lost(lossGivenUp, inc.id.Load(), time.Now()))
}

// fail ends the incarnation, and the whole Session with it, because of
// something that no retry can cure.
func (inc *incarnation) fail(err error) {
	inc.m.fail(err)
	inc.seal(err)
}

// seal ends the incarnation. Holders are told first; then the socket goes, so
// that no call already queued can reach a server.
func (inc *incarnation) seal(cause error) {
	inc.end(cause)
	inc.mu.Lock()
	l := inc.link
	inc.mu.Unlock()
	if l != nil {
		l.Close()
	}
}

// shut waits until nothing of the incarnation is left. If the session is still
// alive and connected, it is closed on the server too, which deletes its
// ephemeral znodes.
func (inc *incarnation) shut() {
	inc.drain.Do(func() {
		inc.end(ErrClosed) // the first cause stays
		select {
		case <-inc.disconnection():
			// No server can be told. go-zookeeper answers the last request
			// at once if it finds it between two attempts to connect.
			inc.seal(ErrClosed)
			<-inc.parked
		default:
		}
		closed := make(chan struct{})
		inc.m.spawn(func() {
			defer close(closed)
			inc.conn.Close() // queues a closeSession and waits up to a second for the reply
		})
		// Time for Close to queue its request. Without it nothing breaks,
		// but go-zookeeper may not see the request and sit its second out.
		time.Sleep(time.Millisecond)
		close(inc.quit)
		<-closed
		inc.seal(ErrClosed)
	})
	<-inc.gone
}

// event is go-zookeeper's callback. It runs in that library's goroutines and
// must not block.
func (inc *incarnation) event(e zk.Event) {
	switch {
	case e.Type > 0:
		inc.hub.fire(e.Type, e.Path)
	case e.Type == zk.EventSession && e.State == zk.StateHasSession:
		inc.connected()
	case e.Type == zk.EventSession && e.State == zk.StateDisconnected:
		inc.disconnected()
	}
}

func (inc *incarnation) connected() {
	m := inc.m
	inc.hub.connected()
	again := isClosed(inc.first)
	kind, text := eventConnected, "zsync: session established"
	if again {
		kind, text = eventReconnected, "zsync: reconnected"
		m.reconnects.Add(1)
	}
	// The state first: whoever goes on because of what is closed next may ask
	// for it.
	entered := m.enter(inc, stateConnected, event{kind: kind})
	inc.mu.Lock()
	inc.down = make(chan struct{})
	close(inc.up)
	inc.mu.Unlock()
	inc.wake()
	if !again {
		close(inc.first)
	}
	if entered {
		m.log.Info(text, "session", sessionText(inc.id.Load()), "timeout", time.Duration(inc.timeout.Load()))
		m.tell()
	}
}

func (inc *incarnation) disconnected() {
	if isClosed(inc.disconnection()) {
		return // it was a handshake that failed
	}
	if inc.m.cfg.lossOnSuspend && inc.ctx.Err() == nil {
		inc.lose(lossSuspended)
	}
	entered := inc.m.enter(inc, stateSuspended, event{kind: eventSuspended})
	inc.mu.Lock()
	inc.up = make(chan struct{})
	close(inc.down)
	for path, ch := range inc.sent {
		close(ch) // whoever pipelines behind it need not wait
		delete(inc.sent, path)
	}
	inc.mu.Unlock()
	if entered {
		inc.m.log.Info("zsync: connection dropped", "session", sessionText(inc.id.Load()))
		inc.m.tell()
	}
}

// disconnection returns a channel that is closed while no connection serves
// the session.
func (inc *incarnation) disconnection() <-chan struct{} {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.down
}

// connection waits until a connection serves the session.
func (inc *incarnation) connection(ctx context.Context) error {
	inc.mu.Lock()
	up := inc.up
	inc.mu.Unlock()
	// Whichever of the three is picked when several are ready, the caller is
	// right: a dead ctx or incarnation is also found behind the request.
	select {
	case <-up:
	case <-ctx.Done():
		return ctxErr(ctx)
	case <-inc.ctx.Done():
		return errEnded
	}
	return nil
}

// newest reports whether l is the link that was made last. A link that is not
// carries nothing any more.
func (inc *incarnation) newest(l *link) bool {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.link == l
}

// removeWatch has the server forget an idle watch.
func (inc *incarnation) removeWatch(key watchKey) {
	for {
		inc.mu.Lock()
		l := inc.link
		inc.mu.Unlock()
		if l.removeWatch(key) { // there is one, or there were no watches
			return
		}
	}
}

// createSent is told that a create request has been written to the socket.
func (inc *incarnation) createSent(path string) {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	if ch := inc.sent[path]; ch != nil {
		close(ch)
		delete(inc.sent, path)
	}
}

// expectCreate returns a channel that is closed when the create of this path
// has been written, so that a request made after it is behind it. The caller
// must call stop when the create has returned.
func (inc *incarnation) expectCreate(path string) (written <-chan struct{}, stop func()) {
	ch := make(chan struct{})
	inc.mu.Lock()
	inc.sent[path] = ch
	inc.mu.Unlock()
	return ch, func() {
		inc.createSent(path)
	}
}

// A pending is a request whose reply may be awaited, or left to someone else.
type pending[T any] struct {
	done chan struct{} // closed when val and err are set
	val  T
	err  error
}

// begin sends a request of this incarnation, f, as soon as there is a
// connection, and returns without waiting. go-zookeeper knows no contexts: what
// was begun may be executed whatever becomes of the caller, so a caller that
// leaves passes the pending on to someone who collects its effect.
//
// A request is not begun while there is no connection: it would wait in
// go-zookeeper's queue and run long after its caller has given up.
func begin[T any](ctx context.Context, inc *incarnation, f func(c *zk.Conn) (T, error)) (*pending[T], error) {
	if ctx.Err() != nil {
		return nil, ctxErr(ctx)
	}
	if err := inc.connection(ctx); err != nil {
		return nil, err
	}
	p := &pending[T]{done: make(chan struct{})}
	inc.m.spawn(func() {
		defer close(p.done)
		p.val, p.err = f(inc.conn)
	})
	return p, nil
}

// wait waits for the reply. When ctx or the incarnation ends first it returns
// their error, and the request is of unknown outcome.
func (p *pending[T]) wait(ctx context.Context, inc *incarnation) (T, error) {
	var zero T
	select {
	case <-p.done:
		// The reply may have come at the instant in which the incarnation
		// ended. A result is still a fact about the past; whether something is
		// held on the strength of it is asked of inc.alive by whoever says so.
		if outcomeOf(p.err) == unknown && inc.ctx.Err() != nil {
			return zero, errEnded
		}
		return p.val, p.err
	case <-inc.ctx.Done():
		return zero, errEnded
	case <-ctx.Done():
		return zero, ctxErr(ctx)
	}
}

// once makes a single attempt at a request. An error of unknown outcome is
// passed on as it is.
func once[T any](ctx context.Context, inc *incarnation, f func(c *zk.Conn) (T, error)) (T, error) {
	p, err := begin(ctx, inc, f)
	if err != nil {
		var zero T
		return zero, err
	}
	return p.wait(ctx, inc)
}

// again makes attempts at a request that may safely be applied twice, until it
// is answered. It is for reads, and for writes that name what they expect.
func again[T any](ctx context.Context, inc *incarnation, f func(c *zk.Conn) (T, error)) (T, error) {
	for try := 0; ; try++ {
		v, err := once(ctx, inc, f)
		switch {
		case errors.Is(err, errEnded), outcomeOf(err) == answered:
			return v, err
		case ctx.Err() != nil:
			return v, ctxErr(ctx)
		}
		if err := inc.pause(ctx, try); err != nil {
			return v, err
		}
	}
}

// pause waits before the next attempt at something: not at all the first time,
// as a dropped connection is usually replaced at once.
func (inc *incarnation) pause(ctx context.Context, try int) error {
	d := inc.m.cfg.retry.delay(try)
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctxErr(ctx)
	case <-inc.ctx.Done():
		return errEnded
	}
}
