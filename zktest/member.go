package zktest

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// This file has the work of every member of an ensemble: its start and end, elections, the log, and
// the service of its own clients. quorum.go has the work of a leader.

// The type `member` is one server of an ensemble, as the other members see it. Ensemble.mu guards
// it.
//
// A running member leads (`ld` is set), follows a leader (`tie` is set), or looks for a leader.
type member struct {
	e     *Ensemble
	s     *Server // the member as its clients see it; s.leader has this member's copy of the tree
	index int

	// The tree (in s) and these two fields survive a crash.
	epoch  int64  // of the last leadership in which the member took part
	logged []*txn // the transactions that it has logged but not applied

	up      bool
	life    int       // how many times it was restarted
	looks   time.Time // the time at which it began to look for a leader
	overdue []func()  // the timers that fired while it was frozen
	inbox   []func()  // the messages that arrived while it was frozen

	ld  *leadership // nil unless it leads
	tie *tie        // nil unless it follows
	// synced is true if the member is a follower that has installed its leader's tree and serves
	// clients.
	synced bool

	table   map[int64]time.Duration // the sessions with a sign of life since the leader's last ping, and their timeouts
	writes  []*pending              // only in a follower: the requests that wait for the leader, in order
	commits []news                  // messages from the leader that the lag delays
	lag     time.Duration
}

// The type `news` is a message from the leader. Messages come in the order of the transactions. If
// `answer` is nil, the message commits the next logged transaction. Otherwise the message answers a
// sync.
type news struct {
	at     time.Time
	answer *pending
}

// The type `pending` is a request that a client has sent to a member.
type pending struct {
	m      *member
	c      *conn
	r      Request
	action Action
	who    requester

	waits bool // the reply needs a message from the leader
	done  bool // the leader has decided: `body` and `code` are the reply
	body  []byte
	code  int32
	ready chan bool // only for a handshake: receives whether requests may follow; has room for one
}

func (m *member) wayTo(o *member) *way { return m.e.ways[m.index][o.index] }

func (m *member) serving() bool { return m.up && (m.ld != nil || m.tie != nil && m.synced) }

func (m *member) frozen() bool { return m.s.stalled != nil }

func (m *member) describe() string {
	text := "looking"
	switch {
	case !m.up:
		text = "down"
	case m.ld != nil:
		text = "leading"
	case m.tie != nil && m.synced:
		text = fmt.Sprintf("following member %d", m.tie.ld.m.index)
	case m.tie != nil:
		text = fmt.Sprintf("joining member %d", m.tie.ld.m.index)
	}
	if m.frozen() {
		text += ", frozen"
	}
	return fmt.Sprintf("%s, epoch %d, applied %#x, %d logged", text, m.epoch, m.s.leader.tree.zxid, len(m.logged))
}

// The method `receive` delivers a message to m by calling `do`. If m is frozen, `do` runs after
// Thaw.
func (m *member) receive(do func()) {
	if m.frozen() {
		m.inbox = append(m.inbox, do)
		return
	}
	do()
}

// The method `at` schedules `do` for the time t. If m is frozen at that time, `do` runs after Thaw.
// A crash of m cancels `do`.
func (m *member) at(t time.Time, do func()) {
	life := m.life
	m.e.at(t, func() {
		switch {
		case !m.up || m.life != life:
		case m.frozen():
			m.overdue = append(m.overdue, do)
		default:
			do()
		}
	})
}

// The method `before` reports whether o is a better candidate than m in an election.
func (m *member) before(o *member) bool {
	if m.epoch != o.epoch {
		return m.epoch < o.epoch
	}
	if a, b := m.lastLogged(), o.lastLogged(); a != b {
		return a < b
	}
	return m.index < o.index
}

func (m *member) lastLogged() int64 {
	if n := len(m.logged); n > 0 {
		return m.logged[n-1].zxid
	}
	return m.s.leader.tree.zxid
}

// Being up.

func (m *member) crash() {
	if !m.up {
		return
	}
	m.up = false
	m.leave()
	m.inbox, m.overdue = nil, nil
	m.unstall()
	m.s.shutListeners()
}

