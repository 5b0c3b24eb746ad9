package zsync

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A turnstile lets the goroutines of one process share places in a line.
//
// They queue locally, in the order in which they come, and the process has at
// most one place in the line that waits on behalf of the first of them. What
// the process has got it passes on among its goroutines without asking the
// servers: a hold for one from goroutine to goroutine, a hold for several by
// letting others join. Either is bounded while somebody else waits.
//
// It is the local half of a Mutex and of an RWMutex:
//
//  1. Queue behind the goroutines that came before.
//  2. The first in the queue joins what the process holds for several, unless
//     it is used up. Then one listing tells whether somebody waits behind it:
//     if nobody does it is as new, otherwise nobody joins it any more.
//  3. Otherwise one goroutine, the seeker, acquires a claim for it, and for
//     those right behind it if they can share it.
//  4. Who leaves last gives up the claim, or passes it on.
type turnstile struct {
	s        *Session
	path     string
	line     line.Line
	handoffs int
	entries  map[Mode]lineEntry

	mu      sync.Mutex
	held    []*share      // what this process holds, until it is given up even if it is lost; guarded by mu
	freed   chan struct{} // if not nil, closed when one of held goes; guarded by mu
	waiting []*turnWaiter // goroutines of this process, in order; guarded by mu
	seeking *seeker       // who waits in the line for the first of waiting; guarded by mu
	reading *reading      // if something is held for several; guarded by mu
}

// A reading lasts from the moment in which a process holds something for several
// until it holds nothing of that kind. Who has one of several shares, and no
// handle, does not know which: so the loss of one is the loss of all.
type reading struct {
	lost chan struct{}
	once sync.Once // closes lost
	why  error     // of the first loss; set before lost is closed
}

// A lineEntry is how contenders of one mode enter a line.
type lineEntry struct {
	base string    // of their names
	turn line.Rule // who stands in their way
	op   string    // for the observer
}

// A share is a claim in the hands of goroutines of this process: of one if the
// mode is exclusive, else of any number. Each has a grant of its own. Its fields
// are guarded by turnstile.mu.
type share struct {
	claim  *line.Claim
	mode   Mode
	grants []*line.Grant // of those who have it, in the order in which they got it
	passed int           // hand-overs or joins since the servers were last asked
	closed bool          // nobody may join it any more
	asking bool          // somebody is asking whether others wait
	ask    *question     // if the servers have been asked ahead
	beside bool          // a reader may stand beside it, and stay when it goes: it cannot be passed on
	moving chan struct{} // if not nil, Downgrade is exchanging its znode, and closes it after
}

// A turnWaiter is one goroutine that waits for a grant.
type turnWaiter struct {
	mode    Mode
	pin     bool          // it asks for Do or RDo
	granted chan struct{} // closed, under turnstile.mu, when g or err is set
	g       *line.Grant
	err     error
}

// A seeker waits in the line on behalf of the waiting goroutines.
type seeker struct {
	mode     Mode
	ahead    line.Ahead
	ctx      context.Context
	cancel   context.CancelFunc
	unwanted bool          // cancelled because nobody waits for it any more; guarded by turnstile.mu
	done     chan struct{} // closed when nothing of it is left
}

// acquire waits for a grant.
func (q *turnstile) acquire(ctx context.Context, mode Mode, pin bool) (*line.Grant, error) {
	start := time.Now()
	end := q.acquiring(ctx, mode)
	g, err := q.wait(ctx, mode, pin)
	q.report(mode, err, start)
	if g != nil {
		end(g.Name(), nil)
	} else {
		end("", err)
	}
	return g, err
}

// traced is what a tracer is told of q; of a part of something else, which has no
// operation, it is told nothing.
func (q *turnstile) traced(mode Mode) func() Traced {
	return func() Traced {
		kind := "mutex"
		if len(q.entries) > 1 {
			kind = "rwmutex"
		}
		return q.s.tracers.traced(kind, q.entries[mode].op, q.path)
	}
}

func (q *turnstile) acquiring(ctx context.Context, mode Mode) (end func(hold string, err error)) {
	if q.entries[mode].op == "" {
		return func(string, error) {}
	}
	return q.s.tracers.acquiring(ctx, q.traced(mode))
}

