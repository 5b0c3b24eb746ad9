package lock

// This file locks several locks, or none of them.

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
	Ours     bool                   // a locker of zsync: Unlock does not panic, and may run in a goroutine of its own
	Standing func() *session.Ending // returns the Ending that ends if the hold is lost; nil if the locker has none
}

// ErrPartLost means that a part was lost while LockAll waited for another. The caller may call
// LockAll again.
var ErrPartLost = errors.New("a lock was lost while another was waited for")

// LockAll locks parts in their order, one after the other, or none of them. It returns the
// function that unlocks them.
//
// While a caller waits for a part, it holds only parts that come earlier in the order. The order is
// the same for all callers, so no two callers wait for each other, however many locks each has.
//
// If a part is lost while LockAll waits for another, LockAll unlocks all and fails with
// ErrPartLost. Otherwise, goroutines of this process that want the lost part would wait for the
// other part, too.
func LockAll(ctx context.Context, parts []Part) (unlock func() error, err error) {
	locked := 0
	defer func() {
		if unlock == nil { // a part has failed, or has panicked
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

// unlockAll unlocks all parts, the last first, even if an Unlock panics. It unlocks zsync's own
// lockers at the same time, each in a goroutine.
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
				errs[i] = part.Unlock() // in this goroutine, so that the caller gets its panic
				return
			}
			under.Go(func() { errs[i] = part.Unlock() })
		}()
	}
	return nil
}

// UnlockSoon unlocks, and reports whether the unlock is over. After the end of ctx, it waits
// for no longer than grace; then the unlock continues in the background.
func UnlockSoon(ctx context.Context, unlock func() error) bool {
	done := make(chan error, 1)
	go func() { done <- unlock() }()
	_, ok := session.AwaitGrace(done, ctx.Done())
	return ok
}
