package session

// This file has the life of a request: it is started, awaited, and repeated until it is answered.
// Package conn sends it to a server.

import (
	"context"
	"errors"
	"time"
)

// Wait waits for the reply. If ctx or the incarnation ends first, Wait returns the error of ctx or
// ErrEnded. Then the outcome of the request is unknown.
func (p *Pending[T]) Wait(ctx context.Context, inc *Incarnation) (T, error) {
	var zero T
	if !IsClosed(p.Done) { // a select would cost more than this look, and a caller may wait twice
		if err := AwaitIn(ctx, inc, p.Done); err != nil && !IsClosed(p.Done) {
			return zero, err
		}
	}
	// The reply may have come at the moment at which the incarnation ended. Wait returns it even then: a
	// caller that grants a hold because of the reply calls Alive first.
	if OutcomeOf(p.Err) == Unknown && inc.Ctx.Err() != nil {
		return zero, ErrEnded
	}
	return p.Val, p.Err
}

// Start sends a request of this incarnation as soon as there is a connection, and
// returns without waiting for the reply. The servers may execute the request even if the caller
// leaves. When Start returns, the place of the request in the order of its connection is fixed.
func Start[T any](ctx context.Context, inc *Incarnation, c Call[T]) (*Pending[T], error) {
	p := NewPending(c)
	return p, Requests{p}.Start(ctx, inc)
}

// Attempt makes a single attempt at a request. If the outcome is unknown,
// OutcomeOf(err) is Unknown.
func Attempt[T any](ctx context.Context, inc *Incarnation, c Call[T]) (T, error) {
	p, err := Start(ctx, inc, c)
	if err != nil {
		return p.Val, err
	}
	return p.Wait(ctx, inc)
}

// Retry makes attempts at a request until it is answered. The request must be safe
// to apply twice: a read, or a write that names the state that it expects.
func Retry[T any](ctx context.Context, inc *Incarnation, c Call[T]) (v T, err error) {
	err = inc.Repeat(ctx, func() (err error) {
		v, err = Attempt(ctx, inc, c)
		return err
	})
	return v, err
}

// ErrAgain is returned by an attempt that must be repeated at once: the reason for its refusal no
// longer applies.
var ErrAgain = errors.New("zsync: BUG: to be tried again")

// Repeat repeats an operation until it is answered. Each call of f makes one attempt.
// Repeat returns the first reply: nil, or an error of the server. If ctx or the incarnation ends
// first, Repeat returns CtxErr or ErrEnded.
//
// If the operation must not be applied twice, f records whether an attempt has no reply. Such an
// attempt may be applied at any time, unless a later reply excludes that, and may cause a later
// refusal. If Repeat fails after such an attempt, the caller must undo the operation.
func (inc *Incarnation) Repeat(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		switch {
		case err == ErrAgain:
			continue
		case errors.Is(err, ErrEnded), OutcomeOf(err) == Answered:
			return err
		case ctx.Err() != nil && errors.Is(err, errUnserved):
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
