package sync

import (
	"context"
	"errors"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// This file adapts zsync.WaitGroup to the API of package sync.

// A WaitGroup uses a [zsync.WaitGroup].
type WaitGroup struct {
	_      noCopy
	shared gosync.Shared[*zsync.WaitGroup]
}

func (wg *WaitGroup) one() *zsync.WaitGroup {
	return one(&wg.shared, func(s *zsync.Session, path string) *zsync.WaitGroup { return zsync.NewWaitGroup(s, path) })
}

// Add adds delta to the counter.
func (wg *WaitGroup) Add(delta int) { counted(wg.one().Add(context.Background(), delta)) }

// Done decrements the counter by one.
func (wg *WaitGroup) Done() { counted(wg.one().Done()) }

// Wait waits until the counter is zero.
func (wg *WaitGroup) Wait() { gosync.Must(wg.one().Wait(context.Background())) }

// Go runs f in a goroutine, and counts it until f returns.
func (wg *WaitGroup) Go(f func()) { gosync.Must(wg.one().Go(context.Background(), f)) }

func counted(err error) {
	if errors.Is(err, zsync.ErrNegativeCounter) {
		panic("sync: negative WaitGroup counter")
	}
	gosync.Must(err)
}
