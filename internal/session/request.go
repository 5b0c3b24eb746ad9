package session

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// A pending is a request whose reply may be awaited, or left to someone else.
type pending[T any] struct {
	Done chan struct{} // closed when val and err are set
	val  T
	err  error
}

// Wait waits for the reply. When ctx or the incarnation ends first it returns
// their error, and the request is of unknown outcome.
func (p *pending[T]) Wait(ctx context.Context, inc *Incarnation) (T, error) {
	var zero T
	select {
	case <-p.Done:
		// The reply may have come at the instant in which the incarnation
		// ended. A result is still a fact about the past; whether something is
		// held on the strength of it is asked of inc.alive by whoever says so.
		if OutcomeOf(p.err) == Unknown && inc.Ctx.Err() != nil {
			return zero, ErrEnded
		}
		return p.val, p.err
	case <-inc.Ctx.Done():
		return zero, ErrEnded
	case <-ctx.Done():
		return zero, CtxErr(ctx)
	}
}

// start sends a request of this incarnation, f, as soon as there is a
// connection, and returns without waiting. go-zookeeper knows no contexts: what
// was begun may be executed whatever becomes of the caller, so a caller that
// leaves passes the pending on to someone who collects its effect.
//
// A request is not begun while there is no connection: it would wait in
// go-zookeeper's queue and run long after its caller has given up.
func start[T any](ctx context.Context, inc *Incarnation, f func(c *zk.Conn) (T, error)) (*pending[T], error) {
	if ctx.Err() != nil {
		return nil, CtxErr(ctx)
	}
	if err := inc.Connection(ctx); err != nil {
		return nil, err
	}
	p := &pending[T]{Done: make(chan struct{})}
	inc.Manager.Spawn(func() {
		defer close(p.Done)
		p.val, p.err = f(inc.Conn)
	})
	return p, nil
}

// attempt makes a single attempt at a request. An error of unknown outcome is
// passed on as it is.
func attempt[T any](ctx context.Context, inc *Incarnation, f func(c *zk.Conn) (T, error)) (T, error) {
	p, err := start(ctx, inc, f)
	if err != nil {
		var zero T
		return zero, err
	}
	return p.Wait(ctx, inc)
}

// retry makes attempts at a request that may safely be applied twice, until it
// is answered. It is for reads, and for writes that name what they expect.
func retry[T any](ctx context.Context, inc *Incarnation, f func(c *zk.Conn) (T, error)) (T, error) {
	for try := 0; ; try++ {
		v, err := attempt(ctx, inc, f)
		switch {
		case errors.Is(err, ErrEnded), OutcomeOf(err) == Answered:
			return v, err
		case ctx.Err() != nil:
			return v, CtxErr(ctx)
		}
		if err := inc.Pause(ctx, try); err != nil {
			return v, err
		}
	}
}

// Pause waits before the next attempt at something: not at all the first time,
// as a dropped connection is usually replaced at once.
func (inc *Incarnation) Pause(ctx context.Context, try int) error {
	d := inc.Manager.Config.Retry.Delay(try)
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return CtxErr(ctx)
	case <-inc.Ctx.Done():
		return ErrEnded
	}
}
