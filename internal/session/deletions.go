package session

import (
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// deletions are the queue of one ZooKeeper session: every [Deletion] that it makes.
//
// The caller sends a deletion, and the goroutine that reads its answer ends it. So while
// servers answer, a deletion costs no goroutine. A deletion that waits for a connection, or
// for its next attempt, waits with all others in one goroutine, run, which exists only while
// there are any. When there is a connection again, run sends all of them in one piece.
//
// A deletion of what an abandoned request may make waits for the answer to that, without a
// goroutine: see deleteBehind. The znodes of abandoned creates without an answer, whose names
// are not known, are looked for together, in one goroutine: see search.
//
// A deletion by a function has a goroutine while that runs, but none between two attempts.
type deletions struct {
	inc *Incarnation

	mu        sync.Mutex
	waiting   []*Deletion   // those that run has not looked at yet; guarded by mu
	running   bool          // there is a run; guarded by mu
	searching bool          // there is a search; guarded by mu
	bell      chan struct{} // has a token when something was added to waiting
}

type deletionsKey struct{}

func (inc *Incarnation) deletions() *deletions {
	q, ok := inc.Attached.Load(deletionsKey{})
	if !ok {
		q, _ = inc.Attached.LoadOrStore(deletionsKey{}, &deletions{inc: inc, bell: make(chan struct{}, 1)})
	}
	return q.(*deletions)
}

// wait hands d to run, and never waits.
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

// ring has run look again.
func (q *deletions) ring() {
	select {
	case q.bell <- struct{}{}:
	default: // run will see it with what is there already
	}
}

// run makes attempts until nothing waits any more.
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

// look decides when the next attempt at d is made, of which the last has failed, or
// could not be made. It reports false if there is none: d is over.
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
		// The answer is lost, or there is no connection.
		d.mayBe = d.mayBe || OutcomeOf(err) == Unknown
		d.due = time.Now().Add(m.Config.Retry.Delay(d.tries))
		d.tries++
	default:
		if d.refused++; d.refused == 1 {
			m.Log.Error("zsync: cannot delete, and goes on trying", "path", d.Paths[0], "err", err)
			if !d.MayStay {
				d.limit = time.Now().Add(time.Duration(q.inc.Timeout.Load()))
			}
			d.Refusal = err
			close(d.Refused)
			if d.stay != nil {
				d.stay()
			}
		}
		d.due = time.Now().Add(m.Config.Retry.Delay(d.refused))
	}
	return true
}

// manyWait is how many may wait before a look at all of them takes long.
const manyWait = 100

