package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/local"
	"github.com/zsync/zsync/internal/session"
)

// A localLock is a lock as the goroutines of this process use it, with the tracers of its Session.
// The tracers see no lock that is a part of another primitive: it has no operation.
type localLock struct {
	local.Lock
	s    *Session
	kind string // "mutex", "rwmutex" or "election", for the tracer
}

func (q *localLock) init(s *Session, kind, path string, ln line.Line, c lockConfig, entries *local.Entries) {
	q.s, q.kind = s, kind
	q.Init(s.m, path, ln, c.handoffs, entries)
	if c.retain > 0 {
		q.Retain(c.retain, &s.kept)
	}
}

// acquire waits for a grant; pin says that the caller is a Do.
func (q *localLock) acquire(ctx context.Context, mode local.Mode, pin bool) (*line.Grant, error) {
	end := func(string, error) {}
	if q.told(mode) {
		end = q.s.tracers.acquiring(ctx, q.traced(mode))
	}
	start := time.Now()
	g, behind, err := q.Acquire(ctx, mode, pin)
	if err != nil {
		err = waitEnded(ctx, q.s, err, start, q.contender(behind), behind.Place)
	}
	q.Waited(mode, start, err)
	if err != nil {
		end("", err)
		return nil, err
	}
	g.Within(q.s.m.FunctionOf(ctx))
	end(g.Name(), nil)
	return g, nil
}

// contender is whom a wait is for.
func (q *localLock) contender(b local.Behind) Contender {
	switch {
	case b.Own != nil:
		return ownContender(b.Own, string(q.Data), Mode(b.Mode))
	case b.Place == 0:
		return Contender{}
	}
	return headContender(b.Head, Mode(b.Mode))
}

// try makes one attempt at a grant. It returns nil if another contender is ahead.
func (q *localLock) try(ctx context.Context, mode local.Mode) (*line.Grant, error) {
	g, err := q.Try(ctx, mode)
	g.Within(q.s.m.FunctionOf(ctx))
	if g != nil && q.told(mode) {
		q.s.tracers.got(ctx, q.traced(mode), g)
	}
	return g, err
}

// told reports whether a tracer sees the operations in mode.
func (q *localLock) told(mode local.Mode) bool {
	return q.Entries.Of(mode).Op != "" && q.s.tracers.tracer != nil
}

// traced returns the description of q for a tracer.
func (q *localLock) traced(mode local.Mode) func() Op {
	return func() Op {
		return q.s.tracers.traced(q.kind, q.Entries.Of(mode).Op, q.Path)
	}
}

// follow reports g to the tracer. It returns the context that the tracer makes from ctx.
func (q *localLock) follow(ctx context.Context, mode local.Mode, g *line.Grant) context.Context {
	if !q.told(mode) {
		return ctx
	}
	return q.s.tracers.follow(ctx, q.traced(mode), g)
}

func (q *localLock) lost(modes ...local.Mode) <-chan struct{} {
	return q.Standing(modes...).Done()
}

// yield gives up the caller's hold in mode, for Cond.Wait. It decides which hold that is; finish waits
// until the hold is given up, and again acquires one. In a Do, d is that Do: the hold that again acquires
// belongs to d. Until then d has no hold, and hears of no loss.
func (q *localLock) yield(d *doCall, mode local.Mode) (finish func() error, again func(ctx context.Context) error) {
	if d != nil {
		if had, ok := d.mode(); ok && had == mode {
			from, g := d.now()
			d.set(q, nil)
			return from.BeginRelease(g).Finish, func(ctx context.Context) error {
				g, err := q.reacquire(ctx, mode, true)
				if err == nil {
					q.follow(ctx, mode, g)
					d.set(q, g)
				}
				return err
			}
		}
	}
	return q.BeginUnlock(mode).Finish, func(ctx context.Context) error {
		g, err := q.reacquire(ctx, mode, false)
		q.follow(ctx, mode, g)
		return err
	}
}

func (q *localLock) reacquire(ctx context.Context, mode local.Mode, pin bool) (*line.Grant, error) {
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	return q.acquire(ctx, mode, pin)
}
