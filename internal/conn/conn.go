// Package conn has the network connections of a session, one at a time: dialing, the handshake,
// packets and their order, pings, deadlines, and the watches that the server has. Package session
// uses the connection, and chooses the next server.
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// A Shared has what the connections of one session share, and how they report to it. Only Watches,
// Requests, Seen, xid and disowned change after the first connection.
type Shared struct {
	Ctx      context.Context // ends with the session: no request is sent after that
	Spawn    func(f func())  // runs f in a goroutine for which Close waits
	Watches  *Watches
	Auths    []Auth
	SASL     *sasl.Client  // or nil
	Requests *atomic.Int64 // counts the requests that are sent
	Nobody   string        // a path at which no znode exists

	Sending  func() lease.Stamp                                // called when a packet gets its place in the order
	Answered func(s lease.Stamp, p lease.Proof, now time.Time) // called with each reply, before its request learns of it
	Moved    func(now time.Time)                               // called when a stride of a long packet was sent or read
	Confirm  func() bool                                       // reports whether a write must confirm the session ahead of all requests
	Served   func()                                            // called when a server has executed the first request over a connection
	Deleted  func(path string, zxid int64)                     // called for each deletion; nil if there is no trace

	Seen Seen
	xid  atomic.Uint32 // of the last request, over all connections

	disowned int // number of connections in a row that the method disowned has ended; only reading goroutines use it
}

// A Seen is the newest state of the servers that a session has seen. One connection reads at a
// time, so no two goroutines write it.
type Seen struct {
	Reply atomic.Int64 // the newest zxid of a reply to a request of the session
	Zxid  atomic.Int64 // the newest transaction, events included, for the trace
	Blind atomic.Bool  // a newer transaction was seen since, without its zxid
}

// see records that a packet showed the state after transaction zxid. A zxid that is not positive is
// unknown.
func (s *Seen) see(xid int32, zxid int64) {
	switch {
	case zxid > s.Zxid.Load():
		// Over one connection, no packet shows an older state than an earlier packet. So a zxid that
		// is newer than all before covers the packets without a zxid, too. The first replies of the
		// next connection may be older.
		s.Zxid.Store(zxid)
		s.Blind.Store(false)
	case zxid <= 0 && xid < 0: // an event, before ZooKeeper 3.9
		s.Blind.Store(true)
	}
}

// NextXid returns an xid that no other request of the session has, over any connection. A
// follower or observer knows the result of a request by session and xid alone. If an xid were
// used again, the late result of a request from an earlier connection could be delivered as the
// result of another request, which might not have been executed.
//
// Pings, credentials and setWatches always have the xids that the protocol prescribes. No server
// proposes a transaction for them, so they have no late results. After 2^31 requests, the xids
// begin again. The first requests have long been answered by then. 0 is left out: the leader uses
// it for the session's creation and for the expiry that it decides.
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
	// ErrUnsent is the error of a request that certainly has not reached a server.
	ErrUnsent = zk.ErrNoServer
	// ErrEnded is returned by Read after the server has ended the session, as Bye has requested.
	ErrEnded = errors.New("the server has ended the session")
)

