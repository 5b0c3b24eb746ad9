package zsync

import (
	"context"
	"sync"
	"time"
)

// A stake is something that is held through a session. As long as there is one,
// the session is believed in no longer than it is certain to live, and requests
// are made, if the program makes none, that keep it certain: see liveness.
type stake struct {
	inc  *incarnation
	once sync.Once
}

// drop ends s. It may be called any number of times, and of no stake.
func (s *stake) drop() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		s.inc.liveMu.Lock()
		s.inc.stakes--
		s.inc.liveMu.Unlock()
	})
}

// stake is the last step before somebody is told that something is held through
// the session. It returns once the session is certain to live for some time to
// come. With a session that has held something lately, or is new, or is used for
// writes, that is so already. Otherwise it costs one or two requests: a
// session that holds nothing sends pings, and they prove nothing of the leader.
//
// The error is errEnded, or that of ctx, or that of the Session.
func (inc *incarnation) stake(ctx context.Context) (*stake, error) {
	enough := time.Duration(inc.timeout.Load() / 4) // so that holding does not begin in a hurry
	for {
		if !inc.alive() {
			return nil, errEnded
		}
		inc.liveMu.Lock()
		now := time.Now()
		if left := inc.live.left(now); left > enough || left > 0 && inc.stakes > 0 {
			inc.stakes++
			inc.liveMu.Unlock()
			inc.wake()
			return &stake{inc: inc}, nil
		}
		inc.liveMu.Unlock()
		if ctx.Err() != nil {
			return nil, ctxErr(ctx)
		}
		if err := inc.connection(ctx); err != nil {
			return nil, err
		}
		q, wait := inc.inquire(true)
		var answered <-chan struct{}
		var ripe <-chan time.Time
		if q != nil {
			answered = q.done
			enough = 0 // it is as certain as can be
		} else {
			ripe = time.After(wait)
		}
		// Whichever is picked when several are ready, the next turn of the loop
		// looks at all of them again.
		select {
		case <-answered:
		case <-ripe:
		case <-ctx.Done():
		case <-inc.ctx.Done():
		}
	}
}

// An inquiry is a request that is to confirm the session.
type inquiry struct {
	limit time.Time     // when to give up the connection; used by the watchdog alone
	done  chan struct{} // closed when it has been answered, or cannot be any more
}

// inquire makes the next inquiry, if it is due and none is under way, and
// returns the one that is. If it returns none it says when one will be due. With
// urgent it is due as soon as it can be of use.
func (inc *incarnation) inquire(urgent bool) (q *inquiry, wait time.Duration) {
	inc.mu.Lock()
	up := isClosed(inc.up)
	inc.mu.Unlock()
	inc.liveMu.Lock()
	defer inc.liveMu.Unlock()
	now := time.Now()
	if inc.asking != nil {
		return inc.asking, 0
	}
	p, wait := inc.live.next(now, urgent)
	if wait > 0 {
		return nil, wait
	}
	left, timeout := inc.live.left(now), inc.live.timeout
	if !up {
		return nil, timeout / 10 // connected wakes us
	}
	if left <= 0 {
		left = timeout // nothing is held that could be lost
	}
	// Half of the time is for this server, the rest for others.
	q = &inquiry{limit: now.Add(left / 2), done: make(chan struct{})}
	inc.asking = q
	inc.m.spawn(func() {
		var err error
		if p == provesQuorum {
			err = inc.conn.Delete(inc.nobody, -1)
		} else {
			_, err = inc.conn.Sync(inc.nobody)
		}
		if err != nil && !isNoNode(err) && outcomeOf(err) != unknown {
			// Refused, as by a server that has too much to do. (What is lost with
			// its connection is sent again over the next, as soon as there is one.)
			select {
			case <-time.After(timeout / 100):
			case <-inc.ctx.Done():
			}
		}
		inc.liveMu.Lock()
		inc.asking = nil
		inc.liveMu.Unlock()
		close(q.done)
	})
	return q, 0
}

// wake has the watchdog look again.
func (inc *incarnation) wake() {
	select {
	case inc.kick <- struct{}{}:
	default: // it has been told
	}
}

// watchdog ends the incarnation when it cannot be believed in any more, and
// keeps that from happening while something is held. It looks more often than
// it must, because its timer sleeps when the machine does.
func (inc *incarnation) watchdog() {
	select {
	case <-inc.first:
	case <-inc.ctx.Done():
		return
	}
	for inc.alive() {
		inc.looked.Store(momentOf(time.Now()))
		wait := min(inc.left(), time.Duration(inc.timeout.Load()/10))
		var answered <-chan struct{}
		if inc.staked() {
			q, due := inc.inquire(false)
			if q != nil {
				answered = q.done
				if due = time.Until(q.limit); due <= 0 {
					inc.hangUp()
					q.limit = time.Now().Add(wait)
					due = wait
				}
			}
			wait = min(wait, due)
		}
		select {
		case <-time.After(max(wait, time.Microsecond)):
		case <-answered:
		case <-inc.kick:
		case <-inc.ctx.Done():
		}
	}
}

// hangUp closes the connection, so that another server is tried.
func (inc *incarnation) hangUp() {
	inc.m.log.Info("zsync: a server is given up: it does not confirm the session", "session", sessionText(inc.id.Load()))
	inc.mu.Lock()
	l := inc.link
	inc.mu.Unlock()
	l.Close()
}

func (inc *incarnation) staked() bool {
	inc.liveMu.Lock()
	defer inc.liveMu.Unlock()
	return inc.stakes > 0
}

// overslept reports whether the watchdog has been kept from looking, as happens
// when the process is stopped or the machine sleeps.
func (inc *incarnation) overslept() bool {
	m := inc.looked.Load()
	return m != nil && m.since(time.Now()) > time.Duration(inc.timeout.Load()/5)
}

// dialLimit is how long a server may take to be reached and to answer the
// handshake: an equal part of the time that is left for each that has not been
// tried.
func (inc *incarnation) dialLimit() time.Duration {
	timeout := time.Duration(inc.timeout.Load())
	limit := timeout / 3 // nothing is lost yet
	if inc.id.Load() != 0 {
		limit = min(timeout/5, inc.left()/time.Duration(inc.m.pace.untried()))
	}
	return min(max(limit, 10*time.Millisecond), 5*time.Second)
}

// certain is how much longer the session is certain to live, if nothing more is
// heard of it.
func (inc *incarnation) certain() time.Duration {
	inc.liveMu.Lock()
	defer inc.liveMu.Unlock()
	return max(inc.live.left(time.Now()), 0)
}
