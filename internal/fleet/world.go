package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/zktest"
)

// This file runs a program: it starts the ensemble and the processes, waits for their actors, and
// checks the servers' tree at the end. The arenas call the primitives, and faults.go causes the
// faults.

// The type `world` is one running program.
type world struct {
	plan
	seed  uint64
	begun time.Time
	net   *network
	e     atomic.Pointer[zktest.Ensemble]

	arenas []arena

	mu       sync.Mutex
	lives    []*life // by process: the current life; guarded by mu
	all      []*life // guarded by mu
	failures []string
	checks   []func()  // checks that `verdict` runs outside the bubble; only the method `inspect` adds checks
	shaken   int       // the number of faults that have begun and not ended; guarded by mu
	shakenAt time.Time // the time at which a fault last began or ended; guarded by mu
	tally    *tally
	lagging  atomic.Int32 // the number of members that apply late
	broken   atomic.Bool  // a check has failed
	story    []string
	last     int64     // the last number that the method `unique` returned; guarded by mu
	reborn   time.Time // the time of the last loss of all data; guarded by mu
	eras     int       // the number of losses of all data; guarded by mu

	cutShort atomic.Int32   // the number of lives that were cut short: their process died, called Close before the end of the faults, or lost its connection during Close
	absent   map[string]int // by actor: how often in a row the method `placed` has found no znode of its process in the line; only the method `look` uses it

	connecting chan *life // has a life at the moment at which it begins to connect, if the method `aim` waits for one

	granted chan *hold     // sends each hold to the stranger at the moment of its grant
	healed  chan struct{}  // closed when the faults are over
	busy    sync.WaitGroup // counts the processes whose last life still has running actors
}

// The type `life` is a process from its start to its end, with its Session.
type life struct {
	w       *world
	process int
	nth     int
	s       *zsync.Session
	ctx     context.Context // ends when the process dies
	die     context.CancelFunc
	own     []arena       // the primitives that the process uses
	kit     map[arena]any // by arena: the result of the arena's method `make`

	crashed   atomic.Bool
	closing   atomic.Int64  // the time at which Close was called, in nanoseconds since the world began; 0 before the call
	closed    atomic.Bool   // Close has returned
	waiting   sync.Map      // by actor: its current call
	functions sync.Map      // the holds within functions that have not returned
	over      chan struct{} // closed when Close is called
	skew      atomic.Int64  // the error of the process's wall clock, in nanoseconds
	under     atomic.Int32  // the number of current faults of this process
	lost      chan struct{} // has an element after the report of a loss
	alarm     chan struct{} // wakes actors at the begin of a fault; has room for one element for each actor
	finished  sync.WaitGroup
}

// The type `call` is for a call of the library that an actor has made and that has not returned.
type call struct {
	what  string
	since time.Time
}

// The type `actor` is a goroutine of a process that makes random calls.
type actor struct {
	*life
	name string
	dice *rand.Rand
}

func (a *actor) String() string {
	if a == nil {
		return "inspector"
	}
	return a.name
}

// The type `arena` is a primitive, or a few primitives, that several processes share.
type arena interface {
	// make returns the primitives for a process.
	make(s *zsync.Session) any
	// step calls one or more methods of kit, the result of make.
	step(ctx context.Context, a *actor, kit any)
	// final checks the final state, with an inspector's session, after the end of all processes.
	final(ctx context.Context, s *zsync.Session)
	// keeps reports whether a znode may remain at the end.
	keeps(path string) bool
}

// Run runs a program, within a bubble of testing/synctest. The caller calls `verdict` outside of
// the bubble. The function `verdict` returns the failures and the story of the program. The story
// is a log of lines.
func Run(seed uint64, p plan, t *tally) (verdict func() (failures, story []string)) {
	uuid.SetRand(&stream{rnd: rand.New(rand.NewPCG(seed, 2))})
	dice.Seed(seed)
	w := &world{plan: p, seed: seed, tally: t, begun: time.Now(), healed: make(chan struct{}), granted: make(chan *hold, 1), connecting: make(chan *life)}
	w.start()
	defer func() { _ = w.e.Load().Close() }()
	w.net = newNetwork(seed, w.latency, w.dialMember)
	for _, name := range w.plan.arenas {
		w.arenas = append(w.arenas, arenas[name](w))
	}
	w.lives, w.absent = make([]*life, w.processes), map[string]int{}

	var actors, others sync.WaitGroup
	over := make(chan struct{})
	w.busy.Add(w.processes)
	for i := range w.processes {
		actors.Go(func() { w.process(i) })
	}
	others.Go(func() { w.harmAll() })
	others.Go(func() { w.look(over) })
	if w.strikes && !w.day {
		others.Go(func() { w.harass(over) })
	}

	// After the faults, every waiter must be granted, so the actors must end.
	await(&actors, w.harm+w.bound(), func() {
		w.fail("whoever waits is granted when the faults end: after %v there still wait%s", w.bound(), w.waiters())
	})
	for _, l := range w.all {
		l.die() // this ends the contexts of actors that still wait
	}
	await(&actors, 20*w.timeout, func() { w.fail("actors do not end with their contexts:%s", w.waiters()) })
	close(over)
	others.Wait()
	w.inspect()
	return func() (failures, story []string) {
		for _, check := range w.checks {
			check()
		}
		slices.Sort(w.failures)
		return slices.Compact(w.failures), w.story
	}
}