// A Conn is one network connection. It encodes requests straight into its buffer and decodes
// replies in the goroutine that reads. No request needs a goroutine of its own. It also does the
// following:
//
//   - The handshake (handshake.go). Credentials are sent with it, or after an exchange of SASL.
//     Watches follow directly, ahead of every request.
//   - Catching up. The server of a new connection first catches up with the
//     leader. So no read over it is older than a read over the previous connection.
//   - Watches. A read carries the watch flag if Watches wants a watch on its
//     znode. Events are passed to Watches.
//   - Times. The session learns when each packet is sent and when the reply comes:
//     see package lease.
//   - Deadlines. A handshake cannot hang. A silent server is noticed early
//     enough to try another before the session must be abandoned.
//
// If the connection is otherwise unused, the goroutine that makes a request also writes it (put).
// All other packets are written by one goroutine, write. Each time, it takes all packets that are
// in the buffer and writes them together. It has no deadline of its own: a server that does not
// read does not answer either, and the reading goroutine notices that.
type Conn struct {
	net.Conn        // the socket
	Addr     string // of the server
	CaughtUp bool   // the server has answered the sync of a continued session; only the reading goroutine uses it
	s        *Shared
	r        *bufio.Reader // reads from Conn; only the reading goroutine uses it
	head     [replyHeader]byte
	body     []byte // of the last reply; only the reading goroutine uses it

	limit      time.Duration // time to reach the server, and for its answer to the handshake
	hardLimit  time.Time     // when limit is over
	id         int64         // of the session
	timeout    time.Duration // of the session; it does not change after the handshake
	asked      time.Time     // when the handshake was sent
	lastZxid   int64         // the last zxid that the session had seen at the handshake
	began      atomic.Bool   // the handshake is over
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

	heard    time.Time // when the last reply came, or zero; only the reading goroutine uses it
	setAgain int       // answers to setWatches; only the reading goroutine uses it

	useful bool // the server has executed a request; only the reading goroutine uses it

	mu    sync.Mutex         // guards the fields below; taken before the session's own locks
	sent  map[int32]sentInfo // requests without a reply, by xid
	order []int32            // the xids of sent in the order of sending; some may have been answered
	pings []lease.Stamp      // pings without a reply, oldest first
	phase phase
}

// A phase says whether a connection takes requests.
type phase int

const (
	unopened phase = iota // not yet: the session does not know of the connection
	opened                // yes
	over                  // no longer: all requests without a reply have failed
)

// A Request is an operation that the session sends and that has one reply.
type Request interface {
	// Encode appends the body, which follows the header.
	Encode(p []byte) []byte
	// Key returns the key of the watch that a read can set; ok is false for other requests.
	Key() (key WatchKey, ok bool)
	Op() int32
	// Moot reports whether the request changes nothing, even if the server executes it late.
	Moot() bool
	// Reply decodes the reply. It returns the code of the reply as a whole. ok is false if the
	// reply is malformed.
	Reply(code int32, body []byte) (whole int32, ok bool)
	// Finish lets the caller continue.
	Finish()
	// Fail is called instead of Reply and Finish if no reply will come.
	Fail(err error)
}

// sentInfo describes a request that has no reply yet.
type sentInfo struct {
	at  lease.Stamp
	op  int32
	ask *ask    // passed to Watches with the reply, if the read carries the watch flag
	r   Request // nil if the connection made the request itself

	deletes []string // the paths that it deletes, if a trace is written
}

// Harms reports whether r does harm if a server executes it late.
func Harms(r Request) bool {
	switch r.Op() {
	case wire.OpCreate, wire.OpCreateContainer, wire.OpDelete, wire.OpSetData, wire.OpMulti:
		return !r.Moot()
	}
	return false
}

// New returns a connection over c. The server must answer the handshake before deadline, which is
// at most limit after the dialing began.
func New(s *Shared, c net.Conn, addr string, limit time.Duration, deadline time.Time) *Conn {
	return &Conn{
		Conn:      c,
		Addr:      addr,
		s:         s,
		r:         bufio.NewReaderSize(c, 8<<10),
		limit:     limit,
		hardLimit: deadline,
		closed:    make(chan struct{}),
		more:      make(chan struct{}, 1),
		sent:      make(map[int32]sentInfo),
	}
}

// Open lets requests in. The session calls it when it knows of the connection.
func (c *Conn) Open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == unopened {
		c.phase = opened
	}
}

// Over is called when the connection has ended. It makes every request without a reply fail. It
// reports whether such a request does harm if the server executes it late.
func (c *Conn) Over() (harms bool) { return c.fail(zk.ErrConnectionClosed) }

// fail stops the sending of requests. Requests without a reply fail with err.
func (c *Conn) fail(err error) (harms bool) {
	c.mu.Lock()
	lost, order := c.sent, c.order
	c.phase, c.sent, c.order = over, nil, nil
	c.mu.Unlock()
	for _, xid := range order { // repeated requests keep their order
		if info, open := lost[xid]; open && info.r != nil {
			harms = harms || Harms(info.r)
			info.r.Fail(err)
		}
	}
	return harms
}

