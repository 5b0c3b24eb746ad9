package turnstile

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A Part is one of those that LockAll locks: by the turnstile at Place, or, if there is
// none, in a way of its own.
type Part struct {
	Locker interface {
		Lock(ctx context.Context) error
		Unlock() error
	}
	Place
}

// LockAll locks parts in their order, or none of them, and returns what unlocks all.
func LockAll(ctx context.Context, parts []Part) (unlock func() error, err error) {
	p := &party{waiters: make([]*waiter, len(parts))}
	for _, part := range parts {
		p.places = append(p.places, part.Place)
	}
	defer p.end(ctx)
	together := context.WithValue(ctx, reserverKey{}, reserver(p))
	locked := 0
	defer func() {
		if unlock == nil { // one has failed, or panicked
			UnlockSoon(ctx, func() error { return unlockAll(parts[:locked]) })
		}
	}()
	for _, part := range parts {
		if err := part.Locker.Lock(together); err != nil {
			return nil, err
		}
		locked++
	}
	return sync.OnceValue(func() error { return unlockAll(parts) }), nil
}

// unlockAll unlocks parts, the last first, also where one panics. Of those that have a
// turnstile none waits for the servers' answer to another.
func unlockAll(parts []Part) (err error) {
	errs := make([]error, len(parts))
	var under sync.WaitGroup
	defer func() {
		under.Wait()
		slices.Reverse(errs)
		err = session.JoinErrors(errs)
	}()
	for i, part := range parts {
		defer func() {
			if part.Of == nil {
				errs[i] = part.Locker.Unlock() // here, where a panic of it is the caller's
				return
			}
			under.Go(func() { errs[i] = part.Locker.Unlock() })
		}()
	}
	return nil
}

// UnlockSoon unlocks, and reports whether that has been done. Once ctx has ended
// it is waited for no longer than grace, and goes on in the background.
func UnlockSoon(ctx context.Context, unlock func() error) bool {
	done := make(chan error, 1)
	go func() { done <- unlock() }()
	_, ok := session.AwaitGrace(done, ctx.Done())
	return ok
}

// A party is what one goroutine wants to hold all at once. It acquires its places one
// after the other, in their order, which is one for everybody: so no two wait for each
// other.
//
// The first that it acquires of those that nobody here has, or waits for, takes those
// that follow along: their acquisitions enter their lines in one transaction, and all lines
// are listed right behind it. As far as nobody is ahead, from the first place on, they
// are granted. The first of which that is not so stays in its line, and the others
// leave theirs before anything is waited for. From there on each is acquired when the one
// before has been.
//
// So whenever a party waits for somebody who may hold something for long, it has what
// comes before that in the order, and nothing behind it: no more than if it had
// acquired one after the other from the beginning. The places behind it keep others
// waiting only for as long as the servers take to answer, or the session to end.
// It is tempting to stay in all lines, as their znodes were made at once: two
// parties would not wait for each other. But one who locks the same places one by one,
// in the same order, would hold the first, and wait for the second behind a party that
// waits for the first.
type party struct {
	places  []Place
	entered int       // how many of places have entered, or have been acquired
	waiters []*waiter // of places, as long as nobody has taken them over; nil if there is none
	waits   bool      // one was in a line that was not free: no others are taken along any more
	home    []*ticket // those that were taken along in vain

	over atomic.Bool // LockAll has returned, or is about to: whoever has kept its context is alone
}

// waiter returns who waits for the place on behalf of p, or has it already; nil if
// nobody does.
func (p *party) waiter(ctx context.Context, place Place) *waiter {
	i := slices.Index(p.places, place)
	if i < 0 || p.over.Load() {
		return nil
	}
	if i >= p.entered {
		p.entered = i + 1
		if !p.waits {
			p.enter(ctx, i)
		}
	}
	w := p.waiters[i]
	p.waiters[i] = nil
	return w
}

// end is the end of p: what has been admitted and is not wanted is given up. Then nothing
// is left in the lines, but where that takes long, or others have come to want it.
func (p *party) end(ctx context.Context) {
	p.over.Store(true)
	var left sync.WaitGroup
	for i, w := range p.waiters {
		if w != nil {
			left.Go(func() { p.places[i].Of.abandon(ctx, w) })
		}
	}
	limit := time.Now().Add(session.Grace)
	for _, t := range p.home {
		session.AwaitFor(t.acquisition.done, time.Until(limit))
	}
	left.Wait()
}

// A ticket is one place of a party on its way.
type ticket struct {
	*Turnstile
	waiter      *waiter
	acquisition *acquisition
	arrival     *line.Arrival // nil if it has not entered
}