// next waits until something can be done about one of ds, all of which wait, or
// others are handed in; does it, and returns those that go on waiting.
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
	searching := q.searching // its end rings the bell
	q.mu.Unlock()
	var due []*Deletion
	for _, d := range ds {
		switch {
		case !d.limit.IsZero() && !now.Before(d.limit):
			q.giveUpOver(d)
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
		// The others are looked for with it, whether or not it is their time.
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
	if len(left) > manyWait {
		// Every look is at all of them. So that many whose times differ do not cost a
		// look each, what comes due meanwhile is seen together.
		select {
		case <-time.After(time.Duration(len(left)) * time.Microsecond):
		case <-q.inc.Ctx.Done():
		}
	}
	var timer <-chan time.Time
	if !wake.IsZero() {
		timer = time.After(max(time.Until(wake), time.Microsecond))
	}
	if connected {
		up = nil // it is time that is waited for
	}
	// Whichever is picked when several are ready, all of them are looked at again.
	select {
	case <-q.bell:
	case <-up:
	case <-timer:
	case <-q.inc.Ctx.Done():
	}
	return left
}

// attempt makes an attempt at each of ds, in one piece where that is a request.
func (q *deletions) attempt(ds []*Deletion) {
	var requests []request
	var lost []*Deletion
	for _, d := range ds {
		switch {
		case sought(d):
			lost = append(lost, d)
		case d.By == nil:
			requests = append(requests, d)
		default:
			q.inc.Manager.Spawn(func() {
				d.err = d.By()
				d.done()
			})
		}
	}
	if len(lost) > 0 {
		q.mu.Lock()
		q.searching = true // run alone begins one, and found none under way
		q.mu.Unlock()
		q.inc.Manager.Spawn(func() { q.search(lost) })
	}
	if len(requests) > 0 && !q.inc.newestLink().send(requests...) {
		for _, d := range requests {
			d.fail(errUnsent) // the connection has just gone
		}
	}
}

// search looks for what abandoned creates without an answer have made, in one round
// trip for all of ds. That what is not listed is not there, nor will be, is for the
// reason that makes [Incarnation.Find] exact: the listings are behind a write and a sync.
func (q *deletions) search(ds []*Deletion) {
	inc := q.inc
	var flush, sync *pending[void]
	var listed map[string]*pending[listing] // by directory
	err := inc.retryAll(inc.Ctx, func(b *Batch) {
		flush = add(b, inc.flush())
		sync, listed = add(b, syncCall(ParentPath(ds[0].Paths[0]))), make(map[string]*pending[listing])
		for _, d := range ds {
			if dir := ParentPath(d.Paths[0]); listed[dir] == nil {
				listed[dir] = add(b, childrenCall(dir))
			}
		}
	})
	if err != nil {
		err = ErrEnded // nothing else ends it
	} else if err = sync.err; OutcomeOf(flush.err) != Answered {
		err = flush.err
	}
	q.mu.Lock()
	q.searching = false // before wait, which rings the bell
	q.mu.Unlock()
	for _, d := range ds {
		dir := ParentPath(d.Paths[0])
		switch l := listed[dir]; {
		case err != nil:
			d.fail(err)
		case IsNoNode(l.err):
			d.over(nil)
		case l.err != nil:
			d.fail(l.err)
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

// sought reports whether the znode that d deletes must be looked for.
func sought(d *Deletion) bool { return d.guid != "" }

// found says what d deletes: what was made for a call that has failed.
func (d *Deletion) found(path string) {
	d.Paths[0], d.guid, d.err = path, "", nil
}

// giveUpOver ends d, and the session with it, as it may not be deleted.
func (q *deletions) giveUpOver(d *Deletion) {
	q.inc.giveUpOver(d.Paths[0])
	d.over(ErrEnded)
}

// giveUpOver gives up the session, because a znode of it at path may not be deleted.
func (inc *Incarnation) giveUpOver(path string) {
	inc.Manager.Log.Error("zsync: what was made may not be deleted; giving up the session", "path", path)
	inc.giveUp()
}

func (d *Deletion) opcode() int32 { return wire.OpDelete }
func (d *Deletion) moot() bool    { return false }

func (d *Deletion) encode(p []byte) []byte { return appendAnyVersion(wire.AppendString(p, d.Paths[0])) }

func (d *Deletion) key() (key WatchKey, ok bool) { return key, false }

func (d *Deletion) answer(code int32, _ []byte) (whole int32, ok bool) {
	d.err = codeError(code)
	return code, true
}

// done is told that an attempt is over. It may be called by the goroutine that reads
// from the network, so what may wait is left to run.
func (d *Deletion) done() {
	switch {
	case d.err == nil, IsNoNode(d.err) && d.mayBe:
		d.over(nil)
	case IsNoNode(d.err):
		d.over(d.err)
	default:
		d.queue.wait(d)
	}
}

func (d *Deletion) fail(err error) {
	d.err = err
	d.done()
}

// over ends d.
func (d *Deletion) over(err error) {
	d.Err = err
	if d.Then != nil {
		d.Then()
	}
	close(d.Done)
	if d.stay != nil {
		d.stay()
	}
}

var _ request = (*Deletion)(nil)

// connection returns a channel that is closed while a connection serves the
// session.
func (inc *Incarnation) connection() <-chan struct{} {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.up
}
