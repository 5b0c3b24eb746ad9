package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// This file adds to a program the parts that only a day has: the roles of its processes, deploys
// and restarts, and faults that are aimed at a rare state of a process. It also checks that every
// call returns soon after a fault. The file faults.go has most faults.

// The type `role` is the work of some processes for the whole day.
type role struct {
	name      string
	arenas    []string
	processes int
}

// The roles, in the order of the numbers of their processes. There are 50 processes.
var roles = []role{
	{"nightly", []string{"nightly"}, 4},
	{"leader", []string{"election"}, 4},
	{"worker", []string{"queue"}, 8},
	{"pool", []string{"semaphore"}, 5},
	{"cache", []string{"map", "value"}, 6},
	{"rounds", []string{"room", "barrier"}, 4},
	{"accounts", []string{"lockall", "txn"}, 4},
	{"counter", []string{"int64"}, 3},
	{"lock", []string{"mutex", "rwmutex"}, 4},
	{"signals", []string{"cond", "waitgroup"}, 3},
	{"shards", []string{"partition", "group"}, 3},
	{"once", []string{"once", "flight", "schedule"}, 2},
}

// dayKinds lists the faults that occur only in a day, each with its weight in the draw.
var dayKinds = []weighted{
	{"deploy", 12},  // one process after another closes its Session and starts again
	{"stranger", 6}, // a stranger deletes the znode of a contender, or replaces it with a copy
	{"clock", 4},    // the wall clock of a process is wrong for a while
	{"restart", 6},  // one member after another is killed and comes back
}

// drawDay returns the plan of a day of a fleet. Between two faults there is enough time to serve
// all waiters. But one fault may begin during another.
func drawDay(seed uint64) plan {
	d := rand.New(rand.NewPCG(seed, 11))
	p := plan{
		day: true, members: 5, timeout: time.Duration(2+d.IntN(3)) * 30 * time.Second, syncLimit: 3 + d.IntN(3),
		election: time.Duration(200+d.IntN(3000)) * time.Millisecond,
		latency:  time.Duration(300+d.IntN(3000)) * time.Microsecond,
		actors:   2, glitches: 1 << 30, strikes: true, staleReads: true, uneven: d.IntN(4) == 0,
		harm: 24 * time.Hour,
	}
	p.tick = p.timeout / 10
	p.backlog = time.Duration(d.Int64N(int64(2 * p.latency)))
	for _, r := range roles {
		p.arenas = append(p.arenas, r.arenas...)
		p.processes += r.processes
	}
	kinds := slices.Concat(faultKinds, dayKinds)
	if p.uneven {
		kinds = append(kinds, weighted{"shorten", 12})
	}
	for at := p.timeout; at < p.harm-20*p.timeout; {
		f := p.fault(d, kinds)
		f.at = at
		p.faults = append(p.faults, f)
		for at += 12 * p.timeout; d.IntN(2) == 0; { // the next fault begins during this one
			g := p.fault(d, kinds)
			if g.at = f.at + time.Duration(d.Int64N(int64(p.timeout))); d.IntN(2) == 0 {
				g.process = f.process
			}
			p.faults = append(p.faults, g)
		}
	}
	return p
}

// ownOf returns the arenas that a process uses. A process without a role uses all arenas.
func (w *world) ownOf(process int) []arena {
	if !w.day {
		return w.arenas
	}
	first := 0
	for _, r := range roles {
		if process -= r.processes; process < 0 {
			return w.arenas[first : first+len(r.arenas)]
		}
		first += len(r.arenas)
	}
	panic("a process without a role")
}

// nameOf returns the name of an arena.
func (w *world) nameOf(x arena) string { return w.plan.arenas[slices.Index(w.arenas, x)] }

// The method `ended` reports whether a day is over. A day ends at a failure, or after 24 hours.
func (w *world) ended() bool { return w.broken.Load() || time.Since(w.begun) > w.harm }

// The method `states` returns the current states of a process, from allStates.
func (w *world) states(l *life) (states []string) {
	session := l.session()
	if session == nil {
		return []string{"connects"}
	}
	if l.closing.Load() != 0 {
		states = append(states, "closes")
	}
	if w.e.Load().MemberOf(session.ID()) < 0 {
		states = append(states, "is away")
	}
	for _, r := range w.resources() {
		r.mu.Lock()
		for _, h := range r.holds {
			switch {
			case h.a.life != l || h.over:
			case h.told():
				states = append(states, "has lost")
			default:
				states = append(states, "holds")
			}
		}
		r.mu.Unlock()
	}
	l.waiting.Range(func(_, v any) bool {
		if c := v.(call); time.Since(c.since) > 20*w.latency {
			states = append(states, "waits")
		} else {
			states = append(states, "calls")
		}
		return true
	})
	if len(states) == 0 {
		return []string{"is idle"}
	}
	slices.Sort(states)
	return slices.Compact(states)
}

