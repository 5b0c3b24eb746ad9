// Package singleflight looks like golang.org/x/sync/singleflight to its tests,
// and is zsync.
package singleflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// A Group is a [zsync.Flight] that keeps no results: those share one who have
// waited for it.
type Group struct {
	shared gosync.Shared[*zsync.Flight[string]]
}

// A Result is what DoChan sends.
type Result struct {
	Val    any
	Err    error
	Shared bool
}

// Do is that of the model.
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
		err = own // which zsync wraps, to say of which key
	}
	if text == "" {
		return nil, err, shared
	}
	return gosync.Value(text), err, shared
}

// DoChan is that of the model.
func (g *Group) DoChan(key string, fn func() (any, error)) <-chan Result {
	ch := make(chan Result, 1)
	go func() {
		v, err, shared := g.Do(key, fn)
		ch <- Result{v, err, shared}
	}()
	return ch
}

// A panicError is what the model panics with for a function that has panicked.
// A Flight lets the function's own panic go on.
//
//lint:ignore U1000 the tests of the model use it
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprint(p.value) }
