package session

// This file decides when each attempt at a background deletion is made. deletion.go has the
// deletions themselves.

import (
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/shared"
)

// The type `deletions` is the queue for the [Deletion]s of one ZooKeeper session.
//
// The caller sends a deletion, and the reading goroutine ends it with the reply. So while servers
// answer, a deletion costs no goroutine. One goroutine executes `run`: it keeps all
// deletions that wait for a connection or for their next attempt. This goroutine exists only while
// deletions wait. When there is a connection again, `run` sends them all in one write.
//
// If an abandoned request may still create a znode, the deletion of that znode waits for the reply
// to the request, without a goroutine: see Incarnation.undo.
//
// A deletion by a function has a goroutine while the function runs, but none between two
// attempts.
type deletions struct {
	inc *Incarnation

	mu      sync.Mutex
	waiting []*Deletion   // new deletions for `run`; guarded by mu
	running bool          // `run` is running; guarded by mu
	bell    chan struct{} // has a token when `run` must look again
}

func (inc *Incarnation) deletions() *deletions {
	return shared.Attached(&inc.Attached, func() *deletions { return &deletions{inc: inc, bell: make(chan struct{}, 1)} })
}

// The method `wait` adds d to the deletions of `run`, and does not block.
func (q *deletions) wait(d *Deletion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, d)
	if !q.running {
		q.running = true
		q.inc.Manager.Spawn(q.run)
	}
	q.ring()
}

// The method `ring` wakes `run`, which then looks at the deletions again.
func (q *deletions) ring() {
	select {
	case q.bell <- struct{}{}:
	default: // the token that is already there covers it
	}
}

// The method `run` makes attempts at the waiting deletions until none is left.
func (q *deletions) run() {
	var ds []*Deletion
	for {
		q.mu.Lock()
		handed := q.waiting
		if q.waiting = nil; len(ds)+len(handed) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for _, d := range handed {
			if q.look(d) {
				ds = append(ds, d)
			}
		}
		ds = q.next(ds)
	}
}

// The method `look` sets the time of the next attempt at d, after an attempt has failed. It returns
// false if d is over.
func (q *deletions) look(d *Deletion) bool {
	m := q.inc.Manager
	switch err := d.err; {
	case err == nil: // no attempt has been made
	case q.inc.Ctx.Err() != nil:
		d.over(ErrEnded)
		return false
	case OutcomeOf(err) != Answered && d.By != nil, d.MayStay && d.By == nil && OutcomeOf(err) == Answered:
		d.over(err)
		return false
	case OutcomeOf(err) != Answered:
		// The reply is lost, or there is no connection.
		d.mayBe = d.mayBe || OutcomeOf(err) == Unknown
		d.due = time.Now().Add(m.Config.Retry.Delay(d.tries))
		d.tries++
	default:
		if d.refused++; d.refused == 1 {
			m.Log.Error("zsync: cannot delete; the Session keeps trying", "path", d.Paths[0], "err", err)
			if !d.MayStay {
				d.limit = time.Now().Add(time.Duration(q.inc.Timeout.Load()))
			}
			d.refuse(err)
		}
		d.due = time.Now().Add(m.Config.Retry.Delay(d.refused))
	}
	return true
}

// The method `refuse` records the first refusal. Only `run` calls `refuse`.
func (d *Deletion) refuse(err error) {
	for ; d != nil && !IsClosed(d.Refused); d = d.whole {
		d.Refusal = err
		close(d.Refused)
		if d.stay != nil {
			d.stay()
		}
	}
}

// passPause is the shortest sleep of `run` when it waits for a deletion to become due. So deletions
// that become due at slightly different times share a pass.
const passPause = 5 * time.Millisecond

// The method `next` waits until an attempt at one of the deletions ds is due, or until there are
// new deletions. It makes the attempts that are due, and returns the deletions that still wait.
func (q *deletions) next(ds []*Deletion) (left []*Deletion) {
	if len(ds) == 0 {
		return nil
	}
	if q.inc.Ctx.Err() != nil {
		for _, d := range ds {
			d.over(ErrEnded)
		}
		return nil
	}
	up := q.inc.connection()
	connected := IsClosed(up)
	now, wake := time.Now(), time.Time{} // when to look again
	sooner := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	var due []*Deletion
	for _, d := range ds {
		switch {
		case !d.limit.IsZero() && !now.Before(d.limit):
			q.inc.Manager.Log.Error("zsync: no permission to delete an own znode; the ZooKeeper session ends", "path", d.Paths[0])
			q.inc.giveUp()
			d.over(ErrEnded)
		case connected && !now.Before(d.due):
			due = append(due, d)
		default:
			if now.Before(d.due) {
				sooner(d.due)
			}
			sooner(d.limit)
			left = append(left, d)
		}
	}
	if len(due) > 0 || len(left) < len(ds) {
		q.attempt(due)
		return left
	}
	var timer <-chan time.Time
	if !wake.IsZero() {
		timer = time.After(max(time.Until(wake), passPause))
	}
	if connected {
		up = nil // wait for the time, not for a connection
	}
	// Several cases may be ready at once; whichever is picked, the next pass looks at all
	// deletions.
	select {
	case <-q.bell:
	case <-up:
	case <-timer:
	case <-q.inc.Ctx.Done():
	}
	return left
}

// The method `attempt` makes an attempt at each of ds. It sends all requests in one write.
func (q *deletions) attempt(ds []*Deletion) {
	var requests []conn.Request
	for _, d := range ds {
		if d.By == nil {
			requests = append(requests, d.request())
			continue
		}
		q.inc.Manager.Spawn(func() { d.attempted(d.By()) })
	}
	if len(requests) > 0 {
		q.inc.newestConn().SendOrFail(requests...) // the connection may just have ended
	}
}

// The method `request` returns a request that deletes the znodes of d.
func (d *Deletion) request() conn.Request {
	if len(d.Paths) == 1 {
		return requestFor(d, deletion(d.Paths[0], -1))
	}
	var ops []any
	for _, path := range d.Paths {
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	return requestFor(d, multiCall(ops))
}

func requestFor[T any](d *Deletion, c call[T]) conn.Request {
	p := newPending(c)
	p.then(func() { d.attempted(p.err) })
	return p
}

// The method `attempted` is called when an attempt is over. The reading goroutine may call it, so
// everything that may block is left to the method `run`.
func (d *Deletion) attempted(err error) {
	d.err = err
	switch {
	case d.err == nil, IsNoNode(d.err) && d.mayBe && len(d.Paths) == 1:
		d.over(nil)
	case len(d.Paths) > 1 && OutcomeOf(d.err) != unsent:
		d.mayBe = d.mayBe || OutcomeOf(d.err) == Unknown
		d.split(bundlesOf(d.Paths, 1))
	case IsNoNode(d.err):
		d.over(d.err)
	default:
		d.queue.wait(d)
	}
}

// The method `over` ends d.
func (d *Deletion) over(err error) {
	if d.Err = err; err == nil || IsNoNode(err) {
		d.queue.inc.ephemerals.gone(d.Paths...)
	}
	if d.Then != nil {
		d.Then()
	}
	close(d.Done)
	if d.stay != nil {
		d.stay()
	}
	if d.whole != nil {
		d.whole.partOver(err)
	}
}
