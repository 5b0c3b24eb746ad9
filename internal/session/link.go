package session

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// A link is one network connection of a session. It encodes requests straight into its buffer and
// decodes replies in the goroutine that reads. No request needs a goroutine of its own. Which
// server to connect to, and when a session has ended, is not its business: see pacer and
// package lease. A link does the following besides:
//
//   - The handshake. Only the first link of an incarnation may open a session.
//     Later links may only continue it. If the server says that the session has
//     expired, or answers with another session id, the incarnation ends. So no
//     request ever runs in a session that it was not made for.
//   - Credentials. They are sent with the handshake, or after an exchange of SASL.
//     Watches follow directly, ahead of every request.
//   - Catching up. The server of a new connection first catches up with the
//     leader. So no read over it is older than a read over the previous connection.
//   - Watches. A read carries the watch flag if Watches wants a watch on its
//     znode. Events are passed to Watches.
//   - Times. The link records when it sends each packet and when the reply comes:
//     see package lease.
//   - Deadlines. A handshake cannot hang. The link notices a silent server early
//     enough to try another before the session must be abandoned.
//
// If the connection is otherwise unused, the goroutine that makes a request also writes it (put).
// All other packets are written by one goroutine, write. Each time it takes all packets that are
// in the buffer and writes them together. It has no deadline of its own: a server that does not
// read does not answer either, and the reading goroutine notices that.
type link struct {
	net.Conn               // the socket
	addr     string        // of the server
	inc      *Incarnation  // whose session this is
	r        *bufio.Reader // of Conn; only the reading goroutine uses it
	head     [replyHeader]byte
	body     []byte // of the last reply; only the reading goroutine uses it

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
	spare []byte     // the empty buffer that replaces out; guarded by wmu
	busy  bool       // a goroutine is writing packets taken from out; guarded by wmu
	more  chan struct{}

	dmu  sync.Mutex
	due  time.Time // the read deadline that is set; guarded by dmu
	went time.Time // time of the last stride, in either direction; guarded by dmu

	heard time.Time // when the last reply came, or zero; only the reading goroutine uses it
	reset int       // answers to setWatches; only the reading goroutine uses it

	useful bool // the server has executed a request; only the reading goroutine uses it

	mu    sync.Mutex         // guards the fields below; taken before Incarnation.LeaseMu
	sent  map[int32]sentInfo // requests without a reply, by xid
	order []int32            // the xids of sent in the order of sending; some may have been answered
	pings []lease.Stamp      // pings without a reply, oldest first
	state linkState
}

// A linkState says whether a link takes requests.
type linkState int

const (
	linkNew  linkState = iota // not yet: the session does not know of the connection
	linkOpen                  // yes
	linkOver                  // no longer: all requests without a reply have failed
)

// A request is an operation that the session sends and that has one reply.
type request interface {
	// encode appends the body, which follows the header.
	encode(p []byte) []byte
	// key returns the key of the watch that a read can set; ok is false for other requests.
	key() (key WatchKey, ok bool)
	opcode() int32
	// moot reports whether the request changes nothing, whenever the server executes it.
	moot() bool
	// answer decodes the reply. It returns the code of the reply as a whole. ok is false if the
	// reply is malformed.
	answer(code int32, body []byte) (whole int32, ok bool)
	// done lets the caller continue.
	done()
	// fail is called instead of answer and done if no reply will come.
	fail(err error)
}

// sentInfo describes a request that has no reply yet.
type sentInfo struct {
	at  lease.Stamp
	op  int32
	ask *ask    // passed to Watches with the reply, if the read carries the watch flag
	r   request // nil if the link made the request itself

	deletes []string // the paths that it deletes, if a trace is written
}

// harms reports whether the request does harm if a server executes it late.
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

// open lets requests in. It is called when the session knows of the connection.
func (l *link) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkNew {
		l.state = linkOpen
	}
}

// over is called when the connection has ended. Every request without a reply fails.
func (l *link) over() { l.fail(zk.ErrConnectionClosed) }

// fail stops the sending of requests. Requests without a reply fail with err.
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

// send sends requests, one directly after the other. It reports false if the link does not take
// requests; then it has sent none of them.
func (l *link) send(rs ...request) bool {
	if !l.shook.Load() {
		return false // not open yet; the handshake holds wmu even while a server is silent
	}
	mine, ok := l.put(rs)
	if mine != nil {
		l.writeOut(mine)
	}
	return ok
}

