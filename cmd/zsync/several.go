package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// This file makes a single hold from several. hold.go runs the command under that hold.

// The function `all` combines several holds at different paths into one hold. The combined hold
// always acquires them in the order of their paths, so two commands never deadlock. The tokens are
// in the order of the argument.
func all(holds []hold) hold {
	if len(holds) == 1 {
		return holds[0]
	}
	sorted := slices.Clone(holds)
	slices.SortFunc(sorted, func(a, b hold) int { return cmp.Compare(a.lines[0].Path(), b.lines[0].Path()) })
	release := func(taken []hold) error {
		var errs []error
		for _, h := range slices.Backward(taken) {
			errs = append(errs, h.release())
		}
		return errors.Join(errs...)
	}
	// While it waits for the next hold, an earlier one may be lost.
	whole := func() bool {
		return !slices.ContainsFunc(sorted, func(h hold) bool {
			select {
			case <-h.lost():
				return true
			default:
				return false
			}
		})
	}
	var together hold
	together.acquire = func(ctx context.Context) error {
		for {
			for i, h := range sorted {
				if err := h.acquire(ctx); err != nil {
					release(sorted[:i])
					return err
				}
			}
			if whole() {
				return nil
			}
			release(sorted) // the command is not running yet, so wait again
		}
	}
	together.try = func(ctx context.Context) (bool, error) {
		for i, h := range sorted {
			if ok, err := h.try(ctx); !ok || err != nil {
				release(sorted[:i])
				return false, err
			}
		}
		return true, nil
	}
	together.release = func() error { return release(sorted) }
	together.lost = func() <-chan struct{} {
		any, once := make(chan struct{}), new(sync.Once)
		for _, h := range sorted {
			lost := h.lost()
			go func() {
				<-lost // this goroutine ends at a loss or with the process
				once.Do(func() { close(any) })
			}()
		}
		return any
	}
	together.tokens = func(ctx context.Context) (tokens []int64, err error) {
		for _, h := range holds {
			more, err := h.tokens(ctx)
			if err != nil {
				return nil, err
			}
			tokens = append(tokens, more...)
		}
		return tokens, nil
	}
	for _, h := range holds {
		together.lines = append(together.lines, h.lines...)
	}
	return together
}
