package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/turnstile"
)

// A lockTurnstile is the turnstile of a lock, with what the tracers of its Session
// are told of it. Of a part of something else, which has no operation, they are
// told nothing.
type lockTurnstile struct {
	turnstile.Turnstile
	s *Session
}

func (q *lockTurnstile) init(s *Session, path string, ln line.Line, c lockConfig, entries *turnstile.Entries) {
	q.s = s
	q.Init(s.m, path, ln, c.handoffs, entries)
	if c.retain > 0 {
		q.Retain(c.retain, &s.retentions)
	}
}

// acquire waits for a grant; pin says that it is that of a Do.
func (q *lockTurnstile) acquire(ctx context.Context, mode turnstile.Mode, pin bool) (*line.Grant, error) {
	end := func(string, error) {}
	if q.told(mode) {
		end = q.s.tracers.acquiring(ctx, q.traced(mode))
	}
	g, err := q.Regain(mode, pin), error(nil)
	if g == nil {
		start := time.Now()
		var behind turnstile.Behind
		g, behind, err = q.Acquire(ctx, mode, pin)
		err = waitEnded(ctx, q.s, err, start, q.contender(behind), behind.Place)
		q.Waited(mode, start, err)
	}
	g.Within(q.s.m.FunctionOf(ctx))
	if g != nil {
		end(g.Name(), nil)
	} else {
		end("", err)
	}
	return g, err
}

// contender is whom a wait is for.
func (q *lockTurnstile) contender(b turnstile.Behind) Contender {
	switch {
	case b.Own != nil:
		return ownContender(b.Own, q.s.m.Config.Owner, Mode(b.Mode))
	case b.Place == 0:
		return Contender{}
	}
	return headContender(b.Head, Mode(b.Mode))
}

// try makes one attempt at a grant. It is nil if somebody stands in the way.
func (q *lockTurnstile) try(ctx context.Context, mode turnstile.Mode) (*line.Grant, error) {
	g, err := q.Try(ctx, mode)
	g.Within(q.s.m.FunctionOf(ctx))
	if g != nil && q.told(mode) {
		q.s.tracers.got(ctx, q.traced(mode), g)
	}
	return g, err
}

// told reports whether there is a tracer that is told of mode.
func (q *lockTurnstile) told(mode turnstile.Mode) bool {
	return q.Entries.Of(mode).Op != "" && q.s.tracers.tracer != nil
}

// traced is what a tracer is told of q.
func (q *lockTurnstile) traced(mode turnstile.Mode) func() Op {
	return func() Op {
		kind := "mutex"
		if q.Entries.Of(turnstile.Shared).Base != "" {
			kind = "rwmutex"
		}
		return q.s.tracers.traced(kind, q.Entries.Of(mode).Op, q.Path)
	}
}

// follow tells the tracer of g. It returns what ctx becomes.
func (q *lockTurnstile) follow(ctx context.Context, mode turnstile.Mode, g *line.Grant) context.Context {
	if !q.told(mode) {
		return ctx
	}
	return q.s.tracers.follow(ctx, q.traced(mode), g)
}

func (q *lockTurnstile) lost(modes ...turnstile.Mode) <-chan struct{} {
	return q.Standing(modes...).Done()
}

// yield gives up what the caller holds in mode, for Cond.Wait: it decides what that is, and
// finish waits until it is done. again gets it back. What belongs to the Do d, if the
// caller is in one, belongs to it again afterwards; in between d has nothing, and hears of
// no loss.
func (q *lockTurnstile) yield(d *doCall, mode turnstile.Mode) (finish func() error, again func(ctx context.Context) error) {
	if d != nil {
		if had, ok := d.mode(); ok && had == mode {
			from, g := d.now()
			d.set(q, nil)
			return from.BeginLeave(g).Finish, func(ctx context.Context) error {
				g, err := q.reacquire(ctx, mode, true)
				if err == nil {
					q.follow(ctx, mode, g)
					d.set(q, g)
				}
				return err
			}
		}
	}
	return q.BeginGiveUp(mode).Finish, func(ctx context.Context) error {
		g, err := q.reacquire(ctx, mode, false)
		q.follow(ctx, mode, g)
		return err
	}
}

func (q *lockTurnstile) reacquire(ctx context.Context, mode turnstile.Mode, pin bool) (*line.Grant, error) {
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	return q.acquire(ctx, mode, pin)
}
