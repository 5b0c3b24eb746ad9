// Package lock is the common part of all primitives with waiters: a line of contenders, their way
// to a turn, holds and their end, and goroutines of one process that share a place in the line. The
// root package has the methods that programs call.
package lock

// This file shares a place in the line among the goroutines of one process: it has their list of
// waiters, and their holds. The order of processes is in line.go.

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// An Entry is how contenders of one mode enter a line.
type Entry struct {
	Base string // of their names
	Rule Rule   // which contender blocks them
	Op   string // for the observer; "" if the lock is a part of another primitive
}

// A Lock is a Mutex, an RWMutex or an Election as the goroutines of one process use it. It is built like
// golang.org/x/sync/semaphore: one mutex, a list of waiters, and each waiter waits in the
// goroutine of its caller.
//
//   - Acquire puts the caller at the end of the list. If this process has a hold that the first
//     waiter can share, the waiter gets a grant of that hold. Otherwise, the first waiter waits in
//     the line, on behalf of the waiters behind it. If its context ends before its turn has come,
//     the next waiter takes over its place.
//   - Release gives an exclusive hold to the first waiter, without a request: a handoff. While
//     other contenders are in the line, or may be, it makes at most Handoffs handoffs in a row. In
//     the same way, at most Handoffs readers join a shared hold before the line is listed again.
//
// The zero value holds nothing, and can only report that.
type Lock struct {
	Manager *session.Manager
	Path    string
	Line    Line
	Entries *[Shared + 1]Entry // shared by all locks of a kind, so it is never written

	Handoffs int           // most handoffs in a row while others wait; 0: each goroutine has its own place in the line
	Data     []byte        // of its znodes in the line
	Elects   bool          // an Election: it has no handoffs, and a waiter does not wait for the release of a lost hold
	Retain   time.Duration // how long a place without a goroutine is kept; 0 if none is kept
	Kept     *atomic.Int64 // the number of places that the session keeps

	mu      sync.Mutex
	owed    bool            // the release of a lost hold that forget has dropped may still come
	waiting []*waiter       // in the order in which they came
	holds   []*Claim        // of this process, in the order in which they were granted; a lost hold, too, until its release
	idle    *Claim          // the kept place, or nil; while there is one, no goroutine waits, or holds exclusively
	reading *session.Ending // ended by the first loss of a shared hold; nil if there is none
	watch   *time.Timer     // calls review; nil unless a goroutine waits for a hold of this process
}

// A waiter is a goroutine in Acquire.
type waiter struct {
	mode  HoldMode
	pin   bool          // the caller is Do, RDo or Run, which releases the grant itself
	ready chan struct{} // receives a value when another goroutine has set a field below; nil until w waits for that

	place  *Place // its place in the line; nil while w waits for goroutines of this process
	first  Place  // the place with which w enters; a field to save an allocation
	ahead  Ahead  // of first
	grant  *Grant
	err    error
	behind *Behind // with err
}

// maxKept is the largest number of places that a session keeps without a goroutine.
const maxKept = 128

// Entry returns how contenders enter the line in mode.
func (l *Lock) Entry(mode HoldMode) Entry {
	if l.Entries == nil {
		return Entry{}
	}
	return l.Entries[mode]
}

// Acquire waits for a grant. pin says that the caller is Do, RDo or Run. If Acquire fails, behind
// describes the contenders for which it has waited.
func (l *Lock) Acquire(ctx context.Context, mode HoldMode, pin bool) (g *Grant, behind Behind, err error) {
	l.mu.Lock()
	if h := l.regain(mode); h != nil {
		g = l.admit(h, pin)
		l.mu.Unlock()
		return g, Behind{}, nil
	}
	w := &waiter{mode: mode, pin: pin}
	l.waiting = append(l.waiting, w)
	l.serve()
	if w.place == nil { // with a place, w waits only in the line
		w.ready = make(chan struct{}, 1)
		if w.grant != nil {
			w.wake()
		}
	}
	l.mu.Unlock()
	for {
		if w.ready != nil {
			// If several cases are ready, any choice is right: leave finds out whether w was let
			// in, or has a place in the line.
			select {
			case <-w.ready:
			case <-ctx.Done():
				return nil, l.leave(ctx, w), session.CtxErr(ctx)
			case <-l.Manager.Closing: // the goroutine that w waits for may never release
				return nil, l.leave(ctx, w), l.Manager.Failure()
			}
		}
		if w.place != nil {
			switch c, err := w.place.Take(ctx); {
			case err == nil && !l.take(ctx, c, w):
				continue // a goroutine of this process has yet to notice a loss
			case err != nil && ctx.Err() != nil:
				return nil, l.leave(ctx, w), session.CtxErr(ctx)
			case err != nil:
				l.fail(w, err)
			}
		}
		switch {
		case w.err != nil:
			return nil, *w.behind, w.err
		case session.IsClosed(l.Manager.Closing): // no new hold begins from then on
			l.Manager.Spawn(func() { l.renounce(w) })
			return nil, Behind{}, l.Manager.Failure()
		}
		return w.grant, Behind{}, nil
	}
}

