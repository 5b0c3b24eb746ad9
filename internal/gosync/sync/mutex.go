// Package sync has the API of Go's package sync, and calls zsync. The tests of Go's package run
// against it.
package sync

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// A Locker is Go's sync.Locker.
type Locker = sync.Locker

// A Mutex uses a [zsync.Mutex].
type Mutex struct {
	_      noCopy
	shared gosync.Shared[*zsync.Mutex]
	holder atomic.Int64 // the number of the session that holds it, from 1; 0 if none
}

type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

func (m *Mutex) all() []*zsync.Mutex {
	return m.shared.All(func(s *zsync.Session, path string) *zsync.Mutex { return zsync.NewMutex(s, path) })
}

// Lock locks m.
func (m *Mutex) Lock() {
	all := m.all()
	i := gosync.Next(len(all))
	gosync.Must(all[i].Lock(context.Background()))
	m.holder.Store(int64(i) + 1)
}

// TryLock tries to lock m and reports whether it succeeded.
func (m *Mutex) TryLock() bool {
	all := m.all()
	i := gosync.Next(len(all))
	ok, err := all[i].TryLock(context.Background())
	gosync.Must(err)
	if ok {
		m.holder.Store(int64(i) + 1)
	}
	return ok
}

// Unlock unlocks m. If m is not locked, the process ends.
func (m *Mutex) Unlock() {
	i := max(m.holder.Swap(0)-1, 0)
	misuse(m.all()[i].Unlock(), "sync: unlock of unlocked mutex")
}

// The function `misuse` ends the process with the message of package sync if err is ErrNotLocked.
func misuse(err error, says string) {
	if errors.Is(err, zsync.ErrNotLocked) {
		gosync.Fatal(says)
	}
	gosync.Must(err)
}
