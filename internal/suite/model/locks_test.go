package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// A lockModel is one path as its users see it: who holds it, and what they were
// told. Nobody writes beside anyone whose hold may be believed in; what comes
// later has the greater token, and writes later.
type lockModel struct {
	*lockRun
	path string

	mu   sync.Mutex
	held []*modelHold // in the order of their grants, ended ones too; guarded by mu
}

// A modelHold is a lock in the hands of one goroutine.
type modelHold struct {
	write   bool
	session int64
	since   time.Time
	lost    func() bool
	over    bool
	tokens  []int64
	writes  []int64 // zxids of its transactions
}

// A lockRun is a modelRun of locks, and what was done to its sessions.
type lockRun struct {
	*modelRun
	stranger *zsync.Session
	strikes  bool // he deletes znodes

	mu     sync.Mutex
	ended  map[int64]bool                  // by the servers, of their own accord; guarded by mu
	struck map[int64]time.Time             // when a stranger last deleted a znode of it; guarded by mu
	blind  map[int64]bool                  // a read that sets a watch was refused; guarded by mu
	closed map[*zsync.Session]bool         // guarded by mu
	grants map[*zsync.Session][]*modelHold // guarded by mu
}

// lockModels runs f as models does, with all the harm of a lockRun, and looks for
// what was left below paths.
func lockModels(t *testing.T, paths []string, f func(r *lockRun)) {
	models(t, func(m *modelRun) {
		r := newLockRun(m)
		r.harm(paths)
		f(r)
		r.heal()
		time.Sleep(time.Minute)
		r.idle()
		for _, path := range paths {
			if names := suite.ChildrenOf(r.t, r.stranger, path); len(names) > 0 {
				r.t.Errorf("left below %s: %q", path, names)
			}
		}
	})
}

func newLockRun(m *modelRun) *lockRun {
	r := &lockRun{modelRun: m, ended: make(map[int64]bool), struck: make(map[int64]time.Time), blind: make(map[int64]bool), closed: make(map[*zsync.Session]bool), grants: make(map[*zsync.Session][]*modelHold)}
	r.refuses, r.freezes, r.strikes = m.rnd.IntN(4) == 0, m.rnd.IntN(3) == 0, m.rnd.IntN(4) == 0
	r.bars = func(q zktest.Request) {
		if q.Watch {
			r.mu.Lock()
			r.blind[q.Session] = true
			r.mu.Unlock()
		}
	}
	r.stranger = r.open()
	_, err := znodes.Create(r.t.Context(), inside.Live(r.t, r.stranger), "/log", nil)
	harness.Must(r.t, err)
	for _, s := range r.ss {
		harness.Must(r.t, inside.Live(r.t, s).Sync(r.t.Context(), "/log"))
	}
	return r
}

// harm begins to do harm, until heal. A run has some kinds besides the common ones:
// sessions that are ended by the servers while their clients are connected, refusals,
// followers that stand still, znodes below paths that are deleted, a Session that is
// closed.
func (r *lockRun) harm(paths []string) {
	ends, closes := r.rnd.IntN(3) == 0, r.rnd.IntN(6) == 0
	r.strikes = r.strikes && len(paths) > 0
	r.hurt(r.rnd.IntN(2) == 0)
	d := r.dice()
	r.done.Go(func() {
		for {
			select {
			case <-r.stop:
				return
			case <-time.After(time.Duration(d.IntN(300)) * time.Millisecond):
			}
			s := r.ss[d.IntN(len(r.ss))]
			switch k := d.IntN(8); {
			case k == 0 && ends:
				id := s.ID()
				r.mu.Lock()
				r.ended[id] = true
				r.mu.Unlock()
				r.srv.Expire(id)
			case k == 1 && closes:
				closes = false
				r.mu.Lock()
				r.closed[s] = true
				r.mu.Unlock()
				s.Close()
			case k <= 4 && r.strikes:
				r.strike(r.stranger, paths[d.IntN(len(paths))], d)
			}
		}
	})
}

// idle checks, in the end, that nobody holds or waits.
func (r *lockRun) idle() {
	for _, s := range r.ss {
		if st := s.Stats(); st.Holds != 0 || st.Waiters != 0 {
			r.t.Errorf("%d holds and %d waiters are left", st.Holds, st.Waiters)
		}
	}
}