// take gives c, whose turn has come, to w. If w is a reader, take also gives c to the readers right
// behind w. take fails if a goroutine of this process has lost its hold and not released it yet.
// Then w waits for that goroutine. take deletes c, so that other processes need not wait for it,
// too.
func (l *Lock) take(ctx context.Context, c *Claim, w *waiter) bool {
	l.mu.Lock()
	w.place = nil
	h := l.hold(c, w.mode)
	if h == nil {
		if w.ready == nil {
			w.ready = make(chan struct{}, 1)
		}
	} else {
		l.waiting = without(l.waiting, w)
		w.grant = l.admit(h, w.pin)
		for l.Handoffs > 0 && w.mode == Shared && l.next(Shared) {
			l.letIn(h)
		}
	}
	l.serve()
	l.mu.Unlock()
	if h == nil {
		l.Manager.GiveUp(ctx, c.GiveBack)
	}
	return h != nil
}

// leave takes w out of the list, because its ctx has ended or the Session is being closed. It
// returns the contenders for which w has waited.
func (l *Lock) leave(ctx context.Context, w *waiter) Behind {
	l.mu.Lock()
	behind, p := w.behind, w.place
	if w.err == nil {
		behind = l.behind(w)
	}
	w.place = nil
	if i := slices.Index(l.waiting, w); i >= 0 { // otherwise, w was let in, or has failed
		l.waiting = slices.Delete(l.waiting, i, i+1)
		if p != nil && i < len(l.waiting) && l.waiting[i].mode == w.mode && l.waiting[i].place == nil {
			l.waiting[i].place = p // w was the first, and now this waiter is the first
			l.waiting[i].wake()
			p = nil
		}
		l.serve()
	}
	l.mu.Unlock()
	switch {
	case p != nil:
		p.Leave()
	case w.grant != nil: // w was let in at the same instant, but Acquire fails
		l.Manager.GiveUp(ctx, func() error { return l.renounce(w) })
	}
	return *behind
}

// fail ends the wait of w, which could not enter the line or stay there. Another attempt would fail
// in the same way, so the waiters behind w fail too.
func (l *Lock) fail(w *waiter, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.waiting {
		switch {
		case x == w:
			x.err, x.behind = err, l.behindAt(w.place, 0)
		case l.Handoffs > 0: // w is the first, and x waits for goroutines of this process
			x.err, x.behind = err, l.behindAt(w.place, i)
			x.wake()
		}
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(x *waiter) bool { return x.err != nil })
}

// If w already waits for goroutines of this process, wake ends that wait.
func (w *waiter) wake() {
	if w.ready != nil {
		w.ready <- struct{}{}
	}
}

// serve lets in the first waiters as far as the holds of this process permit, and makes the next
// waiter enter the line. It is called whenever the list or a hold has changed. Like all functions
// from here to behindAt that do not lock mu, it is called under mu.
func (l *Lock) serve() {
	waits := false
	switch {
	case l.Handoffs > 0:
		for !waits && len(l.waiting) > 0 && l.waiting[0].place == nil {
			var h *Claim
			if h, waits = l.room(l.waiting[0].mode); h != nil {
				l.letIn(h)
			} else if !waits {
				l.enter(l.waiting[0])
			}
		}
	case slices.ContainsFunc(l.holds, isLost):
		waits = len(l.waiting) > 0
	default:
		for _, w := range l.waiting {
			if w.place == nil {
				l.enter(w)
			}
		}
	}
	if waits && l.watch == nil {
		l.watch = time.AfterFunc(l.Manager.Timeout(), l.review)
	}
}

