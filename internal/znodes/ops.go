package znodes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
)

// This file prepares the operations of transactions, and reconstructs lost results. It also has the
// limits of requests.

// Recall reconstructs the responses of a transaction that was applied at zxid, but whose reply
// was lost. It leaves out responses about znodes that other clients have changed or deleted since.
func Recall(ctx context.Context, inc *session.Incarnation, ops []any, zxid int64) []zk.MultiResponse {
	rs := make([]zk.MultiResponse, len(ops))
	listed := make(map[string][]string) // the children of each directory, which is listed once
	read, deleted := make(map[string]bool), make(map[string]bool)
	later := make(map[string]int32) // the number of later writes of the same znode
	for i, op := range slices.Backward(ops) {
		switch op := op.(type) {
		case *zk.DeleteRequest:
			deleted[op.Path] = true // earlier writes were writes of another znode than the present one
		case *zk.SetDataRequest:
			if stat, err := inc.Exists(ctx, op.Path); err == nil && stat != nil && stat.Mzxid == zxid && !deleted[op.Path] {
				stat.Version, stat.DataLength = stat.Version-later[op.Path], int32(len(op.Data))
				rs[i].Stat = stat
			}
			later[op.Path]++
		case *zk.CreateRequest:
			if op.Flags&zk.FlagSequence == 0 {
				rs[i].String = op.Path
				continue
			}
			dir, base := op.Path[:strings.LastIndexByte(op.Path, '/')], op.Path[strings.LastIndexByte(op.Path, '/')+1:]
			names, ok := listed[dir]
			if !ok {
				names, _, _ = inc.Children(ctx, cmp.Or(dir, "/"))
				slices.Sort(names) // the newest comes last; children with one prefix were numbered in the order of the operations
				listed[dir] = names
			}
			for _, name := range slices.Backward(names) {
				if _, ok := ParseSeq(strings.TrimPrefix(name, base)); !ok || !strings.HasPrefix(name, base) || read[dir+"/"+name] {
					continue
				}
				stat, err := inc.Exists(ctx, dir+"/"+name)
				if err != nil || stat != nil && stat.Czxid < zxid {
					break // our znode is deleted, or the servers cannot say
				}
				read[dir+"/"+name] = true
				if stat != nil && stat.Czxid == zxid {
					rs[i].String = dir + "/" + name
					if op.Flags&zk.FlagEphemeral != 0 {
						of(inc).settle(0, []string{rs[i].String}) // no reply has recorded it: see AttemptMulti
					}
					break
				}
			}
			// If several creates have this prefix, and a client has deleted one of their znodes, no
			// reply shows which create made a remaining znode.
			for j := i + 1; j < len(ops) && rs[i].String == ""; j++ {
				if other, ok := ops[j].(*zk.CreateRequest); ok && other.Flags&zk.FlagSequence != 0 && other.Path == op.Path {
					rs[j].String = ""
				}
			}
		}
	}
	return rs
}

// BareResponses removes the chroot from the paths of rs.
func BareResponses(m *session.Manager, rs []zk.MultiResponse) []zk.MultiResponse {
	for i := range rs {
		if rs[i].String != "" {
			rs[i].String = m.Bare(rs[i].String)
		}
	}
	return rs
}

// CheckOps refuses operations that cannot be sent. It returns copies of ops, whose paths include the
// chroot, and the path of a parent in which a log can be created. The copies share no buffer with ops:
// the client may send them after the call has returned. The argument `extra` has the paths, with the
// chroot, of other znodes of the transaction.
func CheckOps(m *session.Manager, ops []any, extra ...string) (full []any, dir string, err error) {
	if len(ops) == 0 {
		return nil, "", session.Invalid("a transaction needs at least one operation")
	}
	full = make([]any, len(ops))
	created := false
	for i, op := range ops {
		if v := reflect.ValueOf(op); v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, "", session.Invalid("operation %d is nil", i)
		}
		var path string
		creates := false
		switch op := op.(type) {
		case *zk.CreateRequest:
			if op.Flags&^zk.FlagEphemeralSequential != 0 {
				return nil, "", session.Invalid("operation %d has flags %d; a transaction creates persistent and ephemeral znodes, sequential or not", i, op.Flags)
			}
			r := *op
			path, creates = op.Path, true
			r.Path, r.Data, r.Acl = m.Full(path), bytes.Clone(op.Data), slices.Clone(op.Acl)
			if len(r.Acl) == 0 {
				r.Acl = m.Config.ACL
			}
			full[i] = &r
		case *zk.SetDataRequest:
			path = op.Path
			full[i] = &zk.SetDataRequest{Path: m.Full(path), Data: bytes.Clone(op.Data), Version: op.Version}
		case *zk.DeleteRequest:
			path = op.Path
			full[i] = &zk.DeleteRequest{Path: m.Full(path), Version: op.Version}
		case *zk.CheckVersionRequest:
			path = op.Path
			full[i] = &zk.CheckVersionRequest{Path: m.Full(path), Version: op.Version}
		default:
			return nil, "", session.Invalid("operation %d is a %T; want *zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest or *zk.CheckVersionRequest", i, op)
		}
		if creates && !created || dir == "" {
			created, dir = creates, ParentPath(m.Full(path))
		}
		named := path
		if c, ok := op.(*zk.CreateRequest); ok && c.Flags&zk.FlagSequence != 0 && len(path) > 1 && path[len(path)-1] == '/' {
			named += "0" // a sequential create: the number is the whole name
		}
		if err := checkPathText(named); err != nil {
			return nil, "", fmt.Errorf("operation %d: %w", i, err)
		}
	}
	// A log cannot be created in a znode that the transaction deletes.
	for slices.ContainsFunc(full, func(op any) bool { d, ok := op.(*zk.DeleteRequest); return ok && d.Path == dir }) {
		dir = ParentPath(dir)
	}
	size := SizeOfOps(m, full)
	for _, path := range append(extra, ChildPath(dir, LogName)) {
		size += SizeOf(m, path, nil)
	}
	if size > MaxPacket {
		return nil, "", fmt.Errorf("a transaction of %d bytes (operations: %d): %w", size, len(ops), session.ErrTooLarge)
	}
	return full, dir, nil
}

