package session

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"
)

// This file holds the verbs with which the recipes speak to ZooKeeper: one
// request each, within one incarnation, with what must be done when the reply
// does not come. Paths are the server's (see Manager.Full).

// maxRequest is the largest request that a server with the default jute.maxbuffer
// accepts. A larger one would cost everyone the connection. MaxPacket is that for what is
// measured by [Manager.SizeOf].
const (
	maxRequest = 1<<20 - 1
	MaxPacket  = maxRequest - 64
)

func sizeOfACL(acl []zk.ACL) (n int) {
	for _, a := range acl {
		n += 12 + len(a.Scheme) + len(a.ID)
	}
	return n
}

// Get reads the data of a znode.
func (inc *Incarnation) Get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := retry(ctx, inc, getCall(path))
	return n.Data, n.Stat, err
}

// Exists reads the Stat of a znode, or nil if there is none.
func (inc *Incarnation) Exists(ctx context.Context, path string) (*zk.Stat, error) {
	stat, err := retry(ctx, inc, existsCall(path))
	if IsNoNode(err) {
		return nil, nil
	}
	return stat, err
}

// Children lists the children of a znode.
func (inc *Incarnation) Children(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	l, err := retry(ctx, inc, childrenCall(path))
	return l.names, l.stat, err
}

// Names lists the children of a znode. One that is not there has none.
func (inc *Incarnation) Names(ctx context.Context, path string) ([]string, error) {
	names, _, err := inc.Children(ctx, path)
	if IsNoNode(err) {
		return nil, nil
	}
	return names, err
}

// Sync makes the server that answers catch up with the leader.
func (inc *Incarnation) Sync(ctx context.Context, path string) error {
	_, err := retry(ctx, inc, syncCall(path))
	return err
}

// Multi applies ops, which must be such that they can be applied only once, in
// one transaction. If a reply was lost the error may be that they have been.
func (inc *Incarnation) Multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return retry(ctx, inc, multiCall(ops))
}

// MultiOpen is Multi that also reports whether an attempt before the last has no answer:
// if not, the error is all that there is to say.
func (inc *Incarnation) MultiOpen(ctx context.Context, ops []any) (rs []zk.MultiResponse, open bool, err error) {
	err = inc.repeat(ctx, func(a *attempts) (err error) {
		open = a.open
		rs, err = inc.AttemptMulti(ctx, ops)
		return a.outcome(err)
	})
	return rs, open, err
}

// AttemptMulti is a single attempt at a transaction. An error of unknown outcome is
// passed on as it is.
func (inc *Incarnation) AttemptMulti(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	return attempt(ctx, inc, multiCall(ops))
}

// StartMulti is tryMulti without waiting for the reply.
func (inc *Incarnation) StartMulti(ctx context.Context, ops []any) (*pending[[]zk.MultiResponse], error) {
	return start(ctx, inc, multiCall(ops))
}

// StartCreate sends a single attempt at a create, without waiting for the reply.
func (inc *Incarnation) StartCreate(ctx context.Context, path string, data []byte, flags int32) (*pending[string], error) {
	return start(ctx, inc, inc.createCall(path, data, flags))
}

// AttemptCreate is a single attempt at a create. An error of unknown outcome is passed on as it is.
func (inc *Incarnation) AttemptCreate(ctx context.Context, path string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	return attempt(ctx, inc, inc.createWithACL(path, data, flags, acl))
}

// Set writes the data of a znode that only this client writes, so that writing
// it twice does no harm. It returns the new Stat.
func (inc *Incarnation) Set(ctx context.Context, path string, data []byte, version int32) (*zk.Stat, error) {
	return retry(ctx, inc, setCall(path, data, version))
}

// Create makes a persistent znode, with its parents, which belong to nobody, and
// reports whether it was missing; one that exists already is left as it is.
//
// When a reply is lost, the repetition may find the znode that the first
// attempt made, and report false. Who must know whether it was itself writes
// something unique into it.
func (inc *Incarnation) Create(ctx context.Context, path string, data []byte) (bool, error) {
	return inc.CreateIn(ctx, Dir{}, path, data)
}

// CreateIn is Create of a child of dir.
func (inc *Incarnation) CreateIn(ctx context.Context, dir Dir, path string, data []byte) (bool, error) {
	for {
		_, err := retry(ctx, inc, inc.createCall(path, data, zk.FlagPersistent))
		switch {
		case IsNodeExists(err):
			return false, nil
		case IsNoNode(err):
			if _, err := inc.addDir(ctx, ParentPath(path), dir); err != nil {
				return false, err
			}
		default:
			return err == nil, err
		}
	}
}

// ReleaseTime is how long a release without a context waits to learn what came
// of it; with askTime, which it may need before, less than half a second.
const ReleaseTime = 250 * time.Millisecond

// SizeOf estimates the size of a create, or set, from above.
func (m *Manager) SizeOf(path string, data []byte) int {
	return 64 + len(path) + len(data) + sizeOfACL(m.Config.ACL)
}

// A Node is what was read of a znode.
type Node struct {
	Data []byte
	Stat *zk.Stat // nil if there is no such znode
}

// CheckSize returns ErrTooLarge for a transaction that servers with the default settings do not
// read: they would only break the connection, again and again.
func CheckSize(ops []any) error {
	n := 8 + 9 // the header of the request, and what ends the operations
	for _, op := range ops {
		n += 9
		switch op := op.(type) {
		case *zk.CreateRequest:
			n += 16 + len(op.Path) + len(op.Data) + sizeOfACL(op.Acl)
		case *zk.SetDataRequest:
			n += 12 + len(op.Path) + len(op.Data)
		case *zk.DeleteRequest:
			n += 8 + len(op.Path)
		case *zk.CheckVersionRequest:
			n += 8 + len(op.Path)
		}
	}
	if n > maxRequest {
		return fmt.Errorf("a transaction of %d bytes: %w", n, ErrTooLarge)
	}
	return nil
}
