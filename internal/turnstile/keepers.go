package turnstile

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxKept is how many places a Session keeps that nobody has.
const maxKept = 128

// A keeper looks after a place in a line that is kept now and then: it gives it
// up when somebody else comes while nobody here has it, and when nobody here has
// wanted it for long enough. It ends when the place goes, or has been recalled in use:
// whoever keeps that again begins another.
type keeper struct {
	idle atomic.Int64  // since when nobody has it, in nanoseconds since begun; 0 while somebody has it
	over chan struct{} // closed when the place is kept no more
	end  func()        // ends it, and gives up the place if nobody has it
}

// begun is the moment from which keepers count.
var begun = time.Now()

func (k *keeper) used()   { k.idle.Store(0) }
func (k *keeper) unused() { k.idle.Store(int64(time.Since(begun)) + 1) }

// unusedFor is how long nobody has had the place.
func (k *keeper) unusedFor() time.Duration {
	idle := k.idle.Load()
	if idle == 0 {
		return 0
	}
	return time.Since(begun) + 1 - time.Duration(idle)
}

// Keepers are the Keepers of a Session.
type Keepers struct {
	mu  sync.Mutex
	all map[*keeper]struct{} // guarded by mu
}

// add adds k. If there are too many the one whose place was not used for longest goes;
// if all are in use k is refused. The caller has a turnstile locked, so the other one
// is ended by a goroutine of its own.
func (ks *Keepers) add(k *keeper, spawn func(func())) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if len(ks.all) >= maxKept {
		oldest := ks.oldestLocked()
		if oldest == nil {
			return false
		}
		delete(ks.all, oldest)
		spawn(oldest.end)
	}
	if ks.all == nil {
		ks.all = make(map[*keeper]struct{})
	}
	ks.all[k] = struct{}{}
	return true
}

func (ks *Keepers) oldestLocked() (oldest *keeper) {
	since := int64(0)
	for k := range ks.all {
		if idle := k.idle.Load(); idle != 0 && (oldest == nil || idle < since) {
			oldest, since = k, idle
		}
	}
	return oldest
}

func (ks *Keepers) remove(k *keeper) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	delete(ks.all, k)
}
