package sync

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// This file adapts zsync.RWMutex to the API of package sync.

// An RWMutex uses a [zsync.RWMutex].
type RWMutex struct {
	_      noCopy
	shared gosync.Shared[*zsync.RWMutex]
	writer atomic.Int64 // the number of the session that holds it for writing, from 1; 0 if none

	mu      sync.Mutex
	readers []int // the session of each reader; guarded by mu
}

func (rw *RWMutex) all() []*zsync.RWMutex {
	return rw.shared.All(func(s *zsync.Session, path string) *zsync.RWMutex { return zsync.NewRWMutex(s, path) })
}

// Lock locks rw for writing.
func (rw *RWMutex) Lock() {
	all := rw.all()
	i := gosync.Next(len(all))
	gosync.Must(all[i].Lock(context.Background()))
	rw.writer.Store(int64(i) + 1)
}

// TryLock tries to lock rw for writing and reports whether it succeeded.
func (rw *RWMutex) TryLock() bool {
	all := rw.all()
	i := gosync.Next(len(all))
	ok, err := all[i].TryLock(context.Background())
	gosync.Must(err)
	if ok {
		rw.writer.Store(int64(i) + 1)
	}
	return ok
}

// Unlock unlocks rw for writing. If rw is not locked for writing, the process ends.
func (rw *RWMutex) Unlock() {
	i := max(rw.writer.Swap(0)-1, 0)
	misuse(rw.all()[i].Unlock(), "sync: Unlock of unlocked RWMutex")
}

// RLock locks rw for reading.
func (rw *RWMutex) RLock() {
	all := rw.all()
	i := gosync.Next(len(all))
	gosync.Must(all[i].RLock(context.Background()))
	rw.reads(i)
}

// TryRLock tries to lock rw for reading and reports whether it succeeded.
func (rw *RWMutex) TryRLock() bool {
	all := rw.all()
	i := gosync.Next(len(all))
	ok, err := all[i].TryRLock(context.Background())
	gosync.Must(err)
	if ok {
		rw.reads(i)
	}
	return ok
}

// RUnlock releases one RLock. If there is none, the process ends.
func (rw *RWMutex) RUnlock() {
	misuse(rw.all()[rw.leaves()].RUnlock(), "sync: RUnlock of unlocked RWMutex")
}

// RLocker returns a Locker with the methods RLock and RUnlock.
func (rw *RWMutex) RLocker() Locker { return (*rlocker)(rw) }

type rlocker RWMutex

func (r *rlocker) Lock()   { (*RWMutex)(r).RLock() }
func (r *rlocker) Unlock() { (*RWMutex)(r).RUnlock() }

func (rw *RWMutex) reads(session int) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	rw.readers = append(rw.readers, session)
}

// The method `leaves` removes a session from readers and returns it. If there is none, it returns 0.
func (rw *RWMutex) leaves() int {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if len(rw.readers) == 0 {
		return 0
	}
	i := rw.readers[0]
	rw.readers = rw.readers[1:]
	return i
}
