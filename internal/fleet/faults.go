package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file causes the faults of a program, and checks the servers during the faults. The files
// plan.go and day.go draw the faults.

// harmAll causes the faults of the plan, each at its time. After the last fault, it heals all
// members and all directions between them.
func (w *world) harmAll() {
	var wg sync.WaitGroup
	for i, f := range w.faults {
		wg.Go(func() {
			if w.day && !w.sleep(f.at+time.Duration(i)) {
				return
			}
			if !w.day {
				time.Sleep(f.at + time.Duration(i))
			}
			w.harmOne(f)
		})
	}
	wg.Wait()
	if w.day {
		w.sleep(w.harm - time.Since(w.begun))
	}
	e := w.e.Load()
	e.HealAll()
	e.SetBacklog(w.backlog)
	for i := range w.members {
		e.Thaw(i)
		e.SetLag(i, 0)
		e.Restart(i)
	}
	w.note("the faults are over")
	close(w.healed)
}

// The method `present` returns the current life of a process, or nil while it connects.
func (w *world) present(process int) *life {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.lives[process]; l != nil && l.s != nil {
		return l
	}
	return nil
}

// The method `resources` returns all resources of the arenas.
func (w *world) resources() (all []*resource) {
	for _, x := range w.arenas {
		if h, ok := x.(interface{ held() []*resource }); ok {
			all = append(all, h.held()...)
		}
	}
	return all
}

// The method `believers` returns the current holds: they have not ended, and the library has not
// reported their loss.
func (w *world) believers() (holds []*hold) {
	for _, r := range w.resources() {
		r.mu.Lock()
		for _, h := range r.holds {
			if h.believes() {
				holds = append(holds, h)
			}
		}
		r.mu.Unlock()
	}
	return holds
}

// The method `holders` returns the processes with a current hold of a lock.
func (w *world) holders() (processes []int) {
	for _, x := range w.arenas {
		if l, ok := x.(*lock); ok {
			l.mu.Lock()
			for _, h := range l.holds {
				if h.believes() {
					processes = append(processes, h.a.process)
				}
			}
			l.mu.Unlock()
		}
	}
	return processes
}

// The method `standing` checks each current hold: the leader must have its session, and a znode of
// that session. The library must report a loss before the servers end the session.
func (w *world) standing() {
	e := w.e.Load()
	leader := e.Leader()
	if leader < 0 || w.lagging.Load() > 0 || w.excused(time.Time{}) {
		return // the tree of a leader that applies late is old
	}
	holds := w.believers()
	if len(holds) == 0 {
		return
	}
	sessions := e.Server(leader).Sessions()
	var znodes []znode
	if !w.day { // the tree of a day is large
		znodes = w.tree()
	}
	for _, h := range holds {
		id := h.a.s.ID()
		if id == 0 || w.excused(h.r.lastStrike()) {
			continue
		}
		path, _, _ := strings.Cut(h.r.name, " ")
		if !slices.Contains(sessions, id) {
			w.fail("%s: a loss is told in time: %s holds, and the servers have ended its session", h.r.name, h.a)
		} else if !w.day && !slices.ContainsFunc(znodes, func(z znode) bool { return z.owner == id && strings.HasPrefix(z.path, path) }) {
			w.fail("%s: a loss is told in time: %s holds, and its session has no znode there", h.r.name, h.a)
		}
	}
}

// The method `placed` checks that each process with a waiting call has a znode in the line of the
// lock. It checks only quiet programs with strangers. In these programs, a contender whose znode
// was deleted creates another long before the next check. So it fails only at the third check in a
// row without a znode.
func (w *world) placed() {
	if !w.strikes || !w.quiet || w.day || w.e.Load().Leader() < 0 {
		return
	}
	var znodes []znode
	w.mu.Lock()
	all := slices.Clone(w.lives)
	w.mu.Unlock()
	for _, l := range all {
		if l == nil || l.gone() {
			continue
		}
		l.waiting.Range(func(name, v any) bool {
			c := v.(call)
			path, lock := strings.CutPrefix(c.what, "locks ")
			if path, _, _ = strings.Cut(path, " "); !lock || time.Since(c.since) < w.timeout/2 || w.occupied(l, path) {
				delete(w.absent, name.(string))
				return true
			}
			if znodes == nil {
				znodes = w.tree()
			}
			id := l.s.ID()
			if slices.ContainsFunc(znodes, func(z znode) bool { return z.owner == id && strings.HasPrefix(z.path, path+"/") }) {
				delete(w.absent, name.(string))
			} else if w.absent[name.(string)]++; w.absent[name.(string)] == 3 {
				w.fail("%s: whoever waits has a place: %s waits since %v, and its session has no znode there", path, name, w.at(c.since))
			}
			return true
		})
	}
}

