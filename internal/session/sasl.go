package session

// This file has the packets of SASL. The mechanisms are not its business (package sasl), nor are
// the consequences of a failure (link).

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
)

// maxToken is the size of the largest packet with a token from a server.
const maxToken = 64 << 10

// exchange makes an exchange over a connection whose handshake has been answered.
func exchange(ctx context.Context, c *sasl.Client, spawn func(func()), addr string, out io.Writer, in io.Reader, nextXid func() int32) error {
	return c.Authenticate(ctx, spawn, addr, func(token []byte) ([]byte, error) {
		xid := nextXid()
		if _, err := out.Write(saslPacket(xid, token)); err != nil {
			return nil, err
		}
		body, err := readPacket(in, maxToken)
		if err != nil {
			return nil, err
		}
		s := wire.Scanner{Rest: body}
		answered, _, code := s.Int32(), s.Take(8), s.Int32()
		switch {
		case s.Bad || answered != xid:
			return nil, fmt.Errorf("%w: no answer to a token", ErrProtocol)
		case codeError(code) == zk.ErrAuthFailed, code == wire.CodeWantsAuth:
			return nil, &sasl.RefusedError{Err: fmt.Errorf("the server refuses the credentials (server's code %d): %w", code, zk.ErrAuthFailed)}
		case code != 0:
			return nil, &sasl.RefusedError{Err: codeError(code)}
		}
		answer := s.Data()
		if s.Bad {
			return nil, fmt.Errorf("%w: malformed token", ErrProtocol)
		}
		return answer, nil
	})
}

func saslPacket(xid int32, token []byte) []byte {
	return wire.EndPacket(wire.AppendString(wire.AppendHeader(nil, xid, wire.OpSASL), string(token)))
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
