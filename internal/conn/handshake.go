package conn

// This file has the handshake: Connect, Authenticate, and then Begin. The reading goroutine calls
// all three before it reads other packets. During the handshake, no other goroutine uses the
// connection. Before Begin, package session decides whether the reply to Connect continues the
// session. Instead of all three, End ends a session.

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A Hello is a client's request for a session, or a server's reply.
type Hello struct {
	ID       int64 // of the session; 0 in a request asks for a new session; 0 in a reply means that the session has expired
	Password []byte
	Timeout  time.Duration
}

// Connect asks the server to open the session, or to continue it, and returns the reply. The
// argument `asked` is the time of the call.
func (c *Conn) Connect(ask Hello, asked time.Time) (got Hello, err error) {
	c.asked = asked
	if ask.ID == 0 {
		ask.Password = make([]byte, 16)
	}
	// The credentials are sent with the handshake, which saves a round trip.
	out := wire.Connect(c.s.replied.Load(), ask.Timeout, ask.ID, ask.Password)
	if c.s.SASL == nil { // with SASL, Begin sends the credentials
		out = append(out, authPackets(c.s.Auths)...)
	}
	if _, err := c.Conn.Write(out); err != nil {
		return got, err
	}
	var size [4]byte
	switch _, err := io.ReadFull(c.r, size[:]); {
	case errors.Is(err, io.EOF) && !isTLS(c.Conn):
		return got, fmt.Errorf("%w instead of an answer to the handshake; a server that speaks TLS (see WithTLS) may do so", err)
	case err != nil:
		return got, err
	case size[0] == 21 && size[1] == 3 && !isTLS(c.Conn): // an alert of TLS, version 1.x
		return got, fmt.Errorf("%w: the server speaks TLS: use WithTLS", ErrHandshake)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 20 || n > wire.MaxHandshake {
		return got, fmt.Errorf("%w: reply of %d bytes", ErrHandshake, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return got, err
	}
	got.Timeout = time.Duration(int32(binary.BigEndian.Uint32(body[4:]))) * time.Millisecond
	got.ID = int64(binary.BigEndian.Uint64(body[8:]))
	length := binary.BigEndian.Uint32(body[16:])
	if got.ID != 0 && got.Timeout <= 0 || length > n-20 {
		return got, fmt.Errorf("%w: session of %v", ErrHandshake, got.Timeout)
	}
	got.Password = bytes.Clone(body[20 : 20+length])
	c.trip = time.Since(asked)
	return got, nil
}

// EndSession asks the server to end the session of this handshake. Call it instead of Begin.
func (c *Conn) EndSession() {
	c.ends.Store(true)
	var out []byte
	if c.s.SASL != nil {
		out = authPackets(c.s.Auths) // a server may demand credentials even for closeSession
	}
	c.Conn.Write(c.begin(out, wire.OpCloseSession))
}

// End ends an abandoned session over a connection of its own, which is used for nothing else. It
// returns nil if the session has ended, now or earlier. A server that renews the session by the
// handshake also ends it by the request. If the connection breaks between the two, the session lives
// for one more timeout, unless another attempt ends it.
func (c *Conn) End(ctx context.Context, ask Hello) error {
	got, err := c.Connect(ask, time.Now())
	if err != nil || got.ID == 0 { // 0: the session has expired
		return err
	}
	if err := c.Authenticate(ctx, got.ID); err != nil {
		return err
	}
	defer c.end()
	c.EndSession()
	if got.ID != ask.ID { // the request ends this other session
		return fmt.Errorf("%w: session 0x%x", ErrHandshake, uint64(got.ID))
	}
	for err == nil {
		err = c.nextPacket()
	}
	if err == ErrEnded || err == zk.ErrSessionExpired {
		return nil
	}
	return err
}

// Begin completes the handshake of the session `id`, which has this timeout. Begin sends the
// packets that come ahead of all requests, in this order: the credentials (only with SASL), a write
// that confirms the session, the watches, and a sync.
//
// The watches are sent in portions. Each portion after the first follows the reply to the portion before
// it. Each reply may take the usual time, so the handshake succeeds over a slow link. All requests,
// inquiries included, wait for it. So while the session has holds, each portion follows a write that
// confirms the session.
func (c *Conn) Begin(id int64, timeout time.Duration, continued bool) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	c.id, c.timeout = id, timeout
	c.mu.Unlock()
	var out []byte
	if c.s.SASL != nil {
		out = authPackets(c.s.Auths)
	}
	portions := c.s.Watches.resend(c.s.replied.Load(), c.more) // as in the handshake: no request has been answered since
	for i := 0; i == 0 || i < len(portions); i++ {
		if continued && c.s.Confirm() {
			out = append(out, c.confirmPacket()...)
		}
		if i < len(portions) {
			out = append(out, portions[i]...)
		}
		last := i >= len(portions)-1
		if continued && last {
			out = append(out, c.catchUpPacket()...)
		}
		if len(out) > 0 {
			if err := c.writeAll(out); err != nil {
				return err
			}
		}
		for c.granted < len(c.s.Auths) || !last && c.setAgain <= i {
			if err := c.nextPacket(); err != nil {
				return err
			}
		}
		out = nil
	}
	c.mu.Lock()
	c.heard = time.Now()
	c.began.Store(true)
	c.timer.Reset(c.silence()) // the time for the handshake may end later
	c.mu.Unlock()
	c.s.Spawn(c.write)
	return nil
}

// catchUpPacket returns the sync that a new connection sends first if it continues a session.
//
// The handshake contains the zxid of the last reply, but not of a later event. So without the sync,
// reads could show the state before that event, such as a place that was deleted. A new session needs
// no sync: its server has applied the creation of the session.
func (c *Conn) catchUpPacket() []byte {
	return wire.EndPacket(wire.AppendString(c.begin(nil, wire.OpSync), "/"))
}

func isTLS(c net.Conn) bool {
	_, ok := c.(*tls.Conn)
	return ok
}

// confirmPacket returns a write that confirms a continued session with holds: see package lease.
// The write is a delete of a znode that never exists.
func (c *Conn) confirmPacket() []byte {
	c.s.Requests.Add(1)
	p := wire.AppendString(c.begin(nil, wire.OpDelete), c.s.Nobody)
	return wire.EndPacket(binary.BigEndian.AppendUint32(p, math.MaxUint32)) // any version
}