// The method `occupied` reports whether an actor of the process has a hold at path. A hold that is
// lost but has not ended counts, too.
func (w *world) occupied(l *life, path string) bool {
	for _, r := range w.resources() {
		r.mu.Lock()
		in := r.name == path && slices.ContainsFunc(r.holds, func(h *hold) bool { return h.a.life == l && !h.over })
		r.mu.Unlock()
		if in {
			return true
		}
	}
	return false
}

// harmOne causes one fault and ends it after its time.
func (w *world) harmOne(f fault) {
	d := rand.New(rand.NewPCG(f.draw, 0))
	if w.day {
		w.mu.Lock()
		w.shaken++
		w.shakenAt = time.Now()
		w.mu.Unlock()
		defer w.serve(f)
		w.rouse(d)
	}
	if holders := w.holders(); len(holders) > 0 && d.IntN(2) == 0 {
		f.process = holders[d.IntN(len(holders))]
	}
	l, e := w.present(f.process), w.e.Load()
	if w.day {
		l = w.aim(&f)
	}
	connects := l != nil && l.session() == nil
	// The member `home` serves the process; -1 means none.
	leader := e.Leader()
	home := -1
	if l != nil && !connects {
		home = e.MemberOf(l.s.ID())
	}
	member, other := f.member, f.other
	if member < 0 {
		member = home
	}
	if member < 0 && w.day {
		member = d.IntN(w.members)
	}
	if other < 0 {
		other = leader
	}
	if connects && impossible[pair{f.kind, "connects"}] {
		return
	}
	w.note("FAULT %v; home %d, leader %d", f, home, leader)
	w.hit(f, member, leader)
	defer w.note("over: %v", f)
	sleep := func() { time.Sleep(f.lasts) }
	switch f.kind {
	case "rebirth":
		w.rebirth()
		return
	case "deploy":
		w.deploy(f)
		return
	case "restart":
		w.restart(f)
		return
	case "stranger":
		w.strikeOnce(d)
		return
	case "close":
		if l != nil {
			l.close()
		}
		return
	case "die":
		if l != nil {
			l.crashed.Store(true)
			w.cutShort.Add(1)
			l.die()
			w.net.kill(l.id(), -1)
			for m := range w.members {
				w.net.stall(wayOf{l.id(), m, true})
				w.net.stall(wayOf{l.id(), m, false})
			}
		}
		return
	}
	if l == nil || member < 0 {
		return
	}
	l.under.Add(1)
	defer l.under.Add(-1)
	l.wake()
	way := wayOf{l.id(), member, f.up}
	switch f.kind {
	case "clock":
		l.skew.Store(d.Int64N(int64(2*w.timeout)) - int64(w.timeout))
		defer l.skew.Store(0)
		sleep()
	case "kill":
		if connects {
			member = -1
		}
		w.net.kill(l.id(), member)
	case "stall":
		defer w.net.stall(way)()
		sleep()
	case "silence":
		for m := range w.members {
			defer w.net.stall(wayOf{l.id(), m, true})()
			defer w.net.stall(wayOf{l.id(), m, false})()
		}
		if d.IntN(2) == 0 {
			w.net.kill(l.id(), -1)
		}
		sleep()
	case "move":
		w.away(l, member, f.lasts)
	case "return":
		w.andBack(l, d, f)
	case "limbo":
		for m := range w.members {
			if m != home {
				defer w.net.stall(wayOf{l.id(), m, false})()
			}
		}
		if home >= 0 {
			defer w.net.stall(wayOf{l.id(), home, true})()
			w.net.kill(l.id(), home)
		}
		time.Sleep(f.lasts / 2)
		for m := range w.members {
			defer w.net.stall(wayOf{l.id(), m, true})()
		}
		time.Sleep(2 * f.lasts)
	case "late":
		w.late(l, d)
	case "depose":
		w.depose(l, d, f)
	case "shorten":
		w.shorten(l, d)
	case "cut":
		if other < 0 || other == member {
			return
		}
		if !f.up {
			member, other = other, member
		}
		if d.IntN(2) == 0 {
			e.Cut(member, other)
		} else {
			e.CutLosing(member, other)
		}
		sleep()
		e.Heal(member, other)
	case "isolate":
		if d.IntN(2) == 0 {
			member = max(leader, 0)
		}
		e.Isolate(member)
		sleep()
		for o := range w.members {
			if o != member {
				e.Heal(member, o)
				e.Heal(o, member)
			}
		}
	case "slow":
		if other >= 0 && other != member {
			e.SetDelay(member, other, f.lasts/8)
			sleep()
			e.SetDelay(member, other, w.latency)
		}
	case "backlog":
		e.SetBacklog(f.lasts / 8)
		sleep()
		e.SetBacklog(w.backlog)
	case "lag":
		w.lagging.Add(1)
		e.SetLag(member, min(f.lasts, w.timeout/2))
		time.Sleep(2 * f.lasts)
		e.SetLag(member, 0)
		w.lagging.Add(-1)
	case "crash":
		e.Crash(member)
		sleep()
		e.Restart(member)
	case "freeze":
		if member == leader {
			return
		}
		e.Freeze(member)
		sleep()
		e.Thaw(member)
	}
}

