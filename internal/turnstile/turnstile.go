// Package turnstile is the local half of a Mutex and of an RWMutex: it lets the
// goroutines of one process share places in a line.
package turnstile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A Turnstile lets the goroutines of one process share places in a line.
//
// They queue locally, in the order in which they come, and the process has at
// most one place in the line that waits on behalf of the first of them. What
// the process has got it passes on among its goroutines without asking the
// servers: a hold for one from goroutine to goroutine, a hold for several by
// letting others join. Either is bounded while somebody else waits.
//
// The zero value holds nothing, and can do nothing else than say so.
//
// Who is let in when is decided by its machine. What the machine cannot do, because
// it waits for somebody or asks the servers, is done here.
type Turnstile struct {
	Manager *session.Manager
	Path    string
	Line    line.Line
	Entries *Entries // shared by all locks of a kind: nobody writes to it

	mu      sync.Mutex
	machine machine
	freed   chan struct{} // if not nil, closed when something is not held any more; guarded by mu
	reading *reading      // if something is held for several; guarded by mu

	retain     time.Duration // how long a place is kept that nobody has; 0 if none is
	retentions *Retentions
}

// An Entry is how contenders of one mode enter a line.
type Entry struct {
	Base string    // of their names
	Rule line.Rule // who stands in their way
	Op   string    // for the observer; "" for what is a part of something else
}

// Entries are how contenders of each mode enter a line. What one mode is enough for has
// no entry of the other, and nil is none at all.
type Entries [Shared + 1]Entry

// Of returns the entry of mode.
func (es *Entries) Of(mode Mode) Entry {
	if es == nil {
		return Entry{}
	}
	return es[mode]
}

// Untold returns the same of what is a part of something else.
func (es *Entries) Untold() *Entries {
	part := *es
	for mode := range part {
		part[mode].Op = ""
	}
	return &part
}

// A reading lasts from the moment in which a process holds something for several
// until it holds nothing of that kind. Who has one of several shares, and no
// handle, does not know which: so the loss of one is the loss of all.
type reading = session.Ending

// A Behind is whom a wait is for, as far as is known, and how many are ahead.
type Behind struct {
	Own   *line.Claim // what a goroutine of this process holds, or nil
	Head  line.Head   // the first in the line, unless it is that
	Mode  Mode
	Place int
}

// Init makes q the turnstile of ln. What it holds may change hands so often before
// others are asked after; if that is 0 every goroutine has a place of its own.
func (q *Turnstile) Init(m *session.Manager, path string, ln line.Line, handoffs int, entries *Entries) {
	q.Manager, q.Path, q.Line, q.Entries = m, path, ln, entries
	q.machine.handoffs = handoffs
}

// Retain has q keep its place for up to d when nobody has it, as one of those that
// all may keep together.
func (q *Turnstile) Retain(d time.Duration, all *Retentions) {
	q.retain, q.retentions, q.machine.retains = d, all, true
}

// step tells the machine of an event, and does what it says.
func (q *Turnstile) step(event func(m *machine)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	event(&q.machine)
	actions := q.machine.actions()
	for _, a := range actions {
		q.perform(a)
	}
	clear(actions)
	q.machine.out = actions[:0] // for the next
}

// perform does what the machine says, of which nothing takes time. It is called
// with mu held.
func (q *Turnstile) perform(a action) {
	switch a.verb {
	case admit:
		t := a.use.share
		a.use.grant = claimOf(t).Grant(q.Entries.Of(t.mode).Op)
		if a.waiter != nil {
			close(a.waiter.over)
		}
	case refuse:
		close(a.waiter.over)
	case seek:
		a.acquisition.begin()
		q.Manager.Spawn(func() { q.send(a.acquisition, nil) })
	case cancel:
		a.acquisition.cancel()
	case join:
		q.read(a.share)
	case ask:
		q.Manager.Spawn(func() {
			waits, err := claimOf(a.share).Anyone(q.Entries.Of(Exclusive).Base)
			q.step(func(m *machine) { m.answered(a.share, waits || err != nil) })
		})
	case askAhead:
		a.question.done = make(chan struct{})
		q.Manager.Spawn(func() {
			defer close(a.question.done)
			others, err := claimOf(a.share).AnyoneElse()
			a.question.others = others || err != nil
			q.step(func(m *machine) { m.heard(a.share, a.question) })
		})
	case lose:
		c := claimOf(a.share)
		c.Lose(c.Incarnation.Deleted())
	case drop:
		if q.machine.kept != a.share {
			q.unkeep(a.share) // it was kept once; a keep that belongs to this drop has begun a new one
		}
		if q.machine.present(Shared, func(*share) bool { return true }) == nil {
			q.reading = nil
		}
		if q.freed != nil {
			close(q.freed)
			q.freed = nil
		}
	case end:
		a.use.grant.End()
	case keep:
		if !q.keep(a.share, a.use) {
			q.machine.unkept(a.share)
		}
	case reuse:
		a.share.retention.used()
	case discard:
		q.unkeep(a.share)
		q.Manager.Spawn(claimOf(a.share).Discard)
	}
}