// strike has a stranger delete a znode of somebody who holds or waits.
func (r *lockRun) strike(s *zsync.Session, path string, d *rand.Rand) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Millisecond)
	defer cancel()
	inc, err := inside.Manager(s).Incarnation(ctx)
	if err != nil {
		return
	}
	names, _, err := inc.Children(ctx, path)
	if err != nil || len(names) == 0 {
		return
	}
	path = path + "/" + names[d.IntN(len(names))]
	_, stat, err := inc.Get(ctx, path)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.struck[stat.EphemeralOwner] = time.Now().Add(time.Minute) // until it is known to be done
	r.mu.Unlock()
	znodes.Remove(inc, path).Await(time.Second)
	r.mu.Lock()
	r.struck[stat.EphemeralOwner] = time.Now()
	r.mu.Unlock()
}

// believed reports whether nothing is known against h.
func (r *lockRun) believed(h *modelHold) bool {
	if h.over || h.lost() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A grant that is under way when the znode is deleted is told of that by
	// the next event, which its server may be late with. A session that may not watch
	// its znode looks again after LookAgainAfter.
	struck, ok := r.struck[h.session]
	late := 5 * time.Second
	if r.blind[h.session] {
		late += znodes.LookAgainAfter
	}
	return !r.ended[h.session] && !(ok && h.since.Before(struck.Add(late)))
}

// granted is told of a grant of any primitive.
func (r *lockRun) granted(s *zsync.Session, h *modelHold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants[s] = append(r.grants[s], h)
}

// lost reports whether a hold of s was lost, which its goroutine may not have released yet.
func (r *lockRun) lost(s *zsync.Session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.grants[s], func(h *modelHold) bool { return h.lost() })
}

func (r *lockRun) model(path string) *lockModel { return &lockModel{lockRun: r, path: path} }

// take is told of a grant.
func (m *lockModel) take(s *zsync.Session, write bool, lost func() bool) *modelHold {
	h := &modelHold{write: write, session: s.ID(), since: time.Now(), lost: lost}
	m.granted(s, h)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = append(m.held, h)
	m.checkLocked(h)
	return h
}

func (m *lockModel) checkLocked(h *modelHold) {
	for _, o := range m.held {
		if o != h && (o.write || h.write) && m.believed(o) && m.believed(h) {
			m.t.Errorf("%s: write %v of session %x beside write %v of session %x", m.path, h.write, h.session, o.write, o.session)
		}
	}
}

// still checks that h, which is believed in, still has nobody beside it.
func (m *lockModel) still(h *modelHold) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checkLocked(h)
}

// drop is told that h is about to be given up. It reports whether h was lost.
func (m *lockModel) drop(h *modelHold) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h.over = true
	return h.lost()
}

// told is told what a method of a goroutine that has h has returned: of them,
// only a loss and the context may fail it.
func (m *lockModel) told(h *modelHold, what string, ctx context.Context, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, zsync.ErrLost) && h.lost():
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case m.refused(err):
	default:
		m.t.Errorf("%s of what is held: %v (lost: %v)", what, err, h.lost())
	}
	return false
}

// use does what a holder may do.
func (m *lockModel) use(d *rand.Rand, h *modelHold, token func(context.Context) (int64, error), txn func(context.Context, ...any) ([]zk.MultiResponse, error)) {
	ctx, cancel := cut(m.t, d)
	defer cancel()
	harness.Nap(d, 8)
	if d.IntN(3) == 0 {
		tok, err := token(ctx)
		if m.told(h, "Token", ctx, err) && !h.lost() { // else it may be that of who came after
			m.mu.Lock()
			h.tokens = append(h.tokens, tok)
			m.mu.Unlock()
		}
	}
	if d.IntN(4) == 0 {
		rs, err := txn(ctx, &zk.SetDataRequest{Path: "/log", Version: -1})
		if m.told(h, "Txn", ctx, err) && rs[0].Stat != nil && !h.lost() {
			m.mu.Lock()
			h.writes = append(h.writes, rs[0].Stat.Mzxid)
			m.mu.Unlock()
		}
	}
	harness.Nap(d, 8)
	m.still(h)
}

