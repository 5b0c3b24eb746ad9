package session

// This file counts the calls of the program's functions, so that Close can wait for them. It does
// not count holds.

import (
	"bytes"
	"context"
	"runtime"
	"strconv"
	"sync"
)

// A Function is one call of a function that the program has passed to a method Do, Run or Work.
// Close ends the context of the function, with cause ErrClosed, and waits until the function has
// returned and its hold is released.
type Function struct {
	of     *functions
	parent *Function // the function in whose context this function was called, or nil

	goroutine uint64 // the number of the goroutine that runs the function; guarded by functions.mu, like the fields below
	running   bool
	over      bool // End was called
	waived    bool // its goroutine has called Close
}

// The type `functions` has the running functions of a Session.
type functions struct {
	leaving Ending // ended by Close when nothing new may begin; its hooks end the contexts of functions

	mu      sync.Mutex
	closed  error // why no function may begin
	running map[*Function]struct{}
	changed chan struct{} // made by Close; closed when `running` changes
}

// Begin is called before the function runs, in its goroutine. If the Session is being closed, the
// function must not run, and the error is ErrClosed.
func (f *Function) Begin() error {
	fs := f.of
	fs.mu.Lock()
	defer fs.mu.Unlock()
	// Close sets `closed` and then reads `running`. So either Close sees f, or f sees `closed`.
	if fs.closed != nil {
		return fs.closed
	}
	if fs.running == nil {
		fs.running = make(map[*Function]struct{})
	}
	f.goroutine, f.running = goroutine(), true
	fs.running[f] = struct{}{}
	return nil
}

// The method `close` prevents functions from beginning: from then on, Begin returns err.
func (fs *functions) close(err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.closed = err
}

// In returns a context of f that is derived from ctx. The key of f is its Session's `functions`.
func (f *Function) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, f.of, f)
}

// End is called when the function has returned and its hold is released. It may be called again.
func (f *Function) End() {
	fs := f.of
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.running, f.over = false, true
	delete(fs.running, f)
	fs.changeLocked()
}

func (fs *functions) changeLocked() {
	if fs.changed != nil {
		close(fs.changed)
		fs.changed = nil
	}
}

// AfterClose calls the function `end`, with ErrClosed, when Close is called. The rules for hooks of
// an Ending apply to `end`.
func (f *Function) AfterClose(end func(cause error)) (stop func()) {
	return f.of.leaving.AfterFunc(end)
}

// Runs reports whether f still runs, or whether a function in whose context f was called still
// runs.
func (f *Function) Runs() bool {
	for ; f != nil; f = f.parent {
		f.of.mu.Lock()
		running := f.running
		f.of.mu.Unlock()
		if running {
			return true
		}
	}
	return false
}

// Over reports whether f is over: it has ended, and so has every function in whose context f was
// called. A function that has not begun yet is not over.
func (f *Function) Over() bool {
	f.of.mu.Lock()
	over := f.over
	f.of.mu.Unlock()
	return over && !f.Runs()
}

// Close calls the method `waive`, so that no call of Close waits for the functions of the calling
// goroutine.
func (fs *functions) waive() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.running) == 0 {
		return
	}
	me := goroutine()
	for f := range fs.running {
		f.waived = f.waived || f.goroutine == me
	}
	fs.changeLocked() // another Close may be waiting for these functions
}

// The method `awaited` returns the number of functions that Close waits for, and a channel that is
// closed when this number changes.
func (fs *functions) awaited() (n int, changed <-chan struct{}) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.running {
		if !f.waived {
			n++
		}
	}
	if fs.changed == nil {
		fs.changed = make(chan struct{})
	}
	return n, fs.changed
}

// The function `goroutine` returns the number of the calling goroutine.
func goroutine() uint64 {
	var buf [64]byte
	b := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(b, []byte(" "))
	n, _ := strconv.ParseUint(string(number), 10, 64)
	return n
}
