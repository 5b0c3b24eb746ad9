package session

import (
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A reaper deletes in the background what one ZooKeeper session does not need any
// more: every [Removal] of an incarnation is its.
//
// A deletion is sent by whoever asks for it, and its answer is dealt with where it
// is read; so while servers answer it costs no goroutine. What has to wait, for a
// connection or for the next attempt, waits with all others in one goroutine, which
// lives for as long as anything waits. When there is a connection again it sends
// all of them in one piece.
//
// What an abandoned request may yet make waits for its answer without a goroutine:
// see reapAfter. What an abandoned create without an answer has made, whose name is
// not known, is looked for together with all others, in one goroutine: see search.
//
// Where more must be found out first that is a function, which has a goroutine for
// as long as it runs, but none between two attempts.
type reaper struct {
	inc *Incarnation

	mu        sync.Mutex
	waiting   []*Removal    // those that run has not looked at yet; guarded by mu
	running   bool          // there is a run; guarded by mu
	searching bool          // there is a search; guarded by mu
	bell      chan struct{} // has a token when something was added to waiting
}

type reaperKey struct{}

func (inc *Incarnation) reaper() *reaper {
	rp, ok := inc.Attached.Load(reaperKey{})
	if !ok {
		rp, _ = inc.Attached.LoadOrStore(reaperKey{}, &reaper{inc: inc, bell: make(chan struct{}, 1)})
	}
	return rp.(*reaper)
}

// A Removal is a deletion in the background. It is repeated until the znode is
// gone or the ZooKeeper session, and every ephemeral znode with it, has ended:
// what the servers refuse, they may allow later.
//
// A Removal of one znode is also the request that deletes it. Only one attempt is
// under way at a time, and what is not said to be guarded belongs to whoever deals
// with that attempt: its sender, then the reader of its answer, then run.
type Removal struct {
	reaper *reaper
	path   string
	f      func() error // what deletes, and repeats what has no answer; nil: the znode at path is deleted
	kind   removalKind
	guid   string // begins the name in the directory of path, while it is not known; "": it is path
	told   func() // called when r is over; it must not wait, and may be nil
	stay   func() // called when r is over, or was refused once, likewise

	Done    chan struct{} // closed when Err is set
	Err     error         // nil; NoNode if it was gone before; or ErrEnded
	Refused chan struct{} // closed when Refusal is set
	Refusal error         // the servers' first

	err     error     // what came of the last attempt
	mayBe   bool      // an attempt without an answer may have been applied
	tries   int       // attempts without an answer
	refused int       // attempts that were refused
	due     time.Time // of the next attempt
	limit   time.Time // when the session is given up; zero: never
}

// A removalKind says what becomes of what the servers refuse to delete.
type removalKind int

const (
	removeIdle   removalKind = iota // it is in nobody's way, and is tried until the session ends
	removeOnce                      // it is in nobody's way, and stays
	removeOwn                       // it goes with the session, which is given up a session timeout later
	removeUnused                    // likewise; but at once if permission is refused
)

// reap begins r.
func (inc *Incarnation) reap(r *Removal) *Removal {
	inc.removal(r)
	switch {
	case r.f != nil:
		// At once: it may have something to do even if the session has ended.
		r.reaper.attempt([]*Removal{r})
	case !inc.newestLink().send(r):
		r.reaper.wait(r)
	}
	return r
}

// removal returns r, which is not begun.
func (inc *Incarnation) removal(r *Removal) *Removal {
	r.reaper, r.Done, r.Refused = inc.reaper(), make(chan struct{}), make(chan struct{})
	return r
}

// reapAfter begins r when the request is over that may make what r deletes; at once
// if that is nil: the last attempt was not sent, and those before it are over.
func reapAfter[T any](inc *Incarnation, making *pending[T], r *Removal) *Removal {
	if making == nil {
		return inc.reap(r)
	}
	inc.removal(r)
	making.then(func() { r.reaper.wait(r) })
	return r
}

// wait hands r to run, and never waits.
func (rp *reaper) wait(r *Removal) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	rp.waiting = append(rp.waiting, r)
	if !rp.running {
		rp.running = true
		rp.inc.Manager.Spawn(rp.run)
	}
	rp.ring()
}

