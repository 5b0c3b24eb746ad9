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

	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/trace"
)

// An Incarnation is one ZooKeeper session, from handshake to end. It begins
// once, ends once, and is never revived: the public [Session] is the manager
// that replaces it with the next. Every ephemeral znode belongs to the
// incarnation that created it, so "does my lock still stand?" has one answer.
//
// When it ends its socket is closed, and it connects no more.
type Incarnation struct {
	Manager *Manager
	Watches *Watches

	// ctx is cancelled, with cause an ErrLost or ErrClosed, when the session is
	// over or may be over.
	Ctx    context.Context
	cancel context.CancelCauseFunc

	Ended Ending // its hooks are the holds of the session; they run before its end on the servers

	ID      atomic.Int64           // the session id; 0 before the first handshake
	Timeout atomic.Int64           // the negotiated session timeout, in nanoseconds
	Heard   Moment                 // when the last answered request was sent; zero before the first; guarded by LiveMu
	went    Moment                 // when the last stride of a long packet came or went; guarded by LiveMu
	zxid    atomic.Int64           // the last that a reply has shown
	xid     atomic.Uint32          // of the last request, over all connections
	vetted  shared.Cache[struct{}] // by path: the directories that nobody else may change
	lasting shared.Cache[int64]    // by path: the czxid of what lasts there, see Storable
	own     sync.Map               // by path: the last sighting of what CreateOwn has made
	first   chan struct{}          // closed when the first handshake has succeeded
	gone    chan struct{}          // closed when serve has ended
	drain   sync.Once              // of shut

	mu   sync.Mutex
	link *link         // the newest, if any; guarded by mu
	up   chan struct{} // closed while a connection serves the session; guarded by mu
	down chan struct{} // closed while none does; guarded by mu

	LiveMu    sync.Mutex
	Live      liveness  // guarded by liveMu
	stakes    int       // what is held through the session; guarded by liveMu
	asking    *inquiry  // under way; guarded by liveMu
	nobody    string    // a path where there is no znode
	abandoned time.Time // when the session was abandoned; guarded by liveMu, and stays once it is set
	over      bool      // the servers have answered that they have ended the session; guarded by liveMu
	password  []byte    // of the session; guarded by liveMu

	Attached sync.Map // what is kept with the session, by keys of whoever keeps it

	kick   chan struct{}          // has a token when the watchdog should look again
	looked atomic.Pointer[Moment] // when the watchdog has last looked

	last    chan struct{} // has a token while lastly runs, and for good when shut goes on
	largest atomic.Int64  // bytes of the largest znode in a late bundle

	disowned int // connections in a row that were given up, see link.disowned; used by serve alone

	sight sight
	trail trail
}

// A session through which nothing is held is given up after this part of its
// timeout without an answer, so that what only waits goes on in another. When
// something is held it is liveness that decides.
const patience = 3.0 / 4

// pingEvery is how often pings go. It is a little shorter than the gap of liveness: so each span of
// a gap has a packet with its answer, which a write at the end of the next gap carries. Then
// whatever is confirmed is followed by a later confirmation two gaps after it, also in the first
// cycle of a connection.
func (inc *Incarnation) pingEvery() time.Duration { return time.Duration(inc.Timeout.Load() / 4) }

// newIncarnation begins a session. It is not established before first is
// closed.
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

