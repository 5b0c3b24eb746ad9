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
)

// Whoever campaigns, by Campaign or Run, with priorities, terms of a certain length
// and an eye on his health, resigns, hands on or goes home: one leads at a time, is
// the one whom Leader names, and is named by nobody's Observe twice in a row.
func TestModelOfElection(t *testing.T) {
	lockModels(t, []string{"/e"}, func(r *lockRun) {
		m := r.model("/e")
		layout := zsync.WithLayout([]zsync.Layout{zsync.LayoutCurator, zsync.LayoutSelector, zsync.LayoutKazoo}[r.rnd.IntN(3)])
		priorities, terms, ills := r.rnd.IntN(2) == 0, r.rnd.IntN(3) == 0, r.rnd.IntN(3) == 0
		observing, stop := context.WithCancel(r.t.Context())
		var wg, observers sync.WaitGroup
		for _, s := range r.ss {
			observers.Go(func() { m.observe(zsync.NewElection(s, "/e", layout).Observe(observing)) })
			options := func(d *rand.Rand) []zsync.ElectionOption {
				os := []zsync.ElectionOption{layout}
				if priorities && d.IntN(3) > 0 {
					os = append(os, zsync.WithPriority(d.IntN(4)-1))
				}
				if terms {
					os = append(os, zsync.WithMaxHold(time.Duration(1+d.IntN(30))*time.Millisecond))
				}
				if ills {
					os = append(os, zsync.WithHealth(health(rand.New(rand.NewPCG(d.Uint64(), 10)))))
				}
				return os
			}
			shared := zsync.NewElection(s, "/e", options(r.dice())...)
			for range 2 {
				d := r.dice()
				wg.Go(func() {
					for range 6 {
						if d.IntN(3) > 0 {
							m.leadOnce(s, d, shared, true)
						} else {
							m.leadOnce(s, d, zsync.NewElection(s, "/e", options(d)...), false)
						}
						harness.Nap(d, 4)
					}
				})
			}
		}
		wg.Wait()
		stop()
		observers.Wait()
		m.ordered()
	})
}

// health returns a look at somebody's health who is ill at times.
func health(d *rand.Rand) func(context.Context) error {
	var mu sync.Mutex
	return func(ctx context.Context) error {
		mu.Lock()
		ill, slow := d.IntN(4) == 0, d.IntN(4) == 0
		mu.Unlock()
		if slow {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		if ill {
			return errors.New("ill")
		}
		return nil
	}
}

// observe reads what Observe tells until that ends.
func (m *lockModel) observe(told <-chan zsync.Contender) {
	last := ""
	for c := range told {
		if c.Node == last {
			m.t.Errorf("Observe names %q twice in a row", c.Node)
		}
		if c.Node == "" || c.Mode != zsync.ModeExclusive || !c.Holding {
			m.t.Errorf("Observe names %+v", c)
		}
		last = c.Node
	}
}

// leads asks who leads. While h may be believed it is nobody else.
func (m *lockModel) leads(d *rand.Rand, s *zsync.Session, h *modelHold, e *zsync.Election) {
	ctx, cancel := cut(m.t, d)
	defer cancel()
	sure := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.believed(h)
	}
	before, began := sure(), time.Now()
	c, err := e.Leader(ctx)
	switch surely := before && sure(); {
	case errors.Is(err, zsync.ErrNoLeader):
		if surely {
			m.t.Errorf("Leader knows of none, and session %x leads", h.session)
		}
	case m.got("Leader", s, ctx, began, err) && surely && c.Session != h.session:
		m.t.Errorf("Leader names session %x, and %x leads", c.Session, h.session)
	}
}

