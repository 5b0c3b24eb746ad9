package turnstile

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/zsync/zsync/internal/line"
)

// A machine decides who is let in. An event goes in, and what is to be done
// comes out; it locks nothing, waits for nothing and asks nobody. Whoever tells it
// of events sees to it that they come one after another, and performs what comes
// out of one before the next.
//
//  1. Queue behind the goroutines that came before.
//  2. The first in the queue joins what the process holds for several, unless
//     it is used up. Then one listing tells whether somebody waits behind it:
//     if nobody does it is as new, otherwise nobody joins it any more.
//  3. Otherwise one goroutine, the acquisition, acquires a claim for it, and for
//     those right behind it if they can share it.
//  4. Who leaves last gives up the claim, or passes it on.
type machine struct {
	handoffs  int          // how often a claim may change hands before others are asked after
	retains   bool         // a place may be kept that nobody has
	held      []*share     // what this process holds, until it is given up even if it is lost
	waiting   []*waiter    // goroutines of this process, in order
	acquiring *acquisition // who waits in the line for the first of waiting
	kept      *share       // the place that is kept, if nobody has it; then nothing is held exclusively, and nobody waits
	out       []action
}

// A Mode is how something is held.
type Mode int8

const (
	Exclusive Mode = iota // by one goroutine
	Shared                // by any number
)

// A share is a claim in the hands of goroutines of this process: of one if the
// mode is exclusive, else of any number. Each has a use of its own.
type share struct {
	claim  claim
	mode   Mode
	closed bool      // nobody may join it any more
	asking bool      // somebody is asking whether others wait
	beside bool      // a reader may stand beside it, and stay when it goes: it cannot be passed on
	moving bool      // Downgrade is exchanging its znode
	uses   []*use    // of those who have it, in the order in which they got it
	passed int       // hand-overs or joins since the servers were last asked
	ask    *question // if the servers have been asked ahead
	lead   int       // how many hand-overs ahead they are asked next; 0 if no answer has told yet
	open   int       // transactions of those who have, or had, it that may be applied yet

	moved     chan struct{} // closed when moving is over; not the machine's
	stop      func()        // ends moving without its exchange, unless that has been done; not the machine's
	retention *retention    // if it has been kept, and not been recalled since; not the machine's
}

// A claim is what the machine has to know of a line.Claim.
type claim interface {
	Err() error // not nil if it is lost
	WasAsked() bool
	Alone() bool // nobody else is in the line, as a watch would have told
	Ready() bool // it may be granted again though nobody has had it meanwhile: it is not lost, for one
}

func (t *share) lost() bool { return t.claim.Err() != nil }
func (t *share) used() bool { return len(t.uses) > 0 }

// findLoss has the claim find out whether it is lost, and tell who has it.
func (t *share) findLoss() { t.claim.Err() }

// A use is what one goroutine has of a share.
type use struct {
	share *share
	pin   bool // it is that of a Do or RDo

	grant *line.Grant // made when it is admitted; not the machine's
	event func()      // tells the observer of its end, if its place was kept; not the machine's
}

// A waiter is one goroutine that waits for a use.
type waiter struct {
	mode Mode
	pin  bool // it asks for Do or RDo
	use  *use // when it was admitted
	err  error
	over chan struct{} // closed when use or err is set; not the machine's

	sought *acquisition // with err: who waited in the line on its behalf
	before int          // and how many goroutines were before it
}

// An acquisition waits in the line, on behalf of the waiting goroutines, for a claim.
type acquisition struct {
	mode     Mode
	unwanted bool // cancelled because nobody waits for it any more

	// These are not the machine's: see begin.
	ahead line.Ahead
	ctx   context.Context
	end   context.CancelFunc     // of ctx
	waits int                    // for others, so far; belongs to the goroutine that begins one
	wake  atomic.Pointer[waking] // of the last of them, if there was one
	done  chan struct{}          // closed when nothing of it is left
}

