package session

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A link is one network connection of a session. Requests are encoded straight into
// its buffer, and their replies are decoded as they come, without a goroutine for
// each. What it does besides:
//
//   - The handshake. Only the first link of an incarnation may open a session,
//     and later links may only continue it: an expired session, or another
//     session id without any word of expiry, ends the incarnation. So no request
//     ever runs in a session that it was not made for.
//   - Credentials are sent with the handshake, and watches right behind it, ahead
//     of every request.
//   - A new connection of a session shows nothing older than the one before:
//     its server catches up with the leader ahead of every request.
//   - The watch flag of a read is set when Watches wants that znode watched, and
//     events go to Watches.
//   - What is sent and answered, and when, is noted: see liveness.
//   - Deadlines: a handshake may not hang, and silence is noticed early enough
//     to try another server before the session must be given up.
//
// What is requested while nothing else is under way is written by who requests
// it (put). All else is written by one goroutine, which takes all there
// is: what is requested while it writes, or before it runs, goes in one write.
// It has no deadline of its own. A server that does not read does not answer
// either, and that is noticed by whoever reads.
type link struct {
	net.Conn               // the socket
	addr     string        // of the server
	inc      *Incarnation  // whose session this is
	r        *bufio.Reader // of Conn; used by the reading goroutine alone
	head     [replyHeader]byte
	body     []byte // of the last reply; used by the reading goroutine alone

	shook      atomic.Bool   // the handshake is over
	limit      time.Duration // for the server to be reached, and to answer the handshake
	hardLimit  time.Time     // when limit is over
	asked      time.Time     // when the handshake was sent
	wanted     time.Duration // the session timeout that the handshake asks for
	relative   int64         // the last zxid that the session had seen at the handshake
	closeOnce  sync.Once
	closeError error
	closed     chan struct{} // closed by Close

	wmu   sync.Mutex // held while a packet is put in its place in the order; taken before Watches.Mu
	out   []byte     // packets that are not written yet; guarded by wmu
	spare []byte     // what out is made of next; guarded by wmu
	busy  bool       // somebody writes what was in out; guarded by wmu
	more  chan struct{}

	dmu  sync.Mutex
	due  time.Time // the read deadline that is set; guarded by dmu
	went time.Time // when the last stride came or went; guarded by dmu

	heard time.Time // when the last reply came, or zero; used by the reading goroutine alone
	reset int       // answers to setWatches; used by the reading goroutine alone

	useful bool // the server has carried a request out; used by the reading goroutine alone

	mu    sync.Mutex         // guards what follows; taken before Incarnation.LiveMu
	sent  map[int32]sentInfo // requests without a reply, by xid
	order []int32            // the xids of sent as they were sent, and some that have been answered
	pings []stamp            // pings without a reply, oldest first
	state linkState
}

// A linkState is whether a link takes requests.
type linkState int

const (
	linkNew  linkState = iota // not before the session has heard of the connection
	linkOpen                  // yes
	linkOver                  // not any more, and those without a reply have failed
)

// A request is one of the session's own.
type request interface {
	// encode appends what follows the header.
	encode(p []byte) []byte
	// key returns what a watch on what is read would be of.
	key() (key WatchKey, ok bool)
	opcode() int32
	// moot reports whether it changes nothing, whenever it is carried out.
	moot() bool
	// answer is given the reply. It returns the code that the reply has as a
	// whole, and whether the reply was one at all.
	answer(code int32, body []byte) (whole int32, ok bool)
	// done lets the caller go on.
	done()
	// fail is told that there will be no reply.
	fail(err error)
}

// sentInfo is what the link remembers of a request until its reply.
type sentInfo struct {
	at  stamp
	op  int32
	ask *ask    // what Watches makes of the reply, if the read carries a watch
	r   request // nil if the link has asked by itself

	deletes []string // the paths that it deletes, if that is traced
}

