// Package lock is the common part of all primitives with waiters. It has the line of contenders,
// the wait for a turn, holds, and the sharing of one place in the line by the goroutines of a
// process. The root package has the methods that programs call.
package lock

// In this file, the goroutines of one process share a place in the line. The order of processes is in
// line.go.

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
	"github.com/zsync/zsync/internal/znodes"
)

// A Lock is the part of a Mutex, an RWMutex or an Election in one process. Like a semaphore of
// golang.org/x/sync, it has a mutex and a list of waiters. Each waiter waits in the goroutine of
// its caller.
//
//   - Acquire puts the caller at the end of the list. If this process has a hold that the first
//     waiter can share, the waiter gets a grant of that hold. If not, it waits in the line, on behalf
//     of the waiters behind it.
//   - A release gives an exclusive hold to the first waiter, without a request. If there may be other
//     contenders in the line, there are at most Handoffs such handoffs in a row. In the same way, at
//     most Handoffs readers join a shared hold before the line is listed again.
//
// The zero value has no hold, and can only report that it has none.
type Lock struct {
	Manager *session.Manager
	Line    Line
	Op      string // of an exclusive hold, for the observer; "" if the lock is a part of another primitive

	Handoffs int           // largest number of handoffs in a row while other contenders wait; if 0, each goroutine has its own place in the line
	Elects   bool          // the Lock is an Election: no handoffs, and a waiter does not wait for the release of a lost hold
	Retain   time.Duration // longest time for which a place is kept while no goroutine holds the lock; if 0, no place is kept
	Kept     *atomic.Int64 // number of places that the session keeps

	mu      sync.Mutex
	owed    bool            // `forget` has dropped a lost hold whose release may still come
	waiting []*waiter       // the waiters, in the order of their arrival
	holds   []*Claim        // the holds of this process, in the order of the grants; a lost hold is included until its release
	idle    *Claim          // the kept place, or nil; while a place is kept, no goroutine waits for the lock or holds it exclusively
	reading *session.Ending // ends at the first loss of a shared hold; nil before `readers` has made it, and without a shared hold
	watch   *time.Timer     // calls `review`; nil unless a goroutine waits for a hold of this process
}

// The type `waiter` is a goroutine in Acquire.
type waiter struct {
	mode  HoldMode
	pin   bool              // the caller is Do, RDo or Run, which itself releases its grant
	of    *session.Function // the program's function that has called Acquire, or nil
	ready chan struct{}     // receives a value when one of the next three fields is set, except by w itself

	place  *Place // its place in the line; nil while w waits for goroutines of this process
	grant  *Grant
	err    error
	behind *Behind // set together with err
}

// maxKept is the largest number of places that one session keeps.
const maxKept = 128

// OpOf returns the operation of a hold in `mode`, for the observer.
func (l *Lock) OpOf(mode HoldMode) string {
	if mode == Shared {
		return "rlock"
	}
	return l.Op
}

// Acquire waits for a grant. The argument `pin` must be true if the caller is Do, RDo or Run. If
// Acquire fails, `behind` describes the contenders for which Acquire has waited.
func (l *Lock) Acquire(ctx context.Context, mode HoldMode, pin bool) (g *Grant, behind Behind, err error) {
	w := &waiter{mode: mode, pin: pin, of: l.Manager.FunctionOf(ctx), ready: make(chan struct{}, 1)}
	l.mu.Lock()
	l.waiting = append(l.waiting, w)
	l.serve()
	l.mu.Unlock()
	for {
		// If several cases are ready, any choice is right: `leave` finds out what w has.
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil, l.leave(ctx, w), session.CtxErr(ctx)
		case <-l.Manager.Closing: // the goroutine for which w waits may never release
			return nil, l.leave(ctx, w), l.Manager.Failure()
		}
		if w.place != nil {
			switch c, err := w.place.Take(ctx); {
			case err == nil && !l.take(ctx, c, w):
				continue // a goroutine of this process has not noticed its loss yet
			case err != nil && ctx.Err() != nil:
				return nil, l.leave(ctx, w), session.CtxErr(ctx)
			case err != nil:
				// The waiters behind w fail, too, because another attempt would fail in the same way.
				l.mu.Lock()
				l.failLocked(err, func(x *waiter) bool { return x == w || l.Handoffs > 0 })
				l.mu.Unlock()
			}
		}
		switch {
		case w.err != nil:
			return nil, *w.behind, w.err
		case session.IsClosed(l.Manager.Closing): // no hold begins after this moment
			l.Manager.Spawn(func() { l.renounce(w) })
			return nil, Behind{}, l.Manager.Failure()
		}
		return w.grant, Behind{}, nil
	}
}