// follow tells the tracer of g. It returns what ctx becomes.
func (q *turnstile) follow(ctx context.Context, mode Mode, g *line.Grant) context.Context {
	if q.entries[mode].op == "" {
		return ctx
	}
	return q.s.tracers.follow(ctx, q.traced(mode), g)
}

// got is acquiring and follow for what is granted at once.
func (q *turnstile) got(ctx context.Context, mode Mode, g *line.Grant) {
	if q.entries[mode].op != "" {
		q.s.tracers.got(ctx, q.traced(mode), g)
	}
}

func (q *turnstile) report(mode Mode, err error, start time.Time) {
	q.s.m.Waited(q.entries[mode].op, q.path, start, err)
}

func (q *turnstile) wait(ctx context.Context, mode Mode, pin bool) (*line.Grant, error) {
	start := time.Now()
	if q.handoffs == 0 {
		// Everyone has a place of its own in the line.
		var ahead line.Ahead
		c, err := q.seek(ctx, mode, &ahead)
		if err != nil {
			head, place := ahead.Now()
			return nil, waitEnded(ctx, q.s, err, start, q.headContender(head), place)
		}
		defer q.mu.Unlock()
		return q.grantLocked(q.holdLocked(c, mode), pin), nil
	}
	w := &turnWaiter{mode: mode, pin: pin, granted: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.advanceLocked()
	q.mu.Unlock()
	select {
	case <-w.granted:
		return w.g, waitEnded(ctx, q.s, w.err, start, Contender{}, 0)
	case <-ctx.Done():
		behind, place := q.ahead(w)
		return nil, waitEnded(ctx, q.s, q.abandon(ctx, w), start, behind, place)
	case <-q.s.m.Closing:
		// Who has what we wait for may never give it up.
		behind, place := q.ahead(w)
		q.abandon(ctx, w)
		return nil, waitEnded(ctx, q.s, q.s.m.Failure(), start, behind, place)
	}
}

// ahead returns whom w waits for, as far as is known, and how many are ahead of
// it: in the line those ahead of the seeker, if there is one, and then the
// goroutines of this process that came before.
func (q *turnstile) ahead(w *turnWaiter) (behind Contender, place int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := max(slices.Index(q.waiting, w), 0)
	if q.seeking != nil {
		if head, n := q.seeking.ahead.Now(); n > 0 {
			return q.headContender(head), n + before
		}
	}
	if len(q.held) > 0 && !q.held[0].lost() {
		return ownContender(q.held[0].claim, q.s.m.Config.Owner, q.held[0].mode), 1 + before
	}
	return Contender{}, 0
}

// headContender is headContender with the mode that the name says.
func (q *turnstile) headContender(h line.Head) Contender {
	mode := ModeExclusive
	if c, ok := line.ParseChild(h.Name, q.line.Bases...); ok && c.Base == q.entries[ModeShared].base {
		mode = ModeShared
	}
	return headContender(h, mode)
}

// seek waits in the line for a claim. It returns with mu held, or with an error
// and mu not held.
//
// What is still held here when the servers grant a claim that could not be beside
// it is lost, and its goroutine has not noticed. Nobody is told that he has the
// claim before that one has noticed, which keeps goroutines of one process apart
// even then. But that can take for ever, so the claim is given back meanwhile:
// other processes need not wait for it.
func (q *turnstile) seek(ctx context.Context, mode Mode, ahead *line.Ahead) (*line.Claim, error) {
	e := q.entries[mode]
	for {
		if err := q.awaitNoLoss(ctx); err != nil {
			return nil, err
		}
		c, err := q.line.Acquire(ctx, e.base, []byte(q.s.m.Config.Owner), e.turn, ahead)
		if err != nil {
			return nil, err
		}
		q.mu.Lock()
		if q.usableLocked(c, mode) {
			return c, nil
		}
		q.mu.Unlock()
		q.s.m.GiveUp(ctx, c.GiveBack)
		if ctx.Err() != nil {
			return nil, session.CtxErr(ctx)
		}
	}
}

// awaitNoLoss waits until everybody here has noticed what he has lost.
func (q *turnstile) awaitNoLoss(ctx context.Context) error {
	for {
		q.mu.Lock()
		if !slices.ContainsFunc(q.held, (*share).lost) {
			q.mu.Unlock()
			return nil
		}
		if q.freed == nil {
			q.freed = make(chan struct{})
		}
		freed := q.freed
		q.mu.Unlock()
		// If ctx has ended as well it does not matter which is picked: whoever
		// acquires looks at ctx first.
		select {
		case <-freed:
		case <-ctx.Done():
			return session.CtxErr(ctx)
		case <-q.s.m.Closing:
			return q.s.m.Failure()
		}
	}
}

func (t *share) lost() bool { return t.claim.Err() != nil }
func (t *share) used() bool { return len(t.grants) > 0 }

// usableLocked reports whether c, whose turn has come in mode, may be given to a
// goroutine of this process. What could not stand beside it is lost: the servers
// would not have let c's turn come before that was gone.
func (q *turnstile) usableLocked(c *line.Claim, mode Mode) bool {
	for _, t := range q.held {
		if mode == ModeExclusive || t.mode == ModeExclusive {
			t.claim.Lose(t.claim.Incarnation.Deleted())
		}
	}
	return !q.occupiedLocked(mode) && c.Err() == nil
}

// occupiedLocked reports whether something stands that must go before a
// goroutine of this process is told that it holds mode. What is lost must go
// even before another reader comes: RUnlock cannot tell whose hold it gives up,
// and would tell the wrong one of the loss.
func (q *turnstile) occupiedLocked(mode Mode) bool {
	for _, t := range q.held {
		if mode == ModeExclusive || t.mode == ModeExclusive || t.lost() {
			return true
		}
	}
	return false
}

// holdLocked puts c, whose turn has come, into the hands of this process.
func (q *turnstile) holdLocked(c *line.Claim, mode Mode) *share {
	t := &share{claim: c, mode: mode}
	q.held = append(q.held, t)
	if mode == ModeShared {
		q.readLocked(t)
	}
	return t
}

// readLocked makes t, which is for several, a part of the present reading.
func (q *turnstile) readLocked(t *share) {
	if q.reading == nil {
		q.reading = &reading{lost: make(chan struct{})}
	}
	r := q.reading
	t.claim.OnLost(func() {
		r.once.Do(func() {
			r.why = t.claim.Loss()
			close(r.lost)
		})
	})
}

// dropLocked takes t, which nobody has any more, out of the hands of this
// process.
func (q *turnstile) dropLocked(t *share) {
	q.held = slices.DeleteFunc(q.held, func(x *share) bool { return x == t })
	if !slices.ContainsFunc(q.held, func(x *share) bool { return x.mode == ModeShared }) {
		q.reading = nil
	}
	if q.freed != nil {
		close(q.freed)
		q.freed = nil
	}
}

// lost returns a channel that is closed when what is held in the first of these
// modes in which something is held is lost. It is closed if nothing is.
func (q *turnstile) lost(modes ...Mode) <-chan struct{} {
	lost, _ := q.standing(modes...)
	return lost
}

// standing is lost, with what says why, once that is closed.
func (q *turnstile) standing(modes ...Mode) (lost <-chan struct{}, why func() error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, mode := range modes {
		switch t := q.presentLocked(mode, (*share).used); {
		case t == nil:
			continue
		case t.lost():
			return session.ClosedChan, t.claim.Err
		case mode == ModeShared:
			r := q.reading
			return r.lost, func() error { return r.why }
		default:
			return t.grants[0].Lost, t.grants[0].Loss
		}
	}
	return session.ClosedChan, func() error { return ErrNotLocked }
}

// grantLocked makes a goroutine one who has t.
func (q *turnstile) grantLocked(t *share, pin bool) *line.Grant {
	g := t.claim.Grant(q.entries[t.mode].op, pin)
	t.grants = append(t.grants, g)
	return g
}

// passOnLocked gives t to the first of the queue.
func (q *turnstile) passOnLocked(t *share) {
	w := q.waiting[0]
	q.waiting = q.waiting[1:]
	w.g = q.grantLocked(t, w.pin)
	close(w.granted)
}

// wanted reports whether a goroutine of this process has what q is for, or waits
// for it.
func (q *turnstile) wanted() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.held) > 0 || len(q.waiting) > 0 || q.seeking != nil
}

