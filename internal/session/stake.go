package session

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// A Stake is something that is held through a session. As long as there is one,
// the session is believed in no longer than it is certain to live, and requests
// are made, if the program makes none, that keep it certain: see liveness.
type Stake struct {
	inc  *Incarnation
	once sync.Once
}

// Drop ends s. It may be called any number of times, and of no stake.
func (s *Stake) Drop() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		s.inc.LiveMu.Lock()
		s.inc.stakes--
		s.inc.LiveMu.Unlock()
	})
}

// Stake is the last step before somebody is told that something is held through
// the session. It returns once the session is certain to live for some time to
// come. With a session that has held something lately, or is new, or is used for
// writes, that is so already. Otherwise it costs one or two requests: a
// session that holds nothing sends pings, and they prove nothing of the leader.
//
// A write must have been answered over the present connection too, if that continues the
// session. It began with a sync, which a leader answers its own client before it has applied all that it
// has told its followers to be committed. So what is read over the connection may be from before the
// event, over another, that has told of the caller's turn; behind a write it is not. A connection that
// is made while something is held begins with a write.
//
// The error is ErrEnded, or that of ctx, or that of the Session.
func (inc *Incarnation) Stake(ctx context.Context) (*Stake, error) {
	enough := time.Duration(inc.Timeout.Load() / 4) // so that holding does not begin in a hurry
	for {
		if IsClosed(inc.Manager.Closing) {
			return nil, inc.Manager.Failure() // nothing is held from here on, though the session may live on for functions
		}
		inc.LiveMu.Lock()
		now := time.Now()
		// What is certain to live for so long is alive, if it has not ended.
		if inc.Live.asked == nil && inc.Live.left(now) > enough && inc.Ctx.Err() == nil {
			inc.stakes++
			// The watchdog looks by itself every tenth of the timeout. It is
			// woken where something is due before that, or belief ends: this stake
			// may rest on little, until the next confirmation.
			_, due := inc.Live.next(now, false)
			due = min(due, inc.Live.left(now))
			inc.LiveMu.Unlock()
			if due < inc.lookEvery() {
				inc.wake()
			}
			return &Stake{inc: inc}, nil
		}
		inc.LiveMu.Unlock()
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
		if q == nil && inc.certain() > enough && inc.wroteHere() {
			// Another's inquiry was answered since we looked, and so none is due
			// for a quarter of the timeout. Nobody need wait for that.
			continue
		}
		var answered <-chan struct{}
		var ripe <-chan time.Time
		if q != nil {
			answered = q.ended
		} else {
			ripe = time.After(wait)
		}
		// Whichever is picked when several are ready, the next pass of the loop
		// looks at all of them again.
		select {
		case <-answered:
			// An inquiry that was lost with its connection has made nothing more
			// certain: holding would begin in a hurry, and without a connection.
			// What a write has carried the next inquiry confirms, at once.
			if q.proved && !(q.op == wire.OpDelete && inc.confirmable()) {
				enough = 0 // it is as certain as can be
			}
		case <-ripe:
		case <-ctx.Done():
		case <-inc.Ctx.Done():
		}
	}
}

// wroteHere reports whether a write was answered over the present connection, or that began the session.
func (inc *Incarnation) wroteHere() bool {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return inc.Live.asked == nil
}

// confirmable reports whether there is something that a sync would confirm.
func (inc *Incarnation) confirmable() bool {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	p, wait := inc.Live.next(time.Now(), true)
	return p == provesLeader && wait <= 0
}

// Assured reports whether the session is as certain to live as a new stake would
// have it be. It asks nobody.
func (inc *Incarnation) Assured() bool {
	// What is certain to live for longer than no time is alive.
	return inc.Ctx.Err() == nil && inc.certain() > time.Duration(inc.Timeout.Load()/4)
}

// An inquiry is a request that is to confirm the session.
type inquiry struct {
	limit time.Time     // when to give up the connection; used by the watchdog alone
	ended chan struct{} // closed when it has been answered, or cannot be any more
	inc   *Incarnation
	op    int32
	code  int32 // of the answer

	proved bool // it was answered, and not refused; read when ended is closed
}

