package shared

// This file limits how often the work for a key is done. The caller does the work.

import (
	"maps"
	"sync"
	"time"
)

// A Pace limits how often the work for a key is done. The zero value is ready for use.
type Pace struct {
	mu   sync.Mutex
	next map[string]time.Time // the time at which the work for a key is due again; guarded by mu
}

// Due reports whether the work for key is due. If it is, Due counts it as done: it is due again after wait.
func (p *Pace) Due(key string, wait time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next[key].After(now) {
		return false
	}
	// A key that is due needs no entry.
	maps.DeleteFunc(p.next, func(_ string, at time.Time) bool { return !at.After(now) })
	if p.next == nil {
		p.next = make(map[string]time.Time)
	}
	p.next[key] = now.Add(wait)
	return true
}

// Again makes key due after wait. It overrides earlier calls.
func (p *Pace) Again(key string, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next[key] = time.Now().Add(wait)
}
