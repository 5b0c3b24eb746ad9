package session

// This file keeps a session confirmed while it has holds, and ends it when it is no longer
// confirmed. Package lease decides which replies confirm a session.

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

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
		if IsClosed(inc.Manager.Closing) {
			return nil, inc.Manager.Failure() // from here on, there are no new holds, even if the session lives on for functions
		}
		inc.LeaseMu.Lock()
		now := time.Now()
		if inc.Lease.Wrote() && inc.Lease.Confirmed(now) > enough && inc.Ctx.Err() == nil {
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
		inc.LeaseMu.Unlock()
		if !inc.Alive() {
			return nil, ErrEnded
		}
		if ctx.Err() != nil {
			return nil, CtxErr(ctx)
		}
		if err := inc.Connection(ctx); err != nil {
			return nil, err
		}
		q, wait := inc.inquire(true)
		inc.LeaseMu.Lock()
		ready := inc.Lease.Wrote() && inc.Lease.Confirmed(time.Now()) > enough
		inc.LeaseMu.Unlock()
		if q == nil && ready {
			// Another goroutine's inquiry was answered since the check above.
			continue
		}
		var answered <-chan struct{}
		var ripe <-chan time.Time
		if q != nil {
			answered = q.Done
		} else {
			ripe = time.After(wait)
		}
		// Several cases may be ready at once; whichever is picked, the next pass checks them all.
		select {
		case <-answered:
			// If the inquiry was lost with its connection, it has confirmed nothing, so the loop continues. It
			// also continues after a write, if a sync can now confirm a later time without a further wait.
			if proved(q) && !(q.Call.Op == wire.OpDelete && inc.confirmable()) {
				enough = 0 // no inquiry can confirm more
			}
		case <-ripe:
		case <-ctx.Done():
		case <-inc.Ctx.Done():
		}
	}
}

// The method `confirmable` reports whether a sync would confirm anything.
func (inc *Incarnation) confirmable() bool {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	p, wait := inc.Lease.Next(time.Now(), true)
	return p == lease.Leader && wait <= 0
}

// Assured reports whether the session is confirmed for as long as a new stake requires. It sends
// no request.
func (inc *Incarnation) Assured() bool {
	// A session that is still confirmed is alive.
	return inc.Ctx.Err() == nil && inc.certain() > time.Duration(inc.Timeout.Load()/4)
}

// The function `proved` reports whether the server has not refused q, an inquiry that is over.
func proved(q *Pending[struct{}]) bool {
	return q.Err == nil || q.Call.Op == wire.OpDelete && IsNoNode(q.Err)
}

// The method `inquire` returns the inquiry under way, or starts one if it is due. An inquiry is a
// request that confirms the session. In both cases, `wait` is the time until the client should leave a
// server that proves nothing. Otherwise, inquire returns nil, and the time after which to call it
// again. If `urgent` is set, an inquiry is due as soon as it can confirm a later time.
func (inc *Incarnation) inquire(urgent bool) (q *Pending[struct{}], wait time.Duration) {
	up := IsClosed(inc.connection())
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	now, timeout := time.Now(), time.Duration(inc.Timeout.Load())
	if q = inc.asking; q != nil && !IsClosed(q.Done) {
		return q, inc.patienceLocked(now)
	}
	switch inc.asking = nil; {
	case q == nil:
	case proved(q):
		inc.leaveBy = time.Time{} // the server gets a new limit with the next inquiry
	case q.Err != zk.ErrConnectionClosed: // without a reply, the next inquiry is sent over the next connection
		inc.askAfter = now.Add(timeout / 100) // the server may be overloaded, or the connection has just ended
	}
	p, wait := inc.Lease.Next(now, urgent)
	if wait = max(wait, inc.askAfter.Sub(now)); wait > 0 {
		return nil, wait
	}
	if !up {
		return nil, timeout / 10 // a new connection wakes the watchdog: see `connected`
	}
	c := SyncCall(inc.conns.Nobody)
	if p == lease.Quorum {
		c = inc.Flush()
	}
	q = NewPending(c)
	inc.asking = q
	// The request is sent in a goroutine of its own: this goroutine holds LeaseMu, which `sending` needs.
	inc.Manager.Spawn(func() { inc.NewestConn().Send(q) })
	return q, inc.patienceLocked(now)
}

