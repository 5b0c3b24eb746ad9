package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
)

// mostPermits is what no program asks for more than.
const mostPermits = 4

// A permitModel is a semaphore as its users see it: what everybody holds who may
// believe in it.
type permitModel struct {
	*lockRun
	bound int64 // more are never out

	mu    sync.Mutex
	holds map[*modelHold]permits // guarded by mu
	token int64                  // the greatest of those whose permits were given up; guarded by mu
}

type permits struct {
	of *zsync.Semaphore
	n  int64
}

// take is told that n permits were granted. Nobody gets any of one Semaphore value
// before the lost ones have been released.
func (p *permitProgram) take(n int64, lost func() bool) *modelHold {
	h := &modelHold{session: p.s.ID(), since: time.Now(), lost: lost}
	p.granted(p.s, h)
	p.mu.Lock()
	for former, has := range p.holds {
		if has.of == p.m && former.lost() && !lost() { // what is held together is lost together
			p.t.Errorf("%d permits are granted beside %d that are lost", n, has.n)
		}
	}
	p.holds[h] = permits{p.m, n}
	p.mu.Unlock()
	p.still()
	return h
}

// still checks that no more are out than may be.
func (p *permitModel) still() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out int64
	for h, has := range p.holds {
		if p.believed(h) {
			out += has.n
		}
	}
	if out > p.bound {
		p.t.Errorf("%d permits are out, of %d", out, p.bound)
	}
}

// drop is told that h is about to be given up. It reports whether h was lost.
func (p *permitModel) drop(h *modelHold) (lost bool) {
	p.still()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.holds, h)
	for _, tok := range h.tokens {
		p.token = max(p.token, tok)
	}
	return h.lost()
}

// A permitProgram is what one goroutine does.
type permitProgram struct {
	*permitModel
	s       *zsync.Session
	d       *rand.Rand
	first   int64
	resizes bool
	m       *zsync.Semaphore
	least   int64 // what the token of what is asked for must be greater than
}

func (p *permitProgram) run() {
	if p.d.IntN(3) == 0 {
		p.m = zsync.NewSemaphore(p.s, "/s", p.first) // another value of the process
	}
	for range 6 {
		p.step()
	}
}

func (p *permitProgram) step() {
	ctx, cancel := cut(p.t, p.d)
	defer cancel()
	n, began := int64(1+p.d.IntN(int(p.first))), time.Now()
	p.mu.Lock()
	p.least = p.token
	p.mu.Unlock()
	switch p.d.IntN(8) {
	case 0:
		ok, err := p.m.TryAcquire(ctx, n)
		if ok && err != nil {
			p.t.Errorf("granted %d, with the error %v", n, err)
		}
		if p.asked("TryAcquire", ctx, began, err) && ok {
			p.hold(n)
		}
	case 1:
		if p.resizes {
			p.asked("Resize", ctx, began, p.m.Resize(ctx, int64(1+p.d.IntN(mostPermits))))
		}
	case 2:
		p.do(ctx, n, began)
	default:
		if p.asked("Acquire", ctx, began, p.m.Acquire(ctx, n)) {
			p.hold(n)
		}
	}
}

// asked judges what a method has returned. Who asks for more than the limit is
// refused, and with a Resize it may be that.
func (p *permitProgram) asked(what string, ctx context.Context, began time.Time, err error) bool {
	if p.resizes && errors.Is(err, zsync.ErrInvalid) {
		return false
	}
	return p.got(what, p.s, ctx, began, err)
}

