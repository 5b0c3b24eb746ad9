package session

// This file has the life of a request: it is started, awaited, and repeated until it is answered.
// Package conn sends it to a server.

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/wire"
)

// The type `call` is the content of a request and the decoder of its reply.
type call[T any] struct {
	op   int32
	path string                  // "" if the request is not about one znode
	moot bool                    // the request changes nothing, no matter when the server executes it
	body func(p []byte) []byte   // appends the part after the path; nil: there is none
	take func(s *wire.Scanner) T // decodes a reply that has no error code; nil: such a reply is empty

	refused func(code int32) // called with the code of a refusal; nil: no function is called

	// If `judge` is not nil, it replaces `take`: the reply can contain an error of its own.
	judge func(s *wire.Scanner) (v T, code int32, err error)
}

// The type `pending` is a request whose reply the caller awaits, or leaves to another function.
type pending[T any] struct {
	Done chan struct{} // closed when val and err are set
	val  T
	err  error
	call call[T]
	scan wire.Scanner // of the reply; a field to save an allocation
	heir atomic.Pointer[func()]
}

func newPending[T any](c call[T]) *pending[T] {
	return &pending[T]{Done: make(chan struct{}), call: c}
}

func (p *pending[T]) Op() int32  { return p.call.op }
func (p *pending[T]) Moot() bool { return p.call.moot }

func (p *pending[T]) Encode(b []byte) []byte {
	if p.call.path != "" {
		b = wire.AppendString(b, p.call.path)
	}
	if p.call.body != nil {
		b = p.call.body(b)
	}
	return b
}

func (p *pending[T]) Key() (key conn.WatchKey, ok bool) {
	switch p.call.op {
	case wire.OpGetData, wire.OpExists, wire.OpGetChildren2:
		return conn.WatchKey{Kind: conn.KindOfRead(p.call.op), Path: p.call.path}, true
	}
	return key, false
}

func (p *pending[T]) Reply(code int32, body []byte) (whole int32, ok bool) {
	p.scan.Rest = body
	switch {
	case code != 0:
		p.err = wire.Error(code)
		if p.call.refused != nil {
			p.call.refused(code)
		}
	case p.call.judge != nil:
		p.val, code, p.err = p.call.judge(&p.scan)
	case p.call.take != nil:
		p.val = p.call.take(&p.scan)
	}
	p.scan.Rest = nil // the buffer belongs to the connection
	return code, !p.scan.Bad
}

func (p *pending[T]) Finish() {
	close(p.Done)
	p.handOn()
}

func (p *pending[T]) Fail(err error) {
	var zero T
	p.val, p.err = zero, err
	p.Finish()
}

// The method `then` registers the function f, which is called once, when p.Done is closed. So no
// goroutine needs to wait for the reply after the caller has left. The reading goroutine may call
// f, so f must not block. f is called at the latest when the session has ended and its connection
// is down: then a request without a reply fails. A request has at most one f.
func (p *pending[T]) then(f func()) {
	p.heir.Store(&f)
	if IsClosed(p.Done) {
		p.handOn()
	}
}

// handOn calls `heir`, the function that p.then has registered. Finish closes p.Done, and after
// that calls handOn. p.then stores `heir`, and after that calls handOn if p.Done is closed. So
// whichever of Finish and p.then comes later calls handOn. At that time, `heir` is stored and
// p.Done is closed. If both call handOn, only the first takes the function.
func (p *pending[T]) handOn() {
	if f := p.heir.Swap(nil); f != nil {
		(*f)()
	}
}

// Wait waits for the reply. If ctx or the incarnation ends first, Wait returns the error of ctx or
// ErrEnded. Then the outcome of the request is unknown.
func (p *pending[T]) Wait(ctx context.Context, inc *Incarnation) (T, error) {
	var zero T
	select {
	case <-p.Done:
	case <-inc.Ctx.Done():
		if !IsClosed(p.Done) {
			return zero, ErrEnded
		}
	case <-ctx.Done():
		return zero, CtxErr(ctx)
	}
	// The reply may have come at the moment at which the incarnation ended. Wait returns the reply
	// even then, because it shows a past state. A caller that grants a hold because of the reply
	// calls Alive first.
	if OutcomeOf(p.err) == Unknown && inc.Ctx.Err() != nil {
		return zero, ErrEnded
	}
	return p.val, p.err
}

