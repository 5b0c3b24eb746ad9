// Package shared has containers for the state that the values of one Session share. A WeakMap finds that state by path
// or another key. A Pace limits the rate of work. The package sends no requests.
package shared

import (
	"runtime"
	"sync"
	"weak"
)

// A WeakMap finds the shared value of a key. When a value has no user left, the map drops the value. The zero value is
// ready for use.
type WeakMap[K comparable, V any] struct {
	mu sync.Mutex
	in map[K]weak.Pointer[V] // guarded by mu
}

// Of returns the value that all users of `key` share. If there is no value yet, v becomes the value.
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
	m := weak.Make(s) // the owner of s may lead to v, and v to the owner: with a strong pointer, neither would be freed
	runtime.AddCleanup(v, func(key K) {
		if s := m.Value(); s != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.in[key].Value() == nil { // no new value was stored since v was freed
				delete(s.in, key)
			}
		}
	}, key)
	return v
}

// Attached returns the T in m. If m has none, Attached stores the result of `first`. So m has at most
// one value of each type.
func Attached[T any](m *sync.Map, first func() *T) *T {
	v, ok := m.Load((*T)(nil))
	if !ok {
		v, _ = m.LoadOrStore((*T)(nil), first())
	}
	return v.(*T)
}
