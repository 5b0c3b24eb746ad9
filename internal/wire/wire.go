// Package wire encodes and decodes packets of the ZooKeeper protocol. Package conn sends and
// receives the packets.
package wire

import (
	"encoding/binary"

	"github.com/go-zookeeper/zk"
)

// Numbers of the protocol, and limits on packets from a server.
const (
	OpFailed             = -1 // in the reply to a multi
	OpCreate             = 1
	OpDelete             = 2
	OpExists             = 3
	OpGetData            = 4
	OpSetData            = 5
	OpGetACL             = 6
	OpSync               = 9
	OpPing               = 11
	OpGetChildren2       = 12
	OpCheck              = 13
	OpMulti              = 14
	OpRemoveWatches      = 18
	OpCreateContainer    = 19
	OpMultiRead          = 22
	OpAuth               = 100
	OpSetWatches         = 101
	OpSASL               = 102
	OpWhoAmI             = 107
	OpCloseSession       = -11
	XidEvent             = -1
	XidPing              = -2
	XidAuth              = -4
	XidSetWatches        = -8
	CodeConnectionLoss   = -4
	CodeUnimplemented    = -6
	CodeOperationTimeout = -7
	CodeNoNode           = -101
	CodeBadVersion       = -103
	CodeNoChildren       = -108 // the parent is ephemeral
	CodeNodeExists       = -110
	CodeNotEmpty         = -111
	CodeSessionExpired   = -112
	CodeSessionMoved     = -118
	CodeWantsAuth        = -124 // the client has not authenticated, but must
	CodeThrottled        = -127
	MaxHandshake         = 4096
	MaxReply             = 256 << 20 // enough for a listing of millions of znodes
	MaxAhead             = 1 << 20   // the largest buffer that is allocated before the bytes arrive
	SetWatchesPortion    = 64 << 10
)

// AppendHeader appends the header of a request. [EndPacket] fills in the length.
func AppendHeader(p []byte, xid, op int32) []byte {
	p = append(p, 0, 0, 0, 8)
	p = binary.BigEndian.AppendUint32(p, uint32(xid))
	return binary.BigEndian.AppendUint32(p, uint32(op))
}

// AppendInt64 appends n.
func AppendInt64(p []byte, n int64) []byte { return binary.BigEndian.AppendUint64(p, uint64(n)) }

// AppendString appends the length of a string and then the string.
func AppendString(p []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(p, uint32(len(s))), s...)
}

// AppendStrings appends a vector of strings.
func AppendStrings(p []byte, ss []string) []byte {
	p = binary.BigEndian.AppendUint32(p, uint32(len(ss)))
	for _, s := range ss {
		p = AppendString(p, s)
	}
	return p
}

// EndPacket fills in the length of a packet, and returns the packet.
func EndPacket(p []byte) []byte {
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	return p
}

// A Scanner decodes a sequence of values. Each method takes the next value from Rest.
type Scanner struct {
	Rest []byte // the bytes that are not taken yet
	Bad  bool   // there were too few bytes, or they were malformed
}

// Take takes the next n bytes.
func (s *Scanner) Take(n int) []byte {
	if n < 0 || n > len(s.Rest) {
		s.Bad, s.Rest = true, nil
		return nil
	}
	head := s.Rest[:n]
	s.Rest = s.Rest[n:]
	return head
}

// Int32 takes a number.
func (s *Scanner) Int32() int32 {
	b := s.Take(4)
	if s.Bad {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

// Buffer takes a string or a buffer. A length of -1 counts as 0.
func (s *Scanner) Buffer() []byte { return s.Take(max(0, int(s.Int32()))) }

// Next takes the header of the next result in the reply to a multi. After the last result, `more` is
// false.
func (s *Scanner) Next() (op int32, more bool) {
	op = s.Int32()
	done := s.Take(1)
	s.Int32()
	return op, !s.Bad && done[0] == 0
}

// StatSize is the size of a Stat on the wire.
const StatSize = 68

// Stat takes a Stat.
func (s *Scanner) Stat() *zk.Stat {
	p := s.Take(StatSize)
	if s.Bad {
		return nil
	}
	i64 := func(at int) int64 { return int64(binary.BigEndian.Uint64(p[at:])) }
	i32 := func(at int) int32 { return int32(binary.BigEndian.Uint32(p[at:])) }
	return &zk.Stat{
		Czxid: i64(0), Mzxid: i64(8), Ctime: i64(16), Mtime: i64(24),
		Version: i32(32), Cversion: i32(36), Aversion: i32(40),
		EphemeralOwner: i64(44), DataLength: i32(52), NumChildren: i32(56), Pzxid: i64(60),
	}
}