// harms reports whether harm may come of a request that is carried out late.
func (info *sentInfo) harms() bool {
	switch info.op {
	case wire.OpCreate, wire.OpCreateContainer, wire.OpDelete, wire.OpSetData, wire.OpMulti:
		return info.r != nil && !info.r.moot()
	}
	return false
}

func newLink(inc *Incarnation, c net.Conn, addr string, limit time.Duration, deadline time.Time) *link {
	return &link{
		Conn:      c,
		addr:      addr,
		inc:       inc,
		r:         bufio.NewReaderSize(c, 8<<10),
		limit:     limit,
		hardLimit: deadline,
		closed:    make(chan struct{}),
		more:      make(chan struct{}, 1),
		sent:      make(map[int32]sentInfo),
	}
}

// open is told that the session has heard of the connection: requests may come.
func (l *link) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkNew {
		l.state = linkOpen
	}
}

// over is told that nothing comes from the connection any more. What has had no
// reply has none.
func (l *link) over() { l.fail(zk.ErrConnectionClosed) }

// fail has no more requests sent, and those without a reply fail with err.
func (l *link) fail(err error) {
	l.mu.Lock()
	lost := l.sent
	l.state, l.sent, l.order = linkOver, nil, nil
	l.mu.Unlock()
	if err != errUnsent { // else the server has said that it executes none of them
		for _, info := range lost {
			if info.harms() {
				l.inc.trail.leave(l.addr)
				break
			}
		}
	}
	for _, info := range lost {
		if info.r != nil {
			info.r.fail(err)
		}
	}
}

// send puts requests on their way, one right behind the other. It reports false
// if the link takes none, or none any more; then none of them was sent.
func (l *link) send(rs ...request) bool {
	if !l.shook.Load() {
		return false // it is not open yet, and holds wmu while a server is silent
	}
	mine, ok := l.put(rs)
	if mine != nil {
		l.writeOut(mine)
	}
	return ok
}

// sendOrFail is send, but what is not sent fails: the connection has just gone.
func (l *link) sendOrFail(rs ...request) {
	if !l.send(rs...) {
		for _, r := range rs {
			r.fail(errUnsent)
		}
	}
}

// directly is how long the packets may be that are written by who requests them.
const directly = 4 << 10

// put puts requests into out. If it returns packets these are they, and the caller is to
// write them itself: then all that was sent before is answered, what went with the
// handshake included. So the server has read it, the socket's buffer is empty, and the
// write does not wait, whatever the server does from here on. What others request
// meanwhile, of which there may be much, is not for the caller.
func (l *link) put(rs []request) (mine []byte, ok bool) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkOpen || l.inc.Ctx.Err() != nil {
		return nil, false
	}
	alone := !l.busy && len(l.out)+len(l.sent)+len(l.pings) == 0
	at := l.inc.sending()
	for _, r := range rs {
		xid := l.inc.nextXid()
		info := sentInfo{at: at, op: r.opcode(), r: r}
		start := len(l.out)
		l.out = r.encode(wire.AppendHeader(l.out, xid, info.op))
		if key, ok := r.key(); ok {
			var flag byte
			if info.ask = l.inc.Watches.ask(key); info.ask != nil {
				flag = 1
			}
			l.out = append(l.out, flag)
		}
		wire.EndPacket(l.out[start:])
		if l.inc.Manager.Trace != nil {
			info.deletes = wire.Deletes(info.op, l.out[start+12:])
		}
		l.sent[xid] = info
		l.order = append(l.order, xid)
	}
	l.inc.Manager.requests.Add(int64(len(rs)))
	if n := len(l.out); alone && 0 < n && n <= directly { // it is empty if rs is
		return l.takeLocked(), true
	}
	l.wroteLocked()
	return nil, true
}

// takeLocked takes what is in out for the caller to write.
func (l *link) takeLocked() (p []byte) {
	p, l.out, l.spare, l.busy = l.out, l.spare, nil, true
	return p
}

