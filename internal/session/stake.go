package session

// This file keeps a session confirmed while it has holds, and ends it when it is no longer
// confirmed. Package lease decides which replies confirm a session.

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/wire"
)

// A Stake keeps a session confirmed while the owner of the Stake has a hold through the session. A
// session with stakes counts as alive only while it is confirmed. If the program itself sends no
// requests, the watchdog sends requests that confirm it.
type Stake struct {
	inc  *Incarnation
	once sync.Once
}

// Drop ends s. It may be called any number of times, and on nil.
func (s *Stake) Drop() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		s.inc.LeaseMu.Lock()
		s.inc.stakes--
		s.inc.LeaseMu.Unlock()
	})
}

// Stake is the last step before a caller learns of a hold through the session. It returns when the
// session is confirmed for some time to come: at once if the session recently had a stake, is new, or
// is used for writes. Otherwise it costs one or two requests, because pings prove nothing about the
// leader.
//
// If the present connection continues the session, a write must also have been answered over that
// connection. The event that gave the caller its turn may have come over another connection, and a
// read over this one may be older. The sync with which it began is not enough: a leader answers a
// sync of its own client before it has applied all transactions that its followers know to be
// committed.
//
// The error is ErrEnded, or the error of ctx or of the Session.
func (inc *Incarnation) Stake(ctx context.Context) (*Stake, error) {
	enough := time.Duration(inc.Timeout.Load() / 4) // so that a new hold has some time
	for {
		switch {
		case IsClosed(inc.Manager.Closing):
			return nil, inc.Manager.Failure() // from here on, there are no new holds, even if the session lives on for functions
		case inc.Ctx.Err() != nil:
			return nil, ErrEnded
		}
		c := inc.serving()
		inc.LeaseMu.Lock()
		now := time.Now()
		if inc.Lease.Wrote() && inc.Lease.Confirmed(now) > enough {
			inc.stakes++
			// Wake the watchdog if a request is due, or the confirmation ends, before it would look.
			_, due := inc.Lease.Next(now, false)
			due = min(due, inc.Lease.Confirmed(now))
			inc.LeaseMu.Unlock()
			if due < inc.lookEvery() {
				inc.wake()
			}
			return &Stake{inc: inc}, nil
		}
		var answered <-chan struct{}
		var ripe <-chan time.Time
		q, wait := inc.inquireLocked(c, now, true)
		inc.LeaseMu.Unlock()
		switch {
		case c == nil:
			if _, err := inc.OpenConn(ctx); err != nil {
				return nil, err
			}
			continue
		case q != nil:
			answered = q.Done
		default:
			ripe = time.After(wait)
		}
		// Several cases may be ready at once; if the session is confirmed now, the caller may do without it.
		select {
		case <-answered:
			inc.LeaseMu.Lock()
			p, wait := inc.Lease.Next(time.Now(), true)
			inc.LeaseMu.Unlock()
			// If the inquiry was lost with its connection, it has confirmed nothing, so the loop continues. It
			// also continues after a write, if a sync can now confirm a later time without a further wait.
			if proved(q) && (q.Call.Op != wire.OpDelete || p != lease.Leader || wait > 0) {
				enough = 0 // no inquiry can confirm more
			}
		case <-ripe:
		case <-ctx.Done():
			return nil, CtxErr(ctx)
		case <-inc.Ctx.Done():
		}
	}
}

// Assured reports whether the session is confirmed for as long as a new stake requires. It sends
// no request.
func (inc *Incarnation) Assured() bool {
	return inc.certain() > time.Duration(inc.Timeout.Load()/4)
}

// The function `proved` reports whether the server has not refused q, an inquiry that is over.
func proved(q *Pending[struct{}]) bool {
	return q.Err == nil || q.Call.Op == wire.OpDelete && IsNoNode(q.Err)
}

