package harness

import (
	"context"
	"runtime"
	"strings"
)

// This file has a context that notices its use, and an exact count of goroutines. Contexts with a
// deadline are the business of harness.go.

// Asking returns a copy of ctx that calls `ask` at each call of its methods Value and Done.
func Asking(ctx context.Context, ask func()) context.Context { return asking{ctx, ask} }

type asking struct {
	context.Context
	ask func()
}

func (c asking) Value(key any) any     { c.ask(); return c.Context.Value(key) }
func (c asking) Done() <-chan struct{} { c.ask(); return c.Context.Done() }

// Goroutines returns the number of goroutines. Unlike [runtime.NumGoroutine], it never counts a
// goroutine that has just ended.
func Goroutines() int {
	buf := make([]byte, 4<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "\n\ngoroutine ")
}
