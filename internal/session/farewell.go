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
	if f.done != nil && f.staff == 0 {
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

// sayFarewell runs the farewell for Close.
func (m *Manager) sayFarewell() {
	f, done := &m.leaving, make(chan struct{})
	f.mu.Lock()
	if f.done = done; f.staff == 0 {
		close(done)
	}
	close(f.begun)
	f.mu.Unlock()
	inc := m.newest()
	select {
	case <-done:
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	case <-m.Over:
	case <-time.After(farewellTime):
	}
}