// andBack drives a process from its member to another member and back. Requests that the process
// has sent through its member before the move reach the leader only after the return.
func (w *world) andBack(l *life, d *rand.Rand, f fault) {
	e := w.e.Load()
	trips := func(least, most int) { // sleeps for the duration of several messages, at least `least` and less than `most`
		time.Sleep(time.Duration(least)*w.latency + time.Duration(d.Int64N(int64(most-least)))*w.latency)
	}
	leader, home := e.Leader(), e.MemberOf(l.s.ID())
	if home == leader && home >= 0 {
		w.away(l, home, 10*w.latency)
		home = e.MemberOf(l.s.ID())
	}
	if home < 0 || leader < 0 || home == leader {
		return
	}
	e.SetBacklog(time.Duration(1+d.IntN(10)) * w.latency)
	defer func() { e.SetBacklog(w.backlog) }()
	e.CutLosing(home, leader)
	defer e.Heal(home, leader)
	l.wake()
	trips(1, 20)
	most := time.Duration(w.syncLimit) * w.tick * 3 / 4 // after more ticks, the leader abandons the member
	w.away(l, home, min(20*w.latency+f.lasts/2, most))
	for m := range w.members {
		if m != home {
			defer w.net.stall(wayOf{l.id(), m, true})()
			w.net.kill(l.id(), m)
		}
	}
	trips(4, 30)
	e.Heal(home, leader)
	trips(10, 30)
}

