package zsync

import (
	"context"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// Get reads the data and the Stat of any znode: for the versions that a [Session.Txn]
// needs, and for tools. The server may lag behind the others. path is below the chroot.
//
// # Errors
//
// go-zookeeper's ErrNoNode and ErrNoAuth; [ErrInvalid], [ErrClosed], and the error of ctx.
//
// # Cost
//
// One request.
func (s *Session) Get(ctx context.Context, path string) (data []byte, stat *zk.Stat, err error) {
	if err := checkRead(path); err != nil {
		return nil, nil, opError("get", path, err)
	}
	err = s.m.During(ctx, func(inc *session.Incarnation) error {
		data, stat, err = inc.Get(ctx, s.m.Full(path))
		return err
	})
	return data, stat, opError("get", path, err)
}

// Children returns the names of the children of any znode, and its Stat. Otherwise it is
// like [Session.Get].
func (s *Session) Children(ctx context.Context, path string) (names []string, stat *zk.Stat, err error) {
	if err := checkRead(path); err != nil {
		return nil, nil, opError("children", path, err)
	}
	err = s.m.During(ctx, func(inc *session.Incarnation) error {
		names, stat, err = inc.Children(ctx, s.m.Full(path))
		return err
	})
	slices.Sort(names)
	return names, stat, opError("children", path, err)
}

// checkRead is CheckPath, but the root may be read.
func checkRead(path string) error {
	if path == "/" {
		return nil
	}
	return session.CheckPath(path)
}