// ordered checks, in the end, that tokens and writes come in the order of the
// grants.
func (m *lockModel) ordered() {
	for j, later := range m.held {
		for _, h := range m.held[:j] {
			if !h.write && !later.write {
				continue
			}
			if len(h.tokens) > 0 && len(later.tokens) > 0 && slices.Max(h.tokens) >= slices.Min(later.tokens) {
				m.t.Errorf("%s: token %d of write %v, then %d of write %v", m.path, h.tokens, h.write, later.tokens, later.write)
			}
			if len(h.writes) > 0 && len(later.writes) > 0 && slices.Max(h.writes) >= slices.Min(later.writes) {
				m.t.Errorf("%s: writes at %d, then of a later hold at %d", m.path, h.writes, later.writes)
			}
		}
	}
}

// got judges what an acquisition has returned.
func (r *lockRun) got(what string, s *zsync.Session, ctx context.Context, began time.Time, err error) bool {
	r.mu.Lock()
	closed := r.closed[s]
	r.mu.Unlock()
	end, _ := ctx.Deadline()
	if time.Since(began) > time.Minute*4 || ctx.Err() != nil && time.Since(end) > 500*time.Millisecond {
		r.t.Errorf("%s took %v, %v longer than its context: %v", what, time.Since(began), time.Since(end), err)
	}
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case closed && errors.Is(err, zsync.ErrClosed):
	case r.refused(err):
	case errors.Is(err, zsync.ErrDeadlock) && r.lost(s): // and its goroutine waits for something else
	default:
		r.t.Errorf("%s: %v", what, err)
	}
	return false
}

// giveUp is an Unlock.
func (m *lockModel) giveUp(h *modelHold, unlock func() error) {
	m.gaveUp(h, m.drop(h), time.Now(), unlock())
}

// gaveUp judges what a release has returned: a loss is told, and nothing else is.
func (m *lockModel) gaveUp(h *modelHold, lost bool, began time.Time, err error) {
	if d := time.Since(began); d > 500*time.Millisecond {
		m.t.Errorf("%s: giving up took %v", m.path, d)
	}
	switch {
	case err == nil && lost && (h.write || !m.strikes):
		m.t.Errorf("%s: given up without an error, and it was lost (write %v)", m.path, h.write)
	case err != nil && (!errors.Is(err, zsync.ErrLost) || !h.lost()):
		m.t.Errorf("%s: giving up: %v (lost: %v)", m.path, err, h.lost())
	}
}

// lockOptions are the layout of a lock, and others at random.
func lockOptions(d *rand.Rand, layout zsync.LockOption) []zsync.LockOption {
	n := suite.DefaultHandoffs
	if d.IntN(2) == 0 {
		n = d.IntN(4)
	}
	opts := []zsync.LockOption{layout, zsync.WithHandoffs(n)}
	if n > 0 && d.IntN(3) == 0 {
		opts = append(opts, zsync.WithRetention(time.Duration(1+d.IntN(20_000))*time.Millisecond))
	}
	return opts
}

var errFunction = errors.New("the function's own")

func TestModelOfRWMutex(t *testing.T) {
	lockModels(t, []string{"/rw", "/rx"}, func(r *lockRun) {
		m, other := r.model("/rw"), r.model("/rx")
		layout := zsync.WithLayout([]zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo}[r.rnd.IntN(2)])
		var wg sync.WaitGroup
		for _, s := range r.ss {
			d := r.dice()
			shared := zsync.NewRWMutex(s, "/rw", lockOptions(d, layout)...)
			for range 2 {
				p := rwProgram{lockModel: m, other: other, s: s, d: r.dice(), shared: shared, layout: layout}
				wg.Go(p.run)
			}
		}
		wg.Wait()
		m.ordered()
		other.ordered()
	})
}

// An rwProgram is what one goroutine does with an RWMutex.
type rwProgram struct {
	*lockModel
	other  *lockModel
	s      *zsync.Session
	d      *rand.Rand
	shared *zsync.RWMutex
	layout zsync.LockOption
}

// value returns a value of the path: that which all of the process use, or one
// of its own.
func (p *rwProgram) value() *zsync.RWMutex {
	if p.d.IntN(3) > 0 {
		return p.shared
	}
	return zsync.NewRWMutex(p.s, p.path, lockOptions(p.d, p.layout)...)
}

