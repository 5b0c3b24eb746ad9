package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
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

// abandon notes that the session is left to its fate, and when those who held
// something were told, or are about to be.
func (inc *Incarnation) abandon() {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	if inc.abandoned.IsZero() {
		inc.abandoned = time.Now()
	}
}

// leftAt returns when the session was abandoned, or a zero time.
func (inc *Incarnation) leftAt() time.Time {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return inc.abandoned
}

// endOrphan ends an abandoned session that has no connection, when those who held
// something have had their time. It makes attempts until the session has expired by
// itself, or the Session is closed: its Close does not wait for it.
func (inc *Incarnation) endOrphan(left time.Time) {
	m := inc.Manager
	hello, id := inc.lastWill()
	if id == 0 {
		return // there never was one
	}
	timeout := time.Duration(inc.Timeout.Load())
	wait := time.Until(left.Add(inc.LossTime()))
	for try := 0; time.Since(left)+wait < timeout; try++ {
		select {
		case <-time.After(wait):
		case <-m.Closing:
			return
		}
		addr := m.Hosts[try%len(m.Hosts)]
		err := inc.endOver(addr, hello, id, min(timeout/5, 5*time.Second))
		if err == nil {
			return
		}
		m.Log.Debug("zsync: cannot end the session that was left", "session", Text(id), "addr", addr, "err", err)
		wait = max(m.Config.Retry.Delay(1+try/len(m.Hosts)), timeout/20)
	}
}

// lastWill is the handshake that continues the session, with its end behind it;
// and the id.
func (inc *Incarnation) lastWill() (p []byte, id int64) {
	inc.LiveMu.Lock()
	password := inc.password
	inc.LiveMu.Unlock()
	id = inc.ID.Load()
	p = binary.BigEndian.AppendUint32(nil, 0) // the length
	p = wire.AppendInt32(p, 0)                // the version of the protocol
	p = wire.AppendInt64(p, 0)                // nothing was seen: any server will do, as nothing is read
	p = wire.AppendInt32(p, int32(time.Duration(inc.Timeout.Load())/time.Millisecond))
	p = wire.AppendInt64(p, id)
	p = wire.EndPacket(wire.AppendBuffer(p, password))
	return append(p, wire.EndPacket(wire.AppendHeader(nil, 1, wire.OpCloseSession))...), id
}

// endOver sends a last will to the server at addr. It is nil if the session has
// ended, now or before.
func (inc *Incarnation) endOver(addr string, hello []byte, id int64, limit time.Duration) error {
	m := inc.Manager
	ctx, cancel := m.untilClosing()
	defer cancel()
	c, err := m.dial(ctx, addr, limit)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetDeadline(time.Now().Add(limit))
	m.requests.Add(1)
	if _, err := c.Write(hello); err != nil {
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
	case id:
	default: // that one is ended, too
		return fmt.Errorf("%w: session %s", errHandshake, Text(got))
	}
	_, err = readPacket(c, wire.MaxHandshake)
	return err
}

// readPacket reads a packet of at most limit bytes.
func readPacket(c net.Conn, limit uint32) ([]byte, error) {
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
