// Package conn implements the network connections of a session. A session has one connection at a
// time. The package dials, makes the handshake, orders the packets, sends pings, leaves silent servers,
// and records the watches on the server. Package session uses the connection, and chooses the next
// server.
package conn

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// A Shared has the data that all connections of one session share, and the functions by which they
// report to the session. After the first connection, only Watches, Requests and the fields behind
// Deleted change.
type Shared struct {
	Ctx      context.Context // ends with the session: no request is sent after that
	Spawn    func(f func())  // runs f in a goroutine for which Close waits
	Watches  *Watches
	Auths    []Auth
	SASL     *sasl.Client  // or nil
	Dialer   zk.Dialer     // replaces TCP if it is not nil
	TLS      *tls.Config   // or nil
	Requests *atomic.Int64 // counts the requests that are sent
	Nobody   string        // a path at which no znode exists

	Sending  func() lease.Stamp                                // called when a packet gets its place in the order
	Answered func(s lease.Stamp, p lease.Proof, now time.Time) // called for each reply, before the request receives it, and for each stride: see stride
	Confirm  func() bool                                       // reports whether a write must come before all requests, to confirm the session
	Served   func()                                            // called after the first reply to a request over a connection
	CaughtUp func(addr string)                                 // called when a server that continues the session has answered the first sync
	Deleted  func(path string, zxid int64)                     // called for each deletion; nil if there is no trace

	// The newest state of the servers that the session has seen. Only one connection reads at a time, so
	// only one goroutine writes these fields.
	replied atomic.Int64 // the newest zxid of a reply to a request of the session
	Zxid    atomic.Int64 // the zxid of the newest transaction, events included, for the trace
	Blind   atomic.Bool  // the session has since seen a newer transaction without its zxid

	xid      atomic.Uint32 // the newest xid, over all connections
	disowned int           // number of connections in a row, up to now, that ended because of Conn.disowned; only reading goroutines use this number
}

// The method `see` records a packet that shows the state after the transaction `zxid`. If the zxid
// is unknown, `zxid` is not positive.
func (s *Shared) see(xid int32, zxid int64) {
	switch {
	case zxid > s.Zxid.Load():
		// On one connection, the state that the packets show never becomes older. So a new highest zxid
		// covers all earlier packets, including packets without a zxid. The first replies on the next
		// connection may show an older state.
		s.Zxid.Store(zxid)
		s.Blind.Store(false)
	case zxid <= 0 && xid < 0: // an event, before ZooKeeper 3.9
		s.Blind.Store(true)
	}
}

// NextXid returns an xid that no other request of the session has, over any connection. Servers match
// results with requests by session and xid alone, so the late result of an older request with this
// xid could be delivered as the result of this one.
//
// Pings, credentials and setWatches have the xids that the protocol prescribes, and no late results:
// no server proposes a transaction for them. After 2^31 requests, the xids begin again. The leader
// uses the xid 0 for the creation of a session and for its expiry.
func (s *Shared) NextXid() int32 {
	for {
		if xid := int32(s.xid.Add(1) & math.MaxInt32); xid != 0 {
			return xid
		}
	}
}