// keep keeps the place of t, which u was the last use of. It fails if that is lost, or
// too many are kept. It is called with mu held, as unkeep is.
func (q *Turnstile) keep(t *share, u *use) bool {
	if t.retention == nil && !q.beginRetention(t) {
		return false
	}
	e, kept := u.grant.Keep()
	if !kept {
		q.unkeep(t)
		return false
	}
	if u.event = nothing; q.Manager.Config.Observe != nil {
		u.event = func() { q.Manager.Observe(e) }
	}
	t.retention.unused()
	return true
}

func nothing() {}

// unkeep ends the retention of t, if it has one.
func (q *Turnstile) unkeep(t *share) {
	if r := t.retention; r != nil {
		t.retention = nil
		q.retentions.remove(r)
		close(r.over)
	}
}

// beginRetention begins one of t, unless too many places are in use.
func (q *Turnstile) beginRetention(t *share) bool {
	if session.IsClosed(q.Manager.Closing) {
		return false
	}
	r := &retention{over: make(chan struct{}), bell: make(chan struct{}, 1)}
	r.end = func() { q.endRetention(t, r) }
	if !q.retentions.add(r, q.Manager.Spawn) {
		return false
	}
	t.retention = r
	q.Manager.Spawn(func() { q.lookAfter(t, r) })
	return true
}

// endRetention ends r, that of t, and gives up the place if nobody has it.
func (q *Turnstile) endRetention(t *share, r *retention) {
	q.step(func(m *machine) {
		switch {
		case t.retention != r: // it has ended
		case m.kept == t:
			m.recalled(t)
		default:
			q.unkeep(t)
		}
	})
}

// lookAfter is the goroutine of r, the retention of t.
func (q *Turnstile) lookAfter(t *share, r *retention) {
	c := claimOf(t)
	timer := time.NewTimer(q.retain)
	defer timer.Stop()
	for {
		// Of several that are ready it does not matter which is picked: what has
		// been in use meanwhile stays, and the others give up what nobody has.
		select {
		case <-c.Recall():
			r.end()
			return
		case <-c.Incarnation.Ctx.Done():
			r.end()
			return
		case <-r.over:
			return
		case <-r.bell:
			timer.Reset(q.retain)
		case <-timer.C:
			left, dozes := q.retain, false
			q.step(func(m *machine) {
				if left -= r.unusedFor(); left <= 0 && t.retention == r {
					m.recalled(t)
				}
				dozes = r.doze()
			})
			switch {
			case left <= 0:
				return
			case !dozes:
				timer.Reset(left)
			}
		}
	}
}

func claimOf(t *share) *line.Claim { return t.claim.(*line.Claim) }

// read makes t, which is for several, a part of the present reading. It is called
// with mu held.
func (q *Turnstile) read(t *share) {
	if q.reading == nil {
		q.reading = new(reading)
	}
	r := q.reading
	claimOf(t).AfterLoss(func(why error) { r.End(why) })
}

// Waited tells of a wait in mode that is over.
func (q *Turnstile) Waited(mode Mode, start time.Time, err error) {
	q.Manager.Waited(q.Entries.Of(mode).Op, q.Path, start, err)
}

// Regain is a grant of the place that q keeps, if it keeps one that is good for that.
func (q *Turnstile) Regain(mode Mode, pin bool) *line.Grant {
	if q.retain == 0 {
		return nil
	}
	var u *use
	q.step(func(m *machine) { u = m.regain(mode, pin) })
	if u == nil {
		return nil
	}
	if q.Manager.Config.Observe != nil {
		q.Waited(mode, time.Now(), nil)
	}
	return u.grant
}