// Send sends requests, one directly after the other. It reports false if the connection does not take
// requests; then it has sent none of them.
func (c *Conn) Send(rs ...Request) bool {
	if !c.began.Load() {
		return false // not open yet; put would wait for wmu, which the handshake holds even while a server is silent
	}
	mine, ok := c.put(rs)
	if mine != nil {
		c.writeOut(mine)
	}
	return ok
}

// SendOrFail is Send for a connection that may just have ended. Requests that it cannot send fail
// with ErrUnsent.
func (c *Conn) SendOrFail(rs ...Request) {
	if !c.Send(rs...) {
		for _, r := range rs {
			r.Fail(ErrUnsent)
		}
	}
}

// directly is the size of the largest packets that a requesting goroutine writes itself.
const directly = 4 << 10

// put appends requests to out. If it returns packets, the caller must write them.
//
// It returns packets only if every packet that was sent before has been answered, including the
// packets sent with the handshake. So the server has read them, the socket's buffer is empty, and
// the caller's write does not block, whatever the server does from now on. If other goroutines add
// requests during that write, the goroutine write writes them: there may be many.
func (c *Conn) put(rs []Request) (mine []byte, ok bool) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != opened || c.s.Ctx.Err() != nil {
		return nil, false
	}
	alone := !c.busy && len(c.out)+len(c.sent)+len(c.pings) == 0
	at := c.s.Sending()
	for _, r := range rs {
		xid := c.s.NextXid()
		info := sentInfo{at: at, op: r.Op(), r: r}
		start := len(c.out)
		c.out = r.Encode(wire.AppendHeader(c.out, xid, info.op))
		if key, ok := r.Key(); ok {
			var flag byte
			if info.ask = c.s.Watches.ask(key); info.ask != nil {
				flag = 1
			}
			c.out = append(c.out, flag)
		}
		wire.EndPacket(c.out[start:])
		if c.s.Deleted != nil {
			info.deletes = wire.Deletes(info.op, c.out[start+12:])
		}
		c.sent[xid] = info
		c.order = append(c.order, xid)
	}
	c.s.Requests.Add(int64(len(rs)))
	if n := len(c.out); alone && 0 < n && n <= directly { // out is empty if rs is empty
		return c.takeLocked(), true
	}
	c.wroteLocked()
	return nil, true
}

// takeLocked empties out, and returns its packets for the caller to write.
func (c *Conn) takeLocked() (p []byte) {
	p, c.out, c.spare, c.busy = c.out, c.spare, nil, true
	return p
}

// wroteLocked wakes the goroutine write, which writes the packets in out.
func (c *Conn) wroteLocked() {
	select {
	case c.more <- struct{}{}:
	default: // the token that is already there covers these packets too
	}
}

// lastWords is how long the client still reads from a connection on which a write has failed. If
// the server has closed it, the reading ends earlier.
const lastWords = 20 * time.Millisecond

// keptBuffer is the size of the largest buffer that is reused for later packets.
const keptBuffer = 64 << 10

// write writes packets until the connection is closed.
func (c *Conn) write() {
	ticker := time.NewTicker(lease.PingEvery(c.timeout))
	defer ticker.Stop()
	for {
		select {
		case <-c.more:
		case <-ticker.C:
			c.ping()
		case <-c.closed:
			return
		}
		var p []byte
		c.wmu.Lock()
		if !c.busy && len(c.out) > 0 { // otherwise, out is empty, or the writing goroutine wakes us when it has finished
			p = c.takeLocked()
		}
		c.wmu.Unlock()
		if p != nil {
			c.writeOut(p)
		}
	}
}

