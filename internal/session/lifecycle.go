package session

// This file has the operations of a Session as a whole: New, Connect, Close, and its
// state. manager.go opens one incarnation after another.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/trace"
)

func New(hosts []string, chroot string, cfg Config) *Manager {
	hosts = slices.Clone(hosts)
	dice.Rand().Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	m := &Manager{
		Config:   cfg,
		Owner:    []byte(cfg.Owner),
		Hosts:    hosts,
		chroot:   chroot,
		Log:      cfg.Log,
		phase:    &phase{over: make(chan struct{})},
		tried:    make(map[string]error),
		running:  make(map[any]uint64),
		ended:    make(chan struct{}),
		farewell: make(chan struct{}),
	}
	m.fewerLocked = func() {}
	m.closing, m.leave = context.WithCancelCause(context.Background())
	m.over, m.finish = context.WithCancelCause(context.Background())
	m.Closing, m.Over = m.closing.Done(), m.over.Done()
	m.Pace = pacer{hosts: hosts, retry: cfg.Retry}
	if cfg.Trace != nil {
		m.Trace = trace.NewWriter(cfg.Trace, uuid.NewString(), chroot, cfg.Owner, func(err error) {
			m.Log.Warn("zsync: cannot write the trace, which will count the missing records", "err", err)
		})
	}
	first := m.phase
	m.told, m.outage = first, true
	m.cur = newIncarnation(m)
	m.Spawn(func() { m.logOutage(first) })
	go m.run()
	return m
}

// Never is a Manager that has ended without a session.
var Never = &Manager{phase: &phase{state: StateClosed}}

// GiveUp runs f and returns its error. The function f releases something for a call whose context
// is ctx. After the end of ctx, GiveUp waits no longer than the time Grace. If f has not returned
// by then, it continues in the background, and the error is nil.
func (m *Manager) GiveUp(ctx context.Context, f func() error) error {
	err, _ := Apart(ctx, m.Spawn, f)
	return err
}

// Connect waits for the first session. If none is established, Connect closes the manager, and
// returns an error that includes the error of the last attempt.
func (m *Manager) Connect(ctx context.Context) error {
	_, err := m.Incarnation(ctx)
	if err == nil {
		return nil
	}
	m.mu.Lock()
	last := m.lately
	m.mu.Unlock()
	m.fail(ErrClosed)
	AwaitFor(m.ended, Grace) // a dialer that hangs ends by itself
	switch {
	case !errors.Is(err, errUnserved):
		return err
	case last == nil:
		return CtxErr(ctx)
	case conn.RefusesTLS(last):
		return fmt.Errorf("%w (last attempt: %w)", CtxErr(ctx), last)
	}
	return fmt.Errorf("%w (last attempt: %v)", CtxErr(ctx), last) // not wrapped: it may be the error of another context than the caller's
}

// Close ends the session permanently, and returns when all goroutines of m have ended.
//
//  1. Nothing new begins: no hold, no function, no call.
//  2. The contexts of functions end, and holds without a function are released.
//  3. Functions return and release their holds, or CloseTimeout passes.
//  4. The farewell: users of m finish their work, or farewellTime passes.
//  5. Every remaining hold is lost, and its holder can know (Incarnation.end).
//  6. The servers are asked to end the session.
func (m *Manager) Close() {
	m.leave(ErrClosed)
	first := m.leaving.End(ErrClosed)
	m.waive()
	if !first {
		<-m.ended // another call closes m
		return
	}
	none := m.none(m.functionsLocked)
	inc, limit := m.newest(), m.Config.CloseTimeout
	if !IsClosed(none) {
		// Other sessions need not wait for the functions. From now on, Incarnation.Stake refuses new holds.
		// A hold that is granted in spite of this releases itself.
		for _, h := range inc.Ended.Owners() {
			if h, ok := h.(interface{ ReleaseBare() }); ok {
				h.ReleaseBare()
			}
		}
	}
	if limit < 0 {
		limit = time.Duration(inc.Timeout.Load())
	}
	// Until the functions have returned, the session and their holds stay confirmed. If the last function
	// returns at the limit, either case is right: its hold is released by then, or ends with the session.
	select {
	case <-none:
	case <-m.Over:
	case <-time.After(limit):
		if !IsClosed(none) {
			m.Log.Warn("zsync: Close waits no longer for functions that have not returned", "timeout", limit)
		}
	}
	close(m.farewell)
	m.newest().AwaitConnected(m.none(func() int { return m.staff }), farewellTime)
	m.fail(ErrClosed)
	<-m.ended
}

// farewellTime is the longest time that Close waits for its users' last work. With the time Grace, which a
// call has waited for that work before, it is a second.
const farewellTime = time.Second - Grace

// BeforeClose returns a channel that is closed when Close begins the farewell. The caller has work that
// only this process can do, such as deleting persistent znodes. Close waits, but not long, until each
// caller of BeforeClose has called its function `done`.
func (m *Manager) BeforeClose() (begun <-chan struct{}, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.staff++
	return m.farewell, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.staff--
		m.fewerLocked()
	})
}

// The method `none` returns a channel that is closed when `count` returns 0. A later call of `none`
// replaces this one.
func (m *Manager) none(count func() int) <-chan struct{} {
	none := make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fewerLocked = func() {
		if count() == 0 {
			close(none)
			m.fewerLocked = func() {}
		}
	}
	m.fewerLocked()
	return none
}

// Granted returns the timeout of the present session, or 0 while there is none.
func (m *Manager) Granted() time.Duration {
	if inc := m.Present(); inc != nil && inc.ID.Load() != 0 {
		return time.Duration(inc.Timeout.Load())
	}
	return 0
}

// Timeout returns the timeout of the present session, or the configured timeout if there is none.
func (m *Manager) Timeout() time.Duration { return cmp.Or(m.Granted(), m.Config.Timeout) }

// Certain returns the time for which the present session is still confirmed.
func (m *Manager) Certain() time.Duration { return m.newest().certain() }

// SessionID returns the id of the present session, or 0 while there is none.
func (m *Manager) SessionID() int64 {
	if inc := m.Present(); inc != nil {
		return inc.ID.Load()
	}
	return 0
}

// State returns the state of the session.
func (m *Manager) State() ConnState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.phase.state
}

// States returns a channel that receives every change of state from now on. The channel is closed when
// ctx ends, or after StateClosed. A slow reader never blocks the session: a goroutine sends the
// states, and Close does not wait for that goroutine.
func States[S ~int](ctx context.Context, m *Manager) <-chan S {
	out := make(chan S, 64)
	m.mu.Lock()
	defer m.mu.Unlock()
	go func(p *phase) {
		defer close(out)
		for p.state != StateClosed {
			select {
			case <-p.over:
			case <-ctx.Done():
				return
			}
			p = p.next
			select {
			case out <- S(p.state):
			case <-ctx.Done():
				return
			}
		}
	}(m.phase)
	return out
}

// Waited reports to the observer how a wait for a hold ended.
func (m *Manager) Waited(op, path string, start time.Time, err error) {
	e := Report{Kind: EventAcquired, Op: op, Path: path, Wait: time.Since(start)}
	if err != nil {
		e.Kind, e.Err = EventGaveUp, err
	}
	m.Observe(e)
}

// Sleep waits for d, or until ctx or the Session ends.
func (m *Manager) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return CtxErr(ctx)
	case <-m.Closing:
		return m.Failure()
	}
}
