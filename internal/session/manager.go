package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/trace"
)

// A Manager opens one incarnation after another, until the Manager is closed or fails permanently.
// It is the inside of a [Session]. Requests and holds belong to an Incarnation.
type Manager struct {
	Config Config
	Owner  []byte   // Config.Owner in the form in which it is stored; never changed
	Hosts  []string // the servers, as in the connect string, each with a port
	chroot string   // prefix of every path; "" or "/a/b"
	Log    *slog.Logger
	Trace  *trace.Writer // nil if nothing is traced
	Pace   pacer

	Requests   atomic.Int64 // sent, without pings and handshakes
	Reconnects atomic.Int64 // connections replaced within a session
	Expiries   atomic.Int64 // sessions lost
	Holds      atomic.Int64 // at present
	Waiters    atomic.Int64 // for a hold, at present

	granted      shared.Cache[time.Duration] // by server: the longest session timeout that it is known to grant
	NoBundles    atomic.Bool                 // the servers do not know multiRead
	NoContainers atomic.Bool                 // the servers do not know containers

	mu          sync.Mutex
	cur         *Incarnation     // the newest incarnation; guarded by mu
	phase       *phase           // the present; guarded by mu
	told        *phase           // the last whose event was passed to the observer, or is being passed; guarded by mu
	telling     bool             // a goroutine is passing an event; guarded by mu
	outage      bool             // a goroutine logs an outage; guarded by mu
	lately      error            // why the last server failed; nil once a server executes a request; guarded by mu
	tried       map[string]error // by address: the server's last error; cleared when any server executes a request; guarded by mu
	staff       int              // number of users that will tidy up before the end: see BeforeClose; guarded by mu
	farewell    chan struct{}    // closed when Close begins the farewell
	running     map[any]uint64   // by Function: the number of its goroutine, or 0 if that has called Close; guarded by mu
	fewerLocked func()           // called when `running` or `staff` changes: see `none`; guarded by mu
	leaving     Ending           // ended by Close when nothing new may begin; its hooks end the contexts of functions
	Attached    sync.Map         // data that other packages keep across sessions: see shared.Attached

	closing context.Context         // ends, with the reason, when nothing new can begin: by Close, or by a failure that no retry can cure
	leave   context.CancelCauseFunc // ends `closing`; the first reason stays
	over    context.Context         // ends, with the reason, after `closing`: when Close has waited for the functions; no other incarnation follows
	finish  context.CancelCauseFunc // ends `over`; the first reason stays
	Closing <-chan struct{}         // closed when `closing` ends
	Over    <-chan struct{}         // closed when `over` ends

	ended   chan struct{}  // closed when `run` has returned
	wg      sync.WaitGroup // every goroutine of this session except `run`
	sealed  bool           // `run` waits for wg; guarded by spawnMu
	spawnMu sync.RWMutex   // taken before a goroutine is added to wg
}

// The method `run` opens each incarnation, and is its watchdog until its end.
func (m *Manager) run() {
	defer close(m.ended)
	for {
		inc := m.newest()
		m.Spawn(func() {
			defer close(inc.gone)
			inc.serve()
		})
		inc.watchdog()
		if IsClosed(m.Over) {
			inc.shut() // it ends inc first
			break
		}
		// The next session is opened while the old connection is still being closed: no request
		// uses the old connection.
		m.Expiries.Add(1)
		cause := context.Cause(inc.Ctx)
		m.enter(nil, StateExpired, Report{Kind: EventExpired, Err: cause})
		m.enter(nil, StateConnecting, Report{})
		m.Spawn(inc.shut)
		// The loss is logged here, not by the function that found it: a caller of that function may
		// hold a lock.
		if m.Trace != nil && inc.ID.Load() != 0 {
			m.Trace.Line(m.TraceLoss(trace.Record{Event: trace.Expired, Session: Text(inc.ID.Load()), Zxid: inc.conns.Zxid.Load()}, cause))
		}
		m.Log.Warn("zsync: session lost", "session", Text(inc.ID.Load()), "reason", cause)
		m.tell()
		m.mu.Lock()
		m.cur = newIncarnation(m)
		m.mu.Unlock()
	}
	m.enter(nil, StateClosed, Report{})
	m.spawnMu.Lock()
	m.sealed = true
	m.spawnMu.Unlock()
	m.wg.Wait()
	m.Trace.Close(500 * time.Millisecond) // as WithTrace says
}

