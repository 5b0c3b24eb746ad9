package txn

// This file applies a transaction that stores a value.

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// Store applies `ops` exactly once, as [Across] does. The argument `at` describes the value that
// these operations write or delete. If the servers may remove the znode of that value by
// themselves, Store applies nothing, and returns ErrMixed.
//
// Store first reads the znode, from a server that may lag. If the read finds no znode, a create is
// still safe: the servers create a persistent znode, or refuse the request. But a write is not
// safe, so Store returns NoNode and sends nothing. If a write changes another znode than the read
// has shown, the answer shows another czxid: see [znodes.Wrote].
func Store(ctx context.Context, m *session.Manager, dir string, at znodes.Stored, ops []any) error {
	_, creates := ops[0].(*zk.CreateRequest) // if the znode exists, the servers refuse to create it
	czxid, err := storable(ctx, m, at, creates)
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
	if session.IsNodeExists(err) && creates { // without this check, a caller might try again forever
		if _, e := storable(ctx, m, at, false); errors.Is(e, znodes.ErrMixed) {
			return e
		}
	}
	if err != nil || sets < 0 {
		return err
	}
	if stat := rs[sets].Stat; stat != nil && stat.Czxid == czxid {
		return nil // without a request: the write is applied, even if ctx or the session ends now
	}
	return m.During(ctx, func(inc *session.Incarnation) error { return znodes.Wrote(ctx, inc, at, rs[sets].Stat, czxid) })
}

func storable(ctx context.Context, m *session.Manager, at znodes.Stored, creates bool) (czxid int64, err error) {
	err = m.During(ctx, func(inc *session.Incarnation) (err error) {
		czxid, err = znodes.Storable(ctx, inc, at, creates)
		return err
	})
	return czxid, err
}
