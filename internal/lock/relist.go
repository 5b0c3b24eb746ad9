package lock

// This file lists the line during a wait, so that a handoff takes one round trip. The wait itself
// is in acquire.go.

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

const (
	// If a request that creates a znode takes less than this, a waiter does not list the line in
	// advance: a listing after the deletion of the blocker costs little. Servers that sync their log
	// to disk take longer. While such a server syncs another client's write, later requests wait. So a
	// listing in advance saves more than its own round trip.
	relistTrip = 200 * time.Microsecond

	// The most listings of one wait. They suffice if a hold lasts for up to 20 round trips. After a
	// longer hold, one more round trip does not matter.
	maxRelists = 8
)

// took records t: the duration of a listing, or of a creation together with a listing. It returns
// the shortest duration so far, which is about one round trip: longer ones include waits for other
// requests. Like handoff, it is only used to estimate when to list the line.
func (l *Line) took(t time.Duration) time.Duration {
	if trip := l.trip.Load(); trip == 0 || int64(t) < trip {
		l.trip.Store(int64(max(t, relistTrip))) // of two concurrent calls, either may win
	}
	return time.Duration(l.trip.Load())
}

// handoff returns the estimated duration of a handoff. Before one was measured, this is a round
// trip, and a sixteenth of it for the holder's work.
func (l *Line) handoff() time.Duration {
	if each := l.each.Load(); each > 0 {
		return time.Duration(each)
	}
	return time.Duration(l.trip.Load() * 17 / 16)
}

// A relisting lists the line again while its contender waits behind several others. The contender
// waits for the deletion of one znode, its blocker. If a listing shows no contender ahead except
// the blocker, the contender is the first after that deletion, and needs no other request. So the
// handoff takes one round trip instead of two.
//
// The listing may be made at any time. If it contains the contender, it is newer than the
// contender's create. So it contains all contenders that came before and have not left. In a
// Settled line, no other contender can arrive ahead, so the number of contenders ahead only
// decreases. If the only contender ahead is not the blocker, it may outlast the blocker, so the
// listing proves nothing.
//
// A watch on the line would show the same, but then each release would send an event to every
// waiter. Instead, a relisting estimates, from the speed of the line so far, when the blocker will
// be the first in the line, and lists the line then. A wrong estimate only costs time.
type relisting struct {
	claim   *Claim
	me      Child
	blocker string
	start   time.Time
	first   int // the number of contenders ahead at the start

	mu    sync.Mutex
	timer *time.Timer   // fires when the next listing may be due; guarded by mu, as all below
	ended bool          // the wait is over
	over  chan struct{} // closed when the latest listing is over; nil if there was none
	alone bool          // a listing has shown no contender ahead, or only the blocker
	lists int           // number of listings that may still be made
	since time.Time     // the start, or the reply to the last listing

	trip  time.Duration // duration of a listing; no handoff takes less
	each  time.Duration // duration of a handoff
	ahead int           // at the last listing
	gone  int           // number of contenders that have left since the first listing
	spent time.Duration // from the first listing to the last
	still bool          // no contender had left between the last two listings
	took  time.Duration // the wait for the next listing, as wait has planned it
}

// relist begins to list the line for c, which waits for blocker. ahead is the number of contenders
// ahead of c, at least two.
func (c *Claim) relist(blocker string, ahead, lists int, trip time.Duration) *relisting {
	now := time.Now()
	r := &relisting{claim: c, me: c.Child, blocker: blocker, start: now, first: ahead, lists: lists, since: now, ahead: ahead}
	r.trip, r.each = c.Line.took(trip), c.Line.handoff()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(r.early(), r.due)
	return r
}

// due begins a listing, in a goroutine of its own, if it is time for one. It first checks the time
// again, because other waiters may have measured a shorter trip or handoff since.
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

// early returns the time after which due must check again, or 0 if it is time to list the line.
func (r *relisting) early() time.Duration {
	left := r.wait() - time.Since(r.since)
	return max(left/2, min(left, r.trip/2), 0)
}

// list makes one listing, which other waiters of the session may share. If it fails, r makes no
// other. The request does not end with the contender's ctx, because other waiters may share it; end
// stops waiting for it when ctx ends.
func (r *relisting) list() {
	defer close(r.over)
	c, start := r.claim, time.Now()
	roll, err := c.Incarnation.Roll(c.Incarnation.Ctx, c.Line.Dir)
	if err != nil {
		return
	}
	rk := c.Line.ranks(roll)
	ahead, there := rk.before(r.me)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trip = c.Line.took(time.Since(start))
	if !rk.sure || !there { // the order is unknown, or c is deleted, which c's own watch reports
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

// end is called when the blocker is deleted. It reports whether the contender is the first,
// provided that its own znode exists. It waits for a listing in flight, because the reply to a new
// listing would come later.
func (r *relisting) end(ctx context.Context) (first bool) {
	over := r.stop()
	r.claim.Line.each.Store(int64(time.Since(r.start)) / int64(r.first))
	// If both channels are ready, either result is right: with false, the caller lists the line,
	// and that request returns the error of ctx.
	select {
	case <-over:
		return r.alone
	case <-ctx.Done():
		return false
	}
}

// stop begins no other listing, and returns a channel that is closed when no listing is under way.
func (r *relisting) stop() (over <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.timer.Stop() // if it has fired, due has begun a listing before, or finds that r has ended
	if r.over == nil {
		return session.ClosedChan
	}
	return r.over
}

// wait returns the time from the reply to a listing to the next request for one.
//
// The blocker becomes the first when ahead-1 contenders have left, and stays the first for one
// handoff. It is unknown how much of the first contender's handoff was over at the last listing. So
// the blocker becomes the first after ahead-2 handoffs at the earliest, and after ahead-1 at the
// latest. The next listing is planned a little before that latest time: by half a round trip, or by
// a quarter of a handoff if that is longer. So the listing is not late if handoffs are a little
// faster than estimated. If it is too early, another listing follows after one round trip, and the
// blocker is the first then. If no contender had left between the last two listings, the next
// listing comes sooner than the speed suggests, because several contenders may leave at once. But
// each contender ahead takes at least one round trip.
func (r *relisting) wait() time.Duration {
	gap := r.each*time.Duration(r.ahead-1) - max(r.trip/2, r.each/4)
	if r.still {
		gap = max(r.each/2, r.trip*time.Duration(r.ahead-1)-r.trip/4)
	}
	r.took = max(gap, r.trip)
	return r.took - r.trip
}

// left records the number of contenders ahead at a new listing.
func (r *relisting) left(ahead int) {
	r.spent += r.took
	if r.still = ahead >= r.ahead; r.still {
		r.each += r.each / 2
		return
	}
	r.gone += r.ahead - ahead
	r.ahead = ahead
	r.each = max(r.spent/time.Duration(r.gone+1), r.trip) // +1, because one more may be about to leave: too early is better than too late
}
