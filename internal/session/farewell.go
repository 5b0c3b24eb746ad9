package session

// This file delays the end of a session until its users have finished work that only this process
// can do, such as deleting persistent znodes: the end itself deletes only ephemeral znodes. The users
// do that work themselves.

import (
	"sync"
	"time"
)

// farewellTime is the longest time that Close waits for that work.
const farewellTime = time.Second

// BeforeClose returns a channel that is closed when Close begins the farewell. Close waits, but not
// long, until each caller of BeforeClose has called its function `done`.
func (m *Manager) BeforeClose() (begun <-chan struct{}, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left != nil && m.staff == 0 {
		return m.farewell, func() {}
	}
	m.staff++
	return m.farewell, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.staff--; m.staff == 0 && m.left != nil {
			close(m.left)
		}
	})
}

// sayFarewell runs the farewell for Close.
func (m *Manager) sayFarewell() {
	left := make(chan struct{})
	m.mu.Lock()
	if m.left = left; m.staff == 0 {
		close(left)
	}
	close(m.farewell)
	inc := m.cur
	m.mu.Unlock()
	select {
	case <-left:
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	case <-m.Over:
	case <-time.After(farewellTime):
	}
}