// The method `take` gives the claim c, whose turn has come, to w and, if w is a reader, to the readers
// right behind w. If a goroutine of this process has lost its hold and not released it yet, `take`
// returns false, and deletes c: only this process must wait for that goroutine.
func (l *Lock) take(ctx context.Context, c *Claim, w *waiter) bool {
	l.mu.Lock()
	w.place = nil
	holds := l.hold(c)
	if holds {
		l.admit(c, w)
		for l.Handoffs > 0 && w.mode == Shared && l.next(Shared) {
			l.letIn(c)
		}
	}
	l.serve()
	l.mu.Unlock()
	if !holds {
		l.Manager.GiveUp(ctx, c.GiveBack)
	}
	return holds
}

// The method `leave` removes w from the list, because its ctx has ended or Close has begun. It
// describes the contenders for which w has waited.
func (l *Lock) leave(ctx context.Context, w *waiter) Behind {
	l.mu.Lock()
	behind, p := w.behind, w.place
	if w.err == nil {
		behind = l.behind(w)
	}
	w.place = nil
	if i := slices.Index(l.waiting, w); i >= 0 { // else w has got a grant, or has failed
		l.waiting = slices.Delete(l.waiting, i, i+1)
		if p != nil && i < len(l.waiting) && l.waiting[i].mode == w.mode && l.waiting[i].place == nil {
			l.waiting[i].place = p // w was the first waiter, and now this waiter is the first
			l.waiting[i].ready <- struct{}{}
			p = nil
		}
		l.serve()
	}
	l.mu.Unlock()
	switch {
	case p != nil:
		p.Leave()
	case w.grant != nil: // w got a grant at the same instant, but Acquire fails
		l.Manager.GiveUp(ctx, func() error { return l.renounce(w) })
	}
	return *behind
}

// failLocked ends the waits for which `so` is true.
func (l *Lock) failLocked(err error, so func(w *waiter) bool) {
	for _, w := range l.waiting {
		if so(w) {
			w.err, w.behind = err, l.behind(w)
			w.ready <- struct{}{}
		}
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w *waiter) bool { return w.err != nil })
}

// The method `serve` gives grants to the first waiters, as far as the holds of this process permit,
// and makes the next waiter enter the line. It is called after each change of the list or of a hold.
// A function from here to `behind` that does not lock mu is called under mu.
func (l *Lock) serve() {
	for i := 0; i < len(l.waiting); {
		w := l.waiting[i]
		if w.place == nil {
			h, waits := l.room(w.mode)
			switch {
			case h != nil:
				l.letIn(h)
				continue
			case waits:
				if l.watch == nil {
					l.watch = time.AfterFunc(l.Manager.Timeout(), l.review)
				}
				return
			}
			w.place = &Place{Line: &l.Line, Mode: w.mode, Behind: new(Ahead)}
			w.ready <- struct{}{}
		}
		if l.Handoffs > 0 { // the other waiters wait for the first
			return
		}
		i++
	}
}