// ring has run look again.
func (rp *reaper) ring() {
	select {
	case rp.bell <- struct{}{}:
	default: // run will see it with what is there already
	}
}

// run makes attempts until nothing waits any more.
func (rp *reaper) run() {
	var rs []*Removal
	for {
		rp.mu.Lock()
		handed := rp.waiting
		if rp.waiting = nil; len(rs)+len(handed) == 0 {
			rp.running = false
			rp.mu.Unlock()
			return
		}
		rp.mu.Unlock()
		for _, r := range handed {
			if rp.look(r) {
				rs = append(rs, r)
			}
		}
		rs = rp.next(rs)
	}
}

// look decides when the next attempt at r is made, of which the last has failed, or
// could not be made. It reports false if there is none: r is over.
func (rp *reaper) look(r *Removal) bool {
	m := rp.inc.Manager
	switch err := r.err; {
	case err == nil: // no attempt has been made
	case rp.inc.Ctx.Err() != nil:
		r.over(ErrEnded)
		return false
	case OutcomeOf(err) != Answered && r.f != nil, r.kind == removeOnce && OutcomeOf(err) == Answered:
		r.over(err)
		return false
	case OutcomeOf(err) != Answered:
		// The answer is lost, or there is no connection.
		r.mayBe = r.mayBe || OutcomeOf(err) == Unknown
		r.due = time.Now().Add(m.Config.Retry.Delay(r.tries))
		r.tries++
	case r.kind == removeUnused && IsAnswer(err, zk.ErrNoAuth):
		rp.giveUpOver(r)
		return false
	default:
		if r.refused++; r.refused == 1 {
			m.Log.Error("zsync: cannot delete, and goes on trying", "path", r.path, "err", err)
			if r.kind >= removeOwn {
				r.limit = time.Now().Add(time.Duration(rp.inc.Timeout.Load()))
			}
			r.Refusal = err
			close(r.Refused)
			if r.stay != nil {
				r.stay()
			}
		}
		r.due = time.Now().Add(m.Config.Retry.Delay(r.refused))
	}
	return true
}

// manyWait is how many may wait before a look at all of them takes long.
const manyWait = 100

