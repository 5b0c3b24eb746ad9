package queue

import (
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
)

// This file has the parts from which the other files build transactions: operations, and the cure
// for the refusal of each. It sends no request.

// ring returns the operation that rings the bell: it writes the queue's znode, which wakes waiting
// consumers.
func ring(dir string) *zk.SetDataRequest {
	return &zk.SetDataRequest{Path: dir, Data: []byte(marks.Dir), Version: -1}
}

// unpaused returns two operations that the servers refuse in a transaction while the queue is
// paused, and that otherwise have no effect.
func (q site) unpaused() []any {
	path := session.ChildPath(q.dir, pausedName)
	return []any{&zk.CreateRequest{Path: path, Acl: q.m.Config.ACL}, &zk.DeleteRequest{Path: path, Version: -1}}
}

// ours reports whether the data of the queue's znode has nothing but zsync's mark of a parent
// znode. A producer refuses a path with other data, because the bell would overwrite it.
func ours(data []byte) bool { return len(marks.Unmark(data)) == 0 }

// outrun reports whether err means that another client was faster: it has deleted or written a
// znode.
func outrun(err error) bool { return session.IsNoNode(err) || session.IsBadVersion(err) }

// A step is an operation of a transaction. Its cure is called if the servers have refused the
// transaction because of this operation, with the error of the operation. If the cure returns
// nil, the transaction is built and sent again. Otherwise, the transaction fails with the error
// of the cure.
type step struct {
	op   any
	cure func(inc *session.Incarnation, err error) error
}

func incurable(_ *session.Incarnation, err error) error { return err }

// when returns a cure that calls f if is(err), and otherwise returns err.
func when(is func(err error) bool, f func(inc *session.Incarnation) error) func(*session.Incarnation, error) error {
	return func(inc *session.Incarnation, err error) error {
		if is(err) {
			return f(inc)
		}
		return err
	}
}

func opsOf(steps []step) (ops []any) {
	for _, s := range steps {
		ops = append(ops, s.op)
	}
	return ops
}

// sizeOf returns an upper bound of the size of an operation.
func sizeOf(m *session.Manager, op any) int {
	switch op := op.(type) {
	case *zk.CreateRequest:
		return m.SizeOf(op.Path, op.Data)
	case *zk.SetDataRequest:
		return m.SizeOf(op.Path, op.Data)
	case *zk.DeleteRequest:
		return m.SizeOf(op.Path, nil)
	case *zk.CheckVersionRequest:
		return m.SizeOf(op.Path, nil)
	}
	return 512
}