// The method `bound` returns the time that the actors may need after the faults for all their
// steps, one after another.
func (w *world) bound() time.Duration {
	if w.day {
		return 12 * w.timeout
	}
	return time.Duration(10+w.processes*w.plan.lives*w.actors*w.steps) * 2 * w.timeout
}

// The function `await` waits for wg. If wg is not done after d, it calls the function `late`.
func await(wg *sync.WaitGroup, d time.Duration, late func()) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		late()
	}
}

// The method `start` starts the ensemble.
func (w *world) start() {
	e := zktest.NewEnsemble(w.members, zktest.WithTick(w.tick), zktest.WithSyncLimit(w.syncLimit), zktest.WithElectionTime(w.election),
		zktest.WithSessionTimeouts(2*w.tick, w.timeout), zktest.WithContainerCheck(w.timeout/2))
	for from := range w.members {
		for to := range w.members {
			if from != to {
				e.SetDelay(from, to, w.latency/4+time.Duration(mix(w.seed, 4, uint64(from), uint64(to))%uint64(w.latency)))
			}
		}
	}
	if w.uneven {
		e.Server(w.least()).SetSessionTimeouts(2*w.tick, max(2*w.tick, w.timeout/time.Duration(2+mix(w.seed, 7)%3)))
	}
	seen := &numbers{seen: map[block]uint64{}}
	for i := range w.members {
		e.Server(i).Intercept(func(r zktest.Request) zktest.Action { return w.numbered(seen, r) })
	}
	e.SetBacklog(w.backlog)
	w.e.Store(e)
}

// The type `numbers` has the xids of all requests, 64 in a block with a bit for each. A server
// distinguishes its own requests only by session and xid.
type numbers struct {
	mu   sync.Mutex
	seen map[block]uint64
}

type block struct {
	session int64
	xids    int32 // divided by 64
}

// The method `twice` adds a request, and reports whether it was there.
func (n *numbers) twice(session int64, xid int32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, bit := block{session, xid / 64}, uint64(1)<<(xid%64)
	was := n.seen[b]
	n.seen[b] = was | bit
	return was&bit != 0
}

// The method `numbered` checks that no session uses an xid twice. If two requests had the same xid,
// a server could answer one with the result of the other. Requests without a proposal, such as
// pings, have negative xids and do not count.
func (w *world) numbered(seen *numbers, r zktest.Request) zktest.Action {
	if r.Xid > 0 && r.Op != zktest.OpConnect && seen.twice(r.Session, r.Xid) {
		w.fail("session %#x uses the xid %d twice", r.Session, r.Xid)
	}
	return zktest.Pass
}

// The method `least` returns the member that grants the shortest timeout, if the members are
// uneven.
func (w *world) least() int { return int(mix(w.seed, 6) % uint64(w.members)) }

// The method `rebirth` replaces the ensemble by a new one without data.
func (w *world) rebirth() {
	old := w.e.Load()
	w.mu.Lock()
	w.reborn = time.Now()
	w.eras++
	w.mu.Unlock()
	w.start()
	_ = old.Close()
}

// The method `era` returns the number of rebirths so far.
func (w *world) era() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.eras
}

func (w *world) dialMember(member int) (net.Conn, error) {
	e := w.e.Load()
	return e.Dial("tcp", e.Addrs()[member], 0)
}

