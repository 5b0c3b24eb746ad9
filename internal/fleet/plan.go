package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// This file draws a program from a seed: its ensemble, its processes, its primitives, and the kinds
// and times of its faults. The arenas draw the choices of the actors, and faults.go causes the
// faults.

// The type `plan` describes a program, and follows from a seed. The plan decides everything except
// the choices of the actors.
type plan struct {
	members    int
	timeout    time.Duration // the session timeout that the processes ask for
	tick       time.Duration
	syncLimit  int
	election   time.Duration
	backlog    time.Duration // the time for which a request waits at the leader
	latency    time.Duration // the scale of message durations between a process and a member
	uneven     bool          // one member grants shorter session timeouts than the others
	arenas     []string      // names of the primitives in the program
	processes  int
	lives      int           // the maximum number of lives of a process
	actors     int           // the number of actors in each life
	steps      int           // the number of steps of each actor
	patient    bool          // some actors hold for longer than the session timeout
	harm       time.Duration // the duration of the faults, from the start of the program
	faults     []fault
	staleReads bool // a member may be cut off and answer reads with old state
	alone      bool // there is one process, and the only fault is the loss of all data
	losesData  bool // the ensemble loses all data once
	strikes    bool // strangers delete znodes
	quiet      bool // the only faults are the ends of processes and connections, and strangers
	glitches   int  // on average, one of so many calls has a glitch
	apart      bool // each actor has its own value of the Mutex
	squats     bool // a Mutex and a Group use the path at which a Value, an Int64 or the key of a Map is stored
	day        bool // the program is a day of a fleet
	wraps      bool // strangers bring the numbers of contenders near the maximum
	reads      bool // holders read often
}

// The type `fault` is a disturbance of the program, at one moment or for a while.
type fault struct {
	at, lasts time.Duration
	kind      string
	process   int
	member    int // -1 means the member to which the process is connected
	other     int // another member; -1 means the leader
	up        bool
	draw      uint64 // the seed for the other choices of the fault
}

func (f fault) String() string {
	return fmt.Sprintf("%s of process %d, member %d, other %d, up %v, for %v", f.kind, f.process, f.member, f.other, f.up, f.lasts)
}

type weighted struct {
	kind   string
	weight int
}

// This list has the faults, each with its weight in the draw. If the members are uneven, the fault
// "shorten" is added: a process continues its session at the member that grants the shortest
// timeout, but never receives the reply.
var faultKinds = []weighted{
	{"kill", 10},   // the connection of a process is reset
	{"stall", 14},  // one direction between a process and a member stalls
	{"silence", 8}, // all messages between a process and the members stall
	{"move", 12},   // a process is cut off from its member, so that it moves to another member
	{"return", 12}, // a process moves to another member and back, while its requests are late between its member and the leader
	{"limbo", 6},   // a process reaches other members but not their replies, and later it reaches no member
	{"late", 8},    // a process reaches other members whose replies are late, and later it reaches no member
	{"depose", 4},  // a process moves from a new leader's majority to the old leader, whose old messages arrive late
	{"cut", 12},    // the messages from one member to another stall
	{"isolate", 6}, // all messages between a member and the others stall
	{"slow", 6},    // the messages from one member to another are slow
	{"lag", 8},     // a member applies late
	{"crash", 6},   // a member is killed and comes back
	{"backlog", 5}, // the leader is late to look at requests
	{"freeze", 3},  // a follower does nothing for a while
	{"close", 10},  // a process closes its Session
	{"die", 6},     // a process dies without closing its Session
}

// The list `every` has the arenas from which most programs choose. These are in locks.go, state.go
// and jobs.go.
var every = []string{"mutex", "rwmutex", "semaphore", "election", "cond", "once", "value", "int64", "map", "barrier", "queue", "txn", "waitgroup",
	"flight", "schedule", "partition", "lockall", "room", "group"}

