package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/suite"
)

// Models of Barrier, and of the double barrier that a WaitGroup is.

// settled is how long after all harm has ended nothing that came of it goes on: what
// is lost to its client has ended for the servers too, and everybody has a session.
const settled = 2*harness.Timeout + time.Second

// A gateOp is a call of a method of Barrier: "close", "open", "pass", which is a Wait
// that has returned, and "stay", which is one in vain with nothing to disturb it.
type gateOp struct {
	op    string
	maybe bool // it has failed, and may have been applied all the same
}

var gateModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{false} }, // whether it is closed
	Step: func(state, input, _ any) []any {
		shut, op := state.(bool), input.(gateOp)
		switch {
		case op.op == "pass" && shut, op.op == "stay" && !shut:
			return nil
		case op.op == "pass", op.op == "stay":
			return []any{shut}
		case op.maybe:
			return []any{shut, op.op == "close"}
		}
		return []any{op.op == "close"}
	},
}

// A gateRun is a program of a Barrier.
type gateRun struct {
	*lockRun
	history modelHistory[gateOp]

	mu      sync.Mutex
	waiting map[string]int // Waits under way, by when they began
	opened  bool           // an Open has returned nil
}

const gatePath = "/g/b"

// change calls Close or Open.
func (g *gateRun) change(client int, what string, s *zsync.Session, ctx context.Context, f func(context.Context) error) {
	began := time.Now()
	err := f(ctx)
	if ok := g.got(what, s, ctx, began, err); ok && what == "open" {
		g.mu.Lock()
		g.opened = true
		g.mu.Unlock()
	}
	// What the servers have refused was not done, unless the error says so.
	if err == nil || ctx.Err() != nil || !errors.Is(err, zk.ErrNoAuth) || strings.Contains(err.Error(), "may have been applied") {
		g.history.add(client, gateOp{what, err != nil}, began, err != nil)
	}
}

func (g *gateRun) wait(client int, when string, s *zsync.Session, ctx context.Context, b *zsync.Barrier) {
	g.count(when, 1)
	defer g.count(when, -1)
	began := time.Now()
	if g.got("wait", s, ctx, began, b.Wait(ctx)) {
		g.history.add(client, gateOp{op: "pass"}, began, false)
	}
}

func (g *gateRun) count(when string, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[when] += by
}

// look reports whether the gate is closed, when nothing disturbs.
func (g *gateRun) look(s *zsync.Session) bool {
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err := zsync.NewBarrier(s, gatePath).Wait(ctx)
	if err == nil {
		g.history.add(0, gateOp{op: "pass"}, began, false)
		return false
	}
	harness.WantErr(g.t, err, context.DeadlineExceeded)
	g.history.add(0, gateOp{op: "stay"}, began, false)
	return true
}

// wantThrough fails if anybody still waits who began at one of these times.
func (g *gateRun) wantThrough(why string, whens ...string) {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, when := range whens {
		if n := g.waiting[when]; n > 0 {
			g.t.Errorf("%s, and %d still wait who began %s", why, n, when)
		}
	}
}

