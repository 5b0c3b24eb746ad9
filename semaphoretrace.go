package zsync

import (
	"context"

	"github.com/zsync/zsync/internal/line"
)

// traced is what a tracer is told of n permits.
func (m *Semaphore) traced(n int64) func() Op {
	return func() Op {
		t := m.s.tracers.traced("semaphore", "acquire", m.path)
		t.Count = int(n)
		return t
	}
}

// observe tells the tracer of what m holds, if that is news: nobody can tell which
// of several permits is released, so they are one hold, from the first that is
// acquired to the last that is released. It returns what ctx becomes.
func (m *Semaphore) observe(ctx context.Context, a *line.Permits) context.Context {
	if a == nil || m.s.tracers.tracer == nil {
		return ctx
	}
	m.mu.Lock()
	news := m.followed != a
	m.followed = a
	m.mu.Unlock()
	if !news {
		return ctx
	}
	ctx, end := m.s.tracers.holding(ctx, m.traced(a.Held())())
	m.s.m.Spawn(func() {
		// If it was lost and then released, either is right to end the wait, and
		// the loss is told.
		select {
		case <-a.Lost():
		case <-a.Left():
		}
		end(a.Loss())
	})
	return ctx
}