// sendOrFail is send for a connection that may just have ended. Requests that it cannot send fail
// with errUnsent.
func (l *link) sendOrFail(rs ...request) {
	if !l.send(rs...) {
		for _, r := range rs {
			r.fail(errUnsent)
		}
	}
}

// directly is the size of the largest packets that a requesting goroutine writes itself.
const directly = 4 << 10

// put appends requests to out. If it returns packets, the caller must write them.
//
// That is so only if every packet that was sent before has been answered, including the packets
// sent with the handshake. So the server has read them, the socket's buffer is empty, and the
// caller's write does not block, whatever the server does from now on. Requests that other
// goroutines add during that write are left to the goroutine write: there may be many.
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
	if n := len(l.out); alone && 0 < n && n <= directly { // out is empty if rs is
		return l.takeLocked(), true
	}
	l.wroteLocked()
	return nil, true
}

// takeLocked takes the packets in out, for the caller to write.
func (l *link) takeLocked() (p []byte) {
	p, l.out, l.spare, l.busy = l.out, l.spare, nil, true
	return p
}

// wroteLocked wakes the goroutine write, which writes the packets in out.
func (l *link) wroteLocked() {
	select {
	case l.more <- struct{}{}:
	default: // the token that is already there covers these packets too
	}
}

// lastWords is how long the link still reads from a connection on which a write has failed. If
// the server has closed it, the reading ends earlier.
const lastWords = 20 * time.Millisecond

// keptBuffer is the size of the largest buffer that is reused for later packets.
const keptBuffer = 64 << 10

// write writes packets until the link is closed.
func (l *link) write() {
	ticker := time.NewTicker(lease.PingEvery(time.Duration(l.inc.Timeout.Load())))
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
		if !l.busy && len(l.out) > 0 { // else out is empty, or the goroutine that is writing wakes us when it has finished
			p = l.takeLocked()
		}
		l.wmu.Unlock()
		if p != nil {
			l.writeOut(p)
		}
	}
}