// The method `late` makes a process connect again, and delays the replies of the members. Soon
// after the replies, all messages stall. In half of the cases, the reply to the handshake arrives
// without delay. In these cases, only the replies to the next requests are late, and no later
// request reaches a member.
func (w *world) late(l *life, d *rand.Rand) {
	stall := func(up bool) (resume func()) {
		var all []func()
		for m := range w.members {
			all = append(all, w.net.stall(wayOf{l.id(), m, up}))
		}
		return func() {
			for _, f := range all {
				f()
			}
		}
	}
	l.wake()
	if d.IntN(2) == 0 {
		e := w.e.Load()
		w.net.kill(l.id(), -1)
		for gone, n := false, 0; n < 1000 && (!gone || e.MemberOf(l.s.ID()) < 0); n++ {
			gone = gone || e.MemberOf(l.s.ID()) < 0
			time.Sleep(w.latency / 2)
		}
		time.Sleep(7 * w.latency / 2) // the reply to the handshake arrives
		resume := stall(false)
		time.Sleep(4 * w.latency) // the requests arrive
		defer stall(true)()
		time.Sleep(w.timeout/10 + time.Duration(d.Int64N(int64(w.timeout/10))))
		resume()
		time.Sleep(10 * w.latency)
		defer stall(false)()
		time.Sleep(2 * w.timeout)
		return
	}
	resume := stall(false)
	w.net.kill(l.id(), -1)
	time.Sleep(w.timeout/16 + time.Duration(d.Int64N(int64(w.timeout/3))))
	resume()
	time.Sleep(time.Duration(10+d.IntN(60)) * w.latency)
	l.wake()
	defer stall(true)()
	defer stall(false)()
	time.Sleep(2 * w.timeout)
}

// The method `shorten` makes a process continue its session at the member that grants the shortest
// timeout. The reply never reaches the process.
func (w *world) shorten(l *life, d *rand.Rand) {
	least := w.least()
	if w.e.Load().MemberOf(l.s.ID()) == least {
		w.away(l, least, w.timeout/8)
	}
	time.Sleep(time.Duration(d.Int64N(int64(w.timeout / 4))))
	l.wake()
	for m := range w.members {
		if m != least {
			defer w.net.stall(wayOf{l.id(), m, true})()
		}
		defer w.net.stall(wayOf{l.id(), m, false})()
	}
	w.net.kill(l.id(), -1)
	time.Sleep(w.timeout / 4)
	defer w.net.stall(wayOf{l.id(), least, true})()
	time.Sleep(2 * w.timeout)
}

// The method `depose` makes a majority elect a new leader while the old leader continues with one
// loyal member. The process moves from `via`, a member of the majority, to the loyal member. Before
// the election, the member `via` has sent messages to the old leader, such as acknowledgments of
// proposals. The old leader receives them only after the move.
func (w *world) depose(l *life, d *rand.Rand, f fault) {
	e := w.e.Load()
	old := e.Leader()
	if old < 0 || w.members < 5 {
		return
	}
	some := func(n time.Duration) { time.Sleep(time.Duration(d.Int64N(int64(n)))) }
	var others []int
	for _, m := range d.Perm(w.members) {
		if m != old {
			others = append(others, m)
		}
	}
	loyal, via, rest := others[0], others[1], others[1:]
	for _, m := range rest {
		e.CutLosing(m, old)
		if m != via {
			e.Cut(old, m)
		}
	}
	only := func(member int, d time.Duration) {
		for m := range w.members {
			if m != member {
				defer w.net.stall(wayOf{l.id(), m, true})()
				w.net.kill(l.id(), m)
			}
		}
		time.Sleep(d)
	}
	only(via, 10*w.latency+time.Duration(d.Int64N(int64(w.timeout/8))))
	for _, m := range rest {
		e.Crash(m)
		e.Restart(m)
		e.Cut(old, m)
		e.Cut(loyal, m)
		e.Cut(m, loyal)
	}
	for m := range w.members {
		defer w.net.stall(wayOf{l.id(), m, true})()
	}
	w.net.kill(l.id(), -1)
	some(w.timeout / 2)
	// The process connects to the loyal member.
	w.net.open(wayOf{l.id(), loyal, true}, func() {
		some(20 * w.latency)
		e.Heal(via, old)
		some(20 * w.latency)
	})
	w.net.kill(l.id(), -1)
	time.Sleep(2 * w.timeout)
	e.HealAll()
}

// The method `wake` makes the actors of a process take their next steps now.
func (l *life) wake() {
	for range l.w.actors {
		select {
		case l.alarm <- struct{}{}:
		default:
		}
	}
}

// The method `away` resets the connection between a process and a member, and stalls their messages
// for d.
func (w *world) away(l *life, member int, d time.Duration) {
	for _, up := range []bool{true, false} {
		defer w.net.stall(wayOf{l.id(), member, up})()
	}
	w.net.kill(l.id(), member)
	time.Sleep(d)
}
