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
func (c *Conn) Authenticate(id int64) error {
	if c.s.SASL == nil || id == 0 {
		return nil
	}
	ctx, cancel := context.WithDeadline(c.s.Ctx, c.hardLimit)
	defer cancel()
	return c.s.exchange(ctx, c.Addr, c.Conn, c.r)
}

// The method `exchange` makes an exchange of SASL over a connection whose handshake has been
// answered.
func (s *Shared) exchange(ctx context.Context, addr string, out io.Writer, in io.Reader) error {
	return s.SASL.Authenticate(ctx, s.Spawn, addr, func(token []byte) ([]byte, error) {
		xid := s.NextXid()
		if _, err := out.Write(wire.EndPacket(wire.AppendString(wire.AppendHeader(nil, xid, wire.OpSASL), string(token)))); err != nil {
			return nil, err
		}
		body, err := readPacket(in, maxToken)
		if err != nil {
			return nil, err
		}
		scan := wire.Scanner{Rest: body}
		answered, _, code := scan.Int32(), scan.Take(8), scan.Int32()
		switch {
		case scan.Bad || answered != xid:
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

// readPacket reads a packet of at most limit bytes.
func readPacket(c io.Reader, limit uint32) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > limit {
		return nil, fmt.Errorf("%w: packet of %d bytes", ErrProtocol, n)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(c, body)
	return body, err
}
