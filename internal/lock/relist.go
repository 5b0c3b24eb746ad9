package lock

// This file lists the line during a wait, so that a contender's turn comes after one round trip
// instead of two. The wait itself is in acquire.go.

import (
	"context"
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

// A relisting is a listing of the line while a contender waits for the deletion of its blocker, the
// nearest of several contenders ahead. If it shows no other contender ahead, the contender is the
// first after that deletion, and needs no other request. So the handoff takes one round trip instead
// of two.
//
// The listing may be made at any time. If it contains the contender, it is newer than the contender's
// create, so it also contains every contender that arrived earlier and has not left. In a Settled
// line, no contender arrives ahead of an existing contender. If the only contender ahead in the
// listing is not the blocker, it may leave later than the blocker. Then the listing proves nothing.
//
// A watch on the line would show the same, but each release would send an event to every waiter. A
// waiter estimates instead when the blocker will be the first in the line, and lists the line then.
// A wrong estimate costs time, and nothing else.

// listMeanwhile is called when p.relist fires. It computes the time of the listing again, because
// other waiters may have measured a shorter trip or handoff. If that time has come, it lists the
// line. If the blocker is deleted during the listing, p still waits for the reply, because the reply
// to a new listing would come later. After a failed listing, p makes no other.
func (p *Place) listMeanwhile(ctx context.Context) {
	l, m := p.Line, p.Line.Manager
	p.trip, p.each = time.Duration(l.trip.Load()), min(p.each, l.handoff())
	if early := p.early(); early > 0 {
		p.relist = time.After(early)
		return
	}
	p.relist = nil
	p.lists--
	start := time.Now()
	until, stop := m.Until(ctx, m.Closing)
	defer stop()
	ahead, err := p.list(until)
	settled := err == nil && ordered(l.contenders(p.roll))
	p.roll = nil
	switch {
	case ctx.Err() != nil:
		p.relist = time.After(0) // for the next Take
		return
	case !settled: // if our znode is deleted, our watch reports that
		return
	}
	p.trip = l.took(time.Since(start))
	blocked := len(ahead) > 0 && session.ChildPath(l.Dir, ahead[len(ahead)-1].Name) == p.blocker
	p.alone = len(ahead) == 0 || len(ahead) == 1 && blocked
	if !p.alone && blocked && p.lists > 0 {
		p.left(len(ahead))
		p.since = time.Now()
		p.relist = time.After(p.early())
	}
}

// The method `early` returns the time until the next call of listMeanwhile, or 0 if it is time to
// list the line.
func (p *Place) early() time.Duration {
	left := p.untilListing() - time.Since(p.since)
	return max(left/2, min(left, p.trip/2), 0)
}

// untilListing returns the time from the reply to one listing to the request for the next listing.
//
// At the last listing, an unknown part of the first contender's handoff was over. So the blocker
// becomes the first after ahead-2 to ahead-1 handoffs, and stays the first for one more. The next
// listing is planned a little before the latest time: half a round trip, or a quarter of a handoff
// if that is longer. So it is not late if handoffs are a little faster than estimated. If it is too
// early, another listing follows one round trip later.
func (p *Place) untilListing() time.Duration {
	return max(p.each*time.Duration(p.ahead-1)-max(p.trip/2, p.each/4)-p.trip, 0)
}

// The method `left` is called after a new listing, with the number of contenders ahead. It
// estimates the field `each` again.
func (p *Place) left(ahead int) {
	if ahead >= p.ahead {
		p.each += p.each / 2
		return
	}
	p.ahead = ahead
	p.each = max(time.Since(p.start)/time.Duration(p.first-ahead+1), p.trip) // +1, because another contender may be about to leave: an early listing is better than a late one
}
