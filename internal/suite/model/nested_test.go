package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

// What is held through several primitives at once, each inside the function of the one
// before: the end of one is told by the context of every function inside, is the error of
// its own release and of no other, and whatever is done with that context, by whichever
// primitive, fails with it and with nothing else. All are taken in one order, so nobody waits
// for ever.
func TestModelOfWhatIsHeldTogether(t *testing.T) {
	lockModels(t, []string{"/a", "/b", "/d"}, func(r *lockRun) {
		p := nestedProgram{lockRun: r, a: r.model("/a"), b: r.model("/b"), d: r.model("/d")}
		fresh := zsync.NewSemaphore(r.stranger, "/c", nestedPermits)
		p.c = &permitModel{lockRun: r, bound: nestedPermits, holds: make(map[*modelHold]permits)}
		var wg sync.WaitGroup
		for _, s := range r.ss {
			p := p
			p.s = s
			p.mutex, p.rw = zsync.NewMutex(s, "/a", lockOptions(r.dice(), zsync.WithLayout(zsync.LayoutCurator))...), zsync.NewRWMutex(s, "/b")
			p.sem = zsync.NewSemaphore(s, "/c", nestedPermits)
			p.cond = zsync.NewCond(s, "/a-cond", p.mutex)
			p.once, p.wg = zsync.NewOnce(s, "/once"), zsync.NewWaitGroup(s, "/wg")
			p.number, p.flight = zsync.NewInt64(s, "/number"), zsync.NewFlight[int](s, "/flight", time.Millisecond)
			for range 2 {
				p := p
				p.dice = r.dice()
				p.election = zsync.NewElection(s, "/d") // who resigns late resigns for those who lead by the same value
				wg.Go(p.run)
			}
		}
		wg.Wait()
		p.a.ordered()
		p.b.ordered()
		p.d.ordered()
		r.t.Cleanup(func() {
			// Nothing is out, and no task is open, when all is quiet.
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if n, err := zsync.NewWaitGroup(r.stranger, "/wg").Count(ctx); n != 0 || err != nil {
				r.t.Errorf("%d tasks are open, %v", n, err)
			}
			if ok, err := fresh.TryAcquire(ctx, nestedPermits); !ok || err != nil {
				r.t.Errorf("TryAcquire of all permits = %v, %v", ok, err)
			}
		})
	})
}

const nestedPermits = 2

// A nestedProgram is what one goroutine does.
type nestedProgram struct {
	*lockRun
	a, b, d  *lockModel
	c        *permitModel
	s        *zsync.Session
	dice     *rand.Rand
	mutex    *zsync.Mutex
	rw       *zsync.RWMutex
	sem      *zsync.Semaphore
	election *zsync.Election
	cond     *zsync.Cond
	once     *zsync.Once
	wg       *zsync.WaitGroup
	number   *zsync.Int64
	flight   *zsync.Flight[int]
}

func (p *nestedProgram) run() {
	for range 4 {
		ctx, cancel := cut(p.t, p.dice)
		p.enter(ctx, 0)
		cancel()
		harness.Nap(p.dice, 4)
	}
}

// enter takes what comes from level on, or not, and does something inside.
func (p *nestedProgram) enter(ctx context.Context, level int) {
	if ctx.Err() != nil {
		return
	}
	k := p.dice.IntN(5)
	switch {
	case level == 4:
		p.inside(ctx)
	case k == 0:
		p.enter(ctx, level+1)
	case level == 0 && k == 1:
		p.both(ctx)
	case level == 0 && k == 2:
		p.locked(ctx, level, p.a, true, p.mutex, p.mutex.Lost)
	case level == 0:
		p.did(ctx, level, p.a, true, p.mutex.Lost, p.mutex.Do)
	case level == 1 && k == 1:
		p.locked(ctx, level, p.b, true, p.rw, p.rw.Lost)
	case level == 1 && k == 2:
		p.did(ctx, level, p.b, true, p.rw.Lost, p.rw.Do)
	case level == 1 && k == 3:
		p.locked(ctx, level, p.b, false, p.rw.RLocker(), p.rw.Lost)
	case level == 1:
		p.did(ctx, level, p.b, false, p.rw.Lost, p.rw.RDo)
	case level == 2:
		p.permits(ctx, level)
	case level == 3:
		p.locked(ctx, level, p.d, true, leadership{p.election}, p.election.Lost)
	}
}

