package session

// This file has waits with a time limit, for work that then continues in the background.

import (
	"context"
	"time"
)

// Grace is the time for which a call that was cancelled, or has failed, waits for the deletion of
// its znodes. That is enough if a server answers. Otherwise the deletion continues in the
// background.
const Grace = 25 * time.Millisecond

// ReleaseTime is the time for which a release without a context waits for its result. Before that,
// the release may need askTime. Both together are less than half a second.
const ReleaseTime = 250 * time.Millisecond

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

// AwaitFor and AwaitGrace wait for a limited time. If `done` is ready at the end of the limit,
// either result is right, because the caller does the same in both cases.

// AwaitFor waits for `done`, but no longer than `limit`. The result `ok` reports whether `done` was
// ready.
func AwaitFor[T any](done <-chan T, limit time.Duration) (v T, ok bool) {
	select {
	case v = <-done:
		return v, true
	case <-time.After(limit):
		return v, false
	}
}

// AwaitGrace waits for `done`. After `end` is closed, it waits no longer than the time Grace. The
// result `ok` reports whether `done` was ready.
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

// WhileEither returns a context with the values of ctx. The new context ends when both ctx has
// ended and `over` is closed. The caller must call `stop`.
func WhileEither(ctx context.Context, over <-chan struct{}) (both context.Context, stop func()) {
	both, end := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		select {
		case <-over:
			end()
		case <-both.Done():
		}
	})
	return both, func() { forget(); end() }
}
