package session

// This file passes the changes of a session's state to readers. event.go has the states.

import (
	"context"
	"sync"
)

// States returns a channel that receives every change of state from now on. The values have the
// type S, which the caller chooses. The channel is closed when ctx ends, or after StateClosed.
func States[S ~int](ctx context.Context, m *Manager) <-chan S {
	f := newFeed[S]()
	m.mu.Lock()
	if m.state == StateClosed {
		m.mu.Unlock()
		close(f.out)
		return f.out
	}
	m.feeds[f] = struct{}{}
	m.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx)
		m.mu.Lock()
		delete(m.feeds, f)
		m.mu.Unlock()
	}()
	m.Spawn(func() {
		select {
		case <-ended:
		case <-f.stuck:
		}
	})
	return f.out
}

// The type `feed` carries the changes of state to one reader. It buffers them, so that a slow
// reader never blocks the session.
type feed[S ~int] struct {
	out   chan S
	more  chan struct{} // has a token when `queue` may not be empty
	last  chan struct{} // closed when StateClosed is in `queue`
	stuck chan struct{} // closed when `last` is closed and the feed only waits for its reader

	mu    sync.Mutex
	queue []ConnState // guarded by mu
}

func newFeed[S ~int]() *feed[S] {
	return &feed[S]{
		out:   make(chan S, 64),
		more:  make(chan struct{}, 1),
		last:  make(chan struct{}),
		stuck: make(chan struct{}),
	}
}

func (f *feed[S]) push(s ConnState) {
	f.mu.Lock()
	f.queue = append(f.queue, s)
	f.mu.Unlock()
	if s == StateClosed {
		close(f.last)
	}
	select {
	case f.more <- struct{}{}:
	default: // a token is there already
	}
}

func (f *feed[S]) run(ctx context.Context) {
	defer close(f.out)
	for {
		f.mu.Lock()
		queue := f.queue
		f.queue = nil
		f.mu.Unlock()
		for _, s := range queue {
			if !f.send(ctx, S(s)) || s == StateClosed {
				return
			}
		}
		select {
		case <-f.more:
		case <-ctx.Done():
			return
		}
	}
}

// The method `send` sends s to the reader. It returns false if ctx ends first.
func (f *feed[S]) send(ctx context.Context, s S) bool {
	last := f.last
	for {
		select {
		case f.out <- s:
			return true
		case <-ctx.Done():
			return false
		case <-last:
		}
		if last = nil; len(f.out) == cap(f.out) && !IsClosed(f.stuck) {
			close(f.stuck)
		}
	}
}