// A leadership is an Election as a lock.
type leadership struct{ e *zsync.Election }

func (l leadership) Lock(ctx context.Context) error { return l.e.Campaign(ctx) }
func (l leadership) Unlock() error                  { return l.e.Resign() }

// locked holds l, in the one way that has no function, and goes on.
func (p *nestedProgram) locked(ctx context.Context, level int, m *lockModel, write bool, l zsync.Locker, lost func() <-chan struct{}) {
	began := time.Now()
	if !p.got(fmt.Sprint("Lock of level ", level), p.s, ctx, began, l.Lock(ctx)) {
		return
	}
	h := m.take(p.s, write, harness.ClosedFunc(lost()))
	if m == p.a && p.dice.IntN(3) == 0 {
		if h = p.waited(ctx, h); h == nil {
			return
		}
	}
	p.enter(ctx, level+1)
	m.still(h)
	m.giveUp(h, l.Unlock)
}

// waited waits for a signal, holding nothing else, and returns what it holds then.
func (p *nestedProgram) waited(ctx context.Context, h *modelHold) *modelHold {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.dice.IntN(100))*time.Millisecond)
	defer cancel()
	began := time.Now()
	if p.dice.IntN(2) == 0 {
		if err := p.cond.Signal(ctx); err != nil {
			p.may("Signal", ctx, err)
		}
	}
	p.a.drop(h)
	switch err := p.cond.Wait(ctx); {
	case errors.Is(err, zsync.ErrLost) && h.lost():
		return nil
	case !p.got("Wait", p.s, ctx, began, err):
		return nil
	}
	return p.a.take(p.s, true, harness.ClosedFunc(p.mutex.Lost()))
}

// did holds what do takes, and goes on in its function.
func (p *nestedProgram) did(ctx context.Context, level int, m *lockModel, write bool, lostOf func() <-chan struct{}, do func(context.Context, func(context.Context) error) error) {
	var h *modelHold
	var lost bool
	var own error
	if p.dice.IntN(3) == 0 {
		own = errFunction
	}
	began := time.Now()
	err := do(ctx, func(inner context.Context) error {
		told := harness.ClosedFunc(lostOf())
		h = m.take(p.s, write, told)
		p.enter(inner, level+1)
		m.still(h)
		if lost = m.drop(h); lost && (write || !p.strikes) && inner.Err() == nil {
			p.t.Errorf("level %d is lost, and the context of its function has not ended", level)
		}
		p.because(inner, ctx, told)
		return own
	})
	if h == nil {
		p.got(fmt.Sprint("Do of level ", level), p.s, ctx, began, err)
		return
	}
	p.result(m, h, lost, err, own)
}

// because checks why the context of a function has ended: with that outside, by Close, or by the
// loss of the hold.
func (p *nestedProgram) because(inner, outer context.Context, lost func() bool) {
	if inner.Err() == nil || outer.Err() != nil {
		return
	}
	why := context.Cause(inner)
	if time.Sleep(time.Nanosecond); outer.Err() == nil && !(lost() && errors.Is(why, zsync.ErrLost)) && !(errors.Is(why, zsync.ErrClosed) && !errors.Is(why, zsync.ErrLost)) { // the context ends first
		p.t.Errorf("the context of a function has ended with %v; lost: %v", why, lost())
	}
}

// result judges the error of a Do whose function returned own.
func (p *nestedProgram) result(m *lockModel, h *modelHold, lost bool, err, own error) {
	if own != nil && !errors.Is(err, own) {
		p.t.Errorf("Do: %v, and its function returned %v", err, own)
	}
	if own != nil && !errors.Is(err, zsync.ErrLost) {
		err = nil
	}
	m.gaveUp(h, lost, time.Now(), err)
}

