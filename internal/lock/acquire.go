package lock

// This file makes a contender wait, from the create of its znode until its turn comes. If the
// session ends, the wait continues in a new session. The hold that follows is in grant.go.

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// A Place is a place in a line, until its turn comes. It belongs to no goroutine: one goroutine
// after another may call Take for the same place.
type Place struct {
	Line   *Line
	Mode   HoldMode
	Behind *Ahead // where Take records the contenders ahead; nil if Take makes no record
	Waits  func() // called each time that p begins to wait for a contender, if not nil
	try    bool   // p is used by Try, which waits only for a contender that may have kept its place

	claim *Claim        // nil while no znode of p is in the line
	roll  *session.Roll // a listing of the line, if `acquire` has not used it yet
	// While p waits for the deletion of a contender ahead, the blocker:
	blocker string           // path of the blocker's znode; "" if p has no blocker
	gone    *conn.Watch      // the watch on the blocker, if p has joined this watch and it is set; otherwise nil
	own     *conn.Watch      // the watch on p's own znode; like `gone`, it is set; see Claim.watch
	alone   bool             // no other contender blocks p, now or later
	limit   <-chan time.Time // fires when a Try stops waiting; nil for other callers
	look    <-chan time.Time // fires when Behind reads the first contender; nil without Behind
	pause   time.Duration    // between that read and the next

	// For the listings during that wait: see relist.go.
	relist <-chan time.Time // fires when the next listing may be due; nil if such listings are useless or not needed
	lists  int              // number of listings that p may still make
	trip   time.Duration    // duration of Enter, then of a listing: about one round trip
	each   time.Duration    // duration of a handoff
	start  time.Time        // of the wait
	since  time.Time        // time of the last reply to a listing; before the first reply, `start`
	first  int              // number of contenders ahead at the start; 0 if p has made no listing and plans none
	ahead  int              // number of contenders ahead at the last listing
}

var (
	errDeferred = errors.New("zsync: others go before")           // a contender whose turn has come lets others go first
	errBlocked  = errors.New("zsync: another contender is ahead") // a contender blocks a caller that does not wait
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
		p.trip, p.lists = time.Since(start), maxRelists
	}
	c := p.claim
	if ctx.Err() != nil { // even if the turn has come, the caller no longer wants it
		return nil, session.CtxErr(ctx)
	}
	for {
		if p.blocker == "" {
			ahead, err := p.list(ctx)
			if err != nil {
				return nil, err
			}
			blocker, alone := p.Line.Blocker(p.Mode, ahead) // Step 3.
			switch {
			case blocker == nil && c.Line.Defers != nil && c.Line.Defers(c.Child, p.roll.Names()):
				return nil, errDeferred
			case blocker == nil:
				return c, nil
			case p.try && (p.limit != nil || !onlyKept(ahead)):
				return nil, errBlocked
			}
			if p.Behind != nil {
				p.Behind.Set(c.Line.Dir, ahead[0].Name, len(ahead))
				p.look, p.pause = time.After(lookAfter), lookAfter
			}
			if p.Waits != nil {
				p.Waits()
			}
			if p.try {
				p.limit = time.After(RecallTime)
			}
			p.blocker, p.alone = session.ChildPath(c.Line.Dir, blocker.Name), alone
			settled := c.Line.Settled && ordered(c.Line.contenders(p.roll))
			p.roll = nil // frees the memory of the listing during the wait
			if !alone && !p.try && p.trip >= relistTrip && p.lists > 0 && settled {
				p.start = time.Now()
				p.first, p.ahead, p.since = len(ahead), len(ahead), p.start
				p.trip, p.each = p.Line.took(p.trip), p.Line.handoff()
				p.relist = time.After(p.early())
			}
		}
		proof, err := p.awaitGone(ctx) // Step 4.
		if err != nil {
			return nil, err
		}
		// A line with Defers is always listed again: the claim may have to defer to a contender behind
		// it.
		if p.first > 0 {
			p.Line.each.Store(int64(time.Since(p.start)) / int64(p.first))
		}
		p.stop()
		if p.alone && c.Line.Defers == nil { // Step 5.
			return c, c.standsAfter(ctx, proof)
		}
	}
}

// The method `list` returns the contenders ahead of p. The first call uses the listing that was
// made with the create. A later call makes a new listing, because the blocker has left, or because
// ctx ended before the first listing was used.
func (p *Place) list(ctx context.Context) (ahead []Child, err error) {
	c := p.claim
	if p.roll == nil {
		if p.roll, err = c.Incarnation.Roll(ctx, c.Line.Dir); err != nil && !session.IsNoNode(err) {
			return nil, err // NoNode: the parent and our znode are deleted, and the call of AheadOf finds that
		}
	}
	return p.Line.AheadOf(ctx, c.Incarnation, p.Line.contenders(p.roll), c.Child)
}

// The method `readFirst` makes the reads of p.Behind. They end when the blocker is deleted, so they
// never delay the turn.
func (p *Place) readFirst(ctx context.Context) {
	m := p.Line.Manager
	ctx, stop := m.Until(ctx, p.gone.Fired)
	defer stop()
	ctx, stopToo := m.Until(ctx, m.Closing)
	defer stopToo()
	p.Behind.Look(ctx, p.claim.Incarnation, func(ctx context.Context) (first string, place int, err error) {
		ahead, err := p.list(ctx)
		p.roll = nil
		if len(ahead) > 0 {
			first = ahead[0].Name
		}
		return first, len(ahead), err
	})
	p.look, p.pause = time.After(p.pause), min(2*p.pause, lookEvery)
}