// The function `draw` returns the plan of a seed.
func draw(seed uint64) plan {
	d := rand.New(rand.NewPCG(seed, 1))
	one := func(n int) bool { return d.IntN(n) == 0 }
	p := plan{
		members: 3, timeout: 2 * time.Second, tick: 200 * time.Millisecond, syncLimit: 2 + d.IntN(4),
		election:  time.Duration(20+d.IntN(300)) * time.Millisecond,
		latency:   time.Duration(100+d.IntN(2000)) * time.Microsecond,
		processes: 2 + d.IntN(2), lives: 1 + d.IntN(2), actors: 1 + d.IntN(4), steps: 4 + d.IntN(10),
		uneven: one(5), patient: one(2), strikes: one(4), apart: one(3), glitches: 8 << d.IntN(6),
	}
	if p.wraps = p.strikes && one(2); p.strikes {
		p.apart, p.latency = one(2), min(p.latency, 600*time.Microsecond)
		p.arenas = [][]string{{"mutex"}, {"rwmutex"}, {"election"}, {"semaphore"}, {"mutex", "election"}, {"cond", "rwmutex"}}[d.IntN(6)]
	}
	if one(5) {
		p.members = 5
	}
	if one(2) {
		p.backlog = time.Duration(d.Int64N(int64(5 * p.latency)))
	}
	if one(3) {
		p.tick = 400 * time.Millisecond
	}
	some := d.Perm(len(every))[:1+d.IntN(3)]
	for _, i := range some {
		if !p.strikes {
			p.arenas = append(p.arenas, every[i])
		}
	}
	if one(6) {
		p.arenas, p.steps = every, p.steps+4
	}
	p.harm = time.Duration(1+d.IntN(5)) * p.timeout
	if p.squats = !p.strikes && one(12); p.squats {
		p.arenas = [][]string{{"map", "squatter"}, {"value", "squatter"}, {"int64", "squatter"}}[d.IntN(3)]
	}
	p.losesData = !p.squats && !p.strikes && one(12)
	if p.losesData {
		p.arenas = [][]string{{"value"}, {"map"}, {"value", "map"}}[d.IntN(3)]
		p.processes, p.lives, p.actors = 1+d.IntN(2), 1, 1+d.IntN(2)
		if p.alone = d.IntN(4) > 0; p.alone { // so the zxids after the loss repeat the zxids before it
			p.arenas, p.processes, p.actors, p.steps = p.arenas[:1], 1, 1, 20
		}
	}
	if p.uneven && !p.strikes && !p.losesData && !p.squats && one(2) {
		p.arenas, p.patient = [][]string{{"mutex"}, {"rwmutex"}, {"election"}, {"semaphore"}}[d.IntN(4)], true
	}
	p.quiet = one(4) || p.losesData && one(2)
	for range 2 + d.IntN(12) {
		f := p.fault(d, faultKinds)
		if p.quiet {
			f.kind = []string{"kill", "close", "close", "die"}[d.IntN(4)]
			if p.losesData {
				f.kind = "kill"
			}
		}
		if p.uneven && !p.quiet && d.IntN(3) == 0 {
			f.kind = "shorten"
		}
		switch f.kind {
		case "cut", "isolate", "freeze", "return", "slow", "depose":
			p.staleReads = true
		}
		if f.kind == "depose" {
			p.members = 5 // the old leader, its loyal member, and a majority of three
		}
		p.faults = append(p.faults, f)
	}
	if p.alone {
		p.faults = nil
	}
	p.more(seed)
	if p.losesData {
		p.faults = append(p.faults, fault{kind: "rebirth", at: time.Duration(d.Int64N(int64(p.harm)))})
	}
	return p
}

// The method `more` changes some plans. It draws from a separate source, so that the other plans
// stay the same.
func (p *plan) more(seed uint64) {
	d := rand.New(rand.NewPCG(seed, 8))
	if p.strikes && d.IntN(4) == 0 {
		p.arenas, p.wraps = []string{"queue"}, false
	}
	if p.reads = d.IntN(4) == 0; p.reads && !p.quiet && !p.strikes && !p.losesData && d.IntN(2) == 0 {
		// The member that serves a process loses its leader, and still serves for a session
		// timeout.
		p.tick, p.syncLimit, p.staleReads = p.timeout/5, 5, true
		p.faults = append(p.faults, fault{kind: "cut", member: -1, other: -1, up: d.IntN(2) == 0, process: d.IntN(p.processes),
			at: time.Duration(d.Int64N(int64(p.harm))), lasts: 3 * p.timeout / 2, draw: d.Uint64()})
	}
	if d := rand.New(rand.NewPCG(seed, 11)); !p.strikes && !p.squats && !p.losesData && !p.uneven && d.IntN(6) == 0 {
		if p.arenas = []string{"orders"}; d.IntN(4) == 0 {
			p.arenas = append(p.arenas, "queue")
		}
	}
}

// The method `fault` draws a fault of some kind.
func (p plan) fault(d *rand.Rand, kinds []weighted) fault {
	f := fault{
		at: time.Duration(d.Int64N(int64(p.harm))), lasts: p.long(d), process: d.IntN(p.processes),
		member: d.IntN(p.members+2) - 2, other: d.IntN(p.members+2) - 2, up: d.IntN(2) == 0, draw: d.Uint64(),
	}
	f.member, f.other = max(f.member, -1), max(f.other, -1)
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	k := d.IntN(total)
	for _, c := range kinds {
		if k -= c.weight; k < 0 {
			f.kind = c.kind
			break
		}
	}
	return f
}

// The method `long` draws the duration of a fault: up to two timeouts, but often only a small part
// of that.
func (p plan) long(d *rand.Rand) time.Duration {
	most := 2 * p.timeout
	for range d.IntN(6) {
		most /= 2
	}
	return time.Duration(d.Int64N(int64(most))) + time.Duration(d.Int64N(1e6))
}