// Acquire waits for a grant; pin says that it is that of a Do. If it fails,
// behind is whom it waited for.
func (q *Turnstile) Acquire(ctx context.Context, mode Mode, pin bool) (g *line.Grant, behind Behind, err error) {
	if q.machine.handoffs == 0 { // which never changes
		// Everyone has a place of its own in the line.
		var ahead line.Ahead
		var u *use
		enter := func(t *share) bool {
			q.step(func(m *machine) { u = m.enter(t, pin) })
			return u != nil
		}
		a, err := q.seek(ctx, mode, &ahead, nil, enter)
		for a != nil {
			a.Wait(ctx)
			a, err = q.seek(ctx, mode, &ahead, a, enter)
		}
		if err != nil {
			return nil, q.behindOf(ahead.Now()), err
		}
		return u.grant, Behind{}, nil
	}
	w := &waiter{mode: mode, pin: pin, over: make(chan struct{})}
	q.step(func(m *machine) { m.arrive(w) })
	return q.await(ctx, w)
}

// await is the rest of Acquire for w, which has queued.
func (q *Turnstile) await(ctx context.Context, w *waiter) (g *line.Grant, behind Behind, err error) {
	select {
	case <-w.over:
		if w.err != nil {
			// The Session may be closed: that reaches the acquisition and us at once, and
			// whichever is first, we have waited behind the same.
			return nil, q.behind(w), w.err
		}
		if session.IsClosed(q.Manager.Closing) { // handed over as the Session is being closed: then nothing new is held
			q.renounce(w)
			return nil, Behind{}, q.Manager.Failure()
		}
		return w.use.grant, Behind{}, nil
	case <-ctx.Done():
		behind := q.behind(w)
		return nil, behind, q.abandon(ctx, w)
	case <-q.Manager.Closing:
		// Who has what we wait for may never give it up.
		behind := q.behind(w)
		q.abandon(ctx, w)
		return nil, behind, q.Manager.Failure()
	}
}

// behind returns whom w waits for: in the line those ahead of the acquisition, if there
// is one, and then the goroutines of this process that came before.
func (q *Turnstile) behind(w *waiter) Behind {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.machine
	s, before := m.acquiring, max(slices.Index(m.waiting, w), 0)
	if w.sought != nil { // it has failed, by now or while we came here
		s, before = w.sought, w.before
	}
	if s != nil {
		if head, place := s.ahead.Now(); place > 0 {
			return q.behindOf(head, place+before)
		}
	}
	if len(m.held) > 0 && !m.held[0].lost() {
		return Behind{Own: claimOf(m.held[0]), Mode: m.held[0].mode, Place: 1 + before}
	}
	return Behind{}
}

// behindOf is behind head, which is in the mode that its name says.
func (q *Turnstile) behindOf(head line.Head, place int) Behind {
	mode := Exclusive
	if c, ok := line.ParseChild(head.Name, q.Line.Bases...); ok && c.Base == q.Entries.Of(Shared).Base {
		mode = Shared
	}
	return Behind{Head: head, Mode: mode, Place: place}
}

// send is the goroutine of an acquisition, who begins as a if that has entered already.
// It ends while s waits for others to go, and another goes on.
func (q *Turnstile) send(s *acquisition, a *line.Arrival) {
	a, err := q.seek(s.ctx, s.mode, &s.ahead, a, q.find)
	if a != nil {
		s.waits++
		w := &waking{wait: s.waits}
		w.wake = a.Then(func() { q.send(s, a) })
		s.mayWake(w)
		if s.ctx.Err() != nil {
			s.cancel() // who did it before has found no wake, or one of a wait before this
		}
		return
	}
	if err != nil {
		q.step(func(m *machine) { m.failed(err) })
	}
	s.cancel()
	close(s.done)
}

// A waking ends a wait for others.
type waking struct {
	wait int // which of them
	wake func()
}

// mayWake makes w known to who calls back. The goroutine that goes on may have begun
// another wait already, and made that known.
func (s *acquisition) mayWake(w *waking) {
	for {
		last := s.wake.Load()
		if last != nil && last.wait > w.wait || s.wake.CompareAndSwap(last, w) {
			return
		}
	}
}

