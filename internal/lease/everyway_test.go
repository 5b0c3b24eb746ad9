package lease

// This file runs a Lease, the real code, in every way that a model of one session allows.
//
// The client is connected to one server, a learner, and the learner to a leader. The client sends
// pings, syncs and writes when it likes, is silent (paused), or moves to another server. The
// learner answers pings by itself, also if it is cut off. A second client has the lock as soon as
// the session has ended.
//
// Time has a unit of half a tick, and all that happens in one unit may come in any order. The model
// has these assumptions of docs/guarantees.md:
//
//   - clocks: All clocks run at one rate. The last tenth of the timeout stays for their difference.
//   - ticks: The session timeout is two ticks, the least that is permitted.
//   - leader: The leader asks each learner every half tick, in time.
//   - expiry: Only an answer and a handshake renew the session. An answer names it if the learner
//     has heard from it since the last answer. At any time after a leader has lost its quorum,
//     another takes over, and gives the session a new timeout. A leader that has ended the session
//     refuses writes and handshakes, and answers syncs.
//   - zookeeper: Messages of one connection come in order, after any time, or not at all. A
//     connection has one learner, and that learner has one leader. A leader without a quorum may
//     continue, and answer syncs, but it commits no write.
//   - moves: The previous server sends nothing more about the session, except its handshake, which
//     reaches the leader before the next one, or never. If all grant the same timeout, a late
//     message only makes the session longer.
//   - observers: The learner is connected to the leader itself.
//   - sessions: The leader knows the session from its beginning.
//   - data: No leader forgets the session.
//   - same-timeouts: All servers grant the same timeout. Plans with an uneven one do without this.

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/explore"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/wire"
)

const (
	unit = 40 * time.Nanosecond // the Lease computes in fortieths
	full = 4                    // the session timeout, in units; half a tick is one unit
)

// A plan bounds what happens in a run.
type plan struct {
	units   int  // time
	packets int  // of the client
	moves   int  // to another server
	leaders int  // changes of the leader
	uneven  int  // the timeout that other servers grant, in units, if it is shorter
	silence int  // units before the run in which the session was not used
	slow    bool // messages between client and server take time, too
}

// A message is on its way between client and learner, or learner and leader.
type message struct {
	kind  kind
	stamp Stamp
	named bool // an answer to the leader names the session
}

type kind int

const (
	ping kind = iota
	sync
	write
	handshake
	question // of the leader: which sessions have been used?
	report   // the answer of the learner
)

// A leader has a time at which it ends the session.
type leader struct {
	end     int
	closing bool
}

// ensemble is the model.
type ensemble struct {
	*explore.Run
	plan
	v      Lease
	now    int
	old    *leader
	young  *leader // nil until it takes over
	quorum bool    // old has it
	ended  bool    // the session

	// The present connection:
	open              bool // the handshake was answered
	asked             int  // the handshake was sent
	grants            int  // the timeout of this server, in units
	at                *leader
	in, out, up, down []message // client to learner, and back; learner to leader, and back
	used              bool      // the learner knows of the session since the last question
	due               bool      // the leader asks in this unit
	straggler         int       // a handshake without a reply: the timeout of its server, or 0
}

func instant(n int) time.Time { return time.Unix(1000, 0).Add(time.Duration(n) * unit) }

func (p plan) everyWay(r *explore.Run) {
	w := &ensemble{Run: r, plan: p, v: New(full * unit), quorum: true, old: &leader{end: full}, open: true, grants: full}
	w.at = w.old
	w.v.Connected(instant(0), true, full*unit)
	w.now = p.silence
	w.due = true
	for end := w.now + p.units; w.now < end; {
		if w.settled() {
			return
		}
		r.At(w.state)
		w.step()
		w.check()
	}
}

// settled reports whether the client learns no more. Then what it believes and what the leader has
// left become less at the same rate.
func (w *ensemble) settled() bool {
	for _, ms := range [][]message{w.in, w.out, w.up, w.down} {
		for _, m := range ms {
			if m.kind <= handshake {
				return false
			}
		}
	}
	return w.packets == 0 && w.moves == 0 && w.straggler == 0
}

// step takes one of all steps that are possible.
func (w *ensemble) step() {
	var possible [len(steps)]int
	n := 0
	for i := range steps {
		if steps[i].possible(w) {
			possible[n] = i
			n++
		}
	}
	steps[possible[w.Pick(n)]].take(w)
}