// wroteLocked has what is in out written.
func (l *link) wroteLocked() {
	select {
	case l.more <- struct{}{}:
	default: // it will be seen with what is there already
	}
}

// lastWords is for how long a connection is read over which nothing can be written any more. A
// server that hung up ends it sooner.
const lastWords = 20 * time.Millisecond

// keptBuffer is how large a buffer is kept for the next packets.
const keptBuffer = 64 << 10

// write writes packets until the link is closed.
func (l *link) write() {
	ticker := time.NewTicker(l.inc.pingEvery())
	defer ticker.Stop()
	for {
		select {
		case <-l.more:
		case <-ticker.C:
			l.ping()
		case <-l.closed:
			return
		}
		var p []byte
		l.wmu.Lock()
		if !l.busy && len(l.out) > 0 { // else it has gone, or goes when somebody else has written
			p = l.takeLocked()
		}
		l.wmu.Unlock()
		if p != nil {
			l.writeOut(p)
		}
	}
}

// writeOut writes p, for who has taken it.
func (l *link) writeOut(p []byte) {
	err := l.writeAll(p, l.moved)
	if err != nil {
		// The packets may be there in part, so nothing is written behind them. The connection ends, but
		// the reader first reads what a server has said that hung up: why it did.
		time.AfterFunc(lastWords, func() { l.Close() })
	}
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if cap(p) <= keptBuffer {
		l.spare = p[:0]
	}
	if l.busy = err != nil; !l.busy && len(l.out) > 0 {
		l.wroteLocked()
	}
}

// A deadline moves with the bytes. Otherwise what takes longer than one over a slow link would fail,
// and be tried again as it was, for ever. A long packet comes or goes in strides, and each stride has
// as much time as an answer. A packet has about 64 strides at most: so a server that trickles holds up
// the answers to pings behind it for 32 session timeouts at most. A stride says nothing of the session:
// whatever is held rests on answers alone, see liveness.
const stride = 16 << 10

// strideOf is the stride of a packet of n bytes.
func strideOf(n int) int { return max(stride, n/64) }

// writeAll writes p, and calls moved after each stride but the last.
func (l *link) writeAll(p []byte, moved func()) error {
	for step := strideOf(len(p)); len(p) > step; p = p[step:] {
		if _, err := l.Conn.Write(p[:step]); err != nil {
			return err
		}
		moved()
	}
	_, err := l.Conn.Write(p)
	return err
}

// moved is told that a stride of a long packet has come or gone.
func (l *link) moved() {
	now := time.Now()
	l.dmu.Lock()
	l.went = now
	l.dmu.Unlock()
	l.inc.moved(now)
	l.deadline(now.Add(l.inc.silence()))
}

// connect opens the session over l, or continues it. It runs in the goroutine that reads,
// when no other uses l.
func (l *link) connect() error {
	if l.inc.Ctx.Err() != nil {
		return net.ErrClosed // a session must not be opened after the end
	}
	l.relative = l.inc.zxid.Load()
	timeout := l.inc.Manager.Config.Timeout
	l.inc.LiveMu.Lock()
	password := l.inc.password
	l.inc.LiveMu.Unlock()
	id := l.inc.ID.Load()
	if id == 0 {
		password = make([]byte, 16)
	} else {
		timeout = time.Duration(l.inc.Timeout.Load())
	}
	// Credentials go with the handshake, which saves a round trip. A server does not
	// read on before the session is established, and answers in this order.
	l.wanted = timeout
	out := wire.Connect(l.relative, timeout, id, password)
	for _, a := range l.inc.Manager.Config.Auths {
		out = append(out, authPacket(a)...)
	}
	l.asked = time.Now()
	if id != 0 {
		l.inc.LiveMu.Lock()
		l.inc.Live.try(l.asked, l.inc.leastGrant(l.addr))
		l.inc.LiveMu.Unlock()
	}
	l.Conn.SetDeadline(l.hardLimit)
	if _, err := l.Conn.Write(out); err != nil {
		return err
	}
	return l.handshake()
}

