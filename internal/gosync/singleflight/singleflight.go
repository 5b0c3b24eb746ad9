// Package singleflight has the API of golang.org/x/sync/singleflight, and calls zsync. The tests of
// the original package run against it.
package singleflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// A Group uses a [zsync.Flight] that keeps no results, so only the waiting calls share a result.
type Group struct {
	shared gosync.Shared[*zsync.Flight[string]]
}

// A Result is the result of Do, as DoChan sends it.
type Result struct {
	Val    any
	Err    error
	Shared bool
}

// Do has the behaviour of the original.
func (g *Group) Do(key string, fn func() (any, error)) (v any, err error, shared bool) { //nolint:staticcheck // the order is the model's
	all := g.shared.All(func(s *zsync.Session, path string) *zsync.Flight[string] {
		return zsync.NewFlight[string](s, path, 0, zsync.WithCodec(zsync.Raw))
	})
	var own error
	text, shared, err := all[gosync.Next(len(all))].Do(context.Background(), key, func(context.Context) (string, error) {
		v, own = fn()
		return gosync.Text(v), own
	})
	if own != nil && errors.Is(err, own) {
		err = own // zsync wraps the function's error to add the key
	}
	if text == "" {
		return nil, err, shared
	}
	return gosync.Value(text), err, shared
}

// DoChan has the behaviour of the original.
func (g *Group) DoChan(key string, fn func() (any, error)) <-chan Result {
	ch := make(chan Result, 1)
	go func() {
		v, err, shared := g.Do(key, fn)
		ch <- Result{v, err, shared}
	}()
	return ch
}

// A panicError is the value with which the original panics if the function has panicked. A Flight
// panics with the function's own value.
//
//lint:ignore U1000 the tests of the model use it
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprint(p.value) }
