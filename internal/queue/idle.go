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

// This file makes idle consumers wait. An element that is sent to an empty queue wakes two of these
// consumers, however many are idle. pump.go claims elements.
//
// A consumer that finds no free element waits in a line, <path>-consumers. The first two in the
// line watch the bell, the data of the queue's znode. Every Send writes the bell, and so does every
// client that returns elements. The second consumer searches a moment after the first, in case the
// first hangs. The first consumer also watches the marks: when a mark is deleted, its claimed
// elements are free.

// The name of a place ends in turnBase and a number.
const turnBase = "turn-"

// The second consumer in the line searches later than the first, by the time secondAfter.
const secondAfter = 10 * time.Millisecond

// The type `place` is a position in the line of idle consumers.
type place struct {
	inc  *session.Incarnation
	path string
	roll *session.Roll // the listing that the creation has returned, or nil after `await` has used the listing

	among bool   // the place is among the first two
	ahead string // znode of the first place, if this is the second
}

// The method `enter` joins the line at its end.
func (q *core) enter(ctx context.Context, inc *session.Incarnation) (*place, error) {
	guid := session.NewGUID()
	dir := session.Dir{Path: q.dir + "-consumers"}
	made := session.Creation{Dir: dir, Paths: []string{session.ChildPath(dir.Path, session.ProtectedName(guid, turnBase))}, GUID: guid, Data: q.m.Owner, List: true}
	err := inc.CreateEphemeral(ctx, &made)
	return &place{inc: inc, path: made.Path, roll: made.Roll}, err
}

// The method `await` waits until `p` is among the first two places. The error is ErrVanished if
// another client has deleted p.
func (p *place) await(ctx context.Context) (err error) {
	dir := session.ParentPath(p.path)
	for !p.among {
		roll := p.roll
		if p.roll = nil; roll == nil {
			if roll, err = p.inc.Roll(ctx, dir); session.IsNoNode(err) {
				return session.ErrVanished
			} else if err != nil {
				return err
			}
		}
		all := lock.ParseChildren(roll.Names(), turnBase)
		i := slices.IndexFunc(all, func(c lock.Child) bool { return c.Name == session.BaseName(p.path) })
		if p.among, p.ahead = i == 0 || i == 1, ""; i < 0 {
			return session.ErrVanished
		} else if i == 1 {
			p.ahead = session.ChildPath(dir, all[0].Name)
		}
		if p.among {
			return nil
		}
		// While both places directly ahead exist, p is not among the first two. So p waits until either
		// of these two is deleted, and watches no others.
		paths := pathsOf(dir, all[i-2:i], func(c lock.Child) string { return c.Name })
		var watches []*conn.Watch
		for _, path := range paths {
			watches = append(watches, p.inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: path}))
		}
		_, errs, err := p.inc.LookAtAll(ctx, paths...)
		err = cmp.Or(append(errs, err)...)
		if err == nil {
			err = p.inc.AwaitAny(ctx, watches, time.Time{})
		}
		if leaveAll(p.inc, watches); err != nil && !session.IsNoNode(err) {
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
func (p *place) othersWait(ctx context.Context) bool {
	names, _, err := p.inc.Children(ctx, session.ParentPath(p.path))
	return err == nil && len(lock.ParseChildren(names, turnBase)) > 1
}

// The method `idle` waits in the line until a search has put free elements into p.found. If no
// consumer of `p` waits any longer and another pump waits in the line, it leaves the line. Then it
// returns without elements as soon as a consumer of `p` waits.
func (p *pump) idle(inc *session.Incarnation) (err error) {
	q := p.q
	if p.place == nil {
		if p.place, err = q.enter(p.ctx, inc); err != nil {
			p.place = nil
			return err
		}
		p.claims = 0
	}
	q.m.Waiters.Add(1)
	defer q.m.Waiters.Add(-1)
	for {
		if err := p.place.await(p.ctx); err != nil {
			p.leavePlace()
			return err
		}
		second := p.place.ahead != ""
		if second && p.rung {
			if err := session.Sleep(p.ctx, secondAfter); err != nil {
				return err
			}
		}
		// The pump joins its watches before it searches, so it misses no event after the search.
		paused := session.ChildPath(q.dir, pausedName)
		watches := []*conn.Watch{
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: q.dir}),
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: paused}), // another client may delete it without a ring of the bell
			inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: cmp.Or(p.place.ahead, q.live)}),
		}
		found, due, err := p.lookAgain(inc)
		if err == nil && p.found != nil && p.found.paused {
			if _, _, err := inc.Get(p.ctx, paused); session.IsNoNode(err) {
				due = time.Now()
			}
		}
		if err == nil && !found {
			soon, cancel := context.WithTimeout(p.ctx, 5*time.Millisecond) // a fast consumer calls `next` again within this time
			unwanted := p.wait(soon, inc, func() bool { return p.waiting > 0 }) != nil
			cancel()
			if found = unwanted && p.place.othersWait(p.ctx); found {
				p.leavePlace() // another pump waits for the next element
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
	q, ahead := p.q, p.place.ahead
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
	if ahead != "" {
		if _, _, err := inc.Children(p.ctx, ahead); session.IsNoNode(err) {
			p.place.among = false
			return false, time.Now(), nil // this place is the first now
		} else if err != nil {
			return false, due, err
		}
	}
	if p.found, err = q.search(p.ctx, inc, quest{n: bucketSize / 2, spread: p.spread, watch: ahead == ""}); err != nil {
		return false, due, err
	}
	if len(p.found.es) > 0 {
		return true, due, nil
	}
	p.spread = 1 // no element is free, so no consumer competes for one
	return false, earlier(q.Sweep(inc), p.found.due), nil
}

func (p *pump) leavePlace() {
	if p.place != nil {
		p.place.inc.Remove(p.place.path)
		p.place = nil
	}
}