func (p *rwProgram) run() {
	for range 6 {
		ctx, cancel := cut(p.t, p.d)
		began := time.Now()
		switch rw := p.value(); p.d.IntN(8) {
		case 0:
			if p.got("Lock", p.s, ctx, began, rw.Lock(ctx)) {
				p.writes(rw)
			}
		case 1:
			if ok, err := rw.TryLock(ctx); p.got("TryLock", p.s, ctx, began, err) && ok {
				p.writes(rw)
			}
		case 2:
			if p.got("RLock", p.s, ctx, began, rw.RLock(ctx)) {
				p.reads(rw)
			}
		case 3:
			if ok, err := rw.TryRLock(ctx); p.got("TryRLock", p.s, ctx, began, err) && ok {
				p.reads(rw)
			}
		case 4, 5:
			p.do(ctx, rw)
		case 6:
			p.rdo(ctx, rw)
		case 7:
			p.all(ctx, rw)
		}
		cancel()
		harness.Nap(p.d, 4)
	}
}

func (p *rwProgram) writes(rw *zsync.RWMutex) {
	h := p.take(p.s, true, harness.ClosedFunc(rw.Lost()))
	p.use(p.d, h, rw.Token, rw.Txn)
	if p.d.IntN(3) > 0 {
		p.giveUp(h, rw.Unlock)
		return
	}
	ctx, cancel := cut(p.t, p.d)
	defer cancel()
	// It is a reader as soon as others may read.
	both := &modelHold{session: h.session, since: h.since, lost: h.lost}
	p.mu.Lock()
	h.over = true
	p.held = append(p.held, both)
	p.mu.Unlock()
	if !p.told(h, "Downgrade", ctx, rw.Downgrade(ctx)) {
		p.drop(both)
		p.gaveUp(h, h.lost(), time.Now(), rw.Unlock())
		return
	}
	p.drop(both)
	p.reads(rw)
}

func (p *rwProgram) reads(rw *zsync.RWMutex) {
	h := p.take(p.s, false, harness.ClosedFunc(rw.Lost()))
	p.use(p.d, h, rw.Token, rw.Txn)
	unlock := rw.RUnlock
	if p.d.IntN(2) == 0 {
		unlock = rw.RLocker().Unlock
	}
	p.giveUp(h, unlock)
}

// judge judges what Do has returned: its function's error, and a loss.
func (p *rwProgram) judge(h *modelHold, lost bool, err, own error) {
	if own != nil && !errors.Is(err, own) {
		p.t.Errorf("Do: %v, and its function returned %v", err, own)
	}
	if own != nil && !errors.Is(err, zsync.ErrLost) {
		err = nil
	}
	p.gaveUp(h, lost, time.Now(), err)
}

// ends checks that the context of a function whose hold is lost has ended.
func (p *rwProgram) ends(ctx context.Context, told func() bool) {
	if told() && ctx.Err() == nil {
		p.t.Error("it is lost, and the context of the function has not ended")
	}
}

func (p *rwProgram) do(ctx context.Context, rw *zsync.RWMutex) {
	var h *modelHold
	var lost bool
	var own error
	if p.d.IntN(3) == 0 {
		own = errFunction
	}
	began := time.Now()
	again := p.value()
	err := rw.Do(ctx, func(ctx context.Context) error {
		told := harness.ClosedFunc(rw.Lost())
		h = p.take(p.s, true, told)
		p.use(p.d, h, rw.Token, rw.Txn)
		switch p.d.IntN(6) {
		case 0: // nested
			ran := false
			nested := again.Do
			if p.d.IntN(2) == 0 {
				nested = again.RDo
			}
			err := nested(ctx, func(context.Context) error { ran = true; harness.Nap(p.d, 4); p.still(h); return nil })
			if p.told(h, "Do in Do", ctx, err) && !ran {
				p.t.Error("Do in Do returned nil, and its function has not run")
			}
		case 1:
			if err := again.Lock(ctx); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("Lock in Do: %v", err)
			}
			if ok, err := again.TryLock(ctx); ok || ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("TryLock in Do: %v, %v", ok, err)
			}
		case 2:
			if err := again.RLock(ctx); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("RLock in Do: %v", err)
			}
			if ok, err := again.TryRLock(ctx); ok || ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("TryRLock in Do: %v, %v", ok, err)
			}
		case 3:
			p.mu.Lock()
			h.write = false
			p.mu.Unlock()
			if !p.told(h, "Downgrade in Do", ctx, rw.Downgrade(ctx)) {
				p.mu.Lock()
				h.write = !h.lost()
				p.mu.Unlock()
				break
			}
			harness.Nap(p.d, 4)
			p.still(h)
			if err := again.Do(ctx, func(context.Context) error { return nil }); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("Do in Do that is downgraded: %v", err)
			}
		case 4: // unlocked inside
			p.giveUp(h, rw.Unlock)
			own = nil
			return nil
		}
		p.ends(ctx, told)
		lost = p.drop(h)
		return own
	})
	switch {
	case h == nil:
		p.got("Do", p.s, ctx, began, err)
	case errors.Is(err, zsync.ErrNotLocked) && h.over && own == nil: // unlocked inside
	default:
		p.judge(h, lost, err, own)
	}
}

