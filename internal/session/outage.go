package session

import (
	"sync"
	"time"
)

// An outage is the time from the end of a connection, or from Connect, to the next connection. While it
// lasts the log says now and then which servers were tried, and why each has failed: after
// firstWord, and each time twice as late as the time before. Its end is logged if the outage was.
type outage struct {
	say   func(began time.Time)
	spawn func(f func()) // runs f in a goroutine that Close waits for

	mu    sync.Mutex    // taken after Manager.mu
	began time.Time     // zero if there is a connection; guarded by mu
	said  bool          // the log has told of it; guarded by mu
	wait  time.Duration // before the next word; guarded by mu
	timer *time.Timer   // until the next word; guarded by mu
}

const (
	firstWord = time.Second
	lastWord  = time.Hour // the longest wait
)

// begin is told that there is no connection.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		o.began, o.said, o.wait = time.Now(), false, firstWord
		o.timer = time.AfterFunc(o.wait, o.lasts)
	}
}

// end is told that there is a connection, or will be none. It returns when the outage began, and
// whether the log has told of it.
func (o *outage) end() (began time.Time, said bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	began, o.began = o.began, time.Time{}
	return began, o.said && !began.IsZero()
}

// lasts says what was tried.
func (o *outage) lasts() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		return
	}
	o.said, o.wait = true, min(2*o.wait, lastWord)
	o.timer = time.AfterFunc(o.wait, o.lasts)
	began := o.began
	o.spawn(func() { o.say(began) }) // nothing is said behind Close: end, which comes before it, has o.mu too
}
