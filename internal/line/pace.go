package line

import (
	"sync/atomic"
	"time"
)

const (
	// If servers answer a create sooner than this, the listing after the deletion costs little.
	// A server that forces its log to disk takes longer. Requests behind another client's write
	// wait for that, so a listing that is made in time saves more than its own round trip.
	relistTrip = 200 * time.Microsecond

	// One wait may cost so many listings, whatever happens in the line. They are enough for holds
	// of 20 round trips; after a longer hold, one more round trip does not matter.
	maxRelists = 8
)

// A speed says how fast a line is, by the waits of its contenders through one Line.
type speed struct {
	trip atomic.Int64 // the shortest time that a listing has taken, or to enter
	each atomic.Int64 // how long a hand-over took, in the last wait; 0 if that is not known
}

// took notes the duration of a listing, or of a create and a listing, which may have waited for
// others. It returns the shortest one so far, about one round trip.
func (s *speed) took(t time.Duration) time.Duration {
	if trip := s.trip.Load(); trip == 0 || int64(t) < trip {
		s.trip.Store(int64(max(t, relistTrip))) // of two at once either may stay
	}
	return s.trips()
}

func (s *speed) trips() time.Duration { return time.Duration(s.trip.Load()) }

// handed notes that so many contenders have left one after the other within t.
func (s *speed) handed(t time.Duration, contenders int) {
	s.each.Store(int64(t) / int64(contenders))
}

// handover returns the duration of a hand-over. Before the first one it returns a round trip, and
// a little more for the next contender to unlock.
func (s *speed) handover() time.Duration {
	if each := s.each.Load(); each > 0 {
		return time.Duration(each)
	}
	return time.Duration(s.trip.Load() * 17 / 16)
}

// A pace says when a contender should list the line next, by what its listings have shown.
type pace struct {
	trip  time.Duration // of a listing; no hand-over takes less
	each  time.Duration // how long a hand-over takes
	ahead int           // at the last listing
	gone  int           // how many have left since the first listing
	since time.Duration // from the first listing to the last
	still bool          // the last listing has shown no fewer
	took  time.Duration // the last wait
}

// wait returns the duration from the answer to a listing to the next request for one.
//
// The blocker is the first for one hand-over, which takes a little longer than a round trip. The
// next listing is for one round trip before the blocker becomes the first, or for a quarter of a
// hand-over if that is longer. Listings follow each other in one round trip, so one of the next
// ones is in that interval, although the speed of the line is a guess. If no contender has left
// since the last listing, the next one is sooner than the speed suggests, because several may have
// left at once; but each contender ahead takes at least one round trip.
func (p *pace) wait() time.Duration {
	gap := p.each*time.Duration(p.ahead-1) - max(p.trip, p.each/4)
	if p.still {
		gap = max(p.each/2, p.trip*time.Duration(p.ahead-1)-p.trip/4)
	}
	p.took = max(gap, p.trip)
	return p.took - p.trip
}

// left notes how many contenders the next listing has shown ahead.
func (p *pace) left(ahead int) {
	p.since += p.took
	if p.still = ahead >= p.ahead; p.still {
		p.each += p.each / 2
		return
	}
	p.gone += p.ahead - ahead
	p.ahead = ahead
	p.each = max(p.since/time.Duration(p.gone+1), p.trip) // one more may be about to leave: too soon is better than too late
}
