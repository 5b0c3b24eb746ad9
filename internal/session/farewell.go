package session

// This file delays the end of a session until its users have finished work that only this process
// can do, such as deleting persistent znodes.

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
	m.staff++
	return m.farewell, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.staff--
		m.fewerLocked()
	})
}

func (m *Manager) sayFarewell() {
	close(m.farewell)
	inc := m.newest()
	m.awaitNone(func() int { return m.staff }, farewellTime, inc.Disconnection(), inc.Ctx.Done())
}
