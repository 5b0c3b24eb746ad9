package lock

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

// This file keeps places in the line while no goroutine holds the lock. The next goroutine of the
// same process can then acquire it without a request. Lock.keep decides which places are kept.
//
// To keep a place is as safe as a handoff. While the session lives, the znode is ahead of all
// others, and a goroutine gets a grant only after a check of the session (Incarnation.Assured). It
// is fair because of a watch on the line, which fires when a contender comes or leaves.
//
//  1. Enter with the watch joined, so that the listing after the creation of the znode sets the
//     watch. A contender that is alone in that listing is alone until the watch fires.
//  2. Release: if the watch has not fired, the znode stays.
//  3. Acquire in the same process: no request is sent.
//  4. When the watch fires, the znode is deleted at once if no goroutine holds it. If a goroutine
//     holds it, the place is not kept after that hold.
//
// If another contender of this session has set the watch before, the creation of our own znode
// fires it. Then this place is not kept.

// recalled returns a channel that is closed when another contender may have come to the line of c,
// or c itself was deleted. Without a watch on the line, it is closed already.
func (c *Claim) recalled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lineWatch == nil {
		return session.ClosedChan
	}
	return c.lineWatch.Fired
}

// Alone reports whether no other contender is in the line, by the events so far. Without a
// connection there are no events, and Alone reports false.
func (c *Claim) Alone() bool {
	return !session.IsClosed(c.recalled()) && !session.IsClosed(c.Incarnation.Disconnection())
}

// Keep ends g, the only use of its claim. The claim stays in its place until the next grant, or
// Discard. Keep returns the event for the observer. The caller passes it on without holding a lock.
// If the claim is lost, Keep does nothing.
func (g *Grant) Keep() (e session.Report, done bool) {
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

// OnRecall calls f, in its own goroutine, when recalled is closed. A second call before that
// changes nothing.
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

// Recall makes the process of holder give up its place, if that contender only keeps it, and
// reports whether that has happened. If a goroutine holds the lock, Recall returns false, and the
// caller may write RevokeMessage to the znode of holder. That asks no later holder: another
// contender has come, so the place is not kept after that hold.
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
