package session

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// An incarnation that was abandoned, because its connection dropped or because it
// was given up, leaves a session that the servers would keep until it expires; and
// what stood in a line through it would hold up everybody, its own process too. So
// it is ended over another connection, by its id and password.
//
// That is safe whenever it comes. All who held something were told when the
// incarnation ended, and have had LossTime; nothing was granted since, because a
// grant needs an incarnation that has not ended; and go-zookeeper, whose dialer
// refuses, does not come back to the session. All that is sent is the handshake and
// the end of the session, in one piece: so no server prolongs what is not ended
// right behind, unless the connection breaks in between. Then it has a timeout more.

// A will is what a session that was abandoned is ended with.
type will struct {
	id       int64
	password []byte
	timeout  time.Duration
}

// packets is the handshake that continues the session, with its end behind it.
func (w will) packets() []byte {
	p := binary.BigEndian.AppendUint32(nil, 0) // the length
	p = wire.AppendInt32(p, 0)                 // the version of the protocol
	p = wire.AppendInt64(p, 0)                 // nothing was seen: any server will do, as nothing is read
	p = wire.AppendInt32(p, int32(w.timeout/time.Millisecond))
	p = wire.AppendInt64(p, w.id)
	p = wire.EndPacket(wire.AppendBuffer(p, w.password))
	return append(p, wire.EndPacket(wire.AppendHeader(nil, 1, wire.OpCloseSession))...)
}

// execute sends w to a server. It is nil if the session has ended, now or before.
func (w will) execute(c io.ReadWriter) error {
	if _, err := c.Write(w.packets()); err != nil {
		return err
	}
	body, err := readPacket(c, wire.MaxHandshake)
	if err != nil {
		return err
	}
	if len(body) < 16 {
		return fmt.Errorf("%w: reply of %d bytes", errHandshake, len(body))
	}
	switch got := int64(binary.BigEndian.Uint64(body[8:])); got {
	case 0:
		return nil // it has expired
	case w.id:
	default: // that one is ended, too
		return fmt.Errorf("%w: session 0x%x", errHandshake, uint64(got))
	}
	_, err = readPacket(c, wire.MaxHandshake)
	return err
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