// enter makes w enter the line.
func (l *Lock) enter(w *waiter) {
	e := l.Entry(w.mode)
	w.first = Place{Line: &l.Line, Base: e.Base, Data: l.Data, Rule: e.Rule, Behind: &w.ahead}
	w.place = &w.first
	w.wake()
}

// room returns the hold of this process that the first waiter may get in this mode. If there is
// none, waits reports whether the waiter must wait for a goroutine of this process. If it need not,
// it enters the line.
func (l *Lock) room(mode HoldMode) (h *Claim, waits bool) {
	if h := l.regain(mode); h != nil {
		return h, false
	}
	l.discard()
	l.forget()
	if l.occupied(Shared) {
		return nil, true
	}
	if h = l.joinable(); mode == Exclusive || h == nil {
		return nil, false
	}
	if h.passed >= l.Handoffs {
		l.list(h) // calls serve again when the listing is answered
		return nil, true
	}
	h.passed++
	return h, false
}

// next reports whether the first waiter waits for mode, and has no place in the line. A waiter with
// a place gets its turn there, even if a goroutine of this process has acquired the lock by Try
// since.
func (l *Lock) next(mode HoldMode) bool {
	return len(l.waiting) > 0 && l.waiting[0].mode == mode && l.waiting[0].place == nil
}

// letIn grants h to the first waiter.
func (l *Lock) letIn(h *Claim) {
	w := l.waiting[0]
	if l.waiting[0] = nil; len(l.waiting) == 1 {
		l.waiting = l.waiting[:0] // its memory is for the next waiter
	} else {
		l.waiting = l.waiting[1:]
	}
	w.grant = l.admit(h, w.pin)
	w.wake()
}

// without returns s without x.
func without[T comparable](s []T, x T) []T {
	return slices.DeleteFunc(s, func(y T) bool { return y == x })
}

// admit grants h to one more goroutine.
func (l *Lock) admit(h *Claim, pin bool) *Grant {
	g := h.Grant(l.Entry(h.mode).Op)
	g.Pinned = pin
	h.uses = append(h.uses, g)
	return g
}

// hold makes c, whose turn has come, a hold of this process. It returns nil if a lost hold of this
// process was not released yet. It first ends every hold that excludes c by a loss: the znode of
// such a hold must be deleted, because otherwise c's turn would not have come.
func (l *Lock) hold(c *Claim, mode HoldMode) *Claim {
	if c.Err() != nil {
		return nil // l.holds may be of the next session
	}
	l.discard() // c has its turn, so the znode of a kept place, which is ahead of c, no longer exists
	for _, h := range l.holds {
		if mode == Exclusive || h.mode == Exclusive {
			h.Lose(h.Incarnation.Deleted())
		}
	}
	if l.occupied(mode) {
		return nil
	}
	c.mode, c.uses = mode, c.one[:0]
	l.holds = append(l.holds, c)
	switch {
	case mode == Shared:
		l.read(c)
	case l.Elects: // a waiter need not wait for the release
		c.lost.AfterFunc(func(error) { l.Manager.Spawn(l.look) })
	}
	return c
}

// forget drops the lost hold of an Election, because a waiter wants to enter the line. A waiter of
// an Election does not wait for the release of a lost hold, because Lost has reported the loss. But
// that release may still come. Then it looks like the release of the next hold: see depart. Only a
// release by Run cannot be mistaken, because Run releases its own grant.
func (l *Lock) forget() {
	if !l.Elects || session.IsClosed(l.Manager.Closing) { // while the Session is being closed, no waiter enters, and the release must see the loss
		return
	}
	for _, h := range slices.Clone(l.holds) {
		if !isLost(h) {
			continue
		}
		l.holds = without(l.holds, h)
		for _, g := range h.uses {
			if !g.Pinned {
				l.owed = true
				g.End()
			}
		}
	}
}

// look calls serve after the loss of a hold.
func (l *Lock) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serve()
}

