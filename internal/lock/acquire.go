package lock

// This file takes a contender from the creation of its znode to its turn, across sessions. After
// the turn, a hold begins: see grant.go.

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// A Place is a place in a line, until its turn comes. It belongs to no goroutine: several
// goroutines may call Take for the same place, one after another.
type Place struct {
	Line   *Line
	Base   string // of the name of its znode
	Data   []byte // of its znode
	Rule   Rule
	Behind *Ahead // if it is not nil, Take records the contenders ahead there
	try    bool   // p is used by Try: it waits only for a contender that perhaps only keeps its place

	claim *Claim        // nil while no znode of p is in the line
	roll  *session.Roll // a listing of the line that acquire has not used yet
	trip  time.Duration // duration of Enter, about one round trip
	lists int           // number of listings that it may still make while it waits

	// While it waits for the deletion of a contender ahead, its blocker:
	blocker string           // the path of its znode; "" if p waits for none
	gone    *conn.Watch      // the watch on blocker, joined and set; nil if it must be set
	own     *conn.Watch      // the watch on p's own znode, set; see Claim.watch
	alone   bool             // no contender except blocker blocks p, now or later
	limit   <-chan time.Time // fires when a Try stops waiting; nil for other callers
	look    func()           // stops the reads of the first contender (Ahead); nil if there are none
	relist  *relisting       // lists the line during the wait; nil if listings could prove nothing, or are not needed
}

var (
	errDeferred = errors.New("zsync: others go before")           // a contender whose turn has come lets others go first
	errBlocked  = errors.New("zsync: another contender is ahead") // a contender blocks a caller that does not wait
)

// acquire takes p from the creation of its znode to its turn, in one session. (Line describes the
// steps.) If ctx ends, a later call continues the wait.
//
// It is our turn if our znode exists and no contender blocks us. Both must be true at the same
// moment, on one server, and that moment must not be before the last event that we received. One
// listing can show both. After the deletion of the only blocker, Claim.standsAfter shows both
// without a listing. From then on, no contender can get ahead of us, unless the rule allows it. So
// the turn lasts while our znode exists and the session is alive. confirm checks the session last,
// so no caller learns of a turn in a session that has ended.
//
// The turn may come at the moment at which acquire fails. It is right to leave even then: the
// caller holds nothing, and the deletion of our znode wakes the next contender.
func (p *Place) acquire(ctx context.Context, inc *session.Incarnation) (*Claim, error) {
	if p.claim == nil {
		if err := p.enter(ctx, inc); err != nil { // Steps 1 and 2.
			return nil, err
		}
	}
	c := p.claim
	if ctx.Err() != nil { // the caller does not want the turn any longer, even if it has come
		return nil, session.CtxErr(ctx)
	}
	for {
		if p.blocker == "" {
			ahead, err := p.list(ctx)
			if err != nil {
				return nil, err
			}
			blocker, alone := p.Rule(ahead) // Step 3.
			switch {
			case blocker == nil && c.Line.Defers != nil && c.Line.Defers(c.Child, p.roll.Names()):
				return nil, errDeferred
			case blocker == nil:
				return c, c.confirm()
			case p.try && (p.limit != nil || !onlyKept(ahead)):
				return nil, errBlocked
			}
			p.wait(ahead, blocker.Name, alone)
		}
		proof, err := p.awaitGone(ctx) // Step 4.
		if err != nil {
			return nil, err
		}
		// If a relisting has shown only the blocker ahead, another listing is not needed. In a line
		// with Defers, list in any case: the claim may have to defer to a contender behind it.
		alone := p.alone || p.relist != nil && p.relist.end(ctx)
		p.stop()
		if alone && c.Line.Defers == nil { // Step 5.
			return c, c.standsAfter(ctx, proof)
		}
	}
}

// enter creates the znode of p and lists the line.
func (p *Place) enter(ctx context.Context, inc *session.Incarnation) (err error) {
	p.Behind.Forget() // it may name the contenders ahead of p's previous znode
	start := time.Now()
	p.claim, p.roll, err = p.Line.Enter(ctx, inc, p.Base, p.Data)
	p.trip, p.lists = time.Since(start), maxRelists
	return err
}

// list returns the contenders ahead of p. The first call uses the listing that was made with the
// create. Later calls list the line again: the blocker has left, or ctx ended before the first
// listing was used.
func (p *Place) list(ctx context.Context) (ahead []Child, err error) {
	c := p.claim
	if p.roll == nil {
		if p.roll, err = c.Incarnation.Roll(ctx, c.Line.Dir); err != nil && !session.IsNoNode(err) {
			return nil, err // NoNode: the parent is deleted, and so is our znode, which ahead reports
		}
	}
	return p.Line.ahead(ctx, c.Incarnation, p.roll, c.Child)
}