// begin makes what is needed to wait, and to be called back.
func (s *acquisition) begin() {
	s.ctx, s.end = context.WithCancel(context.Background())
	s.done = make(chan struct{})
}

// cancel calls s back.
func (s *acquisition) cancel() {
	s.end()
	if w := s.wake.Load(); w != nil {
		w.wake()
	}
}

// find is told that the acquisition has got t, and reports whether that can be used.
func (q *Turnstile) find(t *share) (usable bool) {
	var taken bool
	q.step(func(m *machine) { usable, taken = m.found(t) })
	if usable && !taken {
		claimOf(t).GiveBack()
	}
	return usable
}

// seek gets a claim in the line that settle takes, or returns what waits there for others
// to go. If a is not nil it stands there already, and was not kept waiting by what is
// lost here.
//
// What is still held here when the servers grant a claim that could not be beside
// it is lost, and its goroutine has not noticed. Nobody is told that he has the
// claim before that one has noticed, which keeps goroutines of one process apart
// even then. But that can take for ever, so the claim is given back meanwhile:
// other processes need not wait for it.
func (q *Turnstile) seek(ctx context.Context, mode Mode, ahead *line.Ahead, a *line.Arrival, settle func(t *share) bool) (waits *line.Arrival, err error) {
	e := q.Entries.Of(mode)
	for {
		if a == nil {
			if err := q.awaitNoLoss(ctx); err != nil {
				return nil, err
			}
		}
		var c *line.Claim
		if c, a, err = q.Line.Proceed(ctx, a, e.Base, q.Manager.Owner, e.Rule, ahead); a != nil || err != nil {
			return a, err
		}
		if settle(&share{claim: c, mode: mode}) {
			return nil, nil
		}
		q.Manager.GiveUp(ctx, c.GiveBack)
		if ctx.Err() != nil {
			return nil, session.CtxErr(ctx)
		}
	}
}

// awaitNoLoss waits until everybody here has noticed what he has lost.
func (q *Turnstile) awaitNoLoss(ctx context.Context) error {
	for {
		freed := q.untilFreed()
		if freed == nil {
			return nil
		}
		// If ctx has ended as well it does not matter which is picked: whoever
		// acquires looks at ctx first.
		select {
		case <-freed:
		case <-ctx.Done():
			return session.CtxErr(ctx)
		case <-q.Manager.Closing:
			return q.Manager.Failure()
		}
	}
}

// untilFreed returns what is closed when something is not held any more, or nil
// if nothing that is held is lost.
func (q *Turnstile) untilFreed() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.ContainsFunc(q.machine.held, (*share).lost) {
		return nil
	}
	if q.freed == nil {
		q.freed = make(chan struct{})
	}
	return q.freed
}

// abandon takes w out of the queue because its ctx has ended.
func (q *Turnstile) abandon(ctx context.Context, w *waiter) error {
	var left, last bool
	var s *acquisition
	q.step(func(m *machine) {
		left, s = m.withdraw(w), m.acquiring
		last = s != nil && s.unwanted
	})
	if !left {
		// It was admitted at the same instant. The caller is told that its ctx
		// has ended, so it must not keep what it got.
		if w.err == nil {
			q.Manager.GiveUp(ctx, q.renounce(w).Finish)
		}
		return session.CtxErr(ctx)
	}
	if last {
		session.AwaitFor(s.done, session.Grace) // then nothing is left in the line
	}
	return session.CtxErr(ctx)
}

// Try makes one attempt at a grant. It is nil if somebody stands in the way.
func (q *Turnstile) Try(ctx context.Context, mode Mode) (*line.Grant, error) {
	start := time.Now()
	var u *use
	var busy bool
	q.step(func(m *machine) { u, busy = m.joinAtOnce(mode) })
	if u != nil {
		q.Waited(mode, start, nil)
		return u.grant, nil
	}
	if busy {
		return nil, q.Manager.Failure() // none unless the Session is closed
	}
	e := q.Entries.Of(mode)
	c, err := q.Line.Try(ctx, e.Base, q.Manager.Owner, e.Rule)
	if c == nil {
		return nil, err
	}
	// Another goroutine's acquisition may be in the line, but behind us.
	q.step(func(m *machine) { u = m.enter(&share{claim: c, mode: mode}, false) })
	if u == nil {
		// Another goroutine has got, and lost, it in the meantime, and does
		// not know it yet. See seek.
		q.Manager.GiveUp(ctx, c.GiveBack)
		return nil, nil
	}
	q.Waited(mode, start, nil)
	return u.grant, nil
}