// read deals with what the server sends, until the connection ends.
func (l *link) read() {
	for l.nextPacket() == nil {
	}
}

// begin appends the header of a request that the link makes by itself. wmu is held.
func (l *link) begin(p []byte, op int32) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	xid := l.inc.nextXid()
	if l.state != linkOver {
		l.sent[xid] = sentInfo{at: l.inc.sending(), op: op}
		l.order = append(l.order, xid)
	}
	return wire.AppendHeader(p, xid, op)
}

func (l *link) ping() {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.mu.Lock()
	l.pings = append(l.pings, l.inc.sending())
	l.mu.Unlock()
	l.out = append(l.out, wire.EndPacket(wire.AppendHeader(nil, wire.XidPing, wire.OpPing))...)
	l.wroteLocked()
}

// bye asks the server to end the session.
func (l *link) bye() {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.out = append(l.out, wire.EndPacket(l.begin(nil, wire.OpCloseSession))...)
	l.inc.Manager.requests.Add(1)
	l.wroteLocked()
}

// replyHeader is the size of what every packet of a server begins with: its
// length, xid, zxid and error code.
const replyHeader = 20

// nextPacket reads a packet.
//
// What ends in an error here is never seen by anyone, nor is anything behind it.
func (l *link) nextPacket() error {
	l.patience()
	if _, err := io.ReadFull(l.r, l.head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(l.head[:]))
	if size < replyHeader-4 || size > wire.MaxReply {
		return fmt.Errorf("%w: packet of %d bytes", ErrProtocol, size)
	}
	xid, code := int32(binary.BigEndian.Uint32(l.head[4:])), int32(binary.BigEndian.Uint32(l.head[16:]))
	now, n := time.Now(), int(size)-(replyHeader-4)
	if xid != wire.XidEvent { // which a server may tell who does not hear us any more
		// The deadline may have been that of this request or another: what has begun
		// may take its time.
		l.deadline(now.Add(l.inc.silence()))
		if l.heard = now; l.r.Buffered() < n {
			defer func() { l.heard = time.Now() }()
		}
	}
	body, err := l.readBody(n, xid)
	if err != nil {
		return err
	}
	l.inc.sight.see(xid, int64(binary.BigEndian.Uint64(l.head[8:])))
	if xid != wire.XidEvent && code == wire.CodeWantsAuth {
		return l.refused(codeError(code))
	}
	switch xid {
	case wire.XidEvent:
		return l.event(body)
	case wire.XidSetWatches:
		if code != 0 {
			// The server has none of them. They are set again on the next
			// connection; until then nobody must be answered.
			return fmt.Errorf("zsync: the server has refused to set the watches again (error %d)", code)
		}
		l.reset++
		l.moved()
	}
	switch {
	case code == wire.CodeSessionMoved, code == wire.CodeSessionExpired && l.disowned():
		l.inc.Manager.Pace.again()
		return codeError(code)
	case xid >= 0:
		l.served()
	}
	return l.received(xid, code, body, now)
}

// served notes that the server carries requests out.
func (l *link) served() {
	if !l.useful {
		l.useful = true
		l.inc.Manager.fit()
	}
}

// refused is told that the server carries out nothing for this client, and hangs up. The
// Session ends when every server has refused the client, or could not be reached, since one of
// them has carried out a request: another attempt cures nothing, and each caller must learn why.
func (l *link) refused(err error) error {
	l.fail(errUnsent) // what is behind the request that was refused is not executed either
	m := l.inc.Manager
	m.unfit(l.addr, fmt.Errorf("%s: %w", l.addr, err))
	if m.noneFits() {
		l.inc.fail(err)
	}
	return err
}

