package session

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
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

// A link is one network connection of a session, between go-zookeeper and the
// socket. go-zookeeper writes one whole packet at a time and reads what comes;
// the link reads along, and adds what go-zookeeper leaves out:
//
//   - The handshake. Only the first link of an incarnation may open a session,
//     and later links may only continue it: an expired session, or another
//     session id without any word of expiry, ends the incarnation before
//     go-zookeeper learns of it. So no queued call ever runs in a session that
//     it was not made for.
//   - Credentials and watches are sent right behind the handshake, ahead of
//     every queued call. (go-zookeeper would send watches behind queued calls,
//     and can deadlock for good while it sends credentials.)
//   - A new connection of a session shows nothing older than the one before:
//     its server catches up with the leader ahead of every call.
//   - The watch flag of a read is set when the hub waits for that znode. So
//     go-zookeeper keeps no list of watches at all, and ours can be removed.
//   - The create of a container gets its op. (go-zookeeper's CreateContainer
//     reads its result even when Close has interrupted it: a data race.)
//   - What is sent and answered, and when, is noted: see liveness.
//   - Requests that go-zookeeper does not know: see bundle.
//   - Deadlines: a handshake may not hang, and silence is noticed early enough
//     to try another server before the session must be given up.
type link struct {
	net.Conn               // the socket
	addr     string        // of the server
	inc      *Incarnation  // whose session this is
	r        *bufio.Reader // of Conn; used by the reading goroutine alone
	pre      []byte        // what go-zookeeper reads next
	left     int           // bytes of the present packet that come after pre
	post     []byte        // what go-zookeeper reads behind them

	shook      atomic.Bool // the handshake is over
	hardLimit  time.Time   // of the handshake
	asked      time.Time   // when the handshake was sent
	relative   int64       // the last zxid that go-zookeeper had seen at the handshake
	closeOnce  sync.Once
	closeError error

	wmu sync.Mutex // held while writing a packet; taken before Watches.Mu

	hurried bool // the read deadline is that of a request; used by the reading goroutine alone

	mu    sync.Mutex         // guards sent, order and pings; taken before Incarnation.LiveMu
	sent  map[int32]sentInfo // requests without a reply, by xid
	order []int32            // the xids of sent as they were sent, and some that have been answered
	pings []stamp            // pings without a reply, oldest first
}

// sentInfo is what the link remembers of a request until its reply.
type sentInfo struct {
	at     stamp
	op     int32
	ops    int  // of a multi
	bundle bool // a multiRead was sent in its place
	ask    *ask // what the hub makes of the reply, if the read carries a watch
}

func newLink(inc *Incarnation, c net.Conn, addr string, limit time.Time) *link {
	return &link{
		Conn:      c,
		addr:      addr,
		inc:       inc,
		r:         bufio.NewReaderSize(c, 16<<10),
		hardLimit: limit,
		sent:      make(map[int32]sentInfo),
	}
}

// Write sends one packet of go-zookeeper.
func (l *link) Write(p []byte) (int, error) {
	if !l.shook.Load() {
		return l.writeHandshake(p)
	}
	if len(p) < 12 {
		return 0, fmt.Errorf("zsync: BUG: packet of %d bytes", len(p))
	}
	l.wmu.Lock()
	defer l.wmu.Unlock()
	xid, op := int32(binary.BigEndian.Uint32(p[4:])), int32(binary.BigEndian.Uint32(p[8:]))
	info := sentInfo{at: l.inc.sending(), op: op}
	var created string
	n := len(p)
	switch op {
	case wire.OpPing:
		l.mu.Lock()
		l.pings = append(l.pings, info.at)
		l.mu.Unlock()
		return l.Conn.Write(p)
	case wire.OpGetData, wire.OpExists, wire.OpGetChildren2:
		if path, ok := wire.Path(p); ok {
			if info.ask = l.inc.Watches.ask(WatchKey{kindOfRead(op), path}); info.ask != nil {
				p[len(p)-1] = 1 // the packet ends in the watch flag
			} else if paths := l.inc.bundle(path); paths != nil {
				info.bundle = true
				p = bundlePacket(xid, paths)
			}
		}
	case wire.OpCreate:
		created, _ = wire.Path(p)
		if p[len(p)-1] == zk.FlagContainer { // the packet ends in the flags
			binary.BigEndian.PutUint32(p[8:], wire.OpCreateContainer)
		}
	case wire.OpMulti:
		info.ops = wire.CountOps(p[12:])
	}
	l.mu.Lock()
	l.sent[xid] = info
	l.order = append(l.order, xid)
	l.mu.Unlock()
	l.inc.Manager.requests.Add(1)
	if _, err := l.Conn.Write(p); err != nil {
		// go-zookeeper must not hear of it here. It would answer the request at
		// once, again when it finds that the connection is gone, and a third
		// time if Close is called meanwhile: its channel has room for two.
		l.Close()
	}
	if created != "" {
		l.inc.createSent(created)
	}
	return n, nil
}

