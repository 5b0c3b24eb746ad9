package line

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// RevokeMessage is the data of the znode of a holder who is asked to give up, as
// Curator's Revoker writes it.
const RevokeMessage = "__REVOKE__"

// Asked returns a channel that is closed when somebody asks the holder of c to
// give up. The first call has the data of its znode watched.
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

// listen closes asked when the message is there, until end is closed, as long as c is held.
func (c *Claim) listen(path string, asked chan struct{}, end <-chan struct{}) {
	inc := c.Incarnation
	for over := false; !over; {
		w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: path})
		data, _, err := inc.Get(inc.Ctx, path)
		var again <-chan time.Time
		if err != nil { // the servers refuse it now
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
			case <-end: // what is written from here on asks nobody any more
				over = true
			case <-inc.Ctx.Done():
				over = true
			}
		}
		inc.Watches.Leave(w)
	}
}

// Recall gives up the place of a holder who may only keep it, and says whether it has. If it
// is in use it is not kept any more from now on, so that who holds it later is not asked
// what is asked of this one.
func (l *Line) Recall(ctx context.Context, holder string) (recalled bool, err error) {
	if !MayBeKept(holder) {
		return false, nil
	}
	c, err := l.Try(ctx, l.Bases[0], l.Manager.Owner, Exclusive)
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