// LogName is as long as the longest name of a transaction's log.
const LogName = "_c_xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx-receipt"

// FailedOp returns the index of the operation that made a transaction fail, or -1.
func FailedOp(rs []zk.MultiResponse) int {
	for i, r := range rs {
		if r.Error != nil {
			return i
		}
	}
	return -1
}

// Refused returns err, with which the transaction `ops` has failed. If the servers refused an
// operation, the result also names that operation.
func Refused(ops []any, rs []zk.MultiResponse, err error) error {
	i := FailedOp(rs)
	if err == nil || i < 0 || i >= len(ops) || !errors.Is(err, rs[i].Error) {
		return err
	}
	words := ""
	switch op := ops[i].(type) {
	case *zk.CreateRequest:
		words = "create " + op.Path
	case *zk.SetDataRequest:
		words = "set " + op.Path
	case *zk.DeleteRequest:
		words = "delete " + op.Path
	case *zk.CheckVersionRequest:
		words = "check " + op.Path
	}
	return session.Worded(fmt.Sprintf("operation %d (%s): %v", i, words, err), err)
}

// SweptAfter is an age by the servers' clock. Any client may delete an older znode that records a
// transaction, because the creator of the znode has crashed.
const SweptAfter = 12 * time.Hour

// maxRequest is the largest request that a server with the default jute.maxbuffer accepts. A larger
// request would break the connection for all users of the session. MaxPacket is the limit for sizes
// from [SizeOf].
const (
	maxRequest = 1<<20 - 1
	MaxPacket  = maxRequest - 64
)

// SizeOfACL returns the size of an ACL in a request, or half of its size in the servers' logs if that
// is more. The servers replace an entry of the scheme auth by one entry for each identity of the
// client. If a transaction in their logs has more than twice the size of the largest request, they
// stop for good (see `known`).
func SizeOfACL(m *session.Manager, acl []zk.ACL) (n int) {
	for _, a := range acl {
		n += 12 + len(a.Scheme) + len(a.ID)
	}
	return max(n, (n+growthOfACL(m, acl))/2)
}

// The function `growthOfACL` returns an upper bound of the bytes that the servers add to an ACL.
func growthOfACL(m *session.Manager, acl []zk.ACL) (n int) {
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

// SizeOf returns an upper bound of the size of a request that creates or writes a znode.
func SizeOf(m *session.Manager, path string, data []byte) int {
	return 64 + len(path) + len(data) + SizeOfACL(m, m.Config.ACL)
}

// SizeOfOps returns the size of a transaction in bytes, or half of its size in the servers' logs:
// see [SizeOfACL].
func SizeOfOps(m *session.Manager, ops []any) int {
	n := 8 + wire.SizeOfOps(ops) // 8 is the size of the header
	growth := 0
	for _, op := range ops {
		if create, ok := op.(*zk.CreateRequest); ok {
			growth += growthOfACL(m, create.Acl)
		}
	}
	return max(n, (n+growth)/2)
}

// CheckSize returns ErrTooLarge for a transaction that servers with the default settings do not
// read. These servers would break the connection at each attempt, or stop for good.
func CheckSize(m *session.Manager, ops []any) error {
	if n := SizeOfOps(m, ops); n > maxRequest {
		return fmt.Errorf("a transaction of %d bytes: %w", n, session.ErrTooLarge)
	}
	return nil
}