// awaitGone waits until the blocker is deleted. It returns the number of the connection that has
// shown the deletion, or 0 if that number is uncertain. If p's own znode is deleted, the error is
// ErrVanished, because the wait is then useless. After the end of ctx, awaitGone can be called again.
//
// If several events have come, the order of the checks does not matter. After the deletion of the
// blocker, Claim.standsAfter still checks p's own watch. After another event, the claim is not
// granted: it leaves the line or continues to wait.
func (p *Place) awaitGone(ctx context.Context) (proof int64, err error) {
	inc := p.claim.Incarnation
	for {
		switch {
		case ctx.Err() != nil:
			return 0, session.CtxErr(ctx)
		case inc.Ctx.Err() != nil:
			return 0, session.ErrEnded
		case session.IsClosed(inc.Manager.Closing): // Close has begun, but the session may live until the program's functions have returned
			return 0, inc.Manager.Failure()
		case p.gone == nil:
			switch gone, proof, err := p.watch(ctx); {
			case err != nil:
				p.unwatch() // perhaps the watch is not set; the next call sets it
				return 0, err
			case gone:
				return proof, nil
			}
			continue
		case session.IsClosed(p.gone.Fired):
			w := p.gone
			p.unwatch() // after an event other than the deletion, the watch must be set again
			if w.Event == zk.EventNodeDeleted {
				return inc.Watches.State(w).ToldOn, nil
			}
			continue
		case session.IsClosed(p.own.Fired):
			own := p.claim.watch() // a new watch; the read in MustStand sets it
			if err := p.claim.MustStand(ctx); err != nil {
				return 0, err
			}
			p.own = own
			continue
		}
		select {
		case <-p.gone.Fired:
		case <-p.own.Fired:
		case <-ctx.Done():
		case <-inc.Ctx.Done():
		case <-inc.Manager.Closing:
		case <-p.look:
			p.readFirst(ctx)
		case <-p.relist:
			p.listMeanwhile(ctx)
		case <-p.limit: // if the blocker is deleted at the same moment, either result is right
			return 0, errBlocked
		}
	}
}

// The method `watch` sets the watches on the blocker and on p's own znode, in one round trip. If
// the blocker was deleted already, the result `gone` is true, and `proof` is as in awaitGone.
func (p *Place) watch(ctx context.Context) (gone bool, proof int64, err error) {
	c, inc, watches := p.claim, p.claim.Incarnation, p.claim.Incarnation.Watches
	p.gone = watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: p.blocker})
	p.blocker = p.gone.Key.Path // all waits for this znode share one string
	p.own = c.watch()
	paths := []string{p.blocker, c.Path}
	if watches.State(p.own).Ours {
		paths = paths[:1]
	}
	over := watches.Connection()
	stats, errs, err := inc.LookAtAll(ctx, paths...)
	if err != nil {
		return false, 0, err
	}
	if len(errs) > 1 {
		if err := c.standsBy(stats[1], errs[1]); err != nil {
			return false, 0, err
		}
	}
	if gone = session.IsNoNode(errs[0]); !gone {
		return false, 0, errs[0]
	}
	if watches.Connection() != over {
		over = 0 // the connection has changed: perhaps the reply came over the new connection
	}
	return true, over, nil
}

// The method `unwatch` gives up the watch on the blocker. The claim keeps the watch on its own
// znode.
func (p *Place) unwatch() {
	if p.gone != nil {
		p.claim.Incarnation.Watches.Leave(p.gone)
		p.gone = nil
	}
}

func (p *Place) stop() {
	p.unwatch()
	p.blocker, p.look, p.relist, p.first = "", nil, nil, 0
}

// The method `contend` calls `acquire`, and then checks that the session is alive. If `holds` is true,
// it also takes a stake in the session. If ctx ends, p may keep its place. After any other error, no
// znode of p is in the line.
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
		p.stop()
		p.claim, p.roll = nil, nil
		return c, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
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
// line again. If ctx ends first, p may still be in the line: another Take, with another ctx,
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

// Leave removes p from the line. It is called after an error of Take.
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
// nil. Try first lists the line, and does not enter it if a contender would block the caller. There
// is one exception: exactly one contender is in the line, and it perhaps only keeps its place. Then
// Try creates a znode, so that the contender's process deletes the kept znode (Claim.recall), and
// waits for that. After RecallTime, a goroutine holds the lock, or that process does not react.
func (l *Line) Try(ctx context.Context, mode HoldMode) (won *Claim, err error) {
	err = l.Manager.During(ctx, func(inc *session.Incarnation) error {
		// Without the sync of NamesFresh, a lagging server could show a contender that had left before
		// the call.
		names, err := inc.NamesFresh(ctx, l.Dir)
		if err == nil && l.Strict {
			err = unmixed(l.Bases, names, nil)
		}
		ahead := ParseChildren(names, l.Bases...)
		if blocker, _ := l.Blocker(mode, ahead); err != nil || blocker != nil && !onlyKept(ahead) {
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

// onlyKept reports whether only one contender is ahead, which perhaps only keeps its place.
func onlyKept(ahead []Child) bool { return len(ahead) == 1 && MayBeKept(ahead[0].Name) }

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
