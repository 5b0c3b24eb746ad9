package queue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// This file makes idle consumers wait: an element that is sent to an empty queue wakes two of them.
//
// A consumer that finds no free element waits in a line, <path>-consumers. The first two in the
// line watch the bell (see layout.go). The second consumer searches a moment after the first, in case
// the first hangs. The first consumer also watches the marks: when a mark is deleted, its claimed
// elements are free.

const (
	turnBase    = "turn-"               // the name of a place ends in this and a number
	secondAfter = 10 * time.Millisecond // the second consumer searches later than the first by this time
)

// The method `enter` joins the line at its end.
func (p *pump) enter(inc *session.Incarnation) error {
	guid := session.NewGUID()
	dir := session.Dir{Path: p.q.dir + "-consumers"}
	made := session.Creation{Dir: dir, Paths: []string{session.ChildPath(dir.Path, session.ProtectedName(guid, turnBase))}, GUID: guid, Data: p.q.m.Owner, List: true}
	err := inc.CreateEphemeral(p.ctx, &made)
	if err == nil {
		p.place, p.roll, p.among, p.before, p.claims = made.Path, made.Roll, false, "", 0
	}
	return err
}

// awaitPlace waits until the place is among the first two. The error is ErrVanished if another client
// has deleted the place.
func (p *pump) awaitPlace(inc *session.Incarnation) (err error) {
	dir := session.ParentPath(p.place)
	for !p.among {
		roll := p.roll
		if p.roll = nil; roll == nil {
			if roll, err = inc.Roll(p.ctx, dir); session.IsNoNode(err) {
				return session.ErrVanished
			} else if err != nil {
				return err
			}
		}
		all := lock.ParseChildren(roll.Names(), turnBase)
		i := slices.IndexFunc(all, func(c lock.Child) bool { return c.Name == session.BaseName(p.place) })
		if p.among, p.before = i == 0 || i == 1, ""; i < 0 {
			return session.ErrVanished
		} else if i == 1 {
			p.before = session.ChildPath(dir, all[0].Name)
		}
		if p.among {
			return nil
		}
		// While both places directly ahead exist, this place is not among the first two.
		paths := pathsOf(dir, all[i-2:i], func(c lock.Child) string { return c.Name })
		var watches []*conn.Watch
		for _, path := range paths {
			watches = append(watches, inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: path}))
		}
		_, errs, err := inc.LookAtAll(p.ctx, paths...)
		err = cmp.Or(append(errs, err)...)
		if err == nil {
			err = inc.AwaitAny(p.ctx, watches, time.Time{})
		}
		if leaveAll(inc, watches); err != nil && !session.IsNoNode(err) {
			return err
		}
	}
	return nil
}

func leaveAll(inc *session.Incarnation, watches []*conn.Watch) {
	for _, w := range watches {
		inc.Watches.Leave(w)
	}
}

// othersWait reports whether another consumer waits in the line.
func (p *pump) othersWait(inc *session.Incarnation) bool {
	names, _, err := inc.Children(p.ctx, session.ParentPath(p.place))
	return err == nil && len(lock.ParseChildren(names, turnBase)) > 1
}

// The method `idle` waits in the line until a search has put free elements into p.found. If no
// consumer of `p` waits any longer and another pump waits in the line, it leaves the line. Then it
// returns without elements as soon as a consumer of `p` waits.
func (p *pump) idle(inc *session.Incarnation) error {
	q := p.q
	if p.place == "" {
		if err := p.enter(inc); err != nil {
			return err
		}
	}
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	for {
		if err := p.awaitPlace(inc); err != nil {
			p.leavePlace(inc)
			return err
		}
		if p.before != "" && p.rung {
			if err := session.Sleep(p.ctx, secondAfter); err != nil {
				return err
			}
		}
		// The pump joins its watches before it searches, so it misses no event after the search.
		watches := []*conn.Watch{
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: q.dir}),
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: session.ChildPath(q.dir, pausedName)}), // another client may delete it without a ring of the bell
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: cmp.Or(p.before, q.live)}),
		}
		found, due, err := p.lookAgain(inc)
		if err == nil && !found {
			soon, cancel := context.WithTimeout(p.ctx, 5*time.Millisecond) // a fast consumer calls `next` again within this time
			unwanted := p.wait(soon, inc, func() bool { return p.waiting > 0 }) != nil
			cancel()
			if found = unwanted && p.othersWait(inc); found {
				p.leavePlace(inc) // another pump waits for the next element
				err = p.wait(p.ctx, inc, func() bool { return p.waiting > 0 })
			} else {
				err = inc.AwaitAny(p.ctx, watches, due)
				p.rung = true
			}
		}
		leaveAll(inc, watches)
		if err != nil || found {
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
	if p.before != "" {
		if _, _, err := inc.Children(p.ctx, p.before); session.IsNoNode(err) {
			p.among = false
			return false, time.Now(), nil // this place is the first now
		} else if err != nil {
			return false, due, err
		}
	}
	if p.found, err = q.search(p.ctx, inc, finding{n: bucketSize / 2, spread: p.spread, watch: p.before == ""}); err != nil {
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

func (p *pump) leavePlace(inc *session.Incarnation) {
	if p.place != "" {
		inc.Remove(p.place)
		p.place = ""
	}
}
