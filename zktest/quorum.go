package zktest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// This file has the leader of an ensemble: it proposes transactions, commits each after a majority
// has logged it, answers syncs, and ends sessions. member.go has the elections and the followers.

// The type `leadership` is the state of a member that leads. Ensemble.mu guards it.
type leadership struct {
	m     *member
	prep  *tree // m's tree with all proposals applied; the next request is checked against it
	begun time.Time

	proposed []*txn // the proposals that are not committed, in order
	ties     map[*member]*tie
	deadline map[*member]int // the last tick at which a follower counts towards the majority
	tick     int
	half     bool
	reaping  bool

	sessions map[int64]*tracked
	queued   time.Time // the time at which the leader will look at the last request in its queue
}

// The type `tracked` is the leader's record of a session. Only the leader ends sessions.
type tracked struct {
	end     time.Time // the time at which the session ends if its client stays silent; a whole number of ticks after epoch
	armed   time.Time // the time of the next check by `arm`; zero: none
	owner   *member   // the member to which the session's client is connected
	closing bool
}

// The method `lead` makes m the leader of the members in `group`. All of them take over m's log.
func (m *member) lead(group []*member) {
	for _, f := range group {
		m.epoch = max(m.epoch, f.epoch)
	}
	m.epoch++
	m.commits = nil
	for len(m.logged) > 0 {
		m.apply()
	}
	ld := &leadership{
		m: m, prep: m.s.leader.tree.clone(), begun: time.Now(),
		ties: map[*member]*tie{}, deadline: map[*member]int{}, sessions: map[int64]*tracked{},
	}
	ld.prep.zxid = m.epoch << 32
	m.ld = ld
	for id, x := range m.s.sessions {
		ld.track(id, x.timeout, nil) // each session has its whole timeout again
	}
	for _, f := range group {
		ld.bind(f)
		f.install(m.s.leader.tree.clone(), m.s.sessions, m.epoch)
	}
	ld.pulse()
	ld.applied(nil)
}

// The method `bind` makes f a follower that is not synced yet.
func (ld *leadership) bind(f *member) *tie {
	now := time.Now()
	t := &tie{ld: ld, f: f, since: now, leader: tieEnd{true, now}, follow: tieEnd{true, now}}
	if old := ld.ties[f]; old != nil {
		old.leader.open = false // the farewell of f has not arrived yet
	}
	ld.ties[f] = t
	t.deadline()
	f.tie = t
	f.watchLeader(t)
	return t
}

// The method `join` makes f a follower. It sends f the leader's tree and all current proposals. The
// tree replaces f's own log.
func (ld *leadership) join(f *member) {
	t := ld.bind(f)
	m := ld.m
	for range m.commits { // the committed transactions that m has not applied because of its lag
		m.apply()
	}
	m.commits = nil
	sessions := map[int64]*session{}
	for id, x := range m.s.sessions {
		sessions[id] = &session{id: id, password: x.password, timeout: x.timeout}
	}
	snapshot, epoch := m.s.leader.tree.clone(), m.epoch
	t.toFollower(func() { f.install(snapshot, sessions, epoch) })
	for _, x := range ld.proposed {
		t.toFollower(func() { f.log(t, x) })
	}
}

// The method `lose` closes the leader's end of a tie, so the leader no longer has this follower.
func (ld *leadership) lose(t *tie) {
	t.leader.open = false
	if ld.ties[t.f] == t { // the follower has no newer tie
		delete(ld.ties, t.f)
	}
	t.farewell(ld.m, t.f)
}

// The method `deadline` is called after a sign of life of the follower. It moves the follower's
// deadline.
func (t *tie) deadline() { t.ld.deadline[t.f] = t.ld.tick + t.ld.m.e.syncTicks }

// The method `pulse` runs twice a tick. If the leader has no majority, `pulse` ends the leadership.
// Otherwise, it drops silent followers and pings the other followers. These answer with the
// sessions whose clients gave a sign of life.
func (ld *leadership) pulse() {
	m := ld.m
	m.at(time.Now().Add(m.e.tick/2), func() {
		if m.ld != ld {
			return
		}
		ld.half = !ld.half
		if !ld.half {
			ld.tick++
			synced := 1
			for f := range ld.ties {
				if ld.tick <= ld.deadline[f] {
					synced++
				}
			}
			if synced < m.e.majority() {
				m.orphaned()
				return
			}
		}
		for _, f := range m.e.members {
			if t := ld.ties[f]; t == nil {
			} else if ld.silent(t) {
				ld.lose(t)
			} else {
				t.toFollower(func() { f.ping(t) })
			}
		}
		ld.pulse()
	})
}

