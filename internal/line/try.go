package line

// This file acquires without a wait for other holders.

import (
	"context"
	"errors"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// Try takes its turn if it comes at once, and otherwise leaves the line. It first reads the line,
// and does not enter if a contender blocks it. An exception is a contender that may only keep its
// place: Try recalls it, and waits for it for a moment.
func (l *Line) Try(ctx context.Context, base string, data []byte, rule Rule) (*Claim, error) {
	var won *Claim
	err := l.Manager.During(ctx, func(inc *session.Incarnation) error {
		if blocked, err := l.blocked(ctx, inc, rule); blocked || err != nil {
			return err
		}
		c, roll, err := l.Enter(ctx, inc, base, data)
		if err != nil {
			return err
		}
		if err = c.tryTurn(ctx, roll, rule); err == nil {
			err = c.assure(ctx)
		}
		switch {
		case err == nil:
			won = c
			return nil
		case errors.Is(err, errBlocked), errors.Is(err, session.ErrVanished):
			c.withdraw(err)
			return nil
		}
		c.withdraw(err)
		return err
	})
	return won, err
}

// tryTurn returns errBlocked if it is not c's turn, nor becomes so at once. roll is the line.
func (c *Claim) tryTurn(ctx context.Context, roll *session.Roll, rule Rule) error {
	ahead, err := c.Ahead(ctx, roll)
	if err != nil {
		return err
	}
	switch blocker, _ := rule(ahead); {
	case blocker == nil:
		return c.confirm()
	case !onlyKept(ahead):
		return errBlocked
	}
	return c.awaitRecall(ctx, ahead[0].Name, rule)
}

// RecallTime is how long Try waits for a contender that may only keep its place: enough for an
// event to reach its process, and for its deletion to come back.
const RecallTime = 500 * time.Millisecond

// onlyKept reports whether exactly one contender is ahead, and may only keep its place.
func onlyKept(ahead []Child) bool { return len(ahead) == 1 && MayBeKept(ahead[0].Name) }

// awaitRecall waits until the contender of this name, the only one ahead of c, is deleted. The
// create of c has recalled it. If it is not deleted in time, a goroutine holds it, or its process
// does not answer. Then the error is errBlocked.
func (c *Claim) awaitRecall(ctx context.Context, name string, rule Rule) error {
	short, cancel := context.WithTimeout(ctx, RecallTime)
	defer cancel()
	proof, err := c.awaitGone(short, name)
	if err == nil {
		err = c.mustBeFirst(short, proof, rule)
	}
	switch {
	case err == nil:
		return c.confirm()
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return errBlocked
	case ctx.Err() != nil && errors.Is(err, short.Err()): // short may have ended first
		return session.CtxErr(ctx)
	}
	return err
}

// mustBeFirst returns errBlocked if a contender blocks c after the deletion of the only one
// ahead. Connection proof has delivered that event. If other contenders can come to be ahead, as
// a read lock at the place of a write lock can, mustBeFirst lists the line again.
func (c *Claim) mustBeFirst(ctx context.Context, proof int64, rule Rule) error {
	if c.Line.Settled && !c.Child.Exhausted() {
		stands, err := c.stands(ctx, proof)
		if err == nil && !stands {
			err = session.ErrVanished
		}
		return err
	}
	roll, err := c.Incarnation.Roll(ctx, c.Line.Dir)
	if err != nil && !session.IsNoNode(err) { // without the parent, our own znode is deleted too, which Ahead reports
		return err
	}
	ahead, err := c.Ahead(ctx, roll)
	if err != nil {
		return err
	}
	if blocker, _ := rule(ahead); blocker != nil {
		return errBlocked
	}
	return nil
}

// errBlocked means that a contender blocks a caller that does not wait.
var errBlocked = errors.New("zsync: somebody stands in the way")

// blocked reports whether a contender would block a newcomer. It reads after a sync. A lagging
// server could show a contender that had left before the call.
func (l *Line) blocked(ctx context.Context, inc *session.Incarnation, rule Rule) (bool, error) {
	names, _, err := inc.ChildrenFresh(ctx, l.Dir)
	if err != nil && !session.IsNoNode(err) {
		return false, err
	}
	ahead := ParseChildren(names, l.Bases...)
	blocker, _ := rule(ahead)
	blocked := blocker != nil && !onlyKept(ahead)
	if !l.Strict {
		return blocked, nil
	}
	return blocked, unmixed(l.Bases, strangers(names, l.Bases), nil)
}