// The method `process` runs the lives of a process, one after another. It ends after the first life
// that was not ended by a fault, or after the maximum number of lives.
func (w *world) process(i int) {
	d := rand.New(rand.NewPCG(w.seed, 100+uint64(i)))
	time.Sleep(time.Duration(d.Int64N(int64(w.timeout / 4))))
	for nth := 0; ; nth++ {
		l := w.born(i, nth, rand.New(rand.NewPCG(w.seed, 1000+uint64(10*i+nth))))
		if l == nil && w.day && !w.ended() { // a fault has ended the process
			time.Sleep(time.Duration(d.Int64N(int64(w.timeout))))
			continue
		}
		if l == nil {
			w.busy.Done()
			return
		}
		l.finished.Wait()
		if !w.day && nth == w.plan.lives-1 || !l.gone() || w.day && w.ended() {
			w.busy.Done()
			w.settle(l)
			l.close()
			return
		}
		l.close()
		time.Sleep(time.Duration(d.Int64N(int64(w.timeout))))
	}
}

// The method `session` returns the Session of a life, or nil while the life connects.
func (l *life) session() *zsync.Session {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.s
}

// The method `settle` waits until all processes have ended their steps and the faults are over.
// Then it checks the state that l has seen. Before that check, the process is idle during the
// remaining faults.
func (w *world) settle(l *life) {
	done := make(chan struct{})
	go func() { w.busy.Wait(); <-w.healed; close(done) }()
	select {
	case <-done:
	case <-l.ctx.Done():
	case <-l.over:
	}
	timer := time.NewTimer(w.timeout + time.Duration(l.process)*w.latency) // a different instant for each process
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
		return
	case <-l.over:
		return
	}
	for _, x := range l.own {
		if c, ok := x.(interface{ settled(l *life) }); ok && !l.gone() {
			c.settled(l)
		}
	}
}

// The method `born` starts a life of process i: it connects and starts the actors.
func (w *world) born(i, nth int, d *rand.Rand) *life {
	l := &life{w: w, process: i, nth: nth, own: w.ownOf(i), kit: map[arena]any{}, over: make(chan struct{}), lost: make(chan struct{}, 1), alarm: make(chan struct{}, w.actors)}
	l.ctx, l.die = context.WithCancel(context.Background())
	w.mu.Lock()
	w.lives[i] = l
	w.all = append(w.all, l)
	w.mu.Unlock()
	select {
	case w.connecting <- l:
	default:
	}
	s, err := w.connect(l.ctx, l.id(), d, zsync.WithObserver(l))
	if err != nil {
		l.crashed.Store(true)
		if l.ctx.Err() == nil {
			w.fail("Connect: %v", err)
		}
		return nil
	}
	w.mu.Lock()
	l.s = s
	w.mu.Unlock()
	for _, x := range l.own {
		l.kit[x] = x.make(s)
	}
	for j := range w.actors {
		a := &actor{life: l, name: fmt.Sprintf("p%d.%d.%d", i, nth, j), dice: rand.New(rand.NewPCG(d.Uint64(), d.Uint64()))}
		l.finished.Go(a.act)
	}
	return l
}

// The method `connect` opens a Session of a process, or of the inspector.
func (w *world) connect(ctx context.Context, id int, d *rand.Rand, options ...zsync.Option) (*zsync.Session, error) {
	var hosts []string
	for i := range w.members {
		hosts = append(hosts, fmt.Sprintf("zk%d:2181", i))
	}
	order := d.Perm(w.members)
	if w.uneven {
		i := slices.Index(order, w.least())
		order[0], order[i] = order[i], order[0]
	}
	dial, knows, first := w.net.dialer(id, order), !w.uneven, ""
	// The client must learn the shortest timeout first, because it expects no timeout of less than 4 s from an
	// unknown server. So all members but one are out of reach until Connect has returned.
	var mu sync.Mutex
	learning := func(network, address string, timeout time.Duration) (net.Conn, error) {
		mu.Lock()
		first = cmp.Or(first, address)
		refused := !knows && address != first
		mu.Unlock()
		if refused {
			return nil, syscall.ECONNREFUSED
		}
		return dial(network, address, timeout)
	}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		knows = true
	}()
	options = append(options, zsync.WithDialer(learning), zsync.WithSessionTimeout(w.timeout), zsync.WithCloseTimeout(w.timeout),
		zsync.WithRetry(zsync.Backoff{Min: 10 * time.Millisecond, Max: w.timeout / 8}), zsync.WithLogger(slog.New(slog.DiscardHandler)), zsync.WithOwner(fmt.Sprint("p", id)))
	return zsync.Connect(ctx, strings.Join(hosts, ","), options...)
}