// GiveUp is the end of a grant of mode, for a goroutine without a handle.
func (q *Turnstile) GiveUp(mode Mode) error { return q.BeginGiveUp(mode).Finish() }

// Leave is the end of g.
func (q *Turnstile) Leave(g *line.Grant) error { return q.BeginLeave(g).Finish() }

// BeginGiveUp is GiveUp in two parts: see Departure.
func (q *Turnstile) BeginGiveUp(mode Mode) *Departure {
	l := &Departure{q: q}
	l.decide(func(m *machine) *use { return m.anonymous(mode) })
	return l
}

// BeginLeave is Leave in two parts: see Departure.
func (q *Turnstile) BeginLeave(g *line.Grant) *Departure {
	l := &Departure{q: q, handle: true}
	l.decide(func(m *machine) *use { return m.useOf(g) }) // nil if it has been unlocked otherwise
	return l
}

// renounce gives up what w was admitted to as its wait ended. A reader who unlocks
// has no handle, and may have ended the use of w in the place of his own, which is
// then what nobody else will give up.
func (q *Turnstile) renounce(w *waiter) *Departure {
	l := &Departure{q: q, handle: true}
	l.decide(func(m *machine) *use {
		u := m.useOf(w.use.grant)
		if u == nil && w.mode == Shared && !w.pin {
			u = m.anonymous(Shared)
		}
		return u
	})
	return l
}

// A Departure is the end of one use. Which use it is, and what becomes of its share, is
// decided when the Departure is made, and Finish waits for what that takes. So a caller who
// finishes later, in a goroutine of its own, gives up nothing that was acquired in between.
type Departure struct {
	q      *Turnstile
	handle bool          // who leaves has the grant: the mode does not matter
	use    *use          // nil if there is none
	then   departure     // if there is
	moved  chan struct{} // if then is mustWait: see share
	stop   func()        // likewise
}

// decide tells the machine that who has the use that which returns goes.
func (l *Departure) decide(which func(m *machine) *use) {
	l.q.step(func(m *machine) {
		if l.use = which(m); l.use == nil {
			return
		}
		if l.then = m.leave(l.use); l.then == mustWait {
			l.moved, l.stop = l.use.share.moved, l.use.share.stop
		}
	})
}

// Finish must be called once.
func (l *Departure) Finish() error {
	for l.use != nil && l.then == mustWait {
		l.stop() // who gives up does not wait for servers that may not answer
		<-l.moved
		mine := l.use
		l.decide(func(m *machine) *use {
			// Whoever has come since has another. What is shared by now is not given up
			// by who has no handle and had it exclusively.
			if u := m.useOf(mine.grant); u != nil && (l.handle || u.share.mode == Exclusive) {
				return u
			}
			return nil
		})
	}
	u := l.use
	if u == nil {
		return line.ErrNotLocked
	}
	if l.then == mustAsk {
		question := u.share.ask
		<-question.done
		l.q.step(func(m *machine) { l.then = m.resume(u, question.others) })
	}
	switch l.then {
	case stays:
		return claimOf(u.share).Err()
	case passes:
		return nil
	case keeps:
		if u.event == nil {
			return u.grant.Release() // it could not be kept
		}
		u.event()
		return nil
	default:
		return u.grant.Release()
	}
}

// Txn is that of g. If g is not held any more it is line.ErrNotLocked.
//
// That g is held is looked at in the step that counts the transaction, and a release
// decides in a step too: either it knows of the transaction, or that is not begun.
func (q *Turnstile) Txn(ctx context.Context, g *line.Grant, ops []any) ([]zk.MultiResponse, error) {
	var t *share
	q.step(func(m *machine) { t = m.begin(g) })
	if t == nil {
		return nil, line.ErrNotLocked
	}
	rs, open, err := g.Txn(ctx, ops)
	if !open {
		q.step(func(m *machine) { m.ended(t) })
	}
	return rs, err
}

