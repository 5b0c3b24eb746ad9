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
	if m.state == StateClosed {
		close(out)
		return out
	}
	var late []ConnState // states that are not sent yet; guarded by Manager.mu
	bell := make(chan struct{}, 1)
	push := func(s ConnState) {
		late = append(late, s)
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	m.feeds[bell] = push
	go func() {
		defer close(out)
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.feeds, bell)
		}()
		for {
			select {
			case <-bell:
			case <-ctx.Done():
				return
			}
			m.mu.Lock()
			states := late
			late = nil
			m.mu.Unlock()
			for _, s := range states {
				select {
				case out <- S(s):
				case <-ctx.Done():
					return
				}
				if s == StateClosed {
					return
				}
			}
		}
	}()
	return out
}
