package session

import (
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// This file encodes the requests of a session and decodes their replies. request.go and batch.go
// send them.

func (inc *Incarnation) createCall(path string, data []byte, flags int32) call[string] {
	return inc.createWithACL(path, data, flags, inc.Manager.Config.ACL)
}

func (inc *Incarnation) createWithACL(path string, data []byte, flags int32, acl []zk.ACL) call[string] {
	op, refused := int32(wire.OpCreate), (func(int32))(nil)
	switch {
	case flags != zk.FlagContainer:
	case inc.Manager.noContainers.Load(): // before ZooKeeper 3.5
		flags = zk.FlagPersistent
	default:
		op = wire.OpCreateContainer
		refused = func(code int32) {
			if code == wire.CodeUnimplemented {
				inc.Manager.noContainers.Store(true)
			}
		}
	}
	return call[string]{
		op: op, path: path, refused: refused,
		body: func(p []byte) []byte { return wire.AppendCreate(p, data, acl, flags) },
		take: func(s *wire.Scanner) string {
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

func getCall(path string) call[Node] {
	return call[Node]{op: wire.OpGetData, path: path, take: func(s *wire.Scanner) Node { return Node{s.Data(), s.Stat()} }}
}

func existsCall(path string) call[*zk.Stat] {
	return call[*zk.Stat]{op: wire.OpExists, path: path, take: (*wire.Scanner).Stat}
}

// The type `listing` has the children of a znode.
type listing struct {
	names []string
	stat  *zk.Stat
}

func childrenCall(path string) call[listing] {
	return call[listing]{op: wire.OpGetChildren2, path: path, take: func(s *wire.Scanner) listing { return listing{s.Strings(), s.Stat()} }}
}

func setCall(path string, data []byte, version int32) call[*zk.Stat] {
	return call[*zk.Stat]{
		op: wire.OpSetData, path: path,
		body: func(p []byte) []byte { return wire.AppendInt32(wire.AppendBuffer(p, data), version) },
		take: (*wire.Scanner).Stat,
	}
}

func aclCall(path string) call[[]zk.ACL] {
	return call[[]zk.ACL]{op: wire.OpGetACL, path: path, take: (*wire.Scanner).ACL}
}

// whoAmICall asks for the identities of this client, which are ACL entries without permissions.
// Servers know this request since version 3.7.
func whoAmICall() call[[]zk.ACL] {
	return call[[]zk.ACL]{op: wire.OpWhoAmI, take: func(s *wire.Scanner) (ids []zk.ACL) {
		for n := s.Int32(); n > 0 && !s.Bad; n-- {
			ids = append(ids, zk.ACL{Scheme: s.String(), ID: s.String()})
		}
		return ids
	}}
}

func multiCall(ops []any) call[[]zk.MultiResponse] {
	return call[[]zk.MultiResponse]{
		op: wire.OpMulti, ops: ops,
		body: func(p []byte) []byte { return wire.AppendOps(p, ops) },
		judge: func(s *wire.Scanner) ([]zk.MultiResponse, int32, error) {
			rs, code := s.Results(len(ops), wire.Error)
			for i, r := range rs {
				if op, ok := ops[i].(*zk.CreateRequest); ok && code == 0 && !isMade(r.String, op.Path, op.Flags) {
					s.Bad = true
				}
			}
			return rs, code, wire.Error(code)
		},
	}
}

func bundleCall(paths []string) call[[]Node] {
	return call[[]Node]{
		op:   wire.OpMultiRead,
		body: func(p []byte) []byte { return wire.AppendReads(p, paths) },
		judge: func(s *wire.Scanner) (nodes []Node, code int32, err error) {
			nodes, err = parseBundle(s, len(paths))
			return nodes, 0, err
		},
	}
}
