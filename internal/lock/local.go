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
)

// A Lock is the part of a Mutex, an RWMutex or an Election in one process. Like a semaphore of
// golang.org/x/sync, it has a mutex and a list of waiters. Each waiter waits in the goroutine of
// its caller.
//
//   - Acquire puts the caller at the end of the list. If this process has a hold that the first
//     waiter can share, the waiter gets a grant of that hold. If not, it waits in the line, on behalf
//     of the waiters behind it. If its context ends first, the next waiter takes over the place.
//   - Release gives an exclusive hold to the first waiter, without a request. If there may be other
//     contenders in the line, there are at most Handoffs such handoffs in a row. In the same way, at
//     most Handoffs readers join a shared hold before the line is listed again.
//
// The zero value has no hold, and can only report that it has none.
type Lock struct {
	Manager *session.Manager
	Path    string
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
	h := l.hold(c, w.mode)
	if h != nil {
		l.waiting = without(l.waiting, w)
		w.grant = l.admit(h, w.pin, w.of)
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

func (l *Lock) enter(w *waiter) {
	w.place = &Place{Line: &l.Line, Mode: w.mode, Behind: new(Ahead)}
	w.ready <- struct{}{}
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
	if l.occupied(Shared) {
		return nil, true
	}
	if h = l.joinable(); mode == Exclusive || h == nil {
		return nil, false
	}
	if h.passed >= l.Handoffs {
		l.list(h) // when the listing is answered, `list` calls `serve` again
		return nil, true
	}
	h.passed++
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
	l.waiting = slices.Delete(l.waiting, 0, 1)
	w.grant = l.admit(h, w.pin, w.of)
	w.ready <- struct{}{}
}

// The function `without` returns s, except for the element x.
func without[T comparable](s []T, x T) []T {
	return slices.DeleteFunc(s, func(y T) bool { return y == x })
}

// The method `admit` makes a grant of h for one more goroutine, which runs the program's function f,
// if f is not nil.
func (l *Lock) admit(h *Claim, pin bool, f *session.Function) *Grant {
	g := h.Grant(l.OpOf(h.mode))
	g.Pinned = pin
	g.Within(f)
	h.uses = append(h.uses, g)
	return g
}

// The method `hold` makes c, whose turn has come, a hold of this process. First, it ends every hold
// that cannot coexist with c. Such a hold is lost: its znode is deleted, because c's turn has come.
// If a lost hold of this process is not released yet, the result is nil.
func (l *Lock) hold(c *Claim, mode HoldMode) *Claim {
	if c.Err() != nil {
		return nil // the holds in l.holds may belong to the next session
	}
	l.discard() // a kept place is ahead of c; as c has its turn, the znode of that place is deleted
	for _, h := range l.holds {
		if (mode == Exclusive || h.mode == Exclusive) && h.Lose(h.Incarnation.Deleted()) {
			h.Hold.withdraw() // perhaps not h's znode was deleted, but c's: then h's must not stay
		}
	}
	if l.occupied(mode) {
		return nil
	}
	for _, h := range l.holds { // readers; the token is of the oldest hold, and must also be right for the new reader: see renew
		h.mu.Lock()
		h.renew()
		h.mu.Unlock()
	}
	c.mode = mode
	l.holds = append(l.holds, c)
	switch {
	case mode == Shared && l.reading != nil:
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
	return c
}

// The method `forget` drops the lost hold of an Election, because a waiter wants to enter the line:
// the closed Lost channel has shown the loss to the former leader. But the release may still come,
// and then it looks like the release of the next hold: see `depart`. Run releases its own grant.
func (l *Lock) forget() {
	if !l.Elects || session.IsClosed(l.Manager.Closing) { // during Close, no waiter enters the line, and the release must return the loss
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
	answered, mode := make(chan struct{}), h.mode
	h.listing = answered
	l.Manager.Spawn(func() {
		others, err := h.others(mode)
		l.mu.Lock()
		defer l.mu.Unlock()
		close(answered)
		if mode == Shared {
			h.passed, h.closed = 0, h.closed || others || err != nil
		}
		l.serve() // if a Downgrade has made h shared since the listing began, `serve` begins another listing
	})
}

// The method `review` is called once in each session timeout while a waiter waits for a hold of this
// process. The waiters fail if this hold is `forgotten`.
func (l *Lock) review() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = nil
	inLine := l.Handoffs > 0 && len(l.waiting) > 0 && l.waiting[0].place != nil // the first waiter is in the line; the others wait for the first waiter, and not for a lost hold
	if err := l.forgotten(); err != nil && !inLine {
		l.failLocked(err, func(w *waiter) bool { return w.place == nil })
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
		return &Behind{Name: session.BaseName(h.Znode()), Node: session.Node{Data: l.Line.Data, Stat: &stat}, Mode: h.mode, Place: 1 + before}
	}
	return new(Behind)
}

// Try makes one attempt to acquire. If another contender blocks it, Try returns nil.
func (l *Lock) Try(ctx context.Context, mode HoldMode) (g *Grant, err error) {
	of := l.Manager.FunctionOf(ctx) // without mu, because ctx may be a type of the program
	l.mu.Lock()
	h := l.regain(mode)
	if h == nil {
		l.discard()
		if l.occupied(mode) || slices.ContainsFunc(l.waiting, func(w *waiter) bool { return mode == Exclusive || w.mode == Exclusive }) {
			l.mu.Unlock()
			return nil, l.Manager.Failure() // an error if the Session is closed, and otherwise nil
		}
		if h = l.joinable(); h != nil && h.passed < l.Handoffs {
			h.passed++
		} else {
			h = nil
		}
	}
	if h != nil {
		g = l.admit(h, false, of)
	}
	l.mu.Unlock()
	if g != nil {
		return g, nil
	}
	c, err := l.Line.Try(ctx, mode)
	if c == nil {
		return nil, err
	}
	l.mu.Lock()
	if h = l.hold(c, mode); h != nil {
		g = l.admit(h, false, of)
	}
	l.mu.Unlock()
	if g == nil { // a goroutine of this process has not noticed its loss yet
		l.Manager.GiveUp(ctx, c.GiveBack)
	}
	return g, nil
}

// Unlock ends a use in `mode`, for an Unlock or RUnlock: see BeginUnlock.
func (l *Lock) Unlock(mode HoldMode) error {
	finish, _ := l.BeginUnlock(mode, false)
	return finish()
}

// Release ends the use of g.
func (l *Lock) Release(g *Grant) error {
	finish, found := l.BeginRelease(g)
	if !found && l.Elects && g.Claim.Loss() != nil {
		finish = g.Release // perhaps `forget` has dropped the lost hold of a Run
	}
	return finish()
}

// BeginUnlock begins to end a use in `mode`: see `depart`. The caller has no handle: see `present`.
func (l *Lock) BeginUnlock(mode HoldMode, bare bool) (finish func() error, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.depart(l.present(bare, true, mode))
}

// BeginRelease begins to end the use of g.
func (l *Lock) BeginRelease(g *Grant) (finish func() error, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.depart(l.useOf(g))
}

// The method `renounce` ends the use of w, which got its grant at the moment at which its wait failed.
// An RUnlock has no handle. So an RUnlock by another reader may have ended the use of w instead of
// its own. Then `renounce` ends the use of that reader.
func (l *Lock) renounce(w *waiter) error {
	finish, found := l.BeginRelease(w.grant)
	if !found && w.mode == Shared && !w.pin {
		finish, _ = l.BeginUnlock(Shared, false)
	}
	return finish()
}

// The method `depart` removes the i'th use of h, under mu. Then the caller must call `finish` once,
// which does the slow part, perhaps later and in another goroutine: it never ends a use that was
// granted after the call of `depart`. If h is nil, there is no use to end: `found` is false, and
// `finish` returns ErrNotLocked.
func (l *Lock) depart(h *Claim, i int) (finish func() error, found bool) {
	if h == nil {
		return func() error { return ErrNotLocked }, false
	}
	g := h.uses[i]
	if g.moving != nil {
		close(g.moving)
	}
	h.uses = slices.Delete(h.uses, i, i+1) // now, so that a second Unlock does not find the use
	if h.mode == Shared && !g.Pinned {
		// Perhaps this is the RUnlock of another reader. Then the reader that got g goes on with the use of
		// that reader, perhaps in a function of the program. Close waits for this function, and must not
		// release a shared hold that remains. So the functions of g may now hold another use of each such
		// hold.
		for _, h := range l.holds {
			if i := slices.IndexFunc(h.uses, func(g *Grant) bool { return !g.Pinned }); i >= 0 {
				h.uses[i].Within(g.within...)
			}
		}
	}
	if l.owed && !g.Pinned {
		// This may be the late release of a lost hold. It now ends the present hold instead, so the
		// present leader must see a loss, and its own release may come late, too. A release that finds
		// no hold does not clear `owed` either: many programs resign twice, to be sure. A grant of Run
		// must last while its function runs: it has the limits, and makes Close wait.
		g.Revoke()
	}
	if h.used() { // other goroutines still use h
		h.Err() // if h is lost, Err ends the grant by the loss, for the trace; End would end the grant without a loss
		g.End()
		return h.Err, true
	}
	return func() error { return l.handOver(h, g) }, true
}

// handOver ends g, the last use of h, and gives h to the first waiter of this process. This handoff
// needs no request: the znode of h stays, and every other contender waits behind it. If there is no
// waiter, or the waiter must not get h (see mayPass), handOver keeps the place of h or deletes the
// znode.
//
//   - A handoff is safe, because mu is locked from the look at the list to the grant. If h is lost
//     at that time, the grant of the next goroutine is lost, too (Claim.Grant).
//   - No waiter is forgotten. A waiter joins and leaves the list under mu. So either handOver finds
//     it, or `serve` later finds that h is no longer held. A waiter that leaves with a grant
//     renounces it.
//   - A handoff is fair. While h is Alone, no other contender waits. The create of another contender
//     ends that, and then at most Handoffs more handoffs follow. After half of them, handOver begins
//     a listing, once in each hold, and after all of them, it waits for this listing, at most 200 ms
//     (askTime). If h is alone, the listing sets the watch. Without it, a process that is alone
//     would delete its znode after every Handoffs handoffs.
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
	if e, kept := l.keep(h, g); kept {
		l.mu.Unlock()
		l.Manager.Observe(e)
		return nil
	}
	l.drop(h)
	l.mu.Unlock()
	return g.Release()
}

// mayPass reports whether handOver may give h to another goroutine of this process. An unanswered
// transaction may still be applied while the znode of h exists, because it checks this znode. It must
// not be applied during the next hold. So h is not handed over, and the znode is deleted.
func (l *Lock) mayPass(h *Claim) bool {
	return h.mode == Exclusive && l.Handoffs > 0 && !l.Elects && h.open == 0 && !isLost(h) && !h.WasAsked()
}

// The method `drop` removes h from the holds. It is called under mu, like all functions from here to
// unkeep.
func (l *Lock) drop(h *Claim) {
	l.holds = without(l.holds, h)
	if !slices.ContainsFunc(l.holds, func(h *Claim) bool { return h.mode == Shared }) {
		l.reading = nil
	}
	l.serve()
}

// The method `keep` keeps the place of h at the end of g, its last use, if no other contender is in
// the line. Then the caller must pass e to the observer, without mu.
//
// A kept place is as safe as a handoff: while the session lives, the znode is ahead of all others, and
// a grant needs a confirmed session. It is fair, because the listing after the create has set a watch
// on the line. When it fires, the client deletes the znode. (If another contender of this session has
// set the watch earlier, our own create fires it. Then our place is not kept.)
func (l *Lock) keep(h *Claim, g *Grant) (e session.Report, done bool) {
	if l.Retain == 0 || h.mode != Exclusive || h.open > 0 || len(l.waiting) > 0 ||
		!h.Alone() || h.WasAsked() || session.IsClosed(l.Manager.Closing) {
		return e, false
	}
	if l.Kept.Add(1) > maxKept {
		l.Kept.Add(-1)
		return e, false
	}
	h.mu.Lock()
	if h.state != held || !g.lasts { // h is lost
		h.mu.Unlock()
		l.Kept.Add(-1)
		return e, false
	}
	e = h.event(session.EventReleased, nil)
	g.overLocked()
	h.enter(kept)
	if h.recall == nil {
		h.recall = func() {
			l.Manager.Spawn(func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.idle == h {
					l.discard()
				}
			})
		}
		h.lost.AfterFunc(func(error) { h.recall() })
	}
	h.timer = time.AfterFunc(l.Retain, h.recall)
	if !h.recalls {
		h.recalls = true
		h.Incarnation.Watches.Tell(h.lineWatch, h, h.recall)
	}
	h.mu.Unlock()
	l.idle = h
	l.drop(h)
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

// Txn is Grant.Txn for a grant that can be released at the same time: then the error is ErrNotLocked. A
// release, which decides about h under mu, sees the transaction in the count, or the transaction does not
// begin.
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

// Downgrade makes the exclusive hold a shared hold. If the hold is released at the same time, the
// error is ErrNotLocked. For `bare`, see `present`.
func (l *Lock) Downgrade(ctx context.Context, bare bool) error {
	start, ended := time.Now(), make(chan struct{})
	moving, stop := l.Manager.Until(ctx, ended) // perhaps the servers do not answer, and an Unlock does not wait for them
	defer stop()
	l.mu.Lock()
	h, i := l.present(bare, false, Exclusive)
	if h == nil || h.uses[i].moving != nil {
		l.mu.Unlock()
		return ErrNotLocked
	}
	g, inc, op := h.uses[i], h.Incarnation, l.OpOf(Shared)
	g.moving = ended
	l.mu.Unlock()

	c, err := h.Beside(moving)
	if err != nil {
		err = h.Explain(err)
	}
	released := cmp.Or(session.CtxErr(ctx), ErrNotLocked) // the result after an Unlock; it does not matter which came first, the Unlock or the end of ctx
	l.mu.Lock()
	g.moving = nil
	var former string
	switch has := slices.Contains(h.uses, g); {
	case has && err == nil:
		// The read znode exists, and blocks every other writer. So it does not matter when the
		// write znode is deleted, or by which client.
		former, err = h.Move(c, op)
	case err == nil:
		inc.Remove(session.ChildPath(l.Line.Dir, c.Name))
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
	h.mode, h.passed, h.closed = Shared, 0, h.open > 0
	// An RUnlock of another reader may end this use instead of its own. The caller then has the use of
	// that reader. So from now on, the Ending that the caller may have as a writer is that of all
	// readers.
	if !g.Pinned {
		l.readers().AfterFunc(func(why error) { g.lost.End(why) })
	}
	l.serve()
	l.mu.Unlock()
	l.Manager.Waited(op, l.Path, start, nil)
	// The downgrade is done. Readers behind the write znode wait for its deletion.
	connected, disconnected := l.Manager.Until(ctx, inc.Disconnection())
	defer disconnected()
	inc.Remove(former).Outcome(connected)
	return nil
}

// Standing returns an Ending that ends when the present hold is lost: a hold in the first of `modes`
// that has one. If this hold is already lost, or there is no hold, the Ending has already ended.
func (l *Lock) Standing(modes ...HoldMode) *session.Ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := new(session.Ending)
	switch h, i := l.present(false, false, modes...); {
	case h == nil:
		over.End(ErrNotLocked)
	case isLost(h):
		over.End(h.Err())
	case h.mode == Shared:
		return l.readers()
	default:
		return h.uses[i].Loss()
	}
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
			if h.used() { // else h is being released
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

// Current returns a grant of the hold of this process (see `present`), and the mode of the hold.
func (l *Lock) Current(bare bool) (*Grant, HoldMode, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, i := l.present(bare, false, Exclusive, Shared); h != nil {
		return h.uses[i], h.mode, nil
	}
	return nil, 0, ErrNotLocked
}

// ModeOf returns the mode in which g is held. If g is not held, `ok` is false.
func (l *Lock) ModeOf(g *Grant) (mode HoldMode, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, _ := l.useOf(g); h != nil {
		return h.mode, true
	}
	return 0, false
}

// isLost reports whether c is lost. When it returns true, the hooks of the loss have run.
func isLost(c *Claim) bool { return c.Err() != nil }

func (c *Claim) used() bool { return len(c.uses) > 0 }

// The method `occupied` reports whether a hold must be released before another goroutine can get the
// lock in `mode`. Even a new reader waits for the release of a lost shared hold: otherwise, RUnlock,
// which has no handle, could return the loss to the new reader.
func (l *Lock) occupied(mode HoldMode) bool {
	return slices.ContainsFunc(l.holds, func(h *Claim) bool {
		return mode == Exclusive || h.mode == Exclusive || isLost(h)
	})
}

// The method `joinable` returns a hold that a reader may join, or nil.
func (l *Lock) joinable() *Claim {
	for _, h := range slices.Backward(l.holds) {
		if h.mode == Shared && !h.closed && h.used() {
			return h
		}
	}
	return nil
}

// The method `present` returns a use for a goroutine that has no handle, which passes no Grant: the
// hold, and the index of the use in this hold. The hold is in the first of `modes` that has one, or it
// is nil. A lost hold comes first, so that the release returns the loss, and then the oldest hold.
//
// The use is the oldest that no Do, RDo or Run will release: if readers overlap all the time, no use
// may seem to last longer than the longest reader (Limits.Max). Without such a use, it is the use of a
// Do, but not if `ends` is true, because the caller ends the use, and the hold is shared. If `bare` is
// true, the caller is inside a Do that has no hold. Then the use of a Do belongs to another Do, and
// does not count.
//
// A Txn or a Token checks this hold. While the znode of the oldest hold exists, no writer has got the
// lock since the grant of that hold. A newer hold does not show this: perhaps another client has
// deleted an earlier znode, and a writer has come between the two.
func (l *Lock) present(bare, ends bool, modes ...HoldMode) (found *Claim, use int) {
	for _, mode := range modes {
		for _, h := range l.holds {
			i := slices.IndexFunc(h.uses, func(g *Grant) bool { return !g.Pinned })
			if i < 0 && !bare && (mode == Exclusive || !ends) {
				i = len(h.uses) - 1
			}
			switch {
			case h.mode != mode || i < 0:
			case isLost(h):
				return h, i
			case found == nil:
				found, use = h, i
			}
		}
		if found != nil {
			return found, use
		}
	}
	return nil, 0
}

// useOf returns the hold of g, and the index of the use in this hold. If g has been released, the hold
// is nil.
func (l *Lock) useOf(g *Grant) (*Claim, int) {
	for _, h := range l.holds {
		if i := slices.Index(h.uses, g); i >= 0 {
			return h, i
		}
	}
	return nil, 0
}

// The method `forgotten` returns an error if a hold of this process is Forgotten. The hold of a Do is
// never forgotten: Do releases it when its function returns.
func (l *Lock) forgotten() (err error) {
	for _, h := range l.holds {
		if isLost(h) && slices.ContainsFunc(h.uses, func(g *Grant) bool { return !g.Pinned }) {
			err = cmp.Or(err, h.Forgotten())
		}
	}
	return err
}