// Observe counts the life as cut short if the connection breaks during Close: Close does not wait
// for another connection. The connection can break long after a fault: after a late handshake, the
// leader may assign the session to another member, and refuse the next write.
func (l *life) Observe(e zsync.Event) {
	if e.Kind == zsync.EventLost {
		select {
		case l.lost <- struct{}{}:
		default:
		}
	}
	if e.Kind == zsync.EventSuspended && l.closing.Load() != 0 && !l.closed.Load() {
		l.w.cutShort.Add(1)
	}
}

// The method `id` returns the number under which the network knows the process.
func (l *life) id() int {
	if l.nth > 9 {
		return 1000*l.nth + l.process
	}
	return 10*l.process + l.nth
}

// The method `act` makes the steps of an actor.
func (a *actor) act() {
	for n := 0; n < a.w.steps || a.w.day; n++ {
		if a.gone() {
			return
		}
		if a.pause(); a.w.day && a.w.ended() {
			return
		}
		x := a.own[a.dice.IntN(len(a.own))]
		a.w.tally.did(a.w.nameOf(x))
		ctx, cancel := a.within()
		x.step(ctx, a, a.kit[x])
		cancel()
	}
}

// The method `pause` spreads the steps over the time of the faults, in bursts.
func (a *actor) pause() {
	d := a.w.timeout / 64
	switch {
	case a.dice.IntN(2) == 0:
	case a.w.day:
		d = max(1, min(24*a.w.timeout, a.w.harm-time.Since(a.w.begun)))
	default:
		d = 4 * a.w.harm / time.Duration(a.w.plan.lives*a.w.steps)
	}
	timer := time.NewTimer(time.Duration(a.dice.Int64N(int64(d))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.alarm: // calls at the beginning of a fault find the most defects
	case <-a.ctx.Done():
	case <-a.over:
	}
}

// The method `gone` reports whether the process has ended or is about to end.
func (l *life) gone() bool { return l.crashed.Load() || l.closing.Load() != 0 }

// The method `within` returns a context that ends within the time of a few messages, or after a
// longer time, or never.
func (a *actor) within() (context.Context, context.CancelFunc) {
	n := a.dice.IntN(6)
	if a.w.day && a.dice.IntN(4) > 0 {
		n = 5 // most callers wait without a limit
	}
	switch n {
	case 0, 1:
		return context.WithTimeout(a.ctx, time.Duration(a.dice.Int64N(int64(20*a.w.latency))))
	case 2:
		return a.atMost(2 * a.w.timeout)
	}
	return context.WithCancel(a.ctx)
}

// atMost returns a context that ends within d.
func (a *actor) atMost(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, time.Duration(a.dice.Int64N(int64(d))))
}

