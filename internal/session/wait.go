package session

// This file has waits with a time limit, for work that then continues in the background.

import (
	"context"
	"errors"
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

// AwaitFor waits for `done`, but no longer than `limit`. The result `ok` reports whether `done` was
// ready. If `done` is ready at the limit, either result is right, because the caller does the same.
func AwaitFor[T any](done <-chan T, limit time.Duration) (v T, ok bool) {
	select {
	case v = <-done:
		return v, true
	case <-time.After(limit):
		return v, false
	}
}

// Apart calls f in a goroutine of `spawn`, and returns its error. After the end of ctx, Apart waits no
// longer than the time Grace. If f has not returned by then, it continues in the background, and ok is
// false. If f panics before that, so does Apart.
func Apart(ctx context.Context, spawn func(func()), f func() error) (err error, ok bool) {
	var thrown any
	done := make(chan error, 1)
	spawn(func() {
		err := errors.New("the function has ended its goroutine") // unless it returns
		defer func() { thrown = recover(); done <- err }()
		err = f()
	})
	select {
	case err = <-done:
		ok = true
	case <-ctx.Done(): // if `done` is ready, too, AwaitFor finds it
		err, ok = AwaitFor(done, Grace)
	}
	if ok && thrown != nil {
		panic(thrown)
	}
	return err, ok
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