// writeOut writes p, which the caller has taken from out.
func (c *Conn) writeOut(p []byte) {
	err := c.writeAll(p, c.moved)
	if err != nil {
		// The server may receive a part of the packets. So no packet can follow them, and the
		// connection ends. If the server has closed it, the reader first reads the server's last
		// words: they say why.
		time.AfterFunc(lastWords, func() { c.Close() })
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if cap(p) <= keptBuffer {
		c.spare = p[:0]
	}
	if c.busy = err != nil; !c.busy && len(c.out) > 0 {
		c.wroteLocked()
	}
}

// Deadlines move with the bytes. If a deadline were fixed, a packet that needs longer over a slow
// network would fail, be sent again in full, and fail again. So a long packet is sent or read in
// strides, and each stride has as much time as a reply. A packet has about 64 strides at most. So a
// server that trickles delays the replies to pings by at most 32 session timeouts. A stride proves
// nothing about the session: holds rest on replies alone, see package lease.
const stride = 16 << 10

// strideOf is the stride of a packet of n bytes.
func strideOf(n int) int { return max(stride, n/64) }

// writeAll writes p, and calls moved after each stride but the last.
func (c *Conn) writeAll(p []byte, moved func()) error {
	for step := strideOf(len(p)); len(p) > step; p = p[step:] {
		if _, err := c.Conn.Write(p[:step]); err != nil {
			return err
		}
		moved()
	}
	_, err := c.Conn.Write(p)
	return err
}

// moved extends the deadlines after a stride of a long packet was sent or read.
func (c *Conn) moved() {
	now := time.Now()
	c.dmu.Lock()
	c.went = now
	c.dmu.Unlock()
	c.s.Moved(now)
	c.deadline(now.Add(c.silence()))
}

// Read processes packets of the server until the connection ends.
func (c *Conn) Read() error {
	for {
		if err := c.nextPacket(); err != nil {
			return err
		}
	}
}

// begin appends the header of a request that the connection itself makes. The caller holds wmu.
func (c *Conn) begin(p []byte, op int32) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	xid := c.s.NextXid()
	if c.phase != over {
		c.sent[xid] = sentInfo{at: c.s.Sending(), op: op}
		c.order = append(c.order, xid)
	}
	return wire.AppendHeader(p, xid, op)
}

func (c *Conn) ping() {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	c.pings = append(c.pings, c.s.Sending())
	c.mu.Unlock()
	c.out = append(c.out, wire.EndPacket(wire.AppendHeader(nil, wire.XidPing, wire.OpPing))...)
	c.wroteLocked()
}

// Bye asks the server to end the session.
func (c *Conn) Bye() {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.out = append(c.out, wire.EndPacket(c.begin(nil, wire.OpCloseSession))...)
	c.s.Requests.Add(1)
	c.wroteLocked()
}

// replyHeader is the size of the header of every packet from a server: length, xid, zxid and
// error code.
const replyHeader = 20