// wait begins the wait for blocker, the nearest of the contenders ahead that block p.
func (p *Place) wait(ahead []Child, blocker string, alone bool) {
	c := p.claim
	rk := c.Line.ranks(p.roll)
	if p.Behind != nil {
		p.Behind.set(c.Line.Dir, rk.first(ahead), len(ahead))
		l, inc, me := c.Line, c.Incarnation, c.Child // copies: a look may end after the wait, when Move may have changed c
		p.look = p.Behind.LookWhileWaiting(inc, func(ctx context.Context) ([]string, int, error) { return l.listAhead(ctx, inc, me) })
	}
	if p.try {
		p.limit = time.After(RecallTime)
	}
	p.blocker, p.alone = session.ChildPath(c.Line.Dir, blocker), alone
	p.roll = nil // a listing is not kept in memory during the wait
	if !alone && !p.try && p.trip >= relistTrip && p.lists > 0 && c.Line.Settled && c.Line.Defers == nil && rk.sure && !c.Child.Exhausted() {
		p.relist = c.relist(blocker, len(ahead), p.lists, p.trip)
	}
}

// listAhead lists the line. It returns the names of the first contenders, and the number of all
// contenders ahead of me.
func (l *Line) listAhead(ctx context.Context, inc *session.Incarnation, me Child) (first []string, place int, err error) {
	roll, err := inc.Roll(ctx, l.Dir)
	if err != nil {
		return nil, 0, err
	}
	ahead, err := l.ahead(ctx, inc, roll, me)
	return l.ranks(roll).first(ahead), len(ahead), err
}

// awaitGone waits until the blocker is deleted. It returns the number of the connection that has
// shown the deletion, or 0 if that is uncertain. The error is ErrVanished if p's own znode is
// deleted: then the wait is useless. After the end of ctx, awaitGone can be called again.
//
// If several events have come, the order of the checks does not matter. If the deletion of the
// blocker is found first, Claim.standsAfter still checks the claim's own watch before the grant. If
// another event is found first, the claim leaves the line or continues to wait, and was not
// granted.
func (p *Place) awaitGone(ctx context.Context) (proof int64, err error) {
	inc := p.claim.Incarnation
	for {
		switch {
		case ctx.Err() != nil:
			return 0, session.CtxErr(ctx)
		case inc.Ctx.Err() != nil:
			return 0, session.ErrEnded
		case session.IsClosed(inc.Manager.Closing): // Close has begun; the session may live on until functions have returned
			return 0, inc.Manager.Failure()
		case p.gone == nil:
			switch gone, proof, err := p.watch(ctx); {
			case err != nil:
				p.unwatch() // the watch might not be set; the next call sets it
				return 0, err
			case gone:
				return proof, nil
			}
			continue
		case session.IsClosed(p.gone.Fired):
			w := p.gone
			p.unwatch() // if this was another event, the watch must be set again
			if w.Event == zk.EventNodeDeleted {
				return inc.Watches.Told(w), nil
			}
			continue
		case session.IsClosed(p.own.Fired):
			own := p.claim.watch() // the next watch, which the following read sets
			if err := p.claim.mustStand(ctx); err != nil {
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
		case <-p.limit: // if the blocker is deleted at the same moment, either answer is right
			return 0, errBlocked
		}
	}
}

// watch sets the watches on the blocker and on p's own znode, in one round trip. gone reports that
// the blocker was already deleted; proof is then as in awaitGone.
func (p *Place) watch(ctx context.Context) (gone bool, proof int64, err error) {
	c, inc, watches := p.claim, p.claim.Incarnation, p.claim.Incarnation.Watches
	p.gone = watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: p.blocker})
	p.blocker = p.gone.Key.Path // all waits for this znode share one string
	p.own = c.watch()
	paths := []string{p.blocker, c.Path}
	if watches.ArmedOnOurs(p.own) {
		paths = paths[:1]
	}
	over := watches.Connection()
	looks, err := inc.LookAtAll(ctx, paths...)
	if err != nil {
		return false, 0, err
	}
	if len(looks) > 1 {
		if err := c.standsBy(looks[1]); err != nil {
			return false, 0, err
		}
	}
	if gone = session.IsNoNode(looks[0].Err); !gone {
		return false, 0, looks[0].Err
	}
	if watches.Connection() != over {
		over = 0 // the read was perhaps sent on one connection, and answered on another
	}
	return true, over, nil
}

// unwatch leaves the watch on the blocker. The claim keeps its own watch.
func (p *Place) unwatch() {
	if p.gone != nil {
		p.claim.Incarnation.Watches.Leave(p.gone)
		p.gone = nil
	}
}

// stop ends the wait for one blocker, and all requests for it. The result of a listing in flight is
// not used.
func (p *Place) stop() {
	p.unwatch()
	p.blocker = ""
	if p.look != nil {
		p.look()
		p.look = nil
	}
	if r := p.relist; r != nil {
		r.stop()
		p.lists, p.relist = r.lists, nil
	}
}