// steps has all steps. A list that each call of step makes anew would cost half of the time.
var steps = [...]struct {
	possible func(w *ensemble) bool
	take     func(w *ensemble)
}{
	{func(w *ensemble) bool { return !w.due }, (*ensemble).tick},
	{func(w *ensemble) bool { return w.due }, func(w *ensemble) {
		w.due = false
		if n := len(w.down); n == 0 || w.down[n-1].kind != question { // else it is as if both arrived together
			w.down = append(w.down, message{kind: question})
		}
	}},
	{func(w *ensemble) bool { return len(w.in) > 0 }, func(w *ensemble) { w.learner(next(&w.in)) }},
	{func(w *ensemble) bool { return len(w.up) > 0 }, func(w *ensemble) { w.leader(next(&w.up)) }},
	{func(w *ensemble) bool { return len(w.down) > 0 }, func(w *ensemble) { w.fromLeader(next(&w.down)) }},
	{func(w *ensemble) bool { return len(w.out) > 0 }, func(w *ensemble) { w.client(next(&w.out)) }},
	{(*ensemble).sends, func(w *ensemble) { w.send(ping) }},
	{(*ensemble).sends, func(w *ensemble) { w.send(sync) }},
	{(*ensemble).sends, func(w *ensemble) { w.send(write) }},
	{func(w *ensemble) bool { return w.moves > 0 }, (*ensemble).move},
	{func(w *ensemble) bool { return w.straggler > 0 }, func(w *ensemble) {
		w.Note("%d: a handshake reaches the leader late", w.now)
		w.touch(w.authority(), w.straggler)
		w.straggler = 0
	}},
	{func(w *ensemble) bool { return w.quorum && w.leaders > 0 }, func(w *ensemble) {
		w.Note("%d: the leader loses its quorum", w.now)
		w.quorum = false
	}},
	{func(w *ensemble) bool { return !w.quorum && w.young == nil }, func(w *ensemble) {
		w.Note("%d: another leader", w.now)
		w.leaders--
		w.young = &leader{end: w.now + full, closing: w.ended}
	}},
}

// sends reports whether the client can send a packet.
func (w *ensemble) sends() bool { return w.open && w.packets > 0 }

func (w *ensemble) send(k kind) {
	w.packets--
	w.Note("%d: the client sends %v", w.now, k)
	w.toServer(message{kind: k, stamp: w.v.Sending(instant(w.now))})
}

func next(ms *[]message) message {
	m := (*ms)[0]
	*ms = (*ms)[1:]
	return m
}

func (w *ensemble) tick() {
	w.now++
	w.due = true
	for _, l := range []*leader{w.old, w.young} {
		if l != nil && !l.closing && l.end <= w.now {
			l.closing = true
			w.ended = w.ended || l == w.authority()
			w.Note("%d: a leader ends the session", w.now)
		}
	}
}

// authority is the leader that can end the session, or nil while there is none.
func (w *ensemble) authority() *leader {
	if w.quorum {
		return w.old
	}
	return w.young
}

func (w *ensemble) touch(l *leader, timeout int) {
	if l != nil && !l.closing {
		l.end = w.now + timeout
	}
}

// toServer and toClient let a message arrive at once, unless the connection is slow.
func (w *ensemble) toServer(m message) {
	if !w.slow {
		w.learner(m)
		return
	}
	w.in = append(w.in, m)
}

func (w *ensemble) toClient(m message) {
	if !w.slow {
		w.client(m)
		return
	}
	w.out = append(w.out, m)
}

func (w *ensemble) learner(m message) {
	w.used = true
	if m.kind == ping {
		w.toClient(m)
		return
	}
	w.up = append(w.up, m)
}

func (w *ensemble) leader(m message) {
	l := w.at
	switch m.kind {
	case report:
		if m.named {
			w.touch(l, w.grants)
		}
		return
	case handshake:
		if l.closing {
			return
		}
		w.straggler = 0
		w.touch(l, w.grants)
	case write:
		if l.closing {
			return
		}
		if l != w.authority() {
			return
		}
	}
	w.down = append(w.down, m)
}

func (w *ensemble) fromLeader(m message) {
	if m.kind != question {
		w.toClient(m)
		return
	}
	if n := len(w.up); n > 0 && w.up[n-1].kind == report { // as if both arrived together
		w.up[n-1].named = w.used || w.up[n-1].named
	} else {
		w.up = append(w.up, message{kind: report, named: w.used})
	}
	w.used = false
}

func (w *ensemble) client(m message) {
	w.Note("%d: the client receives the answer to %v of event %d", w.now, m.kind, m.stamp.event)
	if m.kind == handshake {
		w.open = true
		w.v.Connected(instant(w.asked), false, time.Duration(w.grants)*unit)
		return
	}
	p := ProofOf(wire.OpPing, 0)
	switch m.kind {
	case sync:
		p = ProofOf(wire.OpSync, 0)
	case write: // as the session deletes a znode that does not exist
		p = ProofOf(wire.OpDelete, wire.CodeNoNode)
	}
	w.v.Answered(m.stamp, p, instant(w.now))
}