func (m *member) restart() {
	if m.up {
		return
	}
	m.up = true
	m.life++
	m.looks = time.Now()
	m.e.look()
}

func (m *member) freeze() {
	if !m.up || m.frozen() {
		return
	}
	m.s.stalled = make(chan struct{})
	for c := range m.s.conns {
		c.out.shut(m.s.stalled)
	}
}

func (m *member) unstall() {
	if m.frozen() {
		close(m.s.stalled)
		m.s.stalled = nil
	}
}

func (m *member) thaw() {
	if !m.frozen() {
		return
	}
	m.unstall()
	// The unread messages count as received now, so m does not treat the other members as silent.
	if m.tie != nil {
		m.tie.follow.heard = time.Now()
	}
	if m.ld != nil {
		for _, t := range m.ld.ties {
			t.leader.heard = time.Now()
		}
	}
	life := m.life
	for _, list := range []*[]func(){&m.overdue, &m.inbox} {
		todo := *list
		*list = nil
		for _, do := range todo {
			if m.up && m.life == life {
				do()
			}
		}
	}
	m.e.look()
}

// The method `leave` makes m neither leader nor follower, and closes its connections to members and
// to clients.
func (m *member) leave() {
	if t := m.tie; t != nil && t.follow.open {
		t.follow.open = false
		t.farewell(m, t.ld.m)
	}
	m.tie, m.synced = nil, false
	if ld := m.ld; ld != nil {
		for _, f := range m.e.members {
			if t := ld.ties[f]; t != nil {
				ld.lose(t)
			}
		}
	}
	m.ld = nil
	m.commits, m.writes = nil, nil
	clear(m.table)
	m.s.dropConns(nil)
	for _, x := range m.s.sessions {
		x.queue = nil
	}
}

// The method `orphaned` makes m look for a leader after the loss of its leader or of its followers.
func (m *member) orphaned() {
	m.leave()
	m.looks = time.Now()
	m.e.look()
}

// Electing.

// The method `look` schedules an election. It is called after each change that can bring members
// together.
func (e *Ensemble) look() {
	e.at(time.Now().Add(e.electionTime), e.elect)
}

// The method `elect` gives a leader to each member that looks for a leader, if possible. If the
// member can reach a leader, that leader takes the member as a follower. The remaining members
// elect the best candidate among the members that reach a majority.
func (e *Ensemble) elect() {
	var lookers []*member
	for _, m := range e.members {
		if !m.up || m.frozen() || m.ld != nil || m.tie != nil || time.Since(m.looks) < e.electionTime {
			continue
		}
		if ld := e.leaderFor(m); ld != nil {
			ld.join(m)
			continue
		}
		lookers = append(lookers, m)
	}
	slices.SortFunc(lookers, func(a, b *member) int {
		if a.before(b) {
			return 1
		}
		return -1
	})
	// The member with the longest log leads, so no committed transaction is lost: a majority has
	// logged the transaction, so any other majority has a member that has logged it. So the longest
	// log in that majority contains the transaction.
	for i, m := range lookers {
		var group []*member
		for _, o := range lookers[i+1:] {
			if e.reach(m, o) {
				group = append(group, o)
			}
		}
		if len(group)+1 >= e.majority() {
			m.lead(group)
			return
		}
	}
}

// The method `reach` reports whether messages pass between two members in both directions.
func (e *Ensemble) reach(a, b *member) bool {
	return !a.wayTo(b).cut && !b.wayTo(a).cut
}

func (e *Ensemble) leaderFor(m *member) *leadership {
	var best *leadership
	for _, o := range e.members {
		if o.ld != nil && !o.frozen() && e.reach(m, o) && o.epoch >= m.epoch && (best == nil || o.epoch > best.m.epoch) {
			best = o.ld
		}
	}
	return best
}

// The method `install` replaces the tree and the sessions of m with copies of the leader's tree and
// sessions.
func (m *member) install(t *tree, sessions map[int64]*session, epoch int64) {
	m.s.leader.tree = t
	m.s.sessions = map[int64]*session{}
	for id, x := range sessions {
		m.s.sessions[id] = &session{id: id, password: x.password, timeout: x.timeout, granted: x.timeout}
	}
	m.logged, m.commits = nil, nil
	m.epoch = epoch
	m.synced = true
}