// The method `silent` reports whether a follower has been silent for as long as the sync limit: no
// message of the follower has arrived, or the follower has not acknowledged a proposal.
func (ld *leadership) silent(t *tie) bool {
	limit := ld.m.e.syncLimit
	if time.Since(t.leader.heard) >= limit {
		return true
	}
	for _, x := range ld.proposed {
		if x.acks&(1<<t.f.index) == 0 && time.Since(x.at) >= limit && time.Since(t.since) >= limit {
			return true
		}
	}
	return false
}

// Transactions.

// The method `begin` returns a new transaction with the next zxid.
func (ld *leadership) begin() *txn {
	ld.prep.zxid++
	return &txn{zxid: ld.prep.zxid, time: time.Now().UnixMilli()}
}

// The method `enqueue` calls `do` after all earlier requests in the leader's queue.
func (ld *leadership) enqueue(do func()) {
	at := time.Now().Add(ld.m.e.backlog)
	if ld.m.e.backlog == 0 && at.After(ld.queued) {
		do()
		return
	}
	if at.Before(ld.queued) {
		at = ld.queued // e.backlog has become shorter: keep the order
	}
	ld.queued = at
	ld.m.at(at, func() {
		if ld.m.ld == ld {
			do()
		}
	})
}

// The method `request` proposes the transaction for p. If p fails, it proposes a transaction
// without changes, and with the code of the failure.
func (ld *leadership) request(p *pending) {
	x := ld.begin()
	x.origin = p
	id := p.who.session
	if s := ld.m.s.sessions[id]; s != nil && p.m != ld.m {
		x.ahead = &pending{m: ld.m, waits: true}
		s.queue = append(s.queue, x.ahead)
	}
	switch p.r.Op {
	case OpConnect:
		timeout := time.Duration(p.r.timeout) * time.Millisecond
		x.opened = &session{id: id, password: ld.m.e.password(id), timeout: timeout}
		ld.track(id, timeout, p.m)
	case OpCloseSession:
		ld.close(x, id)
	default:
		if x.code = ld.allowed(id, p.m); x.code == CodeOK {
			ld.write(x, p)
		}
	}
	ld.propose(x)
}

// The session `id` sends a write to the member `from`. The method `allowed` returns the error code
// of the reply, or 0 if the write is allowed.
func (ld *leadership) allowed(id int64, from *member) int32 {
	switch s := ld.sessions[id]; {
	case s == nil || s.closing:
		return CodeSessionExpired
	case s.owner == nil:
		s.owner = from
	case s.owner != from:
		return CodeSessionMoved
	}
	return CodeOK
}

// The method `write` fills x with the changes for p, or with the code of its failure.
func (ld *leadership) write(x *txn, p *pending) {
	t := ld.prep
	if p.r.malformed {
		x.code = CodeMarshallingError
		return
	}
	ops := []Request{p.r}
	if p.r.Op == OpMulti {
		ops = p.r.Ops
	}
	undos := make([]undo, 0, len(ops))
	x.changes = make([]change, 0, len(ops))
	for i := range ops {
		ch, code := t.check(p.who, &ops[i])
		if code != CodeOK {
			x.failed, x.code = i, code
			break
		}
		var u undo
		if ch.kind != changeNone {
			u = t.remember(&ch)
			t.apply(x, &ch)
		}
		undos = append(undos, u)
		x.changes = append(x.changes, ch)
	}
	if x.code != CodeOK {
		for i := len(undos) - 1; i >= 0; i-- {
			t.revert(&x.changes[i], undos[i])
		}
		x.changes = nil
	}
}

// The method `close` makes x end a session and delete its ephemerals.
func (ld *leadership) close(x *txn, id int64) {
	x.closed = id
	if s := ld.sessions[id]; s != nil {
		s.closing = true
	}
	for _, path := range oldestFirst(ld.prep, ld.prep.ephemerals[id]) {
		ch := ld.prep.deletion(path)
		ld.prep.apply(x, &ch)
		x.changes = append(x.changes, ch)
	}
}

// The method `propose` logs x and sends it to the followers.
func (ld *leadership) propose(x *txn) {
	x.at = time.Now()
	ld.proposed = append(ld.proposed, x)
	ld.m.logged = append(ld.m.logged, x)
	for _, f := range ld.m.e.members {
		if t := ld.ties[f]; t != nil {
			t.toFollower(func() { f.log(t, x) })
		}
	}
	ld.ack(ld.m, x)
}

// The method `ack` is called when m has logged x. It commits, in order, the proposals that a
// majority has logged.
func (ld *leadership) ack(m *member, x *txn) {
	x.acks |= 1 << m.index
	for len(ld.proposed) > 0 && ld.agreed(ld.proposed[0]) {
		x := shift(&ld.proposed)
		for _, f := range ld.m.e.members {
			if t := ld.ties[f]; t != nil {
				t.toFollower(func() { f.hear(nil) })
			}
		}
		ld.m.hear(nil)
		for _, p := range x.syncs {
			if t := ld.ties[p.m]; t != nil {
				t.toFollower(func() { p.m.hear(p) })
			}
		}
	}
}