// use does what a holder may do.
func (p *permitProgram) use(h *modelHold) {
	ctx, cancel := cut(p.t, p.d)
	defer cancel()
	told := func(what string, err error) bool {
		switch {
		case err == nil:
			return true
		case errors.Is(err, zsync.ErrLost) && h.lost():
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		case p.refused(err):
		default:
			p.t.Errorf("%s of permits that are held: %v (lost: %v)", what, err, h.lost())
		}
		return false
	}
	if p.d.IntN(4) == 0 {
		tok, err := p.m.Token(ctx)
		if told("Token", err) && !h.lost() {
			if tok <= p.least {
				p.t.Errorf("the token is %d, and before it was asked for there was %d", tok, p.least)
			}
			p.mu.Lock()
			h.tokens = append(h.tokens, tok)
			p.mu.Unlock()
		}
	}
	if p.d.IntN(4) == 0 {
		_, err := p.m.Txn(ctx, &zk.SetDataRequest{Path: "/log", Version: -1})
		told("Txn", err)
	}
}

func (p *permitProgram) hold(n int64) {
	h := p.take(n, harness.ClosedFunc(p.m.Lost()))
	p.use(h)
	harness.Nap(p.d, 15)
	lost, began := p.drop(h), time.Now()
	err := p.m.Release(n)
	if d := time.Since(began); d > 500*time.Millisecond {
		p.t.Errorf("Release took %v", d)
	}
	switch {
	case err == nil && lost:
		p.t.Errorf("Release of %d returned nil, and they were lost", n)
	case errors.Is(err, zsync.ErrLost) && (p.strikes || p.closes()): // it may find that a znode was deleted, or that it cannot be
	case err != nil && (!errors.Is(err, zsync.ErrLost) || !h.lost()):
		p.t.Errorf("Release of %d: %v (lost: %v)", n, err, h.lost())
	}
}

// closes reports whether the session is being closed.
func (p *permitProgram) closes() bool {
	p.lockRun.mu.Lock()
	defer p.lockRun.mu.Unlock()
	return p.closed[p.s]
}

func (p *permitProgram) do(ctx context.Context, n int64, began time.Time) {
	ran, lost := false, false
	err := p.m.Do(ctx, n, func(ctx context.Context) error {
		ran = true
		h := p.take(n, func() bool { return errors.Is(context.Cause(ctx), zsync.ErrLost) }) // and not the end of Do's own context
		harness.Nap(p.d, 10)
		lost = p.drop(h)
		return errFunction
	})
	switch {
	case !ran:
		p.asked("Do", ctx, began, err)
	case !errors.Is(err, errFunction):
		p.t.Errorf("Do returned %v, and its function %v", err, errFunction)
	case lost && !errors.Is(err, zsync.ErrLost):
		p.t.Errorf("Do returned %v, and its permits were lost", err)
	}
}

func TestModelOfSemaphore(t *testing.T) {
	models(t, func(m *modelRun) {
		r := newLockRun(m)
		p := permitProgram{permitModel: &permitModel{lockRun: r, holds: make(map[*modelHold]permits)}}
		p.first, p.resizes = int64(1+r.rnd.IntN(mostPermits)), r.rnd.IntN(2) == 0
		p.bound = p.first
		if p.resizes {
			p.bound = mostPermits
		}
		fresh := zsync.NewSemaphore(r.stranger, "/s", p.first)
		const leases, gate = "/s/leases", "/s/locks"
		r.harm([]string{leases, gate})
		var wg sync.WaitGroup
		for _, s := range r.ss {
			p.s, p.m = s, zsync.NewSemaphore(s, "/s", p.first)
			for range 2 {
				p := p
				p.d = r.dice()
				wg.Go(p.run)
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(time.Minute)
		r.idle()
		harness.Must(r.t, fresh.Resize(r.t.Context(), 3))
		harness.Must(r.t, fresh.Acquire(harness.Within(r.t, time.Second), 3)) // nothing is out
		if ok, err := fresh.TryAcquire(r.t.Context(), 1); ok || err != nil {
			r.t.Errorf("a fourth permit of three: %v, %v", ok, err)
		}
		harness.Must(r.t, fresh.Release(3))
		if left := append(suite.ChildrenOf(r.t, r.stranger, leases), suite.ChildrenOf(r.t, r.stranger, gate)...); len(left) > 0 {
			r.t.Errorf("left: %q", left)
		}
	})
}
