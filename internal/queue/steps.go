package queue

import (
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
)

// ring is the operation that wakes those who wait at the queue's znode.
func ring(dir string) *zk.SetDataRequest {
	return &zk.SetDataRequest{Path: dir, Data: []byte(marks.Dir), Version: -1}
}

// ours reports whether the queue's znode has nothing but the mark of a directory: what was
// stored there is not written over.
func ours(data []byte) bool { return len(marks.Unmark(data)) == 0 }

// outrun reports whether somebody else was quicker: a znode is gone, or has been written.
func outrun(err error) bool { return session.IsNoNode(err) || session.IsBadVersion(err) }

// A step is an operation of a transaction. Its cure is told why the servers have refused it,
// and that nothing was applied. If the cure returns nil the transaction is built and sent
// again, and otherwise its error is that of the transaction.
type step struct {
	op   any
	cure func(inc *session.Incarnation, err error) error
}

func incurable(_ *session.Incarnation, err error) error { return err }

// when is the cure, which f is, of some errors.
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

// sizeOf is the size of an operation, from above.
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
