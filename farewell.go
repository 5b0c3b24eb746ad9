package zsync

import (
	"sync"
	"time"
)

// A farewell lets those who have persistent znodes to tidy away do so before
// the session is closed: the session's end deletes only ephemeral ones.
type farewell struct {
	mu    sync.Mutex
	begun chan struct{} // closed when Close has been called; made on first use
	over  bool          // begun is closed; guarded by mu
	said  chan struct{} // closed when the session may be closed; made when over is set
	staff int           // those who will tidy up; guarded by mu
	done  chan struct{} // closed when none of them is left; nil before Close
}

// farewellTime is how long Close waits for them.
const farewellTime = time.Second

// beforeClose returns a channel that is closed when the session is about to be
// closed. Close waits, but not long, until done has been called.
func (m *manager) beforeClose() (begun <-chan struct{}, done func()) {
	f := &m.leaving
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun == nil {
		f.begun = make(chan struct{})
	}
	if f.over {
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

// tidy has Close wait for r, the deletion of a persistent znode.
func (m *manager) tidy(r *removal) {
	_, done := m.beforeClose()
	m.spawn(func() {
		select {
		case <-r.done:
		case <-r.refused: // Close is no time to wait for permissions
		}
		done()
	})
}

// sayFarewell is the first thing that Close does. Who closes the session while
// another does waits with him.
func (m *manager) sayFarewell() {
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
	m.mu.Lock()
	inc := m.cur
	m.mu.Unlock()
	select {
	case <-f.done:
	case <-inc.disconnection():
	case <-inc.ctx.Done():
	case <-m.closing:
	case <-time.After(farewellTime):
	}
}
