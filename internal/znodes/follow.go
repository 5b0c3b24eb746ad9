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

	parts   map[string]session.Node // the last read of each child, by its name
	watches map[string]*conn.Watch  // of each part: of a child by its name, and of the list by ""

	mu    sync.Mutex
	stale map[string]struct{} // the parts that may have changed, or "" for the list; guarded by mu
	bell  chan struct{}       // gets a token when `stale` gets a part
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
			stale: map[string]struct{}{"": {}}, bell: make(chan struct{}, 1),
		}
		defer f.close()
		var lost <-chan struct{}
		unconfirmed := false
		for {
			if lost == nil || session.IsClosed(lost) {
				// Because of the sync, the first snapshot is not older than the call. After a loss, the next
				// server sends the missed events before the reply to the sync.
				if _, err := inc.OpenConn(ctx); err != nil {
					return err
				}
				lost = inc.Ctx.Done()
				if confirm {
					lost, unconfirmed = inc.Disconnection(), true
				}
				if err := inc.Sync(ctx, dir); err != nil {
					return err
				}
			}
			if err := f.catchUp(ctx); err != nil {
				return err
			}
			if session.IsClosed(lost) {
				continue // the snapshot may be from before the loss
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
		stale := f.stale
		f.stale = make(map[string]struct{})
		f.mu.Unlock()
		if len(stale) == 0 {
			return nil
		}
		_, relist := stale[""]
		delete(stale, "")
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
	f.watch("", conn.WatchChildren, f.dir)
	names, _, err := f.inc.Children(ctx, f.dir)
	if session.IsNoNode(err) {
		f.watch("", conn.WatchExists, f.dir)
		stat, e := f.inc.Exists(ctx, f.dir)
		if err = e; stat != nil { // created between the two reads: list it again, with a watch on its children
			f.ring("")
		}
	}
	for _, name := range names {
		if _, ok := f.parts[name]; !ok {
			stale[name] = struct{}{}
		}
	}
	return err
}

// readParts reads children, each with a watch.
func (f *follower) readParts(ctx context.Context, names map[string]struct{}) error {
	list := slices.Sorted(maps.Keys(names))
	paths := make([]string, len(list))
	for i, name := range list {
		paths[i] = ChildPath(f.dir, name)
		f.watch(name, conn.WatchData, paths[i])
	}
	nodes, err := getEach(ctx, paths, f.inc.Get)
	for i, name := range list {
		if f.parts[name] = nodes[i]; nodes[i].Stat == nil { // deleted since the listing: the watch on the list has fired
			f.drop(name)
		}
	}
	return err
}

// The method `watch` joins a watch, in place of the last watch of this part.
func (f *follower) watch(part string, kind int32, path string) {
	f.drop(part)
	w := f.inc.Watches.Join(conn.WatchKey{Kind: kind, Path: path})
	f.watches[part] = w
	f.inc.Watches.Tell(w, f, func() { f.ring(part) })
}

// The method `ring` reports that a part may have changed. It may be called with Watches.Mu held.
func (f *follower) ring(part string) {
	f.mu.Lock()
	f.stale[part] = struct{}{}
	f.mu.Unlock()
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

func (f *follower) drop(part string) {
	if w := f.watches[part]; w != nil {
		f.inc.Watches.Untell(w, f)
		f.inc.Watches.Leave(w)
		delete(f.watches, part)
		delete(f.parts, part)
	}
}

// The method `close` leaves every watch.
func (f *follower) close() {
	for part := range f.watches {
		f.drop(part)
	}
}
