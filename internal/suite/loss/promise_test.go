package loss

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// The promise: whenever somebody is granted a lock, whoever held it before has
// been told that it is lost, or has given it up. It is tried here over an
// ensemble, in virtual time, with random faults at random times.
//
// ZSYNC_TEST_SEED runs one seed and prints what happens; ZSYNC_TEST_LONG runs 10,000.
func TestNobodyIsGrantedALockBeforeItsHolderIsToldOfTheLoss(t *testing.T) {
	harness.InMemory(t)
	t.Parallel()
	first, n := uint64(0), uint64(80)
	switch {
	case harness.Long():
		n = 10_000
	case harness.UnderRace:
		n = 20
	}
	one := os.Getenv("ZSYNC_TEST_SEED")
	if one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatalf("ZSYNC_TEST_SEED: %v", err)
		}
		first, n = seed, 1
	}
	var failed []string
	grants, losses := 0, 0
	for seed := first; seed < first+n; seed++ {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				p := newPromise(t, seed)
				p.run()
				g, l := p.judge()
				grants, losses = grants+g, losses+l
				if t.Failed() || one != "" {
					t.Log(p.log.String())
				}
			})
		})
		if !ok {
			failed = append(failed, fmt.Sprint(seed))
			if len(failed) == 20 && one == "" && os.Getenv("ZSYNC_TEST_LONG") == "" {
				break // enough to see what is wrong
			}
		}
	}
	t.Logf("%d grants, %d losses", grants, losses)
	if len(failed) > 0 {
		t.Errorf("%d seeds failed: %s", len(failed), strings.Join(failed, " "))
	}
	// A model in which nothing happens would show nothing.
	if one == "" && (losses < int(n)/4 || grants < int(n)) {
		t.Errorf("%d grants and %d losses in %d schedules: too few to show anything", grants, losses, n)
	}
}

// A promise is one random schedule.
type promise struct {
	t       *testing.T
	rnd     *rand.Rand // of the schedule
	e       *zktest.Ensemble
	tick    time.Duration
	timeout time.Duration
	begun   time.Time
	parties []*party

	mu  sync.Mutex
	log strings.Builder
}

// A party is a process that wants the lock again and again.
type party struct {
	p    *promise
	name string
	rnd  *rand.Rand
	busy bool
	at   int // the member that it dialled last

	session *zsync.Session
	holds   []*hold
}

// A hold is one time between a grant and the next wish.
type hold struct {
	granted  time.Time
	lost     time.Time // zero: never
	released time.Time // when Unlock was called; zero: never
}

func newPromise(t *testing.T, seed uint64) *promise {
	rnd := rand.New(rand.NewPCG(seed, 2))
	p := &promise{t: t, rnd: rnd, begun: time.Now()}
	p.tick, p.timeout = 2*time.Second, 10*time.Second
	if rnd.IntN(2) == 0 {
		p.tick = 500 * time.Millisecond
		p.timeout = []time.Duration{4, 6, 10, 30}[rnd.IntN(4)] * time.Second
	}
	limit := []int{2, 5, 5, 10}[rnd.IntN(4)]
	p.e = zktest.StartEnsemble(t, 3, zktest.WithTick(p.tick), zktest.WithSyncLimit(limit))
	p.note("seed %d: tick %v, sync limit %d, timeout %v", seed, p.tick, limit, p.timeout)
	for i := range 3 {
		q := &party{p: p, name: string(rune('A' + i)), rnd: rand.New(rand.NewPCG(seed, uint64(10+i))), busy: rnd.IntN(2) == 0}
		servers := p.e.Addrs()
		if rnd.IntN(4) == 0 {
			i := rnd.IntN(3)
			servers = servers[i : i+1]
			p.note("%s knows member %d alone", q.name, i)
		}
		s, err := zsync.Connect(t.Context(), strings.Join(servers, ","),
			zsync.WithSessionTimeout(p.timeout), zsync.WithDialer(q.dial))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		q.session = s
		p.parties = append(p.parties, q)
	}
	return p
}

