package zsync

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/turnstile"
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

// LockAll locks all of ls, or none. Whatever order they are given in, they are
// taken in one global order, that of their paths with the chroots, so that two
// callers never wait for each other. Each must have a method Path() string, as
// the lockers of this package have; a locker that is given twice is refused.
//
// unlock unlocks them all, in reverse, and returns the errors of those that
// could not be. A hold that is lost is told by the Lost of its locker, and by
// unlock; one that is lost while LockAll still waits for others is taken anew.
// When LockAll fails nothing stays locked; when ctx has ended it does not wait for
// servers that do not answer, and unlocks in the background. The errors are those of Lock,
// [ErrInvalid] and [ErrDeadlock] for what is given twice. It costs what the
// locks cost, one after the other.
func LockAll(ctx context.Context, ls ...Locker) (unlock func() error, err error) {
	_, unlock, err = lockAll(ctx, ls)
	return unlock, err
}

// LockAllContext is [LockAll] with a context that ends with the first hold that is
// lost, and a cause that is a [*LostError], as that of [Mutex.Do] does; and when ctx
// ends, or unlock is called. A locker that is not of this package, nor has one in
// it, counts as lost when its method Lost() <-chan struct{} says so, without a
// reason; one without that method never does.
//
// What is lost stays to be unlocked: call unlock whenever LockAllContext has
// returned without an error.
func LockAllContext(ctx context.Context, ls ...Locker) (held context.Context, unlock func() error, err error) {
	sorted, release, err := lockAll(ctx, ls)
	if err != nil {
		return nil, nil, err
	}
	held, cancel := context.WithCancelCause(ctx)
	var told []func()
	var watching sync.WaitGroup
	for _, l := range sorted {
		lost, why := holdOf(l.Locker)
		watching.Go(func() {
			// A loss at the instant at which held ends otherwise may be told or
			// not: unlock looks again.
			select {
			case <-lost:
				cancel(why())
			case <-held.Done():
			}
		})
		told = append(told, func() {
			if session.IsClosed(lost) {
				cancel(why())
			}
		})
	}
	return held, sync.OnceValue(func() error {
		for _, tell := range told {
			tell()
		}
		cancel(nil)
		watching.Wait()
		return release()
	}), nil
}

// holdOf returns what is closed when l is lost, and what says why.
func holdOf(l Locker) (lost <-chan struct{}, why func() error) {
	switch l := l.(type) {
	case interface {
		standing() (<-chan struct{}, func() error)
	}:
		return l.standing()
	case interface{ Lost() <-chan struct{} }:
		return l.Lost(), func() error { return &LostError{Since: time.Now()} }
	}
	return nil, nil
}

func (m *Mutex) standing() (<-chan struct{}, func() error) {
	return m.turnstile.Standing(turnstile.Exclusive)
}

func (rw *RWMutex) standing() (<-chan struct{}, func() error) {
	return rw.turnstile.Standing(turnstile.Exclusive, turnstile.Shared)
}

func (r *rlocker) standing() (<-chan struct{}, func() error) {
	return r.turnstile.Standing(turnstile.Shared)
}

// lockAll is LockAll, and returns ls in the order in which they are locked.
func lockAll(ctx context.Context, ls []Locker) ([]orderedLocker, func() error, error) {
	sorted, err := inOrder(ls)
	if err != nil {
		return nil, nil, err
	}
	locked := 0
	release := func() error {
		var errs []error
		for ; locked > 0; locked-- {
			if err := sorted[locked-1].Unlock(); err != nil {
				errs = append(errs, err)
			}
		}
		return session.JoinErrors(errs)
	}
	lost := func(l orderedLocker) bool {
		h, ok := l.Locker.(interface{ Lost() <-chan struct{} })
		return ok && session.IsClosed(h.Lost())
	}
	for {
		for _, l := range sorted {
			if err := l.Lock(ctx); err != nil {
				unlockSoon(ctx, release)
				return nil, nil, err
			}
			locked++
		}
		// What was locked first may have been lost while the last was waited for.
		// Nobody has been told anything, so it is a wait that outlives its session.
		if !slices.ContainsFunc(sorted, lost) {
			return sorted, sync.OnceValue(release), nil
		}
		if !unlockSoon(ctx, release) {
			return nil, nil, opError("lockall", "", session.CtxErr(ctx))
		}
	}
}