// inquire makes the next inquiry, if it is due and none is under way, and
// returns the one that is. If it returns none it says when one will be due. With
// urgent it is due as soon as it can be of use.
func (inc *Incarnation) inquire(urgent bool) (q *inquiry, wait time.Duration) {
	inc.mu.Lock()
	up := IsClosed(inc.up)
	inc.mu.Unlock()
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	now := time.Now()
	if inc.asking != nil {
		return inc.asking, 0
	}
	p, wait := inc.Live.next(now, urgent)
	if wait > 0 {
		return nil, wait
	}
	left, timeout := inc.Live.left(now), inc.Live.timeout
	if !up {
		return nil, timeout / 10 // connected wakes us
	}
	if left <= 0 {
		left = timeout // nothing is held that could be lost
	}
	// Half of the time is for this server, the rest for others.
	q = &inquiry{limit: now.Add(left / 2), ended: make(chan struct{})}
	inc.asking = q
	q.op, q.inc = wire.OpDelete, inc
	if p != provesQuorum {
		q.op = wire.OpSync
	}
	// Not with liveMu held: the link notes when it is sent.
	inc.Manager.Spawn(func() {
		if !inc.newestLink().send(q) {
			q.over(timeout / 100) // the connection has just gone
		}
	})
	return q, 0
}

func (q *inquiry) opcode() int32 { return q.op }

// moot: it deletes where there is no znode, or is a sync.
func (q *inquiry) moot() bool { return true }

func (q *inquiry) encode(p []byte) []byte {
	p = wire.AppendString(p, q.inc.nobody)
	if q.op == wire.OpDelete {
		p = wire.AppendInt32(p, -1) // any version
	}
	return p
}

func (q *inquiry) key() (key WatchKey, ok bool) { return key, false }

func (q *inquiry) answer(code int32, _ []byte) (whole int32, ok bool) {
	q.code = code
	return code, true
}

func (q *inquiry) done() {
	if q.proved = proofOf(q.op, q.code) != provesNothing; q.proved {
		q.over(0)
		return
	}
	// Refused, as by a server that has too much to do.
	q.inc.Manager.Spawn(func() { q.over(time.Duration(q.inc.Timeout.Load()) / 100) })
}

// fail is told that the connection is lost. The inquiry is sent again over the
// next, as soon as there is one.
func (q *inquiry) fail(error) { q.over(0) }

// over is the end of q, after a while.
func (q *inquiry) over(wait time.Duration) {
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-q.inc.Ctx.Done():
		}
	}
	q.inc.LiveMu.Lock()
	q.inc.asking = nil
	q.inc.LiveMu.Unlock()
	close(q.ended)
}

// wake has the watchdog look again.
func (inc *Incarnation) wake() {
	select {
	case inc.kick <- struct{}{}:
	default: // it has been told
	}
}

// watchdog ends the incarnation when it cannot be believed in any more, and
// keeps that from happening while something is held. It looks more often than
// it must, because its timer sleeps when the machine does.
func (inc *Incarnation) watchdog() {
	select {
	case <-inc.first:
	case <-inc.Ctx.Done():
		return
	}
	for inc.Alive() {
		looked := momentOf(time.Now())
		inc.looked.Store(&looked)
		wait := min(inc.left(), inc.lookEvery())
		var answered <-chan struct{}
		if inc.staked() {
			q, due := inc.inquire(false)
			if q != nil {
				answered = q.ended
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
		case <-inc.Ctx.Done():
		}
	}
}

// lookEvery is how often the watchdog looks.
func (inc *Incarnation) lookEvery() time.Duration { return time.Duration(inc.Timeout.Load() / 10) }

// hangUp closes the connection, so that another server is tried.
func (inc *Incarnation) hangUp() {
	inc.Manager.Log.Info("zsync: a server is given up: it does not confirm the session", "session", Text(inc.ID.Load()))
	inc.mu.Lock()
	l := inc.link
	inc.mu.Unlock()
	l.Close()
}

func (inc *Incarnation) staked() bool {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return inc.stakes > 0
}

// overslept reports whether the watchdog has been kept from looking, as happens
// when the process is stopped or the machine sleeps.
func (inc *Incarnation) overslept() bool {
	m := inc.looked.Load()
	return m != nil && m.since(time.Now()) > time.Duration(inc.Timeout.Load()/5)
}

// dialLimit is how long a server may take to be reached and to answer the
// handshake: an equal part of the time that is left for each that has not been
// tried.
func (inc *Incarnation) dialLimit() time.Duration {
	timeout := time.Duration(inc.Timeout.Load())
	limit := timeout / 3 // nothing is lost yet
	if inc.ID.Load() != 0 {
		limit = min(timeout/5, inc.left()/time.Duration(inc.Manager.Pace.untried()))
	}
	return min(max(limit, 10*time.Millisecond), 5*time.Second)
}

// certain is how much longer the session is certain to live, if nothing more is
// heard of it.
func (inc *Incarnation) certain() time.Duration {
	inc.LiveMu.Lock()
	defer inc.LiveMu.Unlock()
	return max(inc.Live.left(time.Now()), 0)
}
