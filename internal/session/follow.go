package session

import (
	"context"
	"maps"
	"sync"
)

// A follower keeps the children of one znode, with their data, as they all were
// at one moment, and learns of every change, within one ZooKeeper session.
//
// It has a watch on the list and one on each child. What it hands out is a
// consistent snapshot, for this reason. Each part was read with its watch set,
// so it is current until the watch fires. The server sends the events of a
// session and its replies in the order of the transactions that they are about,
// so an event that came before the last reply has been seen when that reply is.
// If then no watch has fired, every part was current at the moment of that last
// reply, which is one moment for all of them.
//
// No answer is older than one before: a server that has not seen what this
// session has read refuses its connection. An event is only ever taken as a
// reason to read again, so a connection that is lost between an event and the
// read costs nothing but time.
type follower struct {
	inc *Incarnation
	dir string

	list  *Watch              // on the list of children, or for dir to be made; nil before the first look
	parts map[string]followed // by the name of the child

	mu     sync.Mutex
	relist bool                // the list may have changed; guarded by mu
	stale  map[string]struct{} // children that may have changed; guarded by mu
	bell   chan struct{}       // has a token when relist or stale was set
}

// A followed is a child as it was read, and the watch that was set with it.
type followed struct {
	Node
	w *Watch
}

// written tells the states of a child apart: which transactions made and wrote it, and when. The
// time differs where the servers have lost their data, and zxids begin again.
type written struct{ czxid, mzxid, mtime int64 }

// FollowDir calls tell with each snapshot of the children of dir that differs
// from the one before, beginning with the present one, until ctx ends or tell
// returns an error; it goes on through lost sessions. While dir does not exist
// it has no children. tell may give up, and return false, when it gets something
// from changed: then it is called again with what is newer.
//
// If confirm, tell is also called with the first snapshot behind each connection
// that was lost, even if nothing has changed, and not while there is none: lost is closed
// then, at which tell gives up too. Otherwise lost is closed when the session has ended:
// what was read in it may be old by the time that it is told.
func (m *Manager) FollowDir(ctx context.Context, dir string, confirm bool, tell func(nodes map[string]Node, changed, lost <-chan struct{}) (told bool, err error)) error {
	var last map[string]written
	return m.During(ctx, func(inc *Incarnation) error {
		f := &follower{inc: inc, dir: dir, parts: make(map[string]followed), stale: make(map[string]struct{}), relist: true, bell: make(chan struct{}, 1)}
		defer f.close()
		// The first snapshot of all must not be older than the call. Those of a
		// later session are not older than what was told before anyway: that
		// session was itself made by a later transaction, which its server has.
		lost := f.connectionLost(confirm)
		if err := inc.Sync(ctx, dir); err != nil {
			return err
		}
		unconfirmed := confirm
		for {
			if err := f.catchUp(ctx); err != nil {
				return err
			}
			if IsClosed(lost) {
				// What was read may be of before that. What has changed since is told
				// ahead of every reply on the next connection, as are our watches set;
				// and that shows nothing older than the servers had when it was made.
				if err := inc.Connection(ctx); err != nil {
					return err
				}
				lost, unconfirmed = f.connectionLost(confirm), true
				if err := inc.Sync(ctx, dir); err != nil {
					return err
				}
				continue
			}
			if now := f.versions(); last == nil || unconfirmed || !maps.Equal(now, last) {
				told, err := tell(f.snapshot(), f.bell, lost)
				if err != nil {
					return err
				}
				if !told {
					// The token was taken by tell, or the connection is lost.
					continue
				}
				last, unconfirmed = now, false
			}
			// Whichever is picked when several are ready, nothing is lost: the
			// flags behind the bell stay set until they have been looked at.
			select {
			case <-f.bell:
			case <-lost:
			case <-ctx.Done():
				return CtxErr(ctx)
			case <-inc.Ctx.Done():
				return ErrEnded
			}
		}
	})
}

// connectionLost returns a channel that is closed when the present connection is
// lost or, if that is of no interest, the session.
func (f *follower) connectionLost(interest bool) <-chan struct{} {
	if !interest {
		return f.inc.Ctx.Done()
	}
	return f.inc.Disconnection()
}

// maxRounds is how often a follower reads again before it tells what it has
// although something is changing still.
const maxRounds = 8

