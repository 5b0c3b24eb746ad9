package shared

// This file has a bounded cache. A Cache may lose any value at any time.

import "sync"

// cacheSize is the maximum number of keys in a Cache.
const cacheSize = 2048

// A Cache stores values that its user can obtain again. A full Cache deletes all values before it
// stores another key. The zero value is ready for use.
type Cache[V any] struct {
	mu    sync.Mutex
	known map[string]V // guarded by mu
}

// Load returns the value of `key`.
func (c *Cache[V]) Load(key string) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok = c.known[key]
	return v, ok
}

// Store sets the value of `key` to v.
func (c *Cache[V]) Store(key string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[key]; !ok && len(c.known) >= cacheSize || c.known == nil {
		c.known = make(map[string]V)
	}
	c.known[key] = v
}

// Delete removes `key` and its value.
func (c *Cache[V]) Delete(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, key)
}
