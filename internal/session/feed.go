package session

// This file passes the changes of a session's state to readers. event.go has the states.

import "context"

// States returns a channel that receives every change of state from now on. The channel is closed when
// ctx ends, or after StateClosed. A slow reader never blocks the session: a goroutine sends the
// states, and Close does not wait for that goroutine.
func States[S ~int](ctx context.Context, m *Manager) <-chan S {
	out := make(chan S, 64)
	m.mu.Lock()
	defer m.mu.Unlock()
	go func(p *phase) {
		defer close(out)
		for p.state != StateClosed {
			select {
			case <-p.over:
			case <-ctx.Done():
				return
			}
			p = p.next
			select {
			case out <- S(p.state):
			case <-ctx.Done():
				return
			}
		}
	}(m.phase)
	return out
}
