package session

// This file has the end of a session or of a hold, and the functions that run at that end. The
// caller of End gives the reason.

import (
	"slices"
	"sync"
)

// An Ending is the end of a session or of a hold: it comes once, with a cause. Like a context, it
// has the methods Done, Cause and AfterFunc. It is not a context, for two reasons.
//
//   - End runs each hook itself, and returns when all hooks have returned. So a request that follows
//     End, such as closeSession, is written after every hook has run.
//   - A context leaves its parent only when it is cancelled, and this closes its channel `Done`.
//     Remove closes no channel: Unlock must not close the channel `Lost`.
//
// A hook must not block and must not run the program's code. It must not take a lock that any
// caller of Incarnation.Alive holds, because Alive may end the session.
type Ending struct {
	mu    sync.Mutex
	cause error         // guarded by mu
	done  chan struct{} // made by the first call of Done; guarded by mu
	hooks []*Hook       // in no order; guarded by mu
	first [1]*Hook      // the storage of `hooks` until there is a second hook
}

// A Hook is an entry in the list of an Ending. The Ending calls OnEnd once, with its cause.
type Hook struct {
	Owner interface{ OnEnd(cause error) }
	at    int // its index in Ending.hooks; guarded by Ending.mu
}

type hookFunc func(cause error)

func (f hookFunc) OnEnd(cause error) { f(cause) }

// End ends e: it runs every hook, and then closes the channel of Done. If e has ended already, End
// returns false.
func (e *Ending) End(cause error) bool {
	e.mu.Lock()
	if e.cause != nil {
		e.mu.Unlock()
		return false
	}
	e.cause = cause
	hooks := e.hooks
	e.hooks = nil
	e.mu.Unlock()
	for _, h := range hooks {
		h.Owner.OnEnd(cause)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		e.done = ClosedChan
	} else {
		close(e.done)
	}
	return true
}

// Done returns a channel that is closed when e has ended and every hook has returned.
func (e *Ending) Done() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		e.done = make(chan struct{})
	}
	return e.done
}

// Cause returns the reason for which e has ended, or nil.
func (e *Ending) Cause() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// Add adds h to e. If e has ended already, it calls h at once.
func (e *Ending) Add(h *Hook) {
	e.mu.Lock()
	cause := e.cause
	if cause == nil {
		if e.hooks == nil {
			e.hooks = e.first[:0]
		}
		h.at = len(e.hooks)
		e.hooks = append(e.hooks, h)
	}
	e.mu.Unlock()
	if cause != nil {
		h.Owner.OnEnd(cause)
	}
}

// Remove removes h from e. If e ends at the same time, h may be called after Remove returns.
func (e *Ending) Remove(h *Hook) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := len(e.hooks) - 1
	if i := h.at; i <= last && e.hooks[i] == h {
		e.hooks[i], e.hooks[last].at = e.hooks[last], i
		e.hooks = slices.Delete(e.hooks, last, last+1)
		if e.first[0] == h {
			e.first[0] = nil // the list has grown, and no longer uses this storage
		}
	}
}

// Owners returns the owners of the hooks.
func (e *Ending) Owners() (all []any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.hooks {
		all = append(all, h.Owner)
	}
	return all
}

// AfterFunc adds f, and returns a function that removes it.
func (e *Ending) AfterFunc(f func(cause error)) (stop func()) {
	h := &Hook{Owner: hookFunc(f)}
	e.Add(h)
	return func() { e.Remove(h) }
}