// The function `start` sends a request of this incarnation as soon as there is a connection, and
// returns without waiting for the reply. The servers may execute the request even if the caller
// leaves. So a caller that leaves passes the `pending` to a function that undoes the effect of the
// request.
//
// When `start` returns, the place of the request in the order of its connection is fixed: the
// server executes the requests of one connection in that order.
func start[T any](ctx context.Context, inc *Incarnation, c call[T]) (*pending[T], error) {
	l, err := inc.openConn(ctx)
	if err != nil {
		return nil, err
	}
	p := newPending(c)
	l.SendOrFail(p)
	return p, nil
}

// openConn waits for a connection.
func (inc *Incarnation) openConn(ctx context.Context) (*conn.Conn, error) {
	if ctx.Err() != nil {
		return nil, CtxErr(ctx)
	}
	if err := inc.Connection(ctx); err != nil {
		return nil, err
	}
	if inc.Ctx.Err() != nil {
		return nil, ErrEnded
	}
	return inc.newestConn(), nil
}

// The function `attempt` makes a single attempt at a request. If the outcome is unknown,
// OutcomeOf(err) is Unknown.
func attempt[T any](ctx context.Context, inc *Incarnation, c call[T]) (T, error) {
	p, err := start(ctx, inc, c)
	if err != nil {
		var zero T
		return zero, err
	}
	return p.Wait(ctx, inc)
}

// The function `retry` makes attempts at a request until it is answered. The request must be safe
// to apply twice: a read, or a write that names the state that it expects.
func retry[T any](ctx context.Context, inc *Incarnation, c call[T]) (v T, err error) {
	err = inc.repeat(ctx, func(*attempts) (err error) {
		v, err = attempt(ctx, inc, c)
		return err
	})
	return v, err
}

// attempts records the attempts so far at one operation.
type attempts struct {
	// An attempt was sent and has no reply: it may have been applied, or may still be applied,
	// unless a later reply excludes that.
	open bool
	over bool // there is no further attempt, whatever the result of the last attempt
}

// The method `outcome` records the result of an attempt that was sent, and returns it.
func (a *attempts) outcome(err error) error {
	a.open = a.open || OutcomeOf(err) == Unknown
	return err
}

// The method `last` ends the attempts with err, which is not the result of an attempt, but of an
// operation between two attempts.
func (a *attempts) last(err error) error {
	a.over = true
	return err
}

// errAgain is returned by an attempt that must be repeated at once: the reason for its refusal no
// longer applies.
var errAgain = errors.New("zsync: BUG: to be tried again")

// The method `repeat` repeats an operation until it is answered. Each call of f makes one attempt.
// `repeat` returns the first reply: nil, or an error of the server. If ctx or the incarnation ends
// first, `repeat` returns CtxErr or ErrEnded.
//
// If the operation must not be applied twice, f records the outcome of each attempt in a. If a.open
// is true after a refusal, an earlier attempt may have been applied and may have caused the
// refusal. If a.open is true after `repeat` has failed, the caller must undo the operation.
func (inc *Incarnation) repeat(ctx context.Context, f func(a *attempts) error) error {
	a := new(attempts)
	for try := 0; ; try++ {
		err := f(a)
		switch {
		case err == errAgain:
			continue
		case a.over, errors.Is(err, ErrEnded), OutcomeOf(err) == Answered:
			return err
		case ctx.Err() != nil && errors.As(err, new(*unservedError)):
			return err
		case ctx.Err() != nil:
			return CtxErr(ctx)
		}
		if err := inc.Pause(ctx, try); err != nil {
			return err
		}
	}
}

// Pause waits before the next attempt. It does not wait the first time, because a dropped
// connection is usually replaced at once.
func (inc *Incarnation) Pause(ctx context.Context, try int) error {
	d := inc.Manager.Config.Retry.Delay(try)
	if d == 0 {
		return nil
	}
	return AwaitIn(ctx, inc, time.After(d))
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