func (p *rwProgram) rdo(ctx context.Context, rw *zsync.RWMutex) {
	var h *modelHold
	var lost bool
	var own error
	if p.d.IntN(3) == 0 {
		own = errFunction
	}
	began := time.Now()
	again := p.value()
	err := rw.RDo(ctx, func(ctx context.Context) error {
		told := harness.ClosedFunc(rw.Lost())
		h = p.take(p.s, false, told)
		p.use(p.d, h, rw.Token, rw.Txn)
		switch p.d.IntN(4) {
		case 0:
			err := again.RDo(ctx, func(context.Context) error { harness.Nap(p.d, 4); p.still(h); return nil })
			p.told(h, "RDo in RDo", ctx, err)
		case 1:
			if err := again.Do(ctx, func(context.Context) error { return nil }); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("Do in RDo: %v", err)
			}
			if err := again.Lock(ctx); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("Lock in RDo: %v", err)
			}
		case 2:
			if err := again.RLock(ctx); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				p.t.Errorf("RLock in RDo: %v", err)
			}
		}
		// Lost is closed when another reader of the process has lost its znode, too. So
		// it is an RDo within that tells whether this one has.
		if err := again.RDo(ctx, func(context.Context) error { return nil }); errors.Is(err, zsync.ErrLost) && ctx.Err() == nil {
			p.t.Errorf("the context of an RDo goes on, and an RDo within tells: %v", err)
		}
		lost = p.drop(h)
		return own
	})
	switch {
	case h == nil:
		p.got("RDo", p.s, ctx, began, err)
	default:
		p.judge(h, lost, err, own)
	}
}

// all locks two paths.
func (p *rwProgram) all(ctx context.Context, rw *zsync.RWMutex) {
	began := time.Now()
	one, two := zsync.Locker(rw), zsync.NewRWMutex(p.s, p.other.path, p.layout)
	write := p.d.IntN(2) == 0
	if !write {
		one = rw.RLocker()
	}
	ls := []zsync.Locker{one, two}
	if p.d.IntN(2) == 0 {
		slices.Reverse(ls)
	}
	lockAll := func() (held context.Context, unlock func() error, err error) {
		held = context.Background()
		unlock, err = zsync.LockAll(ctx, ls...)
		return held, unlock, err
	}
	ends := p.d.IntN(2) == 0
	if ends {
		lockAll = func() (context.Context, func() error, error) { return zsync.LockAllContext(ctx, ls...) }
	}
	held, unlock, err := lockAll()
	if !p.got("LockAll", p.s, ctx, began, err) {
		return
	}
	h, o := p.take(p.s, write, harness.ClosedFunc(one.(interface{ Lost() <-chan struct{} }).Lost())), p.other.take(p.s, true, harness.ClosedFunc(two.Lost()))
	p.use(p.d, h, rw.Token, rw.Txn)
	p.other.use(p.d, o, two.Token, two.Txn)
	began = time.Now()
	lost := [2]bool{p.drop(h), p.other.drop(o)}
	err = unlock()
	if d := time.Since(began); d > time.Second {
		p.t.Errorf("unlock took %v", d)
	}
	if ends && (held.Err() == nil || ctx.Err() == nil && (lost[0] || lost[1]) && !errors.Is(context.Cause(held), zsync.ErrLost)) {
		p.t.Errorf("the context of LockAllContext ends with %v; lost: %v", context.Cause(held), lost)
	}
	if err == nil && (lost[0] && write || lost[1]) || err != nil && (!errors.Is(err, zsync.ErrLost) || !h.lost() && !o.lost()) {
		p.t.Errorf("unlock: %v; lost: %v, %v", err, lost, [2]bool{h.lost(), o.lost()})
	}
}

