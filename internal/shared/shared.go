// Package shared holds the state that the values of one Session have in common. WeakMap finds it, by path or another
// key; Names makes goroutines take turns at a name; Pace limits how often work is done. Nothing here holds a
// lock or sends a request.
package shared

import (
	"runtime"
	"sync"
	"weak"
)

// A WeakMap finds the shared value of a key. It forgets the value when no user is left, unless Keep keeps it. The
// zero value is ready for use.
type WeakMap[K comparable, V any] struct {
	mu   sync.Mutex
	in   map[K]weak.Pointer[V] // guarded by mu
	kept map[K]*V              // kept even while unused; guarded by mu
}

// Of returns the value that all users of key share. If there is none yet, it becomes v.
func (s *WeakMap[K, V]) Of(key K, v *V) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.in[key].Value(); old != nil {
		return old
	}
	if s.in == nil {
		s.in = make(map[K]weak.Pointer[V])
	}
	s.in[key] = weak.Make(v)
	runtime.AddCleanup(v, s.drop, key)
	return v
}

// drop removes the entry of a value that the garbage collector has freed.
func (s *WeakMap[K, V]) drop(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in[key].Value() == nil { // Of has not made a new one
		delete(s.in, key)
	}
}

// Keep keeps v, the shared value of key, even while it has no user, until a call with hold set to
// false.
func (s *WeakMap[K, V]) Keep(key K, v *V, hold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !hold {
		delete(s.kept, key)
		return
	}
	if s.kept == nil {
		s.kept = make(map[K]*V)
	}
	s.kept[key] = v
}

// Kept returns the number of kept values.
func (s *WeakMap[K, V]) Kept() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept)
}
