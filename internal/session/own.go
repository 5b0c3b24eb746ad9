package session

// This file has operations on ephemeral znodes whose names are not unique: after a deletion, another
// session may create its own znode at the same path. The operations never change that znode.

import (
	"cmp"
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
)

// AwaitOwnGone waits until the znode of a shared [Creation] is deleted, even if another session has
// created its own znode there since. Like [OwnWatch], it reads the children again after an event. So at
// the end of a session, the error is ErrEnded.
func (inc *Incarnation) AwaitOwnGone(ctx context.Context, path string) error {
	for {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: path})
		_, stat, err := inc.Children(ctx, path)
		ours := err == nil && stat.EphemeralOwner == inc.ID.Load()
		if ours {
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		if err != nil && !IsNoNode(err) {
			return err
		}
		inc.own.Delete(path)
		if !ours {
			return nil
		}
	}
}

// SetOwn writes the data of the znode of a shared [Creation]. If that znode is deleted, the error is
// NoNode, and nothing was written. Only one call for a path may be under way.
func (inc *Incarnation) SetOwn(ctx context.Context, path string, data []byte) error {
	stat, over, err := whileOurs(ctx, inc, path, inc.lookAtOwn, func(version int32) call[*zk.Stat] { return setCall(path, data, version) })
	if err == nil {
		inc.own.Store(path, sighting{over, stat.Version})
	}
	return err
}

// RemoveOwn deletes the znode of a shared [Creation] in the background.
func (inc *Incarnation) RemoveOwn(path string) *Deletion {
	return inc.Delete(&Deletion{Paths: []string{path}, By: func() error { return inc.removeOwn(path) }})
}

// removeOwn deletes the znode at path if it is this session's.
func (inc *Incarnation) removeOwn(path string) error {
	// Only the end of the session ends the attempts.
	_, _, err := whileOurs(inc.Ctx, inc, path, inc.lookAtOwn, func(version int32) call[struct{}] { return deletion(path, version) })
	return err
}

// The type `sighting` is the create or the last write of a znode of ours whose name is not unique:
// the connection of that request, and the version of the znode.
type sighting struct {
	over    *conn.Conn
	version int32
}

// lookAtOwn reads the Stat of our znode at path.
func (inc *Incarnation) lookAtOwn(ctx context.Context, path string) (*zk.Stat, error) {
	stat, err := inc.ExistsFresh(ctx, path)
	if err == nil && stat != nil && stat.EphemeralOwner != inc.ID.Load() {
		stat = nil
	}
	return stat, err
}

// RemoveIfData deletes the znode that this session has created at path, if the znode contains
// `data`. The caller guarantees that no other znode at path ever contains the same data. The error
// is NoNode if there is no znode with this data.
func (inc *Incarnation) RemoveIfData(ctx context.Context, path, data string) error {
	_, _, err := whileOurs(ctx, inc, path, func(ctx context.Context, path string) (*zk.Stat, error) {
		was, stat, err := inc.GetFresh(ctx, path)
		if string(was) != data {
			stat = nil
		}
		return stat, err
	}, func(version int32) call[struct{}] { return deletion(path, version) })
	if err == nil || IsNoNode(err) {
		inc.ephemerals.gone(path)
	}
	return err
}

// whileOurs makes attempts at c until one is answered. c is an operation on our znode at path, and
// expects the given version of that znode. If `look` finds that the znode is not ours, the error is
// NoNode. The result `over` is the connection over which c was answered. whileOurs uses the last
// sighting, and removes it: no watch may guard the znode from then on.
//
// While the connection of the last sighting lasts, a watch reports the deletion of the znode. After
// an outage, or after an attempt without a reply, whileOurs calls `look` before it sends c. `look` is
// a fresh read, so it shows the result of an earlier attempt: that attempt is not executed later (see
// Find). The connection of c existed before `look`, so there is no outage between the two.
//
// If our znode is deleted, and the event has not arrived yet, only the version distinguishes it from
// another client's znode.
func whileOurs[T any](ctx context.Context, inc *Incarnation, path string, look func(ctx context.Context, path string) (*zk.Stat, error), c func(version int32) call[T]) (v T, over *conn.Conn, err error) {
	var seen sighting
	if last, ok := inc.own.LoadAndDelete(path); ok {
		seen = last.(sighting)
	}
	err = inc.repeat(ctx, func() error {
		if over, err = inc.openConn(ctx); err != nil {
			return err
		}
		if seen.over != over {
			stat, err := look(ctx, path)
			if err != nil || stat == nil {
				return cmp.Or(err, zk.ErrNoNode)
			}
			seen.version = stat.Version
		}
		seen.over = nil
		p := newPending(c(seen.version))
		over.Send(p) // fails if the connection has ended
		if v, err = p.Wait(ctx, inc); IsBadVersion(err) {
			return errAgain
		}
		return err
	})
	return v, over, err
}

// GetThenRemove reads the znode at path and then deletes `own`, an ephemeral znode with a unique name,
// in one round trip. If the connection is lost before the reply to the read, the read is repeated,
// perhaps after the deletion. err is the error of the deletion.
func (inc *Incarnation) GetThenRemove(ctx context.Context, path, own string) (n Node, readErr, err error) {
	read, err := start(ctx, inc, getCall(path))
	if err != nil {
		return n, err, err
	}
	err = inc.RemoveNow(ctx, own)
	n, readErr = replyOr(ctx, inc, read, getCall(path))
	return n, readErr, err
}
