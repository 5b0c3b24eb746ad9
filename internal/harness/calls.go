package harness

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/zktest"
)

// This file helps tests with calls: it starts a call and checks that it waits, collects results,
// and counts requests. The faults of a test are the business of faults.go and network.go.

// Arrive runs f in a goroutine. When f waits, Arrive returns the channel of the result of f.
func Arrive(t testing.TB, f func() error) <-chan error {
	t.Helper()
	c := Async(f)
	PendingStill(t, c)
	return c
}

// Eventually calls f until it returns nil, for about ten seconds at most.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for range 500 {
		if err = f(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond) // real time: tests against real servers use it too
	}
	t.Fatal(err)
}

// Closed reports whether c is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ClosedFunc returns a function that reports whether c is closed.
func ClosedFunc(c <-chan struct{}) func() bool { return func() bool { return Closed(c) } }

// Collect takes n values from ch.
func Collect[T any](t testing.TB, ch <-chan T, n int) []T {
	t.Helper()
	var vs []T
	timeout := time.After(time.Minute)
	for len(vs) < n {
		select {
		case v, ok := <-ch:
			if !ok {
				t.Fatalf("the channel was closed after %d of %d values", len(vs), n)
			}
			vs = append(vs, v)
		case <-timeout:
			t.Fatalf("%d of %d values came within a minute", len(vs), n)
		}
	}
	return vs
}

// Counted returns the numbers from 0 to n-1.
func Counted(n int) []int {
	vs := make([]int, n)
	for i := range vs {
		vs[i] = i
	}
	return vs
}

// Requests returns the number of requests that f sends, including requests of background work after
// f has returned.
func Requests(srv *zktest.Server, f func()) int64 {
	synctest.Wait()
	before := srv.Counts()
	f()
	time.Sleep(time.Second)
	synctest.Wait()
	return srv.Counts().Sub(before).Total()
}

// Standing returns a function that reports whether srv still has a session. If [Chaos] ends a
// session, the function reports false before the client learns of it.
func Standing(srv *zktest.Server) func(session int64) bool {
	return func(session int64) bool { return slices.Contains(srv.Sessions(), session) }
}

// Pause lets real time pass, for tests of the passage of time.
func Pause(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// StoodStill returns a function. The result of a call is the longest time for which the process may
// have been stopped since the previous call.
func StoodStill(t testing.TB) func() time.Duration {
	const tick = 10 * time.Millisecond
	var longest atomic.Int64
	var watch sync.WaitGroup
	over := make(chan struct{})
	watch.Go(func() {
		for last := time.Now(); ; {
			select {
			case <-over:
				return
			case <-time.After(tick):
			}
			now := time.Now()
			longest.Store(max(longest.Load(), int64(now.Sub(last)-tick)))
			last = now
		}
	})
	t.Cleanup(func() { close(over); watch.Wait() })
	return func() time.Duration { return time.Duration(longest.Swap(0)) }
}

// Raise makes v at least n. Several goroutines may raise v at the same time.
func Raise(v *atomic.Int64, n int64) {
	for old := v.Load(); old < n && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// Nap sleeps for up to n milliseconds.
func Nap(d *rand.Rand, n int) { time.Sleep(time.Duration(d.IntN(n*1000)) * time.Microsecond) }

// OnLog returns a Logger that calls f with each message.
func OnLog(f func(msg string)) *slog.Logger { return slog.New(logHandler{slog.DiscardHandler, f}) }

type logHandler struct {
	slog.Handler
	f func(msg string)
}

func (h logHandler) Handle(_ context.Context, r slog.Record) error { h.f(r.Message); return nil }

func (h logHandler) Enabled(context.Context, slog.Level) bool { return true }
