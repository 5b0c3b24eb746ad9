package lock

// This file locks either all of several lockers or none of them.

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// A Part is a locker of LockAll.
type Part struct {
	Lock     func(ctx context.Context) error
	Unlock   func() error
	Ours     bool                   // the locker is from zsync: its Unlock does not panic, and may run in another goroutine
	Standing func() *session.Ending // returns an Ending that ends if the hold is lost; nil if the locker has no Ending
}

// ErrPartLost means that a part was lost while LockAll waited for another part. The caller may call
// LockAll again.
var ErrPartLost = errors.New("a lock was lost while another was waited for")

// LockAll locks either all parts or none of them. It locks the parts one after the other, in their
// order. It returns a function that unlocks all parts.
//
// While a caller waits for a part, it holds only parts that come earlier in the order. All callers
// have the same order. So two callers never wait for each other, whatever the number of their
// parts.
//
// If one part is lost while LockAll waits for another part, LockAll unlocks all parts and fails
// with ErrPartLost. If LockAll continued to wait, goroutines of this process that want the lost
// part would also have to wait for the other part.
func LockAll(ctx context.Context, parts []Part) (unlock func() error, err error) {
	locked := 0
	defer func() {
		if unlock == nil { // the Lock of a part has failed or panicked
			UnlockSoon(ctx, func() error { return unlockAll(parts[:locked]) })
		}
	}()
	ours, rest := context.WithCancel(ctx) // a hook must end only a context of this package, not a context of the program
	defer rest()
	waiting, end := context.WithCancelCause(ours)
	defer end(nil)
	for _, part := range parts {
		switch err := part.Lock(waiting); {
		case err != nil && waiting.Err() != nil && ctx.Err() == nil:
			return nil, ErrPartLost
		case err != nil:
			return nil, err
		}
		locked++
		if part.Standing != nil {
			defer part.Standing().AfterFunc(end)()
		}
	}
	return sync.OnceValue(func() error { return unlockAll(parts) }), nil
}

// unlockAll unlocks all parts in reverse order, even if an Unlock panics. Lockers of zsync are
// unlocked at the same time, each in its own goroutine.
func unlockAll(parts []Part) (err error) {
	errs := make([]error, len(parts))
	var under sync.WaitGroup
	defer func() {
		under.Wait()
		slices.Reverse(errs)
		err = session.JoinErrors(errs)
	}()
	for i, part := range parts {
		defer func() {
			if !part.Ours {
				errs[i] = part.Unlock() // in this goroutine, so that the caller gets a panic of Unlock
				return
			}
			under.Go(func() { errs[i] = part.Unlock() })
		}()
	}
	return nil
}

// UnlockSoon calls `unlock`, and reports whether that call has returned. After the end of ctx,
// UnlockSoon waits no longer than the time session.Grace. If the call has not returned by then, it
// continues in the background.
func UnlockSoon(ctx context.Context, unlock func() error) bool {
	done := make(chan error, 1)
	go func() { done <- unlock() }()
	_, ok := session.AwaitGrace(done, ctx.Done())
	return ok
}
