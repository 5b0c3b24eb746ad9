package lock

// This file makes a contender wait, from the create of its znode until its turn comes. If the
// session ends, the wait continues in a new session. The hold that follows is in grant.go.

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A Place is a place in a line, until its turn comes. It belongs to no goroutine: one goroutine
// after another may call Take for the same place.
type Place struct {
	Line   *Line
	Mode   HoldMode
	Behind *Ahead // where Take records the contenders ahead; nil if Take makes no record
	try    bool   // p is used by Try, which waits only for a contender that may have kept its place

	Interrupts [2]<-chan struct{} // if one is closed during the wait for a contender, Take returns ErrInterrupted; another Take continues the wait

	claim  *Claim       // nil while no znode of p is in the line
	roll   *znodes.Roll // a listing of the line, if `acquire` has not used it yet
	turned *Claim       // the claim, if its turn has come before: then it defers to no other
	// While p waits for the deletion of a contender ahead, the blocker:
	blocker string           // path of the blocker's znode; "" if p has no blocker
	gone    *conn.Watch      // the watch on the blocker, if p has joined this watch and it is set; otherwise nil
	own     *conn.Watch      // the watch on p's own znode; like `gone`, it is set; see Claim.watch
	alone   bool             // no other contender blocks p, now or later
	limit   <-chan time.Time // fires when a Try stops waiting; nil for other callers
	look    <-chan time.Time // fires when Behind reads the first contender; nil without Behind
	start   time.Time        // of the wait

	// For the relistings during that wait:
	relist <-chan time.Time // fires when the next listing may be due; nil if such listings are useless or not needed
	lists  int              // number of listings that p may still make
	trip   time.Duration    // duration of Enter or of a listing, whichever was shorter: about one round trip
	each   time.Duration    // duration of a handoff
	since  time.Time        // time of the last reply to a listing; before the first reply, `start`
	first  int              // number of contenders ahead at the start; 0 if no listing was planned
	ahead  int              // number of contenders ahead at the last listing
}

var (
	ErrInterrupted = errors.New("zsync: the wait is interrupted")    // one of Place.Interrupts has ended a Take
	errDeferred    = errors.New("zsync: others go before")           // a contender whose turn has come lets others go first
	errBlocked     = errors.New("zsync: another contender is ahead") // a contender blocks a caller that does not wait
)

const (
	// A waiter lists the line in advance only if its create has taken at least relistTrip. With
	// faster servers, a listing after the deletion of the blocker costs little. Slower servers sync
	// their log to disk, and requests wait for that. So a listing in advance saves more than its own
	// round trip.
	relistTrip = 200 * time.Microsecond

	// maxRelists is the largest number of listings in one wait. After a long hold, one more round
	// trip does not matter.
	maxRelists = 8
)

// The method `acquire` creates the znode of p and waits for the turn of p, in one session. (Line
// describes the steps.) If ctx ends, a later call of `acquire` continues the wait.
//
// It is our turn if our znode exists and no contender blocks us. Both must be true at the same
// moment, on one server, and not before the last event that we received. A listing can show both.
// After the deletion of the only blocker, Claim.standsAfter shows both without a listing. From that
// moment on, no contender can get ahead of us, unless Line.Blocker allows it. So the turn lasts while
// our znode exists and the session is alive.
func (p *Place) acquire(ctx context.Context, inc *session.Incarnation) (*Claim, error) {
	if p.claim == nil { // Steps 1 and 2.
		p.Behind.Forget() // the record may describe the wait of p's previous znode
		start := time.Now()
		var err error
		if p.claim, p.roll, err = p.Line.Enter(ctx, inc, p.Mode); err != nil {
			return nil, err
		}
		if p.trip = time.Since(start); p.trip >= relistTrip {
			p.lists = maxRelists
		}
	}
	c := p.claim
	if ctx.Err() != nil { // even if the turn has come, the caller no longer wants it
		return nil, session.CtxErr(ctx)
	}
	for waits := p.blocker != ""; ; waits = false {
		if !waits {
			if turn, err := p.isTurn(ctx); turn || err != nil && p.blocker == "" { // if a relisting fails, the wait goes on
				return c, err
			}
		}
		relist, err := p.awaitGone(ctx) // Step 4.
		if err != nil {
			return nil, err
		}
		if !relist {
			p.passed()
			// A line with Defers is always listed again: the claim may have to defer to a contender behind
			// it.
			if p.alone && c.Line.Defers == nil { // Step 5.
				return c, c.standsAfter(ctx)
			}
		}
	}
}