// catchUp reads what may have changed until no watch has fired any more, so that
// all parts are of one moment. What has changed once meanwhile is read in every
// round from then on: of many that change all the time, others would change in
// each round trip, but hardly any within a round. Where one does even so there
// would be no end: then the parts are of the last few round trips.
func (f *follower) catchUp(ctx context.Context) error {
	hot := make(map[string]struct{})
	for range maxRounds {
		f.mu.Lock()
		relist, stale := f.relist, f.stale
		f.relist, f.stale = false, make(map[string]struct{})
		f.mu.Unlock()
		if !relist && len(stale) == 0 {
			return nil
		}
		maps.Copy(hot, stale)
		maps.Copy(stale, hot)
		if relist {
			missing, err := f.readList(ctx)
			if err != nil {
				return err
			}
			for _, name := range missing {
				stale[name] = struct{}{}
			}
		}
		if err := f.readParts(ctx, stale); err != nil {
			return err
		}
	}
	return nil
}

// readList lists the children with a watch, forgets those that are gone, and
// returns those that are not known yet.
func (f *follower) readList(ctx context.Context) (missing []string, err error) {
	names, err := f.listed(ctx, WatchChildren)
	if IsNoNode(err) {
		if names, err = f.listed(ctx, WatchExists); IsNoNode(err) {
			names, err = nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
		if _, ok := f.parts[name]; !ok {
			missing = append(missing, name)
		}
	}
	for name := range f.parts {
		if !there[name] {
			f.drop(name)
		}
	}
	return missing, nil
}

// listed lists dir with a watch of this kind: that on the children is not to be
// had while there is no dir.
func (f *follower) listed(ctx context.Context, kind watchKind) ([]string, error) {
	if f.list != nil {
		f.inc.Watches.leaveUntold(f.list, f)
	}
	f.list = f.inc.Watches.Join(WatchKey{kind, f.dir})
	f.inc.Watches.Tell(f.list, f, func() { f.ring(func() { f.relist = true }) })
	if kind == WatchExists {
		stat, err := f.inc.Exists(ctx, f.dir)
		if err != nil || stat != nil {
			// Made in between: the list must be read, with its own watch.
			f.ring(func() { f.relist = true })
		}
		return nil, err
	}
	names, _, err := f.inc.Children(ctx, f.dir)
	return names, err
}

// readParts reads children, each with a watch.
func (f *follower) readParts(ctx context.Context, names map[string]struct{}) error {
	list := make([]string, 0, len(names))
	for name := range names {
		list = append(list, name)
	}
	parts := make([]followed, len(list))
	for i, name := range list {
		f.drop(name)
		w := f.inc.Watches.Join(WatchKey{WatchData, ChildPath(f.dir, name)})
		f.inc.Watches.Tell(w, f, func() { f.ring(func() { f.stale[name] = struct{}{} }) })
		parts[i].w = w
	}
	err := Parallel(len(list), func(i int) error {
		data, stat, err := f.inc.Get(ctx, ChildPath(f.dir, list[i]))
		if IsNoNode(err) {
			// Deleted since it was listed: the watch on the list has fired.
			return nil
		}
		parts[i].Node = Node{data, stat}
		return err
	})
	for i, name := range list {
		if parts[i].Stat == nil {
			f.inc.Watches.leaveUntold(parts[i].w, f)
			continue
		}
		f.parts[name] = parts[i]
	}
	return err
}

// ring sets a flag and wakes the follower. It is called with Watches.Mu held too.
func (f *follower) ring(set func()) {
	f.mu.Lock()
	set()
	f.mu.Unlock()
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

func (f *follower) drop(name string) {
	if p, ok := f.parts[name]; ok {
		f.inc.Watches.leaveUntold(p.w, f)
		delete(f.parts, name)
	}
}

// close leaves every watch.
func (f *follower) close() {
	for name := range f.parts {
		f.drop(name)
	}
	if f.list != nil {
		f.inc.Watches.leaveUntold(f.list, f)
	}
}

// versions tells snapshots apart: also one in which a child was deleted and
// made again, whose counter is the same.
func (f *follower) versions() map[string]written {
	vs := make(map[string]written, len(f.parts))
	for name, p := range f.parts {
		vs[name] = written{p.Stat.Czxid, p.Stat.Mzxid, p.Stat.Mtime}
	}
	return vs
}

func (f *follower) snapshot() map[string]Node {
	nodes := make(map[string]Node, len(f.parts))
	for name, p := range f.parts {
		nodes[name] = p.Node
	}
	return nodes
}