// The method `room` returns the hold of this process that the first waiter may get now. If there is
// none, `waits` reports whether the waiter must wait for a goroutine of this process. Otherwise, it
// must enter the line.
func (l *Lock) room(mode HoldMode) (h *Claim, waits bool) {
	if h := l.regain(mode); h != nil {
		return h, false
	}
	l.discard()
	l.forget()
	if l.Handoffs == 0 {
		return nil, slices.ContainsFunc(l.holds, isLost)
	}
	if l.occupied(Shared) {
		return nil, true
	}
	if mode == Exclusive {
		return nil, false
	}
	h, full := l.join()
	if full {
		l.list(h) // when the listing is answered, `list` calls `serve` again
		return nil, true
	}
	return h, false
}

// The method `next` reports whether the first waiter waits for a hold in `mode`, and has no place in
// the line. With a place, it gets its turn in the line, even if a Try has acquired the lock since.
func (l *Lock) next(mode HoldMode) bool {
	return len(l.waiting) > 0 && l.waiting[0].mode == mode && l.waiting[0].place == nil
}

// letIn gives the first waiter a grant of h.
func (l *Lock) letIn(h *Claim) {
	w := l.waiting[0]
	l.admit(h, w)
	w.ready <- struct{}{}
}

// The method `admit` gives w, which waits no longer, a grant of h.
func (l *Lock) admit(h *Claim, w *waiter) {
	if i := slices.Index(l.waiting, w); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	w.grant = h.Grant(l.OpOf(h.mode()))
	w.grant.Pinned = w.pin
	w.grant.Within(w.of)
	h.uses = append(h.uses, w.grant)
}

// The method `hold` makes c, whose turn has come, a hold of this process. First, it ends every hold
// that cannot coexist with c. Such a hold is lost: its znode is deleted, because c's turn has come.
// If a lost hold of this process is not released yet, the result is false.
func (l *Lock) hold(c *Claim) bool {
	if c.Err() != nil {
		return false // the holds in l.holds may belong to the next session
	}
	l.discard() // a kept place is ahead of c; as c has its turn, the znode of that place is deleted
	for _, h := range l.holds {
		if c.mode() == Exclusive || h.mode() == Exclusive {
			h.giveUp(h.Incarnation.Deleted(), h.standing) // perhaps not h's znode was deleted, but c's: then h's must not stay
		}
	}
	if l.occupied(c.mode()) {
		return false
	}
	for _, h := range l.holds { // readers; the token is of the oldest hold, and must also be right for the new reader: see renew
		h.mu.Lock()
		h.renew()
		h.mu.Unlock()
	}
	c.owner = l
	l.holds = append(l.holds, c)
	switch {
	case c.mode() == Shared && l.reading != nil:
		l.read(c)
	case l.Elects: // after a loss, a waiter need not wait for the release
		c.lost.AfterFunc(func(error) {
			l.Manager.Spawn(func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.serve()
			})
		})
	}
	return true
}

// The method `forget` drops the lost hold of an Election, because a waiter wants to enter the line:
// the closed Lost channel has shown the loss to the former leader. But the release may still come,
// and then it looks like the release of the next hold: see `depart`. Run releases its own grant.
func (l *Lock) forget() {
	if !l.Elects || session.IsClosed(l.Manager.Closing) { // during Close, no waiter enters the line, and the release must return the loss
		return
	}
	l.holds = slices.DeleteFunc(l.holds, func(h *Claim) bool {
		if !isLost(h) {
			return false
		}
		for _, g := range h.uses {
			if !g.Pinned {
				l.owed = true
				g.End()
			}
		}
		h.uses = nil
		return true
	})
}

// The method `read` is called for h, a shared hold. If h is lost, l.reading ends.
func (l *Lock) read(h *Claim) {
	reading := l.reading
	h.lost.AfterFunc(func(why error) { reading.End(why) })
}

