package session

import (
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// A liveness works out for how long a session can be believed in. It knows
// only what its client sends and receives, and when.
//
// What the client must know is when the leader of the servers last heard of the
// session, because the leader alone ends sessions. A server that is not the
// leader, a learner, answers pings and reads by itself; it tells the leader
// which sessions it has heard of only when the leader asks, every half tick. So
// an answer says little by itself, but the order of packets on a connection does:
//
//  1. A packet was sent at t and answered at q: the learner had heard of the
//     session before q.
//  2. A write that was sent half a tick after q, or later, is answered. The
//     leader had a quorum, so it was leader when the write was sent. It had
//     asked the learner between q and the write; the question came to the
//     learner ahead of the write's result, and the learner has answered it: t
//     is carried.
//  3. A request that needs the leader, and was sent after that, is answered. It
//     went from the learner to the leader behind that answer. So the leader has
//     touched the session, later than t: t is confirmed.
//
// A session that is confirmed at t does not end before t and its timeout have
// passed, whatever happens to connections, servers and leaders. The argument,
// with what it rests on, is in docs/design.md.
//
// Not all requests are fit for step 3. While the session is known to stand a
// sync is. Otherwise the leader may have begun to end it, when touching comes
// too late; it refuses a write then, but not a sync.
//
// A liveness is not safe for concurrent use.
type liveness struct {
	timeout time.Duration // of the session
	events  int64         // sendings and answers so far: their order, where two have the same time
	conn    int64         // the event that was the beginning of the present connection
	Sure    *Moment       // the latest t that is confirmed; nil if there is none

	// Since when the leader may count another timeout, which is less, as a handshake was sent
	// that has no answer; nil if it does not.
	tried *Moment
	least time.Duration
	lower time.Duration // of the session as soon as asked is confirmed; 0 if it stays

	// Of the present connection, each oldest first:
	asked   *stamp    // when the handshake was sent that continued the session, if that is not confirmed
	pending bool      // the write that confirms it went with the handshake
	seen    []contact // answered, not carried
	carried []carried // not confirmed
}

// A stamp is the sending of a packet.
type stamp struct {
	at    time.Time
	event int64
	conn  int64
}

// A contact is a packet that was answered.
type contact struct{ sent, answered time.Time }

// A carried is the sending of a packet of which the learner has told the leader,
// or is about to.
type carried struct {
	sent  time.Time
	event int64 // when that became known
}

// A proof is what the answer to a request says.
type proof int

const (
	provesNothing proof = iota // a refusal by who knows whom
	provesServer               // the server that we are connected to has heard of the session
	provesLeader               // it has come to what its server took for the leader
	provesQuorum               // a leader has got the servers to agree on it
)

// gap is how much later than an answer a write must be sent to be sure that the
// leader has asked the learner in between. It does so every half tick, and a
// session lasts at least two ticks: so that is a quarter of the timeout, and
// some for a leader that is a little late.
func (v *liveness) gap() time.Duration { return v.timeout / 40 * 11 }

// A connection is given up after this part of the timeout without a reply, so
// that time is left to try another server.
const silent = 1.0 / 2

// belief is how long after the latest confirmed sending what is held is believed
// to be held. A tenth of the timeout is left to be told of the loss, and for
// clocks whose rates differ.
func (v *liveness) belief() time.Duration { return v.timeout / 10 * 9 }

// left is how much longer the session is certain to live; it may be negative.
func (v *liveness) left(now time.Time) time.Duration {
	if v.Sure == nil {
		return 0
	}
	left := v.belief() - v.Sure.since(now)
	if v.tried != nil {
		left = min(left, v.least/10*9-v.tried.since(now))
	}
	return left
}

// try is told that a handshake which continues the session is about to be sent, to a server
// that may grant as little as least. Of several without an answer the one counts by which the
// session would end first.
func (v *liveness) try(now time.Time, least time.Duration) {
	if least >= v.timeout || v.tried != nil && v.least-v.tried.since(now) <= least {
		return
	}
	m := momentOf(now)
	v.tried, v.least = &m, least
}

// connect is told of a handshake that was sent at asked and has just been
// answered. A new session is itself an agreement of the servers, that they
// made after asked. What continues a session has come to a leader, which
// has touched it, but was perhaps not the leader any more.
func (v *liveness) connect(asked time.Time, isNew bool, timeout time.Duration) {
	if v.tried != nil && v.tried.Mono.Equal(asked) {
		v.tried = nil // this is the answer, and timeout is what it grants
	}
	switch {
	case isNew:
		v.timeout = timeout
		v.confirm(asked)
	case timeout < v.timeout:
		// If a leader has touched the session, it counts less from then on. If that was not the
		// leader any more, what was confirmed before holds as it was.
		v.try(asked, timeout)
		v.lower = timeout
	}
	v.events++
	v.conn = v.events
	v.asked, v.pending, v.seen, v.carried = nil, false, nil, nil
	if !isNew {
		v.asked = &stamp{asked, v.events, v.conn}
	}
}

// send is told that a request is about to be sent.
func (v *liveness) send(now time.Time) stamp {
	v.events++
	return stamp{now, v.events, v.conn}
}

// answer is told that the request s was answered, and what that proves.
func (v *liveness) answer(s stamp, p proof, now time.Time) {
	if s.conn != v.conn || p == provesNothing {
		return
	}
	v.events++
	if p == provesQuorum && v.asked != nil {
		v.confirm(v.asked.at)
		// The leader has got this handshake, and counts what its server grants. An earlier one
		// without an answer was before it, or is lost, but for what design.md says is not covered.
		v.asked, v.tried = nil, nil
		if v.lower > 0 {
			v.timeout, v.lower = v.lower, 0
		}
	}
	if p == provesQuorum || p == provesLeader && v.left(now) > 0 { // step 3
		for i := len(v.carried) - 1; i >= 0; i-- {
			if v.carried[i].event < s.event {
				v.confirm(v.carried[i].sent)
				v.carried = v.carried[i+1:]
				break
			}
		}
	}
	if p == provesQuorum { // step 2
		if i := v.ripe(s.at); i >= 0 {
			v.carried = append(v.carried, carried{v.seen[i].sent, v.events})
			v.seen = v.seen[i+1:]
		}
	}
	// Step 1. A few of them, some time apart, are enough.
	if n := len(v.seen); n == 0 || s.at.Sub(v.seen[n-1].sent) >= v.gap()/8 {
		// Those before the latest that the earliest write under way would carry are of no use any more. A
		// connection is given up when an answer takes longer than that.
		if i := v.ripe(now.Add(-time.Duration(silent * float64(v.timeout)))); i > 0 {
			v.seen = v.seen[i:]
		}
		v.seen = append(v.seen, contact{s.at, now})
	}
}

// ripe returns the latest of seen that a write sent at this time would carry, or
// -1. The monotonic clock decides: where it differs from the truth because the
// machine slept, it says too little.
func (v *liveness) ripe(at time.Time) int {
	i := len(v.seen) - 1
	for i >= 0 && at.Sub(v.seen[i].answered) < v.gap() {
		i--
	}
	return i
}

func (v *liveness) confirm(t time.Time) {
	if v.Sure == nil || t.After(v.Sure.Mono) {
		m := momentOf(t)
		v.Sure = &m
	}
}

// next returns what must be sent to have something later confirmed, and how
// long that has time. With urgent it has none, but for what is not ripe.
func (v *liveness) next(now time.Time, urgent bool) (p proof, wait time.Duration) {
	if v.Sure != nil && !urgent {
		wait = 2*v.gap() - v.Sure.since(now)
	}
	switch {
	case v.asked != nil && v.pending && !urgent:
		// Another write is due if that is slow.
		return provesQuorum, v.timeout/20 - now.Sub(v.asked.at)
	case v.asked != nil:
		return provesQuorum, 0
	case len(v.carried) > 0 && v.left(now) > 0:
		return provesLeader, wait
	case len(v.carried) == 0 && len(v.seen) > 0:
		return provesQuorum, max(wait, v.gap()-now.Sub(v.seen[0].answered))
	}
	return provesQuorum, wait
}

// proofOf says what an answer with this code proves, if the request had this
// operation. A transaction is given a code too. A refusal that a server may have
// given by itself, such as for want of permission, proves nothing; where the
// leader has made it, it is agreed on as any write is.
func proofOf(op, code int32) proof {
	switch op {
	case wire.OpCreate, wire.OpCreateContainer, wire.OpDelete, wire.OpSetData, wire.OpMulti:
		switch code {
		case 0, wire.CodeNoNode, wire.CodeBadVersion, wire.CodeNoChildren, wire.CodeNodeExists, wire.CodeNotEmpty:
			return provesQuorum
		}
	case wire.OpSync:
		if code == 0 {
			return provesLeader
		}
	default:
		if code == 0 || code == wire.CodeNoNode {
			return provesServer
		}
	}
	return provesNothing
}

// A Moment is a time by two clocks. The monotonic clock is never set, but it
// stands still while the machine sleeps or is moved, which the servers do not.
// The wall clock goes on, or is set when the machine is back, but it may be set
// at any other time too. What is later by either is late: to give up a session
// for nothing does less harm than to believe in one that has ended.
type Moment struct{ Mono, Wall time.Time }

func momentOf(t time.Time) Moment { return Moment{Mono: t, Wall: t.Round(0)} }

// since returns how long ago m was, by the clock that says more.
func (m *Moment) since(now time.Time) time.Duration {
	return max(now.Sub(m.Mono), now.Round(0).Sub(m.Wall))
}
