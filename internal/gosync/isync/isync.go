// Package isync replaces Go's internal/sync, which only Go's own packages can
// import. Go's tests compare the results of a Map with the results of
// internal/sync.HashTrieMap, so isync has this type. It has no other types of internal/sync.
package isync

import "sync"

// A HashTrieMap is a [sync.Map] of Go.
type HashTrieMap[K comparable, V any] struct{ sync.Map }
