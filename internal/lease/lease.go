// Package lease computes the time until which a client may treat its session as alive.
//
// The package has no clock, no goroutine and no lock. Its caller reports each packet that the
// client sends or receives, with the time. Package session sends the requests that Next asks for.
package lease

import (
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// A Lease computes how long a session stays confirmed. A confirmed session cannot have ended. It
// does not end before a confirmed time plus its timeout, even if connections, servers and leaders
// fail. Only the leader ends sessions, and a client's server answers pings and reads without the
// leader. So three requests over one connection confirm the time t:
//
//  1. A packet is sent at t, and answered.
//  2. At least a gap after that answer, a write is sent, and answered: t is carried.
//  3. After that reply, a request that needs the leader is sent, and answered: t is confirmed.
//
// If a handshake continues a session, the first answered write after the handshake confirms the
// handshake's sending time. A confirmed time is never the time of a reply. docs/design.md has the
// proof, in "When a session is confirmed".
//
// A Lease is not safe for concurrent use.
type Lease struct {
	Sure  *Instant // the latest t that is confirmed; nil if there is none
	Heard Instant  // sending time of the newest answered packet, or of a later part of a long packet; zero before the first reply

	timeout time.Duration // of the session
	granted time.Duration // by the server of the present connection; the timeout from the confirmation of `handshake` on
	events  int64         // counts the packets sent and the replies; orders packets with equal times
	conn    int64         // the value that `events` had when the present connection began

	// tried is the sending time of an unanswered handshake, or nil if there is none. If the leader
	// has received the handshake, the leader may use a timeout as short as `least`.
	tried *Instant
	least time.Duration

	// Of the present connection, each oldest first:
	handshake *Stamp    // the handshake that continued the session; nil after it is confirmed
	pending   bool      // the client sent a write together with the handshake, to confirm the handshake
	seen      []contact // answered, not carried
	carried   []contact // carried, not confirmed
}

// A Stamp is the sending time of a packet and its place in the order of packets.
type Stamp struct {
	At    time.Time
	event int64
}

// The type `contact` is a packet that was answered.
type contact struct {
	sent, answered time.Time
	event          int64 // the value that `events` had when the packet was carried; 0 before
}

// A Proof is a conclusion from the reply to a request.
type Proof int

const (
	Nothing Proof = iota // a refusal that any server may make, or a part of a long packet
	Server               // the client's server has had contact with the session
	Leader               // the request has reached a server that the client's server took for the leader
	Quorum               // a leader has committed the request with a quorum
)

// Shares of the session timeout. The methods `gap` and `belief` return two more shares.
const (
	// Silence is the share after which a connection without a reply is closed. The rest of the timeout
	// is enough to try another server.
	Silence = 1.0 / 2
	// patience is the share after which the client abandons a session without holds, if no server
	// answers. The session's waiters then continue in another session.
	patience = 3.0 / 4
)

// PingEvery is the interval between pings. It is a little shorter than the gap, so that each gap has
// an answered packet. So a confirmation comes at most two gaps after the previous confirmation.
func PingEvery(timeout time.Duration) time.Duration { return timeout / 4 }

// The method `gap` returns a duration in which the leader certainly asks each server for its sessions.
// The leader asks every half tick, and a session timeout is at least two ticks. So the result is a
// quarter of the timeout, plus a little for a leader that is late.
func (v *Lease) gap() time.Duration { return v.timeout / 40 * 11 }

// The method `belief` returns the duration for which holds are trusted, from the latest confirmed
// t. The last tenth of the timeout is left for two purposes: to report the loss to holders, and to
// allow for clocks whose rates differ.
func (v *Lease) belief() time.Duration { return v.timeout / 10 * 9 }

// New returns the lease of a new session. The client will ask the server to grant this timeout.
func New(timeout time.Duration) Lease { return Lease{timeout: timeout, granted: timeout} }

// Confirmed returns the time until the session is no longer confirmed. The result may be negative.
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

// Left returns the time until the client must abandon the session, if no further reply comes. A
// session with holds is abandoned when it is no longer confirmed. A session without holds is
// abandoned after `patience`, a share of the timeout.
func (v *Lease) Left(now time.Time, holds bool) time.Duration {
	timeout := min(v.timeout, v.granted)
	switch {
	case holds:
		return v.Confirmed(now)
	case v.Heard.Mono.IsZero():
		return timeout // nothing is held yet
	}
	return time.Duration(float64(timeout)*patience) - v.Heard.Since(now)
}

// Trying must be called before the client sends a handshake that continues the session. The server
// may grant a timeout as short as `least`. If several handshakes are unanswered, the lease keeps
// only the one that permits the earliest end of the session.
func (v *Lease) Trying(now time.Time, least time.Duration) {
	if least >= v.timeout || v.tried != nil && v.least-v.tried.Since(now) <= least {
		return
	}
	m := At(now)
	v.tried, v.least = &m, least
}

// Connected records the reply to the handshake that was sent at the time `asked`. If the session is
// new, a quorum has committed its creation since then. Otherwise, a leader has renewed the session,
// but another leader may already have replaced it.
func (v *Lease) Connected(asked time.Time, isNew bool, timeout time.Duration) {
	v.heard(asked)
	if v.tried != nil && v.tried.Mono.Equal(asked) {
		v.tried = nil // this reply grants `timeout`, so `least` no longer matters
	}
	stamp := v.Sending(asked)
	v.granted, v.conn = timeout, stamp.event
	v.handshake, v.pending, v.seen, v.carried = nil, false, nil, nil
	if isNew {
		v.timeout = timeout
		v.confirm(asked)
		return
	}
	// If the server that renewed the session was still the leader, a shorter timeout is valid from now
	// on. If not, the earlier confirmation is still valid, with the longer timeout.
	v.Trying(asked, timeout)
	v.handshake = &stamp
}

// Confirming is called if the client sends a confirming write together with the present handshake.
func (v *Lease) Confirming() { v.pending = true }

// Wrote returns true in two cases: a write was answered over the present connection, or the session
// began with this connection.
func (v *Lease) Wrote() bool { return v.handshake == nil }

// Sending returns the stamp of a request that is about to be sent.
func (v *Lease) Sending(now time.Time) Stamp {
	v.events++
	return Stamp{now, v.events}
}

// Answered records the reply to request s, which gives proof p. It reports whether the reply confirms
// a later time. Answered takes step 3 first and step 1 last, so that one reply never takes a packet
// through two steps.
func (v *Lease) Answered(s Stamp, p Proof, now time.Time) (confirmed bool) {
	v.heard(s.At)
	if s.event <= v.conn || p == Nothing {
		return false
	}
	before := v.Sure
	v.events++
	if p == Quorum && v.handshake != nil {
		// A leader renewed the session after the handshake was sent. The write proves that it was still
		// the leader. A write does not renew the session, so it confirms no later time.
		v.confirm(v.handshake.At)
		// The leader has received this handshake, and uses the timeout that the server has granted. Each
		// earlier unanswered handshake reached the leader before this one, or is lost. design.md names
		// the exception.
		v.handshake, v.tried = nil, nil
		v.timeout = min(v.timeout, v.granted)
	}
	// Step 3: s is the request after the write. A sync counts only while the session is confirmed: later,
	// the leader may have begun to end the session, and such a leader still answers syncs.
	if p == Quorum || p == Leader && v.Confirmed(now) > 0 {
		for i := len(v.carried) - 1; i >= 0; i-- {
			if v.carried[i].event < s.event {
				v.confirm(v.carried[i].sent)
				v.carried = v.carried[i+1:]
				break
			}
		}
	}
	if p == Quorum { // step 2: s is the write, and carries the latest packet that was answered a gap before s
		if i := v.ripe(s.At); i >= 0 {
			v.seen[i].event = v.events
			v.carried = append(v.carried, v.seen[i])
			v.seen = v.seen[i+1:]
		}
	}
	// Step 1. v.seen needs only a few packets, some time apart.
	if n := len(v.seen); n == 0 || s.At.Sub(v.seen[n-1].sent) >= v.gap()/8 {
		// Every unanswered write was sent within the last Silence × timeout, or the connection would be
		// closed. If a packet is ripe for the oldest possible write, v.seen needs no earlier packet.
		if i := v.ripe(now.Add(-time.Duration(Silence * float64(v.timeout)))); i > 0 {
			v.seen = v.seen[i:]
		}
		v.seen = append(v.seen, contact{sent: s.At, answered: now})
	}
	return v.Sure != before
}

// The method `ripe` takes the sending time of a write. It returns the index in v.seen of the latest
// packet that the write would carry, which was answered a gap before, or -1. By the monotonic clock,
// which stops while the machine sleeps, the measured time can be too short, but not too long.
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

// The method `heard` records the sending time of an answered packet. A part of a long packet counts,
// too, because no reply can arrive during the packet.
func (v *Lease) heard(at time.Time) {
	if at.After(v.Heard.Mono) {
		v.Heard = At(at)
	}
}

// Next returns the proof that the client needs next to confirm a later time. The client may wait
// for the duration `wait` before it sends the request. If `urgent` is set, the client waits only
// for a packet to become ripe.
func (v *Lease) Next(now time.Time, urgent bool) (p Proof, wait time.Duration) {
	if v.Sure != nil && !urgent {
		wait = 2*v.gap() - v.Sure.Since(now)
	}
	switch {
	case v.handshake != nil && v.pending && !urgent:
		// The client waits a little for the reply to the confirming write before it sends another write.
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

// ProofOf returns the proof in a reply with this code to a request of type op. For a transaction,
// `code` is the code of the whole transaction. Some refusals, such as a refusal for lack of
// permission, can come from any server. Only the leader gives the others, and a quorum commits them.
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

// An Instant is a time by two clocks. The monotonic clock stops while the machine sleeps or migrates,
// and the wall clock may be set at any time. So the clock that shows more elapsed time counts: to
// abandon a session without need does less harm than to trust a session that has ended.
type Instant struct{ Mono, Wall time.Time }

// At converts t to an Instant.
func At(t time.Time) Instant { return Instant{Mono: t, Wall: t.Round(0)} }

// Since returns the time from m to now, by the clock on which more time has passed.
func (m Instant) Since(now time.Time) time.Duration {
	return max(now.Sub(m.Mono), now.Round(0).Sub(m.Wall))
}