// The method `list` lists the line in the background, to find contenders other than h. For an
// exclusive hold, it is called once, and the listing sets a watch if h is alone (Claim.Alone). For a
// shared hold, `list` looks only for writers, and sets no watch: other readers would often fire it.
func (l *Lock) list(h *Claim) {
	if h.listing != nil && !session.IsClosed(h.listing) {
		return
	}
	answered, mode := make(chan struct{}), h.mode()
	h.listing = answered
	l.Manager.Spawn(func() {
		alone := h.blocksNone(mode)
		l.mu.Lock()
		defer l.mu.Unlock()
		close(answered)
		if mode == Shared {
			h.passed, h.closed = 0, h.closed || !alone
		}
		l.serve() // if a Downgrade has made h shared since the listing began, `serve` begins another listing
	})
}

// The method `review` is called once in each session timeout while a waiter waits for a hold of this
// process. The waiters fail if this hold is Forgotten. The hold of a Do is never forgotten: Do
// releases it when its function returns.
func (l *Lock) review() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = nil
	inLine := l.Handoffs > 0 && len(l.waiting) > 0 && l.waiting[0].place != nil // the first waiter is in the line; the others wait for the first waiter, and not for a lost hold
	for _, h := range l.holds {
		if !inLine && isLost(h) && slices.ContainsFunc(h.uses, isBare) {
			if err := h.Forgotten(); err != nil {
				l.failLocked(err, func(w *waiter) bool { return w.place == nil })
			}
		}
	}
	l.serve()
}

// The method `behind` describes the contenders for which w waits: the earlier goroutines of this
// process and, if the first waiter has a place, the contenders ahead of that place.
func (l *Lock) behind(w *waiter) *Behind {
	p, before := w.place, 0
	if p == nil && len(l.waiting) > 0 {
		p, before = l.waiting[0].place, max(slices.Index(l.waiting, w), 0)
	}
	if p != nil {
		if b := p.Behind.Now(); b.Place > 0 {
			if c, ok := ParseChild(b.Name, l.Line.Bases...); ok && c.Base == l.Line.Base(Shared) {
				b.Mode = Shared
			}
			b.Place += before
			return &b
		}
	}
	if len(l.holds) > 0 && !isLost(l.holds[0]) {
		h := l.holds[0]
		stat := zk.Stat{EphemeralOwner: h.Incarnation.ID.Load(), Ctime: h.Since().UnixMilli()}
		return &Behind{Name: znodes.BaseName(h.Znode()), Node: session.Node{Data: l.Line.Data, Stat: &stat}, Mode: h.mode(), Place: 1 + before}
	}
	return new(Behind)
}

// Try makes one attempt to acquire. If another contender blocks it, Try returns nil.
func (l *Lock) Try(ctx context.Context, mode HoldMode) (*Grant, error) {
	w := &waiter{mode: mode, of: l.Manager.FunctionOf(ctx)} // FunctionOf without mu, because ctx may be a type of the program
	l.mu.Lock()
	h := l.regain(mode)
	if h == nil {
		l.discard()
		if l.occupied(mode) || slices.ContainsFunc(l.waiting, func(w *waiter) bool { return mode == Exclusive || w.mode == Exclusive }) {
			l.mu.Unlock()
			return nil, l.Manager.Failure() // an error if the Session is closed, and otherwise nil
		}
		if joined, full := l.join(); !full {
			h = joined
		}
	}
	if h != nil {
		l.admit(h, w)
	}
	l.mu.Unlock()
	if h == nil {
		if c, err := l.Line.Try(ctx, mode); c == nil || !l.take(ctx, c, w) {
			return nil, err
		}
	}
	return w.grant, nil
}

// Unlock ends a use in `mode`, for an Unlock or RUnlock: see BeginUnlock.
func (l *Lock) Unlock(mode HoldMode) error { return l.BeginUnlock(mode, false)() }

// BeginUnlock begins to end a use in `mode`: see `depart`. The caller has no handle: see `present`.
func (l *Lock) BeginUnlock(mode HoldMode, bare bool) (finish func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	finish, _ = l.depart(l.present(bare, true, mode))
	return finish
}

