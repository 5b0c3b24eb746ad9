package conn

// This file sends and receives the packets of SASL. Package sasl has the mechanisms, and package
// session handles a failure.

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// maxToken is the maximum size of a packet with a token from a server.
const maxToken = 64 << 10

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
	return s.SASL.Authenticate(ctx, s.Spawn, c.Addr, func(token []byte) ([]byte, error) {
		xid := s.NextXid()
		if _, err := c.Conn.Write(wire.EndPacket(wire.AppendString(wire.AppendHeader(nil, xid, wire.OpSASL), string(token)))); err != nil {
			return nil, err
		}
		answered, code, scan, err := readReply(c.r)
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
		answer := scan.Data()
		if scan.Bad {
			return nil, fmt.Errorf("%w: malformed token", ErrProtocol)
		}
		return answer, nil
	})
}

// readReply reads a packet of at most maxToken bytes. It returns the xid and the code of its header,
// and the rest.
func readReply(c io.Reader) (xid, code int32, rest wire.Scanner, err error) {
	var size [4]byte
	if _, err = io.ReadFull(c, size[:]); err != nil {
		return 0, 0, rest, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < replyHeader-4 || n > maxToken {
		return 0, 0, rest, fmt.Errorf("%w: packet of %d bytes", ErrProtocol, n)
	}
	rest.Rest = make([]byte, n)
	_, err = io.ReadFull(c, rest.Rest)
	xid, _, code = rest.Int32(), rest.Take(8), rest.Int32()
	return xid, code, rest, err
}