// writeOut writes p, which the caller has taken from out.
func (l *link) writeOut(p []byte) {
	err := l.writeAll(p, l.moved)
	if err != nil {
		// A part of the packets may have been written, so nothing can be written after them, and
		// the connection ends. If the server has closed it, the reader first reads the server's
		// last words: they say why.
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

// Deadlines move with the bytes. With a fixed deadline, a packet that needs longer over a slow
// link would fail, be sent again in full, and fail again. So a long packet is sent or read in
// strides, and each stride has as much time as a reply. A packet has about 64 strides at most. So
// a server that trickles delays the replies to pings by at most 32 session timeouts. A stride
// proves nothing about the session: holds rest on replies alone, see package lease.
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

// moved extends the deadlines after a stride of a long packet was sent or read.
func (l *link) moved() {
	now := time.Now()
	l.dmu.Lock()
	l.went = now
	l.dmu.Unlock()
	l.inc.LeaseMu.Lock()
	l.inc.Lease.Moved(now)
	l.inc.LeaseMu.Unlock()
	l.deadline(now.Add(l.inc.silence()))
}

// connect opens the session over l, or continues it. It runs in the reading goroutine, while no
// other goroutine uses l.
func (l *link) connect() error {
	if l.inc.Ctx.Err() != nil {
		return net.ErrClosed // a session must not be opened after the end
	}
	l.relative = l.inc.zxid.Load()
	timeout := l.inc.Manager.Config.Timeout
	l.inc.LeaseMu.Lock()
	password := l.inc.password
	l.inc.LeaseMu.Unlock()
	id := l.inc.ID.Load()
	if id == 0 {
		password = make([]byte, 16)
	} else {
		timeout = time.Duration(l.inc.Timeout.Load())
	}
	// Sending credentials with the handshake saves a round trip. A server reads them only after
	// it has established the session, and answers in this order.
	l.wanted = timeout
	out := wire.Connect(l.relative, timeout, id, password)
	if l.inc.Manager.Config.SASL == nil { // else they follow the exchange
		out = append(out, authPackets(l.inc.Manager.Config.Auths)...)
	}
	l.asked = time.Now()
	if id != 0 {
		l.inc.LeaseMu.Lock()
		l.inc.Lease.Trying(l.asked, l.inc.leastGrant(l.addr))
		l.inc.LeaseMu.Unlock()
	}
	l.Conn.SetDeadline(l.hardLimit)
	if _, err := l.Conn.Write(out); err != nil {
		return err
	}
	return l.handshake()
}

// read processes packets of the server until the connection ends.
func (l *link) read() {
	for l.nextPacket() == nil {
	}
}

// begin appends the header of a request that the link itself makes. The caller holds wmu.
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

// replyHeader is the size of the header of every packet from a server: length, xid, zxid and
// error code.
const replyHeader = 20

// nextPacket reads and processes a packet. If it returns an error, this packet and all later ones
// are dropped.
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
	if xid != wire.XidEvent { // else the server may send it without receiving anything from us
		// The present deadline may belong to this request or to another. A packet that has begun
		// gets its own time.
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
			// The server has set none of the watches. The next connection sets them again. Until
			// then, no read may be answered.
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

// served records that the server executes requests.
func (l *link) served() {
	if !l.useful {
		l.useful = true
		l.inc.Manager.fit()
	}
}

// refused is called when the server refuses this client and closes the connection. If every
// server has refused the client or could not be reached since a server last executed a request,
// the Session ends: another attempt would fail in the same way, and each caller must get the
// reason.
func (l *link) refused(err error) error {
	l.fail(errUnsent) // the server does not execute the requests after the refused one either
	m := l.inc.Manager
	m.unfit(l.addr, fmt.Errorf("%s: %w", l.addr, err))
	if m.noneFits() {
		l.inc.failLater(err)
	}
	return err
}

// maxDisowned is the number of connections in a row that disowned ends.
const maxDisowned = 3

// A server that serves a session may reply that the session has moved or has expired. It has not
// executed that request, and it answers all later ones over this connection in the same way.
//
// A session has moved if another server's request to continue it reached the leader late. The
// next handshake makes its own server the owner, so that always helps.
//
// If the session has expired, the next handshake fails. disowned reports whether the link must
// end so that this handshake takes place. If three handshakes in a row succeed, within a second
// each, the servers contradict themselves. A server with localSessionsEnabled does that, because
// the leader does not know its sessions. Then the caller gets the reply.
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

// readBody reads the n bytes of the packet xid. They are valid until the next packet.
//
// Strides extend the deadline only for the reply that is due next. Each request has one reply. So
// a server that does not answer a request cannot keep the connection open with other long
// packets.
func (l *link) readBody(n int, xid int32) ([]byte, error) {
	body, step := l.body[:0], strideOf(n)
	switch {
	case n > wire.MaxAhead: // a size costs a server nothing, so allocate only as the bytes come
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

// expects reports whether the reply to xid is due next.
func (l *link) expects(xid int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order) > 0 && l.order[0] == xid
}

// event passes an event to Watches.
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

// maxGranted is a session timeout that is accepted from a server whatever the client asked for.
const maxGranted = 2 * time.Minute

// handshake reads the reply to the connect request and decides whether the link can be used.
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
		// Accepting it would mean to wait as long for this server, and for no other.
		l.endSession()
		return fmt.Errorf("%w: a session timeout of %v, where %v was asked for: see WithSessionTimeout, and the server's minSessionTimeout", errHandshake, timeout, asked)
	}

	refused := l.authenticate(id)

	l.wmu.Lock()
	defer l.wmu.Unlock()
	continued := l.inc.ID.Load() != 0
	if err := l.inc.handshake(l, id, timeout); err != nil {
		switch {
		case id == 0:
		case id == l.inc.ID.Load() && !IsClosed(l.inc.Manager.Over):
			// The incarnation ended during the handshake, and its holders have only just learned
			// of their loss. endOrphan ends the session after they have had their time. It must,
			// because this handshake has renewed the session for another timeout.
			l.inc.abandon()
		case id == l.inc.ID.Load():
			// The whole Session is closed.
			l.inc.lastly(l.endSession)
		default:
			l.endSession() // another session than ours, which no client will use
		}
		return err
	}
	if refused != nil {
		return l.unauthenticated(refused)
	}
	// These packets come after the handshake and ahead of every call.
	var out []byte
	if l.inc.Manager.Config.SASL != nil {
		out = authPackets(l.inc.Manager.Config.Auths)
	}
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
	// The incarnation gets its id only here. If the connection breaks before the credentials are
	// answered, the next handshake asks for a new session.
	l.inc.LeaseMu.Lock()
	l.inc.password = passwordIn(body)
	l.inc.LeaseMu.Unlock()
	l.inc.ID.Store(id)
	l.Conn.SetDeadline(time.Time{})
	l.dmu.Lock()
	l.due = time.Time{}
	l.dmu.Unlock()
	l.shook.Store(true)
	l.inc.Manager.Spawn(l.write)
	return nil
}

// authenticate makes the exchange of SASL, if there is a mechanism, directly after the reply to
// the handshake. id is the session in that reply, or 0. The deadline of the handshake ends it.
//
// It comes before the incarnation learns of the handshake, so the end of a session that must not
// be used, too, is asked for by a client that has authenticated.
func (l *link) authenticate(id int64) error {
	m := l.inc.Manager
	if m.Config.SASL == nil || id == 0 {
		return nil
	}
	ctx, cancel := context.WithDeadline(l.inc.Ctx, l.hardLimit)
	defer cancel()
	return exchange(ctx, m.Config.SASL, m.Spawn, l.addr, l.Conn, l.r, l.inc.nextXid)
}

// unauthenticated is called if the exchange has failed with err. If the server has answered,
// another server may accept the client, see refused. If the mechanism says that its own
// credentials are refused, another attempt would fail, too. After any other error, such as a
// connection that breaks or a ticket that cannot be had at the moment, the next attempt is made at
// the usual pace.
func (l *link) unauthenticated(err error) error {
	switch {
	case errors.As(err, new(*sasl.RefusedError)):
		return l.refused(err)
	case errors.Is(err, zk.ErrAuthFailed):
		l.inc.failLater(err)
	}
	return err
}

// failLater is fail because of credentials. If they were accepted before, no call may be waiting
// to return the reason, so it is logged.
func (inc *Incarnation) failLater(err error) {
	if inc.ID.Load() != 0 || inc.Manager.expiries.Load() > 0 {
		inc.Manager.Log.Error("zsync: the credentials are refused, and the session ends", "session", Text(inc.ID.Load()), "err", err)
	}
	inc.fail(err)
}

// portionsAhead is how many portions of watches are sent before the first is answered.
const portionsAhead = 4

// resendRest sets the remaining watches again. It sends each portion when an earlier one has been
// answered, and gives each answer the usual time. So the handshake succeeds over a slow link,
// however many watches there are. While the session has holds, each portion confirms it, because
// requests, inquiries included, wait until the handshake is over.
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

// catchUpPacket is the sync with which a connection begins if it continues a session.
//
// The handshake shows the next server the zxid of the last reply, but not the zxid of an event.
// So a server whose state is older than an event could take over the session. Reads would then
// show state that the event has ended, such as a deleted place or permits still in use. A new
// session needs no sync: its server has applied the session's creation, which is later than
// everything that the client has seen.
func (l *link) catchUpPacket() []byte {
	return wire.EndPacket(wire.AppendString(l.begin(nil, wire.OpSync), "/"))
}

// endSession asks the server to end the session of this handshake.
func (l *link) endSession() {
	l.Conn.Write(wire.AppendHeader(nil, l.inc.nextXid(), wire.OpCloseSession))
}

// passwordIn returns the password in the reply to a handshake. The caller has checked its size.
func passwordIn(body []byte) []byte {
	return bytes.Clone(body[20 : 20+binary.BigEndian.Uint32(body[16:])])
}

func isTLS(c net.Conn) bool {
	_, ok := c.(*tls.Conn)
	return ok
}

// confirmPacket is a write that confirms a session that is continued while it has holds: see
// package lease. It deletes a znode that does not exist.
func (l *link) confirmPacket() []byte {
	l.inc.LeaseMu.Lock()
	l.inc.Lease.Confirming()
	l.inc.LeaseMu.Unlock()
	l.inc.Manager.requests.Add(1)
	p := wire.AppendString(l.begin(nil, wire.OpDelete), l.inc.nobody)
	return wire.EndPacket(binary.BigEndian.AppendUint32(p, math.MaxUint32)) // any version
}

// authenticated reads the replies to n credentials, which come before all others. A refusal ends
// the Session.
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
			l.inc.failLater(zk.ErrAuthFailed)
			return zk.ErrAuthFailed
		}
	}
	return nil
}