// read makes reading end when h, which is shared, is lost. A reader without a handle does not know
// which of the shared holds of the process is its own, so the loss of one is the loss of all.
func (l *Lock) read(h *Claim) {
	if l.reading == nil {
		l.reading = new(session.Ending)
	}
	reading := l.reading
	h.lost.AfterFunc(func(why error) { reading.End(why) })
}

// list lists the line in the background, to find other contenders. For an exclusive hold, it does
// so once: if h is alone, the listing sets a watch, and h.Alone is true until another contender
// comes. For a shared hold, list only looks for writers, and sets no watch: readers of other
// processes would fire it often, and they block no reader.
func (l *Lock) list(h *Claim) {
	if h.listing != nil {
		return
	}
	answered, shared := make(chan struct{}), h.mode == Shared
	h.listing = answered
	l.Manager.Spawn(func() {
		writers, err := false, error(nil)
		if shared {
			writers, err = h.others(false, l.Entry(Exclusive).Base)
		} else {
			h.others(true, l.Line.Bases...)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		h.listing, h.listed = nil, true
		close(answered)
		if shared {
			h.passed, h.closed = 0, h.closed || writers || err != nil
		}
		l.serve() // this lists again if a Downgrade has made h shared since the listing began
	})
}

// review is called each session timeout while a waiter waits for a hold of this process. If such a
// hold was lost a session timeout ago and is still not released, the waiters fail: see forgotten.
func (l *Lock) review() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = nil
	inLine := l.Handoffs > 0 && len(l.waiting) > 0 && l.waiting[0].place != nil // the first waiter is in the line, and the others wait for it and not for a lost hold
	if err := l.forgotten(); err != nil && !inLine {
		for _, w := range l.waiting {
			if w.place == nil {
				w.err, w.behind = err, new(Behind)
				w.wake()
			}
		}
		l.waiting = slices.DeleteFunc(l.waiting, func(w *waiter) bool { return w.err != nil })
	}
	l.serve()
}

// behind returns the contenders for which w waits: the contenders ahead of the first waiter's place
// in the line, if it has one, and the goroutines of this process that came before w.
func (l *Lock) behind(w *waiter) *Behind {
	if w.place != nil || len(l.waiting) == 0 {
		return l.behindAt(w.place, 0)
	}
	return l.behindAt(l.waiting[0].place, max(slices.Index(l.waiting, w), 0))
}

func (l *Lock) behindAt(p *Place, before int) *Behind {
	if p != nil {
		if b := p.Behind.Now(); b.Place > 0 {
			if c, ok := ParseChild(b.Name, l.Line.Bases...); ok && c.Base == l.Entry(Shared).Base {
				b.Mode = Shared
			}
			b.Place += before
			return &b
		}
	}
	if len(l.holds) > 0 && !isLost(l.holds[0]) {
		return &Behind{Own: l.holds[0], Mode: l.holds[0].mode, Place: 1 + before}
	}
	return new(Behind)
}

// Waited calls the observer after a wait in mode.
func (l *Lock) Waited(mode HoldMode, start time.Time, err error) {
	l.Manager.Waited(l.Entry(mode).Op, l.Path, start, err)
}

// Try makes one attempt. It returns nil if another contender blocks it.
func (l *Lock) Try(ctx context.Context, mode HoldMode) (g *Grant, err error) {
	start := time.Now()
	l.mu.Lock()
	g, busy := l.atOnce(mode)
	l.mu.Unlock()
	if busy {
		return nil, l.Manager.Failure() // nil unless the Session is closed
	}
	if g == nil {
		e := l.Entry(mode)
		c, err := l.Line.Try(ctx, e.Base, l.Data, e.Rule)
		if c == nil {
			return nil, err
		}
		l.mu.Lock()
		if h := l.hold(c, mode); h != nil {
			g = l.admit(h, false)
		}
		l.mu.Unlock()
		if g == nil { // a goroutine of this process has yet to notice a loss
			l.Manager.GiveUp(ctx, c.GiveBack)
			return nil, nil
		}
	}
	l.Waited(mode, start, nil)
	return g, nil
}