// The method `nap` sleeps for up to d, often for much less.
func (a *actor) nap(d time.Duration) {
	for range a.dice.IntN(4) {
		d /= 4
	}
	timer := time.NewTimer(time.Duration(a.dice.Int64N(int64(d))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.ctx.Done():
	}
}

// The method `hold` sleeps for the duration of a hold. During a fault, it sleeps longer. In some
// programs, the holder also reads during that time.
func (a *actor) hold() {
	if a.w.reads {
		ctx, cancel := context.WithCancel(a.ctx)
		var wg sync.WaitGroup
		wg.Go(func() { a.read(ctx) })
		defer wg.Wait()
		defer cancel()
	}
	if a.w.day && a.dice.IntN(4) > 0 {
		a.nap(a.w.timeout / 16) // most holds of a day are short, because others wait
		return
	}
	if a.w.patient && a.dice.IntN(3) == 0 {
		a.nap(3 * a.w.timeout)
	} else {
		a.nap(a.w.timeout / 4)
	}
	for end := time.Now().Add(2 * a.w.timeout); a.under.Load() > 0 && time.Now().Before(end) && a.dice.IntN(8) > 0; {
		a.nap(a.w.timeout / 2)
	}
}

// The method `read` reads a znode every few milliseconds. The member of the session answers each
// read without the leader.
func (a *actor) read(ctx context.Context) {
	for d := time.Duration(mix(a.w.seed, 10, uint64(a.process)) % uint64(a.w.timeout/64)); ctx.Err() == nil; {
		_, _, _ = a.s.Get(ctx, "/read")
		timer := time.NewTimer(a.w.timeout/64 + d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// The method `outlast` waits for a report of a loss. It waits for longer than the library may take.
func (a *actor) outlast(lost <-chan struct{}) {
	timer := time.NewTimer(2 * a.w.timeout)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-lost:
	case <-a.ctx.Done():
	case <-a.over:
	}
}

// The method `glitch` sometimes makes the network of the process fail for a moment, soon after the
// begin of a call.
func (a *actor) glitch() {
	if a.dice.IntN(a.w.glitches) > 0 || time.Since(a.w.begun) > a.w.harm {
		return
	}
	after, d := time.Duration(a.dice.Int64N(int64(8*a.w.latency))), time.Duration(a.dice.Int64N(int64(a.w.timeout/8)))
	up, kill := a.dice.IntN(2) == 0, a.dice.IntN(2) == 0
	times := 1 + 2*a.dice.IntN(3)
	go func() {
		time.Sleep(after)
		if kill {
			for range times { // each reset comes while the library repeats the requests that the last reset has interrupted
				a.w.net.kill(a.id(), -1)
				time.Sleep(15*time.Millisecond + 3*after)
			}
			return
		}
		a.w.note("%s: a glitch, up %v, for %v", a, up, d)
		for m := range a.w.members {
			defer a.w.net.stall(wayOf{a.id(), m, up})()
		}
		time.Sleep(d)
	}()
}

// The method `doing` records that an actor begins a call. The actor calls `done` when the call has
// returned.
func (a *actor) doing(format string, args ...any) (done func()) {
	a.glitch()
	what := fmt.Sprintf(format, args...)
	a.w.note("%s %s ...", a, what)
	a.waiting.Store(a.name, call{what, time.Now()})
	return func() { a.waiting.Delete(a.name) }
}

// The method `may` checks the error of a call. The permitted causes are the end of the call's
// context, the end of the process, and the errors in `others`. If the call succeeded, the result is
// true.
func (a *actor) may(what string, ctx context.Context, err error, others ...error) bool {
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
	case a.gone() && (errors.Is(err, zsync.ErrClosed) || errors.Is(err, context.Canceled)):
	case a.w.era() > 0 && time.Since(a.w.begun) < a.w.harm+8*a.w.timeout: // the call may have begun before the loss of all data
	case slices.ContainsFunc(others, func(o error) bool { return errors.Is(err, o) }):
	default:
		a.w.fail("%s of %s fails: %v", what, a, err)
	}
	a.w.note("%s %s: %v", a, what, err)
	return false
}

// The method `close` closes the Session. It checks that Close returns, but not before all functions
// have returned or the timeout of Close has passed.
func (l *life) close() {
	if l.closing.CompareAndSwap(0, int64(time.Since(l.w.begun))+1) {
		close(l.over)
	}
	l.w.note("p%d.%d is closed", l.process, l.nth)
	if !closed(l.w.healed)() { // a fault may break the connection during Close
		l.w.cutShort.Add(1)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = l.s.Close()
		l.closed.Store(true)
		if d := time.Since(l.w.begun) - time.Duration(l.closing.Load()); d < l.w.timeout-time.Millisecond { // d counts from the first call of Close
			l.functions.Range(func(h, _ any) bool {
				l.w.fail("Close of p%d.%d has returned after %v, and a function still holds %s", l.process, l.nth, d, h.(*hold).r.name)
				return true
			})
		}
	})
	await(&wg, 10*l.w.timeout, func() { l.w.fail("Close of p%d.%d has not returned after %v", l.process, l.nth, 10*l.w.timeout) })
	l.w.note("p%d.%d has closed", l.process, l.nth)
}

// The method `unique` returns a new number at each call.
func (w *world) unique() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	return w.last
}

func (w *world) at(t time.Time) time.Duration { return t.Sub(w.begun).Round(time.Microsecond) }

// The method `note` adds a line to the story.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf("%12v ", w.at(time.Now()))+fmt.Sprintf(format, args...))
}

// The method `fail` records a broken promise.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.note("FAILED %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, text)
	w.broken.Store(true)
}

// The method `excused` reports whether two current holders are permitted at this moment, because of
// a strike at t or a loss of all data.
func (w *world) excused(t time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range []time.Time{t, w.reborn} {
		if !t.IsZero() && time.Since(t) < 3*w.timeout/2 {
			return true
		}
	}
	return false
}

// The method `waiters` returns a list of the calls that have not returned.
func (w *world) waiters() (text string) {
	for _, l := range w.all {
		l.waiting.Range(func(k, v any) bool {
			c := v.(call)
			text += fmt.Sprintf("\n      %s: %s since %v", k, c.what, w.at(c.since))
			return true
		})
	}
	return text
}

