package session

// This file passes the changes of a session's state to readers. event.go has the states.

import "context"

// States returns a channel that receives every change of state from now on. The values have the
// type S, which the caller chooses. The channel is closed when ctx ends, or after StateClosed.
func States[S ~int](ctx context.Context, m *Manager) <-chan S {
	f := &feed[S]{m: m, end: ctx.Done(), out: make(chan S, 64)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == StateClosed {
		close(f.out)
		return f.out
	}
	m.feeds[f] = f.push
	f.forget = context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(f.late) == 0 { // otherwise, `send` closes the channel
			f.closeLocked()
		}
	})
	return f.out
}

// The type `feed` carries the changes of state to one reader. A slow reader never blocks the
// session: if the channel is full, a goroutine waits for the reader. Close does not wait for that
// goroutine.
type feed[S ~int] struct {
	m      *Manager
	out    chan S
	end    <-chan struct{} // closed at the end of the reader's context
	forget func() bool     // ends the wait for that end
	late   []S             // states that wait for the reader, while `send` runs; guarded by Manager.mu
}

// The method `push` is called under Manager.mu.
func (f *feed[S]) push(s ConnState) {
	switch {
	case len(f.late) > 0:
		f.late = append(f.late, S(s))
	case len(f.out) == cap(f.out):
		f.late = []S{S(s)}
		go f.send()
	default:
		f.out <- S(s)
		if s == StateClosed {
			f.closeLocked()
		}
	}
}

// The method `send` sends the states in `late`.
func (f *feed[S]) send() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	for len(f.late) > 0 {
		s := f.late[0]
		f.m.mu.Unlock()
		sent := false
		select {
		case f.out <- s:
			sent = true
		case <-f.end:
		}
		f.m.mu.Lock()
		if f.late = f.late[1:]; !sent || ConnState(s) == StateClosed {
			f.late = nil
			f.closeLocked()
		}
	}
}

// closeLocked closes the channel, unless it is closed already.
func (f *feed[S]) closeLocked() {
	if _, open := f.m.feeds[f]; open {
		delete(f.m.feeds, f)
		close(f.out)
		f.forget()
	}
}
