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

// AwaitGrace waits for done, once end is closed for no longer than grace. ok tells
// whether it came.
func AwaitGrace[T any](done <-chan T, end <-chan struct{}) (v T, ok bool) {
	select {
	case v = <-done:
		return v, true
	case <-end:
	}
	select {
	case v = <-done:
		return v, true
	case <-time.After(Grace):
		return v, false
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