// nextPacket reads and processes a packet. If it returns an error, this packet and all later ones
// are dropped.
func (c *Conn) nextPacket() error {
	c.patience()
	if _, err := io.ReadFull(c.r, c.head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(c.head[:]))
	if size < replyHeader-4 || size > wire.MaxReply {
		return fmt.Errorf("%w: packet of %d bytes", ErrProtocol, size)
	}
	xid, code := int32(binary.BigEndian.Uint32(c.head[4:])), int32(binary.BigEndian.Uint32(c.head[16:]))
	now, n := time.Now(), int(size)-(replyHeader-4)
	if xid != wire.XidEvent { // a server can send events even if it receives nothing from us
		// The present deadline may belong to this request or to another. A packet that has begun
		// gets its own time.
		c.deadline(now.Add(c.silence()))
		if c.heard = now; c.r.Buffered() < n {
			defer func() { c.heard = time.Now() }()
		}
	}
	body, err := c.readBody(n, xid)
	if err != nil {
		return err
	}
	c.s.Seen.see(xid, int64(binary.BigEndian.Uint64(c.head[8:])))
	if xid != wire.XidEvent && code == wire.CodeWantsAuth {
		// The server refuses this client and closes the connection. It executes neither the refused
		// request nor any later one.
		c.fail(ErrUnsent)
		return wire.Error(code)
	}
	switch xid {
	case wire.XidEvent:
		return c.event(body)
	case wire.XidSetWatches:
		if code != 0 {
			// The server has set none of the watches. The next connection sets them again. Before
			// that, no read may be answered.
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
	return c.received(xid, code, body, now)
}

// Lasting is how long a connection must live to be replaced without a pause. So a server that
// accepts and closes connections is dialled at most once a second.
const Lasting = time.Second

// maxDisowned limits how many connections in a row may end because of [Conn.disowned].
const maxDisowned = 3

// A server that serves a session may reply that the session has moved or has expired. It has not
// executed that request, and it answers all later ones over this connection in the same way.
//
// A session has moved if another server's request to continue it reached the leader late. The next
// handshake makes its own server the owner of the session, so a new connection always helps.
//
// If the session has expired, the next handshake fails. disowned reports whether the connection
// must end so that this handshake takes place. If three handshakes in a row succeed, and each
// connection ends in this way within a second, the servers contradict themselves. A server with
// localSessionsEnabled does that, because the leader does not know its sessions. Then the caller
// gets the reply.
func (c *Conn) disowned() bool {
	if time.Since(c.asked) >= Lasting {
		c.s.disowned = 0
	}
	if c.s.disowned == maxDisowned {
		return false
	}
	c.s.disowned++
	return true
}

// readBody reads the n bytes of the packet xid. They are valid until the next packet.
//
// Strides extend the deadline only for the reply that is due next. Each request has one reply. So
// a server that does not answer a request cannot keep the connection open with other long
// packets.
func (c *Conn) readBody(n int, xid int32) ([]byte, error) {
	body, step := c.body[:0], strideOf(n)
	switch {
	case n > wire.MaxAhead: // a server may announce any size, so allocate only as the bytes come
		body = make([]byte, 0, keptBuffer)
	case n > cap(body):
		body = make([]byte, 0, n)
	}
	for expected := n > step && c.expects(xid); len(body) < n; {
		if len(body) == cap(body) {
			body = append(make([]byte, 0, min(n, 4*cap(body))), body...)
		}
		more := body[len(body):min(n, cap(body), len(body)+step)]
		if _, err := io.ReadFull(c.r, more); err != nil {
			return nil, err
		}
		if body = body[:len(body)+len(more)]; expected {
			c.moved()
		}
	}
	if cap(body) <= keptBuffer {
		c.body = body
	}
	return body, nil
}

// expects reports whether the reply to xid is due next.
func (c *Conn) expects(xid int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.order) > 0 && c.order[0] == xid
}

// event passes an event to Watches.
func (c *Conn) event(body []byte) error {
	s := wire.Scanner{Rest: body}
	t := zk.EventType(s.Int32())
	s.Int32() // the state of the server
	path := s.String()
	if s.Bad || t < zk.EventNodeCreated || t > zk.EventNodeChildrenChanged {
		return fmt.Errorf("%w: event of type %d", ErrProtocol, t)
	}
	c.s.Watches.fire(t, path)
	return nil
}

// received processes every packet except events. now is when the packet began to arrive: the facts
// that the packet reports were true by then. It runs in the reading goroutine.
func (c *Conn) received(xid, code int32, body []byte, now time.Time) error {
	c.mu.Lock()
	if xid == wire.XidPing {
		var at lease.Stamp
		if len(c.pings) > 0 {
			at, c.pings = c.pings[0], c.pings[1:]
		}
		c.mu.Unlock()
		c.s.Answered(at, lease.ProofOf(wire.OpPing, code), now)
		return nil
	}
	info, ok := c.sent[xid]
	delete(c.sent, xid)
	done := 0
	for done < len(c.order) {
		if _, waits := c.sent[c.order[done]]; waits {
			break
		}
		done++
	}
	c.order = c.order[:copy(c.order, c.order[done:])]
	c.mu.Unlock()
	if !ok {
		return nil // the reply to credentials or setWatches, which are not in sent
	}
	if info.r == nil {
		return c.own(info, code, now)
	}
	if zxid := int64(binary.BigEndian.Uint64(c.head[8:])); zxid > c.s.Seen.Reply.Load() {
		c.s.Seen.Reply.Store(zxid)
	}
	if info.ask != nil {
		// Watches learns of the reply even if it is malformed and the read fails: the server has
		// set the watch.
		c.s.Watches.answered(info.ask, code, ownerOf(code, body) == c.id)
	}
	// Watches and the lease are updated before the caller continues.
	whole, ok := info.r.Reply(code, body)
	if !ok {
		err := fmt.Errorf("%w: malformed reply to a request of type %d", ErrProtocol, info.op)
		info.r.Fail(err) // it may have been applied
		return err
	}
	c.s.Answered(info.at, lease.ProofOf(info.op, whole), now)
	c.deleted(info, whole)
	info.r.Finish()
	return nil
}

// own processes the reply to a request that the connection itself has made. The zxid of the reply
// does not count as seen. The next connection asks only for the events after the last zxid seen.
// But events before this zxid may still be missing: the watches are set again after the
// confirmation.
func (c *Conn) own(info sentInfo, code int32, now time.Time) error {
	switch info.op {
	case wire.OpCloseSession:
		if code == 0 {
			return ErrEnded
		}
	case wire.OpSync:
		if code != 0 {
			// So the connection ends before any later reply is used.
			return fmt.Errorf("the server cannot catch up with its leader (code %d)", code)
		}
		c.CaughtUp = true
	case wire.OpDelete:
		c.s.Answered(info.at, lease.ProofOf(info.op, code), now)
	}
	return nil
}

// deleted records a deletion in the trace. If the znode did not exist, an earlier transaction
// whose reply was lost has deleted it.
func (c *Conn) deleted(info sentInfo, code int32) {
	zxid := int64(binary.BigEndian.Uint64(c.head[8:]))
	switch {
	case code == 0:
	case code == wire.CodeNoNode && info.op == wire.OpDelete:
		zxid = 0
	default:
		return
	}
	for _, path := range info.deletes {
		c.s.Deleted(path, zxid)
	}
}

// RemoveWatch asks the server to drop a watch, unless a goroutine waits for it again. It reports
// false if c is no longer the newest connection; then it has done nothing.
//
// It holds wmu from the decision until the request has its place in the order. So a read that sets
// the watch again is sent after the removal. A handshake holds wmu, too, while it lists and sends
// the watches to set again. So it does not set a watch that was dropped before. A watch that is
// dropped later is removed on the new connection.
func (c *Conn) RemoveWatch(key WatchKey, newest func() bool) bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if !newest() {
		return false
	}
	if !c.s.Watches.forget(key) || !c.began.Load() {
		return true
	}
	p := wire.AppendString(c.begin(nil, wire.OpRemoveWatches), key.Path)
	c.out = append(c.out, wire.EndPacket(wire.AppendInt32(p, key.Kind.watcherType()))...)
	c.wroteLocked()
	c.s.Requests.Add(1)
	return true
}