// atOnce grants a hold of this process to the caller, if it can. busy says that a goroutine of this
// process blocks the caller.
func (l *Lock) atOnce(mode HoldMode) (g *Grant, busy bool) {
	h := l.regain(mode)
	if h == nil {
		l.discard()
		if l.occupied(mode) || slices.ContainsFunc(l.waiting, func(w *waiter) bool { return mode == Exclusive || w.mode == Exclusive }) {
			return nil, true
		}
		if h = l.joinable(); mode == Exclusive || h == nil || h.passed >= l.Handoffs {
			return nil, false
		}
		h.passed++
	}
	return l.admit(h, false), false
}

// BeginUnlock begins the end of a use in mode, for a goroutine without a handle: it calls Unlock or
// RUnlock, which have no Grant to name the use.
func (l *Lock) BeginUnlock(mode HoldMode) Departure {
	return l.depart(false, func() (*Claim, int) { return l.anonymous(mode) })
}

// BeginRelease begins the end of the use of g.
func (l *Lock) BeginRelease(g *Grant) Departure {
	return l.depart(true, func() (*Claim, int) { return l.useOf(g) })
}

// renounce ends the use of w, which got its grant at the moment at which its wait failed. An
// RUnlock has no handle, so it may have ended the use of w instead of the use of its own caller.
// Then renounce ends the use of that caller.
func (l *Lock) renounce(w *waiter) error {
	return l.depart(true, func() (*Claim, int) {
		h, i := l.useOf(w.grant)
		if h == nil && w.mode == Shared && !w.pin {
			return l.anonymous(Shared)
		}
		return h, i
	}).Finish()
}

// A Departure is the end of one use. The use is chosen when the Departure is made, and Finish does
// the part that takes time. So Finish may run later, in another goroutine: it ends no use that was
// granted after the Departure was made.
type Departure struct {
	lock   *Lock
	hold   *Claim
	grant  *Grant        // nil if there was no use to end
	handle bool          // the caller has the grant, so the mode does not matter
	stays  bool          // other goroutines have the hold
	moving chan struct{} // if not nil, a Downgrade is under way: Finish waits until this is closed
	stop   func()        // ends that Downgrade early
}

// depart calls find under mu, and removes the use that find returns from its hold.
func (l *Lock) depart(handle bool, find func() (*Claim, int)) Departure {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, i := find()
	if h == nil {
		return Departure{}
	}
	d := Departure{lock: l, hold: h, grant: h.uses[i], handle: handle, moving: h.moving, stop: h.stop}
	if d.moving != nil {
		return d
	}
	h.uses = slices.Delete(h.uses, i, i+1) // at once, so that a second Unlock does not find the use
	if l.owed {
		// This may be the late release of a lost hold, which now ends the present hold instead. So
		// the present leader must see a loss. owed stays true, because its own release can now come
		// late, too. Not even a release that finds no hold clears owed: many programs resign twice,
		// to be sure.
		d.grant.Revoke()
	}
	if d.stays = h.used(); d.stays {
		h.Err() // if h is lost, Err ends the grant by the loss, which the tracer must see; End ends it without one
		d.grant.End()
	}
	return d
}

// None reports whether the caller had nothing to release.
func (d Departure) None() bool { return d.grant == nil }

// Finish must be called once.
func (d Departure) Finish() error {
	for d.moving != nil {
		d.stop() // the servers might not answer, and Unlock does not wait for them
		<-d.moving
		d = d.lock.depart(d.handle, func() (*Claim, int) {
			// Unlock has found an exclusive hold. If the Downgrade has made it shared, Unlock does
			// not release it.
			if h, i := d.lock.useOf(d.grant); h != nil && (d.handle || h.mode == Exclusive) {
				return h, i
			}
			return nil, 0
		})
	}
	switch {
	case d.grant == nil:
		return ErrNotLocked
	case d.stays:
		return d.hold.Err()
	}
	return d.lock.handOver(d.hold, d.grant)
}

