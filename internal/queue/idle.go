package queue

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file makes idle consumers wait: an element that is sent to an empty queue wakes one of them.
//
// A consumer that finds no free element waits in a line, <path>-consumers. The first in the line watches
// the bell (see layout.go). It also watches the marks: when a mark is deleted, its claimed elements are
// free. A consumer that begins to skip an element or a bucket leaves the line and enters it again, at its
// end, because the next consumer may not skip that.

// othersWait reports whether another consumer waits in the line.
func (p *pump) othersWait(inc *session.Incarnation) bool {
	names, _, err := inc.Children(p.ctx, p.q.Line.Dir)
	return err == nil && len(lock.ParseChildren(names, p.q.Line.Bases...)) > 1
}

// The method `idle` enters the line and searches. If no element is free, it waits for an event, after which
// it is called again. If no consumer of `p` waits any longer and another pump waits in the line, it leaves
// the line. Then it returns as soon as a consumer of `p` waits.
func (p *pump) idle(inc *session.Incarnation) (err error) {
	q := p.q
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	if p.place == nil {
		p.claims, p.skips = 0, q.Skips.begun.Load()
		if p.place, err = q.Line.Contend(p.ctx, inc); err != nil {
			return err
		}
	}
	// The pump joins its watches before it searches, so it misses no event after the search.
	paused := znodes.ChildPath(q.dir, pausedName) // another client may delete it without a ring of the bell
	watches := make([]*conn.Watch, 3)
	for i, key := range []conn.WatchKey{{Kind: conn.WatchData, Path: q.dir}, {Kind: conn.WatchData, Path: paused}, {Kind: conn.WatchChildren, Path: q.live}} {
		watches[i] = inc.Watches.Join(key)
		defer inc.Watches.Leave(watches[i])
	}
	switch data, _, err := inc.Get(p.ctx, q.dir); {
	case session.IsNoNode(err):
		_, err = znodes.Create(p.ctx, inc, q.dir, ring(q.dir).Data)
		return err
	case err != nil:
		return err
	case !ours(data):
		return znodes.Mixed(q.m, q.dir)
	}
	if p.found, err = q.search(p.ctx, inc, finding{n: bucketSize / 2, spread: p.spread, watch: true}); err != nil || len(p.found.es) > 0 {
		return err
	}
	if p.found.paused {
		if _, _, err := inc.Get(p.ctx, paused); session.IsNoNode(err) {
			return nil
		}
	}
	p.spread = 1 // no element is free, so no consumer competes for one
	due := earlier(q.Sweep(inc), p.found.due)
	soon, cancel := context.WithTimeout(p.ctx, 5*time.Millisecond) // a fast consumer calls `next` again within this time
	defer cancel()
	switch unwanted := p.wait(soon, inc, func() bool { return p.waiting > 0 }) != nil; {
	case unwanted && p.othersWait(inc):
		p.leavePlace() // another pump waits for the next element
		return p.wait(p.ctx, inc, func() bool { return p.waiting > 0 })
	case q.Skips.begun.Load() != p.skips:
		p.leavePlace()
		return nil
	}
	return inc.AwaitAny(p.ctx, watches, due)
}

func (p *pump) leavePlace() {
	if p.place != nil {
		p.place.Leave()
		p.place = nil
	}
}
