package session

import (
	"context"
	"time"
)

// Grace is how long a call that has been cancelled, or has failed, waits for
// its traces to be deleted. With a server that answers this is enough;
// otherwise the deletion goes on in the background.
const Grace = 25 * time.Millisecond

// IsClosed reports whether c is closed now.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var ClosedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// What follows is how a call waits for a while for something that then goes on in
// the background: AwaitFor and its like. When done comes at the very end of the
// limit either outcome is right, because whoever waits does nothing else then.

// AwaitFor waits for done, but no longer than limit. ok tells whether it came.
func AwaitFor[T any](done <-chan T, limit time.Duration) (v T, ok bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case v = <-done:
		return v, true
	case <-timer.C:
		return v, false
	}
}

// AwaitGrace waits for done, once end is closed for no longer than Grace. ok tells
// whether it came.
func AwaitGrace[T any](done <-chan T, end <-chan struct{}) (v T, ok bool) {
	select {
	case v = <-done:
		return v, true
	case <-end:
		return AwaitFor(done, Grace)
	}
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return CtxErr(ctx)
	}
}
