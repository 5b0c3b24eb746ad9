package zsync

import (
	"context"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/trace"
)

// An RWMutex is a lock for many readers or one writer, in any process:
//
//	rw := zsync.NewRWMutex(s, "/locks/accounts")
//	err := rw.RDo(ctx, func(ctx context.Context) error { … }) // shared
//	err = rw.Do(ctx, func(ctx context.Context) error { … })   // exclusive
//
// While a live session holds it for writing, no other session holds it. Waiters are served in the
// order in which the servers stored them, readers and writers alike, so neither starves the other.
// Goroutines that use one *RWMutex share places ([WithHandoffs]). The n'th Unlock synchronizes
// before the m'th Lock for n < m, and before every later RLock; an RUnlock synchronizes before the
// next Lock.
//
// Do not take a read lock twice in one goroutine, except through [RWMutex.RDo]: a writer between
// the two blocks the second. A read lock cannot be upgraded.
//
// # Loss
//
// If the session ends, every hold of this process is lost. As with a [Mutex], Lock and RLock then
// wait until the lost holds have been unlocked, or return [ErrDeadlock]. Lost and Token are for the
// write hold or, without one, for all read holds. A reader's token is greater than those of the holds
// that ended before its own began; a later call can return a greater one.
//
// # Cost
//
// Lock, RLock, Unlock and RUnlock take 1 round trip each if no contender is in the way. A goroutine
// that joins a reader of its process takes none.
//
// # Znodes
//
// A writer is path/_c_<uuid>-__WRIT__<seq>, and a reader path/_c_<uuid>-__READ__<seq>, as in
// Curator (docs/interop.md).
type RWMutex struct{ localLock }

// The algorithm is "Shared Locks" from the ZooKeeper recipes, see package lock. The downgrade is
// Curator's.

// NewRWMutex returns the RWMutex at path.
func NewRWMutex(s *Session, path string, opts ...LockOption) *RWMutex {
	c := newSetup(opts)
	c.err = checkNew(s, path, c.err)
	rw := new(RWMutex)
	ln := rw.init(s, path, c, "rwmutex", "lock", "__WRIT__", "__READ__")
	ln.Kind = trace.Write // of the writers
	return rw
}

// Lock locks rw for writing, as [Mutex.Lock] does.
func (rw *RWMutex) Lock(ctx context.Context) error {
	_, _, err := rw.acquire(ctx, lock.Exclusive, false)
	return opError("lock", rw.path, err)
}

// RLock locks rw for reading. RLock waits while a writer holds rw or is ahead, until ctx ends or
// the Session is closed. Within Do and RDo, use RDo.
func (rw *RWMutex) RLock(ctx context.Context) error {
	_, _, err := rw.acquire(ctx, lock.Shared, false)
	return opError("rlock", rw.path, err)
}

// TryLock is [Mutex.TryLock] for writing; it waits for no other contender.
func (rw *RWMutex) TryLock(ctx context.Context) (bool, error) {
	g, err := rw.try(ctx, lock.Exclusive)
	return g != nil, opError("trylock", rw.path, err)
}

// TryRLock is [Mutex.TryLock] for reading.
func (rw *RWMutex) TryRLock(ctx context.Context) (bool, error) {
	g, err := rw.try(ctx, lock.Shared)
	return g != nil, opError("tryrlock", rw.path, err)
}

// Unlock unlocks rw for writing.
func (rw *RWMutex) Unlock() error {
	return opError("unlock", rw.path, rw.release(lock.Exclusive))
}

// RUnlock undoes a single [RWMutex.RLock].
func (rw *RWMutex) RUnlock() error {
	return opError("runlock", rw.path, rw.release(lock.Shared))
}

// RLocker returns a [Locker] whose Lock and Unlock are rw's RLock and RUnlock.
func (rw *RWMutex) RLocker() Locker { return (*rlocker)(rw) }

type rlocker RWMutex

func (r *rlocker) Lock(ctx context.Context) error { return (*RWMutex)(r).RLock(ctx) }
func (r *rlocker) Unlock() error                  { return (*RWMutex)(r).RUnlock() }

// Downgrade turns the caller's write lock into a read lock, without a gap for another writer.
// Readers that wait behind the caller, with no writer between, get the lock too. Release the read
// lock with [RWMutex.RUnlock], or by the end of [RWMutex.Do]. After an error, the caller still has
// its hold. Downgrade fails if the path has had 2^31 children.
func (rw *RWMutex) Downgrade(ctx context.Context) error {
	err := rw.check(ctx)
	if err == nil {
		err = rw.local.Downgrade(ctx, rw.within(ctx).bare())
	}
	return opError("downgrade", rw.path, err)
}

// Do is [Mutex.Do] for writing. It is not reentrant inside RDo.
func (rw *RWMutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return rw.do(ctx, "do", lock.Exclusive, f)
}

// RDo is [Mutex.Do] for reading, also reentrant inside [RWMutex.Do].
func (rw *RWMutex) RDo(ctx context.Context, f func(ctx context.Context) error) error {
	return rw.do(ctx, "rdo", lock.Shared, f)
}

func (r *rlocker) parts() (*localLock, []lock.HoldMode) {
	return &r.localLock, []lock.HoldMode{lock.Shared}
}