// enter has the acquisitions of p enter their lines, from place i on.
func (p *party) enter(ctx context.Context, i int) {
	var ts []*ticket
	for _, place := range p.places[i:] {
		if place.Of == nil || place.Of.Manager != p.places[i].Of.Manager {
			break // no transaction is of two sessions
		}
		t := place.ticket()
		if t == nil {
			break
		}
		ts = append(ts, t)
	}
	if len(ts) == 0 {
		return
	}
	if len(ts) > 1 {
		arrive(ctx, ts)
	}
	n := slices.IndexFunc(ts, func(t *ticket) bool { return !t.free(ctx) })
	if n < 0 {
		n = len(ts)
	}
	stay := min(n+1, len(ts))
	p.sendHome(ts[stay:]) // at once, as what comes next may wait for the servers
	for k, t := range ts[:stay] {
		p.waiters[i+k], p.entered = t.waiter, i+k+1
		if k == n || !t.settle(ctx) {
			// What is free by its listing may not be any more, as when the session has ended:
			// then even t goes to the back of its line, and nobody may stand in one behind it.
			p.sendHome(ts[k+1 : stay])
			p.waits = len(ts) > 1
			t.goOn()
			return
		}
	}
}

// sendHome takes ts out of their queues and lines. If others have queued behind one they
// keep its place in the line.
func (p *party) sendHome(ts []*ticket) {
	for _, t := range ts {
		var left bool
		t.step(func(m *machine) { left = m.withdraw(t.waiter) })
		if !left && t.waiter.err == nil {
			// What somebody of this process had by then, TryLock for one, was handed on to
			// it, though its acquisition has got nothing.
			t.Manager.Spawn(func() { t.renounce(t.waiter).Finish() })
		}
		t.goOn()
	}
	p.home = append(p.home, ts...)
}

// arrive has ts enter their lines. Those that have not wait as if nobody had tried.
func arrive(ctx context.Context, ts []*ticket) {
	m := ts[0].Manager
	m.Waiters.Add(1)
	defer m.Waiters.Add(-1)
	inc, err := m.Incarnation(ctx)
	if err != nil {
		return
	}
	es := make([]line.Entering, len(ts))
	for i, t := range ts {
		es[i] = line.Entering{Line: &t.Line, Base: t.Entries.Of(t.acquisition.mode).Base}
	}
	arrivals, err := line.EnterTogether(ctx, inc, es, m.Owner)
	if err != nil {
		return
	}
	for i, a := range arrivals {
		ts[i].arrival = a
	}
}

// ticket queues for the place, and has nobody sent to the line yet. It is nil if
// somebody here has the place, or waits for it: then it has to be waited for, or costs
// nothing.
func (p Place) ticket() *ticket {
	t := &ticket{Turnstile: p.Of, waiter: &waiter{mode: p.Mode, over: make(chan struct{})}}
	p.Of.step(func(m *machine) {
		if t.acquisition = m.lead(t.waiter); t.acquisition != nil {
			t.acquisition.begin()
		}
	})
	if t.acquisition == nil {
		return nil
	}
	return t
}

// lead queues w, and returns the acquisition who is to be sent to the line for it. It does
// nothing, and returns nil, if somebody is there already; or where nobody queues, as
// everyone has a place of his own in the line.
func (m *machine) lead(w *waiter) *acquisition {
	if m.handoffs == 0 || m.kept != nil || m.acquiring != nil || len(m.held)+len(m.waiting) > 0 {
		return nil
	}
	m.arrive(w)
	m.out = slices.DeleteFunc(m.out, func(a action) bool { return a.verb == seek }) // it is the caller who sends
	return m.acquiring
}

// free reports whether t has entered its line and nobody stood in its way there.
func (t *ticket) free(ctx context.Context) bool {
	return t.arrival != nil && t.arrival.Free(ctx, t.Entries.Of(t.acquisition.mode).Rule)
}

// settle takes the turn of t, which is free, and reports whether that could be done.
func (t *ticket) settle(ctx context.Context) bool {
	if t.arrival.Take(ctx) != nil {
		return false
	}
	c := t.arrival.Claim
	if !t.find(&share{claim: c, mode: t.acquisition.mode}) {
		c.Stake.Drop()
		return false
	}
	t.acquisition.cancel()
	close(t.acquisition.done)
	return true
}

// goOn has the acquisition of t wait in its line, or enter it, like any other.
func (t *ticket) goOn() { t.Manager.Spawn(func() { t.send(t.acquisition, t.arrival) }) }
