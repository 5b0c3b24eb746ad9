// Package probe sends requests to one ZooKeeper server over one connection, and returns the packets
// in the order in which they arrive. It does not connect again, and does not judge the answers.
package probe

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// A Config says how to connect.
type Config struct {
	Dial    func(ctx context.Context, addr string) (net.Conn, error)
	TLS     *tls.Config // nil: no TLS
	Auths   []Auth
	SASL    sasl.Mechanism // nil: no SASL
	Timeout time.Duration  // session timeout to request
	Limit   time.Duration  // time limit for making the connection, and for each reply
}

// An Auth has credentials for the server.
type Auth struct {
	Scheme      string
	Credentials []byte
}

// A Conn is a connection with a session of its own. One goroutine may use it.
type Conn struct {
	Session int64         // the id of the session
	Granted time.Duration // the timeout of the session

	nc     net.Conn
	limit  time.Duration
	xid    int32
	failed error // the reason why the connection cannot be used, or nil
	stop   func() bool
}

// A Packet is a reply or a watch event. The Xid of a watch event is wire.XidEvent.
type Packet struct {
	Xid  int32
	Code int32
	Body wire.Scanner
}

// A RefusedError is a reply with an error code.
type RefusedError struct{ Code int32 }

func (e *RefusedError) Error() string {
	if text := codes[e.Code]; text != "" {
		return fmt.Sprintf("%s (code %d)", text, e.Code)
	}
	return fmt.Sprintf("the server answers with code %d", e.Code)
}

var codes = map[int32]string{
	wire.CodeUnimplemented:  "the server does not know the request",
	wire.CodeNoNode:         "no such znode",
	-102:                    "no permission",
	wire.CodeBadVersion:     "another version",
	wire.CodeNodeExists:     "the znode exists",
	wire.CodeSessionExpired: "the session has ended",
	-114:                    "an invalid ACL",
	-115:                    "the credentials are refused",
	-119:                    "the server is read-only",
	-120:                    "the session is local, and cannot create an ephemeral znode",
	wire.CodeWantsAuth:      "the server demands credentials",
	-125:                    "a quota is exceeded",
	wire.CodeThrottled:      "the server is overloaded",
}

// Code returns the server's code in err, or 0.
func Code(err error) int32 {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// largest is the size of the largest packet that a Conn reads.
const largest = 8 << 20

// Open connects and opens a session. The connection ends when ctx ends.
func Open(ctx context.Context, cfg Config, addr string) (*Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, cfg.Limit)
	defer cancel()
	nc, err := cfg.Dial(dialing, addr)
	if err != nil {
		return nil, err
	}
	if cfg.TLS != nil {
		config := cfg.TLS.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(addr)
		}
		t := tls.Client(nc, config)
		if err := t.HandshakeContext(dialing); err != nil {
			nc.Close()
			return nil, fmt.Errorf("TLS: %w", err)
		}
		nc = t
	}
	c := &Conn{nc: nc, limit: cfg.Limit, stop: context.AfterFunc(ctx, func() { nc.Close() })}
	if err := c.handshake(cfg.Timeout); err != nil {
		c.Abandon()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if err := c.authenticate(dialing, cfg, addr); err != nil {
		c.Abandon()
		return nil, err
	}
	return c, nil
}

func (c *Conn) handshake(timeout time.Duration) error {
	if err := c.write(wire.Connect(0, timeout, 0, make([]byte, 16))); err != nil {
		return err
	}
	body, err := c.read()
	if err != nil {
		return err
	}
	s := wire.Scanner{Rest: body}
	s.Int32() // the version of the protocol
	granted := s.Int32()
	id := s.Take(8)
	if s.Bad {
		return errMalformed
	}
	c.Granted, c.Session = time.Duration(granted)*time.Millisecond, int64(binary.BigEndian.Uint64(id))
	if granted <= 0 {
		return errors.New("the server grants no session")
	}
	return nil
}

