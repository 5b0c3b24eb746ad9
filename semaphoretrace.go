package zsync

import (
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