// handOver ends g, the last use of h, and gives h to the first waiter of this process. If it must
// not, it keeps the place of h, or deletes the znode.
//
// A handoff needs no request: the znode of h stays, so h is granted to one goroutine after another
// while every other contender waits behind it.
//
//   - It is safe. mu is held from the look at the list to the grant, so no two goroutines get h.
//     The znode may be deleted, or the session may end, at any time. Then the grant of the next
//     goroutine is lost (Claim.Grant), as g would be without the handoff.
//   - No waiter is forgotten. A waiter joins the list under mu. Either it is in the list now, or it
//     joins later, and then finds in serve that h is not held. A waiter whose ctx has ended leaves
//     the list under mu, too. If it was chosen before that, it renounces the grant.
//   - It is fair. Claim.Alone is true if a listing has shown no other contender, and the watch set
//     by that listing has not fired. The create of another contender fires the watch. Therefore,
//     it waits until the event has arrived, and then for at most Handoffs more handoffs. At
//     half of the limit, handOver begins a listing. At the limit, it waits for that listing, once
//     in each hold. That listing sets the watch if h is alone. Without the watch, a process that is
//     alone would delete its znode after every Handoffs handoffs. The listing takes at most 200 ms
//     (askTime).
//
// mayPass says which holds are never passed on.
func (l *Lock) handOver(h *Claim, g *Grant) error {
	l.mu.Lock()
	for l.next(Exclusive) && l.mayPass(h) {
		if h.Alone() {
			h.passed = 0
		} else if h.passed < l.Handoffs {
			h.passed++
		} else if answered := h.listing; answered != nil {
			l.mu.Unlock()
			<-answered
			l.mu.Lock()
			continue
		} else {
			break // the limit is reached: the next waiter enters the line, behind the other contenders
		}
		g.End()
		l.letIn(h)
		if !h.listed && h.passed > 0 && 2*h.passed >= l.Handoffs {
			l.list(h)
		}
		l.mu.Unlock()
		return nil
	}
	if e, kept := l.keep(h, g); kept {
		l.mu.Unlock()
		l.Manager.Observe(e)
		return nil
	}
	l.drop(h)
	l.mu.Unlock()
	return g.Release()
}

// mayPass reports whether handOver may give h to another goroutine of this process.
//
// A transaction without a reply can still be applied while the znode of h exists, because it checks
// that znode. It must not be applied under the next goroutine. So h is not handed over, and its
// znode is deleted: after that, the transaction cannot be applied.
func (l *Lock) mayPass(h *Claim) bool {
	return h.mode == Exclusive && l.Handoffs > 0 && !l.Elects && h.open == 0 && !isLost(h) && !h.WasAsked()
}

// drop takes h from the holds of this process. Like all functions from here to unkeep, it is called
// under mu.
func (l *Lock) drop(h *Claim) {
	l.holds = without(l.holds, h)
	if l.idle != h {
		stop(h.timer)
	}
	if !l.shared() {
		l.reading = nil
	}
	l.serve()
}

// keep keeps the place of h, of which g was the last use, if no other contender is in the line.
// The caller passes e to the observer, without mu.
func (l *Lock) keep(h *Claim, g *Grant) (e session.Report, kept bool) {
	if l.Retain == 0 || h.mode != Exclusive || h.open > 0 || len(l.waiting) > 0 || l.idle != nil ||
		!h.Alone() || h.WasAsked() || session.IsClosed(l.Manager.Closing) {
		return e, false
	}
	if l.Kept.Add(1) > maxKept {
		l.Kept.Add(-1)
		return e, false
	}
	if e, kept = g.Keep(); !kept { // it is lost
		l.Kept.Add(-1)
		return e, false
	}
	if h.recall == nil {
		h.recall = func() { l.recall(h) }
		h.lost.AfterFunc(func(error) { l.Manager.Spawn(h.recall) })
	}
	h.keptAt = time.Now()
	if h.timer == nil {
		h.timer = time.AfterFunc(l.Retain, func() { l.expire(h) })
	}
	// If a contender has come after Alone, it has fired the watch, and OnRecall calls recall at
	// once.
	h.OnRecall(h.recall)
	l.idle = h
	l.drop(h)
	return e, true
}

// regain returns the kept place, if a goroutine can hold it in mode at once: no other contender has
// come, and the session is confirmed for as long as a grant needs (Incarnation.Assured). If regain
// returns nil, its caller deletes the kept place and enters the line, where a grant waits for the
// confirmation.
func (l *Lock) regain(mode HoldMode) *Claim {
	h := l.idle
	if h == nil || mode != Exclusive || h.WasAsked() || h.Loss() != nil || session.IsClosed(h.recalled()) || !h.Incarnation.Assured() {
		return nil
	}
	l.unkeep(h)
	l.holds = append(l.holds, h)
	return h
}

