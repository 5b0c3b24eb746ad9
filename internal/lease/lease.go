// Package lease computes until when a client may believe that its session lives.
//
// It knows only the packets that the client sends and receives, and their times. It has no clock,
// no goroutine and no lock: the caller passes each instant and each answer. Package session sends
// the requests that Next asks for.
package lease

import (
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// A Lease computes for how long a session is confirmed, which means that it cannot have ended.
//
// The question is when the leader of the ensemble last had contact with the session, because only
// the leader expires sessions. A learner is a server that is not the leader. It answers pings and
// reads by itself. It reports the sessions of its clients to the leader only when the leader
// asks, every half tick. So a single reply proves little, but the order of packets on a
// connection proves more:
//
//  1. A packet was sent at t and answered at q. So the learner had contact with the session before
//     q.
//  2. A write that was sent half a tick after q, or later, is answered. The leader had a quorum, so
//     it was the leader when the write was sent. It asked the learner between q and the write. The
//     question reached the learner ahead of the write's result, and the learner has answered it. So
//     the contact is on its way to the leader: t is carried.
//  3. A request that needs the leader was sent after the reply to the write, and is answered. The
//     learner forwarded it to the leader after its answer to the question. So the leader has
//     renewed the session later than t: t is confirmed.
//
// A handshake that continues a session is confirmed by the first write behind it: the leader has
// renewed the session after the handshake was sent. Each confirmed time is the sending of a packet,
// never the time of a reply.
//
// A session that is confirmed at t does not end before t plus its timeout, whatever happens to
// connections, servers and leaders. docs/design.md has the argument and its assumptions.
//
// Step 3 accepts a sync only while the session is confirmed. Otherwise, the leader may have begun
// to end the session, and a renewal comes too late. In that state, the leader refuses a write, but
// answers a sync.
//
// A Lease is not safe for concurrent use.
type Lease struct {
	Sure  *Instant // the latest t that is confirmed; nil if there is none
	Heard Instant  // sending time of the newest answered packet; zero before the first

	timeout time.Duration // of the session
	events  int64         // number of packets sent and answered; orders packets with equal times
	conn    int64         // value of events when the present connection began
	moved   Instant       // when the latest part of a long packet was sent or read

	// tried is the sending time of an unanswered handshake, or nil if there is none. If the leader has
	// received that handshake, it may use a timeout as short as least.
	tried *Instant
	least time.Duration
	lower time.Duration // timeout of the session once handshake is confirmed; 0 if it does not change

	// Of the present connection, each oldest first:
	handshake *Stamp    // sending of the handshake that continued the session; nil once confirmed
	pending   bool      // the write that confirms handshake was sent with the handshake
	seen      []contact // answered, not carried
	carried   []carried // carried, not confirmed
}

// A Stamp says when a packet was sent, by clock and by order.
type Stamp struct {
	At    time.Time
	event int64
	conn  int64
}

// A contact is a packet that was answered.
type contact struct{ sent, answered time.Time }

// A carried is a packet whose contact the learner has reported in an answer to the leader. It is
// not known whether that answer has arrived.
type carried struct {
	sent  time.Time
	event int64 // value of events when that became known
}

// A Proof is a conclusion from the reply to a request.
type Proof int

const (
	Nothing Proof = iota // a refusal that any server may make
	Server               // our server has had contact with the session
	Leader               // the request has reached a server that our server took for the leader
	Quorum               // a leader has committed it with a quorum
)

// Shares of the session timeout. Two more are the functions gap and belief.
const (
	// Silence is the share after which a connection without a reply is closed. It leaves time to
	// try another server.
	Silence = 1.0 / 2
	// patience is the share after which a session without holds is abandoned if no server answers.
	// Its waiters then continue in another session.
	patience = 3.0 / 4
)

// PingEvery is the interval between pings. It is a little shorter than the gap, so in each gap the
// server answers a packet. If a write at the end of the next gap is
// answered, that packet is carried. So the next confirmation comes at most two gaps after the last one, even in the first cycle of a connection.
func PingEvery(timeout time.Duration) time.Duration { return timeout / 4 }

// gap is the time that must pass between a reply and a later write. Then the leader has certainly
// asked the learner between the two. The leader asks every half tick, and a session timeout is at
// least two ticks. So gap is a quarter of the timeout, and a little more for a leader that is late.
func (v *Lease) gap() time.Duration { return v.timeout / 40 * 11 }

// belief is how long holds count as held after the latest t that is confirmed. The last tenth of
// the timeout is time to report the loss to holders, and a margin for clocks whose rates differ.
func (v *Lease) belief() time.Duration { return v.timeout / 10 * 9 }

// New returns the lease of a session that will ask for this timeout.
func New(timeout time.Duration) Lease { return Lease{timeout: timeout} }

// Confirmed returns for how much longer the session is confirmed; it may be negative.
func (v *Lease) Confirmed(now time.Time) time.Duration {
	if v.Sure == nil {
		return 0
	}
	left := v.belief() - v.Sure.Since(now)
	if v.tried != nil {
		left = min(left, v.least/10*9-v.tried.Since(now))
	}
	return left
}

// Left returns for how much longer the session counts as alive if no further reply comes. A session
// with holds counts as alive while it is confirmed. Without holds, patience limits the time.
func (v *Lease) Left(now time.Time, holds bool) time.Duration {
	timeout := v.timeout
	if v.lower > 0 {
		timeout = v.lower
	}
	switch {
	case holds:
		return v.Confirmed(now)
	case v.Heard.Mono.IsZero():
		return timeout // nothing is held yet
	}
	idle := v.Heard.Since(now)
	if !v.moved.Mono.IsZero() {
		idle = min(idle, v.moved.Since(now)) // while a long packet moves, no reply can come
	}
	return time.Duration(float64(timeout)*patience) - idle
}

// Moved records that a part of a long packet was sent or read. It keeps a session without holds
// alive, and confirms nothing.
func (v *Lease) Moved(now time.Time) { v.moved = At(now) }

// Trying records that a handshake is about to be sent. The handshake continues the session, and
// least is the shortest timeout that the server may grant. If several handshakes are unanswered,
// Trying keeps the handshake after which the session can end first.
func (v *Lease) Trying(now time.Time, least time.Duration) {
	if least >= v.timeout || v.tried != nil && v.least-v.tried.Since(now) <= least {
		return
	}
	m := At(now)
	v.tried, v.least = &m, least
}

// Connected records the answer to a handshake; asked is the sending time of the handshake. If the
// session is new, a quorum has committed it after that time. If the handshake continues the
// session, it has reached a leader, which has renewed the session. But another leader may have
// replaced that leader by then.
func (v *Lease) Connected(asked time.Time, isNew bool, timeout time.Duration) {
	v.heard(asked)
	if v.tried != nil && v.tried.Mono.Equal(asked) {
		v.tried = nil // this is the answer, and it grants timeout
	}
	switch {
	case isNew:
		v.timeout = timeout
		v.confirm(asked)
	case timeout < v.timeout:
		// If the leader has renewed the session, it uses the shorter timeout from then on. If it was no
		// longer the leader, the earlier confirmation still holds unchanged.
		v.Trying(asked, timeout)
		v.lower = timeout
	}
	v.events++
	v.conn = v.events
	v.handshake, v.pending, v.seen, v.carried = nil, false, nil, nil
	if !isNew {
		v.handshake = &Stamp{asked, v.events, v.conn}
	}
}

// Confirming records that the write that confirms the present handshake was sent with it.
func (v *Lease) Confirming() { v.pending = true }

// Wrote reports whether a write was answered over the present connection. It also reports true if
// the session began with this connection.
func (v *Lease) Wrote() bool { return v.handshake == nil }

// Sending returns the stamp of a request that is about to be sent.
func (v *Lease) Sending(now time.Time) Stamp {
	v.events++
	return Stamp{now, v.events, v.conn}
}

// Answered records that the request s was answered, and with which proof. It reports whether that
// confirms a later time. It takes the steps from the last to the first. So no answer takes one
// packet through two steps.
func (v *Lease) Answered(s Stamp, p Proof, now time.Time) (confirmed bool) {
	v.heard(s.At)
	if s.conn != v.conn || p == Nothing {
		return false
	}
	before := v.Sure
	v.events++
	if p == Quorum && v.handshake != nil {
		// The leader renewed the session after the handshake was sent. The write proves that it was
		// still the leader. It does not renew the session, so it confirms no later time.
		v.confirm(v.handshake.At)
		// The leader has received this handshake, and uses the timeout that the server has granted. An
		// earlier unanswered handshake has reached the leader before this one, or is lost. design.md
		// names the exception.
		v.handshake, v.tried = nil, nil
		if v.lower > 0 {
			v.timeout, v.lower = v.lower, 0
		}
	}
	// Step 3: s is the request after the write. It confirms the time at which the carried packet
	// was sent. It does not confirm its own time, which is later: the leader need not have learned
	// of s.
	if p == Quorum || p == Leader && v.Confirmed(now) > 0 {
		for i := len(v.carried) - 1; i >= 0; i-- {
			if v.carried[i].event < s.event {
				v.confirm(v.carried[i].sent)
				v.carried = v.carried[i+1:]
				break
			}
		}
	}
	if p == Quorum { // step 2: s is the write, and carries the latest packet that is old enough
		if i := v.ripe(s.At); i >= 0 {
			v.carried = append(v.carried, carried{v.seen[i].sent, v.events})
			v.seen = v.seen[i+1:]
		}
	}
	// Step 1. A few packets, some time apart, are enough.
	if n := len(v.seen); n == 0 || s.At.Sub(v.seen[n-1].sent) >= v.gap()/8 {
		// Each write without a reply was sent within the last Silence × timeout: otherwise, the
		// connection would be closed by now. Of the packets that even the earliest such write would
		// carry, only the latest is needed.
		if i := v.ripe(now.Add(-time.Duration(Silence * float64(v.timeout)))); i > 0 {
			v.seen = v.seen[i:]
		}
		v.seen = append(v.seen, contact{s.At, now})
	}
	return v.Sure != before
}

// ripe takes the sending time of a write. It returns the index in v.seen of the latest packet that
// the write would carry, or -1 if the write would carry none. ripe uses the monotonic clock, which
// can only be too slow: that clock stops while the machine sleeps.
func (v *Lease) ripe(at time.Time) int {
	i := len(v.seen) - 1
	for i >= 0 && at.Sub(v.seen[i].answered) < v.gap() {
		i--
	}
	return i
}

func (v *Lease) confirm(t time.Time) {
	if v.Sure == nil || t.After(v.Sure.Mono) {
		m := At(t)
		v.Sure = &m
	}
}

// heard takes the sending time of a packet that has been answered.
func (v *Lease) heard(at time.Time) {
	if at.After(v.Heard.Mono) {
		v.Heard = At(at)
	}
}

// Next returns which proof must be requested to confirm a later time, and how long that can wait.
// If urgent is set, the only reason to wait is that no packet is ripe yet.
func (v *Lease) Next(now time.Time, urgent bool) (p Proof, wait time.Duration) {
	if v.Sure != nil && !urgent {
		wait = 2*v.gap() - v.Sure.Since(now)
	}
	switch {
	case v.handshake != nil && v.pending && !urgent:
		// The confirming write has no reply yet. If the reply is late, another write is due.
		return Quorum, v.timeout/20 - now.Sub(v.handshake.At)
	case v.handshake != nil:
		return Quorum, 0
	case len(v.carried) > 0 && v.Confirmed(now) > 0:
		return Leader, wait
	case len(v.carried) == 0 && len(v.seen) > 0:
		return Quorum, max(wait, v.gap()-now.Sub(v.seen[0].answered))
	}
	return Quorum, wait
}

// Timeout returns the session timeout that the lease uses.
func (v *Lease) Timeout() time.Duration { return v.timeout }

// ProofOf returns the proof in a reply with this code to a request of type op. For a transaction,
// code is its code as a whole. If a server can refuse a request by itself, for lack of permission
// for example, the refusal proves nothing. A refusal by the leader is committed like any write.
func ProofOf(op, code int32) Proof {
	switch op {
	case wire.OpCreate, wire.OpCreateContainer, wire.OpDelete, wire.OpSetData, wire.OpMulti:
		switch code {
		case 0, wire.CodeNoNode, wire.CodeBadVersion, wire.CodeNoChildren, wire.CodeNodeExists, wire.CodeNotEmpty:
			return Quorum
		}
	case wire.OpSync:
		if code == 0 {
			return Leader
		}
	default:
		if code == 0 || code == wire.CodeNoNode {
			return Server
		}
	}
	return Nothing
}

// An Instant is a time by two clocks. The monotonic clock is never set, but it stops while the
// machine sleeps or migrates, and the servers do not stop. The wall clock continues, or is set when
// the machine is back, but it may also be set at any other time. The clock that shows the later
// time counts: to abandon a session without need does less harm than to trust a session that has
// ended.
type Instant struct{ Mono, Wall time.Time }

// At returns t by both clocks.
func At(t time.Time) Instant { return Instant{Mono: t, Wall: t.Round(0)} }

// Since returns how long ago m was, by the clock that gives the longer time.
func (m Instant) Since(now time.Time) time.Duration {
	return max(now.Sub(m.Mono), now.Round(0).Sub(m.Wall))
}