// patienceLocked returns the time until the client should leave a server that proves nothing. The
// first inquiry sets the limit: half of the time is for this server, the rest is for others. A server
// that refuses every inquiry is left as early as a silent server.
func (inc *Incarnation) patienceLocked(now time.Time) time.Duration {
	if inc.leaveBy.IsZero() {
		left := inc.Lease.Confirmed(now)
		if left <= 0 {
			left = time.Duration(inc.Timeout.Load()) // there are no holds to lose
		}
		inc.leaveBy = now.Add(left / 2)
	}
	return inc.leaveBy.Sub(now)
}

// The method `wake` makes the watchdog look at once.
func (inc *Incarnation) wake() {
	select {
	case inc.kick <- struct{}{}:
	default: // the token is there already
	}
}

// The method `watchdog` ends the incarnation when the session is no longer confirmed. While there
// are stakes, it sends requests that confirm the session. It looks more often than necessary,
// because its timer stops while the machine sleeps.
func (inc *Incarnation) watchdog() {
	select {
	case <-inc.first:
	case <-inc.Ctx.Done():
		return
	}
	timer := time.NewTimer(inc.lookEvery())
	defer timer.Stop()
	for inc.Alive() {
		looked := lease.At(time.Now())
		inc.looked.Store(&looked)
		wait := min(inc.left(), inc.lookEvery())
		var answered <-chan struct{}
		if inc.staked() {
			q, due := inc.inquire(false)
			if q != nil {
				answered = q.Done
				if due <= 0 {
					inc.hangUp()
					due = wait
				}
			}
			wait = min(wait, due)
		}
		timer.Reset(max(wait, time.Microsecond))
		select {
		case <-timer.C:
		case <-answered:
		case <-inc.kick:
		case <-inc.Ctx.Done():
		}
	}
}

// lookEvery is the interval between two looks of the watchdog.
func (inc *Incarnation) lookEvery() time.Duration { return time.Duration(inc.Timeout.Load() / 10) }

// hangUp closes the connection, so that another server is tried. It does nothing if no connection
// serves the session: a handshake has a limit of its own.
func (inc *Incarnation) hangUp() {
	inc.startAnew()
	inc.mu.Lock()
	c, up := inc.NewestConn(), IsClosed(inc.up) // no newer connection is stored while inc.up is closed
	inc.mu.Unlock()
	// If the connection is replaced before Close, Close has no effect: `serve` has closed it.
	if up {
		inc.Manager.Log.Info("zsync: leaving a server that does not confirm the session", "session", Text(inc.ID.Load()))
		c.Close()
	}
}

// The method `startAnew` forgets the limit for the present server. The next inquiry sets another.
func (inc *Incarnation) startAnew() {
	inc.LeaseMu.Lock()
	inc.leaveBy = time.Time{}
	inc.LeaseMu.Unlock()
}

func (inc *Incarnation) staked() bool {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return inc.stakes > 0
}

// dialLimit is the longest time to reach a server and receive its answer to the handshake. Servers
// that have not been tried share the remaining time equally. One share is for another attempt.
func (inc *Incarnation) dialLimit() time.Duration {
	timeout := time.Duration(inc.Timeout.Load())
	limit := timeout / 3 // no hold can be lost yet
	if inc.ID.Load() != 0 {
		limit = min(timeout/5, inc.left()/time.Duration(inc.Manager.Pace.untried()+1))
	}
	return min(max(limit, 10*time.Millisecond), 5*time.Second)
}

// The method `certain` returns the time for which the session is still confirmed if no further
// reply comes.
func (inc *Incarnation) certain() time.Duration {
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	return max(inc.Lease.Confirmed(time.Now()), 0)
}
