package line

import (
	"context"
	"errors"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Arrival is a claim that has entered its line and waits for its turn. It needs no
// goroutine for that: it is what one has to know who goes on with it when something has
// happened. See [Line.Proceed].
type Arrival struct {
	Claim *Claim
	roll  *session.Roll // the line, if it has not been looked at yet
	trip  time.Duration // how long a round trip takes
	view  *view         // once somebody was ahead

	// While it waits for one to go.
	vigil *vigil // nil otherwise
	gone  spot   // of that one
	alone bool   // no other stood in the way, and none can come to
	seer  seer
}

func newArrival(c *Claim, roll *session.Roll, trip time.Duration) *Arrival {
	a := &Arrival{Claim: c, roll: roll, trip: trip}
	a.seer.strict = c.Line.Strict
	a.seer.listings.Store(foreseeMost)
	return a
}

// Acquire waits for its turn in the line, whatever happens to sessions and
// znodes in between. When ctx ends it leaves nothing in the line. While it waits
// it says in behind, if that is not nil, whom it waits for.
func (l *Line) Acquire(ctx context.Context, base string, data []byte, rule Rule, behind *Ahead) (*Claim, error) {
	c, a, err := l.Proceed(ctx, nil, base, data, rule, behind)
	for a != nil {
		a.Wait(ctx)
		c, a, err = l.Proceed(ctx, a, base, data, rule, behind)
	}
	return c, err
}

// Proceed is Acquire for one who does not wait for those ahead in the goroutine that
// calls. If there are any it returns an arrival, which says when to call again, with that:
// see [Arrival.Wait] and [Arrival.Then]. Until then the arrival stands in the line. With
// one that has just entered it begins as that.
func (l *Line) Proceed(ctx context.Context, a *Arrival, base string, data []byte, rule Rule, behind *Ahead) (c *Claim, waits *Arrival, err error) {
	if a == nil || a.vigil == nil { // else it has been counted
		l.Manager.Waiters.Add(1)
	}
	defer func() {
		if waits == nil {
			l.Manager.Waiters.Add(-1)
		}
	}()
	try := func(inc *session.Incarnation) error {
		for {
			var err error
			if a == nil {
				behind.Forget() // those of the place before
				a, err = l.arrive(ctx, inc, base, data)
			}
			if err == nil {
				err = a.proceed(ctx, rule, behind)
			}
			switch at := a; {
			case err == errWaits:
				waits = at
				return nil
			case err == nil:
				if err = at.Claim.assure(ctx); err != nil {
					at.Claim.withdraw(err)
				} else {
					c = at.Claim
				}
			}
			a = nil
			if errors.Is(err, session.ErrEnded) && l.Manager.Failure() == nil {
				behind.Forget() // it stands nowhere until there is another session
			}
			if !errors.Is(err, session.ErrVanished) && !errors.Is(err, errDeferred) {
				return err
			}
			// We let somebody go before, or somebody deleted our znode. Nobody was told that we hold
			// anything, so we go to the back of the line.
		}
	}
	err = session.ErrEnded
	if a != nil {
		err = try(a.Claim.Incarnation)
	}
	if errors.Is(err, session.ErrEnded) {
		err = l.Manager.During(ctx, try)
	}
	return c, waits, err
}

// Contend is Acquire within one session.
func (l *Line) Contend(ctx context.Context, inc *session.Incarnation, base string, data []byte, rule Rule, behind *Ahead) (*Claim, error) {
	a, err := l.arrive(ctx, inc, base, data)
	if err != nil {
		return nil, err
	}
	for err = a.proceed(ctx, rule, behind); err == errWaits; err = a.proceed(ctx, rule, behind) {
		a.Wait(ctx)
	}
	if err != nil {
		return nil, err
	}
	return a.Claim, nil
}

// arrive enters the line of inc.
func (l *Line) arrive(ctx context.Context, inc *session.Incarnation, base string, data []byte) (*Arrival, error) {
	letPass(ctx, inc, l.Dir)
	start := time.Now()
	c, roll, err := l.Enter(ctx, inc, base, data) // Steps 1 and 2.
	if err != nil {
		return nil, err
	}
	return newArrival(c, roll, time.Since(start)), nil
}

// errWaits means that nothing can be done until something has happened.
var errWaits = errors.New("zsync: BUG: it waits for those ahead")

// errDeferred means that a contender whose turn had come lets others go before.
var errDeferred = errors.New("zsync: others go before")

// proceed goes on as far as that can be done now. It is errWaits if others have to go
// first. Otherwise it is a's turn, or nothing of a is left.
func (a *Arrival) proceed(ctx context.Context, rule Rule, behind *Ahead) error {
	err := a.awaitTurn(ctx, rule, behind)
	if err == errWaits {
		return err
	}
	if a.vigil != nil {
		a.endVigil()
	}
	if a.view != nil {
		a.view.foreseeNext()
		a.view.leave()
	}
	if err != nil {
		// It may be our turn at this same instant. Leaving is still right:
		// nobody has been told so, and deleting our child wakes whoever is next.
		a.Claim.withdraw(err)
	}
	return err
}

// awaitTurn is proceed without its end.
func (a *Arrival) awaitTurn(ctx context.Context, rule Rule, behind *Ahead) (err error) {
	c := a.Claim
	if ctx.Err() != nil { // nobody wants a turn that may have come already
		return session.CtxErr(ctx)
	}
	for {
		if a.vigil == nil {
			if turn, err := a.look(ctx, rule, behind); err != nil || turn {
				return err
			}
		}
		proof, err := a.vigil.keep(ctx) // Step 4.
		if err != nil {
			return err
		}
		dir, gone, alone, told := a.seer.dir, a.gone, a.alone, a.endVigil()
		a.view.gone(dir, gone)
		if !alone && c.Line.Settled && !c.Child.Exhausted() {
			if alone = a.view.nobodyAhead(dir, c.Child); !alone {
				// A listing that is under way is answered before another would be. It may have
				// been answered before the event, and be looked at only now: then it shows the
				// one that has gone, who is struck off again.
				select {
				case <-told:
				case <-ctx.Done(): // which Roll tells
				}
				a.view.gone(dir, gone)
				alone = a.view.nobodyAhead(dir, c.Child)
			}
		}
		if !alone && c.Line.Settled && c.Line.Defers == nil && !c.Child.Exhausted() {
			if alone, proof, err = a.view.ask(ctx, dir, c.Child, proof); err != nil {
				return err
			}
		}
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
		if a.roll, err = c.Incarnation.Roll(ctx, c.Line.Dir); err != nil && !session.IsNoNode(err) {
			return err
		}
	}
}

// look reports whether it is a's turn by its roll, and begins to wait if it is not.
func (a *Arrival) look(ctx context.Context, rule Rule, behind *Ahead) (turn bool, err error) {
	c, roll := a.Claim, a.roll
	ahead, err := c.Ahead(ctx, roll)
	if err != nil {
		return false, err
	}
	if a.view != nil {
		a.view.update(c.Line.ranks(roll))
	}
	blocker, alone := rule(ahead) // Step 3.
	if blocker == nil {
		if c.Line.Defers != nil && c.Line.Defers(c.Child, roll.Names()) {
			return false, errDeferred // nobody has been told that it was our turn
		}
		return true, c.confirm()
	}
	c.trip = a.trip
	dir := roll.Czxid() // ours is in it, and in no other of its name
	c.dir = dir
	rk := c.Line.ranks(roll)
	if a.view == nil {
		v := viewOf(c.Incarnation, c.Line.Dir, c.Line.Bases)
		v.update(rk)
		a.view = v
		if behind != nil && rk.told && !c.Child.Exhausted() {
			v.look(c.Line.Strict)
		}
	}
	switch v, me := a.view, c.Child; {
	case behind == nil:
	case rk.told && !me.Exhausted():
		behind.share(func() (Head, int) { return v.now(dir, me) })
	default: // a view has no place for it
		behind.share(nil)
		behind.setChildren(c.Line.Dir, ahead)
	}
	a.vigil = c.vigil(blocker.Name)
	a.gone, a.alone = spotOf(*blocker), alone
	a.seer.dir, a.seer.me = dir, c.Child
	a.roll = nil // not kept while a waits
	if !alone && c.Line.Settled && c.Line.Defers == nil && !c.Child.Exhausted() {
		a.view.foresee(ctx, &a.seer, a.trip)
	}
	return false, nil
}

// endVigil is the end of the wait for one. The listing that is under way to foresee the
// hand-over, if there is one, is in the view when told is closed.
func (a *Arrival) endVigil() (told <-chan struct{}) {
	a.vigil.end()
	a.vigil = nil
	return a.view.foreseen(&a.seer)
}

// Wait waits until a, which [Line.Proceed] has returned, may go on.
func (a *Arrival) Wait(ctx context.Context) { a.vigil.wait(ctx) }

// Then has f called in a goroutine when a, which [Line.Proceed] has returned, may go on,
// or wake is called, as for a ctx that ends. Until then there is none. The session waits for
// f when it is closed, as for any goroutine: f is called, as that ends its incarnation.
func (a *Arrival) Then(f func()) (wake func()) { return a.vigil.then(f) }
