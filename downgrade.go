package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

func (rw *RWMutex) downgrade(ctx context.Context) error {
	switch {
	case rw.misuse() != nil:
		return rw.misuse()
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	start := time.Now()
	q := &rw.turn
	q.mu.Lock()
	t := q.presentLocked(ModeExclusive, (*share).used)
	if t == nil || t.moving != nil {
		q.mu.Unlock()
		return ErrNotLocked
	}
	t.moving = make(chan struct{})
	q.mu.Unlock()
	c, err := t.claim.Beside(ctx, q.entries[ModeShared].base, []byte(rw.s.m.Config.Owner))
	q.mu.Lock()
	close(t.moving)
	t.moving = nil
	if err != nil {
		q.mu.Unlock()
		return t.claim.Explain(err)
	}
	// From the moment in which the read node was made nobody could write, so
	// it does not matter when, or by whom, the other is deleted.
	former, err := t.claim.Move(c, q.entries[ModeShared].op)
	if err != nil {
		q.mu.Unlock()
		return err
	}
	t.mode, t.passed = ModeShared, 0
	q.readLocked(t)
	q.advanceLocked()
	q.mu.Unlock()
	q.report(ModeShared, nil, start)
	r := c.Incarnation.Remove(former)
	select {
	case <-r.Done:
	case <-r.Refused: // readers behind it wait, until the deletion has been allowed
	case <-c.Incarnation.Disconnection():
	case <-c.Incarnation.Ctx.Done(): // the loss is told to who holds what there is now
	case <-ctx.Done(): // it has been done; only the tidying is not over
	}
	return nil
}

// besides makes the caller, whose ctx holds rw already, a reader of its own.
func (rw *RWMutex) besides(ctx context.Context, in *doing) (*line.Grant, error) {
	start := time.Now()
	from, g := in.now()
	if g == nil {
		return nil, ErrNotLocked // Cond.Wait has just given it up
	}
	from.mu.Lock()
	t := from.shareOfLocked(g)
	if t != nil {
		// Before its end is decided on: it cannot go to somebody else now.
		t.beside = true
	}
	from.mu.Unlock()
	if t == nil {
		return nil, ErrNotLocked // its function has just unlocked rw
	}
	q := &rw.turn
	c, err := t.claim.Beside(ctx, q.entries[ModeShared].base, []byte(rw.s.m.Config.Owner))
	if err != nil {
		err = t.claim.Explain(err)
		q.report(ModeShared, err, start)
		return nil, err
	}
	q.mu.Lock()
	g = q.grantLocked(q.holdLocked(c, ModeShared), false)
	q.mu.Unlock()
	q.report(ModeShared, nil, start)
	q.s.tracers.acquiring(ctx, q.traced(ModeShared))(g.Name(), nil)
	return g, nil
}
