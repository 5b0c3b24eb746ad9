package zsync

import (
	"context"
	"errors"
	"time"
)

// A lossReason says why something that was held in a session is lost.
type lossReason int

const (
	lossExpired   lossReason = iota + 1 // the servers have ended the session
	lossCutOff                          // no server has confirmed it in time
	lossPaused                          // nor could one, as this process was stopped
	lossReplaced                        // a server has put another session in its place
	lossDeleted                         // somebody has deleted the znode
	lossClosed                          // closed, or failed for good
	lossSuspended                       // the connection dropped, and that counts
	lossGivenUp                         // this process has given it up by itself
)

// endError says what the end of an incarnation, for this cause, means to one
// who held something through it: it is ErrLost.
func (inc *incarnation) endError(cause error) error {
	if errors.Is(cause, ErrLost) {
		return cause
	}
	return inc.m.cfg.lost(lossClosed, inc.id.Load(), time.Now())
}

// loss is endError for an incarnation that has ended.
func (inc *incarnation) loss() error { return inc.endError(context.Cause(inc.ctx)) }

// deleted is the loss of something in this session whose znode is gone.
func (inc *incarnation) deleted() error {
	return inc.m.cfg.lost(lossDeleted, inc.id.Load(), time.Now())
}
