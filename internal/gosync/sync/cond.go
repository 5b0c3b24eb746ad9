package sync

import (
	"context"
	"sync"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// This file adapts zsync.Cond to the API of package sync.

// A Cond uses a [zsync.Cond].
type Cond struct {
	_      noCopy
	L      Locker
	shared gosync.Shared[*zsync.Cond]
}

// NewCond returns a Cond with the lock l.
func NewCond(l Locker) *Cond { return &Cond{L: l} }

func (c *Cond) one() *zsync.Cond {
	return one(&c.shared, func(s *zsync.Session, path string) *zsync.Cond { return zsync.NewCond(s, path, locker{c.L}) })
}

// Wait unlocks c.L, waits for Signal or Broadcast, and locks c.L again.
func (c *Cond) Wait() { gosync.Must(c.one().Wait(context.Background())) }

// Signal wakes one waiter.
func (c *Cond) Signal() { gosync.Must(c.one().Signal(context.Background())) }

// Broadcast wakes all waiters.
func (c *Cond) Broadcast() { gosync.Must(c.one().Broadcast(context.Background())) }

// The type `locker` makes a Locker of package sync a zsync.Locker.
type locker struct{ sync.Locker }

func (l locker) Lock(context.Context) error { l.Locker.Lock(); return nil }
func (l locker) Unlock() error              { l.Locker.Unlock(); return nil }
