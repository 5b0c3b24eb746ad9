package lock

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

// This file keeps a place in the line while no goroutine holds the lock. Then the next goroutine of
// this process can acquire the lock without a request. Lock.keep decides to keep a place.
//
// A kept place is as safe as a handoff. While the session lives, the znode is ahead of all others,
// and a grant needs a confirmed session (Incarnation.Assured). A kept place is also fair, because a
// watch on the line fires when a contender comes or leaves. The listing after the create sets the
// watch, so the contender has joined the watch before. When the watch fires, the client deletes the
// znode of a kept place at once, and a hold is not kept at its end.
//
// If another contender of this session has set the watch earlier, our own create fires the watch.
// Then our place is not kept.

// The method `recalled` returns a channel that is closed when another contender may have entered
// the line of c, or c itself is deleted. If c has no watch on the line, the channel is already
// closed.
func (c *Claim) recalled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lineWatch == nil {
		return session.ClosedChan
	}
	return c.lineWatch.Fired
}

// Alone reports whether c is the only contender in the line, according to the events so far.
// Without a connection, no events can come, and Alone returns false.
func (c *Claim) Alone() bool {
	return !session.IsClosed(c.recalled()) && !session.IsClosed(c.Incarnation.Disconnection())
}

// Keep ends g, the only use of its claim. The claim keeps its place until the next grant, or until
// Discard. Keep returns an event. The caller must pass the event to the observer, and must hold no
// mutex when it does so. If the claim is lost, Keep does nothing, and `done` is false.
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

// OnRecall registers f. A new goroutine calls f when the channel returned by the method `recalled`
// is closed. If OnRecall is called again before that, the second call has no effect.
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

// Recall is called with the name of the first contender. If this contender only keeps its place,
// Recall makes its process delete the znode, and returns true. If a goroutine holds the lock,
// Recall returns false, and the caller may write RevokeMessage to the znode. The message never asks
// a later holder to release. Another contender has come, so the place is not kept after the present
// hold.
func (l *Line) Recall(ctx context.Context, holder string) (recalled bool, err error) {
	if !MayBeKept(holder) {
		return false, nil
	}
	c, err := l.Try(ctx, Exclusive)
	if c == nil {
		return false, err
	}
	l.Manager.GiveUp(ctx, c.GiveBack)
	return true, nil
}
