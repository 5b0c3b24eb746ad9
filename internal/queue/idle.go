package queue

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
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

// The method `idle` waits in the line until a search has put free elements into p.found. If no
// consumer of `p` waits any longer and another pump waits in the line, it leaves the line. Then it
// returns without elements as soon as a consumer of `p` waits.
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
	for {
		// The pump joins its watches before it searches, so it misses no event after the search.
		watches := []*conn.Watch{
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: q.dir}),
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: session.ChildPath(q.dir, pausedName)}), // another client may delete it without a ring of the bell
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: q.live}),
		}
		over, due, err := p.lookAgain(inc)
		if err == nil && !over {
			soon, cancel := context.WithTimeout(p.ctx, 5*time.Millisecond) // a fast consumer calls `next` again within this time
			unwanted := p.wait(soon, inc, func() bool { return p.waiting > 0 }) != nil
			cancel()
			switch over = true; {
			case unwanted && p.othersWait(inc):
				p.leavePlace() // another pump waits for the next element
				err = p.wait(p.ctx, inc, func() bool { return p.waiting > 0 })
			case q.Skips.begun.Load() != p.skips:
				p.leavePlace()
			default:
				over, err = false, inc.AwaitAny(p.ctx, watches, due)
			}
		}
		for _, w := range watches {
			inc.Watches.Leave(w)
		}
		if err != nil || over {
			return err
		}
	}
}

// lookAgain sets the watches of an idle pump, and then searches. The pump must search again at the
// time `due`, even without an event.
func (p *pump) lookAgain(inc *session.Incarnation) (found bool, due time.Time, err error) {
	q := p.q
	data, _, err := inc.Get(p.ctx, q.dir)
	switch {
	case session.IsNoNode(err):
		_, err = inc.Create(p.ctx, q.dir, ring(q.dir).Data)
		return false, time.Now(), err
	case err != nil:
		return false, due, err
	case !ours(data):
		return false, due, q.m.Mixed(q.dir)
	}
	if p.found, err = q.search(p.ctx, inc, finding{n: bucketSize / 2, spread: p.spread, watch: true}); err != nil {
		return false, due, err
	}
	if len(p.found.es) > 0 {
		return true, due, nil
	}
	if p.found.paused {
		if _, _, err := inc.Get(p.ctx, session.ChildPath(q.dir, pausedName)); session.IsNoNode(err) {
			return false, time.Now(), nil
		}
	}
	p.spread = 1 // no element is free, so no consumer competes for one
	return false, earlier(q.Sweep(inc), p.found.due), nil
}

func (p *pump) leavePlace() {
	if p.place != nil {
		p.place.Leave()
		p.place = nil
	}
}
