package shared

// This file limits the rate of work. The caller does the work.

import (
	"maps"
	"sync"
	"time"
)

// A Pace limits the rate at which the work for each key is done. The zero value is ready for use.
type Pace struct {
	mu   sync.Mutex
	next map[string]time.Time // the time at which the work for a key is due again; guarded by mu
}

// Due reports whether the work for `key` is due. If Due returns true, the caller must do the work, and the work is due
// again after the duration `wait`.
func (p *Pace) Due(key string, wait time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next[key].After(now) {
		return false
	}
	// A key without an entry is due.
	maps.DeleteFunc(p.next, func(_ string, at time.Time) bool { return !at.After(now) })
	if p.next == nil {
		p.next = make(map[string]time.Time)
	}
	p.next[key] = now.Add(wait)
	return true
}

// Again makes the work for `key` due after the duration `wait`. Earlier calls no longer count.
func (p *Pace) Again(key string, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next[key] = time.Now().Add(wait)
}

// Next returns the time at which the work for `key` is due again, or a time in the past if it is due.
func (p *Pace) Next(key string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next[key]
}