// TestModelOfBarrier: nobody passes a closed gate, whatever becomes of requests,
// servers and sessions, and an Open or Close is applied once; whoever waits at an
// opening passes, even if the gate is closed again at once and nobody could tell him
// meanwhile.
func TestModelOfBarrier(t *testing.T) {
	modelsOf(t, 40, func(m *modelRun) {
		g := &gateRun{lockRun: newLockRun(m), waiting: make(map[string]int)}
		t, rnd := g.t, g.rnd
		g.history.begun = time.Now()
		clients := 0
		client := func() int { clients++; return clients }
		var waits, program sync.WaitGroup
		long, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		wait := func(when string, each int) {
			for _, s := range g.ss {
				b := zsync.NewBarrier(s, gatePath)
				for range each {
					c := client()
					waits.Go(func() { g.wait(c, when, s, long, b) })
				}
			}
		}
		if rnd.IntN(4) > 0 { // these certainly stand at the gate when the harm begins
			first := zsync.NewBarrier(g.stranger, gatePath)
			g.change(0, "close", g.stranger, long, first.Close)
			wait("before the harm", 1+rnd.IntN(2))
			synctest.Wait()
		}
		g.harm(nil)
		for _, s := range g.ss {
			shared := zsync.NewBarrier(s, gatePath)
			for range 2 {
				p := gateProgram{g, client(), s, g.dice(), shared}
				program.Go(func() { p.run(&waits, long) })
				clients += gateCalls // for the Waits that p does not wait for
			}
		}
		program.Wait()
		g.heal()
		time.Sleep(settled)
		// Nothing is applied any more that is not by now.
		g.history.mu.Lock()
		now := int64(time.Since(g.history.begun))
		for i := range g.history.ops {
			g.history.ops[i].Return = min(g.history.ops[i].Return, now)
		}
		g.history.mu.Unlock()
		if g.opened {
			g.wantThrough("it was opened", "before the harm")
		}
		fresh := g.open()
		if !g.look(fresh) {
			g.wantThrough("it is open", "before the harm", "amid the harm")
		}
		b := zsync.NewBarrier(fresh, gatePath)
		g.change(0, "close", fresh, long, b.Close)
		wait("at the end", 1)
		synctest.Wait()
		g.change(0, "open", fresh, long, b.Open)
		again := rnd.IntN(2) == 0
		if again {
			g.change(0, "close", fresh, long, b.Close)
		}
		time.Sleep(time.Second)
		g.wantThrough("it was opened for a moment", "before the harm", "amid the harm", "at the end")
		if g.look(fresh) != again {
			t.Errorf("after the last Open or Close it is closed: %v", !again)
		}
		g.change(0, "open", fresh, long, b.Open)
		waits.Wait()
		g.history.check(t, gateModel)
		time.Sleep(2 * time.Minute)
		g.idle()
		for _, s := range g.ss {
			if n := s.Stats().Watches; n > 1 {
				t.Errorf("%d watches are left", n)
			}
		}
		if left := suite.ChildrenOf(t, g.stranger, "/g"); len(left) > 0 && len(g.closed) == 0 && !g.refuses {
			t.Errorf("left: %q, and there %q", left, suite.ChildrenOf(t, g.stranger, gatePath+"-receipts"))
		}
	})
}

// A gateProgram is what one goroutine does with a Barrier.
type gateProgram struct {
	*gateRun
	client int
	s      *zsync.Session
	d      *rand.Rand
	shared *zsync.Barrier
}

const gateCalls = 7

func (p gateProgram) run(waits *sync.WaitGroup, long context.Context) {
	for i := range gateCalls {
		b := p.shared
		if p.d.IntN(3) == 0 {
			b = zsync.NewBarrier(p.s, gatePath)
		}
		ctx, cancel := p.cut()
		switch k := p.d.IntN(8); {
		case k < 2:
			p.change(p.client, "close", p.s, ctx, b.Close)
		case k < 4:
			p.change(p.client, "open", p.s, ctx, b.Open)
		case k < 7:
			p.wait(p.client, "with a context", p.s, ctx, b)
		default:
			waits.Go(func() { p.wait(p.client+1+i, "amid the harm", p.s, long, b) })
		}
		cancel()
		harness.Nap(p.d, 60)
	}
}

// cut returns a context that ends at once, soon, or later.
func (p gateProgram) cut() (context.Context, context.CancelFunc) {
	return cutWithin(p.t, p.d, 2000)
}

// cutWithin returns a context that ends early in one case of three, and otherwise
// within so many milliseconds.
func cutWithin(t *testing.T, d *rand.Rand, most int) (context.Context, context.CancelFunc) {
	if d.IntN(3) == 0 {
		most = 40
	}
	return context.WithTimeout(t.Context(), time.Duration(d.IntN(most))*time.Millisecond)
}

// A partyRun is a program of a double barrier.
type partyRun struct {
	*lockRun
	sizes []int // how many parties a round has; if several, who comes second is refused

	mu     sync.Mutex
	calls  []*enterCall
	seats  map[*lock.Grant]*seat
	rounds map[any]*seatedRound
	order  []*seatedRound
}

// An enterCall is a call of Enter.
type enterCall struct {
	n            int
	began, ended time.Time // ended is zero while it is under way
	over         time.Time // when its Leave returned, or it has failed; zero before
	failed       bool
	moves        int64 // sessions that were lost meanwhile
}

// A seat is a membership.
type seat struct {
	hold           *lock.Grant
	began, entered time.Time // of its Enter; of a value that several use only when it was let in at the latest
	leaving        bool      // Leave was called for it
}

// A seatedRound is those who were let in together, as far as that is known.
type seatedRound struct {
	n     int
	seats []*seat
	left  time.Time // when Leave first returned nil to one of them
}

