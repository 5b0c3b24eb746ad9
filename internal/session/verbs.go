package session

// This file reads znodes, and writes znodes that exist. Each operation is one request within one
// incarnation, and is repeated until it is answered. Paths include the chroot (see Manager.Full).

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A Node is the result of reading a znode.
type Node struct {
	Data []byte
	Stat *zk.Stat // nil if there is no such znode
}

// A Listing has the children of a znode.
type Listing struct {
	Names []string
	Stat  *zk.Stat
}

// GetCall returns a request that reads the data of a znode.
func GetCall(path string) Call[Node] {
	return Call[Node]{Op: wire.OpGetData, Path: path, Take: func(s *wire.Scanner) Node { return Node{s.Data(), s.Stat()} }}
}

func existsCall(path string) Call[*zk.Stat] {
	return Call[*zk.Stat]{Op: wire.OpExists, Path: path, Take: (*wire.Scanner).Stat}
}

// ChildrenCall returns a request that lists the children of a znode.
func ChildrenCall(path string) Call[Listing] {
	return Call[Listing]{Op: wire.OpGetChildren2, Path: path, Take: func(s *wire.Scanner) Listing { return Listing{s.Strings(), s.Stat()} }}
}

// SetCall returns a request that writes the data of a znode, if it has this version.
func SetCall(path string, data []byte, version int32) Call[*zk.Stat] {
	return Call[*zk.Stat]{
		Op: wire.OpSetData, Path: path,
		Body: func(p []byte) []byte { return wire.AppendInt32(wire.AppendBuffer(p, data), version) },
		Take: (*wire.Scanner).Stat,
	}
}

// Get reads the data of a znode.
func (inc *Incarnation) Get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := Retry(ctx, inc, GetCall(path))
	return n.Data, n.Stat, err
}

// Exists returns the Stat of a znode, or nil if there is no such znode.
func (inc *Incarnation) Exists(ctx context.Context, path string) (*zk.Stat, error) {
	stat, err := Retry(ctx, inc, existsCall(path))
	if IsNoNode(err) {
		return nil, nil
	}
	return stat, err
}

// Children lists the children of a znode.
func (inc *Incarnation) Children(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	l, err := Retry(ctx, inc, ChildrenCall(path))
	return l.Names, l.Stat, err
}

// Names lists the children of a znode. A znode that does not exist has no children.
func (inc *Incarnation) Names(ctx context.Context, path string) ([]string, error) {
	return orNone(inc.Children(ctx, path))
}

func orNone(names []string, _ *zk.Stat, err error) ([]string, error) {
	if IsNoNode(err) {
		return nil, nil
	}
	return names, err
}

// Sync makes the client's server catch up with the leader.
func (inc *Incarnation) Sync(ctx context.Context, path string) error {
	_, err := Retry(ctx, inc, SyncCall(path))
	return err
}

// Set writes the data of a znode that only this client writes, so a second write does no harm. It
// returns the new Stat.
func (inc *Incarnation) Set(ctx context.Context, path string, data []byte, version int32) (*zk.Stat, error) {
	return Retry(ctx, inc, SetCall(path, data, version))
}
