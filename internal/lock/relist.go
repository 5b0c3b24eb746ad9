package lock

// This file lists the line during a wait, so that a contender's turn comes after one round trip
// instead of two. The wait itself is in acquire.go.

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

const (
	// A waiter lists the line in advance only if its create has taken at least relistTrip. With
	// faster servers, a listing after the deletion of the blocker costs little. Slower servers sync
	// their log to disk, and requests wait for that. So a listing in advance saves more than its own
	// round trip.
	relistTrip = 200 * time.Microsecond

	// maxRelists is the largest number of listings in one wait. It is enough for holds of up to 20
	// round trips. After a longer hold, one more round trip does not matter.
	maxRelists = 8
)

// The method `took` is called with the duration t of a listing, or of a create together with a
// listing. It returns the shortest duration so far. This is about one round trip, because a longer
// duration includes waits for other requests.
func (l *Line) took(t time.Duration) time.Duration {
	if trip := l.trip.Load(); trip == 0 || int64(t) < trip {
		l.trip.Store(int64(max(t, relistTrip))) // if two calls are concurrent, either may win
	}
	return time.Duration(l.trip.Load())
}

// The method `handoff` returns an estimate of the time from the turn of one contender to the turn
// of the next. Before the first measurement, the estimate is 17/16 of a round trip. The sixteenth
// is for the holder's work.
func (l *Line) handoff() time.Duration {
	if each := l.each.Load(); each > 0 {
		return time.Duration(each)
	}
	return time.Duration(l.trip.Load() * 17 / 16)
}

// The type `relisting` lists the line again while its contender waits for the deletion of its
// blocker, the nearest of several contenders ahead. If a listing shows no other contender ahead, the
// contender is the first after that deletion, and needs no other request. So the handoff takes one
// round trip instead of two.
//
// The listing may be made at any time. If it contains the contender, it is newer than the contender's
// create, so it also contains every contender that arrived earlier and has not left. In a Settled
// line, no contender arrives ahead of an existing contender. If the only contender ahead in the
// listing is not the blocker, it may leave later than the blocker. Then the listing proves nothing.
//
// A watch on the line would show the same, but each release would send an event to every waiter. A
// relisting estimates instead when the blocker will be the first in the line, and lists the line
// then. A wrong estimate costs time, and nothing else.
type relisting struct {
	claim   *Claim
	me      Child
	blocker string
	start   time.Time
	first   int // number of contenders ahead at the start

	mu    sync.Mutex
	timer *time.Timer   // fires when the next listing may be due; guarded by mu, like all fields below
	ended bool          // the contender's wait is over
	over  chan struct{} // closed when the latest listing is over; nil before the first listing
	alone bool          // a listing has shown no contender ahead except, perhaps, the blocker
	lists int           // number of listings that may still be made
	since time.Time     // time of the last reply to a listing; before the first reply, time of the start

	trip  time.Duration // duration of a listing; a handoff takes at least as long
	each  time.Duration // duration of a handoff
	ahead int           // number of contenders ahead at the last listing
}

// The method `relist` starts a relisting for c, which waits for `blocker`. The argument `ahead`,
// the number of contenders ahead of c, is at least two.
func (c *Claim) relist(blocker string, ahead, lists int, trip time.Duration) *relisting {
	now := time.Now()
	r := &relisting{claim: c, me: c.Child, blocker: blocker, start: now, first: ahead, lists: lists, since: now, ahead: ahead}
	r.trip, r.each = c.Line.took(trip), c.Line.handoff()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(r.early(), r.due)
	return r
}

// The method `due` is called when the timer fires. It computes the time of the listing again,
// because other waiters may have measured a shorter trip or handoff. If that time has come, it
// begins the listing.
func (r *relisting) due() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.trip, r.each = time.Duration(r.claim.Line.trip.Load()), min(r.each, r.claim.Line.handoff())
	if early := r.early(); early > 0 {
		r.timer.Reset(early)
		return
	}
	r.lists--
	r.over = make(chan struct{})
	r.claim.Incarnation.Manager.Spawn(r.list)
}

// The method `early` returns the time until the next call of `due`, or 0 if it is time to list the
// line.
func (r *relisting) early() time.Duration {
	left := r.wait() - time.Since(r.since)
	return max(left/2, min(left, r.trip/2), 0)
}

// The method `list` makes one listing. If the listing fails, r makes no other listing. Other
// waiters of the session may share the request, so it does not end with the contender's ctx.
// Instead, the method `end` stops waiting when ctx ends.
func (r *relisting) list() {
	defer close(r.over)
	c, start := r.claim, time.Now()
	roll, err := c.Incarnation.Roll(c.Incarnation.Ctx, c.Line.Dir)
	if err != nil {
		return
	}
	all := c.Line.contenders(roll)
	if !ordered(all) {
		return
	}
	ahead, err := c.Line.AheadOf(c.Incarnation.Ctx, c.Incarnation, all, r.me)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trip = c.Line.took(time.Since(start))
	if err != nil { // c is deleted; its own watch reports the deletion
		return
	}
	blocked := len(ahead) > 0 && ahead[len(ahead)-1].Name == r.blocker
	r.alone = len(ahead) == 0 || len(ahead) == 1 && blocked
	if !r.alone && blocked && r.lists > 0 && !r.ended {
		r.left(len(ahead))
		r.since = time.Now()
		r.timer.Reset(r.early())
	}
}

// The method `end` is called when the blocker is deleted. It returns true if a listing has shown
// that the contender is now the first. It does not check that the contender's own znode still
// exists. If a listing is under way, `end` waits for the reply, because the reply to a new listing
// would come later.
func (r *relisting) end(ctx context.Context) (first bool) {
	over := r.stop()
	r.claim.Line.each.Store(int64(time.Since(r.start)) / int64(r.first))
	// If both channels are ready, either result is right. After false, the caller lists the line,
	// and that request returns the error of ctx.
	select {
	case <-over:
		return r.alone
	case <-ctx.Done():
		return false
	}
}

// The method `stop` prevents every further listing. It returns a channel that is closed when no
// listing is under way.
func (r *relisting) stop() (over <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.timer.Stop() // if the timer has fired, either `due` has already begun a listing, or `due` finds that r has ended
	if r.over == nil {
		return session.ClosedChan
	}
	return r.over
}

// The method `wait` returns the time from the reply to one listing to the request for the next
// listing.
//
// At the last listing, an unknown part of the first contender's handoff was over. So the blocker
// becomes the first after ahead-2 to ahead-1 handoffs, and stays the first for one more. The next
// listing is planned a little before the latest time: half a round trip, or a quarter of a handoff
// if that is longer. So it is not late if handoffs are a little faster than estimated. If it is too
// early, another listing follows one round trip later.
func (r *relisting) wait() time.Duration {
	return max(r.each*time.Duration(r.ahead-1)-max(r.trip/2, r.each/4)-r.trip, 0)
}

// The method `left` is called after a new listing, with the number of contenders ahead. It
// estimates the field `each` again.
func (r *relisting) left(ahead int) {
	if ahead >= r.ahead {
		r.each += r.each / 2
		return
	}
	r.ahead = ahead
	r.each = max(time.Since(r.start)/time.Duration(r.first-ahead+1), r.trip) // +1, because another contender may be about to leave: an early listing is better than a late one
}
