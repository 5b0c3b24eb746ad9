package znodes

// This file watches the znodes that a session holds.

import (
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// An OwnWatch watches one znode that this session has made and holds. The znode's name is unique.
// The OwnWatch calls Vanished if another client deletes the znode. It costs no goroutine, and no
// request for a znode that is held for less than ownWatchAfter.
//
// A listing of the znode's children sets the watch; an ephemeral znode has none, so the watch fires
// only when the znode is deleted. If the znode is deleted before the listing, the error is NoNode. A
// lagging server cannot cause that error, because the session has received the reply to the create.
//
// The owner calls Drop before it deletes the znode itself. Vanished may still be called at that
// time. So the owner calls Drop under a lock, and checks in Vanished, under the same lock, whether
// it has dropped this watch.
type OwnWatch struct {
	Path  string
	inc   *session.Incarnation
	owner interface{ Vanished(o *OwnWatch) }

	mu      sync.Mutex
	timer   *time.Timer // calls `look`; nil if no call is planned; guarded by mu
	watch   *conn.Watch // nil unless joined; guarded by mu
	dropped bool        // guarded by mu
}

// ownWatchAfter is the age at which the watch of a znode is set. A znode that was watched while
// its owner waited keeps that watch.
const ownWatchAfter = 10 * time.Millisecond

// LookAgainAfter is the time after which a refused read of a held znode is repeated.
const LookAgainAfter = time.Minute

// WatchOwn returns an OwnWatch for the znode at path. The OwnWatch begins when Made is called. It
// calls owner.Vanished without locks, in a goroutine of its own.
func WatchOwn(inc *session.Incarnation, path string, owner interface{ Vanished(o *OwnWatch) }) *OwnWatch {
	return &OwnWatch{inc: inc, Path: path, owner: owner}
}

// Made begins the watch: the caller knows that the znode exists. If the znode is watched already, the
// watch is set at once, which costs no request. Made does nothing after Drop.
func (o *OwnWatch) Made(watched bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.dropped:
	case watched:
		o.inc.Manager.Spawn(o.look)
	default:
		o.lookLocked(ownWatchAfter)
	}
}

// lookLocked plans a call of `look`.
func (o *OwnWatch) lookLocked(after time.Duration) {
	o.timer = time.AfterFunc(after, func() { o.inc.Manager.Spawn(o.look) })
}

// Drop ends o, because its owner is about to delete the znode. The caller calls the returned
// function when the znode is deleted. Until then, the watch stays on the server: it is about to
// fire, and to remove it would cost a request.
func (o *OwnWatch) Drop() (left func()) {
	if o == nil {
		return func() {}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	w := o.watch
	o.dropped, o.watch = true, nil
	if w == nil {
		return func() {}
	}
	o.inc.Watches.Untell(w, o)
	return func() { o.inc.Watches.Leave(w) }
}

// The method `look` sets the watch, and calls Vanished if the znode is deleted. It is called again
// when the watch has fired. It does not conclude from the event that the znode is deleted: a server
// that ends a session deletes its ephemeral znodes, and may send the events of the deletions before
// it closes the connection. Then the listing that `look` sends has no reply, and the owner learns of
// the end of the session.
func (o *OwnWatch) look() {
	inc := o.inc
	o.mu.Lock()
	o.timer = nil // frees its memory
	if o.dropped {
		o.mu.Unlock()
		return
	}
	if o.watch != nil {
		inc.Watches.Leave(o.watch)
	}
	o.watch = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: o.Path})
	if inc.Watches.State(o.watch).Ours { // the server already has a watch on our znode: no request is needed
		o.followLocked()
		o.mu.Unlock()
		return
	}
	o.mu.Unlock()
	_, stat, err := inc.Children(inc.Ctx, o.Path)
	if err == nil && stat.EphemeralOwner != inc.ID.Load() {
		err = zk.ErrNoNode // another session has made a znode of this name after ours was deleted
	}
	after := func() {} // called without mu, because the log and the owner may release the hold
	o.mu.Lock()
	switch {
	case o.dropped:
	case err == nil:
		o.followLocked()
	case session.IsNoNode(err):
		after = func() { o.owner.Vanished(o) }
	case inc.Ctx.Err() == nil: // otherwise, all holders learn of the end of the session from Ended
		// The servers refuse the read. A deletion is then found by the next write, by the release,
		// or by a later read that the servers permit.
		o.lookLocked(LookAgainAfter)
		after = func() { inc.Manager.Log.Debug("zsync: cannot watch a held znode", "path", o.Path, "err", err) }
	}
	o.mu.Unlock()
	after()
}

// followLocked calls `look` when the watch fires, or at once if the watch has fired already.
func (o *OwnWatch) followLocked() {
	o.inc.Watches.Tell(o.watch, o, func() { o.inc.Manager.Spawn(o.look) })
}
