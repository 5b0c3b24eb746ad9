package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// An incarnation is abandoned if its connection dropped or if the library gave up its holds. Its
// session would stay on the servers until it expires, and its znodes in a line would block every
// waiter, even in its own process. This file ends such a session over another connection, by its
// id and password.
//
// That is safe at any time. All holders learned of the loss when the incarnation ended, and have
// had LossTime. Nothing was granted since, because a grant needs an incarnation that has not
// ended. And an incarnation that has ended never connects again. The client sends only the
// handshake and the request to end the session, in one write, or with an exchange of SASL between
// the two. So a server that renews the session also ends it, unless the connection breaks between
// the two. Then the session lives for one more timeout.

// A will is the data with which an abandoned session is ended.
type will struct {
	id       int64
	password []byte
	timeout  time.Duration
	xid      int32
	auths    []Auth // a server may demand credentials even for this
}

// packets returns the handshake that continues the session, and then credentials and the request
// to end it.
func (w will) packets() (handshake, end []byte) {
	handshake = wire.Connect(0, w.timeout, w.id, w.password) // zxid 0: any server will do, because nothing is read
	return handshake, append(authPackets(w.auths), wire.EndPacket(wire.AppendHeader(nil, w.xid, wire.OpCloseSession))...)
}

// execute sends w to a server. It returns nil if the session has ended, now or before. prove makes
// the exchange of SASL; it is nil without SASL.
func (w will) execute(c io.ReadWriter, prove func() error) error {
	out, end := w.packets()
	if prove == nil {
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
		return fmt.Errorf("%w: reply of %d bytes", errHandshake, len(body))
	}
	switch got := int64(binary.BigEndian.Uint64(body[8:])); got {
	case 0:
		return nil // it has expired
	case w.id:
	default: // the request ends that session, too
		return fmt.Errorf("%w: session 0x%x", errHandshake, uint64(got))
	}
	if prove != nil {
		if err := prove(); err != nil {
			return err
		}
		if _, err := c.Write(end); err != nil {
			return err
		}
	}
	for { // the replies to the credentials and to the end of the session
		if body, err = readPacket(c, wire.MaxHandshake); err != nil {
			return err
		}
		s := wire.Scanner{Rest: body}
		xid, _, code := s.Int32(), s.Take(8), s.Int32()
		switch {
		case s.Bad:
			return fmt.Errorf("%w: reply of %d bytes", errHandshake, len(body))
		case code != 0 && code != wire.CodeSessionExpired:
			return codeError(code)
		case xid == w.xid:
			return nil
		}
	}
}

// endOrphan ends an abandoned session after its holders have had their time. The session has no
// connection, or its server has not confirmed the end. endOrphan asks the server of its last
// connection after all others. It makes attempts until the session has expired by itself or the
// Session is closed: Close does not wait for it.
func (inc *Incarnation) endOrphan(left time.Time) {
	m := inc.Manager
	inc.LeaseMu.Lock()
	w := will{id: inc.ID.Load(), password: inc.password, timeout: time.Duration(inc.Timeout.Load()), auths: m.Config.Auths}
	inc.LeaseMu.Unlock()
	if w.id == 0 {
		return // there was no session
	}
	first := 0
	if l := inc.newestLink(); l != nil {
		first = 1 + slices.Index(m.Hosts, l.addr)
	}
	wait := max(time.Microsecond, time.Until(left.Add(inc.LossTime())))
	for try := 0; time.Since(left)+wait < w.timeout; try++ {
		select {
		case <-time.After(wait):
		case <-m.Over:
			return
		}
		addr := m.Hosts[(first+try)%len(m.Hosts)]
		w.xid = inc.nextXid()
		err := m.endOver(addr, w, inc.nextXid)
		if err == nil {
			return
		}
		m.Log.Debug("zsync: cannot end the session that was left", "session", Text(w.id), "addr", addr, "err", err)
		wait = max(m.Config.Retry.Delay(1+try/len(m.Hosts)), w.timeout/20)
	}
}

// endOver executes w at the server at addr.
func (m *Manager) endOver(addr string, w will, nextXid func() int32) error {
	limit := min(w.timeout/5, 5*time.Second)
	ctx, cancel := m.untilClosing()
	defer cancel()
	ctx, expire := context.WithTimeout(ctx, limit)
	defer expire()
	c, err := dial(ctx, &m.Config, m.Spawn, addr, limit)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetDeadline(time.Now().Add(limit))
	m.requests.Add(1)
	if m.Config.SASL == nil {
		return w.execute(c, nil)
	}
	return w.execute(c, func() error { return exchange(ctx, m.Config.SASL, m.Spawn, addr, c, c, nextXid) })
}

// untilClosing returns a context that ends when the Session is closed.
func (m *Manager) untilClosing() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	m.Spawn(func() {
		select {
		case <-m.Over:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}
