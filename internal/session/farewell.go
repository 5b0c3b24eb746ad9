package session

// This file delays the end of a session until its users have finished work that only this process
// can do, such as deleting persistent znodes. The users do that work themselves.

import (
	"sync"
	"time"
)

// farewellTime is the longest time that Close waits for that work.
const farewellTime = time.Second

// BeforeClose returns a channel that is closed when Close begins the farewell. Close waits, but not
// long, until each caller of BeforeClose has called its function `done`.
func (m *Manager) BeforeClose() (begun <-chan struct{}, done func()) {
	f := &m.leaving
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun == nil {
		f.begun = make(chan struct{})
	}
	if f.over && f.staff == 0 {
		return f.begun, func() {}
	}
	f.staff++
	return f.begun, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.staff--; f.staff == 0 && f.done != nil {
			close(f.done)
		}
	})
}

// sayFarewell runs the farewell for Close. A second, concurrent Close waits on a channel until the
// first has run the farewell. It does not wait in a sync.Once, because that would stop the clock of
// a synctest bubble.
func (m *Manager) sayFarewell() {
	f := &m.leaving
	f.mu.Lock()
	if f.over {
		f.mu.Unlock()
		<-f.said
		return
	}
	f.over, f.said = true, make(chan struct{})
	defer close(f.said)
	if f.begun == nil {
		f.begun = make(chan struct{})
	}
	close(f.begun)
	if f.staff == 0 {
		f.mu.Unlock()
		return
	}
	f.done = make(chan struct{})
	f.mu.Unlock()
	inc := m.newest()
	select {
	case <-f.done:
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	case <-m.Over:
	case <-time.After(farewellTime):
	}
}