// Following.

// watchLeader makes m leave its leader if no message from the leader arrives within the sync limit.
func (m *member) watchLeader(t *tie) {
	m.at(t.follow.heard.Add(m.e.syncLimit), func() {
		switch {
		case m.tie != t:
		case time.Since(t.follow.heard) >= m.e.syncLimit:
			m.orphaned()
		default:
			m.watchLeader(t)
		}
	})
}

// The method `log` logs a proposal of the leader.
func (m *member) log(t *tie, x *txn) {
	m.logged = append(m.logged, x)
	t.toLeader(func() { t.ld.ack(m, x) })
}

// The method `ping` answers the leader's ping with the sessions in m.table.
func (m *member) ping(t *tie) {
	table := m.table
	m.table = map[int64]time.Duration{}
	t.toLeader(func() {
		for id, timeout := range table {
			t.ld.touch(id, timeout)
		}
	})
}

// The method `hear` is called with a message of the leader. If `answer` is nil, the message is a
// commit. Otherwise it is the answer to a sync.
func (m *member) hear(answer *pending) {
	m.commits = append(m.commits, news{time.Now(), answer})
	m.advance()
}

// The method `advance` handles the messages of the leader that are due.
func (m *member) advance() {
	for len(m.commits) > 0 {
		n := m.commits[0]
		if m.lag > 0 {
			if m.lag == frozen {
				return
			}
			if due := n.at.Add(m.lag); due.After(time.Now()) {
				m.at(due, m.advance)
				return
			}
		}
		shift(&m.commits)
		if n.answer == nil {
			m.apply()
		} else if len(m.writes) > 0 && m.writes[0] == n.answer { // false if m has lost that leader since then
			shift(&m.writes)
			n.answer.body = appendString(nil, n.answer.r.Path)
			n.answer.finish()
		}
	}
}

func (m *member) setLag(d time.Duration) {
	m.lag = d
	m.advance()
}

// The method `asked` returns the request that x answers, if a client of m has sent that request.
// Otherwise, it returns nil. A leader knows the request from which it made x. A follower acts like
// ZooKeeper's CommitProcessor: it takes its first waiting request if that request has the session
// and the xid of x. If a client uses an xid twice, the first waiting request can be the wrong one.
func (m *member) asked(x *txn) *pending {
	if m.ld != nil {
		if x.origin != nil && x.origin.m == m {
			return x.origin
		}
		return nil
	}
	if len(m.writes) == 0 {
		return nil
	}
	p := m.writes[0]
	if session, xid := x.request(); p.who.session != session || p.r.Xid != xid {
		return nil
	}
	return shift(&m.writes)
}

// The method `request` returns the session and the xid by which followers identify x. The xid is 0
// if x is a leader's own decision to end a session.
func (x *txn) request() (session int64, xid int32) {
	if x.origin == nil {
		return x.closed, 0
	}
	return x.origin.who.session, x.origin.r.Xid
}

// The method `apply` applies the first transaction of the log and fires the watches. If a client of
// m sent the request of the transaction, the method answers that request.
func (m *member) apply() {
	x := shift(&m.logged)
	s, t := m.s, m.s.leader.tree
	p := m.asked(x)
	body := p.start(x)
	for i := range x.changes {
		t.apply(x, &x.changes[i])
		body = p.result(body, x, i)
	}
	t.zxid = x.zxid
	for i := range x.changes {
		s.fire(s.leader, &x.changes[i])
	}
	if o := x.opened; o == nil {
	} else if known := s.sessions[o.id]; known != nil {
		known.timeout = o.timeout // m knows the session, because the client connected to m before this transaction reached m
	} else {
		s.sessions[o.id] = &session{id: o.id, password: o.password, timeout: o.timeout, granted: o.timeout}
	}
	var ended *conn
	if old := s.sessions[x.closed]; old != nil {
		ended = old.conn
		old.conn = nil
		delete(s.sessions, x.closed)
	}
	if p != nil {
		if x.opened != nil {
			m.welcome(p, s.sessions[x.opened.id])
		} else {
			p.body, p.code = p.end(body, x)
			p.finish()
		}
	}
	if ended != nil {
		ended.finish() // after the reply, if the client asked for the end of the session
	}
	if m.ld != nil {
		m.ld.applied(x)
	}
}