// The method `inquireLocked` returns the inquiry under way, or starts one over c if it is due. An inquiry
// is a request that confirms the session. In both cases, `wait` is the time until the client should leave
// a server that proves nothing. Otherwise, inquireLocked returns nil, and the time after which to call it
// again. If `urgent` is set, an inquiry is due as soon as it can confirm a later time.
func (inc *Incarnation) inquireLocked(c *conn.Conn, now time.Time, urgent bool) (q *Pending[struct{}], wait time.Duration) {
	timeout := time.Duration(inc.Timeout.Load())
	if c == nil {
		return nil, timeout // a new connection wakes the watchdog: see `connected`
	}
	if q = inc.asking; q != nil && IsClosed(q.Done) {
		if proved(q) {
			inc.leaveBy = time.Time{} // the server gets a new limit with the next inquiry
		} else if q.Err != zk.ErrConnectionClosed { // without a reply, the next inquiry is sent over the next connection
			inc.askAfter = now.Add(timeout / 100) // the server may be overloaded, or the connection has just ended
		}
		q, inc.asking = nil, nil
	}
	if q == nil {
		p, wait := inc.Lease.Next(now, urgent)
		if wait = max(wait, inc.askAfter.Sub(now)); wait > 0 {
			return nil, wait
		}
		q = NewPending(SyncCall(inc.conns.Nobody))
		if p == lease.Quorum {
			q.Call = inc.Flush()
		}
		inc.asking = q
		// The request is sent in a goroutine of its own: this goroutine holds LeaseMu, which `sending` needs.
		inc.Manager.Spawn(func() { c.Send(q) })
	}
	if inc.leaveBy.IsZero() {
		// Half of the time is for this server, the rest is for others. A server that refuses every inquiry
		// is left as early as a silent server.
		left := inc.Lease.Confirmed(now)
		if left <= 0 {
			left = timeout // there are no holds to lose
		}
		inc.leaveBy = now.Add(left / 2)
	}
	return q, inc.leaveBy.Sub(now)
}

// The method `wake` makes the watchdog look at once.
func (inc *Incarnation) wake() {
	select {
	case inc.kick <- struct{}{}:
	default: // the token is there already
	}
}

// The method `watchdog` ends the incarnation when the session is no longer confirmed. While there
// are stakes, it sends requests that confirm the session, and leaves a server that does not confirm it:
// another server is tried then. It looks more often than necessary, because its timer stops while the
// machine sleeps. It begins when the session is established, and returns when the incarnation has ended
// or the Session is closed.
func (inc *Incarnation) watchdog() {
	select {
	case <-inc.kick: // `connected` wakes it
	case <-inc.Ctx.Done():
	case <-inc.Manager.Over:
	}
	for inc.Alive() && !IsClosed(inc.Manager.Over) {
		c := inc.serving()
		inc.LeaseMu.Lock()
		now := time.Now()
		looked := lease.At(now)
		inc.looked.Store(&looked)
		wait := min(inc.Lease.Left(now, inc.stakes > 0), inc.lookEvery())
		due := wait
		var q *Pending[struct{}]
		var answered <-chan struct{}
		if inc.stakes > 0 {
			if q, due = inc.inquireLocked(c, now, false); q != nil {
				answered = q.Done
			}
		}
		leave := q != nil && due <= 0
		if leave {
			inc.leaveBy, due = time.Time{}, wait
		}
		inc.LeaseMu.Unlock()
		if leave {
			c.Close() // without effect if `serve` has closed it already
			// The log may be slow, but the holders must be told of a loss in time.
			inc.Manager.Spawn(func() {
				inc.Manager.Log.Info("zsync: leaving a server that does not confirm the session", "session", Text(inc.ID.Load()))
			})
		}
		select {
		case <-time.After(max(min(wait, due), time.Microsecond)):
		case <-answered:
		case <-inc.kick:
		case <-inc.Ctx.Done():
		case <-inc.Manager.Over:
		}
	}
}

// lookEvery is the interval between two looks of the watchdog.
func (inc *Incarnation) lookEvery() time.Duration { return time.Duration(inc.Timeout.Load() / 10) }

// The method `certain` returns the time for which the session is still confirmed if no further
// reply comes. It is 0 if the session has ended.
func (inc *Incarnation) certain() time.Duration {
	if inc == nil || inc.Ctx.Err() != nil {
		return 0
	}
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return max(inc.Lease.Confirmed(time.Now()), 0)
}