func (c *Conn) authenticate(ctx context.Context, cfg Config, addr string) error {
	if client := sasl.NewClient(cfg.SASL); client != nil {
		err := client.Authenticate(ctx, func(func()) {}, addr, func(token []byte) ([]byte, error) {
			s, err := c.Call(wire.OpSASL, wire.AppendString(nil, string(token)))
			if err != nil {
				return nil, err
			}
			return s.Data(), nil
		})
		if err != nil {
			return err
		}
	}
	for _, a := range cfg.Auths {
		p := wire.AppendString(wire.AppendInt32(nil, 0), a.Scheme)
		if _, err := c.exchange(wire.XidAuth, wire.OpAuth, wire.AppendBuffer(p, a.Credentials)); err != nil {
			return fmt.Errorf("credentials of scheme %s: %w", a.Scheme, err)
		}
	}
	return nil
}

// Ping waits for the answer to a ping.
func (c *Conn) Ping() error {
	_, err := c.exchange(wire.XidPing, wire.OpPing, nil)
	return err
}

// Call sends a request and returns the body of the reply. It drops the watch events that arrive
// before the reply.
func (c *Conn) Call(op int32, body []byte) (wire.Scanner, error) {
	c.xid++
	return c.exchange(c.xid, op, body)
}

func (c *Conn) exchange(xid, op int32, body []byte) (wire.Scanner, error) {
	if err := c.send(xid, op, body); err != nil {
		return wire.Scanner{}, err
	}
	for {
		switch p, err := c.Next(); {
		case err != nil:
			return wire.Scanner{}, err
		case p.Xid == wire.XidEvent:
		case p.Xid != xid:
			c.failed = fmt.Errorf("the reply has number %d, and %d is its turn", p.Xid, xid)
			return wire.Scanner{}, c.failed
		case p.Code != 0:
			return wire.Scanner{}, &RefusedError{p.Code}
		default:
			return p.Body, nil
		}
	}
}

// Send sends a request, and returns its number without waiting for the reply.
func (c *Conn) Send(op int32, body []byte) (xid int32, err error) {
	c.xid++
	return c.xid, c.send(c.xid, op, body)
}

func (c *Conn) send(xid, op int32, body []byte) error {
	return c.write(wire.EndPacket(append(wire.AppendHeader(nil, xid, op), body...)))
}

// Next returns the next packet.
func (c *Conn) Next() (Packet, error) {
	body, err := c.read()
	if err != nil {
		return Packet{}, err
	}
	s := wire.Scanner{Rest: body}
	p := Packet{Xid: s.Int32()}
	s.Take(8) // the zxid
	p.Code = s.Int32()
	if s.Bad {
		c.failed = errMalformed
		return Packet{}, c.failed
	}
	p.Body = s
	return p, nil
}

var errMalformed = errors.New("malformed packet")

func (c *Conn) write(packet []byte) error {
	if c.failed != nil {
		return c.failed
	}
	c.nc.SetDeadline(time.Now().Add(c.limit))
	if _, err := c.nc.Write(packet); err != nil {
		c.failed = err
	}
	return c.failed
}

// The method `read` reads a packet, without its length.
func (c *Conn) read() ([]byte, error) {
	if c.failed != nil {
		return nil, c.failed
	}
	c.nc.SetDeadline(time.Now().Add(c.limit))
	var size [4]byte
	_, err := io.ReadFull(c.nc, size[:])
	n := binary.BigEndian.Uint32(size[:])
	switch {
	case errors.Is(err, io.EOF):
		c.failed = fmt.Errorf("the server closes the connection: %w", err)
	case err != nil:
		c.failed = err
	case n > largest:
		c.failed = fmt.Errorf("packet of %d bytes", n)
	}
	if c.failed != nil {
		return nil, c.failed
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.nc, body); err != nil {
		c.failed = err
	}
	return body, c.failed
}

// Usable reports whether the connection can be used.
func (c *Conn) Usable() bool { return c != nil && c.failed == nil }

// Hung reports whether the connection failed because the server did not reply in time.
func (c *Conn) Hung() bool { return c != nil && errors.Is(c.failed, os.ErrDeadlineExceeded) }

// Close ends the session and the connection.
func (c *Conn) Close() error {
	defer c.Abandon()
	_, err := c.Call(wire.OpCloseSession, nil)
	return err
}

// Abandon closes the connection. The session lasts until its timeout.
func (c *Conn) Abandon() {
	if c == nil {
		return
	}
	c.stop()
	c.nc.Close()
	if c.failed == nil {
		c.failed = net.ErrClosed
	}
}
