package netproxy

import (
	"encoding/binary"
	"io"
)

// This file splits a stream into the frames of ZooKeeper's protocol. link.go interprets the frames.

// maxFrame is the largest length of a frame: a stream with a greater length is not ZooKeeper's
// protocol. ZooKeeper's default limit is 1 MiB, and a four-letter word, read as a length, is over a
// gigabyte.
const maxFrame = 64 << 20

// The type `unit` is a piece of a stream that is forwarded as a whole: a frame of ZooKeeper's
// protocol with its length prefix, or some bytes of another stream.
type unit struct {
	data   []byte
	framed bool
}

// The method `word` returns the i'th int32 of a frame's body, or 0 after its end.
func (u unit) word(i int) int32 {
	at := 4 + 4*i
	if len(u.data) < at+4 {
		return 0
	}
	return int32(binary.BigEndian.Uint32(u.data[at:]))
}

// The type `splitter` splits a stream into units. After a length over maxFrame, such as a
// four-letter word, it returns the rest of the stream as units without frames.
type splitter struct {
	r   io.Reader
	raw bool
}

// The method `next` returns the next unit. At the end of the stream, it returns an incomplete frame
// together with the error.
func (s *splitter) next() (unit, error) {
	if s.raw {
		buf := make([]byte, 32<<10)
		n, err := s.r.Read(buf)
		return unit{data: buf[:n]}, err
	}
	prefix := make([]byte, 4)
	if n, err := io.ReadFull(s.r, prefix); err != nil {
		return unit{data: prefix[:n]}, err
	}
	length := binary.BigEndian.Uint32(prefix)
	if length > maxFrame {
		s.raw = true
		return unit{data: prefix}, nil
	}
	data := append(prefix, make([]byte, length)...)
	n, err := io.ReadFull(s.r, data[4:])
	return unit{data: data[:4+n], framed: err == nil}, err
}