// discard gives up the kept place, if there is one.
func (l *Lock) discard() {
	if h := l.idle; h != nil {
		l.unkeep(h)
		stop(h.timer)
		l.Manager.Spawn(h.Discard)
	}
}

// stop stops t, unless it is nil.
func stop(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

func (l *Lock) unkeep(h *Claim) {
	l.idle = nil
	l.Kept.Add(-1)
}

// recall is called when another contender may have come, or h is lost.
func (l *Lock) recall(h *Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle == h {
		l.discard()
	}
}

// expire is called by the timer of h. The timer is not stopped when a goroutine gets h, because to
// set it again for each use would cost more than the use.
func (l *Lock) expire(h *Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle != h {
		h.timer = nil // keep makes another timer
		return
	}
	if left := l.Retain - time.Since(h.keptAt); left > 0 {
		h.timer.Reset(left)
		return
	}
	l.discard()
}

// Txn applies ops in one transaction, if g is still held. If g was released, the error is
// ErrNotLocked.
//
// The transaction is counted under mu, and a release decides about h under mu. So either the
// release knows of the transaction, or the transaction is not begun.
func (l *Lock) Txn(ctx context.Context, g *Grant, ops []any) ([]zk.MultiResponse, error) {
	l.mu.Lock()
	h, _ := l.useOf(g)
	if h == nil {
		l.mu.Unlock()
		return nil, ErrNotLocked
	}
	h.open++
	l.mu.Unlock()
	rs, open, err := g.Txn(ctx, ops)
	if !open {
		l.mu.Lock()
		h.open--
		l.mu.Unlock()
	}
	return rs, err
}

// Downgrade makes the exclusive hold shared. If the hold is released at the same time, the error is
// ErrNotLocked.
func (l *Lock) Downgrade(ctx context.Context) error {
	start := time.Now()
	moving, stop := context.WithCancel(ctx)
	defer stop()
	l.mu.Lock()
	h := l.inUse(Exclusive)
	if h == nil || h.moving != nil {
		l.mu.Unlock()
		return ErrNotLocked
	}
	h.moving, h.stop = make(chan struct{}), stop
	l.mu.Unlock()

	own, e := h, l.Entry(Shared)
	c, err := own.Beside(moving, e.Base, l.Data)
	if err != nil {
		err = own.Explain(err)
		switch ended := moving.Err() != nil && errors.Is(err, moving.Err()); {
		case ended && ctx.Err() != nil: // ctx has ended by now; moving may have ended before it
			err = session.CtxErr(ctx)
		case ended:
			err = ErrNotLocked
		}
	}
	l.mu.Lock()
	var former string
	if err == nil {
		// The read znode exists, and blocks every other writer. So it does not matter when, or by
		// which client, the write znode is deleted.
		former, err = own.Move(c, e.Op)
	}
	close(h.moving)
	h.moving, h.stop = nil, nil
	if err != nil {
		l.mu.Unlock()
		return err
	}
	// If a transaction may be applied until the write znode is deleted, the next reader must wait
	// for that deletion, in the line.
	h.mode, h.passed, h.closed = Shared, 0, h.open > 0
	l.read(h)
	l.serve()
	l.mu.Unlock()
	l.Waited(Shared, start, nil)
	r := c.Incarnation.Remove(former)
	select { // the downgrade is done in each case; this waits for the deletion of the write znode
	case <-r.Done:
	case <-r.Refused: // readers behind it wait until the deletion is permitted
	case <-c.Incarnation.Disconnection():
	case <-c.Incarnation.Ctx.Done(): // the readers learn of the loss from their grants
	case <-ctx.Done():
	}
	return nil
}

// Standing returns an Ending that ends when the present hold is lost: the hold in the first of
// modes in which there is one. If that hold is lost, or there is none, the Ending has ended
// already.
func (l *Lock) Standing(modes ...HoldMode) *session.Ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := new(session.Ending)
	switch h := l.inUse(modes...); {
	case h == nil:
		over.End(ErrNotLocked)
	case isLost(h):
		over.End(h.Err())
	case h.mode == Shared:
		return l.reading
	default:
		return h.uses[0].Loss()
	}
	return over
}