// The method `fail` ends the session permanently. The first reason stays.
func (m *Manager) fail(err error) {
	m.leave(err)
	m.finish(err)
}

// Failure returns the reason why new work is refused: the Session is closed, is being closed, or
// has failed. Otherwise, Failure returns nil.
func (m *Manager) Failure() error { return context.Cause(m.closing) }

// Spawn runs f in a goroutine. Close waits for this goroutine.
func (m *Manager) Spawn(f func()) {
	m.spawnMu.RLock()
	defer m.spawnMu.RUnlock()
	if m.sealed {
		// Every connection is closed, so f returns soon.
		go f()
		return
	}
	m.wg.Go(f)
}

// Until returns a context like ctx that also ends when `over` is closed. The caller must call `stop`.
func (m *Manager) Until(ctx context.Context, over <-chan struct{}) (until context.Context, stop func()) {
	until, stop = context.WithCancel(ctx)
	m.Spawn(func() {
		select {
		case <-over:
			stop()
		case <-until.Done():
		}
	})
	return until, stop
}

// EndingContext returns a context made from ctx, and two functions. The function `end` ends the new
// context; its caller may hold a mutex. After the last call of `end`, the caller must call the
// function `rest`, and must hold no mutex in that call.
//
// Reason: when a context ends, it calls methods of its parent. So only `rest` ends a context whose
// parent is ctx, which is the user's. A context that is made from the new context calls no method of
// ctx when it ends, or it ends in a goroutine of its own.
func EndingContext(ctx context.Context) (_ context.Context, end context.CancelCauseFunc, rest context.CancelFunc) {
	ours, rest := context.WithCancel(ctx)
	ctx, end = context.WithCancelCause(ours)
	return ctx, end, rest
}

// WhileOpen calls f, a wait for other clients. The context of f is like ctx, but it also ends when
// Close begins, with the error ErrClosed. Close may wait for a function that needs the end of the
// wait. And other processes must not count this process as present.
func (m *Manager) WhileOpen(ctx context.Context, f func(ctx context.Context) error) error {
	until, end, rest := EndingContext(ctx)
	defer rest()
	defer end(nil)
	defer m.leaving.AfterFunc(end)()
	err := f(&openContext{until, ctx})
	// Close also ends the contexts of functions, with the same cause. So if ctx is such a context, the
	// order in which Close ends `until` and ctx does not matter.
	if until.Err() != nil && ctx.Err() == nil && errors.Is(err, until.Err()) {
		err = m.Failure()
	}
	return err
}

// An openContext is the context of WhileOpen's function. A program's own type of context may report
// its end in Err before Done. So Err asks that context first.
type openContext struct {
	context.Context
	caller context.Context
}

// Err returns the error of the caller's context, if that has ended.
func (c *openContext) Err() error { return cmp.Or(c.caller.Err(), c.Context.Err()) }

// finishingKey marks a context of work that continues while the Session is being closed.
type finishingKey struct{}

// Finishing is the context of work that a Session finishes before it is closed, such as the
// settlement of an element. It is context.Background with one difference: while Close waits for the
// functions and for the farewell, Manager.Incarnation still accepts it.
var Finishing = Finish(context.Background())

// Finish returns a context like ctx for such work.
func Finish(ctx context.Context) context.Context {
	return context.WithValue(ctx, finishingKey{}, true)
}

