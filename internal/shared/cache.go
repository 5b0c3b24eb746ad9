package shared

// This file has a bounded memory for values that can be found out again. Do not put values into it
// that must not be lost.

import "sync"

// cacheSize is the largest number of keys that a Cache remembers.
const cacheSize = 2048

// A Cache remembers values that its user can find out again. A full Cache forgets all of them, so
// its memory is bounded. The zero value is ready for use.
type Cache[V any] struct {
	mu    sync.Mutex
	known map[string]V // guarded by mu
}

// Load returns the value of key.
func (c *Cache[V]) Load(key string) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok = c.known[key]
	return v, ok
}

// Store remembers v as the value of key.
func (c *Cache[V]) Store(key string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[key]; !ok && len(c.known) >= cacheSize || c.known == nil {
		c.known = make(map[string]V)
	}
	c.known[key] = v
}

// Delete forgets key.
func (c *Cache[V]) Delete(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, key)
}
