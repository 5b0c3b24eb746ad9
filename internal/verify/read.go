package verify

// This file parses the records of traces in files. It does not judge them.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/zsync/zsync/internal/trace"
)

// A File has the records of one file.
type File struct {
	Name  string
	Lines []trace.Record // in the order of the file

	// Cut is set if the last line of the file is incomplete. That happens if the process was
	// killed during a write.
	Cut bool
	// Torn lists the numbers of incomplete lines in the middle of the file.
	Torn []int
}

// longest is the largest size of a line. A record of a trace is shorter, because ZooKeeper accepts
// no path of 1 MiB.
const longest = 2 << 20

// Parse reads a file with the records of one or several traces. It fails if the file contains
// anything else, or another version of the format.
func Parse(r io.Reader, name string) (*File, error) {
	in := newReader(r, name)
	f := &File{Name: name}
	for {
		l, err := in.next()
		switch {
		case err == io.EOF:
			f.Cut, f.Torn = in.cut, in.torn
			return f, nil
		case err != nil:
			return nil, err
		}
		f.Lines = append(f.Lines, l)
	}
}

// The type `reader` reads the records of one file, one at a time.
type reader struct {
	name string
	in   *bufio.Reader
	line []byte // the current line, if it is longer than the buffer of `in`
	n    int    // the number of the current line
	some bool   // there was a record
	cut  bool   // see File
	torn []int
}

func newReader(r io.Reader, name string) *reader {
	return &reader{name: name, in: bufio.NewReaderSize(r, 64<<10)}
}

// The method `next` returns the next record, or io.EOF.
func (r *reader) next() (l trace.Record, err error) {
	for {
		text, err := r.read()
		whole := err == nil
		if err != nil && err != io.EOF {
			return trace.Record{}, err
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			l = trace.Record{}
			bad := json.Unmarshal(text, &l)
			switch {
			case bad == nil && l.V != trace.Version:
				return trace.Record{}, fmt.Errorf("%s:%d: version %d of the format; this program knows %d", r.name, r.n, l.V, trace.Version)
			case bad == nil && (l.Trace == "" || l.Event == "" || l.N == 0):
				return trace.Record{}, fmt.Errorf("%s:%d: no line of a trace: %.60q", r.name, r.n, text)
			case bad == nil:
				r.some = true
				return l, nil // after the last record, the next read returns io.EOF
			case !whole && r.some:
				r.cut = true
			case !r.some:
				return trace.Record{}, fmt.Errorf("%s:%d: no line of a trace: %w", r.name, r.n, bad)
			default:
				r.torn = append(r.torn, r.n)
			}
		}
		if !whole {
			return trace.Record{}, io.EOF
		}
	}
}

// The method `read` returns the next line. The result is valid until the next call.
func (r *reader) read() ([]byte, error) {
	r.n++
	r.line = r.line[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		if err != bufio.ErrBufferFull && len(r.line) == 0 {
			return part, r.named(err)
		}
		if len(r.line)+len(part) > longest {
			return nil, fmt.Errorf("%s:%d: no line of a trace: longer than %d bytes: %.60q", r.name, r.n, longest, r.line)
		}
		r.line = append(r.line, part...)
		if err != bufio.ErrBufferFull {
			return r.line, r.named(err)
		}
	}
}

// The method `named` adds the name of the file to a read error.
func (r *reader) named(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return fmt.Errorf("%s: %w", r.name, err)
}
