package conn

// This file has the handshake: Connect, Authenticate, and then Begin. The reading goroutine calls
// all three before it reads other packets. During the handshake, no other goroutine uses the
// connection. Before Begin, package session decides whether the reply to Connect continues the
// session. Instead of all three, End ends a session.

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// A Hello is a client's request for a session, or a server's reply.
type Hello struct {
	ID       int64 // of the session; 0 in a request asks for a new session; 0 in a reply means that the session has expired
	Password []byte
	Timeout  time.Duration
}

// Connect asks the server to open the session, or to continue it, and returns the reply.
func (c *Conn) Connect(ask Hello) (got Hello, err error) {
	c.asked = time.Now()
	if ask.ID == 0 {
		ask.Password = make([]byte, 16)
	}
	// The credentials are sent with the handshake, which saves a round trip.
	out := wire.Connect(c.s.replied.Load(), ask.Timeout, ask.ID, ask.Password)
	if c.s.SASL == nil { // with SASL, Authenticate sends the credentials
		out = append(out, authPackets(c.s.Auths)...)
	}
	if _, err := c.Conn.Write(out); err != nil {
		return got, err
	}
	_, secure := c.Conn.(*tls.Conn)
	var size [4]byte
	switch _, err := io.ReadFull(c.r, size[:]); {
	case errors.Is(err, io.EOF) && !secure:
		return got, fmt.Errorf("%w instead of an answer to the handshake; a server that speaks TLS (see WithTLS) may do so", err)
	case err != nil:
		return got, err
	case size[0] == 21 && size[1] == 3 && !secure: // an alert of TLS, version 1.x
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
	scan := wire.Scanner{Rest: body}
	scan.Int32() // the version of the protocol
	got.Timeout = time.Duration(scan.Int32()) * time.Millisecond
	got.ID = int64(binary.BigEndian.Uint64(scan.Take(8)))
	if got.Password = scan.Data(); scan.Bad || got.ID != 0 && got.Timeout <= 0 {
		return got, fmt.Errorf("%w: session of %v", ErrHandshake, got.Timeout)
	}
	c.trip = c.Age()
	return got, nil
}

// Authenticate makes the exchange of SASL directly after the reply to the handshake. The
// argument `id` is the session in that reply. Without a mechanism, or if `id` is 0, Authenticate
// does nothing. The exchange ends at the deadline of the handshake.
func (c *Conn) Authenticate(ctx context.Context, id int64) error {
	s := c.s
	if s.SASL == nil || id == 0 {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, c.by)
	defer cancel()
	err := s.SASL.Authenticate(ctx, s.Spawn, c.Addr, func(token []byte) ([]byte, error) {
		xid := s.NextXid()
		if _, err := c.Conn.Write(wire.EndPacket(wire.AppendString(wire.AppendHeader(nil, xid, wire.OpSASL), string(token)))); err != nil {
			return nil, err
		}
		answered, code, body, err := c.readPacket()
		switch {
		case err != nil:
			return nil, err
		case answered != xid:
			return nil, fmt.Errorf("%w: no answer to a token", ErrProtocol)
		case wire.Error(code) == zk.ErrAuthFailed, code == wire.CodeWantsAuth:
			return nil, &sasl.RefusedError{Err: fmt.Errorf("the server refuses the credentials (server's code %d): %w", code, zk.ErrAuthFailed)}
		case code != 0:
			return nil, &sasl.RefusedError{Err: wire.Error(code)}
		}
		scan := wire.Scanner{Rest: body}
		answer := scan.Data()
		if scan.Bad {
			return nil, fmt.Errorf("%w: malformed token", ErrProtocol)
		}
		return answer, nil
	})
	if out := authPackets(s.Auths); err == nil && len(out) > 0 {
		_, err = c.Conn.Write(out)
	}
	return err
}

// End ends an abandoned session over a connection of its own, which is used for nothing else. It
// returns nil if the session has ended, now or earlier. A server that renews the session by the
// handshake also ends it by the request. If the connection breaks between the two, the session lives
// for one more timeout, unless another attempt ends it.
func (c *Conn) End(ctx context.Context, ask Hello) error {
	got, err := c.Connect(ask)
	if err != nil || got.ID == 0 { // 0: the session has expired
		return err
	}
	if err := c.Authenticate(ctx, got.ID); err != nil {
		return err
	}
	c.Bye()
	if got.ID != ask.ID { // the request ends this other session
		return fmt.Errorf("%w: session 0x%x", ErrHandshake, uint64(got.ID))
	}
	if err = c.Read(); err == ErrEnded || err == zk.ErrSessionExpired {
		return nil
	}
	return err
}

// Begin completes the handshake of the session `id`, which has this timeout. Begin sends the
// packets that come ahead of all requests, in this order: a write that confirms the session, the
// watches, and a sync.
//
// The watches are sent in portions. Each portion after the first follows the reply to the portion before
// it. Each reply may take the usual time, so the handshake succeeds over a slow link. All requests,
// inquiries included, wait for it. So while the session has holds, each portion follows a write that
// confirms the session.
func (c *Conn) Begin(id int64, timeout time.Duration, continued bool) error {
	c.mu.Lock()
	c.id, c.timeout = id, timeout
	c.mu.Unlock()
	portions := c.s.Watches.resend(c.s.replied.Load()) // as in the handshake: no request has been answered since
	for i := 0; i == 0 || i < len(portions); i++ {
		last := i >= len(portions)-1
		c.mu.Lock()
		if continued && c.s.Confirm() {
			// A delete of a znode that never exists: see package lease.
			c.requestLocked(wire.OpDelete, wire.AppendInt32(wire.AppendString(nil, c.s.Nobody), -1))
		}
		if i < len(portions) {
			c.out = append(c.out, portions[i]...)
		}
		if continued && last {
			// The handshake contains the zxid of the last reply, but not of a later event. So without a sync,
			// reads could show the state before that event, such as a place that was deleted. A new session
			// needs no sync: its server has applied the creation of the session.
			c.requestLocked(wire.OpSync, wire.AppendString(nil, "/"))
		}
		out := c.out
		c.out = nil
		c.mu.Unlock()
		if len(out) > 0 && c.writeAll(out) != nil {
			time.AfterFunc(lastWords, c.Close)
			return c.Read() // as in writeOut, the server's last packets may give the reason
		}
		for c.granted < len(c.s.Auths) || !last && c.setAgain <= i {
			if err := c.nextPacket(); err != nil {
				return err
			}
		}
		if c.s.Ctx.Err() != nil {
			return c.s.Ctx.Err() // Bye may follow, from this goroutine
		}
	}
	c.mu.Lock()
	c.heard = time.Now()
	c.began = true
	c.timer.Reset(c.silence()) // the time for the handshake may end later
	c.mu.Unlock()
	c.s.Spawn(c.write)
	return nil
}