// inUse returns the hold that a goroutine without a handle uses. It tries modes in order, and
// returns nil if no mode has such a hold.
func (l *Lock) inUse(modes ...HoldMode) *Claim {
	for _, mode := range modes {
		if h := l.present(mode, (*Claim).used); h != nil {
			return h
		}
	}
	return nil
}

// Wanted reports whether a goroutine of this process has the lock or waits for it, or whether a
// place is kept.
func (l *Lock) Wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds) > 0 || len(l.waiting) > 0 || l.idle != nil
}

// Current returns the newest grant of the hold of this process, and its mode. An exclusive hold
// comes before a shared one.
func (l *Lock) Current() (*Grant, HoldMode, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.inUse(Exclusive, Shared); h != nil {
		return h.uses[len(h.uses)-1], h.mode, nil
	}
	return nil, 0, ErrNotLocked
}

// ModeOf returns the mode in which g is held, if it is.
func (l *Lock) ModeOf(g *Grant) (mode HoldMode, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, _ := l.useOf(g); h != nil {
		return h.mode, true
	}
	return 0, false
}

// isLost reports whether c is lost. If so, the hooks of the loss have run.
func isLost(c *Claim) bool { return c.Err() != nil }

func (c *Claim) used() bool { return len(c.uses) > 0 }

// anonymous returns the index of the use that a goroutine without a handle releases, or -1. This is
// the newest use that no Do, RDo or Run will release. If there is none, and the hold is exclusive,
// it is the newest use.
func (c *Claim) anonymous() int {
	for i, g := range slices.Backward(c.uses) {
		if !g.Pinned {
			return i
		}
	}
	if c.mode == Exclusive {
		return len(c.uses) - 1
	}
	return -1
}

// occupied reports whether a hold must be released before another goroutine can get the lock in
// mode. Even a new reader must wait for the release of a lost shared hold. Otherwise, RUnlock,
// which has no handle, could return the loss to the new reader.
func (l *Lock) occupied(mode HoldMode) bool {
	return slices.ContainsFunc(l.holds, func(h *Claim) bool {
		return mode == Exclusive || h.mode == Exclusive || isLost(h)
	})
}

// shared reports whether the process has a shared hold.
func (l *Lock) shared() bool {
	return slices.ContainsFunc(l.holds, func(h *Claim) bool { return h.mode == Shared })
}

// joinable returns the hold that a reader may join, or nil.
func (l *Lock) joinable() *Claim {
	for _, h := range slices.Backward(l.holds) {
		if h.mode == Shared && !h.closed && h.used() {
			return h
		}
	}
	return nil
}

// present returns the hold that a goroutine without a handle uses: one in mode for which the
// function so returns true. It prefers a lost hold, so that the release returns the loss.
// Otherwise, it returns the newest.
func (l *Lock) present(mode HoldMode, so func(h *Claim) bool) (found *Claim) {
	for _, h := range slices.Backward(l.holds) {
		switch {
		case h.mode != mode || !so(h):
		case len(l.holds) == 1 || isLost(h): // the only hold is the answer even if it is not lost
			return h
		case found == nil:
			found = h
		}
	}
	return found
}

// anonymous returns the use in mode that a goroutine without a handle releases, or nil.
func (l *Lock) anonymous(mode HoldMode) (*Claim, int) {
	h := l.present(mode, func(h *Claim) bool { return h.anonymous() >= 0 })
	if h == nil {
		return nil, 0
	}
	return h, h.anonymous()
}

// useOf returns the use of g, or nil if it has been released.
func (l *Lock) useOf(g *Grant) (*Claim, int) {
	for _, h := range l.holds {
		if i := slices.Index(h.uses, g); i >= 0 {
			return h, i
		}
	}
	return nil, 0
}

// forgotten returns the error of a wait for a lost hold that was not released for a session
// timeout. The hold of a Do never counts as forgotten: it is released when the function returns.
func (l *Lock) forgotten() (err error) {
	for _, h := range l.holds {
		if isLost(h) && slices.ContainsFunc(h.uses, func(g *Grant) bool { return !g.Pinned }) {
			err = cmp.Or(err, h.Forgotten())
		}
	}
	return err
}