func (p *promise) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(&p.log, "%12v  %s\n", time.Since(p.begun), fmt.Sprintf(format, args...))
}

func (q *party) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := q.p.e.Dial(network, address, timeout)
	if err == nil {
		for i, addr := range q.p.e.Addrs() {
			if addr == address {
				q.p.mu.Lock()
				q.at = i
				q.p.mu.Unlock()
			}
		}
	}
	return conn, err
}

// run lets the parties have the lock in turn while the schedule of faults goes
// on, heals everything, and sees that somebody still gets the lock.
func (p *promise) run() {
	ctx, stop := context.WithCancel(p.t.Context())
	var running sync.WaitGroup
	for _, q := range p.parties {
		running.Go(func() { q.run(ctx) })
	}
	p.schedule()
	healed := time.Now()
	time.Sleep(3*p.timeout + 30*time.Second)
	if !p.heldSince(healed) {
		p.t.Errorf("nobody has got the lock since everything was healed at %v", healed.Sub(p.begun))
	}
	stop()
	running.Wait()
}

// heldSince reports whether somebody holds the lock, or was granted it since then.
func (p *promise) heldSince(then time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.parties {
		for _, h := range q.holds {
			if !h.granted.Before(then) || h.lost.IsZero() && h.released.IsZero() {
				return true
			}
		}
	}
	return false
}