// A question is whether anybody else waits, asked after so many hand-overs.
type question struct {
	at int

	done   chan struct{} // closed when others is set; not the machine's
	others bool          // or it is not known
}

// An action is what is to be done about an event. Which of the fields are set
// depends on the verb.
type action struct {
	verb        verb
	share       *share
	use         *use
	waiter      *waiter
	acquisition *acquisition
	question    *question
}

type verb int

const (
	admit    verb = iota // make the grant of a use and, if it is of a waiter, wake that
	refuse               // wake a waiter, who has an error
	seek                 // send an acquisition to the line
	cancel               // call an acquisition back
	join                 // a share is for several now
	ask                  // ask whether somebody waits behind a share: see answered
	askAhead             // the same for a question: see resume
	lose                 // a share is lost, as its claim should have known
	drop                 // a share is not held any more
	end                  // end the grant of a use, not the claim's
	keep                 // end the grant of a use, and keep the claim's place: or else see unkept
	reuse                // a place that was kept is in use again
	discard              // give up a place that was kept
)

func (m *machine) emit(a action) { m.out = append(m.out, a) }

// actions returns what is to be done, in this order.
func (m *machine) actions() []action {
	out := m.out
	m.out = nil
	return out
}

// Events.

// arrive queues w.
func (m *machine) arrive(w *waiter) {
	m.waiting = append(m.waiting, w)
	m.advance()
}

