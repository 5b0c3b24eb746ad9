package session

import (
	"sync"
	"time"
)

// This file has who must hear of the end of a session before the servers do. What is held,
// and how it is lost, is for those who register with OnEnd.

// hearTime is how long the end of a session waits for those who must hear of it. They
// do not wait for anything: it is for faults.
const hearTime = time.Second

// endings are those who must hear that an incarnation has ended before others can be
// granted what was held through it.
type endings struct {
	mu   sync.Mutex
	left int           // of them
	none chan struct{} // closed when there is none left, if somebody waits for that
}

func (e *endings) add(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left += n; e.left == 0 && e.none != nil {
		close(e.none)
		e.none = nil
	}
}

// await waits until all have heard of it, but not for long.
func (e *endings) await() {
	e.mu.Lock()
	if e.left == 0 {
		e.mu.Unlock()
		return
	}
	if e.none == nil {
		e.none = make(chan struct{})
	}
	none := e.none
	e.mu.Unlock()
	select {
	case <-none:
	case <-time.After(hearTime):
	}
}
