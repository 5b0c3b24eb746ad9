package session

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// This file has the operations with which the recipes use ZooKeeper. Each operation is one request
// within one incarnation, and handles a lost reply. Paths include the chroot (see Manager.Full).

// maxRequest is the largest request that a server with the default jute.maxbuffer accepts. A larger
// request would break the connection for all users of the session. MaxPacket is the limit for sizes
// from [Manager.SizeOf].
const (
	maxRequest = 1<<20 - 1
	MaxPacket  = maxRequest - 64
)

// SizeOfACL returns the size of an ACL in a request, or half of its size in the servers' logs if that
// is more. The servers replace an entry of the scheme auth by one entry for each identity of the
// client. If a transaction in their logs has more than twice the size of the largest request, they
// stop for good (see `ephemerals`).
func (m *Manager) SizeOfACL(acl []zk.ACL) (n int) {
	for _, a := range acl {
		n += 12 + len(a.Scheme) + len(a.ID)
	}
	return max(n, (n+m.growthOfACL(acl))/2)
}

// The method `growthOfACL` returns an upper bound of the bytes that the servers add to an ACL.
func (m *Manager) growthOfACL(acl []zk.ACL) (n int) {
	const identity = 512 // by a certificate or by SASL
	for _, a := range acl {
		if a.Scheme != "auth" {
			continue
		}
		for _, auth := range m.Config.Auths {
			n += 64 + len(auth.Scheme) + len(auth.Credentials)
		}
		if t := m.Config.TLS; t != nil && (len(t.Certificates) > 0 || t.GetClientCertificate != nil) {
			n += identity
		}
		if m.Config.SASL != nil {
			n += identity
		}
	}
	return n
}

// Get reads the data of a znode.
func (inc *Incarnation) Get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := retry(ctx, inc, getCall(path))
	return n.Data, n.Stat, err
}

// Exists returns the Stat of a znode, or nil if there is no such znode.
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
	_, err := retry(ctx, inc, syncCall(path))
	return err
}

// Multi applies ops in one transaction. A second attempt must be unable to apply ops again. If a
// reply was lost, an error may mean that an earlier attempt has applied ops.
func (inc *Incarnation) Multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	rs, _, err := inc.MultiOpen(ctx, ops)
	return rs, err
}

// MultiOpen is Multi, and sets `open` if an attempt before the last has no reply. If `open` is
// false, the error is final.
func (inc *Incarnation) MultiOpen(ctx context.Context, ops []any) (rs []zk.MultiResponse, open bool, err error) {
	lost := false
	err = inc.repeat(ctx, func() (err error) {
		open = lost
		rs, err = inc.AttemptMulti(ctx, ops)
		lost = lost || OutcomeOf(err) == Unknown
		return err
	})
	return rs, open, err
}

func (inc *Incarnation) counted(create call[string], flags int32) call[string] {
	take := create.take
	create.take = func(s *wire.Scanner) string {
		path := take(s)
		if !s.Bad && flags&zk.FlagEphemeral != 0 {
			inc.ephemerals.settle(0, []string{path})
		}
		return path
	}
	return create
}

func (inc *Incarnation) countedMulti(ops []any) call[[]zk.MultiResponse] {
	multi := multiCall(ops)
	judge := multi.judge
	multi.judge = func(s *wire.Scanner) ([]zk.MultiResponse, int32, error) {
		rs, code, err := judge(s)
		for i := range rs {
			switch op := ops[i].(type) {
			case *zk.CreateRequest:
				if code == 0 && op.Flags&zk.FlagEphemeral != 0 {
					inc.ephemerals.settle(0, []string{rs[i].String})
				}
			case *zk.DeleteRequest:
				if code == 0 {
					inc.ephemerals.gone(op.Path)
				}
			}
		}
		return rs, code, err
	}
	return multi
}

