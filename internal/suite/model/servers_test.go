package model

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// This file has the servers of a model, and what befalls them: one server with three addresses, or
// an ensemble of three members. What befalls the sessions is in run_test.go.

// The interface `servers` is what a model needs of its servers.
type servers interface {
	open(t *testing.T, opts ...zsync.Option) *zsync.Session
	Sessions() []int64
	Expire(session int64)
	Disconnect(session int64)
	Partition(session int64)
	Heal(session int64)
	Intercept(f func(zktest.Request) zktest.Action)
	SetLatency(d time.Duration)

	hurt(r *modelRun, draw func(n int) int)    // begins to do harm to the servers, until heal
	disturb(r *modelRun, draw func(n int) int) // is called now and then until heal
	heal()
}

// A single server has three addresses, of which two lag.
type single struct{ *zktest.Server }

func (s single) open(t *testing.T, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	return suite.Open(t, s.Server, opts...)
}

func (s single) hurt(_ *modelRun, draw func(n int) int) {
	a := s.Addrs()
	s.SetLag(a[1], time.Duration(1+draw(300))*time.Millisecond)
	s.SetLag(a[2], time.Duration(1+draw(40))*time.Millisecond)
}

func (s single) disturb(r *modelRun, draw func(n int) int) {
	if a := s.Addrs()[1+draw(2)]; r.freezes && draw(6) == 0 {
		s.Freeze(a)
		r.pass(draw(2000))
		s.SetLag(a, time.Duration(1+draw(100))*time.Millisecond)
	}
}

func (s single) heal() {
	for _, a := range s.Addrs()[1:] {
		s.Thaw(a)
	}
}

// An ensemble loses one of its three members at a time, and gets it back before the next. It never
// loses a leader that lives on, which could return values that are out of date. A leader crashes.
type ensemble struct {
	*zktest.Ensemble
	routed bool             // each session can reach one member at a time
	routes []*harness.Route // of the sessions, in the order of their opening
}

func newEnsemble(t *testing.T, d *rand.Rand) *ensemble {
	tick := []time.Duration{500 * time.Millisecond, 2 * time.Second}[d.IntN(2)]
	return &ensemble{routed: d.IntN(2) == 0, Ensemble: zktest.StartEnsemble(t, 3, zktest.WithTick(tick), zktest.WithSyncLimit(2+3*d.IntN(2)),
		zktest.WithSessionTimeouts(harness.Timeout, harness.Timeout))}
}

func (e *ensemble) open(t *testing.T, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	if !e.routed {
		return suite.OpenOver(t, e.Addrs(), e.Dial, opts...)
	}
	r := harness.NewRoute(e.Ensemble, e.Leader())
	e.routes = append(e.routes, r)
	return suite.OpenOver(t, e.Addrs(), r.Dial, opts...)
}

// Sessions returns the sessions that every member knows: a member that has fallen behind knows
// sessions that have ended.
func (e *ensemble) Sessions() (ids []int64) {
	for i := range e.Size() {
		known := e.Server(i).Sessions()
		if i == 0 {
			ids = known
		}
		ids = slices.DeleteFunc(ids, func(id int64) bool { return !slices.Contains(known, id) })
	}
	return ids
}

func (e *ensemble) each(f func(s *zktest.Server)) {
	for i := range e.Size() {
		f(e.Server(i))
	}
}

func (e *ensemble) Disconnect(id int64)        { e.each(func(s *zktest.Server) { s.Disconnect(id) }) }
func (e *ensemble) Partition(id int64)         { e.each(func(s *zktest.Server) { s.Partition(id) }) }
func (e *ensemble) Heal(id int64)              { e.each(func(s *zktest.Server) { s.Heal(id) }) }
func (e *ensemble) SetLatency(d time.Duration) { e.each(func(s *zktest.Server) { s.SetLatency(d) }) }
func (e *ensemble) Intercept(f func(zktest.Request) zktest.Action) {
	e.each(func(s *zktest.Server) { s.Intercept(f) })
}

func (e *ensemble) hurt(r *modelRun, draw func(n int) int) {
	r.done.Go(func() {
		for !harness.Closed(r.stop) {
			r.pass(draw(400))
			mend := e.harm(draw)
			r.pass(draw([]int{2500, 2500, 2500, 15000}[draw(4)]))
			mend()
			e.heal()
		}
	})
	if !e.routed {
		return
	}
	of := e.routes[:len(r.ss)]
	r.done.Go(func() {
		for ; !harness.Closed(r.stop); r.pass(draw(400)) {
			if route, to := of[draw(len(of))], draw(4)-1; draw(8) == 0 {
				route.MoveDeaf(to)
			} else {
				route.Move(to)
			}
		}
		for _, route := range of {
			route.Move(0)
		}
	})
}

// disturb does nothing, because hurt has begun all harm.
func (e *ensemble) disturb(*modelRun, func(n int) int) {}

// harm does one kind of harm to one member.
func (e *ensemble) harm(draw func(n int) int) (mend func()) {
	leader := max(e.Leader(), 0)
	v := (leader + 1 + draw(2)) % 3
	cut := []func(from, to int){e.Cut, e.CutLosing}[draw(2)]
	out, in := draw(3) > 0, draw(3) > 0
	switch draw(6) {
	case 0:
		v = []int{v, leader}[draw(2)]
		e.Crash(v)
		return func() { e.Restart(v) }
	case 1:
		e.Freeze(v)
		return func() { e.Thaw(v) }
	case 2, 3:
		e.SetLag(v, time.Duration(1+draw(3000))*time.Millisecond)
		return func() { e.SetLag(v, 0) }
	}
	for _, o := range []int{(v + 1) % 3, (v + 2) % 3} {
		if out {
			cut(v, o)
		}
		if in {
			cut(o, v)
		}
	}
	return e.HealAll
}

// heal waits until every member serves.
func (e *ensemble) heal() {
	for i := 0; i < e.Size(); {
		if e.Leader() < 0 || !e.Serving(i) {
			time.Sleep(50 * time.Millisecond)
			i = 0
		} else {
			i++
		}
	}
}
