package harness

import (
	"context"
	"runtime"
	"strings"
)

// Asking returns ctx, which calls ask each time that it is asked for a value or its end.
func Asking(ctx context.Context, ask func()) context.Context { return asking{ctx, ask} }

type asking struct {
	context.Context
	ask func()
}

func (c asking) Value(key any) any     { c.ask(); return c.Context.Value(key) }
func (c asking) Done() <-chan struct{} { c.ask(); return c.Context.Done() }

// Goroutines returns the number of goroutines. Unlike [runtime.NumGoroutine], it does not
// count a goroutine that has just ended.
func Goroutines() int {
	buf := make([]byte, 4<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "\n\ngoroutine ")
}
