package queue

import (
	"context"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// Consumers that find nothing free stand in a line, <path>-consumers. The first two of it are told
// of what is sent, by the bell: the data of the queue's znode, which every Send writes, and
// everybody who gives elements back. The second is there in case that the first hangs, and looks a
// moment later. So an element that is sent to an empty queue wakes two, however many are idle.
// The first also watches the marks: what a mark had claimed is free when it is gone.

// turnBase is what marks a place, before its number.
const turnBase = "turn-"

// secondAfter is how much later than the first of the line the second looks.
const secondAfter = 10 * time.Millisecond

// A place is one in the line of the idle.
type place struct {
	q    *core
	inc  *session.Incarnation
	path string
	roll *session.Roll // the newest listing, if it was not looked at

	among bool   // the first two
	ahead string // the znode of the first, if it is the second
}

// enter goes to the end of the line.
func (q *core) enter(ctx context.Context, inc *session.Incarnation) (*place, error) {
	guid := session.NewGUID()
	p := &place{q: q, inc: inc}
	var err error
	p.path, p.roll, err = inc.CreateChild(ctx, session.Dir{Path: q.dir + "-consumers"}, session.ProtectedName(guid, turnBase), guid, q.m.Owner, zk.FlagEphemeralSequential, true)
	return p, err
}

func (p *place) leave() { p.inc.Remove(p.path) }

// await waits until p is among the first two. The error is ErrVanished if somebody has deleted p.
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
		all := line.ParseChildren(roll.Names(), turnBase)
		i := slices.IndexFunc(all, func(c line.Child) bool { return c.Name == session.BaseName(p.path) })
		if p.among, p.ahead = i == 0 || i == 1, ""; i < 0 {
			return session.ErrVanished
		} else if i == 1 {
			p.ahead = session.ChildPath(dir, all[0].Name)
		}
		if p.among {
			return nil
		}
		// When one of the two right ahead goes p may be among the first two: nobody else can tell.
		if err := p.awaitEither(ctx, session.ChildPath(dir, all[i-1].Name), session.ChildPath(dir, all[i-2].Name)); err != nil {
			return err
		}
	}
	return nil
}

// awaitEither waits until one of two znodes is gone.
func (p *place) awaitEither(ctx context.Context, paths ...string) error {
	var watches []*session.Watch
	for _, path := range paths {
		watches = append(watches, p.inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: path}))
	}
	defer leaveAll(p.inc, watches)
	looks, err := p.inc.LookAtAll(ctx, paths...)
	if err != nil {
		return err
	}
	for _, l := range looks {
		if session.IsNoNode(l.Err) {
			return nil
		}
		if l.Err != nil {
			return l.Err
		}
	}
	return p.inc.AwaitAny(ctx, watches, time.Time{})
}

func leaveAll(inc *session.Incarnation, watches []*session.Watch) {
	for _, w := range watches {
		inc.Watches.Leave(w)
	}
}

// othersWait reports whether another stands in the line.
func (p *place) othersWait(ctx context.Context) bool {
	names, _, err := p.inc.Children(ctx, session.ParentPath(p.path))
	return err == nil && len(line.ParseChildren(names, turnBase)) > 1
}

// idle stands in the line until something is free, or may be: p.found says what there is.
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
		// The bell, and the marks, are watched before we look: what comes after that is told.
		watches := []*session.Watch{inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: q.dir})}
		if second {
			watches = append(watches, inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: p.place.ahead}))
		} else {
			watches = append(watches, inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: q.live}))
		}
		found, due, err := p.lookAgain(inc)
		switch {
		case err == nil && !found && !p.wanted(inc) && p.place.othersWait(p.ctx):
			found = true
			p.leavePlace() // somebody else waits for what comes next
		case err == nil && !found:
			err = inc.AwaitAny(p.ctx, watches, due)
			p.rung = true
		}
		leaveAll(inc, watches)
		if err != nil || found {
			return err
		}
	}
}

// lookAgain searches behind the watches of one who is idle, and returns when to look again in any
// case.
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
			return false, time.Now(), nil // we are the first
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
	p.spread = 1 // nobody has anything to make way for
	q.sweeper.Sweep(inc, 0)
	return false, earlier(q.sweeper.Next(), p.found.due), nil
}

func (p *pump) leavePlace() {
	if p.place != nil {
		p.place.leave()
		p.place = nil
	}
}
