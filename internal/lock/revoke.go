package lock

// This file has the request to a holder to release. The holder's program decides whether it does.

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// RevokeMessage is the data that ask a holder to release, as Curator's Revoker writes them.
const RevokeMessage = "__REVOKE__"

// Asked returns a channel that is closed when another client asks the holder of c to release. The
// first call sets a watch on the data of its znode.
func (c *Claim) Asked() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = make(chan struct{})
		asked, path, end := c.asked, c.Path, c.leftLocked()
		c.Incarnation.Manager.Spawn(func() { c.listen(path, asked, end) })
	}
	return c.asked
}

// listen closes asked when the message is there. It returns when end is closed, or c is no longer
// held.
func (c *Claim) listen(path string, asked chan struct{}, end <-chan struct{}) {
	inc := c.Incarnation
	for over := false; !over; {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: path})
		data, _, err := inc.Get(inc.Ctx, path)
		var again <-chan time.Time
		if err != nil { // the servers refuse the read now
			again = time.After(session.LookAgainAfter)
		}
		switch {
		case err == nil && string(data) == RevokeMessage:
			close(asked)
			over = true
		case session.IsNoNode(err):
			over = true
		default:
			select {
			case <-w.Fired:
			case <-again:
			case <-end: // the hold has ended, so a later message is for no one
				over = true
			case <-inc.Ctx.Done():
				over = true
			}
		}
		inc.Watches.Leave(w)
	}
}

// Recall releases the place of a holder that may only keep it, and reports whether it has. If a
// goroutine holds it, the place is not kept after that hold. So a later holder does not receive
// this request.
func (l *Line) Recall(ctx context.Context, holder string) (recalled bool, err error) {
	if !MayBeKept(holder) {
		return false, nil
	}
	c, err := l.Try(ctx, l.Bases[0], l.Manager.Owner, EveryoneAhead)
	if c == nil {
		return false, err
	}
	l.Manager.GiveUp(ctx, c.GiveBack)
	return true, nil
}

// HeldSince returns when the holder whose znode is n wrote it, which takes its token. It is zero
// for a waiter, for a holder that has taken none, and after a Revoke, which writes the znode too.
func HeldSince(holding bool, n session.Node) time.Time {
	if !holding || n.Stat.Mzxid == n.Stat.Czxid || string(n.Data) == RevokeMessage {
		return time.Time{}
	}
	return time.UnixMilli(n.Stat.Mtime)
}