// maxDisowned is how many connections in a row disowned gives up.
const maxDisowned = 3

// A server that serves a session may answer to a request that the session has moved, or has
// expired. It did not execute the request, and goes on to answer so over this connection.
//
// The session has moved when another server has asked the leader late to continue it. The next
// handshake makes its server the owner again, so that cures it each time.
//
// If the session has expired the next handshake says so. disowned reports whether the connection
// ends. If the handshake succeeds three times, within a second each, the servers contradict
// themselves: a server with localSessionsEnabled does, because the leader does not know its
// sessions. Then the caller gets the answer.
func (l *link) disowned() bool {
	if time.Since(l.asked) >= lasting {
		l.inc.disowned = 0
	}
	if l.inc.disowned == maxDisowned {
		return false
	}
	l.inc.disowned++
	return true
}

// readBody reads the n bytes of the packet xid, which are good until the next packet.
//
// The strides count of the reply alone that is due next, and each request has one reply: so a server
// that does not answer a request cannot keep the connection by telling other things at length.
func (l *link) readBody(n int, xid int32) ([]byte, error) {
	body, step := l.body[:0], strideOf(n)
	switch {
	case n > wire.MaxAhead: // sizes cost a server nothing: make room as the bytes come
		body = make([]byte, 0, keptBuffer)
	case n > cap(body):
		body = make([]byte, 0, n)
	}
	for expected := n > step && l.expects(xid); len(body) < n; {
		if len(body) == cap(body) {
			body = append(make([]byte, 0, min(n, 4*cap(body))), body...)
		}
		more := body[len(body):min(n, cap(body), len(body)+step)]
		if _, err := io.ReadFull(l.r, more); err != nil {
			return nil, err
		}
		if body = body[:len(body)+len(more)]; expected {
			l.moved()
		}
	}
	if cap(body) <= keptBuffer {
		l.body = body
	}
	return body, nil
}

// expects reports whether the reply that is due next is that to xid.
func (l *link) expects(xid int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order) > 0 && l.order[0] == xid
}

// event tells Watches of an event.
func (l *link) event(body []byte) error {
	s := wire.Scanner{Rest: body}
	t := zk.EventType(s.Int32())
	s.Int32() // the state of the server
	path := s.String()
	if s.Bad || t < zk.EventNodeCreated || t > zk.EventNodeChildrenChanged {
		return fmt.Errorf("%w: event of type %d", ErrProtocol, t)
	}
	l.inc.Watches.fire(t, path)
	return nil
}

// maxGranted is a session timeout that a server may grant whatever was asked for.
const maxGranted = 2 * time.Minute