// writeHandshake sends the connect request, unless the incarnation is over: a
// session must not be opened after the end.
func (l *link) writeHandshake(p []byte) (int, error) {
	if l.inc.Ctx.Err() != nil {
		l.Close()
		return 0, net.ErrClosed
	}
	if len(p) >= 16 {
		l.relative = int64(binary.BigEndian.Uint64(p[8:]))
	}
	l.asked = time.Now()
	l.Conn.SetDeadline(l.hardLimit)
	return l.Conn.Write(p)
}

// Read hands the server's packets to go-zookeeper.
func (l *link) Read(p []byte) (int, error) {
	if !l.shook.Load() {
		if err := l.handshake(); err != nil {
			l.Close()
			if l.inc.Ctx.Err() == nil {
				l.inc.Manager.dialed(l.addr, err)
			}
			return 0, err
		}
	}
	if len(l.pre) == 0 && l.left == 0 {
		l.pre, l.post = l.post, nil
	}
	if len(l.pre) == 0 && l.left == 0 {
		if err := l.nextPacket(); err != nil {
			l.Close() // frees a writer that is blocked
			return 0, err
		}
	}
	if len(l.pre) > 0 {
		n := copy(p, l.pre)
		l.pre = l.pre[n:]
		return n, nil
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	if err != nil {
		l.Close()
	}
	return n, err
}

// replyHeader is the size of what every packet of a server begins with: its
// length, xid, zxid and error code.
const replyHeader = 20

// nextPacket reads the header of a packet.
//
// What ends in an error here is never seen by go-zookeeper, nor is anything
// behind it.
func (l *link) nextPacket() error {
	var head [replyHeader]byte
	if _, err := io.ReadFull(l.r, head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < replyHeader-4 || size > wire.MaxReply {
		return fmt.Errorf("%w: packet of %d bytes", ErrProtocol, size)
	}
	if l.hurried { // the deadline was that of this request or another: what has begun may take its time
		l.hurried = false
		l.Conn.SetReadDeadline(time.Now().Add(l.inc.silence()))
	}
	l.pre, l.left = head[:], int(size)-(replyHeader-4)
	xid, code := int32(binary.BigEndian.Uint32(head[4:])), int32(binary.BigEndian.Uint32(head[16:]))
	if err := l.checkUnasked(xid, code); err != nil {
		return err
	}
	info := l.received(xid, code)
	if code == 0 { // else go-zookeeper looks no further
		if err := l.fit(info, size); err != nil {
			return err
		}
	}
	if l.left <= wire.MaxAhead {
		return nil
	}
	// go-zookeeper makes room for the whole packet when it sees the size. It
	// sees it when the packet has come: sizes cost a server nothing.
	body, err := io.ReadAll(io.LimitReader(l.r, int64(l.left)))
	if err == nil && len(body) < l.left {
		err = io.ErrUnexpectedEOF
	}
	l.pre, l.left = append(l.pre, body...), 0
	return err
}

// checkUnasked looks at what no request of go-zookeeper has asked for.
func (l *link) checkUnasked(xid, code int32) error {
	switch {
	case xid == wire.XidEvent:
		// go-zookeeper hands on whatever it is, and to it events of type -1
		// are its own: about the session.
		b, err := l.r.Peek(min(l.left, 4))
		if err != nil {
			return err
		}
		if len(b) < 4 {
			return nil // go-zookeeper finds that it is too short
		}
		if t := zk.EventType(int32(binary.BigEndian.Uint32(b))); t < zk.EventNodeCreated || t > zk.EventNodeChildrenChanged {
			return fmt.Errorf("%w: event of type %d", ErrProtocol, t)
		}
	case xid == wire.XidCatchUp && code != 0:
		// Before anything behind it is believed.
		return fmt.Errorf("zsync: the server cannot catch up with its leader (error %d)", code)
	case xid == wire.XidSetWatches && code != 0:
		// The server has none of them. They are set again on the next
		// connection; until then nobody must be answered.
		return fmt.Errorf("zsync: the server has refused to set the watches again (error %d)", code)
	}
	return nil
}

// fit makes a reply without an error such that go-zookeeper can take it.
func (l *link) fit(info sentInfo, size int32) error {
	if info.bundle {
		// Dressed up as the reply to getData: the data with their length, and a Stat.
		binary.BigEndian.PutUint32(l.pre, uint32(size)+4+wire.StatSize)
		l.pre = binary.BigEndian.AppendUint32(l.pre, uint32(l.left))
		l.post = make([]byte, wire.StatSize)
		return nil
	}
	return l.checkReply(info)
}

// checkReply looks at the body of a reply for what would make go-zookeeper
// panic, or take all memory there is, if a server answered what it should not.
func (l *link) checkReply(info sentInfo) error {
	switch info.op {
	case wire.OpGetData, wire.OpGetChildren2:
		b, err := l.r.Peek(min(l.left, 4))
		if err != nil {
			return err
		}
		if len(b) < 4 {
			return nil // go-zookeeper finds that it is too short
		}
		n, each := int64(int32(binary.BigEndian.Uint32(b))), int64(1)
		if info.op == wire.OpGetChildren2 {
			n, each = int64(uint32(n)), 4 // a name has at least its length
		}
		if n*each > int64(l.left-4) {
			return fmt.Errorf("%w: %d elements in %d bytes", ErrProtocol, n, l.left)
		}
	case wire.OpMulti:
		body, err := io.ReadAll(io.LimitReader(l.r, int64(l.left))) // grows as the bytes come
		if err != nil {
			return err
		}
		if len(body) < l.left {
			return io.ErrUnexpectedEOF
		}
		l.pre, l.left = append(l.pre, body...), 0
		if wire.CountResults(body) != info.ops {
			return fmt.Errorf("%w: malformed reply to a transaction", ErrProtocol)
		}
		l.inc.contact(info.at, proofOf(info.op, wire.FailureOf(body)))
	}
	return nil
}

// handshake reads the reply to the connect request and decides whether this
// link may go on. It runs in go-zookeeper's connecting goroutine, when no
// other uses the link.
func (l *link) handshake() error {
	var size [4]byte
	if _, err := io.ReadFull(l.r, size[:]); err != nil {
		return err
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
		return fmt.Errorf("%w: session of %v", errHandshake, timeout) // go-zookeeper would panic
	}

	l.wmu.Lock()
	defer l.wmu.Unlock()
	continued := l.inc.ID.Load() != 0
	if err := l.inc.handshake(l, id, timeout); err != nil {
		if id != 0 {
			// Nobody will use this session: either it is not the one that
			// was asked for, or the incarnation ended in the meantime.
			l.Conn.Write(wire.AppendHeader(nil, 1, wire.OpCloseSession))
		}
		return err
	}
	// Behind the handshake, ahead of every call.
	var out []byte
	for _, a := range l.inc.Manager.Config.Auths {
		out = append(out, authPacket(a)...)
	}
	if continued && l.inc.staked() {
		out = append(out, l.confirmPacket()...)
	}
	out = append(out, l.inc.Watches.resend(l.relative)...)
	if continued {
		// What a server tells in an event is not in the zxid that go-zookeeper
		// shows to the next server. So a server from before the event would
		// take the session, and show what the event has told to be over: a
		// place that is gone, permits that are taken. A session that begins
		// needs no such thing: its server has applied its beginning, which
		// comes after everything that was seen before.
		out = append(out, catchUpPacket()...)
	}
	if len(out) > 0 {
		if _, err := l.Conn.Write(out); err != nil {
			return err
		}
	}
	if err := l.authenticated(len(l.inc.Manager.Config.Auths)); err != nil {
		return err
	}
	// Until go-zookeeper knows of the session it can ask for another.
	l.inc.ID.Store(id)
	l.Conn.SetDeadline(time.Time{})
	l.pre = append(size[:], body...)
	l.shook.Store(true)
	return nil
}

// confirmPacket is the write that makes a session certain again that is continued
// while something is held: see liveness. It deletes where there is no znode.
func (l *link) confirmPacket() []byte {
	l.mu.Lock()
	l.sent[wire.XidConfirm] = sentInfo{at: l.inc.sending(), op: wire.OpDelete}
	l.order = append(l.order, wire.XidConfirm)
	l.mu.Unlock()
	l.inc.Manager.requests.Add(1)
	p := wire.AppendHeader(nil, wire.XidConfirm, wire.OpDelete)
	p = wire.AppendString(p, l.inc.nobody)
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

// received is told the header of each packet that came in. It runs in the
// goroutine that reads, before go-zookeeper sees the packet's last byte.
func (l *link) received(xid, code int32) (info sentInfo) {
	switch xid {
	case wire.XidEvent:
		return info
	case wire.XidPing:
		l.mu.Lock()
		var at stamp
		if len(l.pings) > 0 {
			at, l.pings = l.pings[0], l.pings[1:]
		}
		l.mu.Unlock()
		l.inc.contact(at, proofOf(wire.OpPing, code))
		return info
	}
	l.mu.Lock()
	var ok bool
	info, ok = l.sent[xid]
	delete(l.sent, xid)
	for len(l.order) > 0 {
		if _, waits := l.sent[l.order[0]]; waits {
			break
		}
		l.order = l.order[1:]
	}
	l.mu.Unlock()
	if !ok {
		return info
	}
	if info.ask != nil {
		l.inc.Watches.answered(info.ask, code)
	}
	if info.op == wire.OpMulti && code == 0 {
		return info // what it proves stands in its body
	}
	l.inc.contact(info.at, proofOf(info.op, code))
	return info
}

// removeWatch asks the server to forget a watch, unless somebody waits for it
// again. It reports whether l is still the newest link; otherwise it has done
// nothing.
//
// wmu is held from the decision until the request is written, so whatever read
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
	p := wire.AppendHeader(nil, wire.XidRemoveWatches, wire.OpRemoveWatches)
	p = wire.AppendString(p, key.Path)
	p = binary.BigEndian.AppendUint32(p, uint32(key.Kind.watcherType()))
	l.Conn.SetWriteDeadline(time.Now().Add(l.inc.silence()))
	if _, err := l.Conn.Write(wire.EndPacket(p)); err != nil {
		l.Close() // it may be there in part, and what comes behind it would be taken for the rest
	}
	l.inc.Manager.requests.Add(1)
	return true
}

// SetReadDeadline bounds go-zookeeper's patience: the handshake has a limit of
// its own, and after it silence is noticed before go-zookeeper would. So is a
// request that is not answered though pings are.
//
// It is called before each packet. A request that is sent while the packet is
// awaited has its time after the deadline that was set; before the next packet
// it is looked at.
func (l *link) SetReadDeadline(t time.Time) error {
	t = l.clip(t)
	l.mu.Lock()
	if len(l.order) > 0 {
		due := l.sent[l.order[0]].at.at.Add(l.inc.silence())
		if l.hurried = due.Before(t); l.hurried {
			t = due
		}
	}
	l.mu.Unlock()
	return l.Conn.SetReadDeadline(t)
}

// SetWriteDeadline bounds a write likewise.
func (l *link) SetWriteDeadline(t time.Time) error {
	return l.Conn.SetWriteDeadline(l.clip(t))
}

func (l *link) clip(t time.Time) time.Time {
	limit := l.hardLimit
	if l.shook.Load() {
		if t.IsZero() {
			// Between the packets of a living link: the next call sets one.
			return t
		}
		limit = time.Now().Add(l.inc.silence())
	}
	if t.IsZero() || t.After(limit) {
		return limit
	}
	return t
}

// Close closes the socket. It may be called by anyone, any number of times. It
// does not wait for TLS to say goodbye, which a server that is away would not
// hear: nothing may be sent any more from here on.
func (l *link) Close() error {
	l.closeOnce.Do(func() {
		c := l.Conn
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		l.closeError = c.Close()
	})
	return l.closeError
}

// catchUpPacket asks the server to catch up with the leader before it answers
// what comes behind.
func catchUpPacket() []byte {
	return wire.EndPacket(wire.AppendString(wire.AppendHeader(nil, wire.XidCatchUp, wire.OpSync), "/"))
}

func authPacket(a Auth) []byte {
	p := wire.AppendHeader(nil, wire.XidAuth, wire.OpAuth)
	p = binary.BigEndian.AppendUint32(p, 0)
	p = wire.AppendString(p, a.Scheme)
	return wire.EndPacket(wire.AppendString(p, string(a.Credentials)))
}

func (inc *Incarnation) bundle(token string) []string {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.bundles[token]
}

// bundlePacket is the request for a bundle.
func bundlePacket(xid int32, paths []string) []byte {
	header := func(p []byte, op int32, done byte) []byte {
		p = append(binary.BigEndian.AppendUint32(p, uint32(op)), done)
		return append(p, 0xff, 0xff, 0xff, 0xff)
	}
	p := wire.AppendHeader(nil, xid, wire.OpMultiRead)
	for _, path := range paths {
		p = wire.AppendString(header(p, wire.OpGetData, 0), path)
		p = append(p, 0) // no watch
	}
	return wire.EndPacket(header(p, -1, 1))
}