// AttemptMulti makes a single attempt at a transaction. If the outcome is unknown, OutcomeOf(err)
// is Unknown.
func (inc *Incarnation) AttemptMulti(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	p, err := inc.StartMulti(ctx, ops)
	if err != nil {
		return nil, err
	}
	rs, err := p.Wait(ctx, inc)
	if OutcomeOf(err) == Unknown {
		// The ephemeral znodes of ops count as created. If they do not exist, `recount` forgets them. The
		// name of a numbered znode is unknown here: see Recall.
		for _, op := range ops {
			if op, ok := op.(*zk.CreateRequest); ok && op.Flags&zk.FlagEphemeralSequential == zk.FlagEphemeral {
				inc.ephemerals.settle(0, []string{op.Path})
			}
		}
	}
	return rs, err
}

// StartMulti is AttemptMulti without the wait for the reply.
func (inc *Incarnation) StartMulti(ctx context.Context, ops []any) (*pending[[]zk.MultiResponse], error) {
	return start(ctx, inc, inc.countedMulti(ops))
}

// StartGet sends a single request that reads a znode, without waiting for the reply.
func (inc *Incarnation) StartGet(ctx context.Context, path string) (*pending[Node], error) {
	return start(ctx, inc, getCall(path))
}

// StartCreate sends a single request that creates a znode, without waiting for the reply.
func (inc *Incarnation) StartCreate(ctx context.Context, path string, data []byte, flags int32) (*pending[string], error) {
	return start(ctx, inc, inc.counted(inc.createCall(path, data, flags), flags))
}

// AttemptCreate makes a single attempt to create a znode. If the outcome is unknown, OutcomeOf(err)
// is Unknown.
func (inc *Incarnation) AttemptCreate(ctx context.Context, path string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	return attempt(ctx, inc, inc.counted(inc.createWithACL(path, data, flags, acl), flags))
}

// Set writes the data of a znode that only this client writes, so a second write does no harm. It
// returns the new Stat.
func (inc *Incarnation) Set(ctx context.Context, path string, data []byte, version int32) (*zk.Stat, error) {
	return retry(ctx, inc, setCall(path, data, version))
}

// Create creates a persistent znode and its missing parents, which belong to no primitive. It
// reports whether the znode was missing, and leaves an existing znode unchanged.
//
// If a reply is lost, the repetition may find the znode of the first attempt, and report false. A
// caller that must know whether it created the znode writes unique data into it.
func (inc *Incarnation) Create(ctx context.Context, path string, data []byte) (bool, error) {
	return inc.addDir(ctx, path, Dir{Path: path, Data: append([]byte{}, data...), Kept: true})
}

// ReleaseTime is the time for which a release without a context waits for its result. Before that,
// the release may need askTime. Both together are less than half a second.
const ReleaseTime = 250 * time.Millisecond

// SizeOf returns an upper bound of the size of a request that creates or writes a znode.
func (m *Manager) SizeOf(path string, data []byte) int {
	return 64 + len(path) + len(data) + m.SizeOfACL(m.Config.ACL)
}

// A Node is the result of reading a znode.
type Node struct {
	Data []byte
	Stat *zk.Stat // nil if there is no such znode
}

// CheckSize returns ErrTooLarge for a transaction that servers with the default settings do not
// read. These servers would break the connection at each attempt, or stop for good.
func (m *Manager) CheckSize(ops []any) error {
	if n := m.SizeOfOps(ops); n > maxRequest {
		return fmt.Errorf("a transaction of %d bytes: %w", n, ErrTooLarge)
	}
	return nil
}

// SizeOfOps returns the size of a transaction in bytes, or half of its size in the servers' logs:
// see [Manager.SizeOfACL].
func (m *Manager) SizeOfOps(ops []any) int {
	n := 8 + wire.SizeOfOps(ops) // 8 is the size of the header
	growth := 0
	for _, op := range ops {
		if create, ok := op.(*zk.CreateRequest); ok {
			growth += m.growthOfACL(create.Acl)
		}
	}
	return max(n, (n+growth)/2)
}
