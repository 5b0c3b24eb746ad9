package txn

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// Store applies ops exactly once, as [Across] does. They store something at at, or delete it. The
// error is ErrMixed, and nothing is applied, if the servers may remove the znode there.
//
// It reads the znode first, from a server that may lag. If the read finds no znode, a create makes
// a persistent one, or is refused. For a write, Store sends nothing then and returns NoNode. If the
// write changes a znode that Store did not read, the answer shows another czxid: see
// [session.Incarnation.Wrote].
func Store(ctx context.Context, m *session.Manager, dir string, at session.Stored, ops []any) error {
	known := at
	if _, ok := ops[0].(*zk.CreateRequest); ok {
		known.Path = "" // a create is refused if there is a znode
	}
	czxid, err := storable(ctx, m, known)
	if err != nil {
		return err
	}
	sets := slices.IndexFunc(ops, func(op any) bool {
		set, ok := op.(*zk.SetDataRequest)
		return ok && set.Path == at.Path
	})
	if sets >= 0 && czxid == 0 {
		return zk.ErrNoNode
	}
	rs, err := Across(ctx, m, dir, ops)
	if session.IsNodeExists(err) && known.Path == "" { // a caller that tries again would not end
		if _, e := storable(ctx, m, at); errors.Is(e, session.ErrMixed) {
			return e
		}
	}
	if err != nil || sets < 0 {
		return err
	}
	return m.During(ctx, func(inc *session.Incarnation) error { return inc.Wrote(ctx, at, rs[sets].Stat, czxid) })
}

func storable(ctx context.Context, m *session.Manager, at session.Stored) (czxid int64, err error) {
	err = m.During(ctx, func(inc *session.Incarnation) (err error) {
		czxid, err = inc.Storable(ctx, at)
		return err
	})
	return czxid, err
}
