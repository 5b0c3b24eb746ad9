package zktest

import (
	"slices"
	"sort"
	"time"
)

// This file has the network between the members of an ensemble, and the agenda of its timed events.
// member.go and quorum.go have the messages.

// The type `event` is a timed event of an ensemble. The agenda has the events in the order of their
// times. Events at the same time run in the order in which they were scheduled.
type event struct {
	at time.Time
	do func()
}

// The method `at` schedules a call of `do` at the time t. Ensemble.mu is held while `do` runs.
func (e *Ensemble) at(t time.Time, do func()) {
	i := sort.Search(len(e.agenda), func(i int) bool { return e.agenda[i].at.After(t) })
	e.agenda = slices.Insert(e.agenda, i, event{t, do})
	if e.armed.IsZero() || t.Before(e.armed) {
		e.arm(t)
	}
}

// The method `arm` makes `run` look at the agenda at the time t. Ensemble.mu is held.
func (e *Ensemble) arm(t time.Time) {
	e.armed = t
	e.timer.Reset(time.Until(t))
}

// The method `run` runs the events of the agenda, each at its time. It is the only goroutine of an
// ensemble besides the goroutines of the clients' connections.
func (e *Ensemble) run() {
	defer e.timer.Stop()
	for {
		select {
		case <-e.timer.C:
		case <-e.quit:
			return
		}
		e.mu.Lock()
		for !e.closed && len(e.agenda) > 0 && !e.agenda[0].at.After(time.Now()) {
			shift(&e.agenda).do()
		}
		e.armed = time.Time{}
		if len(e.agenda) > 0 {
			e.arm(e.agenda[0].at)
		}
		e.mu.Unlock()
	}
}

// The type `way` carries messages from one member to another. Ensemble.mu guards it.
type way struct {
	e       *Ensemble
	to      *member
	delay   time.Duration
	cut     bool
	parcels []parcel  // the messages that have not arrived, in order
	last    time.Time // the arrival of the last parcel
}

// The type `parcel` is one message on a way.
type parcel struct {
	at   time.Time
	held bool // a cut stops it
	open func()
}

// The method `send` schedules a call of `open` by the receiving member, after the delay and after
// all earlier parcels.
func (w *way) send(open func()) {
	w.parcels = append(w.parcels, parcel{held: w.cut, open: open})
	if !w.cut {
		w.schedule(&w.parcels[len(w.parcels)-1])
	}
}

func (w *way) schedule(p *parcel) {
	p.at = time.Now().Add(w.delay)
	if p.at.Before(w.last) {
		p.at = w.last
	}
	w.last = p.at
	w.e.at(p.at, w.deliver)
}

// The method `deliver` delivers the parcels that are due.
func (w *way) deliver() {
	for len(w.parcels) > 0 && !w.parcels[0].held && !w.parcels[0].at.After(time.Now()) {
		w.to.receive(shift(&w.parcels).open)
	}
}

// The function `shift` removes the first element of a queue, and returns it. If the queue is empty
// after that, it uses the same memory again.
func shift[T any](queue *[]T) T {
	q := *queue
	first := q[0]
	clear(q[:1])
	if *queue = q[1:]; len(q) == 1 {
		*queue = q[:0]
	}
	return first
}

// The method `shut` cuts the way. If `lose` is true, the cut also stops the parcels that are
// already on the way.
func (w *way) shut(lose bool) {
	w.cut = true
	for i := range w.parcels {
		w.parcels[i].held = w.parcels[i].held || lose
	}
}

// The method `open` ends a cut. The parcels that the cut has stopped arrive after the delay.
func (w *way) open() {
	w.cut = false
	for i := range w.parcels {
		if p := &w.parcels[i]; p.held {
			p.held = false
			w.schedule(p)
		}
	}
}

// The type `tie` is the connection of a follower to its leader. Each member closes its own end of
// the tie: by itself, or when it learns that the other end is closed.
type tie struct {
	ld     *leadership
	f      *member
	since  time.Time
	leader tieEnd
	follow tieEnd
}

type tieEnd struct {
	open  bool
	heard time.Time // the time of the last message that arrived at this end
}

// toLeader sends `do` to the leader.
func (t *tie) toLeader(do func()) {
	t.f.wayTo(t.ld.m).send(func() {
		if !t.leader.open {
			t.farewell(t.ld.m, t.f) // like a TCP reset, the answer to a packet for a closed connection
			return
		}
		t.leader.heard = time.Now()
		t.deadline()
		do()
	})
}

// toFollower sends `do` to the follower.
func (t *tie) toFollower(do func()) {
	t.ld.m.wayTo(t.f).send(func() {
		if !t.follow.open {
			t.farewell(t.f, t.ld.m)
			return
		}
		t.follow.heard = time.Now()
		do()
	})
}

// The method `farewell` informs the member `to` that the member `from` has closed its end of t.
func (t *tie) farewell(from, to *member) {
	from.wayTo(to).send(func() {
		switch {
		case to == t.f && t.follow.open:
			t.follow.open = false
			to.orphaned()
		case to == t.ld.m && t.leader.open:
			t.ld.lose(t)
		}
	})
}