// Downgrade makes what is held exclusively shared. If that is given up meanwhile it is
// line.ErrNotLocked.
func (q *Turnstile) Downgrade(ctx context.Context) error {
	start := time.Now()
	moving, stop := context.WithCancel(ctx)
	defer stop()
	var t *share
	q.step(func(m *machine) {
		if t = m.exchange(); t != nil {
			t.moved, t.stop = make(chan struct{}), stop
		}
	})
	if t == nil {
		return line.ErrNotLocked
	}
	own, e := claimOf(t), q.Entries.Of(Shared)
	c, err := own.Beside(moving, e.Base, q.Manager.Owner)
	if err != nil {
		err = own.Explain(err)
		switch ended := moving.Err() != nil && errors.Is(err, moving.Err()); {
		case ended && ctx.Err() != nil: // by now; moving may have ended first
			err = session.CtxErr(ctx)
		case ended:
			err = line.ErrNotLocked
		}
	}
	var former string
	q.step(func(m *machine) {
		if err == nil {
			// From the moment in which the read node was made nobody could write,
			// so it does not matter when, or by whom, the other is deleted.
			former, err = own.Move(c, e.Op)
		}
		close(t.moved)
		m.exchanged(t, err == nil)
	})
	if err != nil {
		return err
	}
	q.Waited(Shared, start, nil)
	r := c.Incarnation.Remove(former)
	select {
	case <-r.Done:
	case <-r.Refused: // readers behind it wait, until the deletion has been allowed
	case <-c.Incarnation.Disconnection():
	case <-c.Incarnation.Ctx.Done(): // the loss is told to who holds what there is now
	case <-ctx.Done(): // it has been done; only the tidying is not over
	}
	return nil
}

// Beside returns a shared grant of q that stands beside g, a grant of from, which
// is of the same path.
func (q *Turnstile) Beside(ctx context.Context, from *Turnstile, g *line.Grant) (*line.Grant, error) {
	start := time.Now()
	var u *use
	alone := false
	from.step(func(m *machine) {
		if u = m.useOf(g); u != nil {
			// q knows nothing of from: nobody joins there what stands beside a writer. Nor
			// what stands beside a reader, at his place in the line: whoever joined it could
			// read within himself again, and so on for ever, ahead of a writer who waits.
			alone = from != q || u.share.mode == Shared
			// Before its end is decided on: it cannot go to somebody else now.
			u.share.beside = true
		}
	})
	if u == nil {
		return nil, line.ErrNotLocked // it has just been unlocked
	}
	own := claimOf(u.share)
	c, err := own.Beside(ctx, q.Entries.Of(Shared).Base, q.Manager.Owner)
	if err != nil {
		err = own.Explain(err)
	} else if err = own.Err(); err != nil {
		c.Leave() // what is given up stands for a while, and nobody gets anything beside it
	}
	if err != nil {
		q.Waited(Shared, start, err)
		return nil, err
	}
	q.step(func(m *machine) {
		t := &share{claim: c, mode: Shared, closed: alone}
		m.hold(t)
		u = m.admit(t, nil, false)
	})
	q.Waited(Shared, start, nil)
	return u.grant, nil
}

// Standing returns the end of what is held in the first of these modes in which something
// is held. It has come if that is lost, or nothing is held.
func (q *Turnstile) Standing(modes ...Mode) *session.Ending {
	q.mu.Lock()
	defer q.mu.Unlock()
	over := new(session.Ending)
	for _, mode := range modes {
		switch t := q.machine.present(mode, (*share).used); {
		case t == nil:
			continue
		case t.lost():
			over.End(t.claim.Err())
		case mode == Shared:
			return q.reading
		default:
			return t.uses[0].grant.Loss()
		}
		return over
	}
	over.End(line.ErrNotLocked)
	return over
}

// Wanted reports whether a goroutine of this process has what q is for, or waits
// for it.
func (q *Turnstile) Wanted() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.machine.held) > 0 || len(q.machine.waiting) > 0 || q.machine.acquiring != nil || q.machine.kept != nil
}

// Current returns what this process holds: exclusively, or else shared.
func (q *Turnstile) Current() (*line.Grant, Mode, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, mode := range []Mode{Exclusive, Shared} {
		if t := q.machine.present(mode, (*share).used); t != nil {
			return t.uses[len(t.uses)-1].grant, mode, nil
		}
	}
	return nil, 0, line.ErrNotLocked
}

// ModeOf returns the mode in which g is held, if it is.
func (q *Turnstile) ModeOf(g *line.Grant) (mode Mode, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.machine.useOf(g); u != nil {
		return u.share.mode, true
	}
	return 0, false
}
