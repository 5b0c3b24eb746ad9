package session

import (
	"context"
	"errors"
	"time"
)

// EndError says what the end of an incarnation, for this cause, means to one
// who held something through it: it is ErrLost.
func (inc *Incarnation) EndError(cause error) error {
	if errors.Is(cause, ErrLost) {
		return cause
	}
	return inc.Manager.Config.Lost(LossClosed, inc.ID.Load(), time.Now())
}

// Loss is endError for an incarnation that has ended.
func (inc *Incarnation) Loss() error { return inc.EndError(context.Cause(inc.Ctx)) }

// Deleted is the loss of something in this session whose znode is gone.
func (inc *Incarnation) Deleted() error {
	return inc.Manager.Config.Lost(LossDeleted, inc.ID.Load(), time.Now())
}
