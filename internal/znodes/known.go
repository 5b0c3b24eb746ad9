// Package znodes has what a client does with znodes through a session: creates whose znodes are found
// after a lost reply, deletions that are repeated until they succeed, transactions, shared listings,
// snapshots, stored values, and the checks of ACLs. It knows no primitive.
package znodes

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
)

// The type `known` has the knowledge of this package about one session.
type known struct {
	vetted  shared.Cache[struct{}]   // by path: the parent znodes that no other client can change
	lasting shared.Cache[int64]      // by path: the czxid of the persistent znode there, see Storable
	ids     atomic.Pointer[[]zk.ACL] // the identities of this client, see the function `identities`; nil before the first request for them
	own     sync.Map                 // by path: the last sighting of the znode of a shared Creation
	largest atomic.Int64             // size, in bytes, of the largest znode that getAll has read lately; 0 before the first

	rollMu sync.Mutex
	rolls  map[string]conn.Request // the Rolls in flight, by parent path; guarded by rollMu

	// The paths of the session's ephemeral znodes, as far as the client knows them. Since version 3.6,
	// the transaction that ends a session contains these paths. If it has more than 2 MiB, each server
	// that gets it stops, and cannot start again (ZOOKEEPER-4306). So a session that has paths of
	// maxEphemerals bytes creates no further ephemeral znode. The limit is half of 2 MiB, because a lost
	// reply can leave a znode that the client does not know.
	mu    sync.Mutex
	paths map[string]struct{} // guarded by mu
	size  int                 // bytes of `paths`, and of the reserved paths; guarded by mu

	turn    chan struct{} // has an element while a goroutine looks which of `paths` exist
	counted time.Time     // the begin of the last such look; guarded by turn
}

// The function `of` returns the knowledge about the session of inc.
func of(inc *session.Incarnation) *known {
	return shared.Attached(&inc.Attached, func() *known {
		return &known{rolls: make(map[string]conn.Request), paths: make(map[string]struct{}), turn: make(chan struct{}, 1)}
	})
}

// maxEphemerals is the limit of `size`.
const maxEphemerals = 1 << 20

// sizeOfPath returns the bytes of a path in the transaction that ends the session.
func sizeOfPath(path string) int { return 4 + len(path) }

// The method `reserve` adds the size of these paths, which the caller is about to create. The caller
// passes the size to `settle` when it knows whether the znodes were created.
func (k *known) reserve(paths []string) (size int, err error) {
	for _, path := range paths {
		size += sizeOfPath(path) + len("0000000000") // the servers may append a number
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.size+size > maxEphemerals {
		return 0, fmt.Errorf("this Session has too many ephemeral znodes, use another one: their paths would be %w", session.ErrTooLarge)
	}
	k.size += size
	return size, nil
}

// The method `settle` replaces a reservation by the paths of the znodes that were created.
func (k *known) settle(reserved int, made []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.size -= reserved
	for _, path := range made {
		if _, ok := k.paths[path]; !ok {
			k.paths[path] = struct{}{}
			k.size += sizeOfPath(path)
		}
	}
}

// The method `gone` records that the znodes at these paths do not exist.
func (k *known) gone(paths ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, path := range paths {
		if _, ok := k.paths[path]; ok {
			delete(k.paths, path)
			k.size -= sizeOfPath(path)
		}
	}
}