func (ld *leadership) agreed(x *txn) bool {
	n := 0
	for i := range ld.m.e.members {
		n += int(x.acks >> i & 1)
	}
	return n >= ld.m.e.majority()
}

// The method `sync` answers a follower's sync after all current proposals are committed. If there
// are no proposals, it answers at once, without a majority.
func (ld *leadership) sync(t *tie, p *pending) {
	if n := len(ld.proposed); n > 0 {
		ld.proposed[n-1].syncs = append(ld.proposed[n-1].syncs, p)
		return
	}
	t.toFollower(func() { p.m.hear(p) })
}

// The method `applied` does the leader's work that follows the application of x. x may be nil.
func (ld *leadership) applied(x *txn) {
	if x != nil && x.ahead != nil {
		x.ahead.done = true
		if s := ld.m.s.sessions[x.origin.who.session]; s != nil {
			s.drain()
		}
	}
	if x != nil && x.closed != 0 {
		delete(ld.sessions, x.closed)
	}
	if !ld.reaping && len(ld.m.s.leader.tree.reapable) > 0 {
		ld.reaping = true
		ld.m.at(time.Now().Add(ld.m.s.containerCheck), ld.reap)
	}
}

// The method `reap` proposes the deletion of each childless node that is a container and has had
// children, and of each childless node whose time to live is over.
func (ld *leadership) reap() {
	if ld.m.ld != ld {
		return
	}
	ld.reaping = false
	t := ld.prep
	for _, path := range slices.Sorted(maps.Keys(t.reapable)) {
		n := t.nodes[path]
		if len(n.children) > 0 {
			continue
		}
		if n.container && n.cversion > 0 || n.ttl > 0 && time.Now().UnixMilli()-n.mtime > n.ttl {
			x := ld.begin()
			ch := t.deletion(path)
			t.apply(x, &ch)
			x.changes = []change{ch}
			ld.propose(x)
		}
	}
	ld.applied(nil)
}

// Sessions.

// The method `track` makes the leader track a session: its timeout, and the member to which its
// client is connected.
func (ld *leadership) track(id int64, timeout time.Duration, owner *member) {
	if ld.sessions[id] == nil {
		ld.sessions[id] = &tracked{}
	}
	ld.sessions[id].owner = owner
	ld.touch(id, timeout)
}

// The method `touch` moves the end of the session to one timeout from now, rounded up to the next
// tick. It reports whether the session exists.
func (ld *leadership) touch(id int64, timeout time.Duration) bool {
	s := ld.sessions[id]
	if s == nil || s.closing {
		return false
	}
	tick, epoch := ld.m.e.tick, ld.m.s.epoch
	s.end = epoch.Add(((time.Since(epoch)+timeout)/tick + 1) * tick)
	ld.arm(id, s)
	return true
}

// The method `arm` schedules a check of a session at s.end, unless an earlier check is scheduled.
// s.end can move to an earlier time, because members may grant different timeouts.
func (ld *leadership) arm(id int64, s *tracked) {
	if !s.armed.IsZero() && !s.end.Before(s.armed) {
		return
	}
	s.armed = s.end
	at := s.end
	ld.m.at(at, func() {
		if s.armed.Equal(at) {
			s.armed = time.Time{}
		}
		switch {
		case ld.m.ld != ld || ld.sessions[id] != s || s.closing:
		case s.end.After(time.Now()):
			ld.arm(id, s)
		default:
			ld.end(id)
		}
	})
}

// The method `end` proposes a transaction that ends a session.
func (ld *leadership) end(id int64) {
	if s := ld.sessions[id]; s != nil && !s.closing {
		x := ld.begin()
		ld.close(x, id)
		ld.propose(x)
	}
}

// The method `resume` is called when the client of a session has connected to the member m. It
// reports whether the session exists. It stores m as the session's member. The call counts as a
// sign of life.
func (ld *leadership) resume(m *member, id int64, timeout time.Duration) bool {
	if !ld.touch(id, timeout) {
		return false
	}
	ld.sessions[id].owner = m
	return true
}

func (ld *leadership) dump(b *strings.Builder) {
	fmt.Fprintf(b, "  leads, %d proposed\n", len(ld.proposed))
	for _, id := range slices.Sorted(maps.Keys(ld.sessions)) {
		s := ld.sessions[id]
		fmt.Fprintf(b, "  session %#x ends in %v", id, time.Until(s.end).Round(time.Millisecond))
		if s.closing {
			b.WriteString(", is being closed")
		}
		b.WriteString("\n")
	}
}
