package zsync

import (
	"context"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A WaitError tells of a wait for a lock, permits or a leadership that ended
// without it, because its context did or the Session was closed: behind whom it
// stood, and for how long. [errors.As] finds it in what Lock, RLock, Acquire,
// Campaign, Do, Run and [LockAll] return; the error of the context is below it.
//
// It is what was known without asking, at the last change that the wait was told
// of. Who waits for longer than a second reads the znode of the holder, and again
// whenever the wait has lasted twice as long: that is one request, or two where
// those ahead have gone, at most once a minute after the first. So the owner of a
// holder in another process is known in long waits only, and may be that of a
// holder who has left since.
type WaitError struct {
	// Behind is who was first in the line: the holder. Its Node is known as soon
	// as the wait has a place; its Owner, Session and Since when its znode has been
	// read, or when it is of this process. Of a [Semaphore] it is the first of
	// those who ask or, to the first who asks, one of those who hold permits.
	Behind Contender

	// Place counts those ahead, Behind included, when they were last listed:
	// 1 is the next. It is 0 if the wait had no place in the line: no server had
	// been reached, or this process had not noticed yet that it lost what it held.
	Place int

	Waited time.Duration
	err    error
}

// Error says how long the wait was, behind whom, and why it ended.
func (e *WaitError) Error() string {
	waited := e.Waited.Round(time.Millisecond)
	switch {
	case e.Place == 0:
		return fmt.Sprintf("after %v without a place in the line: %v", waited, e.err)
	case e.Behind.Owner == "":
		return fmt.Sprintf("after %v behind %q (place %d): %v", waited, e.Behind.Node, e.Place, e.err)
	}
	return fmt.Sprintf("after %v behind %q of %q (place %d): %v", waited, e.Behind.Node, e.Behind.Owner, e.Place, e.err)
}

// Unwrap returns why the wait ended: the error of the context, with its cause, or
// [ErrClosed].
func (e *WaitError) Unwrap() error { return e.err }

// waitEnded is err as the error of a wait since start, if that ended because ctx
// or the Session did. Any other error is a failure, and stays as it is.
func waitEnded(ctx context.Context, s *Session, err error, start time.Time, behind Contender, place int) error {
	if err == nil || ctx.Err() == nil && s.m.Failure() == nil {
		return err
	}
	if _, said := err.(*WaitError); said { // what is deeper may be the cause of ctx
		return err
	}
	return &WaitError{Behind: behind, Place: place, Waited: time.Since(start), err: err}
}

// headContender is the contender of h, who holds in mode, if there is one.
func headContender(h line.Head, mode Mode) Contender {
	if h.Name == "" {
		return Contender{}
	}
	c := Contender{Node: h.Name, Mode: mode, Holding: true}
	if h.Node.Stat != nil {
		c.Owner, c.Session = string(h.Node.Data), h.Node.Stat.EphemeralOwner
		c.Since, c.HeldSince = time.UnixMilli(h.Node.Stat.Ctime), line.HeldSince(true, h.Node)
	}
	return c
}

// ownContender is who holds c, which is of this process.
func ownContender(c *line.Claim, owner string, mode Mode) Contender {
	return Contender{
		Owner: owner, Node: session.BaseName(c.Znode()), Session: c.Incarnation.ID.Load(),
		Mode: mode, Holding: true, Since: c.Since(),
	}
}