// Incarnation waits until an incarnation is established, and returns it. It fails if ctx ends
// first, or if there will be no further incarnation.
func (m *Manager) Incarnation(ctx context.Context) (*Incarnation, error) {
	if ctx.Err() != nil {
		return nil, CtxErr(ctx)
	}
	for {
		m.mu.Lock()
		inc, p := m.cur, m.phase
		m.mu.Unlock()
		end := m.closing
		if end.Err() != nil && ctx.Value(finishingKey{}) != nil {
			end = m.over
		}
		if end.Err() != nil {
			return nil, context.Cause(end)
		}
		if (p.state == StateConnected || p.state == StateSuspended) && inc.Ctx.Err() == nil {
			// The incarnation or ctx may end at this moment; the first request finds that.
			return inc, nil
		}
		select {
		case <-p.over:
		case <-end.Done():
		case <-ctx.Done():
			return nil, m.unserved(CtxErr(ctx))
		}
	}
}

// During calls f with a live incarnation. If f fails because the incarnation ended, During calls f
// again with the next incarnation.
func (m *Manager) During(ctx context.Context, f func(inc *Incarnation) error) error {
	for {
		inc, err := m.Incarnation(ctx)
		if err != nil {
			return err
		}
		if err := f(inc); !errors.Is(err, ErrEnded) {
			return err
		}
	}
}

// Full returns the path as the server knows it, with the chroot. Bare is the inverse of Full.
func (m *Manager) Full(p string) string {
	if m.chroot == "" {
		return p
	}
	if p == "/" {
		return m.chroot
	}
	return m.chroot + p
}

func (m *Manager) Bare(p string) string {
	if p == m.chroot && m.chroot != "" {
		return "/"
	}
	return strings.TrimPrefix(p, m.chroot)
}

// The method `enter` begins a phase, whose event `tell` will pass to the observer. If inc has ended,
// `enter` changes nothing, and returns false: from then on, only the manager itself (inc is nil)
// changes the state.
func (m *Manager) enter(inc *Incarnation, s ConnState, e Report) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.phase
	if last.state == StateClosed || inc != nil && (inc != m.cur || inc.Ctx.Err() != nil) {
		return false
	}
	last.next = &phase{state: s, event: e, over: make(chan struct{})}
	m.phase = last.next
	close(last.over)
	if last.state == StateConnected && s != StateClosed && !m.outage {
		m.outage = true
		m.Spawn(func() { m.logOutage(last.next) })
	}
	return true
}

// The method `tell` passes the events of the phases to the observer: one at a time, in order, and
// without a lock. It also passes the events of phases that begin while it runs.
func (m *Manager) tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.telling && m.told.next != nil {
		m.told, m.telling = m.told.next, true
		func(e Report) {
			m.mu.Unlock()
			defer func() { m.mu.Lock(); m.telling = false }() // also if the observer panics
			if e.Kind != 0 {
				m.Observe(e)
			}
		}(m.told.event)
	}
}

// Observe passes an event to the observer. The caller holds no lock. Observe leaves out the event
// of a hold if the event names no operation: that hold is a part of another primitive.
func (m *Manager) Observe(e Report) {
	if m.Config.Observe != nil && (e.Op != "" || e.Path == "") {
		m.Config.Observe(e)
	}
}

const (
	firstWord = time.Second
	reminder  = time.Hour
)

// The log messages of an outage. The command zsync shows these messages, and no other log messages.
const (
	TextOutage      = "zsync: no connection to any server"
	TextReconnected = "zsync: connected again"
)

// The method `logOutage` logs an outage: the time from the end of a connection, or from Connect, to the
// next connection that exists for the time conn.Lasting. It follows the phases of the Session from p, the
// first of the outage, to the end of the outage or to StateClosed. The outage is logged after firstWord,
// and again after each interval `reminder`. If it was logged, so is its end.
func (m *Manager) logOutage(p *phase) {
	began, next := time.Now(), firstWord // next: the age of the outage at the next message
	var back time.Time                   // when the present connection began, or zero
	for p.state != StateClosed {
		at := began.Add(next)
		if !back.IsZero() {
			at = back.Add(conn.Lasting)
		}
		AwaitFor(p.over, time.Until(at))
		// Perhaps the timer is late, because the process was stopped.
		if !back.IsZero() && time.Since(back) >= conn.Lasting {
			if next > firstWord {
				// This is a warning, because the message about the outage was a warning.
				m.Log.Warn(TextReconnected, "since", back, "lasted", back.Sub(began).Round(time.Millisecond), "session", Text(m.newest().ID.Load()))
			}
			m.mu.Lock()
			again := m.phase != p // the next outage has begun
			m.outage = again
			m.mu.Unlock()
			if !again {
				return
			}
			began, next = time.Now(), firstWord
		}
		switch {
		case IsClosed(p.over):
			if p = p.next; p.state == StateConnected {
				back = time.Now()
			} else {
				back = time.Time{}
			}
		case back.IsZero():
			next = time.Since(began) + reminder
			m.sayOutage(began)
		}
	}
}

