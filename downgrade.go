package zsync

import (
	"context"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/turnstile"
)

func (rw *RWMutex) downgrade(ctx context.Context) error {
	switch {
	case rw.misuse() != nil:
		return rw.misuse()
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	return rw.turnstile.Downgrade(ctx)
}

// besides makes the caller, whose ctx holds rw already, a reader of its own.
func (rw *RWMutex) besides(ctx context.Context, in *doCall) (*line.Grant, error) {
	from, g := in.now()
	if g == nil {
		return nil, ErrNotLocked // Cond.Wait has just given it up
	}
	q := &rw.turnstile
	g, err := q.Beside(ctx, &from.Turnstile, g)
	if err == nil {
		g.Within(q.s.m.FunctionOf(ctx))
		q.s.tracers.acquiring(ctx, q.traced(turnstile.Shared))(g.Name(), nil)
	}
	return g, err
}
