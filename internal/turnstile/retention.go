package turnstile

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxKept is how many places a Session keeps that nobody has.
const maxKept = 128

// A retention is that of one place in a line, from when it is first kept though
// nobody here has it. The place is given up when somebody else comes while nobody
// here has it, and when nobody here has wanted it for long enough. A retention ends
// when the place goes, or is recalled in use: whoever keeps that later begins another.
type retention struct {
	idle atomic.Int64  // since when nobody has it, in nanoseconds since begun; 0 while somebody has it
	over chan struct{} // closed when the place is kept no more
	end  func()        // ends it, and gives up the place if nobody has it

	dozes bool          // who looks after it does not look at the clock; guarded by Turnstile.mu
	bell  chan struct{} // has a token when that is over: nobody has it
}

// begun is the moment from which retentions count.
var begun = time.Now()

func (r *retention) used() { r.idle.Store(0) }

// doze is called, with Turnstile.mu held, by who looks after the place. It reports whether
// somebody has it: then the bell tells when that is over, however long it lasts.
func (r *retention) doze() bool {
	r.dozes = r.idle.Load() == 0
	return r.dozes
}

// unused is called with Turnstile.mu held.
func (r *retention) unused() {
	r.idle.Store(int64(time.Since(begun)) + 1)
	if r.dozes {
		r.dozes = false
		r.bell <- struct{}{} // it is empty: who dozes again has taken the last
	}
}

// unusedFor is how long nobody has had the place.
func (r *retention) unusedFor() time.Duration {
	idle := r.idle.Load()
	if idle == 0 {
		return 0
	}
	return time.Since(begun) + 1 - time.Duration(idle)
}

// Retentions are those of a Session.
type Retentions struct {
	mu  sync.Mutex
	all map[*retention]struct{} // guarded by mu
}

// add adds r. If there are too many the one whose place was not used for longest goes;
// if all are in use r is refused. The caller has a turnstile locked, so the other one
// is ended by a goroutine of its own.
func (rs *Retentions) add(r *retention, spawn func(func())) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.all) >= maxKept {
		oldest := rs.oldestLocked()
		if oldest == nil {
			return false
		}
		delete(rs.all, oldest)
		spawn(oldest.end)
	}
	if rs.all == nil {
		rs.all = make(map[*retention]struct{})
	}
	rs.all[r] = struct{}{}
	return true
}

func (rs *Retentions) oldestLocked() (oldest *retention) {
	since := int64(0)
	for r := range rs.all {
		if idle := r.idle.Load(); idle != 0 && (oldest == nil || idle < since) {
			oldest, since = r, idle
		}
	}
	return oldest
}

func (rs *Retentions) remove(r *retention) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, r)
}
