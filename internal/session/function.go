package session

// This file counts the calls of the program's functions, so that Close can wait for them. It does
// not count holds.

import (
	"bytes"
	"context"
	"runtime"
	"strconv"
)

// A Function is one call of a function that the program has passed to a method Do, Run or Work.
// Close ends the context of the function, with cause ErrClosed, and waits until the function has
// returned and its hold is released.
type Function struct {
	of     *Manager
	parent *Function // the function in whose context this function was called, or nil
	over   bool      // End was called; guarded by Manager.mu
}

// Function returns the Function of a call that is about to begin. Its parent is the function in
// whose context the call is made, or nil.
func (m *Manager) Function(parent *Function) Function { return Function{of: m, parent: parent} }

// FunctionOf returns the function of m in whose context ctx was made, or nil.
func (m *Manager) FunctionOf(ctx context.Context) *Function {
	f, _ := ctx.Value(m).(*Function)
	return f
}

// Begin is called before the function runs, in its goroutine. If the Session is being closed, the
// function must not run, and the error is ErrClosed.
func (f *Function) Begin() error {
	m := f.of
	m.mu.Lock()
	defer m.mu.Unlock()
	// Close calls `leave` and then reads `running`. So either Close sees f, or f sees the reason.
	if err := m.Failure(); err != nil {
		return err
	}
	m.running[f] = goroutine()
	return nil
}

// In returns a context of f that is derived from ctx. The key of f is its Manager.
func (f *Function) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, f.of, f)
}

// End is called when the function has returned and its hold is released. It may be called again.
func (f *Function) End() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.over = true
	delete(f.of.running, f)
	f.of.fewerLocked()
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
		_, running := f.of.running[f]
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
func (m *Manager) waive() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for f, its := range m.running {
		if its == goroutine() {
			m.running[f] = 0
		}
	}
	m.fewerLocked() // another Close may be waiting for these functions
}

func (m *Manager) functionsLocked() (n int) {
	for _, its := range m.running {
		if its != 0 {
			n++
		}
	}
	return n
}

func goroutine() uint64 {
	var buf [64]byte
	b := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(b, []byte(" "))
	n, _ := strconv.ParseUint(string(number), 10, 64)
	return n
}