// contend calls acquire and, if the caller will hold, takes a stake in the session. If ctx ends, p
// may keep its place. After any other error, no znode of p is in the line.
func (p *Place) contend(ctx context.Context, inc *session.Incarnation, holds bool) (*Claim, error) {
	c, err := p.acquire(ctx, inc)
	if err == nil && holds {
		err = c.assure(ctx)
	}
	switch {
	case err == nil:
		p.stop()
		p.claim, p.roll = nil, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		p.roll = nil // the listing may be old at the next call
		return nil, err
	default:
		p.withdraw(err)
		return nil, err
	}
	return c, nil
}

// withdraw removes p from the line after err, if it is there.
func (p *Place) withdraw(err error) {
	if c := p.claim; c != nil {
		p.stop()
		p.claim, p.roll = nil, nil
		c.withdraw(err)
	}
}

// Take waits until it is the turn of p. If the session ends or p's znode is deleted, p enters the
// line again. If ctx ends first, p may still be in the line: another Take, with another ctx,
// continues the wait, and Leave removes p. After any other error, no znode of p is in the line.
func (p *Place) Take(ctx context.Context) (c *Claim, err error) {
	m := p.Line.Manager
	if p.claim == nil { // otherwise, an earlier Take has counted p
		m.Waiters.Add(1)
	}
	defer func() {
		if p.claim == nil {
			m.Waiters.Add(-1)
		}
	}()
	take := func(inc *session.Incarnation) (err error) {
		for {
			c, err = p.contend(ctx, inc, true)
			if errors.Is(err, session.ErrEnded) && m.Failure() == nil {
				p.Behind.Forget() // p has no place until there is another session
			}
			if !errors.Is(err, session.ErrVanished) && !errors.Is(err, errDeferred) {
				return err
			}
			// The contender deferred to others, or another client deleted its znode. The caller
			// holds nothing yet, so the contender enters the line again, at the end.
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

// Leave removes p from the line, after an error of Take.
func (p *Place) Leave() {
	if p.claim != nil {
		p.withdraw(nil)
		p.Line.Manager.Waiters.Add(-1)
	}
}

// Acquire waits for its turn in the line, like Take. If ctx ends, it leaves nothing in the line.
// If behind is not nil, Acquire records the contenders ahead there.
func (l *Line) Acquire(ctx context.Context, base string, data []byte, rule Rule, behind *Ahead) (*Claim, error) {
	p := Place{Line: l, Base: base, Data: data, Rule: rule, Behind: behind}
	c, err := p.Take(ctx)
	p.Leave() // if ctx has ended
	return c, err
}

// Contend is Acquire within one session, for a caller that will hold nothing.
func (l *Line) Contend(ctx context.Context, inc *session.Incarnation, base string, data []byte, rule Rule) (*Claim, error) {
	p := Place{Line: l, Base: base, Data: data, Rule: rule}
	c, err := p.contend(ctx, inc, false)
	p.withdraw(nil)
	return c, err
}

// RecallTime is how long Try waits for a contender that perhaps only keeps its place. In that time,
// the contender's process can learn that our znode was created, and we can learn that the
// contender's znode was deleted.
const RecallTime = 500 * time.Millisecond

// Try takes its turn if it comes at once, and otherwise leaves the line. It first reads the line,
// and does not enter if a contender blocks it. There is one exception: a contender that perhaps
// only keeps its place. When Try creates a znode, the process of that contender deletes the kept
// znode (Lock.recall). Try waits for the deletion, at most for RecallTime. If the kept znode is not
// deleted by then, a goroutine holds it, or the process does not answer.
func (l *Line) Try(ctx context.Context, base string, data []byte, rule Rule) (won *Claim, err error) {
	err = l.Manager.During(ctx, func(inc *session.Incarnation) error {
		if blocked, err := l.blocked(ctx, inc, rule); blocked || err != nil {
			return err
		}
		p := Place{Line: l, Base: base, Data: data, Rule: rule, try: true}
		won, err = p.contend(ctx, inc, true)
		p.withdraw(nil)
		if errors.Is(err, errBlocked) || errors.Is(err, session.ErrVanished) {
			return nil
		}
		return err
	})
	return won, err
}

// onlyKept reports whether exactly one contender is ahead and may have only kept its place, without
// a hold.
func onlyKept(ahead []Child) bool { return len(ahead) == 1 && MayBeKept(ahead[0].Name) }

// blocked reports whether a contender would block a newcomer. It reads after a sync, because a
// lagging server could show a contender that had left before the call.
func (l *Line) blocked(ctx context.Context, inc *session.Incarnation, rule Rule) (bool, error) {
	names, _, err := inc.ChildrenFresh(ctx, l.Dir)
	if err != nil && !session.IsNoNode(err) {
		return false, err
	}
	ahead := ParseChildren(names, l.Bases...)
	blocker, _ := rule(ahead)
	blocked := blocker != nil && !onlyKept(ahead)
	if !l.Strict {
		return blocked, nil
	}
	return blocked, unmixed(l.Bases, strangers(names, l.Bases), nil)
}
