package zsync

import (
	"context"
	"slices"
	"sync"
	"time"
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
//  3. Otherwise one goroutine, the seeker, acquires a place in the line for it,
//     and for those right behind it if they can share it.
//  4. Who leaves last gives up the place, or passes it on.
type turnstile struct {
	s        *Session
	path     string
	line     line
	handoffs int
	entries  map[Mode]lineEntry

	mu      sync.Mutex
	held    []*tenure     // what this process holds, until it is given up even if it is lost; guarded by mu
	freed   chan struct{} // if not nil, closed when one of held goes; guarded by mu
	waiting []*turnWaiter // goroutines of this process, in order; guarded by mu
	seeking *seeker       // who waits in the line for the first of waiting; guarded by mu
}

// A lineEntry is how contenders of one mode enter a line.
type lineEntry struct {
	base string // of their names
	turn rule   // who stands in their way
	op   string // for the observer
}

// A tenure is a hold in the hands of goroutines of this process: of one if the
// mode is exclusive, else of any number. Its fields are guarded by turnstile.mu.
type tenure struct {
	hold   *hold
	mode   Mode
	users  int           // how many have it by Lock or RLock, which do not know which tenure they have
	pinned int           // how many have it by Do or RDo, which do
	passed int           // hand-overs or joins since the servers were last asked
	left   bool          // somebody has given it up while others kept it
	closed bool          // nobody may join it any more
	asking bool          // somebody is asking whether others wait
	grant  int           // grows when it goes from goroutine to goroutine
	beside bool          // a reader may stand beside it, and stay when it goes: it cannot be passed on
	moving chan struct{} // if not nil, Downgrade is exchanging its znode, and closes it after
}

// A turnWaiter is one goroutine that waits for a tenure.
type turnWaiter struct {
	mode    Mode
	pin     bool          // it asks for Do or RDo
	granted chan struct{} // closed, under turnstile.mu, when t or err is set
	t       *tenure
	grant   int // of t
	err     error
}

// A tenancy is a tenure, or one of the goroutines that share it, as a Do has it.
type tenancy struct {
	turn  *turnstile
	t     *tenure
	grant int // of t: it may have been unlocked, and gone to another goroutine
}

// tenancy returns what a Do has that has just got t.
func (q *turnstile) tenancy(t *tenure) *tenancy {
	q.mu.Lock()
	defer q.mu.Unlock()
	return &tenancy{q, t, t.grant}
}

// standsLocked reports whether it has not been given up.
func (x *tenancy) standsLocked() bool { return x.t.grant == x.grant && x.t.usedLocked() }

// A seeker waits in the line on behalf of the waiting goroutines.
type seeker struct {
	mode     Mode
	ctx      context.Context
	cancel   context.CancelFunc
	unwanted bool          // cancelled because nobody waits for it any more; guarded by turnstile.mu
	done     chan struct{} // closed when nothing of it is left
}

// acquire waits for a tenure.
func (q *turnstile) acquire(ctx context.Context, mode Mode, pin bool) (*tenure, error) {
	start := time.Now()
	t, err := q.wait(ctx, mode, pin)
	q.report(mode, err, start)
	return t, err
}

func (q *turnstile) report(mode Mode, err error, start time.Time) {
	q.s.waited(q.entries[mode].op, q.path, start, err)
}

func (q *turnstile) wait(ctx context.Context, mode Mode, pin bool) (*tenure, error) {
	if q.handoffs == 0 {
		// Everyone has a place of its own in the line.
		h, err := q.seek(ctx, mode)
		if err != nil {
			return nil, err
		}
		defer q.mu.Unlock()
		return q.holdLocked(h, mode, pin), nil
	}
	w := &turnWaiter{mode: mode, pin: pin, granted: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.advanceLocked()
	q.mu.Unlock()
	select {
	case <-w.granted:
		return w.t, w.err
	case <-ctx.Done():
		return nil, q.abandon(ctx, w)
	case <-q.s.closing:
		// Who has what we wait for may never give it up.
		q.abandon(ctx, w)
		return nil, q.s.failure()
	}
}

// seek waits in the line for a hold. It returns with mu held, or with an error
// and mu not held.
//
// Once the servers have granted a hold, what is still held here and could not
// be beside it has been lost with its session, and its goroutine has not
// noticed. Waiting for it keeps goroutines of one process apart even then. If
// that takes so long that the new session is over too, we wait in the next.
func (q *turnstile) seek(ctx context.Context, mode Mode) (*hold, error) {
	e := q.entries[mode]
	for {
		p, err := q.line.acquire(ctx, e.base, []byte(q.s.cfg.owner), e.turn)
		if err != nil {
			return nil, err
		}
		h := newHold(&q.line, p, e.op)
		q.mu.Lock()
		for q.occupiedLocked(mode) && h.err() == nil && ctx.Err() == nil {
			if q.freed == nil {
				q.freed = make(chan struct{})
			}
			freed := q.freed
			q.mu.Unlock()
			select {
			case <-freed:
			case <-h.lost:
			case <-ctx.Done():
			}
			q.mu.Lock()
		}
		if !q.occupiedLocked(mode) && h.err() == nil {
			return h, nil
		}
		q.mu.Unlock()
		q.s.letGo(ctx, h.release)
		if ctx.Err() != nil {
			return nil, ctxErr(ctx)
		}
	}
}

// occupiedLocked reports whether something stands that must go before a
// goroutine of this process is told that it holds mode. What is lost must go
// even before another reader comes: RUnlock cannot tell whose hold it gives up,
// and would tell the wrong one of the loss.
func (q *turnstile) occupiedLocked(mode Mode) bool {
	for _, t := range q.held {
		if mode == ModeExclusive || t.mode == ModeExclusive || t.hold.err() != nil {
			return true
		}
	}
	return false
}

// holdLocked makes h the tenure of its first user.
func (q *turnstile) holdLocked(h *hold, mode Mode, pin bool) *tenure {
	t := &tenure{hold: h, mode: mode}
	t.addLocked(pin)
	q.held = append(q.held, t)
	return t
}

func (t *tenure) addLocked(pin bool) {
	if pin {
		t.pinned++
	} else {
		t.users++
	}
}

func (t *tenure) usedLocked() bool { return t.users+t.pinned > 0 }

// grantLocked gives t to the first of the queue.
func (q *turnstile) grantLocked(t *tenure) {
	w := q.waiting[0]
	q.waiting = q.waiting[1:]
	t.addLocked(w.pin)
	w.t, w.grant = t, t.grant
	close(w.granted)
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
		t.refreshLocked()
		q.grantLocked(t)
	}
	return false
}

// openLocked returns the tenure that a reader may join, if there is one.
func (q *turnstile) openLocked() *tenure {
	for _, t := range slices.Backward(q.held) {
		if t.mode == ModeShared && !t.closed && t.usedLocked() {
			return t
		}
	}
	return nil
}

// refreshLocked prepares t for another user. A fencing token that somebody may
// have taken with him who had t before is not for him who comes after.
func (t *tenure) refreshLocked() {
	if t.left {
		t.left = false
		t.hold.renew()
	}
}

// askLocked asks, in the background, whether anybody waits behind t.
func (q *turnstile) askLocked(t *tenure) {
	if t.asking {
		return
	}
	t.asking = true
	q.s.spawn(func() {
		waits, err := q.line.anyone(t.hold, q.entries[ModeExclusive].base)
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
	q.s.spawn(func() {
		defer close(s.done)
		defer s.cancel()
		h, err := q.seek(s.ctx, mode)
		if err == nil {
			q.foundLocked(h, mode)
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
func (q *turnstile) foundLocked(h *hold, mode Mode) {
	q.seeking = nil
	if !q.firstLocked(mode) {
		// All who waited for it have left in the meantime.
		q.advanceLocked()
		q.mu.Unlock()
		h.release()
		return
	}
	t := &tenure{hold: h, mode: mode}
	q.held = append(q.held, t)
	q.grantLocked(t)
	for mode == ModeShared && q.firstLocked(mode) {
		q.grantLocked(t)
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
			q.s.letGo(ctx, func() error { return q.leave(w.t, w.pin, w.grant) })
		}
		return ctxErr(ctx)
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
		case <-time.After(grace):
		}
	}
	return ctxErr(ctx)
}

// try makes one attempt at a tenure. It is nil if somebody stands in the way.
func (q *turnstile) try(ctx context.Context, mode Mode) (*tenure, error) {
	q.mu.Lock()
	busy := q.occupiedLocked(mode) || slices.ContainsFunc(q.waiting, func(w *turnWaiter) bool {
		return mode == ModeExclusive || w.mode == ModeExclusive
	})
	if t := q.openLocked(); !busy && mode == ModeShared && t != nil && t.passed < q.handoffs {
		t.passed++
		t.refreshLocked()
		t.addLocked(false)
		q.mu.Unlock()
		q.report(mode, nil, time.Now())
		return t, nil
	}
	q.mu.Unlock()
	if busy {
		return nil, q.s.failure() // none unless the Session is closed
	}
	e := q.entries[mode]
	p, err := q.line.try(ctx, e.base, []byte(q.s.cfg.owner), e.turn)
	if p == nil {
		return nil, err
	}
	h := newHold(&q.line, p, e.op)
	q.mu.Lock()
	if q.occupiedLocked(mode) {
		// Another goroutine has got, and lost, it in the meantime, and does
		// not know it yet. See seek.
		q.mu.Unlock()
		q.s.letGo(ctx, h.release)
		return nil, nil
	}
	defer q.mu.Unlock()
	// Another goroutine's seeker may be in the line, but behind us.
	t := q.holdLocked(h, mode, false)
	q.report(mode, nil, h.since)
	return t, nil
}

// presentLocked returns the tenure that a goroutine without a handle has in
// mode: what is lost first, so that the loss is told, and then the newest.
func (q *turnstile) presentLocked(mode Mode, used func(t *tenure) bool) *tenure {
	var found *tenure
	for _, t := range slices.Backward(q.held) {
		if t.mode != mode || !used(t) {
			continue
		}
		if t.hold.err() != nil {
			return t
		}
		if found == nil {
			found = t
		}
	}
	return found
}

// giveUp is the end of a tenure of mode, for a goroutine without a handle.
func (q *turnstile) giveUp(mode Mode) error {
	for {
		q.mu.Lock()
		t := q.presentLocked(mode, func(t *tenure) bool {
			return t.users > 0 || mode == ModeExclusive && t.pinned > 0
		})
		if t == nil {
			q.mu.Unlock()
			return ErrNotLocked
		}
		if !q.stillLocked(t) {
			continue
		}
		return q.giveUpLocked(t, t.users == 0)
	}
}

// leave is the end of t for one of its users.
func (q *turnstile) leave(t *tenure, pin bool, grant int) error {
	for {
		q.mu.Lock()
		if t.grant != grant || pin && t.pinned == 0 || !pin && t.users == 0 {
			q.mu.Unlock()
			return ErrNotLocked
		}
		if q.stillLocked(t) {
			return q.giveUpLocked(t, pin)
		}
	}
}

// stillLocked reports whether no Downgrade of t is in progress. Otherwise it
// unlocks mu, and waits until that is over.
func (q *turnstile) stillLocked(t *tenure) bool {
	moving := t.moving
	if moving == nil {
		return true
	}
	q.mu.Unlock()
	<-moving
	return false
}

// giveUpLocked takes one user off t, which has it, and unlocks mu.
func (q *turnstile) giveUpLocked(t *tenure, pin bool) error {
	if pin {
		t.pinned--
	} else {
		t.users--
	}
	if t.usedLocked() {
		t.left = true
		defer q.mu.Unlock()
		return t.hold.err()
	}
	if t.mode == ModeExclusive && q.passLocked(t) {
		q.mu.Unlock()
		return nil
	}
	q.held = slices.DeleteFunc(q.held, func(x *tenure) bool { return x == t })
	if q.freed != nil {
		close(q.freed)
		q.freed = nil
	}
	// Those of this process who still wait go to the back of the line.
	q.advanceLocked()
	q.mu.Unlock()
	return t.hold.release()
}

// passLocked hands an exclusive tenure to the next goroutine of this process if
// it may, and reports whether it did. It unlocks mu while it asks after others.
func (q *turnstile) passLocked(t *tenure) bool {
	may := func() bool {
		return !t.beside && q.firstLocked(ModeExclusive) && t.hold.err() == nil
	}
	if q.handoffs == 0 || !may() {
		return false
	}
	if t.passed >= q.handoffs {
		// Somebody of this process waits, and has waited long enough that
		// others must be asked after.
		q.mu.Unlock()
		others, err := q.line.anyone(t.hold, q.line.bases...)
		q.mu.Lock()
		if others || err != nil || !may() {
			return false
		}
		t.passed = 0
	}
	t.passed++
	t.grant++
	t.hold.renew()
	q.grantLocked(t)
	return true
}

// askTime is how long a release asks whether others wait. Without an answer it
// takes it that they do.
const askTime = 200 * time.Millisecond

// anyone reports whether anybody of these bases waits behind h. It fails when
// there is no connection, or no answer for askTime: whoever gives up does not
// wait for the next.
func (l *line) anyone(h *hold, bases ...string) (bool, error) {
	inc := h.place.inc
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	down := inc.disconnection()
	inc.m.spawn(func() {
		select {
		case <-down:
			cancel()
		case <-ctx.Done():
		}
	})
	return h.place.others(ctx, l, bases...)
}

// letGo runs f, which gives something up for a call with ctx, and returns its
// verdict. Once ctx has ended that is waited for no longer than grace: then f
// goes on in the background, and nothing is known against it.
func (m *manager) letGo(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	m.spawn(func() { done <- f() })
	err, _ := graced(done, ctx.Done())
	return err
}

// graced waits for done, once end is closed for no longer than grace. ok tells
// whether it came.
func graced[T any](done <-chan T, end <-chan struct{}) (v T, ok bool) {
	select {
	case v = <-done:
		return v, true
	case <-end:
	}
	select {
	case v = <-done:
		return v, true
	case <-time.After(grace):
		return v, false
	}
}

// do runs f while it has t, and leaves it, or what Cond.Wait has locked in its
// place. What f may have unlocked otherwise is not its own any more.
func (q *turnstile) do(ctx context.Context, key doKey, op string, t *tenure, f func(ctx context.Context) error) error {
	d := &doing{hold: t.hold}
	d.held.Store(q.tenancy(t))
	return doHolding(ctx, key, d, f, func() error {
		x := d.held.Load()
		return opError(op, q.path, q.s.letGo(ctx, func() error { return x.turn.leave(x.t, true, x.grant) }))
	})
}

// relock acquires a tenure in place of the one that d had, if there is a d.
func (q *turnstile) relock(ctx context.Context, d *doing) error {
	if ctx.Err() != nil {
		return ctxErr(ctx)
	}
	mine := d != nil && d.held.Load() != nil
	t, err := q.acquire(ctx, ModeExclusive, mine)
	if err == nil && mine {
		d.held.Store(q.tenancy(t))
	}
	return err
}

// current returns what this process holds: for one, or else for several.
func (q *turnstile) current() (*hold, Mode, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, mode := range []Mode{ModeExclusive, ModeShared} {
		if t := q.presentLocked(mode, (*tenure).usedLocked); t != nil {
			return t.hold, mode, nil
		}
	}
	return nil, 0, ErrNotLocked
}
