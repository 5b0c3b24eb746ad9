package wire

// This file encodes the bodies of requests and decodes the parts of replies. Package conn sends
// requests and matches replies with them.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// AppendInt32 appends n.
func AppendInt32(p []byte, n int32) []byte { return binary.BigEndian.AppendUint32(p, uint32(n)) }

// AppendBuffer appends the length of b and then b. The length is -1 if b is nil.
func AppendBuffer(p, b []byte) []byte {
	if b == nil {
		return AppendInt32(p, -1)
	}
	return append(AppendInt32(p, int32(len(b))), b...)
}

// Connect returns a handshake. If id is 0, the handshake opens a new session, otherwise it
// continues the session id.
func Connect(zxid int64, timeout time.Duration, id int64, password []byte) []byte {
	p := AppendInt32(nil, 0) // the length
	p = AppendInt32(p, 0)    // the version of the protocol
	p = AppendInt64(p, zxid)
	p = AppendInt32(p, int32(timeout/time.Millisecond))
	p = AppendInt64(p, id)
	return EndPacket(AppendBuffer(p, password))
}

// AppendCreate appends the rest of a create request. The path comes before that rest.
func AppendCreate(p, data []byte, acl []zk.ACL, flags int32) []byte {
	p = AppendBuffer(p, data)
	p = AppendInt32(p, int32(len(acl)))
	for _, a := range acl {
		p = AppendInt32(p, a.Perms)
		p = AppendString(p, a.Scheme)
		p = AppendString(p, a.ID)
	}
	return AppendInt32(p, flags)
}

// SizeOfOps returns the number of bytes that AppendOps appends.
func SizeOfOps(ops []any) int {
	n := 9 // the header behind the last operation; each operation has one, too
	for _, op := range ops {
		n += 9
		switch op := op.(type) {
		case *zk.CreateRequest:
			n += 16 + len(op.Path) + len(op.Data)
			for _, a := range op.Acl {
				n += 12 + len(a.Scheme) + len(a.ID)
			}
		case *zk.SetDataRequest:
			n += 12 + len(op.Path) + len(op.Data)
		case *zk.DeleteRequest:
			n += 8 + len(op.Path)
		case *zk.CheckVersionRequest:
			n += 8 + len(op.Path)
		}
	}
	return n
}

// AppendOps appends the operations of a multi. Their types are go-zookeeper's.
func AppendOps(p []byte, ops []any) []byte {
	p = slices.Grow(p, SizeOfOps(ops)) // otherwise a large transaction is copied about five times
	head := func(op int32, path string) {
		p = AppendString(appendOpHeader(p, op), path)
	}
	for _, op := range ops {
		switch op := op.(type) {
		case *zk.CreateRequest:
			head(OpCreate, op.Path)
			p = AppendCreate(p, op.Data, op.Acl, op.Flags)
		case *zk.SetDataRequest:
			head(OpSetData, op.Path)
			p = AppendInt32(AppendBuffer(p, op.Data), op.Version)
		case *zk.DeleteRequest:
			head(OpDelete, op.Path)
			p = AppendInt32(p, op.Version)
		case *zk.CheckVersionRequest:
			head(OpCheck, op.Path)
			p = AppendInt32(p, op.Version)
		default:
			panic(fmt.Sprintf("zsync: BUG: operation of type %T", op))
		}
	}
	return append(p, endOfOps...)
}

// AppendReads appends the operations of a multiRead: one OpGetData for each path.
func AppendReads(p []byte, paths []string) []byte {
	for _, path := range paths {
		p = AppendString(appendOpHeader(p, OpGetData), path)
		p = append(p, 0) // no watch
	}
	return append(p, endOfOps...)
}

// endOfOps is the header behind the last operation of a multi.
const endOfOps = "\xff\xff\xff\xff\x01\xff\xff\xff\xff"

func appendOpHeader(p []byte, op int32) []byte {
	return AppendInt32(append(AppendInt32(p, op), 0), -1)
}

// String takes a string.
func (s *Scanner) String() string { return string(s.Buffer()) }

// Data takes a buffer and returns a copy. If the length is -1, Data returns nil.
func (s *Scanner) Data() []byte {
	n := s.Int32()
	if n == -1 || s.Bad {
		return nil
	}
	return bytes.Clone(s.Take(int(n)))
}

// Strings takes a vector of names, and drops empty names. All names share one allocation. So a
// caller that stores only a few of many names should copy these few.
func (s *Scanner) Strings() (names []string) {
	n := int(s.Int32())
	if n <= 0 || s.Bad {
		return nil
	}
	if n > len(s.Rest)/4 { // each name begins with 4 bytes for its length
		s.Bad = true
		return nil
	}
	count, ahead := 0, *s
	for range n {
		if len(ahead.Buffer()) > 0 {
			count++
		}
	}
	all := string(s.Rest)
	names = make([]string, 0, count)
	for range n {
		if b := s.Buffer(); len(b) > 0 {
			end := len(all) - len(s.Rest)
			names = append(names, all[end-len(b):end])
		}
	}
	if s.Bad {
		return nil
	}
	return names
}

// ACL takes a list of permissions.
func (s *Scanner) ACL() (acl []zk.ACL) {
	for n := s.Int32(); n > 0 && !s.Bad; n-- {
		acl = append(acl, zk.ACL{Perms: s.Int32(), Scheme: s.String(), ID: s.String()})
	}
	return acl
}

// Results takes the results of the n operations of a multi. The result `code` is the first error
// code, which is the reason for the failure. If the multi succeeded, `code` is 0.
func (s *Scanner) Results(n int, toError func(code int32) error) (rs []zk.MultiResponse, code int32) {
	rs = make([]zk.MultiResponse, 0, n)
	for op, more := s.Next(); more; op, more = s.Next() {
		var r zk.MultiResponse
		switch op {
		case OpCreate:
			r.String = s.String()
		case OpSetData:
			r.Stat = s.Stat()
		case OpFailed:
			c := s.Int32()
			r.Error = toError(c)
			if code == 0 {
				code = c
			}
		case OpDelete, OpCheck:
		default:
			s.Bad = true
		}
		rs = append(rs, r)
	}
	if s.Bad || len(rs) != n {
		s.Bad = true
		return nil, 0
	}
	return rs, code
}