// withdraw takes w out of the queue, and reports whether it was still there.
// Otherwise it has been admitted or refused.
func (m *machine) withdraw(w *waiter) bool {
	i := slices.Index(m.waiting, w)
	if i < 0 {
		return false
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.advance()
	return true
}

// joinAtOnce lets somebody in who does not wait, by what the process holds for
// several. It is nil if that cannot be done; busy says that somebody of this
// process is in the way.
func (m *machine) joinAtOnce(mode Mode) (u *use, busy bool) {
	if u = m.regain(mode, false); u != nil {
		return u, false
	}
	m.discard()
	busy = m.occupied(mode) || slices.ContainsFunc(m.waiting, func(w *waiter) bool {
		return mode == Exclusive || w.mode == Exclusive
	})
	if t := m.open(); !busy && mode == Shared && t != nil && t.passed < m.handoffs {
		t.passed++
		return m.admit(t, nil, false), false
	}
	return nil, busy
}

// enter takes t, a new share whose turn has come, for somebody who does not
// wait. It is nil if t may not be given to a goroutine of this process.
func (m *machine) enter(t *share, pin bool) *use {
	if !m.usable(t) {
		return nil
	}
	m.hold(t)
	return m.admit(t, nil, pin)
}

// found tells that the acquisition has got t, a new share, and gives it to those it was
// sought for: the first of the queue, and those right behind who can share it. If t
// is not usable the acquisition has to go on; if it is, but was not taken, all who waited
// for it have left.
func (m *machine) found(t *share) (usable, taken bool) {
	if !m.usable(t) {
		return false, false
	}
	m.acquiring = nil
	if !m.first(t.mode) {
		m.advance()
		return true, false
	}
	m.hold(t)
	m.pass(t)
	for t.mode == Shared && m.first(t.mode) {
		m.pass(t)
	}
	m.advance()
	return true, true
}

// failed tells that the acquisition has got nothing. What retrying cannot cure, it
// cannot cure for any of those who wait.
func (m *machine) failed(err error) {
	s := m.acquiring
	m.acquiring = nil
	if !s.unwanted {
		for i, w := range m.waiting {
			w.err, w.sought, w.before = err, s, i
			m.emit(action{verb: refuse, waiter: w})
		}
		m.waiting = nil
	}
	m.advance()
}

// answered tells whether anybody waits behind t, or that it is not known.
func (m *machine) answered(t *share, others bool) {
	t.asking = false
	if t.passed = 0; others {
		t.closed = true
	}
	m.advance()
}

// A departure is what becomes of a share when somebody leaves it.
type departure int

const (
	stays    departure = iota // others have it
	passes                    // the next of this process has it
	leaves                    // it is to be given up
	keeps                     // nobody has it, and its place is kept
	mustAsk                   // that is known when the question t.ask is answered: see resume
	mustWait                  // until its znode has been exchanged; nothing has been done
)

// leave tells that who has u goes.
func (m *machine) leave(u *use) departure {
	t := u.share
	if t.moving {
		return mustWait
	}
	// At once, so that a second Unlock does not find it.
	t.uses = slices.DeleteFunc(t.uses, func(x *use) bool { return x == u })
	if len(t.uses) > 0 {
		t.findLoss() // before u ends: whoever follows it is told so
		m.emit(action{verb: end, use: u})
		return stays
	}
	switch {
	case t.mode == Shared || m.handoffs == 0 || !m.mayPass(t):
		return m.vacate(t, u)
	case t.claim.Alone():
		// Nobody else waits, or the event of his coming is on its way. What was asked
		// before somebody came says nothing of him: from then on everything is counted
		// anew.
		t.passed, t.ask = 0, nil
		m.emit(action{verb: end, use: u})
		m.pass(t)
		return passes
	case t.passed >= m.handoffs:
		// Somebody of this process waits, and has waited long enough that
		// others must be asked after.
		return mustAsk
	}
	return m.handOver(t, u)
}

// resume goes on where leave had to ask.
func (m *machine) resume(u *use, others bool) departure {
	t := u.share
	at := t.ask.at
	t.ask = nil
	if others || !m.mayPass(t) {
		return m.vacate(t, u)
	}
	t.passed -= at
	return m.handOver(t, u)
}

// mayPass reports whether t, which nobody has, may go to the next of this process.
//
// A transaction without a reply may lie anywhere on its way, and is applied as long as
// the znode of t stands: so the znode goes, and what has not been applied by then never
// will be.
func (m *machine) mayPass(t *share) bool {
	return !t.beside && t.open == 0 && m.first(Exclusive) && !t.lost() && !t.claim.WasAsked()
}

// handOver hands t, which u was the use of, to the next of this process.
//
// Before all hand-overs are used it asks whether others wait, and has the line
// watched: if nobody does nothing is counted, nor asked, until somebody comes. It asks
// ahead, so that the answer is there when it is needed: the first time when half of them are used, and then as late as
// the last answer allows, twice over. An answer says who was in the line when it was
// asked, so the hand-overs since then count: who comes right behind one question is
// seen by the next, and waits for no more hand-overs in a row than are allowed.
func (m *machine) handOver(t *share, u *use) departure {
	t.passed++
	m.emit(action{verb: end, use: u})
	m.pass(t)
	lead := m.handoffs / 2
	if t.lead > 0 {
		lead = min(t.lead, lead)
	}
	if t.ask == nil && t.passed >= m.handoffs-lead {
		t.ask = &question{at: t.passed}
		m.emit(action{verb: askAhead, share: t, question: t.ask})
	}
	return passes
}

// heard tells that q, which was asked ahead of t, has an answer: so many hand-overs
// went by meanwhile.
func (m *machine) heard(t *share, q *question) { t.lead = 2 * (max(t.passed-q.at, 0) + 1) }

// vacate is the end of t, which u was the last use of, in the hands of this process:
// its place is kept, or given up.
//
// Whoever comes at this same instant has fired the watch, and t is not alone; or
// does later, and then recalled is told.
func (m *machine) vacate(t *share, u *use) departure {
	if !m.retains || t.mode != Exclusive || t.beside || t.open > 0 || len(m.waiting) > 0 || m.kept != nil ||
		!t.claim.Alone() || t.lost() || t.claim.WasAsked() {
		return m.giveUp(t)
	}
	m.kept = t
	m.emit(action{verb: keep, use: u, share: t})
	m.giveUp(t)
	return keeps
}

// unkept tells that the place of t cannot be kept after all.
func (m *machine) unkept(t *share) {
	if m.kept == t {
		m.kept = nil
	}
}

// recalled tells that t, if nobody has it, is to be kept no more.
func (m *machine) recalled(t *share) {
	if m.kept == t {
		m.discard()
	}
}

// discard gives up the place that is kept, if there is one.
func (m *machine) discard() {
	if m.kept != nil {
		m.emit(action{verb: discard, share: m.kept})
		m.kept = nil
	}
}

// regain is a use of the place that is kept, if that is good for mode. Otherwise it is
// kept until whoever wants it arrives.
func (m *machine) regain(mode Mode, pin bool) *use {
	if !m.good(mode) {
		return nil
	}
	return m.admit(m.retake(), nil, pin)
}

// good reports whether a place is kept that may be granted for mode again: nobody else
// has come, and the session is certain enough. Whoever wants what is not good gives it
// up, and goes to the line, where nobody is told that he holds anything before his
// session is that certain.
func (m *machine) good(mode Mode) bool {
	return m.kept != nil && mode == Exclusive && !m.kept.claim.WasAsked() && m.kept.claim.Ready()
}

// retake takes the place that is kept into the hands of this process.
func (m *machine) retake() *share {
	t := m.kept
	m.kept = nil
	m.held = append(m.held, t)
	m.emit(action{verb: reuse, share: t})
	return t
}

// giveUp takes t, which nobody has any more, out of the hands of this process.
// Those of this process who still wait go to the back of the line.
func (m *machine) giveUp(t *share) departure {
	m.settle(t)
	m.held = slices.DeleteFunc(m.held, func(x *share) bool { return x == t })
	m.emit(action{verb: drop, share: t})
	m.advance()
	return leaves
}

// exchange begins the exchange of the znode of what is held exclusively, and
// returns that; nil if there is none, or it is being exchanged.
func (m *machine) exchange() *share {
	t := m.present(Exclusive, (*share).used)
	if t == nil || t.moving {
		return nil
	}
	t.moving = true
	return t
}

// exchanged tells that the exchange is over. If it was done, t is for several now.
func (m *machine) exchanged(t *share, done bool) {
	t.moving = false
	if !done {
		return
	}
	m.settle(t)
	t.mode, t.passed = Shared, 0
	m.emit(action{verb: join, share: t})
	m.advance()
}

// begin tells of a transaction of who has g, and returns the share that it is part of;
// nil if nobody has g any more.
func (m *machine) begin(g *line.Grant) *share {
	u := m.useOf(g)
	if u == nil {
		return nil
	}
	u.share.open++
	return u.share
}

// ended tells that a transaction of t has been applied, or never will be.
func (m *machine) ended(t *share) { t.open-- }

// What events do.

// settle is for t, which was held exclusively and whose znode goes. If a transaction of it
// may be applied until then, nobody reads by what stands beside it but those who do so
// already: who comes now goes to the line, behind that znode.
func (m *machine) settle(t *share) {
	if t.mode == Shared || t.open == 0 {
		return
	}
	for _, h := range m.held {
		h.closed = true
	}
}

// usable reports whether t, whose turn has come, may be given to a goroutine of
// this process. What could not stand beside it is lost: the servers would not have
// let t's turn come before that was gone.
func (m *machine) usable(t *share) bool {
	if t.lost() {
		return false // what is held may have been got since, in the next session
	}
	m.discard() // what is kept here would have kept t's turn from coming
	for _, h := range m.held {
		if t.mode == Exclusive || h.mode == Exclusive {
			m.emit(action{verb: lose, share: h})
		}
	}
	return !m.occupied(t.mode)
}

// occupied reports whether something stands that must go before a goroutine of
// this process is told that it holds mode. What is lost must go even before another
// reader comes: RUnlock cannot tell whose hold it gives up, and would tell the wrong
// one of the loss.
func (m *machine) occupied(mode Mode) bool {
	return slices.ContainsFunc(m.held, func(t *share) bool {
		return mode == Exclusive || t.mode == Exclusive || t.lost()
	})
}

// hold puts t, whose turn has come, into the hands of this process.
func (m *machine) hold(t *share) {
	m.held = append(m.held, t)
	if t.mode == Shared {
		m.emit(action{verb: join, share: t})
	}
}

// admit makes somebody one who has t: w, or who does not wait if w is nil.
func (m *machine) admit(t *share, w *waiter, pin bool) *use {
	u := &use{share: t, pin: pin}
	t.uses = append(t.uses, u)
	if w != nil {
		w.use = u
	}
	m.emit(action{verb: admit, use: u, waiter: w})
	return u
}

// pass gives t to the first of the queue.
func (m *machine) pass(t *share) {
	w := m.waiting[0]
	if m.waiting[0] = nil; len(m.waiting) == 1 {
		m.waiting = m.waiting[:0] // and its memory for the next
	} else {
		m.waiting = m.waiting[1:]
	}
	m.admit(t, w, w.pin)
}

// first reports whether the first of the queue waits for mode.
func (m *machine) first(mode Mode) bool { return len(m.waiting) > 0 && m.waiting[0].mode == mode }

// advance does what can be done for the first of the queue. It is called whenever
// the queue or what is held has changed.
func (m *machine) advance() {
	switch {
	case len(m.waiting) == 0:
	case m.good(m.waiting[0].mode):
		m.pass(m.retake())
	default:
		m.discard()
	}
	asking := m.joinAll()
	if s := m.acquiring; s != nil && !m.first(s.mode) {
		// It tells when it has gone, and nobody joins it meanwhile.
		s.unwanted = true
		m.emit(action{verb: cancel, acquisition: s})
		return
	}
	if m.acquiring == nil && !asking && len(m.waiting) > 0 && !m.occupied(Shared) {
		m.acquiring = &acquisition{mode: m.waiting[0].mode} // Step 3.
		m.emit(action{verb: seek, acquisition: m.acquiring})
	}
}

// joinAll lets the first of the queue join what is held, as long as they may. It
// reports whether the servers must be asked before the next may.
func (m *machine) joinAll() (asking bool) {
	for m.first(Shared) && !m.occupied(Shared) { // Step 2.
		t := m.open()
		if t == nil {
			return false
		}
		if t.passed >= m.handoffs {
			if !t.asking {
				t.asking = true
				m.emit(action{verb: ask, share: t})
			}
			return true
		}
		t.passed++
		m.pass(t)
	}
	return false
}

// Questions, which change nothing.

// open returns the share that a reader may join, if there is one.
func (m *machine) open() *share {
	for _, t := range slices.Backward(m.held) {
		if t.mode == Shared && !t.closed && t.used() {
			return t
		}
	}
	return nil
}

// present returns the share that a goroutine without a handle has in mode, of
// those that are so: what is lost first, so that the loss is told, and then the
// newest.
func (m *machine) present(mode Mode, so func(t *share) bool) *share {
	var found *share
	for _, t := range slices.Backward(m.held) {
		if t.mode != mode || !so(t) {
			continue
		}
		if len(m.held) == 1 || t.lost() { // the only one is the answer either way
			return t
		}
		if found == nil {
			found = t
		}
	}
	return found
}

// anonymous returns the use in mode that is given up by who has no handle, or nil.
func (m *machine) anonymous(mode Mode) *use {
	t := m.present(mode, func(t *share) bool { return t.anonymous() != nil })
	if t == nil {
		return nil
	}
	return t.anonymous()
}

// anonymous returns the use that is given up by who has no handle: not that of a
// Do, unless it is the only one.
func (t *share) anonymous() *use {
	for _, u := range slices.Backward(t.uses) {
		if !u.pin {
			return u
		}
	}
	if t.mode == Exclusive && t.used() {
		return t.uses[0]
	}
	return nil
}

// useOf returns the use of g, if it is still one.
func (m *machine) useOf(g *line.Grant) *use {
	for _, t := range m.held {
		for _, u := range t.uses {
			if u.grant == g {
				return u
			}
		}
	}
	return nil
}
