package queue

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A Common is the part of an Engine that all layouts share.
type Common struct {
	m   *session.Manager
	cfg Settings

	// The paths of the queue's znodes, as the servers know them.

	dir, live, ids string
	Receipts, Dead string // the parents of the receipts of transactions and of the dead letters

	Line    lock.Line // of the idle consumers
	Skips   Skipper
	unframe func(stored []byte) []byte // returns the producer's data from the data that another library stores; nil if they are the same
	faults  sync.Map                   // a set of chan error, which receive the errors that keep consumers from consuming
}

// NewCommon does no I/O.
func NewCommon(m *session.Manager, cfg Settings, unframe func(stored []byte) []byte) *Common {
	dir := m.Full(cfg.Path)
	q := &Common{
		m: m, cfg: cfg, unframe: unframe, Line: lock.New(m, cfg.Path+"-consumers", znodes.ProtectedName, "turn-"),
		dir: dir, live: dir + "-live", ids: dir + "-ids", Receipts: dir + "-receipts", Dead: dir + "-dead",
	}
	q.Skips.Complain = q.Complain
	return q
}

// The method `vet` returns an error if a parent znode of the queue lets other clients change the
// znodes below that parent. It also creates missing parent znodes, so that no other client creates
// one between this check and the use of the znode. If the Session has no ACL of its own, `vet` does
// nothing.
func (q *Common) vet(ctx context.Context, inc *session.Incarnation) error {
	for _, dir := range []string{q.dir, q.live, q.Receipts, q.ids, q.Dead} {
		if err := znodes.Vet(ctx, inc, znodes.Dir{Path: dir}); err != nil {
			return err
		}
	}
	return nil
}

// A Consumer offers claimed elements to the program, in order. Its functions may be called
// concurrently. All consumers of one Engine share the elements that are claimed ahead.
type Consumer struct {
	Joining
	Ctx    context.Context // ends with the consumer's context, or when the Session begins to close
	Faults chan error      // errors that keep the consumer from consuming; nil unless Joining.Odd is set

	// Next waits for a claimed element that the caller may offer now: the client is connected and
	// the claim is valid. If attempts are limited and `Hand` is set, the servers have also recorded
	// the attempt. So call Next only when the program is ready for the element.
	//
	// Next fails if the consumer's context has ended or the Session is being closed. The caller must
	// call `Taken`, `Handed` or PutBack of the Item before it calls Next again.
	Next func() (Item, error)

	// Poll is like Next, but returns nil if no claimed element is ready.
	Poll func() Item

	end    func()        // ends Ctx, and returns the elements that were claimed ahead
	leaves atomic.Bool   // Leave was called
	left   chan struct{} // closed at the end of the first call of Leave
}

// Enter adds a consumer. The engine sets its functions Next and Poll. The function `giveUp` returns the
// elements that were claimed ahead.
func (q *Common) Enter(ctx context.Context, o Joining, giveUp func()) *Consumer {
	inner, over := WhileOpen(ctx, q.m)
	c := &Consumer{Joining: o, Ctx: inner, left: make(chan struct{})}
	if o.Odd {
		c.Faults = make(chan error, 1)
		q.faults.Store(c.Faults, true)
	}
	c.end = func() {
		giveUp()
		q.faults.Delete(c.Faults)
		over()
	}
	return c
}

// Leave ends the consumer, also during a call of Next. For the last consumer, it returns all elements
// that were claimed ahead, and waits a moment for that. A second call waits for the first.
func (c *Consumer) Leave() {
	if !c.leaves.Swap(true) {
		c.end()
		close(c.left)
	}
	<-c.left
}

// Complain reports an error that keeps the consumers from consuming.
func (q *Common) Complain(err error) {
	q.m.Log.Error("zsync: cannot consume", "path", q.cfg.Path, "err", err)
	q.faults.Range(func(c, _ any) bool {
		select {
		case c.(chan error) <- err:
		default: // the previous error is still unread
		}
		return true
	})
}

// WhileOpen returns a context that ends with ctx, or when the Session begins to close. In the
// second case, the cause of the context is ErrClosed. Session.Close waits until the caller calls
// the function `leave`. That call also ends the context.
func WhileOpen(ctx context.Context, m *session.Manager) (inner context.Context, leave func()) {
	leaving, stay := m.BeforeClose()
	inner, cancel := context.WithCancelCause(ctx)
	if session.IsClosed(leaving) {
		cancel(session.ErrClosed)
	}
	m.Spawn(func() {
		select {
		case <-leaving:
			cancel(session.ErrClosed)
		case <-inner.Done():
		}
	})
	return inner, func() {
		cancel(nil)
		stay()
	}
}

// Synced sends a sync request, then calls `f` and returns the result of `f`. If the session ends first,
// Synced repeats both steps in the next session.
func Synced[R any](ctx context.Context, q *Common, f func(ctx context.Context, inc *session.Incarnation) (R, error)) (r R, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		if err = inc.Sync(ctx, q.dir); err == nil {
			r, err = f(ctx, inc)
		}
		return err
	})
	return r, err
}

// Detached calls `f` in the background, and returns its result. If ctx ends first, Detached returns
// the error of ctx. Then `drop` gets the result, unless that is nil.
func Detached[T any](ctx context.Context, m *session.Manager, f func() (*T, error), drop func(*T)) (*T, error) {
	var got *T
	var err error
	done := make(chan struct{}) // without a buffer: either the caller or `drop` gets the result
	m.Spawn(func() {
		got, err = f()
		select {
		case done <- struct{}{}:
		case <-ctx.Done():
			if got != nil {
				drop(got)
			}
		}
	})
	select {
	case <-done:
		return got, err
	case <-ctx.Done():
		return nil, session.CtxErr(ctx)
	}
}
