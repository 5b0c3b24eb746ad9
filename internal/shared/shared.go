// Package shared is for what the values of one Session have in common: Map finds it, by
// path or another key, Names keeps those apart who want the same name, and Pace keeps what
// any of them may do from being done too often. What is held
// through a session, or asks the servers, does not belong here.
package shared

import (
	"runtime"
	"sync"
	"weak"
)

// A Map finds what the values of one key in a Session have in common, for as
// long as any of them is in use, or it is kept. The zero value is ready for use.
type Map[K comparable, V any] struct {
	mu   sync.Mutex
	in   map[K]weak.Pointer[V] // guarded by mu
	kept map[K]*V              // those that must not be forgotten; guarded by mu
}

// Of returns what those of key share; if there is none yet it is v.
func (s *Map[K, V]) Of(key K, v *V) *V {
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

// drop is told that what those of key shared is garbage.
func (s *Map[K, V]) drop(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in[key].Value() == nil { // not made anew
		delete(s.in, key)
	}
}

// Keep holds v, which is what those of key share, even while none of them is in
// use, until it is called with hold false.
func (s *Map[K, V]) Keep(key K, v *V, hold bool) {
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

// Kept returns how many are held so.
func (s *Map[K, V]) Kept() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept)
}
