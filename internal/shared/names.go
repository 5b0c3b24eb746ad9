package shared

import (
	"context"
	"sync"
)

// Names makes the goroutines of one Session take turns at a name. The servers cannot do that: they see a single
// session. The zero value is ready for use.
type Names struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by name; closed when it is free; guarded by mu
}

// Take waits until name is free, or ctx has ended, and takes it.
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