// An Auth is a credential of the client.
type Auth struct {
	Scheme      string
	Credentials []byte
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

var (
	ErrHandshake = errors.New("handshake refused")
	ErrProtocol  = errors.New("not the ZooKeeper protocol")
	// ErrUnsent is the error of a request that certainly was not executed.
	ErrUnsent = zk.ErrNoServer
	// ErrEnded is returned by Read after the server has ended the session, as Bye has requested.
	ErrEnded = errors.New("the server has ended the session")
)

// A Conn is one network connection. It encodes requests directly into its buffer, and decodes
// replies in the goroutine that reads. So requests need no goroutines of their own. Its life is in
// docs/design.md, "What happens when a server dies".
//
// If no other packet is waiting or unanswered, the goroutine that makes a request also writes it
// (see `put`). All other packets are written by one goroutine, which runs the method `write`. Each
// time, that goroutine writes all packets in the buffer together. Reads and writes have no deadlines:
// a timer closes the connection if no reply comes in time, and ends both.
type Conn struct {
	net.Conn        // the socket
	Addr     string // of the server
	s        *Shared
	r        *bufio.Reader // reads from Conn; only the reading goroutine uses it
	head     [replyHeader]byte
	body     []byte    // of the last reply; only the reading goroutine uses it
	arrived  time.Time // when the last packet began to arrive; only the reading goroutine uses it

	id        int64         // of the session
	timeout   time.Duration // of the session; set under mu, and does not change after the handshake
	asked     time.Time     // the time at which the handshake was sent
	trip      time.Duration // the time from `asked` to the reply
	by        time.Time     // the time at which the handshake must be over; never changed
	timer     *time.Timer   // calls `expire`; never changed
	ends      atomic.Bool   // the client has asked the server to end a session
	closeOnce sync.Once
	closed    chan struct{} // closed by Close
	more      chan struct{} // has a token if the goroutine of `write` must look for packets

	granted  int  // number of credentials that the server has accepted; only the reading goroutine uses it
	setAgain int  // number of replies to setWatches; only the reading goroutine uses it
	useful   bool // the server has executed a request; only the reading goroutine uses it

	mu       sync.Mutex // guards the fields below, and the order of the packets; locked before the session's own locks
	began    bool       // the handshake is over, and the connection takes requests
	over     bool       // all requests without a reply have failed, and the connection refuses others
	out      []byte     // packets that are not written yet
	spare    []byte     // an empty buffer for the next packets
	busy     bool       // a goroutine is writing packets taken from `out`
	sent     []sentInfo // requests, oldest first; the first `answered` elements are empty, because they have a reply
	answered int
	pings    []lease.Stamp // pings without a reply, oldest first
	since    time.Time     // see owedLocked
	timed    bool          // a timer will call nudge
	heard    time.Time     // the time of the last reply
	went     time.Time     // the time of the last stride, in either direction
	hung     bool          // `expire` has closed the connection
}

// A Request is an operation that the session sends and that has one reply.
type Request interface {
	// Encode appends the body, which follows the header.
	Encode(p []byte) []byte
	Op() int32
	Path() string      // the path of a read
	Deletes() []string // the paths of the znodes that the request deletes
	// Moot reports whether a late execution of the request would do no harm, although it is a write.
	Moot() bool
	// Reply decodes the reply and returns its code, which is one code even for a transaction. If the
	// reply is malformed, ok is false.
	Reply(code int32, body []byte) (whole int32, ok bool)
	// Finish lets the caller continue.
	Finish()
	// Fail is called instead of Reply and Finish if no reply will come.
	Fail(err error)
}

type sentInfo struct {
	xid   int32
	at    lease.Stamp
	op    int32
	flags bool    // it is a read with the watch flag
	r     Request // nil if the connection made the request itself
}

// Harms reports whether a late execution of r would do harm.
func Harms(r Request) bool {
	switch r.Op() {
	case wire.OpCreate, wire.OpCreateContainer, wire.OpDelete, wire.OpSetData, wire.OpMulti:
		return !r.Moot()
	}
	return false
}

// New returns a connection over c. The handshake must be over before `deadline`.
func New(s *Shared, c net.Conn, addr string, deadline time.Time) *Conn {
	l := &Conn{
		Conn:   c,
		Addr:   addr,
		s:      s,
		r:      bufio.NewReaderSize(c, 8<<10),
		by:     deadline,
		closed: make(chan struct{}),
		more:   make(chan struct{}, 1),
	}
	l.mu.Lock() // `expire` must find the timer
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(time.Until(deadline), l.expire)
	return l
}

// Over is called when the connection has ended. Requests without a reply fail, except those whose
// late execution would do harm: Over returns them, and the caller must call [Fail] later.
func (c *Conn) Over() (late []Request) {
	for _, r := range c.end() {
		if Harms(r) {
			late = append(late, r)
		} else {
			r.Fail(zk.ErrConnectionClosed)
		}
	}
	return late
}

// Fail makes the requests that Over has returned fail.
func Fail(late []Request) {
	for _, r := range late {
		r.Fail(zk.ErrConnectionClosed)
	}
}

// The method `end` stops the sending of requests, and returns the requests without a reply.
func (c *Conn) end() (lost []Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, info := range c.openLocked() { // repeated requests keep their order
		if info.r != nil {
			lost = append(lost, info.r)
		}
	}
	c.over, c.sent, c.answered = true, nil, 0
	return lost
}

// Send sends requests, one directly after the other. If the connection does not accept requests, for
// example because it has just ended, all of them fail with ErrUnsent, and Send returns false.
func (c *Conn) Send(rs ...Request) bool {
	mine, ok := c.put(rs)
	c.writeOut(mine)
	if !ok {
		for _, r := range rs {
			r.Fail(ErrUnsent)
		}
	}
	return ok
}

// A requesting goroutine writes packets itself only if their size is at most `directly`.
const directly = 4 << 10

// The method `put` appends requests to `out`. If `put` returns packets, the caller must write them.
//
// `put` returns packets only if every earlier packet has been answered, including the packets sent
// with the handshake. So the socket's buffer is empty, and the caller's write does not block, even if
// the server reads nothing more. The goroutine of `write` writes requests that are added during the write.
func (c *Conn) put(rs []Request) (mine []byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.began || c.over || c.s.Ctx.Err() != nil {
		return nil, false
	}
	alone := !c.busy && len(c.out)+len(c.openLocked())+len(c.pings) == 0
	at := c.s.Sending()
	for _, r := range rs {
		xid := c.s.NextXid()
		info := sentInfo{xid: xid, at: at, op: r.Op(), r: r}
		start := len(c.out)
		c.out = r.Encode(wire.AppendHeader(c.out, xid, info.op))
		switch info.op {
		case WatchData, WatchExists, WatchChildren:
			var flag byte
			if info.flags = c.s.Watches.ask(WatchKey{info.op, r.Path()}); info.flags {
				flag = 1
			}
			c.out = append(c.out, flag)
		}
		wire.EndPacket(c.out[start:])
		c.awaitLocked(info)
	}
	c.s.Requests.Add(int64(len(rs)))
	if n := len(c.out); alone && 0 < n && n <= directly { // n is 0 if rs is empty
		return c.takeLocked(), true
	}
	c.wroteLocked()
	return nil, true
}

// takeLocked removes all packets from `out` and returns them. The caller must write them.
func (c *Conn) takeLocked() (p []byte) {
	p, c.out, c.spare, c.busy = c.out, c.spare, nil, true
	return p
}

// wroteLocked wakes the goroutine of `write`, which writes the packets in `out`.
func (c *Conn) wroteLocked() {
	select {
	case c.more <- struct{}{}:
	default: // the goroutine of `write` has not taken the earlier token yet, and will write these packets too
	}
}

// lastWords is the time for which the client still reads after a write has failed. If the server
// has closed the connection, the reading ends earlier.
const lastWords = 20 * time.Millisecond

// keptBuffer is the size of the largest buffer that is reused for later packets.
const keptBuffer = 64 << 10

func (c *Conn) write() {
	ticker := time.NewTicker(lease.PingEvery(c.timeout))
	defer ticker.Stop()
	for {
		select {
		case <-c.more:
		case <-ticker.C:
			c.mu.Lock()
			c.pingLocked()
			c.mu.Unlock()
		case <-c.closed:
			return
		}
		for _, key := range c.s.Watches.surplus() {
			c.RemoveWatch(key)
		}
		var p []byte
		c.mu.Lock()
		if !c.busy && len(c.out) > 0 { // a goroutine that is writing calls wroteLocked at its end
			p = c.takeLocked()
		}
		c.mu.Unlock()
		c.writeOut(p)
	}
}

// writeOut writes `p`, which the caller has taken from `out`, if it has taken anything.
func (c *Conn) writeOut(p []byte) {
	if len(p) == 0 {
		return
	}
	err := c.writeAll(p)
	if err != nil {
		// The server may have received only a part of the packets, so the connection must end. Before that,
		// the reader can read the server's last packets, which may give the reason.
		time.AfterFunc(lastWords, c.Close)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cap(p) <= keptBuffer {
		c.spare = p[:0]
	}
	if c.busy = err != nil; !c.busy && len(c.out) > 0 {
		c.wroteLocked()
	}
}

// A long packet is sent or read in strides, and each stride gives the server the time for a reply
// again. With a fixed limit, a long packet would fail on a slow network, and fail again when it is
// repeated. A packet has about 64 strides at most, so a slow server can delay the replies to pings by
// at most 32 session timeouts. A stride proves nothing about the session.
const stride = 16 << 10

func strideOf(n int) int { return max(stride, n/64) }

// writeAll writes `p`, in strides.
func (c *Conn) writeAll(p []byte) error {
	for step := strideOf(len(p)); ; p = p[step:] {
		n := min(step, len(p))
		if _, err := c.Conn.Write(p[:n]); err != nil || n == len(p) {
			return err
		}
		c.moved()
	}
}

// The method `moved` is called after each stride of a long packet, except the last stride that is
// written.
func (c *Conn) moved() {
	now := time.Now()
	c.mu.Lock()
	c.went = now
	c.mu.Unlock()
	c.s.Answered(lease.Stamp{At: now}, lease.Nothing, now)
}

// Read processes packets from the server until the connection ends.
func (c *Conn) Read() error {
	for {
		if err := c.nextPacket(); err != nil {
			return err
		}
	}
}

// requestLocked appends to `out` a request that the connection itself makes.
func (c *Conn) requestLocked(op int32, body []byte) {
	xid := c.s.NextXid()
	c.awaitLocked(sentInfo{xid: xid, at: c.s.Sending(), op: op})
	c.out = append(c.out, wire.EndPacket(append(wire.AppendHeader(nil, xid, op), body...))...)
	c.s.Requests.Add(1)
	c.wroteLocked()
}

// awaitLocked records a request that is about to be sent.
func (c *Conn) awaitLocked(info sentInfo) {
	if len(c.openLocked()) == 0 {
		c.owedLocked(info.at.At)
	}
	c.sent = append(c.sent, info)
}

// openLocked returns the requests without a reply, oldest first.
func (c *Conn) openLocked() []sentInfo { return c.sent[c.answered:] }

// A ping is sent early if no reply to a request comes for longer than `late` and the round trip of
// the handshake.
//
// Before ZooKeeper 3.8.1, a follower sometimes notices that a request is committed only when it
// receives the next request (ZOOKEEPER-4537). If no other client sends one, that is this client's
// next ping. The other pings keep their times, and `expire` takes no account of an early ping.
const late = 100 * time.Millisecond

// owedLocked records that from `now` on, the server owes the reply to a request. At most one early
// ping follows each call, however many requests wait.
func (c *Conn) owedLocked(now time.Time) {
	if c.since = now; !c.timed {
		c.timed = true
		time.AfterFunc(late+c.trip, c.nudge)
	}
}

// The method `nudge` sends an early ping if one is due, or sets the timer again.
func (c *Conn) nudge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait, owed := late+c.trip-time.Since(c.since), len(c.openLocked()) > 0
	if c.timed = owed && wait > 0; c.timed {
		time.AfterFunc(wait, c.nudge)
	} else if owed {
		c.pingLocked()
	}
}

func (c *Conn) pingLocked() {
	c.pings = append(c.pings, c.s.Sending())
	c.out = append(c.out, wire.EndPacket(wire.AppendHeader(nil, wire.XidPing, wire.OpPing))...)
	c.wroteLocked()
}

// Bye asks the server to end the session. The goroutine of the handshake may call it instead of Begin.
func (c *Conn) Bye() {
	c.ends.Store(true)
	var mine []byte
	c.mu.Lock()
	c.requestLocked(wire.OpCloseSession, nil)
	if !c.began {
		mine = c.takeLocked()
	}
	c.mu.Unlock()
	c.writeOut(mine)
}

// replyHeader is the size of the header of every packet from a server: length, xid, zxid and
// error code.
const replyHeader = 20

// nextPacket reads and processes a packet. If it returns an error, this packet and all later ones
// are dropped.
func (c *Conn) nextPacket() error {
	xid, code, body, err := c.readPacket()
	if err != nil {
		return err
	}
	c.s.see(xid, int64(binary.BigEndian.Uint64(c.head[8:])))
	if xid != wire.XidEvent && code == wire.CodeWantsAuth {
		// The server closes the connection, and executes neither the refused request nor any later one.
		for _, r := range c.end() {
			r.Fail(ErrUnsent)
		}
		return wire.Error(code)
	}
	switch xid {
	case wire.XidEvent:
		scan := wire.Scanner{Rest: body}
		t := zk.EventType(scan.Int32())
		scan.Int32() // the state of the server
		path := scan.String()
		if scan.Bad || t < zk.EventNodeCreated || t > zk.EventNodeChildrenChanged {
			return fmt.Errorf("%w: event of type %d", ErrProtocol, t)
		}
		c.s.Watches.Fire(t, path)
		return nil
	case wire.XidAuth:
		if code != 0 {
			return zk.ErrAuthFailed // the client does not try again
		}
		c.granted++
	case wire.XidSetWatches:
		if code != 0 {
			// The server has set none of the watches, so no read may be answered before the next connection.
			return fmt.Errorf("the server refuses to set the watches again (code %d)", code)
		}
		c.setAgain++
		c.moved()
	}
	switch {
	case code == wire.CodeSessionMoved, code == wire.CodeSessionExpired && c.disowned():
		return wire.Error(code)
	case xid >= 0 && !c.useful:
		c.useful = true
		c.s.Served()
	}
	return c.received(xid, code, body, c.arrived)
}

// Lasting is the least life of a connection that the client replaces without a pause.
const Lasting = time.Second

// Age returns the time since the handshake was sent.
func (c *Conn) Age() time.Duration { return time.Since(c.asked) }

// A server may reply that the session has moved or has expired. It has not executed the request, and
// gives the same reply to all later requests on this connection. If the session has moved, because
// another server's handshake reached the leader late, a new handshake moves it back.
//
// After the reply that the session has expired, `disowned` reports whether the connection must end,
// so that a new handshake decides. A server with localSessionsEnabled contradicts itself, because the
// leader does not know its sessions: three handshakes in a row succeed, but each connection ends with
// such a reply within a second. Then the caller receives the reply.
func (c *Conn) disowned() bool {
	if c.Age() >= Lasting {
		c.s.disowned = 0
	}
	c.s.disowned++
	return c.s.disowned <= 3
}

// readPacket reads a packet. The body is valid until the next packet.
func (c *Conn) readPacket() (xid, code int32, body []byte, err error) {
	length, err := c.r.Peek(4)
	if err != nil {
		return 0, 0, nil, err
	}
	c.arrived = time.Now()
	size := int32(binary.BigEndian.Uint32(length))
	if size < replyHeader-4 || size > wire.MaxReply {
		return 0, 0, nil, fmt.Errorf("%w: packet of %d bytes", ErrProtocol, size)
	}
	if _, err := io.ReadFull(c.r, c.head[:]); err != nil {
		return 0, 0, nil, err
	}
	xid, code = int32(binary.BigEndian.Uint32(c.head[4:])), int32(binary.BigEndian.Uint32(c.head[16:]))
	n := int(size) - (replyHeader - 4)
	strides := c.r.Buffered() < n && xid != wire.XidEvent // an event does not show that the server receives the client's packets
	if strides {
		c.moved() // the first stride of a packet that has begun to arrive has the usual time
	}
	ahead := n
	if n > wire.MaxAhead { // a server may announce any size, so allocate only as the bytes come
		ahead = keptBuffer
	}
	body = slices.Grow(c.body[:0], ahead)
	for len(body) < n {
		if len(body) == cap(body) {
			body = slices.Grow(body, min(n-len(body), 3*len(body)))
		}
		more := body[len(body):min(n, cap(body), len(body)+strideOf(n))]
		if _, err := io.ReadFull(c.r, more); err != nil {
			return 0, 0, nil, err
		}
		if body = body[:len(body)+len(more)]; strides {
			c.moved()
		}
	}
	if cap(body) <= keptBuffer {
		c.body = body
	}
	return xid, code, body, nil
}

// The method `received` processes every packet except events, in the reading goroutine. The
// argument `now` is the time at which the packet began to arrive.
func (c *Conn) received(xid, code int32, body []byte, now time.Time) error {
	c.mu.Lock()
	c.heard = now
	if xid == wire.XidPing {
		var at lease.Stamp
		if len(c.pings) > 0 {
			at, c.pings = c.pings[0], c.pings[1:]
		}
		c.mu.Unlock()
		c.s.Answered(at, lease.ProofOf(wire.OpPing, code), now)
		return nil
	}
	open := c.openLocked()
	i := slices.IndexFunc(open, func(info sentInfo) bool { return info.xid == xid })
	var info sentInfo
	if i >= 0 {
		info = open[i]
		copy(open[1:], open[:i]) // servers answer in order, so i is 0
		open[0] = sentInfo{}
		if c.answered++; 2*c.answered >= len(c.sent) { // so a reply does not move all other requests
			c.sent, c.answered = slices.Delete(c.sent, 0, c.answered), 0
		}
	}
	if len(c.openLocked()) > 0 {
		c.owedLocked(now)
	}
	if info.flags {
		// The server has set the watch even if the reply is malformed. The reply to each of these reads ends
		// with a Stat, and a Stat ends with the owner of the znode, two counts and a zxid. RemoveWatch must
		// find either the request in `sent`, or the watch.
		at := len(body) - 24
		ours := code == 0 && at >= 0 && int64(binary.BigEndian.Uint64(body[at:])) == c.id
		if c.s.Watches.answered(WatchKey{info.op, info.r.Path()}, code, ours) {
			c.wroteLocked()
		}
	}
	c.mu.Unlock()
	if i < 0 {
		return nil // the reply to credentials or setWatches, which are not in `sent`
	}
	if info.r == nil {
		return c.own(info, code, now)
	}
	zxid := int64(binary.BigEndian.Uint64(c.head[8:]))
	c.s.replied.Store(max(zxid, c.s.replied.Load()))
	// Watches and the lease must be updated before Finish lets the caller continue.
	whole, ok := info.r.Reply(code, body)
	if !ok {
		err := fmt.Errorf("%w: malformed reply to a request of type %d", ErrProtocol, info.op)
		info.r.Fail(err) // the server may have executed it
		return err
	}
	c.s.Answered(info.at, lease.ProofOf(info.op, whole), now)
	if c.s.Deleted != nil && (whole == 0 || whole == wire.CodeNoNode && info.op == wire.OpDelete) {
		if whole != 0 {
			zxid = 0 // it is unknown: an earlier delete whose reply was lost has deleted the znode
		}
		for _, path := range info.r.Deletes() {
			c.s.Deleted(path, zxid)
		}
	}
	info.r.Finish()
	return nil
}

// The method `own` processes the reply to a request of the connection itself. It does not record
// the zxid of the reply as seen: the confirming write is sent before the watches are set again, so
// events before that zxid may still be missing, and the next connection asks only for later ones.
func (c *Conn) own(info sentInfo, code int32, now time.Time) error {
	switch info.op {
	case wire.OpCloseSession:
		if code == 0 {
			return ErrEnded
		}
		return wire.Error(code)
	case wire.OpSync:
		if code != 0 {
			// The error ends the connection before any later reply is used.
			return fmt.Errorf("the server cannot catch up with its leader (code %d)", code)
		}
		c.s.CaughtUp(c.Addr)
	case wire.OpDelete:
		proof := lease.ProofOf(info.op, code)
		c.s.Answered(info.at, proof, now)
		if proof != lease.Quorum {
			// Only the write proves that no read over this connection is older than an earlier event: a leader
			// that lags answers the sync of its own client at once. The error ends the connection first.
			return fmt.Errorf("the server has refused the write that confirms the session (code %d)", code)
		}
	}
	return nil
}

// RemoveWatch asks the server to remove a watch, unless the watch has a waiter again.
//
// RemoveWatch holds mu until the removal has its place in the order. So a read that sets the watch
// again is sent after the removal, and the next connection has not set the watch again before.
func (c *Conn) RemoveWatch(key WatchKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The removal would also remove the watch of an unanswered read. The reply makes an idle watch again.
	asked := slices.ContainsFunc(c.openLocked(), func(info sentInfo) bool {
		return info.flags && info.r.Path() == key.Path && (info.op == WatchChildren) == (key.Kind == WatchChildren)
	})
	if c.over || asked || !c.s.Watches.forget(key) {
		return
	}
	kind := int32(2) // of data watches, and of watches by an exists request
	if key.Kind == WatchChildren {
		kind = 1
	}
	c.requestLocked(wire.OpRemoveWatches, wire.AppendInt32(wire.AppendString(nil, key.Path), kind))
}

// The connection is closed after the time `silence` without a reply.
func (c *Conn) silence() time.Duration { return time.Duration(float64(c.timeout) * lease.Silence) }

// The timer calls the method `expire`, which closes the connection if the server was silent for too
// long: since its last reply, or since the oldest unanswered request if that was sent earlier. So while
// a request waits, neither events nor replies to pings count. No later packet makes the connection end
// earlier, so only `expire` and Begin set the timer.
func (c *Conn) expire() {
	c.mu.Lock()
	due := c.by
	if c.began {
		due = c.heard
		if open := c.openLocked(); len(open) > 0 && open[0].at.At.Before(due) {
			due = open[0].at.At
		}
		due = due.Add(c.silence())
	}
	wait := max(time.Until(due), time.Until(c.went.Add(c.silence())))
	if c.hung = wait <= 0; !c.hung {
		c.timer.Reset(wait)
	}
	c.mu.Unlock()
	if wait <= 0 {
		c.Close()
	}
}

// Reason returns err, with which the connection has ended. If no reply came in time, the result also
// says that.
func (c *Conn) Reason(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hung {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// Close closes the socket. Any goroutine may call Close, any number of times. Close does not send a
// TLS close_notify, which would wait for a silent server. The operating system discards the bytes
// that it has not sent yet: otherwise a server could receive a write long after the client has left
// it, and the argument for the trail of package session would be wrong. If the client has asked for
// the end of the session, late writes do no harm.
func (c *Conn) Close() {
	c.closeOnce.Do(func() {
		close(c.closed)
		c.timer.Stop()
		socket := c.Conn
		if t, ok := socket.(*tls.Conn); ok {
			socket = t.NetConn()
		}
		if l, ok := socket.(interface{ SetLinger(sec int) error }); ok && !c.ends.Load() {
			l.SetLinger(0)
		}
		socket.Close()
	})
}