// next waits until something can be done about one of rs, all of which wait, or
// others are handed in; does it, and returns those that go on waiting.
func (rp *reaper) next(rs []*Removal) (left []*Removal) {
	if len(rs) == 0 {
		return nil
	}
	if rp.inc.Ctx.Err() != nil {
		for _, r := range rs {
			r.over(ErrEnded)
		}
		return nil
	}
	up := rp.inc.connection()
	connected := IsClosed(up)
	now, wake := time.Now(), time.Time{} // when to look again
	sooner := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	rp.mu.Lock()
	searching := rp.searching // its end rings the bell
	rp.mu.Unlock()
	var due []*Removal
	for _, r := range rs {
		switch {
		case !r.limit.IsZero() && !now.Before(r.limit):
			rp.giveUpOver(r)
		case connected && !now.Before(r.due) && !(searching && sought(r)):
			due = append(due, r)
		default:
			if now.Before(r.due) {
				sooner(r.due)
			}
			sooner(r.limit)
			left = append(left, r)
		}
	}
	if slices.ContainsFunc(due, sought) {
		// The others are looked for with it, whether or not it is their time.
		var rest []*Removal
		for _, r := range left {
			if sought(r) {
				due = append(due, r)
			} else {
				rest = append(rest, r)
			}
		}
		left = rest
	}
	if len(due) > 0 || len(left) < len(rs) {
		rp.attempt(due)
		return left
	}
	if len(left) > manyWait {
		// Every look is at all of them. So that many whose times differ do not cost a
		// look each, what comes due meanwhile is seen together.
		select {
		case <-time.After(time.Duration(len(left)) * time.Microsecond):
		case <-rp.inc.Ctx.Done():
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
	case <-rp.bell:
	case <-up:
	case <-timer:
	case <-rp.inc.Ctx.Done():
	}
	return left
}

// attempt makes an attempt at each of rs, in one piece where that is a request.
func (rp *reaper) attempt(rs []*Removal) {
	var requests []request
	var lost []*Removal
	for _, r := range rs {
		switch {
		case sought(r):
			lost = append(lost, r)
		case r.f == nil:
			requests = append(requests, r)
		default:
			rp.inc.Manager.Spawn(func() {
				r.err = r.f()
				r.done()
			})
		}
	}
	if len(lost) > 0 {
		rp.mu.Lock()
		rp.searching = true // run alone begins one, and found none under way
		rp.mu.Unlock()
		rp.inc.Manager.Spawn(func() { rp.search(lost) })
	}
	if len(requests) > 0 && !rp.inc.newestLink().send(requests...) {
		for _, r := range requests {
			r.fail(errUnsent) // the connection has just gone
		}
	}
}

// search looks for what abandoned creates without an answer have made, in one round
// trip for all of rs. That what is not listed is not there, nor will be, is for the
// reason that makes [Incarnation.Find] exact: the listings are behind a write and a sync.
func (rp *reaper) search(rs []*Removal) {
	inc := rp.inc
	var flush, sync *pending[void]
	var listed map[string]*pending[listing] // by directory
	err := inc.retryAll(inc.Ctx, func(b *Batch) {
		flush = add(b, inc.flush())
		sync, listed = add(b, syncCall(ParentPath(rs[0].path))), make(map[string]*pending[listing])
		for _, r := range rs {
			if dir := ParentPath(r.path); listed[dir] == nil {
				listed[dir] = add(b, childrenCall(dir))
			}
		}
	})
	if err != nil {
		err = ErrEnded // nothing else ends it
	} else if err = sync.err; OutcomeOf(flush.err) != Answered {
		err = flush.err
	}
	rp.mu.Lock()
	rp.searching = false // before wait, which rings the bell
	rp.mu.Unlock()
	for _, r := range rs {
		dir := ParentPath(r.path)
		switch l := listed[dir]; {
		case err != nil:
			r.fail(err)
		case IsNoNode(l.err):
			r.over(nil)
		case l.err != nil:
			r.fail(l.err)
		default:
			if path := findIn(l.val.names, dir, r.guid); path == "" {
				r.over(nil)
			} else {
				r.found(path)
				rp.wait(r)
			}
		}
	}
	rp.ring() // there may be others to look for
}

// sought reports whether the znode that r deletes must be looked for.
func sought(r *Removal) bool { return r.guid != "" }

// found says what r deletes: what was made for a call that has failed.
func (r *Removal) found(path string) {
	r.path, r.guid, r.kind, r.err = path, "", removeUnused, nil
}

// giveUpOver ends r, and the session with it, as it may not be deleted.
func (rp *reaper) giveUpOver(r *Removal) {
	rp.inc.giveUpOver(r.path)
	r.over(ErrEnded)
}

// giveUpOver gives up the session, because a znode of it at path may not be deleted. In
// the next one that is tried before anything is made beside it.
func (inc *Incarnation) giveUpOver(path string) {
	inc.Manager.Log.Error("zsync: what was made may not be deleted; giving up the session", "path", path)
	inc.Manager.barred.Store(ParentPath(path), struct{}{})
	inc.giveUp()
}

func (r *Removal) opcode() int32 { return wire.OpDelete }
func (r *Removal) moot() bool    { return false }

func (r *Removal) encode(p []byte) []byte { return appendAnyVersion(wire.AppendString(p, r.path)) }

func (r *Removal) key() (key WatchKey, ok bool) { return key, false }

func (r *Removal) answer(code int32, _ []byte) (whole int32, ok bool) {
	r.err = codeError(code)
	return code, true
}

// done is told that an attempt is over. It may be called by the goroutine that reads
// from the network, so what may wait is left to run.
func (r *Removal) done() {
	switch {
	case r.err == nil, IsNoNode(r.err) && r.mayBe:
		r.over(nil)
	case IsNoNode(r.err):
		r.over(r.err)
	default:
		r.reaper.wait(r)
	}
}

func (r *Removal) fail(err error) {
	r.err = err
	r.done()
}

// over ends r.
func (r *Removal) over(err error) {
	r.Err = err
	if r.told != nil {
		r.told()
	}
	close(r.Done)
	if r.stay != nil {
		r.stay()
	}
}

var _ request = (*Removal)(nil)

// connection returns a channel that is closed while a connection serves the
// session.
func (inc *Incarnation) connection() <-chan struct{} {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.up
}
