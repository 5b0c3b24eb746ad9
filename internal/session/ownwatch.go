package session

// This file watches the znodes that a session holds. The method Vanished of the owner handles a
// deletion.

import (
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// An OwnWatch watches one znode that this session has made and holds. The znode's name is unique.
// The OwnWatch calls Vanished if another client deletes the znode. It costs no goroutine, and no
// request for a znode that is held for less than ownWatchAfter.
//
// The watch is set by a listing of the znode's children; an ephemeral znode has none. The watch
// fires when the znode is deleted. If the znode is deleted before the listing, the listing fails
// with NoNode. A lagging server cannot cause that failure: the same session has already received
// the reply to the request that created the znode. The client also finds a deletion that happens
// while there is no connection. It sets the watch again before it sends anything else, and the
// server answers with the missed event.
//
// The owner calls Drop before it deletes the znode itself. Vanished may still be called at that
// time. So the owner calls Drop under a lock, and checks in Vanished, under the same lock, whether
// it has dropped this watch.
type OwnWatch struct {
	*ownWatches
	Path    string
	owner   interface{ Vanished(o *OwnWatch) }
	watch   *conn.Watch // nil unless joined; guarded by ownWatches.mu
	dropped bool        // guarded by ownWatches.mu
}

// ownWatches has the znodes of one session whose watches are not set yet. Znodes that are due
// together are listed in one round trip.
type ownWatches struct {
	inc   *Incarnation
	mu    sync.Mutex
	young []youngWatch // in the order of their field `due`; guarded by mu
	timer *time.Timer  // runs `rise` when the first znode is due; nil if there is none; guarded by mu
}

type youngWatch struct {
	*OwnWatch
	due time.Time
}

// ownWatchesKey is the key of ownWatches in Incarnation.Attached.
type ownWatchesKey struct{}

// ownWatchAfter is the age at which the watch of a znode is set. A znode that was watched while
// its owner waited keeps that watch.
const ownWatchAfter = 10 * time.Millisecond

// LookAgainAfter is the time after which a refused read of a held znode is repeated: the znode's
// ACL may have changed by then.
const LookAgainAfter = time.Minute

// WatchOwn returns an OwnWatch for the znode at path. The OwnWatch begins when Made is called. It
// calls owner.Vanished without locks, in a goroutine of its own.
func (inc *Incarnation) WatchOwn(path string, owner interface{ Vanished(o *OwnWatch) }) *OwnWatch {
	ws, ok := inc.Attached.Load(ownWatchesKey{})
	if !ok {
		ws, _ = inc.Attached.LoadOrStore(ownWatchesKey{}, &ownWatches{inc: inc})
	}
	return &OwnWatch{ownWatches: ws.(*ownWatches), Path: path, owner: owner}
}

// Made begins the watch: the caller knows that the znode exists. The watch is set after
// ownWatchAfter. If the znode is watched already, the watch is set at once, which costs no request.
// Made does nothing after Drop.
func (o *OwnWatch) Made(watched bool) {
	ws := o.ownWatches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch {
	case o.dropped:
	case watched:
		ws.inc.Manager.Spawn(func() { ws.look([]*OwnWatch{o}) })
	default:
		if len(ws.young) == cap(ws.young) {
			ws.young = slices.DeleteFunc(ws.young, func(o youngWatch) bool { return o.dropped })
		}
		ws.young = append(ws.young, youngWatch{o, time.Now().Add(ownWatchAfter)})
		ws.waitLocked()
	}
}

// Drop ends o, because its owner is about to delete the znode. The caller calls the returned
// function when the znode is deleted. Until then, the watch stays on the server: it is about to
// fire, and to remove it would cost a request.
func (o *OwnWatch) Drop() (left func()) {
	if o == nil {
		return func() {}
	}
	ws := o.ownWatches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := o.watch
	o.dropped, o.watch = true, nil
	if w == nil {
		return func() {}
	}
	ws.inc.Watches.Untell(w, o)
	return func() { ws.inc.Watches.Leave(w) }
}

// waitLocked starts the timer for the first znode of `young`.
func (ws *ownWatches) waitLocked() {
	if ws.timer == nil && len(ws.young) > 0 {
		ws.timer = time.AfterFunc(time.Until(ws.young[0].due), ws.rise)
	}
}

// The method `rise` sets the watches that are due.
func (ws *ownWatches) rise() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.timer = nil
	now := time.Now()
	var due []*OwnWatch
	ws.young = slices.DeleteFunc(ws.young, func(o youngWatch) bool {
		ripe := !now.Before(o.due)
		if ripe {
			due = append(due, o.OwnWatch)
		}
		return ripe || o.dropped
	})
	ws.waitLocked()
	if len(due) > 0 {
		ws.inc.Manager.Spawn(func() { ws.look(due) })
	}
}

// The method `look` sets the watches of all `os` in one round trip. If the server already has a
// watch on our znode, the OwnWatch shares that watch, and costs no request.
func (ws *ownWatches) look(os []*OwnWatch) {
	inc := ws.inc
	var paths []string
	ws.mu.Lock()
	os = slices.DeleteFunc(os, func(o *OwnWatch) bool {
		if o.dropped {
			return true
		}
		o.watch = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: o.Path})
		armed := inc.Watches.ArmedOnOurs(o.watch)
		if armed {
			o.followLocked()
		} else {
			paths = append(paths, o.Path)
		}
		return armed
	})
	ws.mu.Unlock()
	if len(os) == 0 {
		return
	}
	reads, err := retryEach(inc.Ctx, inc, paths, childrenCall)
	if err != nil {
		return // the session has ended, and all holders learn that from Ended
	}
	for i, o := range os {
		if ws.vanished(o, reads[i]) {
			o.owner.Vanished(o)
		}
	}
}

// The method `vanished` reports whether the reply shows that the znode of o is deleted. If the
// znode exists, vanished calls followLocked.
func (ws *ownWatches) vanished(o *OwnWatch, reply *pending[listing]) bool {
	inc := ws.inc
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch {
	case o.dropped:
		return false
	case IsNoNode(reply.err):
		return true
	case reply.err != nil:
		// The servers refuse the read. A deletion is then found by the next write, by the release,
		// or by a later read that the servers permit.
		inc.Manager.Log.Debug("zsync: cannot watch a held znode", "path", o.Path, "err", reply.err)
		time.AfterFunc(LookAgainAfter, func() { inc.Manager.Spawn(o.fired) })
		return false
	}
	if reply.val.stat.EphemeralOwner != inc.ID.Load() {
		return true // another session has made a znode of this name after ours was deleted
	}
	o.followLocked()
	return false
}

// followLocked calls `fired` when the watch fires, or at once if the watch has fired already.
func (o *OwnWatch) followLocked() {
	o.inc.Watches.Tell(o.watch, o, func() { o.inc.Manager.Spawn(o.fired) })
}

// The method `fired` looks at the znode again. It does not conclude that the znode is deleted: a
// server that ends a session deletes its ephemeral znodes, and may send the events of the deletions
// before it closes the connection. Then the listing that `look` sends has no reply, and the owner
// learns of the end of the session.
func (o *OwnWatch) fired() {
	ws := o.ownWatches
	ws.mu.Lock()
	if !o.dropped {
		ws.inc.Watches.Leave(o.watch)
		o.watch = nil
	}
	ws.mu.Unlock()
	ws.look([]*OwnWatch{o})
}
