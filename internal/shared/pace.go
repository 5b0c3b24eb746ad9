package shared

import (
	"maps"
	"sync"
	"time"
)

// A Pace keeps what is done for a key from being done more often than it needs to be. The
// zero value is ready for use.
type Pace struct {
	mu   sync.Mutex
	next map[string]time.Time // when it is due again; guarded by mu
}

// Due reports whether it is time to do what is done for key, and if so counts it as
// done: it is due again when wait is over.
func (p *Pace) Due(key string, wait time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next[key].After(now) {
		return false
	}
	// Those that are due anyway need not be remembered.
	maps.DeleteFunc(p.next, func(_ string, at time.Time) bool { return !at.After(now) })
	if p.next == nil {
		p.next = make(map[string]time.Time)
	}
	p.next[key] = now.Add(wait)
	return true
}

// Again has key be due when wait is over, whatever was said before.
func (p *Pace) Again(key string, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next[key] = time.Now().Add(wait)
}
