package zsync

import (
	"context"
	"errors"

	"github.com/zsync/zsync/internal/codec"
)

// An Int64 is an integer that processes share: [atomic.Int64] across processes.
//
//	n := zsync.NewInt64(s, "/counters/orders")
//	id, err := n.Add(ctx, 1) // no two processes get the same
//	last, err := n.Load(ctx)
//
// Operations are linearizable. A new Int64 is 0. Add and Swap wrap around, as in Go. If the data is
// no number, all methods but Store fail.
//
// # Loss
//
// No process holds an Int64, so a lost session loses nothing.
//
// # Cost
//
// Load and Store take 1 round trip; Add, Swap and CompareAndSwap 2 or more.
//
// # Znodes
//
// The number is the data of the persistent znode path, in decimal as in kazoo, or in eight bytes
// ([BigEndian]) as in Curator.
type Int64 struct {
	v Value[int64]
}

// NewInt64 returns the Int64 at path.
func NewInt64(s *Session, path string, opts ...ValueOption) *Int64 {
	n := new(Int64)
	n.v.init(s, path, opts)
	if n.v.codec == JSON {
		n.v.codec = codec.Number
	}
	return n
}

// Path returns the path that n was made with.
func (n *Int64) Path() string { return n.v.path }

// Load returns the number, at least as new as the moment of the call.
func (n *Int64) Load(ctx context.Context) (int64, error) {
	x, _, err := n.v.Load(ctx)
	if errors.Is(err, ErrNoValue) {
		err = nil
	}
	return x, err
}

// Store sets the number to x, whatever it was before.
func (n *Int64) Store(ctx context.Context, x int64) error {
	return n.v.Store(ctx, x)
}

// Add adds delta to the number and returns the sum.
func (n *Int64) Add(ctx context.Context, delta int64) (int64, error) {
	x, err := n.v.Update(ctx, func(x int64) (int64, error) { return x + delta, nil })
	return x, opError("add", n.v.path, plainError(err))
}

// Swap sets the number to x and returns the old number.
func (n *Int64) Swap(ctx context.Context, x int64) (old int64, err error) {
	_, err = n.v.Update(ctx, func(was int64) (int64, error) {
		old = was
		return x, nil
	})
	if err != nil {
		return 0, opError("swap", n.v.path, plainError(err))
	}
	return old, nil
}

// CompareAndSwap stores x if the number equals old. It reports whether it did.
func (n *Int64) CompareAndSwap(ctx context.Context, old, x int64) (bool, error) {
	other := errors.New("another number")
	_, err := n.v.Update(ctx, func(was int64) (int64, error) {
		if was != old {
			return 0, other
		}
		return x, nil
	})
	if errors.Is(err, other) {
		return false, nil // Update has compared a number that is not older than the call
	}
	return err == nil, opError("compareandswap", n.v.path, plainError(err))
}
