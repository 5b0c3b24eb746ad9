package zsync

import "encoding/binary"

// This file knows how packets are made of bytes, as far as the link must.

// Numbers of the wire protocol.
const (
	opFailed          = -1 // in the reply to a multi
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opPing            = 11
	opGetChildren2    = 12
	opCheck           = 13
	opMulti           = 14
	opRemoveWatches   = 18
	opCreateContainer = 19
	opMultiRead       = 22
	opAuth            = 100
	opSetWatches      = 101
	opCloseSession    = -11
	xidEvent          = -1
	xidPing           = -2
	xidAuth           = -4
	xidSetWatches     = -8
	xidRemoveWatches  = -9
	errCodeNoNode     = -101
	handshakeMax      = 4096
	replyMax          = 256 << 20 // of a listing of millions
	setWatchesPortion = 128 << 10
)

// packetPath returns the path with which the body of a request begins.
func packetPath(p []byte) (string, bool) {
	if len(p) < 16 {
		return "", false
	}
	n := int(binary.BigEndian.Uint32(p[12:]))
	if n < 0 || n > len(p)-16 {
		return "", false
	}
	return string(p[16 : 16+n]), true
}

// appendHeader begins a packet; endPacket fills in its length.
func appendHeader(p []byte, xid, op int32) []byte {
	p = append(p, 0, 0, 0, 8)
	p = binary.BigEndian.AppendUint32(p, uint32(xid))
	return binary.BigEndian.AppendUint32(p, uint32(op))
}

func appendInt64(p []byte, n int64) []byte { return binary.BigEndian.AppendUint64(p, uint64(n)) }

func appendString(p []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(p, uint32(len(s))), s...)
}

func appendStrings(p []byte, ss []string) []byte {
	p = binary.BigEndian.AppendUint32(p, uint32(len(ss)))
	for _, s := range ss {
		p = appendString(p, s)
	}
	return p
}

func endPacket(p []byte) []byte {
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	return p
}

func authPacket(a auth) []byte {
	p := appendHeader(nil, xidAuth, opAuth)
	p = binary.BigEndian.AppendUint32(p, 0)
	p = appendString(p, a.scheme)
	return endPacket(appendString(p, string(a.auth)))
}

// A scanner takes bytes apart that may be anything.
type scanner struct {
	p   []byte
	bad bool // there was less than was asked for
}

func (s *scanner) take(n int) []byte {
	if n < 0 || n > len(s.p) {
		s.bad, s.p = true, nil
		return nil
	}
	head := s.p[:n]
	s.p = s.p[n:]
	return head
}

func (s *scanner) int32() int32 {
	b := s.take(4)
	if s.bad {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

// buffer takes a string or a buffer, whose length may be -1.
func (s *scanner) buffer() []byte { return s.take(max(0, int(s.int32()))) }

// next takes the header of an operation in a multi, or of its result, and
// reports whether it is one and not the end.
func (s *scanner) next() (op int32, more bool) {
	op = s.int32()
	done := s.take(1)
	s.int32()
	return op, !s.bad && done[0] == 0
}

// countOps returns how many operations a request for a multi has, or -1 if p is
// none. p begins behind the header.
func countOps(p []byte) (n int) {
	s := scanner{p: p}
	for {
		op, more := s.next()
		if !more {
			break
		}
		n++
		s.buffer() // the path
		switch op {
		case opCreate:
			s.buffer() // data
			for acls := s.int32(); acls > 0 && !s.bad; acls-- {
				s.int32()
				s.buffer()
				s.buffer()
			}
		case opSetData:
			s.buffer()
		}
		s.int32() // flags, or version
	}
	if s.bad {
		return -1
	}
	return n
}

// countResults returns how many results a reply to a multi has, or -2 if p is
// none. p begins behind the header.
func countResults(p []byte) (n int) {
	s := scanner{p: p}
	for {
		op, more := s.next()
		if !more {
			break
		}
		n++
		switch op {
		case opCreate:
			s.buffer()
		case opSetData:
			s.take(statSize)
		case opFailed:
			s.int32()
		case opDelete, opCheck:
		default:
			s.bad = true
		}
	}
	if s.bad {
		return -2
	}
	return n
}