// The method `hit` counts a fault for the current states of the processes that it affects.
func (w *world) hit(f fault, member, leader int) {
	if !w.day {
		return
	}
	w.tally.fault(f.kind)
	for i := range w.processes {
		l := w.current(i)
		if l == nil {
			continue
		}
		switch f.kind {
		case "backlog", "restart", "stranger": // they affect all processes
		case "cut", "isolate", "slow", "lag", "crash", "freeze":
			if s := l.session(); s != nil && member != leader {
				if home := w.e.Load().MemberOf(s.ID()); home != member && home >= 0 {
					continue
				}
			}
		case "deploy": // deploy calls w.tally.hit for each process in its turn
			continue
		default:
			if i != f.process {
				continue
			}
		}
		w.tally.hit(f.kind, w.states(l))
	}
}

// The method `aim` brings the process of a fault into a rare state, for a few of the faults. Then the
// fault finds a process that connects, closes its Session, or has just learned of a loss. The result
// is the life that the fault finds, or nil.
func (w *world) aim(f *fault) *life {
	d := rand.New(rand.NewPCG(f.draw, 1))
	l := w.present(f.process)
	if l == nil || l.gone() {
		return w.current(f.process)
	}
	switch d.IntN(12) {
	case 0:
		go l.close()
		select {
		case l = <-w.connecting: // l, or another process
		case <-time.After(4 * w.timeout):
		}
	case 1:
		go l.close()
	case 2:
		holders := w.holders()
		if len(holders) == 0 {
			return l
		}
		if l = w.present(holders[d.IntN(len(holders))]); l == nil {
			return nil
		}
		l.under.Add(1) // so most holders keep the hold
		defer l.under.Add(-1)
		for m := range w.members {
			defer w.net.stall(wayOf{l.id(), m, true})()
		}
		select {
		case <-l.lost:
		case <-time.After(2 * w.timeout):
		}
	default:
		return l
	}
	time.Sleep(time.Duration(d.Int64N(int64(4 * w.latency))))
	f.process = l.process
	return w.current(f.process)
}

// The method `current` returns the current life of a process, or nil if the process does not run.
func (w *world) current(process int) *life {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.lives[process]; l != nil && !l.crashed.Load() && !l.closed.Load() {
		return l
	}
	return nil
}

// The method `rouse` makes about half of the processes take a step now, so that they are not idle
// during a fault.
func (w *world) rouse(d *rand.Rand) {
	for i := range w.processes {
		if l := w.present(i); l != nil && d.IntN(2) == 0 {
			l.wake()
		}
	}
	some := 20 * w.latency
	if d.IntN(2) == 0 {
		some = w.timeout / 16
	}
	time.Sleep(time.Duration(d.Int64N(int64(some))))
}

// The method `serve` waits three timeouts after a fault has ended. If no other fault begins or ends
// during that time, every older call must have returned. The holds before a waiter end within one
// timeout, and the waiter is granted within two more.
func (w *world) serve(f fault) {
	w.mu.Lock()
	ended := time.Now()
	w.shaken--
	w.shakenAt = ended
	w.mu.Unlock()
	if !w.sleep(3 * w.timeout) {
		return
	}
	w.mu.Lock()
	quiet := w.shaken == 0 && w.shakenAt.Equal(ended)
	all := slices.Clone(w.lives)
	w.mu.Unlock()
	if !quiet {
		return
	}
	w.tally.quietly()
	for _, l := range all {
		if l == nil || l.crashed.Load() {
			continue
		}
		l.waiting.Range(func(k, v any) bool {
			if c := v.(call); c.since.Before(ended) {
				w.fail("whoever waits is served within two timeouts of the end of a fault: %s %s since %v; %s ended at %v", k, c.what, w.at(c.since), f.kind, w.at(ended))
			}
			return true
		})
	}
}

// The method `sleep` sleeps for d. If a check fails, it returns early. It returns true if no check
// has failed.
func (w *world) sleep(d time.Duration) bool {
	for end := time.Now().Add(d); time.Now().Before(end) && !w.broken.Load(); {
		time.Sleep(min(time.Until(end), w.timeout))
	}
	return !w.broken.Load()
}

// The method `deploy` closes the Session of each process in turn, as SIGTERM does. The first one is
// the process of the fault. Each process starts again.
func (w *world) deploy(f fault) {
	for i := range w.processes {
		l := w.current((f.process + i) % w.processes)
		if l != nil && !l.gone() {
			w.tally.hit(f.kind, w.states(l))
			if l.session() == nil {
				l.die() // the signal ends Connect
			} else {
				go l.close()
			}
		}
		time.Sleep(f.lasts / 50)
	}
}

// The method `restart` kills the members in turn. Each member is back before the next member is
// killed.
func (w *world) restart(f fault) {
	e := w.e.Load()
	for i := range w.members {
		e.Crash(i)
		time.Sleep(f.lasts / 10)
		e.Restart(i)
		time.Sleep(2*w.election + w.timeout/10)
	}
}

func (f fault) describe() string {
	return fmt.Sprintf("%12v %v", f.at.Round(time.Millisecond), f)
}
