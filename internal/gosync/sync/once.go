package sync

import (
	"context"
	"errors"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// This file adapts zsync.Once, OnceFunc and the like to the API of package sync.

// A Once uses a [zsync.Once].
type Once struct {
	_      noCopy
	shared gosync.Shared[*zsync.Once]
}

// Do calls f if no Do has called its function before. A function that panics counts as called.
func (o *Once) Do(f func()) {
	err := one(&o.shared, zsync.NewOnce).Do(context.Background(), func(context.Context) error { f(); return nil })
	if !errors.Is(err, zsync.ErrPanicked) {
		gosync.Must(err)
	}
}

func one[T any](s *gosync.Shared[T], make func(s *zsync.Session, path string) T) T {
	all := s.All(make)
	return all[gosync.Next(len(all))]
}

// The type `call` has the value with which the function of a OnceFunc panicked. Package sync panics
// with this value at each call. zsync returns an error instead, because the caller may be in
// another process.
type call struct{ panicked any }

func (c *call) run(f func()) {
	returned := false
	defer func() {
		if !returned {
			c.panicked = recover()
			panic(c.panicked)
		}
	}()
	f()
	returned = true
}

func (c *call) check(err error) {
	if errors.Is(err, zsync.ErrPanicked) {
		panic(c.panicked)
	}
	gosync.Must(err)
}

// OnceFunc uses [zsync.OnceFunc].
func OnceFunc(f func()) func() {
	c, shared := new(call), new(gosync.Shared[func(context.Context) error])
	return func() {
		c.check(one(shared, func(s *zsync.Session, path string) func(context.Context) error {
			return zsync.OnceFunc(s, path, func(context.Context) error { c.run(f); return nil })
		})(context.Background()))
	}
}

// OnceValue uses [zsync.OnceValue].
func OnceValue[T any](f func() T) func() T {
	c, shared := new(call), new(gosync.Shared[func(context.Context) (T, error)])
	return func() T {
		v, err := one(shared, func(s *zsync.Session, path string) func(context.Context) (T, error) {
			return zsync.OnceValue(s, path, func(context.Context) (v T, err error) {
				c.run(func() { v = f() })
				return v, nil
			})
		})(context.Background())
		c.check(err)
		return v
	}
}

// OnceValues uses [zsync.OnceValues].
func OnceValues[T1, T2 any](f func() (T1, T2)) func() (T1, T2) {
	c, shared := new(call), new(gosync.Shared[func(context.Context) (T1, T2, error)])
	return func() (T1, T2) {
		v1, v2, err := one(shared, func(s *zsync.Session, path string) func(context.Context) (T1, T2, error) {
			return zsync.OnceValues(s, path, func(context.Context) (v1 T1, v2 T2, err error) {
				c.run(func() { v1, v2 = f() })
				return v1, v2, nil
			})
		})(context.Background())
		c.check(err)
		return v1, v2
	}
}
