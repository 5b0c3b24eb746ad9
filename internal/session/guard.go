package session

import (
	"slices"
	"sync"
	"time"
)

// A Guard watches znodes of unique names that are held through one session, and
// tells of each that somebody else has deleted. What is held for long costs no
// goroutine; what is held for a moment costs no request.
//
// A watch is set by a listing of the znode's children, of which an ephemeral znode
// has none: so it fires when the znode is deleted, and where that has happened
// already it is not set. The listing comes behind the create that was answered, in
// the same session, which reads nothing from before that: so what it does not find
// was deleted since. The same goes for a deletion while there is no connection:
// the watch is set again ahead of all else, and the server tells what was missed.
//
// What is about to be deleted here is dropped first, under the lock under which
// all is told. So that it is gone is told of nobody's own deletion.
type Guard struct {
	inc  *Incarnation
	gone func(path string)

	mu    sync.Mutex
	posts map[string]*post
	young []*post     // those whose znodes are there, and not watched yet, in order; guarded by mu
	timer *time.Timer // if not nil, looks at them; guarded by mu
}

// A post is the guard of one znode.
type post struct {
	path  string
	due   time.Time // when it is to be watched
	watch *Watch    // if not nil, it is joined; guarded by Guard.mu
	over  bool      // guarded by Guard.mu
}

// guardAfter is how long a znode is held before it is watched.
const guardAfter = 10 * time.Millisecond

// LookAgainAfter is how long it takes until something that is held is looked at again where the
// servers have refused that: they may allow it later.
const LookAgainAfter = time.Minute

// NewGuard returns a Guard that calls gone, without locks and in a goroutine of its
// own, for what is deleted. It may have been dropped meanwhile.
func (inc *Incarnation) NewGuard(gone func(path string)) *Guard {
	return &Guard{inc: inc, gone: gone, posts: make(map[string]*post)}
}

// Add guards znodes that have been made.
func (g *Guard) Add(paths ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, path := range paths {
		p := &post{path: path}
		g.posts[path] = p
		g.ageLocked(p)
	}
	g.waitLocked()
}

// Expect guards a znode that is being made: from when made is called, which does
// not wait, and does nothing if the znode is dropped by then.
func (g *Guard) Expect(path string) (made func()) {
	p := &post{path: path}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.posts[path] = p
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ageLocked(p)
		g.waitLocked()
	}
}

// ageLocked has p, whose znode is there, be looked at when it has been held for a while.
func (g *Guard) ageLocked(p *post) {
	p.due = time.Now().Add(guardAfter)
	g.young = append(g.young, p)
}

// Drop ends the guard of what is about to be deleted. gone is to be called when it
// has been, and does not wait: until then the watches stay, so that none is removed
// while it is about to fire.
func (g *Guard) Drop(paths ...string) (gone func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var left []*Watch
	for _, path := range paths {
		p := g.posts[path]
		if p == nil {
			continue
		}
		p.over = true
		delete(g.posts, path)
		if p.watch != nil {
			g.inc.Watches.Untell(p.watch, p)
			left = append(left, p.watch)
		}
	}
	return func() {
		for _, w := range left {
			g.inc.Watches.Leave(w)
		}
	}
}

// waitLocked has the young looked at when the first of them is due.
func (g *Guard) waitLocked() {
	g.young = slices.DeleteFunc(g.young, func(p *post) bool { return p.over })
	if g.timer == nil && len(g.young) > 0 {
		g.timer = time.AfterFunc(time.Until(g.young[0].due), g.rise)
	}
}

// rise looks at those that are due.
func (g *Guard) rise() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = nil
	now := time.Now()
	i := 0
	for i < len(g.young) && !now.Before(g.young[i].due) {
		i++
	}
	due := slices.Clone(g.young[:i])
	g.young = slices.Clone(g.young[i:])
	g.waitLocked()
	if len(due) > 0 {
		g.inc.Manager.Spawn(func() { g.look(due) })
	}
}

// look sets the watches of posts, all in one round trip.
func (g *Guard) look(posts []*post) {
	g.mu.Lock()
	posts = slices.DeleteFunc(posts, func(p *post) bool { return p.over })
	for _, p := range posts {
		p.watch = g.inc.Watches.Join(WatchKey{WatchChildren, p.path})
	}
	g.mu.Unlock()
	if len(posts) == 0 {
		return
	}
	var reads []*pending[listing]
	err := g.inc.retryAll(g.inc.Ctx, func(b *Batch) {
		reads = nil
		for _, p := range posts {
			reads = append(reads, add(b, childrenCall(p.path)))
		}
	})
	if err != nil {
		return // the session has ended: that is told otherwise
	}
	for i, p := range posts {
		switch l := reads[i]; {
		case IsNoNode(l.err):
			g.tell(p)
		case l.err != nil:
			// It may not be read now. Whoever deletes it here finds out, or another look.
			g.inc.Manager.Log.Debug("zsync: cannot watch what is held", "path", p.path, "err", l.err)
			time.AfterFunc(LookAgainAfter, func() { g.inc.Manager.Spawn(func() { g.fired(p) }) })
		case l.val.stat.EphemeralOwner != g.inc.ID.Load():
			g.tell(p) // the same name in another session is somebody's copy
		default:
			g.mu.Lock()
			if !p.over {
				// If it has fired meanwhile, this is at once.
				g.inc.Watches.Tell(p.watch, p, func() { g.inc.Manager.Spawn(func() { g.fired(p) }) })
			}
			g.mu.Unlock()
		}
	}
}

// fired is told that the watch of p has fired. A server that ends the session deletes
// what was held in it, and may tell that before the end: so it looks again, which has
// no answer then, and the end is told.
func (g *Guard) fired(p *post) {
	g.mu.Lock()
	over := p.over
	if !over {
		g.inc.Watches.Leave(p.watch)
		p.watch = nil
	}
	g.mu.Unlock()
	if !over {
		g.look([]*post{p})
	}
}

// tell tells that the znode of p is gone.
func (g *Guard) tell(p *post) {
	g.mu.Lock()
	over := p.over
	g.mu.Unlock()
	if !over {
		g.gone(p.path)
	}
}
