package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// This file makes one hold of several.

// all makes one hold of several, at different paths. It acquires them in the order of their paths, in
// whatever order they are given, so two commands never deadlock. The tokens come in the order of
// holds.
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
	// During the wait for the last hold, the first may have been lost.
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
			release(sorted) // nothing has started yet: wait again
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
				<-lost // or the end of the process
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