// The method `start` begins the body of the reply to p, a request that x answers.
func (p *pending) start(x *txn) []byte {
	if p == nil || !p.fits(x) || p.r.Op != OpMulti || x.code == CodeOK {
		return nil
	}
	return appendFailed(nil, len(x.origin.r.Ops), x.failed, x.code)
}

// The method `result` adds the result of change i of x. It is called right after the change.
func (p *pending) result(b []byte, x *txn, i int) []byte {
	switch {
	case p == nil || !p.fits(x) || p.r.Op == OpCloseSession:
		return nil
	case p.r.Op == OpMulti:
		op := x.origin.r.Ops[i].Op
		b = appendMultiHeader(b, op.resultInMulti(), 0)
		return p.m.s.appendResult(b, op, &x.changes[i])
	case p.m.s.leader.tree.get(x.changes[i].path) == nil && p.r.Op != OpCreate:
		return nil // there is no znode, so no Stat
	}
	return p.m.s.appendResult(b, p.r.Op, &x.changes[i])
}

// The method `fits` reports whether the result of x has the form of a reply to p. If a client has
// used an xid twice, p may not be the request of x.
func (p *pending) fits(x *txn) bool {
	return x.origin != nil && (x.origin.r.Op == OpMulti) == (p.r.Op == OpMulti)
}

// The method `end` completes the body of the reply, and returns it with the code of the reply. The
// code for a failed multi is OK, unless the session is not allowed to write at all.
func (p *pending) end(b []byte, x *txn) ([]byte, int32) {
	switch {
	case p.r.Op != OpMulti || x.connection():
		return b, x.code
	case p.fits(x):
		return appendMultiEnd(b), CodeOK
	case x.code != CodeOK:
		return nil, x.code
	}
	return nil, CodeMarshallingError
}

// The method `connection` reports whether x failed because of the session, not because of the
// request.
func (x *txn) connection() bool {
	return x.code == CodeSessionExpired || x.code == CodeSessionMoved
}

// Serving clients.

// The method `touch` records a sign of life of a session's client.
func (m *member) touch(id int64, timeout time.Duration) {
	if m.ld != nil {
		m.ld.touch(id, timeout)
		return
	}
	m.table[id] = timeout
}

// The method `take` accepts a request. m answers reads itself, and answers all requests of a
// session in order. The result is whether another request may follow.
func (m *member) take(c *conn, r *Request, action Action) bool {
	p := &pending{m: m, c: c, r: *r, action: action, who: c.who()}
	if r.Op.proves() {
		m.put(p)
	} else {
		m.inTurn(func() { m.put(p) })
	}
	return action.kind.repeats() && !c.closing && r.Op != OpCloseSession
}

// inTurn calls `do`. If m leads, it calls `do` after all earlier requests in the leader's queue. If
// m follows, it calls `do` at once.
func (m *member) inTurn(do func()) {
	if m.ld != nil {
		m.ld.enqueue(do)
	} else {
		do()
	}
}

// The method `put` appends a request to the queue of its session.
func (m *member) put(p *pending) {
	x := p.c.session
	x.queue = append(x.queue, p)
	switch {
	case p.action.kind == actDropRequest || p.action.kind == actHang || p.action.kind.fails():
	case p.r.Op.agreed():
		p.waits = true
		m.ask(p)
	case p.r.Op == OpSync && m.ld == nil:
		p.waits = true
		m.writes = append(m.writes, p)
		t := m.tie
		t.toLeader(func() { t.ld.enqueue(func() { t.ld.sync(t, p) }) })
	}
	x.drain()
}

// The method `agreed` reports whether op is a transaction.
func (op Op) agreed() bool {
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpSetACL, OpCheck, OpMulti, OpCloseSession:
		return true
	}
	return false
}

// The method `ask` asks the leader for the transaction of p.
func (m *member) ask(p *pending) {
	if m.ld != nil {
		m.ld.request(p)
		return
	}
	m.writes = append(m.writes, p)
	t := m.tie
	t.toLeader(func() { t.ld.enqueue(func() { t.ld.request(p) }) })
}