// A seatValue is a WaitGroup, which one goroutine uses or several.
type seatValue struct {
	wg     *zsync.WaitGroup
	s      *zsync.Session
	shared bool
	mu     sync.Mutex // held by who takes the next membership
}

// believedIn reports whether nothing is known against a membership.
func (r *partyRun) believedIn(s *seat) bool {
	return !harness.Closed(s.hold.Loss().Done()) && s.hold.Err() == nil && r.lives(s.hold.Claim.Incarnation.ID.Load())
}

// seatLocked notes a membership, once.
func (r *partyRun) seatLocked(hold *lock.Grant, id any, began, entered time.Time) (*seat, *seatedRound) {
	round := r.rounds[id]
	if round == nil {
		// The name is _c_<uuid>-<n>-party-<seq>.
		f := strings.Split(hold.Name(), "-")
		n, err := strconv.Atoi(f[max(len(f)-3, 0)])
		if err != nil {
			r.t.Errorf("a party's name is %q", hold.Name())
		}
		round = &seatedRound{n: n}
		r.rounds[id] = round
		r.order = append(r.order, round)
	}
	if s := r.seats[hold]; s != nil {
		return s, round
	}
	s := &seat{hold: hold, began: began, entered: entered}
	r.seats[hold] = s
	round.seats = append(round.seats, s)
	if len(round.seats) > round.n {
		r.t.Errorf("a round of %d has %d parties", round.n, len(round.seats))
	}
	for _, one := range round.seats {
		for _, other := range round.seats {
			if one.entered.Before(other.began) {
				r.t.Errorf("of one round one had entered at %v before another came at %v", one.entered, other.began)
			}
		}
	}
	if !round.left.IsZero() && r.believedIn(s) {
		r.t.Errorf("one left at %v a round in which another has not called Leave yet", round.left)
	}
	return s, round
}

// enter calls Enter, and reports whether the caller is a member now.
func (r *partyRun) enter(ctx context.Context, v *seatValue, n int) (*enterCall, bool) {
	c := &enterCall{n: n, began: time.Now()}
	r.mu.Lock()
	r.calls = append(r.calls, c)
	r.mu.Unlock()
	before := v.s.Stats().Expiries
	err := v.wg.Enter(ctx, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	c.ended, c.failed, c.moves = time.Now(), err != nil, v.s.Stats().Expiries-before
	if c.failed {
		c.over = c.ended
		if !errors.Is(err, zsync.ErrInvalid) || !r.otherSizeLocked(c) {
			r.got("Enter", v.s, ctx, c.began, err)
		}
	}
	if v.shared {
		return c, err == nil
	}
	hold, round := inside.Double(v.wg).Membership()
	switch {
	case (err == nil) != (hold != nil):
		r.t.Errorf("Enter = %v; its membership is %v", err, hold)
		return c, false
	case err == nil:
		r.seatLocked(hold, round, c.began, c.ended)
		r.got("Enter", v.s, ctx, c.began, nil)
	}
	return c, err == nil
}

// otherSizeLocked reports whether there may have been a party of another size while c
// was under way.
func (r *partyRun) otherSizeLocked(c *enterCall) bool {
	for _, o := range r.calls {
		if o.n != c.n && (o.over.IsZero() || o.over.Add(r.lingers()).After(c.began)) {
			return true
		}
	}
	return false
}

// lingers returns for how long what a call has left may stay where the servers do not
// let it be deleted, or its session goes on for them without its client.
func (r *partyRun) lingers() time.Duration {
	for _, s := range r.ss {
		if s.Stats().Expiries > 0 {
			return time.Hour
		}
	}
	r.lockRun.mu.Lock()
	defer r.lockRun.mu.Unlock()
	if len(r.closed) > 0 || len(r.ended) > 0 || r.refuses {
		return time.Hour
	}
	return harness.Timeout + 5*time.Second // a session lives so long without a connection, and with it what a call has left
}

// leave calls Leave for the earliest membership of v.
func (r *partyRun) leave(ctx context.Context, v *seatValue) {
	v.mu.Lock()
	hold, id := inside.Double(v.wg).Membership()
	if hold == nil {
		v.mu.Unlock()
		r.t.Error("who has entered is no member")
		return
	}
	r.mu.Lock()
	s, round := r.seatLocked(hold, id, time.Time{}, time.Now())
	s.leaving = true
	r.mu.Unlock()
	lost, began := harness.Closed(hold.Loss().Done()), time.Now()
	result := harness.Async(func() error { return v.wg.Leave(ctx) })
	for len(result) == 0 { // what Leave does first is to take it
		if next, _ := inside.Double(v.wg).Membership(); next != hold {
			break
		}
		runtime.Gosched()
	}
	v.mu.Unlock()
	err := <-result
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, zsync.ErrLost):
		if !harness.Closed(hold.Loss().Done()) {
			r.t.Errorf("Leave = %v, and Lost is not closed", err)
		}
		return
	case !r.got("Leave", v.s, ctx, began, err):
		return
	case lost:
		r.t.Error("Leave = nil after the membership was lost")
	}
	if round.left.IsZero() {
		round.left = time.Now()
	}
	for _, other := range round.seats {
		if !other.leaving && r.believedIn(other) {
			r.t.Errorf("one has left while another of %d is inside", round.n)
		}
	}
}