// received processes every packet except events. now is when the packet began to arrive: whatever
// the packet says was true by then. It runs in the reading goroutine.
func (l *link) received(xid, code int32, body []byte, now time.Time) error {
	l.mu.Lock()
	if xid == wire.XidPing {
		var at lease.Stamp
		if len(l.pings) > 0 {
			at, l.pings = l.pings[0], l.pings[1:]
		}
		l.mu.Unlock()
		l.inc.contact(at, lease.ProofOf(wire.OpPing, code), now)
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
		// Even if the reply is malformed and the read fails: the server has set the watch.
		l.inc.Watches.answered(info.ask, code, ownerOf(code, body) == l.inc.ID.Load())
	}
	// Watches and the lease are updated before the caller continues.
	whole, ok := info.r.answer(code, body)
	if !ok {
		info.r.fail(zk.ErrConnectionClosed) // it may have been applied
		return fmt.Errorf("%w: malformed reply to a request of type %d", ErrProtocol, info.op)
	}
	l.inc.contact(info.at, lease.ProofOf(info.op, whole), now)
	l.deleted(info, whole)
	info.r.done()
	return nil
}

// own processes the reply to a request that the link itself has made. Its zxid does not count as
// seen. The next connection asks only for the events after the last zxid seen, and events before
// this zxid may still be missing: the watches are set after the confirmation.
func (l *link) own(info sentInfo, code int32, now time.Time) error {
	switch info.op {
	case wire.OpCloseSession:
		if code == 0 {
			l.inc.endedOnServer()
			return io.EOF
		}
	case wire.OpSync:
		if code != 0 {
			// The connection ends before any later reply is used.
			return fmt.Errorf("zsync: the server cannot catch up with its leader (error %d)", code)
		}
		l.inc.trail.caughtUp(l.addr)
	case wire.OpDelete:
		l.inc.contact(info.at, lease.ProofOf(info.op, code), now)
	}
	return nil
}

