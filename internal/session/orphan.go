package session

import (
	"context"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// endOrphan ends a session that was abandoned, because its connection dropped or the library gave up its
// holds, at the time `left`. The session has no connection, or its server has not confirmed the end. Its
// znodes would block every waiter until it expires. So endOrphan ends it by its id and password, over
// connections of its own, after the holders have had LossTime. That is safe: an incarnation that has
// ended grants nothing and never connects again.
//
// endOrphan asks the server of the session's last connection after the other servers. It makes attempts
// until the session has expired by itself, or the Session is closed.
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
	limit := min(w.Timeout/5, 5*time.Second) // of an attempt
	wait := max(time.Microsecond, time.Until(left.Add(inc.LossTime())))
	open, stop := m.Until(context.Background(), m.farewell) // a failure of the whole Session does not end the attempts
	defer stop()
	for try := 0; time.Since(left)+wait < w.Timeout; try++ {
		if Sleep(open, wait) != nil {
			return
		}
		addr := m.Hosts[(first+try)%len(m.Hosts)]
		ctx, expire := context.WithTimeout(open, limit)
		c, err := conn.Dial(ctx, &inc.conns, addr, limit)
		if err == nil {
			stop := context.AfterFunc(ctx, c.Close)
			err = c.End(ctx, w)
			stop()
			c.Close()
		}
		expire()
		if err == nil {
			return
		}
		m.Log.Debug("zsync: cannot end the session that was left", "session", Text(w.ID), "addr", addr, "err", err)
		wait = max(m.Config.Retry.Delay(1+try/len(m.Hosts)), w.Timeout/20)
	}
}