// For each server, sayOutage logs why the client's last attempt to use that server failed. If there
// are holds, sayOutage also logs until when the session is confirmed.
func (m *Manager) sayOutage(began time.Time) {
	m.mu.Lock()
	var why []string
	for _, addr := range m.Hosts {
		if err := m.tried[addr]; err != nil {
			why = append(why, err.Error())
		} else {
			why = append(why, addr+": no answer yet")
		}
	}
	inc := m.cur
	m.mu.Unlock()
	err := strings.Join(why, "; ")
	if holds := m.Holds.Load(); holds > 0 && inc.left() > 0 {
		m.Log.Warn(TextOutage, "since", began, "holds", holds, "until", time.Now().Add(inc.left()).Round(time.Millisecond), "err", err)
	} else {
		m.Log.Warn(TextOutage, "since", began, "err", err)
	}
}

// The method `dialed` is called when a server could not be reached. An error of TLS that a retry
// cannot cure is logged once for each server as a warning.
func (m *Manager) dialed(addr string, err error) {
	level := slog.LevelDebug
	if before := m.unfit(addr, err); conn.RefusesTLS(err) && !conn.RefusesTLS(before) { // the texts differ: the text about an expired certificate has the time
		level = slog.LevelWarn
	}
	m.Log.Log(context.Background(), level, "zsync: cannot reach server", "addr", addr, "err", err)
}

// The method `unfit` records why a server failed, and returns why it failed before.
func (m *Manager) unfit(addr string, why error) (before error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, m.lately = m.tried[addr], fmt.Errorf("%s: %w", addr, why)
	m.tried[addr] = m.lately
	return before
}

func (m *Manager) fit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.tried)
	m.lately = nil
}

// errShort is the end of a connection that did not last. The server has accepted the client, so
// noneFits does not count the server as out of reach.
var errShort = errors.New("the connection ended at once")

// noneFits reports whether every server has refused the client or was out of reach since a server
// last executed a request.
func (m *Manager) noneFits() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(m.Hosts, func(addr string) bool {
		err := m.tried[addr]
		return err == nil || errors.Is(err, errShort)
	})
}

// Text formats a session id as ZooKeeper's own tools do.
func Text(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

func (m *Manager) newest() *Incarnation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cur
}

// Present returns the incarnation that has not ended, or nil.
func (m *Manager) Present() *Incarnation {
	if inc := m.newest(); inc != nil && inc.Ctx.Err() == nil {
		return inc
	}
	return nil
}

// Outage returns a channel that is closed while no connection serves the present session.
func (m *Manager) Outage() <-chan struct{} {
	if inc := m.Present(); inc != nil {
		return inc.Disconnection()
	}
	return ClosedChan
}

// The method `unserved` returns the error of a context that has ended with `err` while no connection
// served the session.
func (m *Manager) unserved(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lately == nil {
		return fmt.Errorf("%w: %w", errUnserved, err)
	}
	return fmt.Errorf("%w (last attempt: %v): %w", errUnserved, m.lately, err) // m.lately is not the result of a request
}

// Explained returns err. If err is the end of ctx, and no connection serves the session now, the
// result also says that no server answered, and why.
func (m *Manager) Explained(ctx context.Context, err error) error {
	ended := err != nil && ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
	if !ended || errors.Is(err, errUnserved) || !IsClosed(m.Outage()) {
		return err
	}
	return m.unserved(err)
}