// handshake reads the reply to the connect request and decides whether this
// link may go on.
func (l *link) handshake() error {
	var size [4]byte
	switch _, err := io.ReadFull(l.r, size[:]); {
	case errors.Is(err, io.EOF) && !isTLS(l.Conn):
		return fmt.Errorf("%w instead of an answer to the handshake; a server that speaks TLS (see WithTLS) may do so", err)
	case err != nil:
		return err
	case size[0] == 21 && size[1] == 3 && !isTLS(l.Conn): // an alert of TLS, version 1.x
		return fmt.Errorf("%w: the server speaks TLS: use WithTLS", errHandshake)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 20 || n > wire.MaxHandshake {
		return fmt.Errorf("%w: reply of %d bytes", errHandshake, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(l.r, body); err != nil {
		return err
	}
	timeout := time.Duration(int32(binary.BigEndian.Uint32(body[4:]))) * time.Millisecond
	id := int64(binary.BigEndian.Uint64(body[8:]))
	if id != 0 && timeout <= 0 || binary.BigEndian.Uint32(body[16:]) > n-20 {
		return fmt.Errorf("%w: session of %v", errHandshake, timeout)
	}
	if asked := l.inc.Manager.Config.Timeout; id != 0 && timeout > max(10*asked, maxGranted) {
		// To believe it would be to wait for that server for as long, and for no other.
		l.endSession()
		return fmt.Errorf("%w: a session timeout of %v, where %v was asked for: see WithSessionTimeout, and the server's minSessionTimeout", errHandshake, timeout, asked)
	}

	l.wmu.Lock()
	defer l.wmu.Unlock()
	continued := l.inc.ID.Load() != 0
	if err := l.inc.handshake(l, id, timeout); err != nil {
		switch {
		case id == 0:
		case id == l.inc.ID.Load() && !IsClosed(l.inc.Manager.Over):
			// The incarnation has ended meanwhile, and those who held something
			// have only just been told. endOrphan ends the session when they
			// have had their time; left out, it would live for another timeout,
			// as this handshake has touched it.
			l.inc.abandon()
		case id == l.inc.ID.Load():
			// The whole Session is closed.
			l.inc.lastly(l.endSession)
		default:
			l.endSession() // nobody will use it: it is not the one that was asked for
		}
		return err
	}
	// Behind the handshake, ahead of every call.
	var out []byte
	if continued && l.inc.staked() {
		out = append(out, l.confirmPacket()...)
	}
	portions := l.inc.Watches.resend(l.relative)
	atOnce := min(len(portions), portionsAhead)
	for _, p := range portions[:atOnce] {
		out = append(out, p...)
	}
	if continued && atOnce == len(portions) {
		out = append(out, l.catchUpPacket()...)
	}
	if len(out) > 0 {
		err := l.writeAll(out, func() { l.Conn.SetDeadline(time.Now().Add(l.limit)) })
		if err != nil {
			return err
		}
	}
	if err := l.authenticated(len(l.inc.Manager.Config.Auths)); err != nil {
		return err
	}
	if atOnce < len(portions) {
		if err := l.resendRest(portions[atOnce:]); err != nil {
			return err
		}
	}
	l.inc.LiveMu.Lock()
	l.inc.password = passwordIn(body)
	l.inc.LiveMu.Unlock()
	l.inc.ID.Store(id)
	l.Conn.SetDeadline(time.Time{})
	l.dmu.Lock()
	l.due = time.Time{}
	l.dmu.Unlock()
	l.shook.Store(true)
	l.inc.Manager.Spawn(l.write)
	return nil
}

// portionsAhead is how many portions of watches are sent before the first of them is answered.
const portionsAhead = 4

// resendRest sets the watches that are left again. Each portion is sent when an earlier one was
// answered, for which that has as much time as any answer: so a handshake does not fail for ever over a
// slow link, however many watches there are. While something is held the session is confirmed with
// each portion: requests, inquiries among them, wait until the handshake is over.
func (l *link) resendRest(portions [][]byte) error {
	for i, p := range portions {
		for l.reset <= i {
			if err := l.nextPacket(); err != nil {
				return err
			}
		}
		if l.inc.staked() {
			p = append(l.confirmPacket(), p...)
		}
		if i == len(portions)-1 {
			p = append(p, l.catchUpPacket()...)
		}
		l.Conn.SetDeadline(time.Now().Add(l.inc.silence()))
		if _, err := l.Conn.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// catchUpPacket is the sync with which a connection begins that continues a session.
//
// What a server tells in an event is not in the zxid that the handshake shows to the next server. So
// a server from before the event would take the session, and show what the event has told to be
// over: a place that is gone, permits that are taken. A session that begins needs no such thing: its
// server has applied its beginning, which comes after everything that was seen before.
func (l *link) catchUpPacket() []byte {
	return wire.EndPacket(wire.AppendString(l.begin(nil, wire.OpSync), "/"))
}

// endSession has the server end the session of the handshake.
func (l *link) endSession() {
	l.Conn.Write(wire.AppendHeader(nil, l.inc.nextXid(), wire.OpCloseSession))
}

// passwordIn returns the password in the reply to a handshake, whose size has been
// looked at.
func passwordIn(body []byte) []byte {
	return bytes.Clone(body[20 : 20+binary.BigEndian.Uint32(body[16:])])
}

func isTLS(c net.Conn) bool {
	_, ok := c.(*tls.Conn)
	return ok
}

// confirmPacket is the write that makes a session certain again that is continued
// while something is held: see liveness. It deletes where there is no znode.
func (l *link) confirmPacket() []byte {
	l.inc.LiveMu.Lock()
	l.inc.Live.pending = true
	l.inc.LiveMu.Unlock()
	l.inc.Manager.requests.Add(1)
	p := wire.AppendString(l.begin(nil, wire.OpDelete), l.inc.nobody)
	return wire.EndPacket(binary.BigEndian.AppendUint32(p, math.MaxUint32)) // any version
}

// authenticated reads the replies to n credentials, which come before all
// others. A refusal ends the Session.
func (l *link) authenticated(n int) error {
	for range n {
		var head [replyHeader]byte
		if _, err := io.ReadFull(l.r, head[:]); err != nil {
			return err
		}
		switch size, xid, code := binary.BigEndian.Uint32(head[:]), int32(binary.BigEndian.Uint32(head[4:])), binary.BigEndian.Uint32(head[16:]); {
		case size != replyHeader-4 || xid != wire.XidAuth:
			return fmt.Errorf("%w: no answer to credentials", ErrProtocol)
		case code != 0:
			l.inc.fail(zk.ErrAuthFailed)
			return zk.ErrAuthFailed
		}
	}
	return nil
}

// received is told of each packet that came in but events, and of when it began to
// come: what it says was so by then. It runs in the goroutine that reads.
func (l *link) received(xid, code int32, body []byte, now time.Time) error {
	l.mu.Lock()
	if xid == wire.XidPing {
		var at stamp
		if len(l.pings) > 0 {
			at, l.pings = l.pings[0], l.pings[1:]
		}
		l.mu.Unlock()
		l.inc.contact(at, proofOf(wire.OpPing, code), now)
		return nil
	}
	info, ok := l.sent[xid]
	delete(l.sent, xid)
	if info.op == wire.OpCreateContainer && code == wire.CodeUnimplemented {
		l.inc.Manager.noContainers.Store(true)
	}
	done := 0
	for done < len(l.order) {
		if _, waits := l.sent[l.order[done]]; waits {
			break
		}
		done++
	}
	l.order = l.order[:copy(l.order, l.order[done:])]
	l.mu.Unlock()
	if !ok {
		return nil // a reply without a request of its own: credentials, watches
	}
	if info.r == nil {
		return l.own(info, code, now)
	}
	l.inc.seen(int64(binary.BigEndian.Uint64(l.head[8:])))
	if info.ask != nil {
		l.inc.Watches.answered(info.ask, code, ownerOf(code, body) == l.inc.ID.Load())
	}
	// Watches and the liveness know before the caller goes on.
	whole, ok := info.r.answer(code, body)
	if !ok {
		info.r.fail(zk.ErrConnectionClosed) // it may have been applied
		return fmt.Errorf("%w: malformed reply to a request of type %d", ErrProtocol, info.op)
	}
	l.inc.contact(info.at, proofOf(info.op, whole), now)
	l.deleted(info, whole)
	info.r.done()
	return nil
}

// own deals with the reply to a request that the link has made by itself. Its zxid
// does not count as seen: the next connection would ask only for the events after
// it, and those before it may not have come, as the watches are set behind the
// confirmation.
func (l *link) own(info sentInfo, code int32, now time.Time) error {
	switch info.op {
	case wire.OpCloseSession:
		if code == 0 {
			l.inc.endedOnServer()
			return io.EOF
		}
	case wire.OpSync:
		if code != 0 {
			// Before anything behind it is believed.
			return fmt.Errorf("zsync: the server cannot catch up with its leader (error %d)", code)
		}
		l.inc.trail.caughtUp(l.addr)
	case wire.OpDelete:
		l.inc.contact(info.at, proofOf(info.op, code), now)
	}
	return nil
}

// deleted tells the trace what became of a deletion. A znode that is not there has
// been deleted before, in a transaction whose reply was lost.
func (l *link) deleted(info sentInfo, code int32) {
	zxid := int64(binary.BigEndian.Uint64(l.head[8:]))
	switch {
	case code == 0:
	case code == wire.CodeNoNode && info.op == wire.OpDelete:
		zxid = 0
	default:
		return
	}
	for _, path := range info.deletes {
		l.inc.Manager.Trace.Gone(path, zxid)
	}
}

// removeWatch asks the server to forget a watch, unless somebody waits for it
// again. It reports whether l is still the newest link; otherwise it has done
// nothing.
//
// wmu is held from the decision until the request has its place in the order, so whatever read
// sets the watch anew is behind it. A handshake holds wmu too, from the packets
// that set the watches again to its end: what is forgotten before is not among
// them, and what is forgotten after is removed.
func (l *link) removeWatch(key WatchKey) (newest bool) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if !l.inc.newest(l) {
		return false
	}
	if !l.inc.Watches.forget(key) || !l.shook.Load() {
		return true
	}
	p := wire.AppendString(l.begin(nil, wire.OpRemoveWatches), key.Path)
	l.out = append(l.out, wire.EndPacket(wire.AppendInt32(p, key.Kind.watcherType()))...)
	l.wroteLocked()
	l.inc.Manager.requests.Add(1)
	return true
}

// patience bounds the wait for the next packet: silence is noticed, though there may be
// events, and so is a request that is not answered though pings are. A request that is
// sent while a packet is awaited has its time after the deadline that was set; before the
// next packet it is looked at.
func (l *link) patience() {
	if l.heard.IsZero() {
		l.heard = time.Now()
	}
	due := l.heard.Add(l.inc.silence())
	l.mu.Lock()
	if len(l.order) > 0 {
		if d := l.sent[l.order[0]].at.at.Add(l.inc.silence()); d.Before(due) {
			due = d
		}
	}
	l.mu.Unlock()
	l.deadline(due)
}

// deadline sets the read deadline to due, or to when the next stride is due if that is later. It leaves
// it where it is if that is a little earlier: a deadline that moved with every packet would cost more
// than the packet.
func (l *link) deadline(due time.Time) {
	silence := l.inc.silence()
	l.dmu.Lock()
	defer l.dmu.Unlock()
	if next := l.went.Add(silence); due.Before(next) {
		due = next
	}
	if l.due.IsZero() || due.Before(l.due) || due.Sub(l.due) > silence/16 {
		l.due = due
		l.Conn.SetReadDeadline(due)
	}
}

// Close closes the socket. It may be called by anyone, any number of times. It
// does not wait for TLS to say goodbye, which a server that is away would not
// hear: nothing may be sent any more from here on.
func (l *link) Close() error {
	l.closeOnce.Do(func() {
		close(l.closed)
		c := l.Conn
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		l.closeError = c.Close()
	})
	return l.closeError
}

func authPacket(a Auth) []byte {
	p := wire.AppendHeader(nil, wire.XidAuth, wire.OpAuth)
	p = binary.BigEndian.AppendUint32(p, 0)
	p = wire.AppendString(p, a.Scheme)
	return wire.EndPacket(wire.AppendString(p, string(a.Credentials)))
}

// ownerOf returns the session that owns the znode that a read with a watch has found, or 0. The
// reply to each such read ends with the Stat, and that with the owner, two counts and a zxid.
func ownerOf(code int32, body []byte) int64 {
	const behind = 24
	if code != 0 || len(body) < behind {
		return 0
	}
	return int64(binary.BigEndian.Uint64(body[len(body)-behind:]))
}
