// Package isync stands in for Go's internal/sync, which none but Go's own
// packages may import. Its map, on which Go's sync.Map is built, is to Go's
// tests what a Map must be like; here that is Go's sync.Map itself.
package isync

import "sync"

// A HashTrieMap is Go's [sync.Map].
type HashTrieMap[K comparable, V any] struct{ sync.Map }