// The method `look` checks the holders several times in each session timeout.
func (w *world) look(over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(w.timeout/6 + 7):
		}
		for _, x := range w.arenas {
			if l, ok := x.(interface{ check() }); ok {
				l.check()
			}
		}
		w.standing()
		w.placed()
	}
}

// The method `inspect` checks the final state after the end of all processes.
func (w *world) inspect() {
	time.Sleep(2*w.timeout + 2*w.tick)
	ctx, cancel := context.WithTimeout(context.Background(), 20*w.timeout)
	defer cancel()
	s, err := w.connect(ctx, 900, rand.New(rand.NewPCG(w.seed, 3)))
	if err != nil {
		w.fail("the inspector cannot connect: %v", err)
		return
	}
	for _, x := range w.arenas {
		x.final(ctx, s)
	}
	_ = s.Close()
	time.Sleep(4 * w.timeout) // empty containers are removed one level at a time
	w.leftovers()
}

// maxLogs is the number of logs that a Session keeps below one parent.
const maxLogs = 16

// isLog matches the name of a log and the rest of its line in a dump. The data of a log is empty,
// or begins with the version that the log had before its last write.
var isLog = regexp.MustCompile(`^_c_[-0-9a-f]{36}-receipt czxid \d+ version (\d+)(?: "(\d+)(?: barred)?")?$`)

// The expression `swept` matches the parents whose logs are deleted after a day, by a consumer or a
// producer.
var swept = regexp.MustCompile(`^/(queue|orders)-receipts$`)

// The method `leftovers` checks that the servers' tree has no ephemeral znode, and that an arena
// permits every other znode. Logs of transactions remain only if lives were cut short. Their number
// is limited, and zsync doctor --clean or a sweep of the queue deletes each log.
func (w *world) leftovers() {
	logs, rest := map[string]int{}, map[string]string{}
	for _, z := range w.tree() {
		rest[z.path] = z.rest
		if z.container || z.path == "/" || strings.HasPrefix(z.path, "/zookeeper") { // an empty container may stay
			continue
		}
		dir, name := split(z.path)
		if strings.HasSuffix(name, "-receipt") {
			m := isLog.FindStringSubmatch(name + " " + z.rest)
			if m == nil || m[1] != "0" && m[2] == "" || m[2] != "" && number(m[1]) != number(m[2])+1 {
				w.fail("nothing is left: there is %s %s, which zsync doctor does not know as a log", z.path, z.rest)
			}
			logs[dir]++
			continue
		}
		if z.owner != 0 || !slices.ContainsFunc(w.arenas, func(x arena) bool { return x.keeps(z.path) }) {
			w.fail("nothing is left: there is %s %s", z.path, z.rest)
		}
	}
	for dir, n := range logs {
		if lives := int(w.cutShort.Load()); n > lives*(maxLogs+w.actors) {
			w.fail("nothing is left: %s has %d logs, and %d lives were cut short", dir, n, lives)
		}
		if !swept.MatchString(dir) && !strings.Contains(rest[dir], "zsync directory\"") {
			w.fail("nothing is left: %s has %d logs, and no mark that zsync doctor knows", dir, n)
		}
	}
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// The type `znode` is a line of the servers' dump.
type znode struct {
	path, rest string
	owner      int64 // the session that owns an ephemeral znode, or 0
	container  bool
}

// The method `tree` returns all znodes of the leader.
func (w *world) tree() (all []znode) {
	e := w.e.Load()
	var b strings.Builder
	e.Server(max(e.Leader(), 0)).Dump(&b)
	_, tree, _ := strings.Cut(b.String(), "znodes: ")
	for line := range strings.Lines(tree) {
		path, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !strings.HasPrefix(path, "/") {
			continue
		}
		z := znode{path: path, rest: rest, container: strings.Contains(rest, " container")}
		if _, owner, ok := strings.Cut(rest, "ephemeral of "); ok {
			fmt.Sscanf(owner, "%v", &z.owner)
		}
		all = append(all, z)
	}
	return all
}

// The method `count` makes the servers number the next children of `path`, beginning with the
// number `next`.
func (w *world) count(path string, next int32) {
	defer func() { _ = recover() }() // SetSequence panics if the path does not exist
	e := w.e.Load()
	e.Server(max(e.Leader(), 0)).SetSequence(path, next)
}

func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:i], path[i+1:]
}

// The type `stream` is the source of random bytes for GUIDs.
type stream struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range p {
		p[i] = byte(s.rnd.Uint32())
	}
	return len(p), nil
}
