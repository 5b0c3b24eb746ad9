package line

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// foresee lists the line now and then while me, of which v is told, waits in dir for
// the one just ahead, if others are ahead of that one. When a listing shows that these
// have gone, the event of that one's deletion is all that me needs to know: the
// hand-over takes one round trip, and otherwise the one of a listing more.
//
// That could be told by a watch too, but then each release would be told to one who
// cannot go on yet. So nobody is told anything, and me asks instead, at the times at
// which it will probably be the next but for one. What comes of it is an entry in v:
// whether it comes at a good time, in time, or at all, is a matter of speed alone.
//
// trip is how long a round trip takes, and budget is how many listings me may still
// make. stop ends it, and does not wait: the listing under way then, if there is one, is
// in v when told is closed.
func (v *view) foresee(ctx context.Context, dir int64, me Child, strict bool, trip time.Duration, budget *atomic.Int32) (stop func() (told <-chan struct{})) {
	each := trip + trip/letPassPart // at least: the next one must be told, and must let go
	p := pace{trip: trip, each: each, ahead: v.place(dir, me, Child{})}
	if p.ahead < 2 || trip < foreseeTrip || !v.single() {
		return func() <-chan struct{} { return session.ClosedChan }
	}
	over, told := make(chan struct{}), make(chan struct{})
	start := func() {
		v.inc.Manager.Spawn(func() {
			defer close(told)
			v.listOften(ctx, over, dir, me, strict, p, budget)
		})
	}
	begun := func() bool { return true }
	if first := p.wait(); first == 0 {
		start()
	} else {
		begin := time.AfterFunc(first, start)
		begun = func() bool { return !begin.Stop() }
	}
	return func() <-chan struct{} {
		close(over)
		if !begun() {
			close(told)
		}
		return told
	}
}

const (
	// Where servers answer a create sooner than this, a listing is not worth foreseeing.
	// A server that forces its log to disk takes longer: and what comes behind a write of
	// another waits for that, so a listing that is made in time saves more than its trip.
	foreseeTrip = 200 * time.Microsecond

	// So many listings one wait may cost, whoever leaves the line meanwhile. With them
	// holds of 20 round trips are foreseen; behind a longer one a round trip more does
	// not count.
	foreseeMost = 8
)

// single reports whether there is one waiter only. Of several each knows what the
// others have been told, and ten thousand must not list the line all the time.
func (v *view) single() bool {
	views.Lock()
	defer views.Unlock()
	return v.waiters == 1
}

// listOften lists the line as often as p says, until at most one is ahead of me, or over
// is closed, or ctx ends, or the session. A listing that fails ends it too: then me lists
// the line when the one ahead has gone.
func (v *view) listOften(ctx context.Context, over <-chan struct{}, dir int64, me Child, strict bool, p pace, budget *atomic.Int32) {
	for !session.IsClosed(over) && budget.Add(-1) >= 0 {
		r, err := v.inc.Roll(ctx, v.key.dir)
		if err != nil {
			return
		}
		v.update(ranksOf(r, strict, v.bases()))
		if p.left(v.place(dir, me, Child{})); p.ahead < 2 {
			return // or it is not there any more
		}
		wait := p.wait()
		if wait == 0 {
			continue // Roll finds out whether ctx or the session has ended
		}
		// Whichever is picked of several that are ready: a listing more does no harm.
		select {
		case <-time.After(wait):
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-v.inc.Ctx.Done():
			return
		}
	}
}

// A pace is how fast a line goes on, as far as its listings tell.
type pace struct {
	trip  time.Duration // of a listing; no hand-over takes less
	each  time.Duration // how long a hand-over takes
	ahead int           // at the last listing
	gone  int           // how many have gone since the first listing
	since time.Duration // from the first listing to the last
	still bool          // the last listing has shown no fewer
	took  time.Duration // the last wait
}

// wait returns how long to wait after the answer to a listing, before the next is sent.
//
// The one just ahead is the first for as long as a hand-over takes, which is a little
// longer than a round trip at least. So the next listing is for a round trip before
// that one must be the first, or for a quarter of a hand-over if those take longer: as
// listings follow each other in one round trip, one of those that then follow falls
// into that time, although the pace of the line is known roughly only. Where nobody
// has gone, the next is sooner than by the pace so far, as more may have gone at once,
// but each of those ahead takes one round trip at least. A listing begins one round
// trip after the last.
func (p *pace) wait() time.Duration {
	gap := p.each*time.Duration(p.ahead-1) - max(p.trip, p.each/4)
	if p.still {
		gap = max(p.each/2, p.trip*time.Duration(p.ahead-1)-p.trip/4)
	}
	p.took = max(gap, p.trip)
	return p.took - p.trip
}

// left is told how many are ahead at the next listing.
func (p *pace) left(ahead int) {
	p.since += p.took
	if p.still = ahead >= p.ahead; p.still {
		p.each += p.each / 2
		return
	}
	p.gone += p.ahead - ahead
	p.ahead = ahead
	p.each = max(p.since/time.Duration(p.gone+1), p.trip) // one more may be about to go: rather too soon than too late
}
