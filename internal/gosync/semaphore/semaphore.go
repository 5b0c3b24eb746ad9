// Package semaphore has the API of golang.org/x/sync/semaphore, and calls zsync. The tests of the
// original package run against it.
package semaphore

import (
	"context"
	"errors"
	"sync"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// A Weighted uses a [zsync.Semaphore].
type Weighted struct {
	limit  int64
	shared gosync.Shared[*zsync.Semaphore]

	mu   sync.Mutex
	held []int64 // by session: the number of its permits; guarded by mu
}

// NewWeighted returns a Weighted with n permits.
func NewWeighted(n int64) *Weighted { return &Weighted{limit: n} }

func (w *Weighted) all() []*zsync.Semaphore {
	return w.shared.All(func(s *zsync.Session, path string) *zsync.Semaphore {
		return zsync.NewSemaphore(s, path, w.limit)
	})
}

// Acquire acquires n permits. For 0 permits it does not call zsync, which does not allow that
// number.
func (w *Weighted) Acquire(ctx context.Context, n int64) error {
	if n == 0 {
		return ctx.Err()
	}
	all := w.all()
	i := gosync.Next(len(all))
	err := all[i].Acquire(ctx, n)
	switch {
	case err == nil:
		w.has(i, n)
		return nil
	case errors.Is(err, zsync.ErrInvalid) && n > w.limit:
		// zsync refuses to acquire more than the limit, but the original waits for the end of ctx.
		<-ctx.Done()
		return ctx.Err()
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	}
	gosync.Must(err)
	return nil
}

// TryAcquire tries to acquire n permits.
func (w *Weighted) TryAcquire(n int64) bool {
	all := w.all()
	i := gosync.Next(len(all))
	ok, err := all[i].TryAcquire(context.Background(), n)
	gosync.Must(err)
	if ok {
		w.has(i, n)
	}
	return ok
}

func (w *Weighted) has(session int, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = make([]int64, len(w.all()))
	}
	w.held[session] += n
}

// Release releases n permits, of any sessions that hold some.
func (w *Weighted) Release(n int64) {
	for session, part := range w.share(n) {
		err := w.all()[session].Release(part)
		if errors.Is(err, zsync.ErrNotLocked) {
			panic("semaphore: released more than held")
		}
		gosync.Must(err)
	}
}

// The method `share` returns how many of n permits each session releases. If the sessions hold
// fewer than n, the first session also gets the excess, so that its Release fails.
func (w *Weighted) share(n int64) map[int]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	parts := make(map[int]int64)
	for session := range w.held {
		if part := min(n, w.held[session]); part > 0 {
			parts[session] = part
			w.held[session] -= part
			n -= part
		}
	}
	if n > 0 {
		parts[0] += n
	}
	return parts
}
