package zsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

func (s *syncLocker) Lock()   { panicOn(s.l.Lock(s.ctx)) }
func (s *syncLocker) Unlock() { panicOn(s.l.Unlock()) }

func panicOn(err error) {
	if err != nil {
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
	_, unlock, err = LockAllContext(ctx, ls...)
	return unlock, err
}

// LockAllContext is [LockAll] with a context for the holds: it ends when ctx ends, at unlock, and
// at the first loss, with the [*LostError] as cause. Call unlock after a loss, too. A foreign
// locker needs Lost() <-chan struct{}.
func LockAllContext(ctx context.Context, ls ...Locker) (held context.Context, unlock func() error, err error) {
	sorted, err := inOrder(ls)
	if err != nil {
		return nil, nil, opError("lockall", "", err)
	}
	for {
		held, unlock, err = lockEach(ctx, sorted)
		switch {
		case err != errPartLost:
			return held, unlock, err
		case ctx.Err() != nil:
			return nil, nil, opError("lockall", "", session.CtxErr(ctx))
		}
		// Begin again, because a wait outlives its session.
	}
}

var errPartLost = errors.New("a lock was lost while another was waited for")

// lockEach locks all of ls or none, one after the other. It returns a context that ends at the first
// loss, and a function that unlocks all. All callers have the same order, and hold only earlier locks
// while they wait. So two callers never wait for each other.
//
// If a lock is lost while lockEach waits for another lock, it unlocks all and fails with errPartLost:
// other goroutines of this process that want the lost lock must not wait for the other lock, too.
func lockEach(ctx context.Context, ls []Locker) (_ context.Context, _ func() error, err error) {
	held, end, rest := session.EndingContext(ctx)
	locked := 0
	var leave []func()
	var watching sync.WaitGroup
	unlock := sync.OnceValue(func() (err error) {
		for _, f := range leave {
			f()
		}
		end(nil)
		rest()
		watching.Wait()
		errs := make([]error, locked)
		var under sync.WaitGroup
		defer func() {
			under.Wait()
			slices.Reverse(errs)
			err = session.JoinErrors(errs)
		}()
		for i, l := range ls[:locked] { // unlock in reverse order, even if an Unlock panics
			defer func() {
				if ours(l) {
					under.Go(func() { errs[i] = l.Unlock() })
				} else {
					errs[i] = l.Unlock() // in this goroutine, so that the caller gets a panic of Unlock
				}
			}()
		}
		return nil
	})
	all := false
	defer func() {
		if !all { // a Lock has failed or panicked
			session.Apart(ctx, detached, unlock)
		}
	}()
	for _, l := range ls {
		switch err := l.Lock(held); {
		case err != nil && held.Err() != nil && !errors.Is(context.Cause(held), context.Cause(ctx)): // a loss has ended `held`, even if ctx has ended since
			return nil, nil, errPartLost
		case err != nil:
			return nil, nil, err
		}
		locked++
		if q, modes := partsOf(l); q != nil {
			leave = append(leave, q.local.Standing(modes...).AfterFunc(end))
		} else if h, ok := l.(interface{ Lost() <-chan struct{} }); ok {
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
	if all = held.Err() == nil; !all {
		return nil, nil, errPartLost
	}
	return held, unlock, nil
}

// The function `detached` calls f in a goroutine for which no Close waits: a program's Unlock may call Close.
func detached(f func()) { go f() }

// The function `ours` reports whether l is a lock of this package. A type with such a lock embedded may
// have its own Lock and Unlock.
func ours(l Locker) bool {
	switch l.(type) {
	case *Mutex, *RWMutex, *rlocker:
		return true
	}
	return false
}

// partsOf returns the lock and the modes of a Locker of this package, see localLock.parts. For another
// Locker, q is nil.
func partsOf(l Locker) (q *localLock, modes []lock.HoldMode) {
	if l, ok := l.(interface {
		parts() (*localLock, []lock.HoldMode)
	}); ok {
		return l.parts()
	}
	return nil, nil
}

// isNil reports whether l is nil, or a nil pointer of its type.
func isNil(l Locker) bool {
	v := reflect.ValueOf(l)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// inOrder sorts lockers by their full paths, so that different chroots have the same order.
func inOrder(ls []Locker) ([]Locker, error) {
	at := make(map[string]Locker, len(ls)) // by full path
	for i, l := range ls {
		p, ok := l.(interface{ Path() string })
		switch {
		case isNil(l):
			return nil, session.Invalid("locker %d is nil", i)
		case !ok:
			return nil, session.Invalid("locker %d is a %T, which has no method Path() string to order it by", i, l)
		}
		path := p.Path()
		if q, _ := partsOf(l); q != nil {
			if q.misuse() != nil {
				return nil, opError("lockall", path, fmt.Errorf("locker %d: %w", i, q.misuse()))
			}
			path = q.s.m.Full(q.path)
		}
		if at[path] != nil {
			return nil, opError("lockall", p.Path(), session.Invalid("the path is given twice: %w", ErrDeadlock))
		}
		at[path] = l
	}
	var sorted []Locker
	for _, path := range slices.Sorted(maps.Keys(at)) {
		sorted = append(sorted, at[path])
	}
	return sorted, nil
}
