package zsync

import (
	"context"
	"slices"
	"sync"

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
	sorted, err := inOrder(ls)
	if err != nil {
		return nil, err
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
				return nil, err
			}
			locked++
		}
		// What was locked first may have been lost while the last was waited for.
		// Nobody has been told anything, so it is a wait that outlives its session.
		if !slices.ContainsFunc(sorted, lost) {
			return sync.OnceValue(release), nil
		}
		if !unlockSoon(ctx, release) {
			return nil, opError("lockall", "", session.CtxErr(ctx))
		}
	}
}
