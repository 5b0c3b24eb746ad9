package lock

// This file estimates when the next listing of a waiter is useful. It only affects speed.

import (
	"sync/atomic"
	"time"
)

const (
	// If servers answer a create sooner than this, the listing after the deletion costs little. A
	// server that forces its log to disk takes longer. Requests after another client's write wait
	// for that, so a listing that is made in time saves more than its own round trip.
	relistTrip = 200 * time.Microsecond

	// The most listings of one wait. They are enough for holds of 20 round trips. After a longer
	// hold, one more round trip does not matter.
	maxRelists = 8
)

// A speed records how fast a line is, from the waits of its contenders through one Line.
type speed struct {
	trip atomic.Int64 // the shortest duration of a listing, or of entering
	each atomic.Int64 // duration of a handoff in the last wait; 0 if unknown
}

// took records the duration of a listing, or of a create and a listing, which may have waited for
// others. It returns the shortest so far, about one round trip.
func (s *speed) took(t time.Duration) time.Duration {
	if trip := s.trip.Load(); trip == 0 || int64(t) < trip {
		s.trip.Store(int64(max(t, relistTrip))) // of two concurrent calls, either may win
	}
	return s.trips()
}

func (s *speed) trips() time.Duration { return time.Duration(s.trip.Load()) }

// handed records that so many contenders have left one after the other within t.
func (s *speed) handed(t time.Duration, contenders int) {
	s.each.Store(int64(t) / int64(contenders))
}

// handover returns the duration of a handoff. Before the first handoff, it returns a round trip
// and a little more, for the next contender to unlock.
func (s *speed) handover() time.Duration {
	if each := s.each.Load(); each > 0 {
		return time.Duration(each)
	}
	return time.Duration(s.trip.Load() * 17 / 16)
}

// A pace computes when a contender should list the line next, from its earlier listings.
type pace struct {
	trip  time.Duration // of a listing; no handoff takes less
	each  time.Duration // duration of a handoff
	ahead int           // at the last listing
	gone  int           // number of contenders that have left since the first listing
	since time.Duration // from the first listing to the last
	still bool          // at the last listing, no contender had left
	took  time.Duration // the last wait
}

// wait returns the time from the reply to a listing to the next request for one.
//
// The blocker becomes the first when ahead-1 contenders have left, and is that for one handoff. At the
// last listing, the first contender was somewhere in its handoff, so the time is known to one handoff
// only. The next listing is for half a round trip before the latest of these times, or for a quarter of
// a handoff if that is longer. So it is not late if handoffs are a little faster than estimated. If it
// is too early, the next one follows after one round trip, and the blocker is the first then. If no
// contender has left since the last listing, the next one is sooner than the speed suggests, because
// several may have left at once. But each contender ahead takes at least one round trip.
func (p *pace) wait() time.Duration {
	gap := p.each*time.Duration(p.ahead-1) - max(p.trip/2, p.each/4)
	if p.still {
		gap = max(p.each/2, p.trip*time.Duration(p.ahead-1)-p.trip/4)
	}
	p.took = max(gap, p.trip)
	return p.took - p.trip
}

// left records the number of contenders ahead at the next listing.
func (p *pace) left(ahead int) {
	p.since += p.took
	if p.still = ahead >= p.ahead; p.still {
		p.each += p.each / 2
		return
	}
	p.gone += p.ahead - ahead
	p.ahead = ahead
	p.each = max(p.since/time.Duration(p.gone+1), p.trip) // one more may be about to leave: too early is better than too late
}
