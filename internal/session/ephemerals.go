package session

import (
	"fmt"
	"sync"
	"time"
)

// The type `ephemerals` has the paths of a session's ephemeral znodes, as far as the client knows
// them.
//
// Since version 3.6, the transaction that ends a session contains these paths. If it has more than
// 2 MiB, each server that gets it stops, and cannot start again (ZOOKEEPER-4306). So a session that has
// paths of maxEphemerals bytes creates no further ephemeral znode. The limit is half of 2 MiB, because
// a lost reply can leave a znode that the client does not know.
type ephemerals struct {
	mu    sync.Mutex
	paths map[string]struct{} // guarded by mu
	size  int                 // bytes of `paths`, and of the reserved paths; guarded by mu

	turn    chan struct{} // has an element while a goroutine executes `recount`
	counted time.Time     // the begin of the last recount; guarded by turn
}

// maxEphemerals is the limit of `size`.
const maxEphemerals = 1 << 20

// sizeOfPath returns the bytes of a path in the transaction that ends the session.
func sizeOfPath(path string) int { return 4 + len(path) }

// The method `reserve` adds the size of these paths, which the caller is about to create. The caller
// passes the size to `settle` when it knows whether the znodes were created.
func (e *ephemerals) reserve(paths []string) (size int, err error) {
	for _, path := range paths {
		size += sizeOfPath(path) + len("0000000000") // the servers may append a number
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.size+size > maxEphemerals {
		return 0, fmt.Errorf("this Session has too many ephemeral znodes, use another one: their paths would be %w", ErrTooLarge)
	}
	e.size += size
	return size, nil
}

// The method `settle` replaces a reservation by the paths of the znodes that were created.
func (e *ephemerals) settle(reserved int, made []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.size -= reserved
	for _, path := range made {
		if _, ok := e.paths[path]; !ok {
			e.paths[path] = struct{}{}
			e.size += sizeOfPath(path)
		}
	}
}

// The method `gone` records that the znodes at these paths do not exist.
func (e *ephemerals) gone(paths ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, path := range paths {
		if _, ok := e.paths[path]; ok {
			delete(e.paths, path)
			e.size -= sizeOfPath(path)
		}
	}
}