// serve makes one connection after another, and reads from it, until the incarnation
// has ended.
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
			if inc.Ctx.Err() == nil { // else it says nothing of the server
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

// silence is how long a connection may stay without a reply.
func (inc *Incarnation) silence() time.Duration {
	return time.Duration(float64(inc.Timeout.Load()) * silent)
}

// dial connects to a server.
func (inc *Incarnation) dial(addr string) (*link, error) {
	limit := inc.dialLimit()
	if least := inc.leastGrant(addr); inc.ID.Load() != 0 && least < time.Duration(inc.Timeout.Load()) {
		limit = min(limit, least/3) // time for another server, before the session must be given up
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
	// Either connect sees the end, or whoever ends the incarnation sees the
	// link there: it is set before, and end is called before it is read.
	return l, nil
}

// leastGrant returns the least that a server grants if it is asked for the session's timeout.
func (inc *Incarnation) leastGrant(addr string) time.Duration {
	return inc.Manager.grants.of(addr, time.Duration(inc.Timeout.Load()))
}

// handshake is told of a server's reply to the connect request, and refuses
// what would not continue this very session.
func (inc *Incarnation) handshake(l *link, id int64, timeout time.Duration) error {
	if err := context.Cause(inc.Ctx); err != nil {
		return err
	}
	switch mine := inc.ID.Load(); {
	case id == 0 && mine == 0:
		return fmt.Errorf("%w: no session was given", errHandshake)
	case id == 0:
		// Who was stopped hears at once that his session has ended, as a rule before he
		// notices himself for how long nothing was certain: that is why, and since when.
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
		// Servers may be configured differently. What was granted first is
		// what a new leader gives to the session.
		timeout = min(timeout, time.Duration(inc.Timeout.Load()))
	}
	inc.Timeout.Store(int64(timeout))
	inc.LiveMu.Lock()
	inc.Live.connect(l.asked, isNew, timeout)
	inc.heardLocked(l.asked)
	inc.LiveMu.Unlock()
	return nil
}

// sending is told that requests are about to be written together.
func (inc *Incarnation) sending() stamp {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return inc.Live.send(time.Now())
}

// nextXid returns an xid for a request, which no other request of the session has, over
// whatever connection. A follower or observer knows the result of a request by its session
// and its xid alone. So if an xid is used again, the result of a request that a former
// connection has left behind is given to another request, which may not have been executed.
//
// Pings, credentials and setWatches have the xids that the protocol gives them, each time:
// no server proposes anything for these, so there is no result that comes late. After 2^31
// requests the xids begin again, when those of the first have long been answered.
// 0 is left out: the leader has it for the session's begin and for the end that it decides on.
func (inc *Incarnation) nextXid() int32 {
	for {
		if xid := int32(inc.xid.Add(1) & math.MaxInt32); xid != 0 {
			return xid
		}
	}
}

// contact is told that a request was answered, what that proves, and when the answer
// was there.
func (inc *Incarnation) contact(s stamp, p proof, now time.Time) {
	inc.LiveMu.Lock()
	before := inc.Live.Sure
	inc.Live.answer(s, p, now)
	confirmed := inc.Live.Sure != before && inc.stakes > 0
	inc.heardLocked(s.at)
	inc.LiveMu.Unlock()
	if confirmed {
		inc.Manager.Pace.confirmed()
	}
}

// heardLocked records that a request sent at this time has been answered.
func (inc *Incarnation) heardLocked(at time.Time) {
	if at.After(inc.Heard.Mono) {
		inc.Heard = momentOf(at)
	}
}

// left is how long the session may still be believed in if nothing more is
// heard.
func (inc *Incarnation) left() time.Duration {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	now := time.Now()
	switch {
	case inc.stakes > 0:
		return inc.Live.left(now)
	case inc.Heard.Mono.IsZero():
		return time.Duration(inc.Timeout.Load()) // nothing is held yet
	}
	idle := inc.Heard.since(now)
	if !inc.went.Mono.IsZero() {
		idle = min(idle, inc.went.since(now)) // the answer behind it cannot come before
	}
	return time.Duration(float64(inc.Timeout.Load())*patience) - idle
}

// moved is told that a stride of a long packet has come or gone, see link.moved. A session through
// which nothing is held goes on meanwhile.
func (inc *Incarnation) moved(now time.Time) {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	inc.went = momentOf(now)
}

// Alive reports whether the session certainly stands. It does not rely on the
// watchdog having run.
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

// Lose ends the incarnation because its session is over, or may be.
func (inc *Incarnation) Lose(why LossReason) { inc.loseSince(why, time.Now()) }

func (inc *Incarnation) loseSince(why LossReason, since time.Time) {
	lost := inc.Manager.Config.Lost(why, inc.ID.Load(), since)
	inc.seal(lost)
}

// giveUp ends the incarnation, and its session on the servers, with everything
// that is held through it. It is lose without the end of the connection, over
// which shut closes the session when those who held something have had LossTime.
//
// There may be many reasons to give a session up, before and after it was. The
// first counts: an incarnation is given up once.
func (inc *Incarnation) giveUp() {
	inc.abandon() // before end, after which shut looks
	inc.end(inc.Manager.Config.Lost(LossGivenUp, inc.ID.Load(), time.Now()))
}

// abandon notes that the session is left to its fate, and when those who held
// something were told, or are about to be.
func (inc *Incarnation) abandon() {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	if inc.abandoned.IsZero() {
		inc.abandoned = time.Now()
	}
}

// leftAt returns when the session was abandoned, or a zero time.
func (inc *Incarnation) leftAt() time.Time {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return inc.abandoned
}

// endedOnServer is told that the servers have ended the session because they were
// asked to.
func (inc *Incarnation) endedOnServer() {
	inc.LiveMu.Lock()
	inc.over = true
	inc.LiveMu.Unlock()
}

// ended reports whether the servers have said so.
func (inc *Incarnation) ended() bool {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return inc.over
}

// LossTime is how long whoever is told that what he held is given up has before
// it can be granted to others: a tenth of the session timeout, as much as there
// is between the moment at which a client that is cut off tells its losses and
// the end of its session.
func (inc *Incarnation) LossTime() time.Duration { return time.Duration(inc.Timeout.Load() / 10) }

// leaveTime waits until those who held something through the session, if it was
// given up, have had their time. All were told when the incarnation ended. It
// reports whether there is a connection, and has been all the time: one that is
// made anew does not count, as nobody has waited on it.
func (inc *Incarnation) leaveTime() (connected bool) {
	left, down := inc.leftAt(), inc.Disconnection()
	if left.IsZero() {
		return !IsClosed(down)
	}
	// Whichever is picked when several are ready, down is looked at again. Without a
	// connection endOrphan waits as long; and if the session expires first, that is
	// later than LossTime too: it was certain to live for as long when it was given
	// up. Who closes the Session gives up by himself, and waits for nobody.
	select {
	case <-time.After(time.Until(left.Add(inc.LossTime()))):
	case <-down:
	case <-inc.Manager.Over:
	}
	return !IsClosed(down)
}

// fail ends the incarnation, and the whole Session with it, because of
// something that no retry can cure.
func (inc *Incarnation) fail(err error) {
	inc.Manager.fail(err)
	inc.seal(err)
}

// seal ends the incarnation. Holders are told first; then the socket goes, so
// that no call already queued can reach a server.
func (inc *Incarnation) seal(cause error) {
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
func (inc *Incarnation) shut() {
	inc.drain.Do(func() {
		inc.end(ErrClosed)     // the first cause stays
		inc.last <- struct{}{} // lastly has returned, and is not called from here on
		if inc.leaveTime() {
			inc.newestLink().bye()
			AwaitFor(inc.gone, time.Second)
		}
		inc.seal(ErrClosed)
		// Nothing may have been asked, for want of a connection, or the server was
		// silent: then another is asked. What the silent one passes on after all ends
		// the same session.
		if left := inc.leftAt(); !left.IsZero() && !inc.ended() {
			inc.Manager.Spawn(func() { inc.endOrphan(left) })
		}
	})
	<-inc.gone
}

// lastly calls f, which ends the session over a connection that was made while the Session was
// closed. shut does not close that connection before f returns.
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

// end ends the incarnation. When it returns, every hook of Ended has returned, also if another
// goroutine has ended it: every hold of the session is lost, and its holder can know. So every
// request that ends the session on the servers is written after end.
//
// That order is what Close rests on: after closeSession another session can be granted the lock
// within a round trip. A session that ends otherwise lives on for a tenth of its timeout.
func (inc *Incarnation) end(cause error) {
	inc.cancel(cause)
	inc.Ended.End(inc.Loss())
	<-inc.Ended.Done() // another goroutine may be running the hooks
}

func (inc *Incarnation) connected() {
	m := inc.Manager
	inc.Watches.connected()
	inc.newestLink().open()
	began, said := m.outage.end()
	again := IsClosed(inc.first)
	kind, text := EventConnected, "zsync: session established"
	if again {
		kind, text = EventReconnected, "zsync: reconnected"
		m.reconnects.Add(1)
	}
	// The state first: whoever goes on because of what is closed next may ask
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
	if said { // at the level of what it ends
		m.Log.Warn("zsync: connected again", "since", time.Now(), "lasted", time.Since(began).Round(time.Millisecond), "session", Text(inc.ID.Load()))
	}
}

func (inc *Incarnation) disconnected() {
	if IsClosed(inc.Disconnection()) {
		return // it was a handshake that failed
	}
	inc.Manager.outage.begin()
	if inc.Manager.Config.LossOnSuspend && inc.Ctx.Err() == nil {
		inc.abandon() // before its end, after which shut looks
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

// Disconnection returns a channel that is closed while no connection serves
// the session.
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
		return nil // nobody who has a connection pays for a select of three
	}
	// Whichever of the three is picked when several are ready, the caller is
	// right: a dead ctx or incarnation is also found behind the request.
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

// seen is told of the zxid of a reply.
func (inc *Incarnation) seen(zxid int64) {
	if zxid > inc.zxid.Load() { // only who reads stores, and one link reads at a time
		inc.zxid.Store(zxid)
	}
}

// newest reports whether l is the link that was made last. A link that is not
// carries nothing any more.
func (inc *Incarnation) newest(l *link) bool {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.link == l
}

// removeWatch has the server forget an idle watch.
func (inc *Incarnation) removeWatch(key WatchKey) {
	for {
		if l := inc.newestLink(); l.removeWatch(key) { // there is one, or there were no watches
			return
		}
	}
}

// TraceLine is a line of the trace about what is held through inc by the znode
// of this name.
func (inc *Incarnation) TraceLine(event, kind, path, hold string) trace.Line {
	return trace.Line{
		Event: event, Kind: kind, Path: inc.Manager.Bare(path), Hold: hold,
		// Blind is read first: what comes in between makes both better.
		Blind: inc.sight.blind.Load(), Zxid: inc.sight.zxid.Load(), Session: Text(inc.ID.Load()),
	}
}

// TraceLoss makes l tell why.
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

// EndError says what the end of an incarnation, for this cause, means to one
// who held something through it: it is ErrLost.
func (inc *Incarnation) EndError(cause error) error {
	if errors.Is(cause, ErrLost) {
		return cause
	}
	lost := inc.Manager.Config.Lost(LossClosed, inc.ID.Load(), time.Now())
	if cause == nil || errors.Is(cause, ErrClosed) {
		return lost
	}
	return fmt.Errorf("%w: %w", lost, cause) // the Session has failed for good, and the caller must learn why
}

// Loss is endError for an incarnation that has ended.
func (inc *Incarnation) Loss() error { return inc.EndError(context.Cause(inc.Ctx)) }

// Deleted is the loss of something in this session whose znode is gone.
func (inc *Incarnation) Deleted() error {
	return inc.Manager.Config.Lost(LossDeleted, inc.ID.Load(), time.Now())
}