// inside does what a member may do.
func (r *partyRun) inside(d *rand.Rand, v *seatValue) {
	harness.Nap(d, 40)
	if v.shared {
		return
	}
	hold, _ := inside.Double(v.wg).Membership()
	r.mu.Lock()
	s := r.seats[hold]
	sure := r.believedIn(s)
	r.mu.Unlock()
	if lost := v.wg.Lost(); sure && lost != hold.Loss().Done() && r.believedIn(s) {
		r.t.Error("Lost is not of the membership")
	}
	if d.IntN(3) > 0 {
		return
	}
	ctx, cancel := cutWithin(r.t, d, 1000)
	defer cancel()
	began := time.Now()
	parties, err := v.wg.Contenders(ctx)
	if !r.got("Contenders", v.s, ctx, began, err) {
		return
	}
	found := false
	for _, p := range parties {
		if p.Mode != zsync.ModeParty {
			r.t.Errorf("a party is %v", p)
		}
		found = found || p.Node == hold.Name() && p.Holding
	}
	if sure && !found && r.believedIn(s) {
		r.t.Errorf("the parties are %v; want %q inside", parties, hold.Name())
	}
}

// whole checks that each round had its parties when it was let in. Whoever is
// not known to be a member was one who gave up, or moved to another session, at that
// time; and that for one round alone.
func (r *partyRun) whole() {
	var missing []*seatedRound // once for each who is missing
	for _, round := range r.order {
		for range round.n - len(round.seats) {
			missing = append(missing, round)
		}
	}
	var gone []*enterCall // once for each time
	for _, c := range r.calls {
		n := c.moves
		if c.failed {
			n++
		}
		for range n {
			gone = append(gone, c)
		}
	}
	lingers := r.lingers()
	fits := func(round *seatedRound, c *enterCall) bool {
		for _, s := range round.seats {
			if s.entered.Before(c.began) || s.began.After(c.ended.Add(lingers)) {
				return false
			}
		}
		return c.n == round.n
	}
	of := make(map[int]int) // who is missing, by who has gone
	var seek func(m int, seen map[int]bool) bool
	seek = func(m int, seen map[int]bool) bool {
		for i, c := range gone {
			if seen[i] || !fits(missing[m], c) {
				continue
			}
			seen[i] = true
			if other, taken := of[i]; !taken || seek(other, seen) {
				of[i] = m
				return true
			}
		}
		return false
	}
	for m, round := range missing {
		if !seek(m, make(map[int]bool)) {
			r.t.Errorf("a round of %d was let in with %d, and nobody can have been the others", round.n, len(round.seats))
			return
		}
	}
}

// TestModelOfDoubleBarrier: rounds have the parties they should, who all came before
// any of them was let in, and leave when all have left, or their sessions have ended;
// and when the harm has ended nobody waits who need not.
func TestModelOfDoubleBarrier(t *testing.T) { modelsOf(t, 30, modelOfDoubleBarrier) }

func TestModelOfDoubleBarrierOverEnsembles(t *testing.T) {
	modelsOverEnsembles(t, 10, modelOfDoubleBarrier)
}

