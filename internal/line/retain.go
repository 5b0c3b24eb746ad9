package line

import "github.com/zsync/zsync/internal/session"

// This file is for places that are kept when nobody has them any more, so that who
// wants them next in the same process need not ask the servers.
//
// What makes that safe is what makes a hand-over safe: the znode stands, ahead of
// all others, as long as its session does, and nobody is told that he holds it
// before that has been looked at (Incarnation.Assured). What makes it fair is a
// watch on the line: whoever comes, or goes, fires it.
//
//  1. Enter with the watch joined, so that the listing behind the create sets it.
//     Who finds himself alone in that listing is alone until it fires.
//  2. Give up: if the watch has not fired, the znode stays.
//  3. Acquire in the same process: nothing is asked.
//  4. When the watch fires the znode is deleted, at once if nobody has it.
//
// Our own create does not fire the watch unless somebody else of this session has
// set it before: then this place is not kept.

// Recall returns a channel that is closed when somebody else may have come to the
// line of c, or c itself has gone from it. It is closed already where that cannot
// be told.
func (c *Claim) Recall() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lineWatch == nil {
		return session.ClosedChan
	}
	return c.lineWatch.Fired
}

// Alone reports whether nobody else is in the line, as far as this process has been
// told. Without a connection it is told nothing.
func (c *Claim) Alone() bool {
	return !session.IsClosed(c.Recall()) && !session.IsClosed(c.Incarnation.Disconnection())
}

// Ready reports whether c, which was kept, may be granted again: it is not lost, nobody
// else has come, and its session is as certain to live as for any grant.
func (c *Claim) Ready() bool {
	return c.Loss() == nil && !session.IsClosed(c.Recall()) && c.Incarnation.Assured()
}

// Keep ends g, the only use of its claim, which stays in its place until it is
// granted again, or Discard. It returns what the observer is to be told, when the
// caller has no locks any more. If the claim is lost nothing is done.
func (g *Grant) Keep() (e session.Event, done bool) {
	c := g.Claim
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != held || !g.lasts {
		return e, false
	}
	e = c.event(session.EventReleased, nil)
	g.overLocked()
	c.enter(kept)
	return e, true
}

// Discard deletes c, which was kept, in the background.
func (c *Claim) Discard() {
	if c.finish() == nil {
		c.Leave()
	}
}

// OnRecall has f called, in a goroutine of its own, when Recall is closed. A second call
// before that changes nothing.
func (c *Claim) OnRecall(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lineWatch == nil {
		c.Incarnation.Manager.Spawn(f)
	} else if !c.recalls {
		c.recalls = true
		c.Incarnation.Watches.Tell(c.lineWatch, c, func() { c.Incarnation.Manager.Spawn(f) })
	}
}