// Release releases g, and waits for the deletion of the znode: see Deletion.Result. If the claim was
// lost, perhaps at the last moment, the error is ErrLost. If g has been released, it is ErrNotLocked.
func (g *Grant) Release() error {
	finish, found := g.BeginRelease()
	if l := g.Claim.lock(); l == nil || !found && l.Elects && g.Claim.Loss() != nil {
		return g.release(g.Claim.GiveBack) // no Lock has g, or `forget` has perhaps dropped the lost hold of a Run
	}
	return finish()
}

// BeginRelease begins to end the use g of a Lock: see `depart`.
func (g *Grant) BeginRelease() (finish func() error, found bool) {
	if l := g.Claim.lock(); l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.depart(g)
	}
	return nil, false
}

// The method `renounce` ends the use of w, which got its grant at the moment at which its wait failed.
// An RUnlock by another reader, which has no handle, may have ended the use of w instead of its own.
// Then `renounce` ends the use of that reader.
func (l *Lock) renounce(w *waiter) error {
	finish, found := w.grant.BeginRelease()
	if !found && w.mode == Shared && !w.pin {
		return l.Unlock(Shared)
	}
	return finish()
}

// The method `depart` removes the use g of its hold, under mu. Then the caller must call `finish`
// once, which does the slow part, perhaps later and in another goroutine: it never ends a use that was
// granted after the call of `depart`. If g is nil or has ended, `found` is false, and `finish` returns
// ErrNotLocked.
func (l *Lock) depart(g *Grant) (finish func() error, found bool) {
	if g == nil || !g.used() {
		return func() error { return ErrNotLocked }, false
	}
	h := g.Claim
	h.uses = slices.DeleteFunc(h.uses, func(x *Grant) bool { return x == g }) // now, so that a second Unlock does not find the use
	if h.mode() == Shared && !g.Pinned {
		// Perhaps this is the RUnlock of another reader. Then the reader that got g goes on with the use of
		// that reader, perhaps in a function of the program, for which Close waits. So the functions of g
		// may now hold another use of each shared hold that remains.
		for _, h := range l.holds {
			if i := slices.IndexFunc(h.uses, isBare); i >= 0 {
				h.uses[i].Within(g.within...)
			}
		}
	}
	if l.owed && !g.Pinned {
		// This may be the late release of a lost hold. It now ends the present hold instead, so the
		// present leader must see a loss, and its own release may come late, too. A release that finds
		// no hold does not clear `owed` either: many programs resign twice, to be sure.
		h.mu.Lock()
		if h.standing() {
			g.overLocked()
			g.lost.End(ErrNotLocked)
		}
		h.mu.Unlock()
	}
	if len(h.uses) > 0 { // other goroutines still use h
		h.Err() // if h is lost, Err ends the grant by the loss, for the trace; End would end the grant without a loss
		g.End()
		return h.Err, true
	}
	return func() error { return l.handOver(h, g) }, true
}

// handOver ends g, the last use of h, and gives h to the first waiter of this process, without a
// request. If there is no waiter, or the waiter must not get h (see mayPass), handOver keeps the place of
// h or deletes the znode.
//
//   - A handoff is safe, because mu is locked from the look at the list to the grant. If h is lost
//     at that time, the grant of the next goroutine is lost, too (Claim.Grant).
//   - No waiter is forgotten. A waiter joins and leaves the list under mu. So either handOver finds
//     it, or `serve` later finds that h is no longer held.
//   - A handoff is fair. While h is Alone, no other contender waits. The create of another contender
//     ends that, and then at most Handoffs more handoffs follow. Half-way, handOver begins a listing,
//     once in each hold, and in the end it waits for that, at most askTime. If h is alone, the listing
//     sets the watch again. Without it, a process that is alone would delete its znode every time.
func (l *Lock) handOver(h *Claim, g *Grant) error {
	l.mu.Lock()
	for l.next(Exclusive) && l.mayPass(h) {
		if h.Alone() {
			h.passed = 0
		} else if h.passed < l.Handoffs {
			h.passed++
		} else if answered := h.listing; answered != nil && !session.IsClosed(answered) {
			l.mu.Unlock()
			<-answered
			l.mu.Lock()
			continue
		} else {
			break // after all Handoffs, the next waiter enters the line, behind the other contenders
		}
		g.End()
		l.letIn(h)
		if h.listing == nil && h.passed > 0 && 2*h.passed >= l.Handoffs {
			l.list(h)
		}
		l.mu.Unlock()
		return nil
	}
	e, kept := l.keep(h, g)
	l.holds = slices.DeleteFunc(l.holds, func(x *Claim) bool { return x == h })
	if !slices.ContainsFunc(l.holds, func(x *Claim) bool { return x.mode() == Shared }) {
		l.reading = nil
	}
	l.serve()
	l.mu.Unlock()
	if kept {
		l.Manager.Observe(e)
		return nil
	}
	return g.release(h.GiveBack)
}

