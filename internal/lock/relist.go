package lock

import (
	"context"
	"time"
)

// A relisting lists the line again while its contender waits behind several others. The contender
// waits for the deletion of one znode, its blocker. If a listing shows no contender ahead except
// the blocker, the contender is the first after that deletion, and needs no other request. So the
// handoff takes one round trip instead of two. The time of a listing is the business of pace.
//
// The listing may be made at any time. If it contains the contender, it is newer than the
// contender's create. So it contains all contenders that came before and have not left. In a
// Settled line, no other can arrive ahead, so their number only decreases. If the only contender
// ahead is not the blocker, it may outlast the blocker, so the listing proves nothing.
//
// A watch on the line would show the same, but each release would then notify every waiter.
// Therefore the line is listed when the blocker is probably the first. The time is an estimate
// from the speed of the line so far. A wrong estimate only costs time.
type relisting struct {
	claim   *Claim
	me      Child
	blocker string
	start   time.Time
	since   time.Time // the start, or the reply to the last listing
	ahead   int       // the number of contenders ahead at the start
	left    int       // number of listings that may still be made
	alone   bool      // a listing has shown no contender ahead except, perhaps, the blocker
	pace    pace
	poll    *poll
}

// relist begins to list the line for c, which waits behind blocker, the last of several.
func (c *Claim) relist(blocker string, ahead, left int, trip time.Duration) *relisting {
	s := c.Line.speed
	now := time.Now()
	r := &relisting{claim: c, me: c.Child, blocker: blocker, start: now, since: now, ahead: ahead, left: left}
	r.pace = pace{trip: s.took(trip), each: s.handover(), ahead: ahead}
	r.poll = newPoll(c.Incarnation.Manager, r.early(), r.due)
	return r
}

// due lists the line if it is time. Other waiters may have found by now that the line is faster.
func (r *relisting) due(*poll) (next time.Duration) {
	s := r.claim.Line.speed
	r.pace.trip, r.pace.each = s.trips(), min(r.pace.each, s.handover())
	if early := r.early(); early > 0 {
		return early
	}
	return r.list()
}

// early returns the time after which due must check again; 0 if it is time to list the line.
func (r *relisting) early() time.Duration {
	left := r.pace.wait() - time.Since(r.since)
	return max(left/2, min(left, r.pace.trip/2), 0)
}

// list makes one listing, which other waiters of the session may share. A failed listing is the
// last. The request does not end with the contender's ctx: see end.
func (r *relisting) list() (next time.Duration) {
	c := r.claim
	r.left--
	start := time.Now()
	roll, err := c.Incarnation.Roll(c.Incarnation.Ctx, c.Line.Dir)
	if err != nil {
		return never
	}
	r.pace.trip = c.Line.speed.took(time.Since(start))
	rk := c.Line.ranks(roll)
	ahead, there := rk.before(r.me)
	if !rk.sure || !there { // the order is unknown, or c is deleted, which its own watch reports
		return never
	}
	blocked := len(ahead) > 0 && ahead[len(ahead)-1].Name == r.blocker
	if r.alone = len(ahead) == 0 || len(ahead) == 1 && blocked; r.alone || !blocked {
		return never
	}
	if r.left == 0 {
		return never
	}
	r.pace.left(len(ahead))
	r.since = time.Now()
	return r.early()
}

// end is called when the blocker is deleted. It reports whether the contender is the first, if
// its own znode exists. It waits for a listing in flight, because the reply to that comes before
// the reply to a new listing.
func (r *relisting) end(ctx context.Context) (first bool) {
	over := r.poll.end()
	r.claim.Line.speed.handed(time.Since(r.start), r.ahead)
	// If both channels are ready, either result is right: with false, the caller lists the line,
	// and that request returns the error of ctx.
	select {
	case <-over:
		return r.alone
	case <-ctx.Done():
		return false
	}
}
