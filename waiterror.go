package zsync

import (
	"context"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A WaitError describes a wait that ended without a grant, because its context ended or the
// Session was closed. Lock, RLock, Acquire, Campaign, Do, Run and [LockAll] return it; it
// wraps the context's error.
//
//	var w *zsync.WaitError
//	if errors.As(err, &w) {
//		log.Printf("gave up after %v, %d ahead, held by %s", w.Waited, w.Place, w.Behind.Owner)
//	}
//
// Behind.Owner is known if the holder is in this process, or after a wait of a second: then
// the waiter reads the holder's znode, and again each time that the wait has doubled, at
// most once a minute. The holder may have changed since.
type WaitError struct {
	// Behind is the first in the line: the holder. Its Node is set once the wait has a place
	// in the line. Its Owner, Session and Since are set once its znode was read, or if it is
	// in this process. For a [Semaphore], Behind is the first of the waiting contenders or,
	// for the first waiter itself, a holder of permits.
	Behind Contender

	// Place is the number of contenders ahead, Behind included, in the last listing: 1 is the
	// next. It is 0 if the wait had no place in the line: no server was reached, or this
	// process had not released a lost hold.
	Place int

	Waited time.Duration
	err    error
}

// Error returns the length of the wait, the holder, and the reason of the end.
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

// Unwrap returns the reason of the end: the error of the context, with its cause, or
// [ErrClosed].
func (e *WaitError) Unwrap() error { return e.err }

// waitEnded returns err as the error of a wait since start, if ctx or the Session ended the
// wait. Any other error is a failure, and stays as it is.
func waitEnded(ctx context.Context, s *Session, err error, start time.Time, behind Contender, place int) error {
	if err == nil || ctx.Err() == nil && s.m.Failure() == nil {
		return err
	}
	if _, said := err.(*WaitError); said { // a deeper one may be the cause of ctx
		return err
	}
	return &WaitError{Behind: behind, Place: place, Waited: time.Since(start), err: err}
}

// headContender returns the contender of h, a holder in mode, if there is one.
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

// ownContender returns the holder of c, in this process.
func ownContender(c *line.Claim, owner string, mode Mode) Contender {
	return Contender{
		Owner: owner, Node: session.BaseName(c.Znode()), Session: c.Incarnation.ID.Load(),
		Mode: mode, Holding: true, Since: c.Since(),
	}
}
