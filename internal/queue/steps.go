package queue

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file has the parts from which the other files build transactions: operations, each with a
// cure in case the servers refuse it. It sends no request.

// The function `ring` returns the operation that rings the bell: see layout.go.
func ring(dir string) *zk.SetDataRequest {
	return &zk.SetDataRequest{Path: dir, Data: []byte(marks.Dir), Version: -1}
}

// The method `unpaused` returns two operations for a transaction. While the queue is paused, the
// servers refuse them. While the queue is not paused, they have no effect.
func (q *Common) unpaused() []any {
	path := znodes.ChildPath(q.dir, pausedName)
	return []any{&zk.CreateRequest{Path: path, Acl: q.m.Config.ACL}, &zk.DeleteRequest{Path: path, Version: -1}}
}

// The function `ours` returns true if the data of the queue's znode is empty, or only zsync's mark
// of a parent znode. A producer refuses a path with other data, because the bell would overwrite
// that data.
func ours(data []byte) bool { return len(marks.Unmark(data)) == 0 }

// The function `outrun` reports whether another client was faster: a znode does not exist, or its
// version is new.
func outrun(err error) bool { return session.IsNoNode(err) || session.IsBadVersion(err) }

// The type `step` is an operation of a transaction. If the servers refuse the transaction because
// of this operation, its cure is called with the operation's error. If the cure returns nil, the
// transaction is built and sent again. If the cure returns an error, the transaction fails with
// that error.
type step struct {
	op   any
	cure func(inc *session.Incarnation, err error) error
}

func incurable(_ *session.Incarnation, err error) error { return err }

// The function `when` returns a cure that calls `f` if `is(err)` is true, and otherwise returns `err`.
func when(is func(err error) bool, f func(inc *session.Incarnation) error) func(*session.Incarnation, error) error {
	return func(inc *session.Incarnation, err error) error {
		if is(err) {
			return f(inc)
		}
		return err
	}
}

// The function `created` returns a cure that creates the missing znode `path`. If the queue does not exist either,
// the servers refuse another operation of the next attempt.
func created(ctx context.Context, path string) func(*session.Incarnation, error) error {
	return when(session.IsNoNode, func(inc *session.Incarnation) error {
		_, err := znodes.Create(ctx, inc, path, nil)
		if session.IsNoNode(err) {
			err = nil
		}
		return err
	})
}

func opsOf(steps []step) (ops []any) {
	for _, s := range steps {
		ops = append(ops, s.op)
	}
	return ops
}