func TestModelOfMutex(t *testing.T) {
	lockModels(t, []string{"/m"}, func(r *lockRun) {
		m := r.model("/m")
		layout := zsync.WithLayout([]zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo}[r.rnd.IntN(2)])
		var wg sync.WaitGroup
		for _, s := range r.ss {
			d := r.dice()
			shared := zsync.NewMutex(s, "/m", lockOptions(d, layout)...)
			for range 2 {
				d := r.dice()
				value := func() *zsync.Mutex {
					if d.IntN(3) > 0 {
						return shared
					}
					return zsync.NewMutex(s, "/m", lockOptions(d, layout)...)
				}
				wg.Go(func() {
					for range 8 {
						m.lockOnce(s, d, value)
						harness.Nap(d, 4)
					}
				})
			}
		}
		wg.Wait()
		m.ordered()
	})
}

// lockOnce locks a Mutex in one of the ways there are.
func (m *lockModel) lockOnce(s *zsync.Session, d *rand.Rand, value func() *zsync.Mutex) {
	ctx, cancel := cut(m.t, d)
	defer cancel()
	began := time.Now()
	l := value()
	locked := func() {
		h := m.take(s, true, harness.ClosedFunc(l.Lost()))
		m.use(d, h, l.Token, l.Txn)
		m.giveUp(h, l.Unlock)
	}
	switch d.IntN(4) {
	case 0:
		if ok, err := l.TryLock(ctx); m.got("TryLock", s, ctx, began, err) && ok {
			locked()
		}
	case 1:
		m.doOnce(ctx, s, d, l, value())
	default:
		if m.got("Lock", s, ctx, began, l.Lock(ctx)) {
			locked()
		}
	}
}

func (m *lockModel) doOnce(ctx context.Context, s *zsync.Session, d *rand.Rand, l, again *zsync.Mutex) {
	var h *modelHold
	var lost, unlocked bool
	began := time.Now()
	err := l.Do(ctx, func(ctx context.Context) error {
		h = m.take(s, true, harness.ClosedFunc(l.Lost()))
		m.use(d, h, l.Token, l.Txn)
		switch d.IntN(3) {
		case 0:
			m.told(h, "Do in Do", ctx, again.Do(ctx, func(context.Context) error { harness.Nap(d, 4); m.still(h); return nil }))
		case 1:
			if err := again.Lock(ctx); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				m.t.Errorf("Lock in Do: %v", err)
			}
		case 2:
			m.giveUp(h, l.Unlock)
			unlocked = true
			return nil
		}
		lost = m.drop(h)
		return nil
	})
	switch {
	case h == nil:
		m.got("Do", s, ctx, began, err)
	case unlocked:
		if !errors.Is(err, zsync.ErrNotLocked) {
			m.t.Errorf("Do of what its function has unlocked: %v", err)
		}
	default:
		m.gaveUp(h, lost, time.Now(), err)
	}
}

func TestCampaignThatWaitsForOneThatWasLostNeedsNoResign(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		e := zsync.NewElection(s, "/e")
		harness.Must(t, e.Campaign(t.Context())) // and goes home when Lost is closed
		first := e.Lost()
		next := harness.Async(func() error { return e.Campaign(t.Context()) })
		harness.PendingStill(t, next)
		srv.Expire(s.ID())
		harness.Must(t, <-next)
		if !harness.Closed(first) || harness.Closed(e.Lost()) {
			t.Errorf("Lost of the first closed: %v; of the second: %v", harness.Closed(first), harness.Closed(e.Lost()))
		}
		harness.Must(t, e.Resign())
	})
}

func TestReaderIsNeverToldThatItDoesNotHoldBecauseAnotherLeaves(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(10 * time.Millisecond)
		rw := zsync.NewRWMutex(suite.Open(t, srv), "/rw")
		harness.Must(t, rw.RDo(t.Context(), func(ctx context.Context) error {
			for range 20 {
				harness.Must(t, rw.RLock(t.Context())) // the present hold
				got := harness.Async(func() error { _, err := rw.Token(ctx); return err })
				wrote := harness.Async(func() error { _, err := rw.Txn(ctx, &zk.CheckVersionRequest{Path: "/rw", Version: -1}); return err })
				synctest.Wait()
				harness.Must(t, rw.RUnlock())
				harness.Must(t, <-got)
				harness.Must(t, <-wrote)
			}
			return nil
		}))
	})
}
