package zsync

import (
	"cmp"
	"context"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// What follows writes the trace of the permits in a, one line for each znode. All
// of it is called under Semaphore.mu.

func (m *Semaphore) traceLine(a *allotment, event string, l lease) trace.Line {
	line := a.inc.TraceLine(event, trace.Semaphore, m.root, session.BaseName(l.path))
	line.Permits = l.weight
	return line
}

func (m *Semaphore) trace(a *allotment, event string, leases ...lease) {
	t := m.s.m.Trace
	if t == nil {
		return
	}
	for _, l := range leases {
		line := m.traceLine(a, event, l)
		if event != trace.Grant {
			t.Line(line)
			continue
		}
		line.Use, line.Limit = 1, m.limit.Load()
		t.Held(l.path, line)
	}
}

func (m *Semaphore) traceMove(a *allotment, from, to lease) {
	if a.lost || m.s.m.Trace == nil {
		return
	}
	line := m.traceLine(a, trace.Move, to)
	line.From, line.Limit = session.BaseName(from.path), m.limit.Load()
	m.s.m.Trace.Held(to.path, line)
}

func (m *Semaphore) traceLoss(a *allotment, why error) {
	if m.s.m.Trace == nil {
		return
	}
	for _, l := range a.leases {
		m.s.m.Trace.Lost(l.path, m.s.m.TraceLoss(m.traceLine(a, trace.Loss, l), why))
	}
}

// traced is what a tracer is told of n permits.
func (m *Semaphore) traced(n int64) func() Traced {
	return func() Traced {
		t := m.s.tracers.traced("semaphore", "acquire", m.path)
		t.Count = int(n)
		return t
	}
}

// observe tells the tracer of what m holds, if that is news: nobody can tell which
// of several permits is released, so they are one hold, from the first that is
// acquired to the last that is released. It returns what ctx becomes.
func (m *Semaphore) observe(ctx context.Context, a *allotment) context.Context {
	if a == nil || m.s.tracers.hold == nil {
		return ctx
	}
	m.mu.Lock()
	news := !a.followed
	a.followed = true
	t := m.traced(a.permits)
	m.mu.Unlock()
	if !news {
		return ctx
	}
	ctx, end := m.s.tracers.holding(ctx, t())
	m.s.m.Spawn(func() {
		// If it was lost and then released, either is right to end the wait, and
		// the loss is told.
		select {
		case <-a.gone:
		case <-a.ended:
		}
		if session.IsClosed(a.gone) {
			m.mu.Lock()
			why := a.why
			m.mu.Unlock()
			end(cmp.Or(why, a.inc.Loss()))
			return
		}
		end(nil)
	})
	return ctx
}