// leadOnce leads by Campaign, and Resign or Transfer, or by Run. e is shared by
// several goroutines or not.
func (m *lockModel) leadOnce(s *zsync.Session, d *rand.Rand, e *zsync.Election, shared bool) {
	ctx, cancel := cut(m.t, d)
	defer cancel()
	began := time.Now()
	if d.IntN(3) == 0 {
		m.run(ctx, s, d, e)
		return
	}
	if !m.got("Campaign", s, ctx, began, e.Campaign(ctx)) {
		return
	}
	h := m.take(s, true, harness.ClosedFunc(e.Lost()))
	m.useTerm(d, h, e)
	if d.IntN(3) == 0 {
		m.leads(d, s, h, e)
	}
	lost := m.drop(h)
	switch {
	case lost && d.IntN(2) == 0:
		return // it has gone home
	case !shared && d.IntN(2) == 0:
		m.transfer(s, h, d, e)
		return
	}
	began = time.Now()
	// After a loss another goroutine may campaign with e; then whose it is cannot
	// be told. See Resign.
	if err := e.Resign(); !lost && !h.lost() || time.Since(began) > 500*time.Millisecond {
		m.gaveUp(h, lost, began, err)
	}
}

// useTerm is use. Once the term is lost e may campaign for another goroutine, and
// then it is not locked; a Resign may be a late one of another's, and tells of it
// in the same way.
func (m *lockModel) useTerm(d *rand.Rand, h *modelHold, e *zsync.Election) {
	lost := func(err error) error {
		if errors.Is(err, zsync.ErrNotLocked) && h.lost() {
			return zsync.ErrLost
		}
		return err
	}
	m.use(d, h, func(ctx context.Context) (int64, error) {
		tok, err := e.Token(ctx)
		return tok, lost(err)
	}, func(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
		rs, err := e.Txn(ctx, ops...)
		return rs, lost(err)
	})
}

// transfer hands on to somebody, and resigns if that has failed.
func (m *lockModel) transfer(s *zsync.Session, h *modelHold, d *rand.Rand, e *zsync.Election) {
	ctx, cancel := cut(m.t, d)
	defer cancel()
	began := time.Now()
	cs, err := e.Contenders(ctx)
	if m.got("Contenders", s, ctx, began, err) && len(cs) > 0 {
		err = e.Transfer(ctx, cs[d.IntN(len(cs))])
		m.lockRun.mu.Lock()
		closed := m.closed[s] // Close ends the wait for the heir, and the function that leads may still run
		m.lockRun.mu.Unlock()
		if !errors.Is(err, zsync.ErrNoCandidate) && !errors.Is(err, zsync.ErrLost) && !(closed && errors.Is(err, zsync.ErrClosed)) {
			m.told(h, "Transfer", ctx, err)
		}
	}
	if err := e.Resign(); err != nil && !errors.Is(err, zsync.ErrNotLocked) && !errors.Is(err, zsync.ErrLost) {
		m.t.Errorf("Resign after Transfer: %v", err)
	}
}

// run leads by Run, up to two terms that its function ends. Where its function is slower
// than its longest term it is never the one that ends one, and with the highest priority
// Run would be elected until ctx ends while all others wait: it goes home before that.
func (m *lockModel) run(ctx context.Context, s *zsync.Session, d *rand.Rand, e *zsync.Election) {
	ctx, home := context.WithCancel(ctx)
	defer home()
	terms := 0
	for range 2 {
		var h *modelHold
		began := time.Now()
		err := e.Run(ctx, func(ctx context.Context) error {
			h = m.take(s, true, func() bool { return ctx.Err() != nil })
			if terms++; terms > 50 {
				home()
			}
			m.useTerm(d, h, e)
			if d.IntN(4) == 0 {
				m.leads(d, s, h, e)
			}
			if err := e.Campaign(ctx); ctx.Err() == nil && !errors.Is(err, zsync.ErrDeadlock) {
				m.t.Errorf("Campaign in Run: %v", err)
			}
			m.drop(h)
			return errFunction
		})
		switch {
		case errors.Is(err, errFunction):
		case h != nil && ctx.Err() == nil && err != nil && !m.strikes: // it campaigned again, and failed
			m.got("Run", s, ctx, began, err)
		case h == nil && !m.got("Run", s, ctx, began, err):
		}
		if ctx.Err() != nil {
			return
		}
	}
}
