package conn

// This file ends an abandoned session, so that its ephemeral znodes are deleted before the session
// would expire. Package session decides when to abandon a session.

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/zsync/zsync/internal/wire"
)

// End ends an abandoned session over a connection of its own. It returns nil if the session has
// ended, now or earlier. The client sends the handshake, its credentials, and the request to end
// the session, in one write. With SASL, the exchange comes after the handshake, and the credentials
// and the request come after the exchange. A server that renews the session by the handshake also
// ends that session by the request. If the connection breaks between the handshake and the request,
// the session lives for one more timeout.
func (s *Shared) End(ctx context.Context, c io.ReadWriter, addr string, ask Hello) error {
	out := wire.Connect(0, ask.Timeout, ask.ID, ask.Password) // zxid 0: even a server with an old state may answer, because the client reads no znodes
	last := s.NextXid()
	end := append(authPackets(s.Auths), wire.EndPacket(wire.AppendHeader(nil, last, wire.OpCloseSession))...) // a server may demand credentials even for closeSession
	if s.SASL == nil {
		out = append(out, end...)
	}
	if _, err := c.Write(out); err != nil {
		return err
	}
	body, err := readPacket(c, wire.MaxHandshake)
	if err != nil {
		return err
	}
	if len(body) < 16 {
		return fmt.Errorf("%w: reply of %d bytes", ErrHandshake, len(body))
	}
	switch got := int64(binary.BigEndian.Uint64(body[8:])); got {
	case 0:
		return nil // the session has expired
	case ask.ID:
	default: // without SASL, the client has already sent the closeSession, which ends this other session
		return fmt.Errorf("%w: session 0x%x", ErrHandshake, uint64(got))
	}
	if s.SASL != nil {
		if err := s.exchange(ctx, addr, c, c); err != nil {
			return err
		}
		if _, err := c.Write(end); err != nil {
			return err
		}
	}
	for { // the replies to the credentials, and to the request to end the session
		if body, err = readPacket(c, wire.MaxHandshake); err != nil {
			return err
		}
		scan := wire.Scanner{Rest: body}
		xid, _, code := scan.Int32(), scan.Take(8), scan.Int32()
		switch {
		case scan.Bad:
			return fmt.Errorf("%w: reply of %d bytes", ErrHandshake, len(body))
		case code != 0 && code != wire.CodeSessionExpired:
			return wire.Error(code)
		case xid == last:
			return nil
		}
	}
}
