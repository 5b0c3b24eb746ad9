package session

// This file decides when each attempt at a background deletion is made. deletion.go has the
// deletions themselves.

import (
	"slices"
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
// to the request, without a goroutine: see Incarnation.undo. If abandoned creates have no reply, the
// names of their znodes are unknown, and one goroutine looks for them together: see `search`.
//
// A deletion by a function has a goroutine while the function runs, but none between two
// attempts.
type deletions struct {
	inc *Incarnation

	mu        sync.Mutex
	waiting   []*Deletion   // new deletions for `run`; guarded by mu
	running   bool          // `run` is running; guarded by mu
	searching bool          // `search` is running; guarded by mu
	bell      chan struct{} // has a token when `run` must look again
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
	for ; d != nil && d.Refused.End(err); d = d.whole {
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
	q.mu.Lock()
	searching := q.searching // the end of the search rings the bell
	q.mu.Unlock()
	var due []*Deletion
	for _, d := range ds {
		switch {
		case !d.limit.IsZero() && !now.Before(d.limit):
			q.inc.Manager.Log.Error("zsync: no permission to delete an own znode; the ZooKeeper session ends", "path", d.Paths[0])
			q.inc.giveUp()
			d.over(ErrEnded)
		case connected && !now.Before(d.due) && !(searching && sought(d)):
			due = append(due, d)
		default:
			if now.Before(d.due) {
				sooner(d.due)
			}
			sooner(d.limit)
			left = append(left, d)
		}
	}
	if slices.ContainsFunc(due, sought) {
		// One search looks for all unknown znodes, even if some of their deletions are not due.
		var rest []*Deletion
		for _, d := range left {
			if sought(d) {
				due = append(due, d)
			} else {
				rest = append(rest, d)
			}
		}
		left = rest
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
	var lost []*Deletion
	for _, d := range ds {
		switch {
		case sought(d):
			lost = append(lost, d)
		case d.By == nil:
			requests = append(requests, d.request())
		default:
			q.inc.Manager.Spawn(func() { d.attempted(d.By()) })
		}
	}
	if len(lost) > 0 {
		q.mu.Lock()
		q.searching = true // only `run` begins a search, and there was none
		q.mu.Unlock()
		q.inc.Manager.Spawn(func() { q.search(lost) })
	}
	if len(requests) > 0 {
		q.inc.newestConn().SendOrFail(requests...) // the connection may just have ended
	}
}

// The method `search` looks for the znodes of ds. The creates of these znodes were abandoned and
// have no reply. One round trip is enough for all of ds. The round trip begins with a write and a
// sync, so the servers execute no abandoned create after the listings. So a znode that is not
// listed does not exist, and never will: see [Incarnation.Find].
func (q *deletions) search(ds []*Deletion) {
	inc := q.inc
	var sync *pending[struct{}]
	var listed map[string]*pending[listing] // by parent path
	err := inc.retryAll(inc.Ctx, func(b *batch) {
		add(b, flush(inc.conns.Nobody))
		sync, listed = add(b, syncCall(ParentPath(ds[0].Paths[0]))), make(map[string]*pending[listing])
		for _, d := range ds {
			if dir := ParentPath(d.Paths[0]); listed[dir] == nil {
				listed[dir] = add(b, childrenCall(dir))
			}
		}
	})
	if err != nil {
		err = ErrEnded // retryAll ends with no other error
	} else {
		err = sync.err
	}
	q.mu.Lock()
	q.searching = false // before `wait`, which rings the bell
	q.mu.Unlock()
	for _, d := range ds {
		dir := ParentPath(d.Paths[0])
		switch l := listed[dir]; {
		case err != nil:
			d.attempted(err)
		case IsNoNode(l.err):
			d.over(nil)
		case l.err != nil:
			d.attempted(l.err)
		default:
			if path := findIn(l.val.names, dir, d.guid); path == "" {
				d.over(nil)
			} else {
				d.found(path)
				q.wait(d)
			}
		}
	}
	q.ring() // there may be others to look for
}

// The function `sought` reports whether a search must find the znode of d, because the path of the
// znode is still unknown.
func sought(d *Deletion) bool { return d.guid != "" }

// The method `found` sets the path of the znode that d deletes, when a search or a late reply has
// shown the path.
func (d *Deletion) found(path string) {
	d.Paths[0], d.guid, d.err = path, "", nil
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
	return &pending[T]{call: c, heir: d}
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