// mayPass reports whether handOver may give h to another goroutine of this process. An unanswered
// transaction may still be applied while the znode of h exists, because it checks this znode. It must
// not be applied during the next hold. So h is not handed over, and the znode is deleted.
func (l *Lock) mayPass(h *Claim) bool {
	return h.mode() == Exclusive && l.Handoffs > 0 && !l.Elects && h.open == 0 && !isLost(h) && !h.WasAsked()
}

// The method `keep` keeps the place of h at the end of g, its last use, if no other contender is in
// the line. Then the caller must pass e to the observer, without mu. A kept place is as safe as a
// handoff. It is fair, because the listing after the create has set a watch on the line. When it fires,
// the client deletes the znode. (If another contender of this session has set the watch earlier, our own
// create fires it. Then our place is not kept.) The functions from here to unkeep are called under mu.
func (l *Lock) keep(h *Claim, g *Grant) (e session.Report, done bool) {
	if l.Retain == 0 || h.mode() != Exclusive || h.open > 0 || len(l.waiting) > 0 ||
		!h.Alone() || h.WasAsked() || session.IsClosed(l.Manager.Closing) {
		return e, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held { // h is lost
		return e, false
	}
	if l.Kept.Add(1) > maxKept {
		l.Kept.Add(-1)
		return e, false
	}
	e = h.event(session.EventReleased, nil)
	g.overLocked()
	h.enter(kept)
	if h.timer == nil {
		h.lost.AfterFunc(func(error) { h.recall() })
		h.timer = time.AfterFunc(l.Retain, h.recall)
	} else {
		h.timer.Reset(l.Retain)
	}
	h.Incarnation.Watches.Untell(h.lineWatch, h) // an earlier keep may have registered `recall`
	h.Incarnation.Watches.Tell(h.lineWatch, h, h.recall)
	l.idle = h
	return e, true
}

// The method `regain` returns the kept place, if a goroutine can hold it in `mode` at once: no other
// contender has come, and the session is confirmed for long enough for a grant. If `regain` returns
// nil, the caller deletes the kept place and enters the line. There, it waits for a confirmed session.
func (l *Lock) regain(mode HoldMode) *Claim {
	h := l.idle
	if h == nil || mode != Exclusive || h.WasAsked() || h.Loss() != nil || h.recalled() || !h.Incarnation.Assured() {
		return nil
	}
	l.unkeep(h)
	l.holds = append(l.holds, h)
	return h
}

// The method `recall` deletes c, if c is kept: another contender may have come, c is lost, or the time
// Lock.Retain has passed.
func (c *Claim) recall() {
	l := c.lock()
	l.Manager.Spawn(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.idle == c {
			l.discard()
		}
	})
}

// The method `discard` deletes the kept place.
func (l *Lock) discard() {
	if h := l.idle; h != nil {
		l.unkeep(h)
		l.Manager.Spawn(func() {
			if h.finish() == nil {
				h.Leave()
			}
		})
	}
}

func (l *Lock) unkeep(h *Claim) {
	l.idle = nil
	l.Kept.Add(-1)
	h.timer.Stop()
}

