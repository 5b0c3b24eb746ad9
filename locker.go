package zsync

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// A Locker is like [sync.Locker], with a context for Lock, and with errors.
type Locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// SyncLocker makes a [sync.Locker] of l. Its Lock waits at most until ctx ends. Both methods panic
// with an error of l. If losses matter, check [Mutex.Lost].
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

// LockAll locks all of ls, or none, and returns the function unlock:
//
//	unlock, err := zsync.LockAll(ctx, from, to)
//	if err != nil {
//		return err
//	}
//	defer unlock()
//
// It locks in one global order, by full path, so calls do not deadlock. Each locker needs a method
// Path() string. If a lock is lost while LockAll waits for another, it unlocks all and begins
// again. If it fails, or a locker panics, nothing stays locked. A locker given twice is
// [ErrDeadlock]. unlock returns the errors of all. A free lock costs 1 round trip, unlock 1 for
// all.
func LockAll(ctx context.Context, ls ...Locker) (unlock func() error, err error) {
	_, unlock, err = lockAll(ctx, ls)
	return unlock, err
}

// LockAllContext is [LockAll] with a context for the holds: it ends when ctx ends, at unlock, and
// at the first loss, with the [*LostError] as cause. Call unlock after a loss, too. A foreign
// locker needs Lost() <-chan struct{}.
func LockAllContext(ctx context.Context, ls ...Locker) (held context.Context, unlock func() error, err error) {
	sorted, release, err := lockAll(ctx, ls)
	if err != nil {
		return nil, nil, err
	}
	held, end, rest := session.EndingContext(ctx)
	var watching sync.WaitGroup
	var leave []func()
	for _, l := range sorted {
		if l.stands != nil {
			leave = append(leave, l.stands.AfterFunc(end))
		} else if h, ok := l.Locker.(interface{ Lost() <-chan struct{} }); ok {
			lost := h.Lost()
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

// The method `stand` of a Locker of this package returns its lock, and the modes in which the Locker
// can hold this lock. The first mode is the mode of Lock.
func (m *Mutex) stand() (*lock.Lock, []lock.HoldMode) {
	return &m.local.Lock, []lock.HoldMode{lock.Exclusive}
}

func (rw *RWMutex) stand() (*lock.Lock, []lock.HoldMode) {
	return &rw.local.Lock, []lock.HoldMode{lock.Exclusive, lock.Shared}
}

func (r *rlocker) stand() (*lock.Lock, []lock.HoldMode) {
	return &r.local.Lock, []lock.HoldMode{lock.Shared}
}

// lockAll does the work of LockAll. It also returns ls in the order in which they are locked.
func lockAll(ctx context.Context, ls []Locker) ([]orderedLocker, func() error, error) {
	sorted, err := inOrder(ls)
	for err == nil {
		var unlock func() error
		switch unlock, err = lockEach(ctx, sorted); {
		case err == nil:
			return sorted, unlock, nil
		case err == errPartLost && ctx.Err() != nil:
			err = opError("lockall", "", session.CtxErr(ctx))
		case err == errPartLost:
			err = nil // LockAll begins again, because a wait outlives its session
		}
	}
	return nil, nil, err
}

// An orderedLocker is an argument of LockAll with the paths that determine its position in the
// order.
type orderedLocker struct {
	Locker
	path   string          // the path for error messages
	full   string          // the full path on the servers, if it is known
	stands *session.Ending // ends if the hold is lost; nil unless a Locker of this package is locked
}

// The method `lost` reports whether the hold is lost.
func (l *orderedLocker) lost() bool {
	h, ok := l.Locker.(interface{ Lost() <-chan struct{} })
	return ok && session.IsClosed(h.Lost())
}

// errPartLost means that a lock was lost while LockAll waited for another lock.
var errPartLost = errors.New("a lock was lost while another was waited for")

// lockEach locks either all of ls or none of them, one after the other, in their order. It returns
// a function that unlocks all.
//
// While a caller waits for a lock, it holds only locks that come earlier in the order. All callers
// have the same order. So two callers never wait for each other, whatever the number of their
// locks.
//
// If a lock is lost while lockEach waits for another lock, it unlocks all and fails with
// errPartLost. The reason is that other goroutines of this process may want the lost lock. They
// must not wait for the other lock, too.
func lockEach(ctx context.Context, ls []orderedLocker) (unlock func() error, err error) {
	locked := 0
	defer func() {
		if unlock == nil { // a Lock has failed or panicked; after the end of ctx, unlock in the background if need be
			done := make(chan error, 1)
			go func() { done <- unlockAll(ls[:locked]) }()
			session.AwaitGrace(done, ctx.Done())
		}
	}()
	waiting, end, rest := session.EndingContext(ctx)
	defer rest()
	defer end(nil)
	for i := range ls {
		l := &ls[i]
		switch err := l.Lock(waiting); {
		case err != nil && waiting.Err() != nil && ctx.Err() == nil:
			return nil, errPartLost
		case err != nil:
			return nil, err
		}
		locked++
		if o, ok := l.Locker.(interface {
			stand() (*lock.Lock, []lock.HoldMode)
		}); ok {
			q, modes := o.stand()
			l.stands = q.Standing(modes...)
			defer l.stands.AfterFunc(end)()
		}
	}
	if slices.ContainsFunc(ls, func(l orderedLocker) bool { return l.lost() }) {
		return nil, errPartLost
	}
	return sync.OnceValue(func() error { return unlockAll(ls) }), nil
}

// unlockAll unlocks all of ls in reverse order, even if an Unlock panics. Lockers of this package
// are unlocked at the same time, each in its own goroutine.
func unlockAll(ls []orderedLocker) (err error) {
	errs := make([]error, len(ls))
	var under sync.WaitGroup
	defer func() {
		under.Wait()
		slices.Reverse(errs)
		err = session.JoinErrors(errs)
	}()
	for i, l := range ls {
		defer func() {
			switch l.Locker.(type) {
			case *Mutex, *RWMutex, *rlocker: // but not a type with one of them embedded, and perhaps with its own Unlock
				under.Go(func() { errs[i] = l.Unlock() })
			default:
				errs[i] = l.Unlock() // in this goroutine, so that the caller gets a panic of Unlock
			}
		}()
	}
	return nil
}

// inOrder sorts lockers by their full paths. So processes with different chroots use the same
// order.
func inOrder(ls []Locker) ([]orderedLocker, error) {
	sorted := make([]orderedLocker, 0, len(ls))
	for i, l := range ls {
		p, ok := l.(interface{ Path() string })
		if v := reflect.ValueOf(l); ok && v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, opError("lockall", "", session.Invalid("locker %d is nil", i))
		}
		if !ok {
			return nil, opError("lockall", "", session.Invalid("locker %d is a %T, which has no method Path() string to order it by", i, l))
		}
		if m, ok := l.(interface{ misuse() error }); ok && m.misuse() != nil {
			return nil, opError("lockall", p.Path(), m.misuse())
		}
		o := orderedLocker{Locker: l, path: p.Path(), full: p.Path()}
		if f, ok := l.(interface{ fullPath() string }); ok {
			o.full = f.fullPath()
		}
		sorted = append(sorted, o)
	}
	slices.SortStableFunc(sorted, func(a, b orderedLocker) int { return cmp.Compare(a.full, b.full) })
	for i := range sorted {
		if i > 0 && sorted[i].full == sorted[i-1].full {
			return nil, opError("lockall", sorted[i].path, session.Invalid("the path is given twice: %w", ErrDeadlock))
		}
	}
	return sorted, nil
}

// fullPath returns the full path on the servers.
func (m *made) fullPath() string {
	if m.s == nil {
		return m.path
	}
	return m.s.m.Full(m.path)
}
