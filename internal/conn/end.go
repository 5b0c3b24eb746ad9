package conn

// This file ends an abandoned session, so that its ephemeral znodes are deleted before the session
// would expire. Package session decides when to abandon a session.

import (
	"context"
	"fmt"

	"github.com/zsync/zsync/internal/wire"
)

// End ends an abandoned session over a connection of its own, which is used for nothing else. It
// returns nil if the session has ended, now or earlier. The client sends the handshake, its
// credentials, and the request to end the session, in one write. With SASL, the exchange comes after
// the handshake, and the credentials and the request come after the exchange. A server that renews
// the session by the handshake also ends that session by the request. If the connection breaks
// between the handshake and the request, the session lives for one more timeout.
func (c *Conn) End(ctx context.Context, ask Hello) error {
	c.ends.Store(true)
	out := wire.Connect(0, ask.Timeout, ask.ID, ask.Password) // zxid 0: even a server with an old state may answer, because the client reads no znodes
	last := c.s.NextXid()
	end := append(authPackets(c.s.Auths), wire.EndPacket(wire.AppendHeader(nil, last, wire.OpCloseSession))...) // a server may demand credentials even for closeSession
	if c.s.SASL == nil {
		out = append(out, end...)
	}
	got, err := c.hello(out)
	switch {
	case err != nil:
		return err
	case got.ID == 0:
		return nil // the session has expired
	case got.ID != ask.ID: // without SASL, the client has already sent the closeSession, which ends this other session
		return fmt.Errorf("%w: session 0x%x", ErrHandshake, uint64(got.ID))
	}
	if c.s.SASL != nil {
		if err := c.Authenticate(ctx, got.ID); err != nil {
			return err
		}
		if _, err := c.Conn.Write(end); err != nil {
			return err
		}
	}
	for { // the replies to the credentials, and to the request to end the session
		switch xid, code, _, err := readReply(c.r, wire.MaxHandshake); {
		case err != nil:
			return err
		case code != 0 && code != wire.CodeSessionExpired:
			return wire.Error(code)
		case xid == last:
			return nil
		}
	}
}