// Downgrade makes the exclusive hold a shared hold. If the hold is released at the same time, the
// error is ErrNotLocked. For `bare`, see `present`.
func (l *Lock) Downgrade(ctx context.Context, bare bool) error {
	start := time.Now()
	l.mu.Lock()
	g := l.present(bare, false, Exclusive)
	l.mu.Unlock()
	if g == nil {
		return ErrNotLocked
	}
	h, op := g.Claim, l.OpOf(Shared)
	inc := h.Incarnation
	moving, stop := l.Manager.Until(ctx, h.Left()) // perhaps the servers do not answer, and an Unlock does not wait for them
	c, err := h.Beside(moving)
	stop()
	if err != nil {
		err = h.Explain(err)
	}
	released := cmp.Or(session.CtxErr(ctx), ErrNotLocked) // the result after an Unlock; it does not matter which came first, the Unlock or the end of ctx
	var former string
	l.mu.Lock()
	switch has := g.used() && h.mode() == Exclusive; {
	case has && err == nil:
		// The read znode exists, and blocks every other writer. So it does not matter when the
		// write znode is deleted, or by which client.
		former, err = h.Move(c, op)
	case err == nil:
		znodes.Remove(inc, znodes.ChildPath(l.Line.Dir, c.Name))
		err = released
	case !has && !errors.Is(err, session.ErrLost):
		err = released
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	// If a transaction may still be applied until the write znode is deleted, the next reader must
	// wait in the line for this deletion.
	h.passed, h.closed = 0, h.open > 0
	// An RUnlock of another reader may end this use instead of its own. So from now on, the Ending that
	// the caller may have as a writer is that of all readers.
	if !g.Pinned {
		l.readers().AfterFunc(func(why error) { g.lost.End(why) })
	}
	l.serve()
	l.mu.Unlock()
	l.Manager.Waited(op, h.path(), start, nil)
	// The downgrade is done. Readers behind the write znode wait for its deletion.
	connected, disconnected := l.Manager.Until(ctx, inc.Disconnection())
	defer disconnected()
	znodes.Remove(inc, former).Outcome(connected)
	return nil
}

// Txn applies ops in one transaction, if g is still held: see Hold.txn. If g is released, or a Downgrade
// replaces the znode, the error is ErrNotLocked, and nothing is applied. A release, which decides about the
// claim under Lock.mu, sees the transaction in the count, or the transaction does not begin.
func (g *Grant) Txn(ctx context.Context, ops []any) (rs []zk.MultiResponse, err error) {
	c, open := g.Claim, false
	if l := c.lock(); l != nil {
		l.mu.Lock()
		held := g.used()
		if held {
			c.open++
		}
		l.mu.Unlock()
		if !held {
			return nil, ErrNotLocked
		}
		defer func() {
			if !open {
				l.mu.Lock()
				c.open--
				l.mu.Unlock()
			}
		}()
	}
	dir, path := c.Line.Dir, c.Znode()
	if ops, _, err = znodes.CheckOps(c.Line.Manager, ops, path, znodes.ChildPath(dir, znodes.LogName)); err != nil {
		return nil, err
	}
	rs, open, err = c.txn(ctx, dir, ops, path)
	return rs, err
}

// Standing returns an Ending that ends when the present hold is lost: a hold in the first of `modes`
// that has one. If this hold is already lost, or there is no hold, the Ending has already ended.
func (l *Lock) Standing(modes ...HoldMode) *session.Ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := ErrNotLocked
	if g := l.present(false, false, modes...); g != nil {
		switch why = g.Err(); {
		case why == nil && g.Claim.mode() == Shared:
			return l.readers()
		case why == nil:
			return g.Loss()
		}
	}
	over := new(session.Ending)
	over.End(why)
	return over
}

