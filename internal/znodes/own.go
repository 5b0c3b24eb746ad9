package znodes

// This file has operations on ephemeral znodes whose names are not unique: after a deletion, another
// session may create its own znode at the same path. The operations never change that znode.

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// AwaitOwnGone waits until the znode of a shared [Creation] is deleted, even if another session has
// created its own znode there since. Like [OwnWatch], it reads the children again after an event. So at
// the end of a session, the error is ErrEnded.
func AwaitOwnGone(ctx context.Context, inc *session.Incarnation, path string) error {
	fired := false
	return inc.EachChange(ctx, conn.WatchKey{Kind: conn.WatchChildren, Path: path}, 0, func(*conn.Watch) (gone bool, err error) {
		if fired {
			of(inc).own.Delete(path)
		}
		fired = true
		_, stat, err := inc.Children(ctx, path)
		if err == nil && stat.EphemeralOwner != inc.ID.Load() {
			err = zk.ErrNoNode
		}
		if session.IsNoNode(err) {
			of(inc).own.Delete(path)
			return true, nil
		}
		return false, err
	})
}

// SetOwn writes the data of the znode of a shared [Creation]. If that znode is deleted, the error is
// NoNode, and nothing was written. Only one call for a path may be under way.
func SetOwn(ctx context.Context, inc *session.Incarnation, path string, data []byte) error {
	stat, over, open, err := whileOurs(ctx, inc, path, lookAtOwn, func(version int32) session.Call[*zk.Stat] { return session.SetCall(path, data, version) })
	switch {
	case err == nil:
		of(inc).own.Store(path, sighting{over, stat.Version})
	case open && session.OutcomeOf(err) == session.Answered && !session.IsNoNode(err):
		return fmt.Errorf("it may have been applied: %v", err) // %v: only the last attempt was refused
	}
	return err
}

// RemoveOwn deletes the znode of a shared [Creation]. If `data` is not empty, it deletes the znode that
// this session has created at path and that contains `data`; the caller guarantees that no other znode
// at path ever contains the same data. The error is NoNode if there is no such znode. Only the end of
// the session ends the attempts.
func RemoveOwn(inc *session.Incarnation, path, data string) error {
	look := lookAtOwn
	if data != "" {
		look = func(ctx context.Context, inc *session.Incarnation, path string) (*zk.Stat, error) {
			was, stat, err := inc.GetFresh(ctx, path)
			if string(was) != data {
				stat = nil
			}
			return stat, err
		}
	}
	_, _, _, err := whileOurs(inc.Ctx, inc, path, look, func(version int32) session.Call[struct{}] { return session.DeleteCall(path, version) })
	if err == nil || session.IsNoNode(err) {
		of(inc).gone(path)
	}
	return err
}

// The type `sighting` is the create or the last write of a znode of ours whose name is not unique:
// the connection of that request, and the version of the znode.
type sighting struct {
	over    *conn.Conn
	version int32
}

// lookAtOwn reads the Stat of our znode at path.
func lookAtOwn(ctx context.Context, inc *session.Incarnation, path string) (*zk.Stat, error) {
	stat, err := inc.ExistsFresh(ctx, path)
	if err == nil && stat != nil && stat.EphemeralOwner != inc.ID.Load() {
		stat = nil
	}
	return stat, err
}

// whileOurs makes attempts at c until one is answered. c is an operation on our znode at path, and
// expects the given version of that znode. If `look` finds that the znode is not ours, the error is
// NoNode. The result `over` is the connection over which c was answered; `open` is true if an attempt
// has no reply. whileOurs uses the last sighting, and removes it: no watch may guard the znode from
// then on.
//
// While the connection of the last sighting lasts, a watch reports the deletion of the znode. After
// an outage, or after an attempt without a reply, whileOurs calls `look` before it sends c. `look` is
// a fresh read, so it shows the result of an earlier attempt: that attempt is not executed later (see
// Find). The connection of c existed before `look`, so there is no outage between the two.
//
// If our znode is deleted, and the event has not arrived yet, only the version distinguishes it from
// another client's znode.
func whileOurs[T any](ctx context.Context, inc *session.Incarnation, path string, look func(ctx context.Context, inc *session.Incarnation, path string) (*zk.Stat, error), c func(version int32) session.Call[T]) (v T, over *conn.Conn, open bool, err error) {
	var seen sighting
	if last, ok := of(inc).own.LoadAndDelete(path); ok {
		seen = last.(sighting)
	}
	err = inc.Repeat(ctx, func() error {
		if over, err = inc.OpenConn(ctx); err != nil {
			return err
		}
		if seen.over != over {
			stat, err := look(ctx, inc, path)
			if err != nil || stat == nil {
				return cmp.Or(err, zk.ErrNoNode)
			}
			seen.version = stat.Version
		}
		seen.over = nil
		p := session.NewPending(c(seen.version))
		over.Send(p) // fails if the connection has ended
		if v, err = p.Wait(ctx, inc); session.IsBadVersion(err) {
			return session.ErrAgain
		}
		open = open || session.OutcomeOf(err) == session.Unknown
		return err
	})
	return v, over, open, err
}