// The method `isTurn` lists the line, and reports whether it is p's turn (step 3). If not, p has a blocker.
// It may already have one: then this is a relisting.
func (p *Place) isTurn(ctx context.Context) (bool, error) {
	l, waits := p.Line, p.blocker != ""
	ahead, err := p.list(ctx)
	if err != nil {
		p.roll = nil
		return false, err
	}
	blocker, alone := l.Blocker(p.Mode, ahead)
	switch {
	case blocker == nil:
		p.passed()
		if l.Defers != nil && p.turned != p.claim && l.Defers(p.claim, p.roll.Names()) {
			return false, errDeferred
		}
		p.turned = p.claim
		return true, nil
	case p.try && (p.limit != nil || !l.onlyKept(p.Mode, ahead)):
		return false, errBlocked
	}
	p.roll = nil // frees the memory of the listing during the wait
	if path := znodes.ChildPath(l.Dir, blocker.Name); path != p.blocker {
		p.unwatch()
		p.blocker = path
	}
	p.alone = alone
	if !waits {
		p.start = time.Now()
		if p.try {
			p.limit = time.After(RecallTime)
		}
	}
	if p.Behind != nil {
		if changed := p.Behind.Set(l.Dir, ahead[0].Name, len(ahead)); changed || !waits {
			p.look = time.After(max(lookAfter-time.Since(p.start), 0))
		}
	}
	if l.Settled && !alone {
		p.plan(len(ahead))
	}
	return false, nil
}

// The method `list` returns the contenders ahead of p, in order. The first call uses the listing that was
// made with the create, a later call makes a new one. If p is not in it, the error is ErrVanished.
//
// Only names are compared. If our znode was deleted, another client may have created a copy. While our
// session counts as alive, the copy blocks other contenders, just as our znode did. The method
// Claim.standsBy compares the owners.
func (p *Place) list(ctx context.Context) (ahead []Child, err error) {
	c, start := p.claim, time.Now()
	if p.roll == nil {
		until, stop := c.Line.Manager.Until(ctx, c.Line.Manager.Closing)
		defer stop()
		if p.roll, err = znodes.GetRoll(until, c.Incarnation, c.Line.Dir); err != nil && !session.IsNoNode(err) {
			return nil, cmp.Or(c.Line.Manager.Failure(), err) // NoNode: the parent and our znode are deleted, so our znode is not in the empty listing
		}
		p.trip = min(p.trip, time.Since(start))
	}
	all, me := p.Line.contenders(p.roll), c.Child
	if _, _, tell := split(all); !tell || me.Exhausted() {
		if all, err = p.Line.inOrder(ctx, c.Incarnation, all); err != nil {
			return nil, err
		}
	}
	i := slices.IndexFunc(all, func(o Child) bool { return o.Seq == me.Seq && o.Name == me.Name })
	if i < 0 {
		return nil, session.ErrVanished
	}
	return all[:i], nil
}

// awaitGone waits until the blocker is deleted, or returns true if p must list the line before that. If
// p's own znode is deleted, the error is ErrVanished, because the wait is then useless. After the end of
// ctx, awaitGone can be called again.
//
// If several cases are ready, any choice is right. After the deletion of the blocker, Claim.standsAfter
// still checks p's own watch. After another event, the claim is not granted: it leaves the line or
// continues to wait.
func (p *Place) awaitGone(ctx context.Context) (relist bool, err error) {
	inc := p.claim.Incarnation
	for {
		if p.gone == nil {
			if gone, err := p.watch(ctx); gone || err != nil {
				p.unwatch() // after an error, perhaps the watch is not set; the next call sets it
				return false, err
			}
		}
		if session.IsClosed(p.Interrupts[0]) { // before all others, because a caller who then leaves needs no other request
			return false, ErrInterrupted
		}
		select {
		case <-p.gone.Fired:
			if session.IsClosed(p.Interrupts[0]) {
				continue
			}
			deleted := p.gone.Event == zk.EventNodeDeleted
			p.unwatch()
			if deleted {
				return false, nil
			}
		case <-p.own.Fired:
			p.unwatch() // now `watch` reads both znodes
		case <-ctx.Done():
			return false, session.CtxErr(ctx)
		case <-p.Interrupts[0]:
			return false, ErrInterrupted
		case <-p.Interrupts[1]:
			if inc.Ctx.Err() != nil { // enter the line again first
				return false, session.ErrEnded
			}
			return false, ErrInterrupted
		case <-inc.Ctx.Done():
			return false, session.ErrEnded
		case <-inc.Manager.Closing: // Close has begun, but the session may live until the program's functions have returned
			return false, inc.Manager.Failure()
		case <-p.look:
			p.look = time.After(min(time.Since(p.start), lookEvery))
			// The read ends when the blocker is deleted, so it never delays the turn.
			if p.Behind.Look(ctx, inc, p.gone.Fired, inc.Manager.Closing) && !session.IsClosed(p.Interrupts[0]) {
				return true, nil // the first contender has left
			}
		case <-p.relist:
			p.each = min(p.each, p.handoff()) // other waiters may have measured a shorter handoff
			if early := p.early(); early > 0 {
				p.relist = time.After(early)
				continue
			}
			p.relist = nil
			return true, nil
		case <-p.limit:
			return false, errBlocked
		}
	}
}

