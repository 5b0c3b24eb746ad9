package session

import (
	"context"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// An incarnation is abandoned if its connection dropped or if the library gave up its holds. Until its
// session expires, the session's znodes would block every waiter. This file ends such a session over
// another connection, by its id and password. That is safe: an incarnation that has ended grants
// nothing and never connects again. [conn.Conn.End] sends the packets.

// endOrphan ends an abandoned session after its holders have had LossTime. The session has no
// connection, or its server has not confirmed the end. endOrphan asks the server of the session's last
// connection after the other servers. It makes attempts until the session has expired by itself, or the
// Session is closed.
func (inc *Incarnation) endOrphan(left time.Time) {
	m := inc.Manager
	w := conn.Hello{ID: inc.ID.Load(), Password: inc.password, Timeout: time.Duration(inc.Timeout.Load())}
	if w.ID == 0 {
		return // there was no session
	}
	first := 0
	if l := inc.NewestConn(); l != nil {
		first = 1 + slices.Index(m.Hosts, l.Addr)
	}
	wait := max(time.Microsecond, time.Until(left.Add(inc.LossTime())))
	for try := 0; time.Since(left)+wait < w.Timeout; try++ {
		select {
		case <-time.After(wait):
		case <-m.Over:
			return
		}
		addr := m.Hosts[(first+try)%len(m.Hosts)]
		err := inc.endOver(addr, w)
		if err == nil {
			return
		}
		m.Log.Debug("zsync: cannot end the session that was left", "session", Text(w.ID), "addr", addr, "err", err)
		wait = max(m.Config.Retry.Delay(1+try/len(m.Hosts)), w.Timeout/20)
	}
}

// endOver asks the server at addr to end session w.
func (inc *Incarnation) endOver(addr string, w conn.Hello) error {
	m, limit := inc.Manager, min(w.Timeout/5, 5*time.Second)
	ctx, expire := context.WithTimeout(m.over, limit)
	defer expire()
	c, err := conn.Dial(ctx, &inc.conns, addr, limit)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, c.Close)()
	m.Requests.Add(1)
	return c.End(ctx, w)
}
