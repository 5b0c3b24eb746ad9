package znodes

// This file maintains a snapshot of the children of a znode, with their data.

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// The type `follower` maintains a snapshot of the children of one znode, with their data, within
// one ZooKeeper session.
//
// The follower has a watch on the list, and a watch on each child. A snapshot is consistent, for
// this reason. Each part (the list, or a child) was read with its watch set. So the part is current
// until its watch fires. A server sends the events and replies of a session in the order of the
// transactions that they show. So when the last reply arrives, every earlier event has arrived. If
// no watch has fired by then, all parts were current at the moment of the last reply.
type follower struct {
	inc *session.Incarnation
	dir string

	list    *conn.Watch             // the watch on the children, or on the creation of dir; nil before the first read
	parts   map[string]session.Node // the last read of each child, by its name
	watches map[string]*conn.Watch  // the watches that these reads have set

	mu     sync.Mutex
	relist bool                // the list may have changed; guarded by mu
	stale  map[string]struct{} // children that may have changed; guarded by mu
	bell   chan struct{}       // gets a token when `relist` or `stale` is set
}

// sameState reports whether two reads have seen the same state of a child. If the servers have lost
// their data and zxids begin again, two states can have the same zxids, and only their times differ.
func sameState(a, b session.Node) bool {
	return a.Stat.Czxid == b.Stat.Czxid && a.Stat.Mzxid == b.Stat.Mzxid && a.Stat.Mtime == b.Stat.Mtime
}

// FollowDir calls the callback with the present snapshot of the children of dir, and then with each
// snapshot that differs from the previous one. The callback must not change a snapshot. FollowDir
// returns when ctx ends or the callback returns an error. If a session is lost, FollowDir continues
// in the next session. While dir does not exist, it has no children. If the callback receives from
// `changed`, it may return false. Then FollowDir calls it again with a newer snapshot.
//
// With `confirm`, FollowDir also passes on the first snapshot after each lost connection, even if
// that snapshot has not changed. FollowDir does not call the callback while there is no connection.
// If the connection is lost during a call, the channel `lost` is closed, and the callback returns
// false. Without `confirm`, `lost` is closed when the session has ended, because a snapshot of that
// session may then be old.
func FollowDir(ctx context.Context, m *session.Manager, dir string, confirm bool, tell func(nodes map[string]session.Node, changed, lost <-chan struct{}) (told bool, err error)) error {
	var last map[string]session.Node
	return m.During(ctx, func(inc *session.Incarnation) error {
		f := &follower{
			inc: inc, dir: dir, parts: make(map[string]session.Node), watches: make(map[string]*conn.Watch),
			stale: make(map[string]struct{}), relist: true, bell: make(chan struct{}, 1),
		}
		defer f.close()
		// Because of the sync, the first snapshot is not older than the call.
		lost := inc.Ctx.Done()
		if confirm {
			lost = inc.Disconnection()
		}
		if err := inc.Sync(ctx, dir); err != nil {
			return err
		}
		unconfirmed := confirm
		for {
			if err := f.catchUp(ctx); err != nil {
				return err
			}
			if session.IsClosed(lost) {
				// The snapshot may be from before the loss. The next server sends the missed events before
				// the reply to the sync.
				if err := inc.Connection(ctx); err != nil {
					return err
				}
				lost, unconfirmed = inc.Disconnection(), true
				if err := inc.Sync(ctx, dir); err != nil {
					return err
				}
				continue
			}
			if now := maps.Clone(f.parts); last == nil || unconfirmed || !maps.EqualFunc(now, last, sameState) {
				told, err := tell(now, f.bell, lost)
				if err != nil {
					return err
				}
				if !told {
					// The callback has taken the token, or the connection is lost.
					continue
				}
				last, unconfirmed = now, false
			}
			// If several cases are ready, any choice is right: catchUp reads the flags behind the bell.
			select {
			case <-f.bell:
			case <-lost:
			case <-ctx.Done():
				return session.CtxErr(ctx)
			case <-inc.Ctx.Done():
				return session.ErrEnded
			}
		}
	})
}

// maxRounds is the number of rounds after which a follower returns a snapshot even though children
// still change.
const maxRounds = 8

// catchUp works in rounds. Each round reads the parts that may have changed. If no watch has fired
// by the end of a round, all parts were current at one moment, and catchUp returns. A child that
// has changed once during the call is read in every later round. So even if many children change
// all the time, few of them change within a round.
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
			if err := f.readList(ctx, stale); err != nil {
				return err
			}
		}
		if err := f.readParts(ctx, stale); err != nil {
			return err
		}
	}
	return nil
}

// readList lists the children with a watch, and adds new children to `stale`. A child that was deleted
// is in f.stale: the reply comes after the event of the child's own watch.
func (f *follower) readList(ctx context.Context, stale map[string]struct{}) error {
	names, err := f.listed(ctx, conn.WatchChildren)
	if session.IsNoNode(err) {
		if names, err = f.listed(ctx, conn.WatchExists); session.IsNoNode(err) {
			names, err = nil, nil
		}
	}
	for _, name := range names {
		if _, ok := f.parts[name]; !ok {
			stale[name] = struct{}{}
		}
	}
	return err
}

// The method `listed` lists dir with a watch of this kind. A watch on the children requires that
// dir exists.
func (f *follower) listed(ctx context.Context, kind int32) ([]string, error) {
	if f.list != nil {
		f.inc.Watches.LeaveUntold(f.list, f)
	}
	f.list = f.inc.Watches.Join(conn.WatchKey{Kind: kind, Path: f.dir})
	f.inc.Watches.Tell(f.list, f, func() { f.ring(func() { f.relist = true }) })
	if kind == conn.WatchExists {
		stat, err := f.inc.Exists(ctx, f.dir)
		if err != nil || stat != nil {
			// The parent was created between the two reads: list it again, with a watch on its
			// children.
			f.ring(func() { f.relist = true })
		}
		return nil, err
	}
	names, _, err := f.inc.Children(ctx, f.dir)
	return names, err
}

// readParts reads children, each with a watch.
func (f *follower) readParts(ctx context.Context, names map[string]struct{}) error {
	list := slices.Sorted(maps.Keys(names))
	paths := make([]string, len(list))
	for i, name := range list {
		f.drop(name)
		paths[i] = ChildPath(f.dir, name)
		f.watches[name] = f.inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: paths[i]})
		f.inc.Watches.Tell(f.watches[name], f, func() { f.ring(func() { f.stale[name] = struct{}{} }) })
	}
	nodes, err := getEach(ctx, paths, f.inc.Get)
	for i, name := range list {
		if f.parts[name] = nodes[i]; nodes[i].Stat == nil { // deleted since the listing: the watch on the list has fired
			f.drop(name)
		}
	}
	return err
}

// The method `ring` sets a flag and wakes the follower. It may be called with Watches.Mu held.
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
	if w := f.watches[name]; w != nil {
		f.inc.Watches.LeaveUntold(w, f)
		delete(f.watches, name)
		delete(f.parts, name)
	}
}

// The method `close` leaves every watch.
func (f *follower) close() {
	for name := range f.watches {
		f.drop(name)
	}
	if f.list != nil {
		f.inc.Watches.LeaveUntold(f.list, f)
	}
}