// firstLocked reports whether the first of the queue waits for mode.
func (q *turnstile) firstLocked(mode Mode) bool {
	return len(q.waiting) > 0 && q.waiting[0].mode == mode
}

// advanceLocked does what can be done for the first of the queue. It is called
// whenever the queue or what is held has changed.
func (q *turnstile) advanceLocked() {
	asking := q.joinAllLocked()
	if s := q.seeking; s != nil && !q.firstLocked(s.mode) {
		// Under mu, so that nobody joins a seeker that is told to leave. It
		// calls advanceLocked at its end.
		s.unwanted = true
		s.cancel()
		return
	}
	if q.seeking == nil && !asking && len(q.waiting) > 0 && !q.occupiedLocked(ModeShared) {
		q.startLocked(q.waiting[0].mode) // Step 3.
	}
}

// joinAllLocked lets the first of the queue join what is held, as long as they
// may. It reports whether the servers must be asked before the next may.
func (q *turnstile) joinAllLocked() (asking bool) {
	for q.firstLocked(ModeShared) && !q.occupiedLocked(ModeShared) { // Step 2.
		t := q.openLocked()
		if t == nil {
			return false
		}
		if t.passed >= q.handoffs {
			q.askLocked(t)
			return true
		}
		t.passed++
		q.passOnLocked(t)
	}
	return false
}

