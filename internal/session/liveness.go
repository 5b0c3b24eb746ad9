package session

import (
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// A liveness computes for how long a session is confirmed, which means that it cannot have ended.
// It knows only the packets that its client sends and receives, and their times. It sends nothing
// itself: see stake.
//
// The question is when the leader of the ensemble last had contact with the session, because only
// the leader expires sessions. A learner is a server that is not the leader. It answers pings and
// reads by itself. It reports the sessions of its clients to the leader only when the leader
// asks, every half tick. So a single reply proves little, but the order of packets on a
// connection proves more:
//
//  1. A packet was sent at t and answered at q. So the learner had contact with the session before q.
//  2. A write that was sent half a tick after q, or later, is answered. The leader had a quorum, so
//     it was the leader when the write was sent. It asked the learner between q and the write. The
//     question reached the learner ahead of the write's result, and the learner has answered it:
//     t is carried.
//  3. A request that needs the leader, and was sent after that, is answered. The learner forwarded
//     it to the leader after that answer. So the leader has renewed the session later than t:
//     t is confirmed.
//
// A session that is confirmed at t does not end before t plus its timeout, whatever happens to
// connections, servers and leaders. docs/design.md has the argument and its assumptions.
//
// Step 3 accepts a sync only while the session is confirmed. Otherwise the leader may have begun
// to end the session, and renewing comes too late. In that state it refuses a write, but not a
// sync.
//
// A liveness is not safe for concurrent use.
type liveness struct {
	timeout time.Duration // of the session
	events  int64         // number of packets sent and answered; orders packets with equal times
	conn    int64         // value of events when the present connection began
	Sure    *Moment       // the latest t that is confirmed; nil if there is none

	// Time of an unanswered handshake for which the leader may now count a shorter timeout,
	// least; nil if there is none.
	tried *Moment
	least time.Duration
	lower time.Duration // timeout of the session once asked is confirmed; 0 if it does not change

	// Of the present connection, each oldest first:
	asked   *stamp    // sending of the handshake that continued the session; nil once confirmed
	pending bool      // the write that confirms it was sent with the handshake
	seen    []contact // answered, not carried
	carried []carried // not confirmed
}

// A stamp says when a packet was sent, by clock and by order.
type stamp struct {
	at    time.Time
	event int64
	conn  int64
}

// A contact is a packet that was answered.
type contact struct{ sent, answered time.Time }

// A carried is a packet, by its sending time, whose contact the learner has put on its way to the
// leader.
type carried struct {
	sent  time.Time
	event int64 // value of events when that became known
}

// A proof is a conclusion from the reply to a request.
type proof int

const (
	provesNothing proof = iota // a refusal that any server may make
	provesServer               // our server has had contact with the session
	provesLeader               // the request has reached a server that our server took for the leader
	provesQuorum               // a leader has committed it with a quorum
)

// gap is the least time between a reply and a later write after which the leader has certainly
// asked the learner between the two. The leader asks every half tick, and a session timeout is at
// least two ticks. So gap is a quarter of the timeout, and a little more for a leader that is
// late.
func (v *liveness) gap() time.Duration { return v.timeout / 40 * 11 }

// silent is the part of the timeout after which a connection without a reply is closed. It leaves
// time to try another server.
const silent = 1.0 / 2

// belief is how long holds count as held after the latest t that is confirmed. It leaves a tenth of
// the timeout to report the loss to holders, and for clocks whose rates differ.
func (v *liveness) belief() time.Duration { return v.timeout / 10 * 9 }

// left returns for how much longer the session is confirmed; it may be negative.
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

// try records that a handshake which continues the session is about to be sent to a server that
// may grant as little as least. Of several unanswered handshakes, the one with the earliest
// possible end of the session counts.
func (v *liveness) try(now time.Time, least time.Duration) {
	if least >= v.timeout || v.tried != nil && v.least-v.tried.since(now) <= least {
		return
	}
	m := momentOf(now)
	v.tried, v.least = &m, least
}

// connect records that the handshake sent at asked has been answered. A quorum has committed a
// new session after asked. A handshake that continues a session has reached a leader, which has
// renewed the session; but another leader may have replaced it by then.
func (v *liveness) connect(asked time.Time, isNew bool, timeout time.Duration) {
	if v.tried != nil && v.tried.Mono.Equal(asked) {
		v.tried = nil // this is the answer, and timeout is what it grants
	}
	switch {
	case isNew:
		v.timeout = timeout
		v.confirm(asked)
	case timeout < v.timeout:
		// If the leader has renewed the session, it counts the shorter timeout from then on. If
		// it was no longer the leader, the earlier confirmation still holds unchanged.
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

// send returns the stamp of a request that is about to be sent.
func (v *liveness) send(now time.Time) stamp {
	v.events++
	return stamp{now, v.events, v.conn}
}

// answer records that the request s was answered, and with which proof. It looks at the steps from the
// last to the first, so that one answer is not two steps of the same packet.
func (v *liveness) answer(s stamp, p proof, now time.Time) {
	if s.conn != v.conn || p == provesNothing {
		return
	}
	v.events++
	if p == provesQuorum && v.asked != nil {
		v.confirm(v.asked.at)
		// The leader has this handshake, and counts the timeout that its server grants. An
		// earlier unanswered handshake reached the leader before, or is lost. design.md names the
		// exception.
		v.asked, v.tried = nil, nil
		if v.lower > 0 {
			v.timeout, v.lower = v.lower, 0
		}
	}
	// Step 3: s is the request behind the write. It confirms the time at which the carried packet was
	// sent. Its own time is later, and the leader may not hear of s itself.
	if p == provesQuorum || p == provesLeader && v.left(now) > 0 {
		for i := len(v.carried) - 1; i >= 0; i-- {
			if v.carried[i].event < s.event {
				v.confirm(v.carried[i].sent)
				v.carried = v.carried[i+1:]
				break
			}
		}
	}
	if p == provesQuorum { // step 2: s is the write, and carries the latest packet that is old enough
		if i := v.ripe(s.at); i >= 0 {
			v.carried = append(v.carried, carried{v.seen[i].sent, v.events})
			v.seen = v.seen[i+1:]
		}
	}
	// Step 1. A few packets, some time apart, are enough.
	if n := len(v.seen); n == 0 || s.at.Sub(v.seen[n-1].sent) >= v.gap()/8 {
		// Only the latest packet that the earliest open write would carry is needed; older ones
		// are dropped. A connection is closed if a reply takes longer than that.
		if i := v.ripe(now.Add(-time.Duration(silent * float64(v.timeout)))); i > 0 {
			v.seen = v.seen[i:]
		}
		v.seen = append(v.seen, contact{s.at, now})
	}
}

// ripe returns the index in seen of the latest packet that a write sent at this time would carry,
// or -1. It uses the monotonic clock, which can only be too slow: it stops while the machine
// sleeps.
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

// next returns which proof must be requested to confirm a later time, and how long that can wait.
// If urgent is set, it waits only for packets that are not ripe yet.
func (v *liveness) next(now time.Time, urgent bool) (p proof, wait time.Duration) {
	if v.Sure != nil && !urgent {
		wait = 2*v.gap() - v.Sure.since(now)
	}
	switch {
	case v.asked != nil && v.pending && !urgent:
		// If that reply is late, another write is due.
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

// proofOf returns the proof in a reply with this code to a request of type op. For a transaction,
// code is its code as a whole. A refusal that a server may make by itself, such as for lack of
// permission, proves nothing. A refusal by the leader is committed like any write.
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

// A Moment is a time by two clocks. The monotonic clock is never set, but it stops while the
// machine sleeps or migrates, and the servers do not stop. The wall clock continues, or is set
// when the machine is back, but it may also be set at any other time. The later of the two
// counts: abandoning a session without need does less harm than trusting a session that has
// ended.
type Moment struct{ Mono, Wall time.Time }

func momentOf(t time.Time) Moment { return Moment{Mono: t, Wall: t.Round(0)} }

// since returns how long ago m was, by the clock that gives the longer time.
func (m *Moment) since(now time.Time) time.Duration {
	return max(now.Sub(m.Mono), now.Round(0).Sub(m.Wall))
}