// The method `watch` sets the watches on the blocker and on p's own znode, in one round trip. The
// result `gone` reports whether the blocker was deleted already.
func (p *Place) watch(ctx context.Context) (gone bool, err error) {
	c, inc, watches := p.claim, p.claim.Incarnation, p.claim.Incarnation.Watches
	p.gone = watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: p.blocker})
	p.blocker = p.gone.Key.Path // all waits for this znode share one string
	p.own = c.watch()
	paths := []string{p.blocker, c.Path}
	if watches.State(p.own).Ours {
		paths = paths[:1]
	}
	looks, err := inc.LookAtAll(ctx, paths...)
	if err == nil && len(looks) > 1 {
		err = c.standsBy(looks[1].Val.Stat, looks[1].Err)
	}
	switch {
	case err != nil:
		return false, err
	case session.IsNoNode(looks[0].Err):
		return true, nil
	}
	return false, looks[0].Err
}

// The method `unwatch` gives up the watch on the blocker. The claim keeps the watch on its own
// znode.
func (p *Place) unwatch() {
	if p.gone != nil {
		p.claim.Incarnation.Watches.Leave(p.gone)
		p.gone = nil
	}
}

// The method `passed` is called when no blocker is left. It measures the handoffs of the wait.
func (p *Place) passed() {
	if p.first > 0 {
		p.Line.each.Store(int64(time.Since(p.start)) / int64(p.first))
	}
	p.stop()
}

func (p *Place) stop() {
	p.unwatch()
	p.blocker, p.look, p.relist, p.first = "", nil, nil, 0
}

// A relisting is a listing of the line while a contender waits for the deletion of its blocker, the
// nearest of several contenders ahead. If it shows no other contender ahead, the contender is the
// first after that deletion, and needs no other request. So the handoff takes one round trip instead
// of two.
//
// The listing may be made at any time. If it contains the contender, it is newer than the contender's
// create, so it also contains every contender that arrived earlier and has not left. In a Settled
// line, no contender arrives ahead of an existing contender. If the blocker is deleted during the
// listing, the contender still waits for the reply, because the reply to a new listing would come later.
//
// A watch on the line would show the same, but each release would send an event to every waiter. A
// waiter estimates instead when the blocker will be the first in the line, and lists the line then.
// A wrong estimate costs time, and nothing else.

// The method `plan` plans the next relisting, after a listing that has shown this number of contenders
// ahead.
func (p *Place) plan(ahead int) {
	if p.lists == 0 {
		return
	}
	if p.first == 0 {
		p.first, p.each = ahead, p.handoff()
	} else {
		mean := time.Since(p.start) / time.Duration(max(p.first-ahead, 0)+1) // +1, because another contender may be about to leave: an early listing is better than a late one
		p.each = min(mean, 2*p.each)                                         // after a long hold, the line may go faster again
	}
	p.lists--
	p.ahead, p.since, p.each = ahead, time.Now(), max(p.each, p.trip)
	p.relist = time.After(p.early())
}

// The method `early` returns the time for which p.relist waits, or 0 if it is time to list the
// line.
//
// At the last listing, an unknown part of the first contender's handoff was over. So the blocker
// becomes the first after ahead-2 to ahead-1 handoffs, and stays the first for one more. The next
// listing is planned a little before the latest time: half a round trip, or a quarter of a handoff
// if that is longer. So it is not late if handoffs are a little faster than estimated. If it is too
// early, another listing follows.
func (p *Place) early() time.Duration {
	left := p.each*time.Duration(p.ahead-1) - max(p.trip/2, p.each/4) - p.trip - time.Since(p.since)
	return max(left/2, min(left, p.trip/2), 0)
}

// The method `handoff` returns an estimate of the time from the turn of one contender to the turn
// of the next. Before the first measurement, the estimate is 17/16 of a round trip. The sixteenth
// is for the holder's work.
func (p *Place) handoff() time.Duration {
	return cmp.Or(time.Duration(p.Line.each.Load()), p.trip*17/16)
}