// both takes the first two together.
func (p *nestedProgram) both(ctx context.Context) {
	began := time.Now()
	write := p.dice.IntN(2) == 0
	second := zsync.Locker(p.rw)
	if !write {
		second = p.rw.RLocker()
	}
	held, unlock, err := zsync.LockAllContext(ctx, second, p.mutex)
	if !p.got("LockAllContext", p.s, ctx, began, err) {
		return
	}
	h, o := p.a.take(p.s, true, harness.ClosedFunc(p.mutex.Lost())), p.b.take(p.s, write, harness.ClosedFunc(p.rw.Lost()))
	p.enter(held, 2)
	p.a.still(h)
	p.b.still(o)
	lost := []bool{p.a.drop(h), p.b.drop(o)}
	time.Sleep(time.Nanosecond) // held is ended by a goroutine of its own
	if (lost[0] || lost[1] && write) && held.Err() == nil {
		p.t.Errorf("of LockAllContext %v are lost, and its context has not ended", lost)
	}
	p.because(held, ctx, func() bool { return h.lost() || o.lost() })
	err = unlock()
	if err == nil && (lost[0] || lost[1] && write) || err != nil && (!errors.Is(err, zsync.ErrLost) || !h.lost() && !o.lost()) {
		p.t.Errorf("unlock: %v; lost: %v", err, lost)
	}
}

// permits takes permits, and goes on.
func (p *nestedProgram) permits(ctx context.Context, level int) {
	q := permitProgram{permitModel: p.c, s: p.s, m: p.sem, d: p.dice}
	n := int64(1 + p.dice.IntN(nestedPermits))
	began := time.Now()
	if p.dice.IntN(2) == 0 {
		if !p.got("Acquire", p.s, ctx, began, p.sem.Acquire(ctx, n)) {
			return
		}
		h := q.take(n, harness.ClosedFunc(p.sem.Lost()))
		p.enter(ctx, level+1)
		lost := p.c.drop(h)
		if err := p.sem.Release(n); (err == nil) == lost && !h.lost() || err != nil && !errors.Is(err, zsync.ErrLost) {
			p.t.Errorf("Release: %v; lost: %v", err, lost)
		}
		return
	}
	var h *modelHold
	var lost bool
	err := p.sem.Do(ctx, n, func(inner context.Context) error {
		h = q.take(n, harness.ClosedFunc(p.sem.Lost()))
		p.enter(inner, level+1)
		lost = p.c.drop(h)
		if time.Sleep(time.Nanosecond); lost && inner.Err() == nil { // a goroutine of its own ends it
			p.t.Error("permits are lost, and the context of their function has not ended")
		}
		p.because(inner, ctx, h.lost)
		return nil
	})
	switch {
	case h == nil:
		p.got("Semaphore.Do", p.s, ctx, began, err)
	case err == nil && lost, err != nil && (!errors.Is(err, zsync.ErrLost) || !h.lost()):
		p.t.Errorf("Semaphore.Do: %v; lost: %v, %v", err, lost, h.lost())
	}
}

// may judges the error of something that was done inside with ctx.
func (p *nestedProgram) may(what string, ctx context.Context, err error) {
	p.mu.Lock()
	closed := p.closed[p.s]
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx)):
	case closed && errors.Is(err, zsync.ErrClosed):
	case p.refused(err):
	default:
		p.t.Errorf("%s: %v; its context: %v", what, err, context.Cause(ctx))
	}
}

// inside does something with the context of the innermost function.
func (p *nestedProgram) inside(ctx context.Context) {
	harness.Nap(p.dice, 10)
	session := p.s.ID()
	var what string
	var err error
	switch p.dice.IntN(7) {
	case 0:
		what = "Add"
		_, err = p.number.Add(ctx, 1)
	case 1:
		what = "Once.Do"
		err = p.once.Do(ctx, func(context.Context) error { harness.Nap(p.dice, 5); return nil })
	case 2:
		what = "WaitGroup.Add"
		if err = p.wg.Add(ctx, 1); err == nil {
			harness.Nap(p.dice, 5)
			if done := p.wg.Done(); done != nil && !errors.Is(done, zsync.ErrLost) {
				p.may("Done", context.Background(), done)
			}
		}
	case 3:
		what = "Flight.Do"
		_, _, err = p.flight.Do(ctx, "key", func(context.Context) (int, error) { harness.Nap(p.dice, 5); return 1, nil })
	case 4:
		what = "Txn"
		_, err = p.s.Txn(ctx, &zk.SetDataRequest{Path: "/log", Version: -1})
	case 5:
		what = "Signal"
		err = p.cond.Signal(ctx)
	default: // for so long that what is held may be lost
		harness.Nap(p.dice, int(2*harness.Timeout/time.Millisecond))
		return
	}
	if err == nil {
		return
	}
	if errors.Is(err, zsync.ErrLost) && (session != p.s.ID() || ctx.Err() == nil) {
		return // its own hold, or its transaction's session, went while it was under way
	}
	p.may(what, ctx, err)
}