func modelOfDoubleBarrier(m *modelRun) {
	r := &partyRun{lockRun: newLockRun(m), seats: make(map[*lock.Grant]*seat), rounds: make(map[any]*seatedRound)}
	t, rnd := r.t, r.rnd
	r.sizes = []int{1 + rnd.IntN(5)}
	if rnd.IntN(5) == 0 {
		r.sizes = append(r.sizes, 1+rnd.IntN(5))
	}
	shares := len(r.sizes) == 1 && rnd.IntN(2) == 0
	r.harm(nil)
	var program sync.WaitGroup
	long, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var own []*seatValue
	for _, s := range r.ss {
		one := &seatValue{wg: zsync.NewWaitGroup(s, "/w"), s: s, shared: true}
		for range 2 {
			v, d := one, r.dice()
			if !shares || d.IntN(2) == 0 {
				v = &seatValue{wg: zsync.NewWaitGroup(s, "/w"), s: s}
				own = append(own, v)
			}
			program.Go(func() { r.party(long, d, v) })
		}
	}
	if rnd.IntN(3) == 0 { // the other face, at the same path
		d := r.dice()
		program.Go(func() { r.tasks(d) })
	}
	program.Wait()
	// These are left when the harm ends.
	var last sync.WaitGroup
	waiting, inside := make(map[int]int), 0 // by size
	stay := func(v *seatValue, n int) {
		last.Go(func() {
			r.count(func() { waiting[n]++ })
			_, ok := r.enter(long, v, n)
			r.count(func() {
				waiting[n]--
				if ok {
					inside++
				}
			})
			if ok {
				r.leave(long, v)
				r.count(func() { inside-- })
			}
		})
	}
	for _, v := range own {
		stay(v, r.sizes[rnd.IntN(len(r.sizes))])
	}
	time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
	r.heal()
	time.Sleep(settled)
	synctest.Wait()
	n, k := r.sizes[0], 0
	r.count(func() {
		for size, w := range waiting {
			switch {
			case w == 0:
			case w >= size || k > 0:
				t.Errorf("by size there wait %v", waiting)
			default:
				n, k = size, w
			}
		}
		if inside > 0 {
			t.Errorf("%d are inside, and all of them have called Leave", inside)
		}
	})
	fresh := r.open()
	for range n - k {
		stay(&seatValue{wg: zsync.NewWaitGroup(fresh, "/w"), s: fresh}, n)
	}
	time.Sleep(2 * time.Second)
	synctest.Wait()
	r.count(func() {
		if waiting[n] > 0 || inside > 0 {
			t.Errorf("%d of %d wait to enter, and %d to leave", waiting[n], n, inside)
		}
	})
	cancel()
	last.Wait()
	r.whole()
	time.Sleep(time.Minute)
	r.idle()
	suite.WantEmptyRoom(t, r.stranger)
	if left := suite.ChildrenOf(t, r.stranger, "/w-receipts"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// count runs f alone.
func (r *partyRun) count(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// party is what one goroutine does with a double barrier.
func (r *partyRun) party(long context.Context, d *rand.Rand, v *seatValue) {
	for range 6 {
		ctx, cancel := cutWithin(r.t, d, 3000)
		c, ok := r.enter(ctx, v, r.sizes[d.IntN(len(r.sizes))])
		cancel()
		if ok {
			r.inside(d, v)
			if ctx, cancel = long, func() {}; d.IntN(3) == 0 {
				ctx, cancel = cutWithin(r.t, d, 200)
			}
			r.leave(ctx, v)
			cancel()
			r.count(func() { c.over = time.Now() })
		} else if !v.shared && d.IntN(4) == 0 {
			if err := v.wg.Leave(long); !errors.Is(err, zsync.ErrNotLocked) && !errors.Is(err, zsync.ErrClosed) {
				r.t.Errorf("Leave of no member: %v", err)
			}
			if !harness.Closed(v.wg.Lost()) {
				r.t.Error("Lost of no member is not closed")
			}
		}
		harness.Nap(d, 30)
	}
}

// tasks uses the counter of the WaitGroup, which the double barrier knows nothing of.
func (r *partyRun) tasks(d *rand.Rand) {
	s := r.ss[d.IntN(len(r.ss))]
	w := zsync.NewWaitGroup(s, "/w")
	for range 4 {
		ctx, cancel := cutWithin(r.t, d, 3000)
		began := time.Now()
		if r.got("Add", s, ctx, began, w.Add(ctx, 1)) {
			if err := w.Done(); err != nil && !errors.Is(err, zsync.ErrLost) {
				r.got("Done", s, ctx, began, err)
			}
		}
		cancel()
		harness.Nap(d, 50)
	}
}
