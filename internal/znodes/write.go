package znodes

// This file creates znodes and applies transactions, each with one request. create.go creates the
// ephemeral znodes of primitives, and dir.go the znodes above them.

import (
	"context"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
)

func createCall(inc *session.Incarnation, path string, data []byte, flags int32) session.Call[string] {
	return createWithACL(inc, path, data, flags, inc.Manager.Config.ACL)
}

func createWithACL(inc *session.Incarnation, path string, data []byte, flags int32, acl []zk.ACL) session.Call[string] {
	op, refused := int32(wire.OpCreate), (func(int32))(nil)
	switch {
	case flags != zk.FlagContainer:
	case inc.Manager.NoContainers.Load(): // before ZooKeeper 3.5
		flags = zk.FlagPersistent
	default:
		op = wire.OpCreateContainer
		refused = func(code int32) {
			if code == wire.CodeUnimplemented {
				inc.Manager.NoContainers.Store(true)
			}
		}
	}
	return session.Call[string]{
		Op: op, Path: path, Refused: refused,
		Body: func(p []byte) []byte { return wire.AppendCreate(p, data, acl, flags) },
		Take: func(s *wire.Scanner) string {
			made := s.String()
			s.Bad = s.Bad || !isMade(made, path, flags)
			return made
		},
	}
}

// isMade checks `made`, the path in the reply to a create. It reports whether a create for `path`
// can have created a znode at `made`. If not, the reply counts as malformed, so callers can rely on
// the path in a reply.
func isMade(made, path string, flags int32) bool {
	rest, ok := strings.CutPrefix(made, path)
	if flags&zk.FlagSequence != 0 {
		_, number := ParseSeq(rest)
		return ok && number
	}
	return ok && rest == ""
}

// The reply to the request of multiCall records ephemeral znodes and deletions if `count` is true.
func multiCall(inc *session.Incarnation, ops []any, count bool) session.Call[[]zk.MultiResponse] {
	return session.Call[[]zk.MultiResponse]{
		Op: wire.OpMulti, Ops: ops,
		Body: func(p []byte) []byte { return wire.AppendOps(p, ops) },
		Judge: func(s *wire.Scanner) ([]zk.MultiResponse, int32, error) {
			rs, code := s.Results(len(ops), wire.Error)
			for i := 0; i < len(rs) && code == 0; i++ {
				switch op := ops[i].(type) {
				case *zk.CreateRequest:
					s.Bad = s.Bad || !isMade(rs[i].String, op.Path, op.Flags)
					if count && op.Flags&zk.FlagEphemeral != 0 {
						of(inc).settle(0, []string{rs[i].String})
					}
				case *zk.DeleteRequest:
					if count {
						of(inc).gone(op.Path)
					}
				}
			}
			return rs, code, wire.Error(code)
		},
	}
}

// Multi applies ops in one transaction. A second attempt must be unable to apply ops again. If a
// reply was lost, an error may mean that an earlier attempt has applied ops.
func Multi(ctx context.Context, inc *session.Incarnation, ops ...any) ([]zk.MultiResponse, error) {
	rs, _, err := MultiOpen(ctx, inc, ops)
	return rs, err
}

// MultiOpen is Multi, and sets `open` if an attempt before the last has no reply. If `open` is
// false, the error is final.
func MultiOpen(ctx context.Context, inc *session.Incarnation, ops []any) (rs []zk.MultiResponse, open bool, err error) {
	lost := false
	err = inc.Repeat(ctx, func() (err error) {
		open = open || lost
		rs, lost, err = AttemptMulti(ctx, inc, ops)
		return err
	})
	return rs, open, err
}

// AttemptMulti makes a single attempt at a transaction. It sets `open` if the attempt was sent, and
// has no reply.
func AttemptMulti(ctx context.Context, inc *session.Incarnation, ops []any) (rs []zk.MultiResponse, open bool, err error) {
	p, err := StartMulti(ctx, inc, ops)
	if err != nil {
		return nil, false, err
	}
	rs, err = p.Wait(ctx, inc)
	if open = session.OutcomeOf(err) == session.Unknown; open {
		// The ephemeral znodes of ops count as created. If they do not exist, `reserve` forgets them. The
		// name of a numbered znode is unknown here: see Recall.
		for _, op := range ops {
			if op, ok := op.(*zk.CreateRequest); ok && op.Flags&zk.FlagEphemeralSequential == zk.FlagEphemeral {
				of(inc).settle(0, []string{op.Path})
			}
		}
	}
	return rs, open, err
}

// StartMulti is AttemptMulti without the wait for the reply.
func StartMulti(ctx context.Context, inc *session.Incarnation, ops []any) (*session.Pending[[]zk.MultiResponse], error) {
	return session.Start(ctx, inc, multiCall(inc, ops, true))
}

// AttemptCreate makes a single attempt to create a znode, whose name the servers do not complete. It
// sets `open` as AttemptMulti does.
func AttemptCreate(ctx context.Context, inc *session.Incarnation, path string, data []byte, flags int32, acl []zk.ACL) (open bool, err error) {
	p, err := session.Start(ctx, inc, createWithACL(inc, path, data, flags, acl))
	if err != nil {
		return false, err
	}
	_, err = p.Wait(ctx, inc)
	open = session.OutcomeOf(err) == session.Unknown
	if (open || err == nil) && flags == zk.FlagEphemeral {
		of(inc).settle(0, []string{path})
	}
	return open, err
}

// Create creates a persistent znode and its missing parents, which belong to no primitive. It
// reports whether the znode was missing, and leaves an existing znode unchanged.
//
// If a reply is lost, the repetition may find the znode of the first attempt, and report false. A
// caller that must know whether it created the znode writes unique data into it.
func Create(ctx context.Context, inc *session.Incarnation, path string, data []byte) (bool, error) {
	return addDir(ctx, inc, path, Dir{Path: path, Data: append([]byte{}, data...), Kept: true})
}
