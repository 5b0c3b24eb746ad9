package line

// This file takes a contender from its arrival to its turn, across sessions. Holds begin after
// that: see grant.go.

import (
	"context"
	"errors"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A Place is a place in a line, on the way to a hold. It belongs to no goroutine: several may
// call Take, one after another, for the same place.
type Place struct {
	Line   *Line
	Base   string // of the name of its znode
	Data   []byte // of its znode
	Rule   Rule
	Behind *Ahead // if it is not nil, Take records the contenders ahead there

	arrival *arrival // nil while no znode of p is in the line
	last    arrival  // storage for arrival
}

// Take waits until it is the turn of p, through lost sessions and deleted znodes. If ctx ends
// first, p may still be in the line. The next Take, with another ctx, continues from there, and
// Leave removes the place. After any other error, no znode of p is in the line.
func (p *Place) Take(ctx context.Context) (c *Claim, err error) {
	m := p.Line.Manager
	if p.arrival == nil { // else it has been counted
		m.Waiters.Add(1)
	}
	defer func() {
		if p.arrival == nil {
			m.Waiters.Add(-1)
		}
	}()
	take := func(inc *session.Incarnation) (err error) {
		c, err = p.takeIn(ctx, inc)
		return err
	}
	err = session.ErrEnded
	if p.arrival != nil {
		err = take(p.arrival.claim.Incarnation)
	}
	if errors.Is(err, session.ErrEnded) {
		err = m.During(ctx, take)
	}
	return c, err
}

// takeIn is Take within one session.
func (p *Place) takeIn(ctx context.Context, inc *session.Incarnation) (_ *Claim, err error) {
	for {
		if p.arrival == nil {
			p.Behind.Forget() // the contenders ahead of the previous place
			if p.last, err = p.Line.arrive(ctx, inc, p.Base, p.Data); err != nil {
				return nil, err
			}
			p.arrival = &p.last
		}
		a := p.arrival
		if err = a.awaitTurn(ctx, p.Rule, p.Behind); err == nil {
			a.end()
			err = a.claim.assure(ctx)
		}
		if interrupted(ctx, err) {
			a.roll = nil // it may be old when the next Take looks at it
			return nil, err
		}
		p.arrival = nil
		if err == nil {
			return a.claim, nil
		}
		a.withdraw(err)
		if errors.Is(err, session.ErrEnded) && p.Line.Manager.Failure() == nil {
			p.Behind.Forget() // p has no place until there is another session
		}
		if !errors.Is(err, session.ErrVanished) && !errors.Is(err, errDeferred) {
			return nil, err
		}
		// The contender deferred to others, or another client deleted its znode. Its caller holds
		// nothing yet, so it enters the line again, at the end.
	}
}

// Leave removes p from the line, after an error of Take.
func (p *Place) Leave() {
	if a := p.arrival; a != nil {
		p.arrival = nil
		a.withdraw(nil)
		p.Line.Manager.Waiters.Add(-1)
	}
}

// interrupted reports whether err is the end of ctx, which says nothing against a place.
func interrupted(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// Acquire waits for its turn in the line, like Take. If ctx ends, it leaves nothing in the line.
// If behind is not nil, Acquire records the contenders ahead there.
func (l *Line) Acquire(ctx context.Context, base string, data []byte, rule Rule, behind *Ahead) (*Claim, error) {
	p := Place{Line: l, Base: base, Data: data, Rule: rule, Behind: behind}
	c, err := p.Take(ctx)
	if err != nil {
		p.Leave()
	}
	return c, err
}

// Contend is Acquire within one session.
func (l *Line) Contend(ctx context.Context, inc *session.Incarnation, base string, data []byte, rule Rule, behind *Ahead) (*Claim, error) {
	a, err := l.arrive(ctx, inc, base, data)
	if err != nil {
		return nil, err
	}
	if err := a.awaitTurn(ctx, rule, behind); err != nil {
		a.withdraw(err)
		return nil, err
	}
	a.end()
	return a.claim, nil
}

// An arrival is a claim that has entered its line and waits for its turn.
type arrival struct {
	claim *Claim
	roll  *session.Roll // a listing of the line that look has not used yet
	trip  time.Duration // duration of a round trip
	lists int           // number of listings that it may still make during the wait

	// While it waits for a deletion:
	vigil  *vigil     // nil otherwise
	alone  bool       // no other contender blocks it, and none can come to
	looks  *poll      // reads the first contender; nil if the caller does not ask
	relist *relisting // nil if listings could prove nothing, or are not needed
}

// arrive enters the line of inc.
func (l *Line) arrive(ctx context.Context, inc *session.Incarnation, base string, data []byte) (arrival, error) {
	start := time.Now()
	c, roll, err := l.Enter(ctx, inc, base, data) // Steps 1 and 2.
	return arrival{claim: c, roll: roll, trip: time.Since(start), lists: maxRelists}, err
}

// errDeferred means that a contender whose turn has come defers to others.
var errDeferred = errors.New("zsync: others go before")

// end ends a's wait. The next wait of a lists the line first.
func (a *arrival) end() {
	a.endVigil()
	a.roll = nil
}

// withdraw ends a after err. a's turn may come at this moment. Leaving is still right: its caller
// holds nothing yet, and the deletion of its znode wakes the next contender.
func (a *arrival) withdraw(err error) {
	a.end()
	a.claim.withdraw(err)
}

// awaitTurn waits until it is a's turn. After the end of ctx, a later call continues the wait.
func (a *arrival) awaitTurn(ctx context.Context, rule Rule, behind *Ahead) (err error) {
	c := a.claim
	if ctx.Err() != nil { // the turn may have come already, and is not wanted
		return session.CtxErr(ctx)
	}
	for {
		if a.vigil == nil {
			if a.roll == nil { // the blocker has left, or ctx ended before the line was listed
				roll, err := c.Incarnation.Roll(ctx, c.Line.Dir)
				if err != nil && !session.IsNoNode(err) {
					return err
				}
				a.roll = roll
			}
			if turn, err := a.look(ctx, rule, behind); err != nil || turn {
				return err
			}
		}
		proof, err := a.vigil.await(ctx) // Step 4.
		if err != nil {
			return err
		}
		// A contender that may defer lists the line in each case: a contender that it lets go first
		// may be behind it (Line.Defers).
		alone := a.alone || a.relist != nil && a.relist.end(ctx)
		a.endVigil()
		if alone && c.Line.Defers == nil { // Step 5.
			stands, err := c.stands(ctx, proof)
			switch {
			case err != nil:
				return err
			case !stands:
				return session.ErrVanished
			}
			return c.confirm()
		}
	}
}

// look reports whether it is a's turn by its roll. If it is not, look begins the wait.
func (a *arrival) look(ctx context.Context, rule Rule, behind *Ahead) (turn bool, err error) {
	c, roll := a.claim, a.roll
	ahead, err := c.Ahead(ctx, roll)
	if err != nil {
		return false, err
	}
	blocker, alone := rule(ahead) // Step 3.
	if blocker == nil {
		if c.Line.Defers != nil && c.Line.Defers(c.Child, roll.Names()) {
			return false, errDeferred // no caller has learned of the turn
		}
		return true, c.confirm()
	}
	if behind != nil {
		behind.set(c.Line.Dir, c.Line.ranks(roll).first(ahead), len(ahead))
		a.looks = behind.LookWhileWaiting(c.Incarnation, c.listAhead)
	}
	a.vigil, a.alone = c.vigil(blocker.Name), alone
	a.roll = nil // not kept while a waits
	if !alone && a.trip >= relistTrip && a.lists > 0 && c.Line.Settled && c.Line.Defers == nil && c.Line.ranks(roll).sure && !c.Child.Exhausted() {
		a.relist = c.relist(blocker.Name, len(ahead), a.lists, a.trip)
	}
	return false, nil
}

// listAhead lists the line. It returns the names of the first contenders, and the number of all
// contenders ahead of c.
func (c *Claim) listAhead(ctx context.Context) (first []string, place int, err error) {
	roll, err := c.Incarnation.Roll(ctx, c.Line.Dir)
	if err != nil {
		return nil, 0, err
	}
	ahead, err := c.Ahead(ctx, roll)
	return c.Line.ranks(roll).first(ahead), len(ahead), err
}

// endVigil ends the wait for one znode, and all requests for that wait.
func (a *arrival) endVigil() {
	if a.vigil != nil {
		a.vigil.end()
		a.vigil = nil
	}
	if a.looks != nil {
		a.looks.Stop()
		a.looks = nil
	}
	if r := a.relist; r != nil {
		a.relist = nil
		select {
		case <-r.poll.end():
			a.lists = r.left
		default: // the result of the listing in flight is not used
			a.lists--
		}
	}
}
