package line

import (
	"context"

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
		asked, path, end := c.asked, c.Path, c.endLocked()
		c.Incarnation.Manager.Spawn(func() { c.listen(path, asked, end) })
	}
	return c.asked
}

// listen closes asked when the message is there, until end is closed, as long as c is held.
func (c *Claim) listen(path string, asked chan struct{}, end <-chan struct{}) {
	inc := c.Incarnation
	for {
		w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: path})
		data, _, err := inc.Get(inc.Ctx, path)
		if err == nil && string(data) != RevokeMessage {
			// What is written once c is given up asks nobody any more.
			select {
			case <-w.Fired:
				inc.Watches.Leave(w)
				continue
			case <-end:
			case <-inc.Ctx.Done():
			}
		} else if err == nil {
			close(asked)
		}
		inc.Watches.Leave(w)
		return // it was asked, or is gone
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