// The method `finish` is called when p.body and p.code are the reply to p. The reply is sent in its
// turn.
func (p *pending) finish() {
	p.done = true
	p.c.session.drain()
}

// The method `drain` answers the requests of x's queue in order, up to the first request that waits
// for the leader. Requests of an earlier connection also block later requests. At the leader,
// requests through a follower block later requests, too. So if a client reconnects to this member,
// the member shows it the effects of all its earlier requests through this member.
func (x *session) drain() {
	for len(x.queue) > 0 {
		p := x.queue[0]
		if p.waits && !p.done {
			return
		}
		shift(&x.queue)
		if p.c != nil && !p.c.closing {
			p.c.settle(p)
		}
	}
}

// The method `settle` answers p, or carries out the action of p.
func (c *conn) settle(p *pending) {
	s := c.s
	switch p.action.kind {
	case actDropRequest:
		c.finish()
		return
	case actHang:
		c.hang()
		return
	}
	b := startFrame(nil)
	code := p.action.code
	switch {
	case c.fails(&p.r, p.action):
	case p.waits && p.code == CodeSessionMoved:
		c.finish() // like ZooKeeper: the client has moved to another server
		return
	case p.waits:
		b, code = append(b, p.body...), p.code
	default:
		b, code = s.handle(c, &p.r, b)
	}
	if code != CodeOK {
		b = b[:frameStart]
	}
	zxid := s.leader.tree.zxid
	if p.r.Op.proves() {
		zxid = 0
	}
	finishFrame(b, p.r.Xid, zxid, code)
	c.answer(&p.r, p.action, b, code)
}

// The method `connect` carries out a handshake; see conn.greet.
func (m *member) connect(c *conn, r *Request, action Action) (wait <-chan bool, ok bool) {
	s := m.s
	if !m.serving() {
		c.finish()
		return nil, false
	}
	if action.kind.fails() {
		return nil, c.welcome(nil, r, action)
	}
	p := &pending{m: m, c: c, r: *r, action: action, ready: make(chan bool, 1)}
	timeout := s.grant(r)
	id := r.Session
	if s.changeling[id] {
		delete(s.changeling, id)
		id = 0
	}
	if id == 0 {
		s.lastSession++
		p.who = requester{session: s.lastSession}
		p.r.timeout = int32(timeout / time.Millisecond)
		m.inTurn(func() { m.ask(p) })
		return p.ready, false
	}
	if x := s.sessions[id]; x != nil {
		x.leave(c)
	}
	if !bytes.Equal(m.e.password(id), r.password) {
		return nil, c.welcome(nil, r, action)
	}
	if m.ld != nil {
		m.resume(p, id, timeout, m.ld.resume(m, id, timeout))
		return p.ready, false
	}
	t := m.tie
	t.toLeader(func() {
		valid := t.ld.resume(m, id, timeout)
		t.toFollower(func() { m.resume(p, id, timeout, valid) })
	})
	return p.ready, false
}

// The method `resume` continues a handshake after the leader's answer. The argument `valid` says
// whether the session exists.
func (m *member) resume(p *pending, id int64, timeout time.Duration, valid bool) {
	if !valid {
		m.welcome(p, nil)
		return
	}
	x := m.s.sessions[id]
	if x == nil { // m has yet to apply the begin of the session
		x = &session{id: id, password: m.e.password(id)}
		m.s.sessions[id] = x
	}
	x.granted = timeout
	m.welcome(p, x)
}

// The method `welcome` ends a handshake: the client gets the session x, or learns that its session
// has expired if x is nil.
func (m *member) welcome(p *pending, x *session) {
	if p.c.closing {
		return // the reader of the connection ends by itself
	}
	if x != nil {
		x.leave(p.c)
		p.c.adopt(x)
	}
	p.ready <- p.c.welcome(x, &p.r, p.action)
}

// The method `password` returns the password of a session. Every member can compute this password.
func (e *Ensemble) password(id int64) []byte {
	sum := sha1.Sum(binary.BigEndian.AppendUint64(e.secret[:], uint64(id)))
	return sum[:passwordLen]
}