// move continues the session at another server.
func (w *ensemble) move() {
	w.moves--
	isHandshake := func(m message) bool { return m.kind == handshake }
	if !w.open && (slices.ContainsFunc(w.in, isHandshake) || slices.ContainsFunc(w.up, isHandshake)) {
		if w.straggler == 0 || w.grants < w.straggler { // of two, the one with the shorter timeout matters
			w.straggler = w.grants
		}
	}
	w.grants = full
	if w.uneven > 0 && w.Pick(2) == 0 {
		w.grants = w.uneven
	}
	w.at = w.old
	if w.young != nil && w.Pick(2) == 0 {
		w.at = w.young
	}
	w.Note("%d: the client asks another server, which grants %d", w.now, w.grants)
	w.v.Trying(instant(w.now), time.Duration(w.grants)*unit)
	w.open, w.asked, w.used = false, w.now, false
	w.out, w.up, w.down = nil, nil, nil
	w.in = nil
	w.toServer(message{kind: handshake})
}

// check finds a session that can end though it is confirmed. Nothing that is on its way need arrive,
// so the session can end when the leader says now.
func (w *ensemble) check() {
	l := w.authority()
	if l == nil {
		return
	}
	least := full
	left := l.end - w.now
	if w.uneven > 0 {
		least = w.uneven
		if w.straggler > 0 && !l.closing {
			left = min(left, w.straggler)
		}
	}
	// A tenth of the timeout is for the report of the loss.
	if sure := w.v.Confirmed(instant(w.now)); sure > time.Duration(left)*unit-time.Duration(least)*unit/10 {
		w.Fail("%d: confirmed for %.1f units, and the session can end in %d", w.now, float64(sure)/float64(unit), left)
	}
}

// state names the state, with times relative to now, and only the order of events.
func (w *ensemble) state() string {
	var events []int64
	add := func(e int64) int64 {
		if !slices.Contains(events, e) {
			events = append(events, e)
		}
		return e
	}
	v := w.v
	for _, ms := range [][]message{w.in, w.out, w.up, w.down} {
		for _, m := range ms {
			add(m.stamp.event)
		}
	}
	for _, c := range v.carried {
		add(c.event)
	}
	add(v.conn)
	slices.Sort(events)
	rank := func(e int64) int { return slices.Index(events, e) }
	ago := func(t time.Time) int { return w.now - int(t.Sub(instant(0))/unit) }
	moment := func(i *Instant) int {
		if i == nil {
			return -1
		}
		return ago(i.Mono)
	}
	b := make([]byte, 0, 256) // fmt would cost most of the time
	num := func(ns ...int) {
		for _, n := range ns {
			b = append(strconv.AppendInt(b, int64(n), 10), ' ')
		}
	}
	yes := func(bs ...bool) {
		for _, is := range bs {
			b = strconv.AppendBool(b, is)
		}
	}
	num(w.now, w.packets, w.moves, w.leaders, w.asked, w.grants, w.straggler, w.old.end)
	yes(w.quorum, w.ended, w.open, w.at == w.old, w.used, w.due, w.old.closing)
	if w.young != nil {
		num(w.young.end)
		yes(w.young.closing)
	}
	for _, ms := range [][]message{w.in, w.out, w.up, w.down} {
		b = append(b, '|')
		for _, m := range ms {
			num(int(m.kind), rank(m.stamp.event))
			yes(m.named)
			if m.kind <= write {
				num(ago(m.stamp.At))
			}
		}
	}
	b = append(b, '|')
	num(moment(v.Sure), moment(v.tried), int(v.least), int(v.granted), int(v.timeout), rank(v.conn))
	yes(v.handshake != nil)
	for _, c := range v.seen {
		b = append(b, 's')
		num(ago(c.sent), ago(c.answered))
	}
	for _, c := range v.carried {
		b = append(b, 'c')
		num(ago(c.sent), rank(c.event))
	}
	return string(b)
}

func TestEveryWayOfASessionEndsLaterThanTheClientBelieves(t *testing.T) {
	plans := []plan{{units: 3, packets: 3, silence: 1}, {units: 3, packets: 2, moves: 1, uneven: 3}}
	if !harness.UnderRace {
		plans = append(plans, plan{units: 3, packets: 2, moves: 1, leaders: 1})
	}
	if harness.Long() {
		plans = append(plans, plan{units: 4, packets: 3, silence: 1}, plan{units: 3, packets: 3, leaders: 1, silence: 1},
			plan{units: 3, packets: 2, moves: 2, uneven: 2}, plan{units: 3, packets: 2, moves: 1, leaders: 1, uneven: 3},
			plan{units: 2, packets: 3, slow: true, silence: 1})
	}
	for _, p := range plans {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			found := explore.All(3_000_000, p.everyWay)
			t.Log(found)
			if found.Fault != "" || found.Cut {
				t.Error(found.Fault)
			}
		})
	}
}