// run takes the lock, keeps it until it is lost or for a while, and gives it up.
func (q *party) run(ctx context.Context) {
	m := zsync.NewMutex(q.session, "/lock")
	for ctx.Err() == nil {
		if err := m.Lock(ctx); err != nil {
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		h := &hold{granted: time.Now()}
		q.p.mu.Lock()
		q.holds = append(q.holds, h)
		q.p.mu.Unlock()
		q.p.note("%s is granted the lock", q.name)
		keep := 24 * time.Hour
		if q.rnd.IntN(3) == 0 {
			keep = time.Duration(q.rnd.Int64N(int64(2 * q.p.timeout)))
		}
		q.hold(ctx, m.Lost(), h, keep)
		q.p.mu.Lock()
		h.released = time.Now()
		q.p.mu.Unlock()
		err := m.Unlock()
		q.p.note("%s has unlocked: %v", q.name, err)
	}
}

// hold keeps the lock until it is lost, and for no longer than keep.
func (q *party) hold(ctx context.Context, lost <-chan struct{}, h *hold, keep time.Duration) {
	ctx, done := context.WithTimeout(ctx, keep)
	var work sync.WaitGroup
	defer work.Wait()
	defer done()
	if q.busy {
		work.Go(func() { q.work(ctx) })
	}
	select {
	case <-lost:
		q.p.mu.Lock()
		h.lost = time.Now()
		q.p.mu.Unlock()
		q.p.note("%s is told of the loss", q.name)
	case <-ctx.Done():
	}
}

// work reads and writes until ctx is done.
func (q *party) work(ctx context.Context) {
	v := zsync.NewValue[int](q.session, "/of-"+q.name)
	for i := 0; ctx.Err() == nil; i++ {
		if q.rnd.IntN(2) == 0 {
			_, _, _ = v.Load(ctx)
		} else {
			_ = v.Store(ctx, i)
		}
		sleep(ctx, time.Duration(q.rnd.Int64N(int64(q.p.timeout/4))))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// schedule brings some faults, one after another or overlapping, and heals them all.
func (p *promise) schedule() {
	var under sync.WaitGroup
	for range 2 + p.rnd.IntN(4) {
		time.Sleep(p.upTo(2 * p.timeout))
		lasts := p.upTo(3*p.timeout) + p.timeout/10
		heal := p.fault()
		if p.rnd.IntN(3) > 0 {
			time.Sleep(lasts)
			heal()
			continue
		}
		under.Go(func() {
			time.Sleep(lasts)
			heal()
		})
	}
	under.Wait()
	p.note("all healed")
}

func (p *promise) upTo(d time.Duration) time.Duration { return time.Duration(p.rnd.Int64N(int64(d))) }

// victim picks a member: often that of the holder, or the leader.
func (p *promise) victim() int {
	switch p.rnd.IntN(5) {
	case 0:
		return p.rnd.IntN(3)
	case 1:
		return max(p.e.Leader(), 0)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.parties {
		if n := len(q.holds); n > 0 && q.holds[n-1].lost.IsZero() && q.holds[n-1].released.IsZero() {
			return q.at
		}
	}
	return p.rnd.IntN(3)
}

// fault brings one fault and returns what ends it.
func (p *promise) fault() (heal func()) {
	e, v := p.e, p.victim()
	a, b := (v+1)%3, (v+2)%3
	cut := e.Cut
	if p.rnd.IntN(2) == 0 {
		cut = e.CutLosing
	}
	mend := func(pairs ...int) func() {
		return func() {
			for i := 0; i < len(pairs); i += 2 {
				e.Heal(pairs[i], pairs[i+1])
			}
			p.note("healed %v", pairs)
		}
	}
	breakAll := func(what string, pairs ...int) func() {
		p.note("%s, member %d (member %d leads)", what, v, e.Leader())
		for i := 0; i < len(pairs); i += 2 {
			cut(pairs[i], pairs[i+1])
		}
		return mend(pairs...)
	}
	switch p.rnd.IntN(9) {
	case 0, 1:
		return breakAll("cut off", v, a, v, b, a, v, b, v)
	case 2:
		return breakAll("not heard", v, a, v, b)
	case 3:
		return breakAll("deaf", a, v, b, v)
	case 4:
		return breakAll("cut from one other", v, a, a, v)
	case 5:
		p.note("crash, member %d (member %d leads)", v, e.Leader())
		e.Crash(v)
		return func() { e.Restart(v); p.note("restarted %d", v) }
	case 6:
		p.note("frozen, member %d (member %d leads)", v, e.Leader())
		e.Freeze(v)
		return func() { e.Thaw(v); p.note("thawed %d", v) }
	case 7:
		lag := p.upTo(p.timeout)
		p.note("lag of %v, member %d", lag, v)
		e.SetLag(v, lag)
		return func() { e.SetLag(v, 0); p.note("no lag %d", v) }
	}
	delay, far := p.upTo(p.tick/2), p.upTo(p.tick/4)
	p.note("delay of %v, and of %v to clients, member %d", delay, far, v)
	set := func(delay, far time.Duration) {
		for _, o := range []int{a, b} {
			e.SetDelay(v, o, delay)
			e.SetDelay(o, v, delay)
		}
		e.Server(v).SetLatency(far)
	}
	set(delay, far)
	return func() { set(time.Millisecond, 0); p.note("no delay %d", v) }
}

// judge looks at every grant and reports who believed to hold the lock then.
// It returns how many grants and losses there were.
func (p *promise) judge() (grants, losses int) {
	for _, q := range p.parties {
		grants += len(q.holds)
		for _, h := range q.holds {
			if !h.lost.IsZero() {
				losses++
			}
			for _, o := range p.parties {
				if o != q {
					o.believes(q, h.granted)
				}
			}
		}
	}
	return grants, losses
}

// believes reports an error if q believed to hold the lock, which it had already,
// at a moment in which other was granted it.
func (q *party) believes(other *party, granted time.Time) {
	for _, h := range q.holds {
		over := h.released
		if !h.lost.IsZero() {
			over = h.lost
		}
		if !h.granted.After(granted) && over.After(granted) {
			q.p.t.Errorf("%s was granted the lock at %v, and %s, who had it since %v, believed in it until %v: %v too long",
				other.name, granted.Sub(q.p.begun), q.name, h.granted.Sub(q.p.begun), over.Sub(q.p.begun), over.Sub(granted))
		}
	}
}