// deleted records a deletion in the trace. If the znode did not exist, an earlier transaction
// whose reply was lost has deleted it.
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

// removeWatch asks the server to drop a watch, unless a goroutine waits for it again. It reports
// false if l is no longer the newest link; then it has done nothing.
//
// It holds wmu from the decision until the request has its place in the order. So a read that
// sets the watch again is sent after the removal. A handshake also holds wmu, from the packets
// that set the watches again to its end. So a watch that was dropped before is not among them,
// and a watch that is dropped after is removed on the new connection.
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

// patience sets the deadline for the next packet. A silent server is noticed even if it sends
// events, and an unanswered request even if pings are answered. A request that is sent during the
// read does not move the deadline; patience considers it before the next read.
func (l *link) patience() {
	if l.heard.IsZero() {
		l.heard = time.Now()
	}
	due := l.heard.Add(l.inc.silence())
	l.mu.Lock()
	if len(l.order) > 0 {
		if d := l.sent[l.order[0]].at.At.Add(l.inc.silence()); d.Before(due) {
			due = d
		}
	}
	l.mu.Unlock()
	l.deadline(due)
}

// deadline sets the read deadline to due, or to the deadline of the next stride if that is later.
// If the present deadline is only a little earlier, it stays: moving it for every packet would
// cost more than the packet.
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

// Close closes the socket. Any goroutine may call it, any number of times. It sends no TLS
// close_notify: that would wait for a server that does not answer, and nothing may be sent from
// now on.
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

func authPackets(as []Auth) (out []byte) {
	for _, a := range as {
		p := wire.AppendHeader(nil, wire.XidAuth, wire.OpAuth)
		p = binary.BigEndian.AppendUint32(p, 0)
		p = wire.AppendString(p, a.Scheme)
		out = append(out, wire.EndPacket(wire.AppendString(p, string(a.Credentials)))...)
	}
	return out
}

// ownerOf returns the session that owns the znode that a read with a watch has found, or 0. The
// reply to each such read ends with the Stat, which ends with the owner, two counts and a zxid.
func ownerOf(code int32, body []byte) int64 {
	const behind = 24
	if code != 0 || len(body) < behind {
		return 0
	}
	return int64(binary.BigEndian.Uint64(body[len(body)-behind:]))
}