// openLocked returns the share that a reader may join, if there is one.
func (q *turnstile) openLocked() *share {
	for _, t := range slices.Backward(q.held) {
		if t.mode == ModeShared && !t.closed && len(t.grants) > 0 {
			return t
		}
	}
	return nil
}

// askLocked asks, in the background, whether anybody waits behind t.
func (q *turnstile) askLocked(t *share) {
	if t.asking {
		return
	}
	t.asking = true
	q.s.m.Spawn(func() {
		waits, err := t.claim.Anyone(q.entries[ModeExclusive].base)
		q.mu.Lock()
		defer q.mu.Unlock()
		t.asking = false
		if t.passed = 0; waits || err != nil {
			t.closed = true
		}
		q.advanceLocked()
	})
}

// startLocked sends a seeker to the line.
func (q *turnstile) startLocked(mode Mode) {
	s := &seeker{mode: mode, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	q.seeking = s
	q.s.m.Spawn(func() {
		defer close(s.done)
		defer s.cancel()
		c, err := q.seek(s.ctx, mode, &s.ahead)
		if err == nil {
			q.foundLocked(c, mode)
			return
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		q.seeking = nil
		if s.ctx.Err() == nil {
			// What retrying cannot cure, it cannot cure for any of them.
			for _, w := range q.waiting {
				w.err = err
				close(w.granted)
			}
			q.waiting = nil
		}
		q.advanceLocked()
	})
}

// foundLocked gives what the seeker has found to those it was sought for: the
// first of the queue, and those right behind who can share it. It unlocks mu.
func (q *turnstile) foundLocked(c *line.Claim, mode Mode) {
	q.seeking = nil
	if !q.firstLocked(mode) {
		// All who waited for it have left in the meantime.
		q.advanceLocked()
		q.mu.Unlock()
		c.GiveBack()
		return
	}
	t := q.holdLocked(c, mode)
	q.passOnLocked(t)
	for mode == ModeShared && q.firstLocked(mode) {
		q.passOnLocked(t)
	}
	q.advanceLocked()
	q.mu.Unlock()
}

// abandon takes w out of the queue because its ctx has ended.
func (q *turnstile) abandon(ctx context.Context, w *turnWaiter) error {
	q.mu.Lock()
	select {
	case <-w.granted:
		// It was granted at the same instant. The caller is told that its ctx
		// has ended, so it must not keep what it got.
		q.mu.Unlock()
		if w.err == nil {
			q.s.m.GiveUp(ctx, func() error { return q.renounce(w) })
		}
		return session.CtxErr(ctx)
	default:
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(x *turnWaiter) bool { return x == w })
	q.advanceLocked()
	s := q.seeking
	last := s != nil && s.unwanted
	q.mu.Unlock()
	if last {
		select {
		case <-s.done: // nothing is left in the line
		case <-time.After(session.Grace):
		}
	}
	return session.CtxErr(ctx)
}

// try makes one attempt at a grant. It is nil if somebody stands in the way.
func (q *turnstile) try(ctx context.Context, mode Mode) (*line.Grant, error) {
	start := time.Now()
	q.mu.Lock()
	busy := q.occupiedLocked(mode) || slices.ContainsFunc(q.waiting, func(w *turnWaiter) bool {
		return mode == ModeExclusive || w.mode == ModeExclusive
	})
	if t := q.openLocked(); !busy && mode == ModeShared && t != nil && t.passed < q.handoffs {
		t.passed++
		g := q.grantLocked(t, false)
		q.mu.Unlock()
		q.report(mode, nil, start)
		q.got(ctx, mode, g)
		return g, nil
	}
	q.mu.Unlock()
	if busy {
		return nil, q.s.m.Failure() // none unless the Session is closed
	}
	e := q.entries[mode]
	c, err := q.line.Try(ctx, e.base, []byte(q.s.m.Config.Owner), e.turn)
	if c == nil {
		return nil, err
	}
	q.mu.Lock()
	if !q.usableLocked(c, mode) {
		// Another goroutine has got, and lost, it in the meantime, and does
		// not know it yet. See seek.
		q.mu.Unlock()
		q.s.m.GiveUp(ctx, c.GiveBack)
		return nil, nil
	}
	// Another goroutine's seeker may be in the line, but behind us.
	g := q.grantLocked(q.holdLocked(c, mode), false)
	q.mu.Unlock()
	q.report(mode, nil, start)
	q.got(ctx, mode, g)
	return g, nil
}

// presentLocked returns the share that a goroutine without a handle has in mode,
// of those that are so: what is lost first, so that the loss is told, and then
// the newest.
func (q *turnstile) presentLocked(mode Mode, so func(t *share) bool) *share {
	var found *share
	for _, t := range slices.Backward(q.held) {
		if t.mode != mode || !so(t) {
			continue
		}
		if t.lost() {
			return t
		}
		if found == nil {
			found = t
		}
	}
	return found
}

// anonymous returns the grant that is given up by who has no handle: not that of
// a Do, unless it is the only one.
func (t *share) anonymous() *line.Grant {
	for _, g := range slices.Backward(t.grants) {
		if !g.Pin {
			return g
		}
	}
	if t.mode == ModeExclusive && len(t.grants) > 0 {
		return t.grants[0]
	}
	return nil
}

// giveUp is the end of a grant of mode, for a goroutine without a handle.
func (q *turnstile) giveUp(mode Mode) error {
	for {
		q.mu.Lock()
		t := q.presentLocked(mode, func(t *share) bool { return t.anonymous() != nil })
		if t == nil {
			q.mu.Unlock()
			return ErrNotLocked
		}
		if q.stillLocked(t) {
			return q.giveUpLocked(t, t.anonymous())
		}
	}
}

// leave is the end of g.
func (q *turnstile) leave(g *line.Grant) error {
	for {
		q.mu.Lock()
		t := q.shareOfLocked(g)
		if t == nil {
			q.mu.Unlock()
			return ErrNotLocked // it has been unlocked otherwise
		}
		if q.stillLocked(t) {
			return q.giveUpLocked(t, g)
		}
	}
}

// renounce gives up what w was granted as its wait ended. A reader who unlocks has
// no handle, and may have ended the grant of w in the place of his own, which is
// then what nobody else will give up.
func (q *turnstile) renounce(w *turnWaiter) error {
	for {
		q.mu.Lock()
		t, g := q.shareOfLocked(w.g), w.g
		if t == nil && w.mode == ModeShared && !w.pin {
			if t = q.presentLocked(ModeShared, func(t *share) bool { return t.anonymous() != nil }); t != nil {
				g = t.anonymous()
			}
		}
		if t == nil {
			q.mu.Unlock()
			return ErrNotLocked
		}
		if q.stillLocked(t) {
			return q.giveUpLocked(t, g)
		}
	}
}

// stillLocked reports whether no Downgrade of t is in progress. Otherwise it
// unlocks mu, and waits until that is over.
func (q *turnstile) stillLocked(t *share) bool {
	moving := t.moving
	if moving == nil {
		return true
	}
	q.mu.Unlock()
	<-moving
	return false
}

// giveUpLocked is the end of g, a grant of t, and unlocks mu.
func (q *turnstile) giveUpLocked(t *share, g *line.Grant) error {
	// At once, so that a second Unlock does not find it.
	t.grants = slices.DeleteFunc(t.grants, func(x *line.Grant) bool { return x == g })
	if len(t.grants) > 0 {
		g.End()
		q.mu.Unlock()
		return t.claim.Err()
	}
	if t.mode == ModeExclusive && q.passLocked(t, g) {
		q.mu.Unlock()
		return nil
	}
	q.dropLocked(t)
	// Those of this process who still wait go to the back of the line.
	q.advanceLocked()
	q.mu.Unlock()
	return g.Release()
}

// passLocked hands the claim of t, which g is the use of, to the next goroutine
// of this process if it may, and reports whether it did. It unlocks mu while it
// asks after others.
func (q *turnstile) passLocked(t *share, g *line.Grant) bool {
	may := func() bool {
		return !t.beside && q.firstLocked(ModeExclusive) && !t.lost() && !t.claim.WasAsked()
	}
	if q.handoffs == 0 || !may() {
		return false
	}
	if t.passed >= q.handoffs {
		// Somebody of this process waits, and has waited long enough that
		// others must be asked after.
		ask := t.ask
		t.ask = nil
		q.mu.Unlock()
		<-ask.done
		q.mu.Lock()
		if ask.others || !may() {
			return false
		}
		t.passed -= ask.at
	}
	t.passed++
	g.End()
	q.passOnLocked(t)
	if t.ask == nil && 2*t.passed >= q.handoffs {
		q.askAheadLocked(t)
	}
	return true
}

// A question is whether anybody else waits, asked after so many hand-overs.
type question struct {
	at     int
	done   chan struct{} // closed when others is set
	others bool          // or it is not known
}

// askAheadLocked asks whether others wait, when half of the hand-overs are used,
// so that the answer is there when all are. It says who was in the line when it was
// asked, so the hand-overs since then count: who comes right behind one question is
// seen by the next, and waits for no more hand-overs in a row than are allowed.
func (q *turnstile) askAheadLocked(t *share) {
	ask := &question{at: t.passed, done: make(chan struct{})}
	t.ask = ask
	q.s.m.Spawn(func() {
		defer close(ask.done)
		others, err := t.claim.Anyone(q.line.Bases...)
		ask.others = others || err != nil
	})
}

// yield gives up what the caller holds in mode, for Cond.Wait, and returns what
// gets it back. What belongs to the Do d, if the caller is in one, belongs to it
// again afterwards; in between d has nothing, and hears of no loss.
func (q *turnstile) yield(d *doing, mode Mode) (again func(ctx context.Context) error, err error) {
	if d != nil {
		if had, ok := d.mode(); ok && had == mode {
			from, g := d.now()
			d.set(q, nil)
			return func(ctx context.Context) error {
				g, err := q.reacquire(ctx, mode, true)
				if err == nil {
					q.follow(ctx, mode, g)
					d.set(q, g)
				}
				return err
			}, from.leave(g)
		}
	}
	return func(ctx context.Context) error {
		g, err := q.reacquire(ctx, mode, false)
		q.follow(ctx, mode, g)
		return err
	}, q.giveUp(mode)
}

func (q *turnstile) reacquire(ctx context.Context, mode Mode, pin bool) (*line.Grant, error) {
	if ctx.Err() != nil {
		return nil, session.CtxErr(ctx)
	}
	return q.acquire(ctx, mode, pin)
}

// current returns what this process holds: for one, or else for several.
func (q *turnstile) current() (*line.Grant, Mode, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, mode := range []Mode{ModeExclusive, ModeShared} {
		if t := q.presentLocked(mode, (*share).used); t != nil {
			return t.grants[len(t.grants)-1], mode, nil
		}
	}
	return nil, 0, ErrNotLocked
}

// modeOf returns the mode of the share of which g is a grant, if it is one.
func (q *turnstile) modeOf(g *line.Grant) (mode Mode, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.shareOfLocked(g); t != nil {
		return t.mode, true
	}
	return 0, false
}

func (q *turnstile) shareOfLocked(g *line.Grant) *share {
	for _, t := range q.held {
		if slices.Contains(t.grants, g) {
			return t
		}
	}
	return nil
}
