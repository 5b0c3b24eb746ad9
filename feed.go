package zsync

import (
	"context"
	"sync"
)

// A state is what a session is doing.
type state int

const (
	stateConnecting state = iota // a new ZooKeeper session is being established
	stateConnected               // a server answers
	stateSuspended               // the connection dropped; the session may survive
	stateExpired                 // the session ended; stateConnecting follows
	stateClosed                  // the end
)

// A listener is told of every change of state. It does not wait.
type listener interface{ push(state) }

// states returns a channel of every change of state from now on, as values of
// the caller's type. The channel is closed when ctx ends, or after stateClosed.
func states[S ~int](ctx context.Context, m *manager) <-chan S {
	f := newFeed[S]()
	m.mu.Lock()
	if m.state == stateClosed {
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
	m.spawn(func() {
		select {
		case <-ended:
		case <-f.stuck:
		}
	})
	return f.out
}

// A feed carries the changes of state to one reader.
type feed[S ~int] struct {
	out   chan S
	more  chan struct{} // has a token when queue may not be empty
	last  chan struct{} // closed when stateClosed is in queue
	stuck chan struct{} // closed when nothing but the reader is missing after that

	mu    sync.Mutex
	queue []state // guarded by mu
}

func newFeed[S ~int]() *feed[S] {
	return &feed[S]{
		out:   make(chan S, 64),
		more:  make(chan struct{}, 1),
		last:  make(chan struct{}),
		stuck: make(chan struct{}),
	}
}

func (f *feed[S]) push(s state) {
	f.mu.Lock()
	f.queue = append(f.queue, s)
	f.mu.Unlock()
	if s == stateClosed {
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
			if !f.send(ctx, S(s)) || s == stateClosed {
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

// send reports whether the channel has taken s before ctx ended.
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
		if last = nil; len(f.out) == cap(f.out) && !isClosed(f.stuck) {
			close(f.stuck)
		}
	}
}
