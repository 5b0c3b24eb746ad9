package zsync

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/local"
	"github.com/zsync/zsync/internal/session"
)

// A Locker is what can be locked and unlocked: [sync.Locker], with a context
// and errors.
type Locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// SyncLocker makes a [sync.Locker] of l, for code that wants one. Its Lock
// waits as long as ctx allows. Both methods panic with the error if l returns
// one, as sync does at misuse: check [Mutex.Lost] where a loss must be handled.
func SyncLocker(ctx context.Context, l Locker) sync.Locker { return &syncLocker{ctx, l} }

type syncLocker struct {
	ctx context.Context
	l   Locker
}

func (s *syncLocker) Lock() {
	if err := s.l.Lock(s.ctx); err != nil {
		panic(err)
	}
}

func (s *syncLocker) Unlock() {
	if err := s.l.Unlock(); err != nil {
		panic(err)
	}
}

// LockAll locks all of ls, or none, and returns the function that unlocks
// them. Whatever the order of its arguments, it locks in one global order,
// that of the paths with their chroots, so callers of LockAll do not deadlock
// with each other, nor with who locks one by one in that order. Each of ls must
// have a method Path() string, as the lockers of this package have.
//
// unlock unlocks them all, and returns the errors of those that could not be
// unlocked. If a hold is lost, the Lost of its locker tells
// it, and so does unlock. If a lock is lost while LockAll still waits for
// another, LockAll unlocks all and begins again.
//
// When LockAll fails, or a locker panics, nothing stays locked. When ctx has ended, it
// does not wait for servers that do not answer, and unlocks in the background.
//
// # Errors
//
// The errors are those of Lock, [ErrInvalid], and [ErrDeadlock] if a locker is
// given twice.
//
// # Cost
//
// LockAll costs what the calls of Lock cost, one after the other: for k free locks 2k
// requests in k round trips. unlock costs k requests in 1.
func LockAll(ctx context.Context, ls ...Locker) (unlock func() error, err error) {
	_, unlock, err = lockAll(ctx, ls)
	return unlock, err
}

// LockAllContext is [LockAll] with a context, held, that ends with the first
// hold that is lost; its cause is then a [*LostError], as in [Mutex.Do]. held
// also ends when ctx ends or unlock is called. Call unlock whenever
// LockAllContext has returned without an error, even if a hold is lost.
//
// A locker that is not of this package, and does not embed one of it, counts
// as lost when the channel of its method Lost() <-chan struct{} is closed; the
// LostError then has no reason. If it has no such method, it never counts as
// lost.
func LockAllContext(ctx context.Context, ls ...Locker) (held context.Context, unlock func() error, err error) {
	sorted, release, err := lockAll(ctx, ls)
	if err != nil {
		return nil, nil, err
	}
	held, end, rest := endingContext(ctx)
	var watching sync.WaitGroup
	var leave []func()
	for _, l := range sorted {
		switch l := l.Locker.(type) {
		case stander:
			q, modes := l.stand()
			leave = append(leave, q.Standing(modes...).AfterFunc(end))
		case interface{ Lost() <-chan struct{} }:
			lost := l.Lost()
			watching.Go(func() {
				select {
				case <-lost:
					end(&LostError{Since: time.Now()})
				case <-held.Done():
				}
			})
		}
	}
	return held, sync.OnceValue(func() error {
		for _, f := range leave {
			f()
		}
		end(nil)
		rest()
		watching.Wait()
		return release()
	}), nil
}

// A stander says where it holds what it holds, and in which modes: first that of Lock.
type stander interface {
	stand() (*local.Lock, []local.Mode)
}

func (m *Mutex) stand() (*local.Lock, []local.Mode) {
	return &m.local.Lock, []local.Mode{local.Exclusive}
}

func (rw *RWMutex) stand() (*local.Lock, []local.Mode) {
	return &rw.local.Lock, []local.Mode{local.Exclusive, local.Shared}
}

func (r *rlocker) stand() (*local.Lock, []local.Mode) {
	return &r.local.Lock, []local.Mode{local.Shared}
}

// lockAll is LockAll, and returns ls in the order in which they are locked.
func lockAll(ctx context.Context, ls []Locker) ([]orderedLocker, func() error, error) {
	sorted, err := inOrder(ls)
	if err != nil {
		return nil, nil, err
	}
	parts := make([]local.Part, len(sorted))
	for i, l := range sorted {
		parts[i].Locker = l
		if l, ok := l.Locker.(stander); ok {
			parts[i].Standing = func() *session.Ending { q, modes := l.stand(); return q.Standing(modes...) }
		}
		switch l.Locker.(type) {
		case *Mutex, *RWMutex, *rlocker: // a type that embeds one may have an Unlock of its own
			parts[i].Ours = true
		}
	}
	lost := func(l orderedLocker) bool {
		h, ok := l.Locker.(interface{ Lost() <-chan struct{} })
		return ok && session.IsClosed(h.Lost())
	}
	for {
		unlock, err := local.LockAll(ctx, parts)
		switch {
		case err == local.ErrPartLost:
			continue
		case err != nil:
			return nil, nil, err
		case !slices.ContainsFunc(sorted, lost):
			return sorted, unlock, nil
		}
		// What was locked first was lost while the last was waited for. Nobody has
		// been told anything, so it is a wait that outlives its session.
		if !local.UnlockSoon(ctx, unlock) {
			return nil, nil, opError("lockall", "", session.CtxErr(ctx))
		}
	}
}