// The method `readers` returns the Ending of all readers. It is called while a reader uses a hold that
// is not lost. A reader without a handle does not know which shared hold of the process it uses. So
// the loss of one is a loss for all readers. If l.reading has ended, the lost hold is released, and
// its loss does not concern the readers that remain.
func (l *Lock) readers() *session.Ending {
	if l.reading == nil || l.reading.Cause() != nil {
		l.reading = new(session.Ending)
		for _, h := range l.holds {
			if len(h.uses) > 0 { // else h is being released
				l.read(h)
			}
		}
	}
	return l.reading
}

// Wanted reports whether l is in use: a goroutine of this process has the lock or waits for it, or
// a place is kept.
func (l *Lock) Wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds) > 0 || len(l.waiting) > 0 || l.idle != nil
}

// Current returns a grant of the hold of this process: see `present`.
func (l *Lock) Current(bare bool) (*Grant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.present(bare, false, Exclusive, Shared); g != nil {
		return g, nil
	}
	return nil, ErrNotLocked
}

// Mode returns the mode in which g is held. If g is nil or has been released, `ok` is false.
func (g *Grant) Mode() (mode HoldMode, ok bool) {
	if g == nil || g.Claim.lock() == nil {
		return Exclusive, g != nil
	}
	l := g.Claim.lock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return g.Claim.mode(), g.used()
}

// isLost reports whether c is lost. When it returns true, the hooks of the loss have run.
func isLost(c *Claim) bool { return c.Err() != nil }

// The function `isBare` reports whether no Do, RDo or Run releases g.
func isBare(g *Grant) bool { return !g.Pinned }

// The method `lock` returns the Lock that shares c among goroutines, or nil.
func (c *Claim) lock() *Lock {
	l, _ := c.owner.(*Lock)
	return l
}

// The method `used` reports whether g is a use of its hold. It is called under mu.
func (g *Grant) used() bool { return slices.Contains(g.Claim.uses, g) }

// The method `occupied` reports whether a hold must be released before another goroutine can get the
// lock in `mode`. Even a new reader waits for the release of a lost shared hold: otherwise, RUnlock,
// which has no handle, could return the loss to the new reader.
func (l *Lock) occupied(mode HoldMode) bool {
	return slices.ContainsFunc(l.holds, func(h *Claim) bool {
		return mode == Exclusive || h.mode() == Exclusive || isLost(h)
	})
}

// The method `join` returns a hold that one more reader joins now, or nil. If `full` is true, h must
// first be listed.
func (l *Lock) join() (h *Claim, full bool) {
	for _, h := range slices.Backward(l.holds) {
		if h.mode() == Shared && !h.closed && len(h.uses) > 0 {
			if h.passed >= l.Handoffs {
				return h, true
			}
			h.passed++
			return h, false
		}
	}
	return nil, false
}

// The method `present` returns a use for a goroutine that has no handle, which passes no Grant. The
// hold of the use is in the first of `modes` that has one; without such a hold, the result is nil. A
// lost hold comes first, so that the release returns the loss, and then the oldest hold.
//
// The use is the oldest that no Do, RDo or Run will release: if readers overlap all the time, no use
// may seem to last longer than the longest reader (Limits.Max). Without such a use, it is the use of a
// Do, but not to end a shared hold (`ends`). If `bare` is true, the caller is inside a Do that has no
// hold. Then the use of a Do belongs to another Do, and does not count.
//
// A Txn or a Token checks this hold. While the znode of the oldest hold exists, no writer has got the
// lock since the grant of that hold. A newer hold does not show this: perhaps another client has
// deleted an earlier znode, and a writer has come between the two.
func (l *Lock) present(bare, ends bool, modes ...HoldMode) (found *Grant) {
	for _, mode := range modes {
		for _, h := range l.holds {
			i := slices.IndexFunc(h.uses, isBare)
			if i < 0 && !bare && (mode == Exclusive || !ends) {
				i = len(h.uses) - 1
			}
			switch {
			case h.mode() != mode || i < 0:
			case isLost(h):
				return h.uses[i]
			case found == nil:
				found = h.uses[i]
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}