// The method `contend` calls `acquire`, and then checks that the session is alive. If `holds` is true,
// it also takes a stake. If ctx ends, or after ErrInterrupted, p may keep its place. After any other
// error, it has none.
func (p *Place) contend(ctx context.Context, inc *session.Incarnation, holds bool) (*Claim, error) {
	c, err := p.acquire(ctx, inc)
	if err == nil && !inc.Alive() {
		err = session.ErrEnded
	}
	if err == nil && holds {
		err = c.TakeStake(ctx)
	}
	switch {
	case err == nil:
		p.claim, p.roll = nil, nil
		return c, nil
	case errors.Is(err, ErrInterrupted), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		p.roll = nil // at the next call, the listing may be too old
	default:
		p.withdraw(err)
	}
	return nil, err
}

// The method `withdraw` removes p from the line. err is the reason.
func (p *Place) withdraw(err error) {
	c := p.claim
	if c == nil {
		return
	}
	p.stop()
	p.claim, p.roll = nil, nil
	if errors.Is(err, session.ErrVanished) {
		c.disown()
	} else {
		c.Leave().Await(session.Grace)
	}
}

// Take waits until it is the turn of p. If the session ends or p's znode is deleted, p enters the
// line again. If ctx ends first, or after ErrInterrupted, p may still be in the line: another Take
// continues the wait, and Leave removes p. After any other error, no znode of p is in the line.
func (p *Place) Take(ctx context.Context) (c *Claim, err error) {
	m := p.Line.Manager
	m.Waiters.Add(1)
	defer m.Waiters.Add(-1)
	take := func(inc *session.Incarnation) (err error) {
		for {
			c, err = p.contend(ctx, inc, true)
			if errors.Is(err, session.ErrEnded) && m.Failure() == nil {
				p.Behind.Forget() // without a session, p has no place
			}
			if !errors.Is(err, session.ErrVanished) && !errors.Is(err, errDeferred) {
				return err
			}
			// The contender has deferred to others, or another client has deleted its znode. The
			// caller holds nothing yet. So the contender enters the line again, at the end.
		}
	}
	err = session.ErrEnded
	if p.claim != nil {
		err = take(p.claim.Incarnation)
	}
	if errors.Is(err, session.ErrEnded) {
		err = m.During(ctx, take)
	}
	return c, err
}

// Leave removes p from the line, if it is still there: after an error of Take.
func (p *Place) Leave() { p.withdraw(nil) }

// Contend waits for a turn within one session, for a caller that will hold nothing. If ctx ends,
// Contend leaves no znode in the line.
func (l *Line) Contend(ctx context.Context, inc *session.Incarnation) (*Claim, error) {
	p := Place{Line: l}
	c, err := p.contend(ctx, inc, false)
	p.withdraw(nil)
	return c, err
}

// RecallTime is the longest wait of Try for a contender that perhaps only keeps its place. It is long
// enough for that process to learn of our create, and for us to learn of the deletion.
const RecallTime = 500 * time.Millisecond

// Try returns a claim if its turn comes at once. If not, Try leaves no znode in the line, and returns
// nil. Try first lists the line, and enters it only if no contender would block the caller, or only one
// that perhaps only keeps its place. Then the create makes that contender's process delete the kept znode
// (Claim.recall), and Try waits for that. After RecallTime, a goroutine holds the lock, or that process
// does not react.
func (l *Line) Try(ctx context.Context, mode HoldMode) (won *Claim, err error) {
	err = l.Manager.During(ctx, func(inc *session.Incarnation) error {
		// Without the sync of NamesFresh, a lagging server could show a contender that had left before
		// the call.
		names, err := inc.NamesFresh(ctx, l.Dir)
		if err == nil && l.Strict {
			err = unmixed(l.Bases, names, nil)
		}
		ahead := ParseChildren(names, l.Bases...)
		if blocker, _ := l.Blocker(mode, ahead); err != nil || blocker != nil && !l.onlyKept(mode, ahead) {
			return err
		}
		p := Place{Line: l, Mode: mode, try: true}
		won, err = p.contend(ctx, inc, true)
		p.withdraw(nil)
		if errors.Is(err, errBlocked) || errors.Is(err, session.ErrVanished) {
			return nil
		}
		return err
	})
	return won, err
}

// onlyKept reports whether the first contender ahead perhaps only keeps its place, and no other blocks a
// contender in `mode`.
func (l *Line) onlyKept(mode HoldMode, ahead []Child) bool {
	other, _ := l.Blocker(mode, ahead[1:])
	return other == nil && MayBeKept(ahead[0].Name)
}

// Recall is called with the name of the first contender. If this contender only keeps its place,
// Recall makes its process delete the znode, and returns true. If a goroutine holds the lock,
// Recall returns false, and the caller may write RevokeMessage to the znode. The message never asks a
// later holder: another contender has come, so the place is not kept after the present hold.
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
