package shared

// This file lets the goroutines of one Session take turns at a name. Different processes use znodes for that purpose.

import (
	"context"
	"sync"
)

// Names lets the goroutines of one Session take a name in turn. The servers cannot do that, because all these
// goroutines use the same session. The zero value is ready for use.
type Names struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by name; the channel is closed when the name becomes free; guarded by mu
}

// Take waits until the name is free, and takes the name. The caller must call `free` to give the name back. If ctx ends
// first, Take returns without the name, and `free` does nothing.
func (s *Names) Take(ctx context.Context, name string) (free func()) {
	for {
		s.mu.Lock()
		former := s.taken[name]
		if former == nil {
			if s.taken == nil {
				s.taken = make(map[string]chan struct{})
			}
			mine := make(chan struct{})
			s.taken[name] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.taken, name)
				close(mine)
			}
		}
		s.mu.Unlock()
		select {
		case <-former:
		case <-ctx.Done():
			return func() {}
		}
	}
}
