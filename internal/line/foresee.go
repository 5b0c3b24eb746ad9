package line

import (
	"context"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// foresee has the line be listed now and then while a waits in it for the one just ahead,
// if others are ahead of that one. When a listing shows that these have gone, the event of
// that one's deletion is all that a needs to know: the hand-over takes one round trip, and
// otherwise the one of a listing more.
//
// That could be told by a watch too, but then each release would be told to one who
// cannot go on yet. So nobody is told anything, and the line is listed at the times at
// which a will probably be the next but for one. What comes of it is an entry in v:
// whether it comes at a good time, in time, or at all, is a matter of speed alone.
//
// Of those who wait in one session the first alone foresees its turn: ten thousand must not
// list the line all the time, and each knows what the others have been told. When the turn of
// the first has come the next begins, and knows how fast the line went for that one.
func (v *view) foresee(ctx context.Context, a *seer, trip time.Duration) {
	if trip < foreseeTrip {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	a.ctx = ctx
	v.tripLocked(trip)
	i, _ := slices.BinarySearchFunc(v.seers, a, byNumber)
	v.seers = slices.Insert(v.seers, i, a)
	if i == 0 {
		v.endForesightLocked()
		v.foreseeLocked()
	}
}

// foreseen is the end of foresee, and does not wait: the listing under way then, if there
// is one, is in the view when told is closed.
func (v *view) foreseen(a *seer) (told <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a.ctx == nil {
		return session.ClosedChan
	}
	a.ctx = nil
	i := slices.Index(v.seers, a) // of a directory that is made anew another may have its number
	if i > 0 {
		v.seers = slices.Delete(v.seers, i, i+1)
		return session.ClosedChan
	}
	v.seers[0], v.seers = nil, v.seers[1:]
	return v.endForesightLocked()
}

// foreseeNext has the first of those who are left foresee its turn, when another's has come, or
// that has left: then v shows who is ahead.
func (v *view) foreseeNext() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.foresight == nil {
		v.foreseeLocked()
	}
}

// tripLocked is told how long a look at the line took, or to enter it, which may have taken
// several round trips, or have waited for others.
func (v *view) tripLocked(took time.Duration) {
	if v.trip == 0 || took < v.trip {
		v.trip = took
	}
}

// endForesightLocked ends that of whoever has it.
func (v *view) endForesightLocked() (told <-chan struct{}) {
	s := v.foresight
	if s == nil {
		return session.ClosedChan
	}
	v.foresight = nil
	v.each = time.Since(s.since) / time.Duration(s.ahead)
	if close(s.over); s.begin.Stop() {
		close(s.told)
	}
	return s.told
}

// foreseeLocked has the first of v.seers foresee its turn, where nobody does.
func (v *view) foreseeLocked() {
	if len(v.seers) == 0 {
		return
	}
	a := v.seers[0]
	p := pace{trip: v.trip, each: v.each, ahead: v.placeLocked(a.dir, a.me)}
	if p.ahead < 2 {
		return
	}
	if p.each == 0 { // not known: a trip at least, as the next one must be told, and must let go
		p.each = v.trip + v.trip/letPassPart
	}
	ctx, dir, me := a.ctx, a.dir, a.me // a is another's to write when it is no seer any more
	s := &foresight{since: time.Now(), ahead: p.ahead, over: make(chan struct{}), told: make(chan struct{})}
	s.begin = time.AfterFunc(p.wait(), func() {
		v.inc.Manager.Spawn(func() {
			defer close(s.told)
			v.listOften(ctx, s.over, dir, me, p, a)
		})
	})
	v.foresight = s
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

// listOften lists the line as often as p says, until at most one is ahead of me, or over
// is closed, or ctx ends, or the session. A listing that fails ends it too: then me lists
// the line when the one ahead has gone.
func (v *view) listOften(ctx context.Context, over <-chan struct{}, dir int64, me Child, p pace, a *seer) {
	for !session.IsClosed(over) && a.listings.Add(-1) >= 0 {
		start := time.Now()
		asked, err := v.askAhead(ctx, dir, me)
		if !asked && err == nil {
			var r *session.Roll
			if r, err = v.inc.Roll(ctx, v.key.dir); err == nil {
				v.update(ranksOf(r, a.strict, v.bases()))
			}
		}
		if err != nil {
			return
		}
		v.mu.Lock()
		v.tripLocked(time.Since(start))
		p.trip = v.trip
		v.mu.Unlock()
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