// silence is how long a connection may have no reply before it is closed.
func (c *Conn) silence() time.Duration { return time.Duration(float64(c.timeout) * lease.Silence) }

// patience sets the deadline for the next packet. A silent server is noticed even if it sends
// events, and an unanswered request even if pings are answered. A request that is sent during the
// read does not move the deadline; patience considers it before the next read.
func (c *Conn) patience() {
	if c.heard.IsZero() {
		c.heard = time.Now()
	}
	due := c.heard.Add(c.silence())
	c.mu.Lock()
	if len(c.order) > 0 {
		if d := c.sent[c.order[0]].at.At.Add(c.silence()); d.Before(due) {
			due = d
		}
	}
	c.mu.Unlock()
	c.deadline(due)
}

// deadline sets the read deadline to due, or to the deadline of the next stride if that is later.
// If the present deadline is only a little earlier, it stays: moving it for every packet would
// cost more than the packet.
func (c *Conn) deadline(due time.Time) {
	silence := c.silence()
	c.dmu.Lock()
	defer c.dmu.Unlock()
	if next := c.went.Add(silence); due.Before(next) {
		due = next
	}
	if c.due.IsZero() || due.Before(c.due) || due.Sub(c.due) > silence/16 {
		c.due = due
		c.Conn.SetReadDeadline(due)
	}
}

// Close closes the socket. Any goroutine may call it, any number of times. It sends no TLS
// close_notify: that would wait for a server that does not answer, and nothing may be sent after
// Close.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		socket := c.Conn
		if t, ok := socket.(*tls.Conn); ok {
			socket = t.NetConn()
		}
		c.closeError = socket.Close()
	})
	return c.closeError
}

// ownerOf returns the owner of the znode that a read with a watch has found: a session, or 0. The
// reply to each such read ends with the Stat, and the Stat ends with the owner, two counts and a
// zxid.
func ownerOf(code int32, body []byte) int64 {
	const behind = 24
	if code != 0 || len(body) < behind {
		return 0
	}
	return int64(binary.BigEndian.Uint64(body[len(body)-behind:]))
}
