package trace

// This file reads traces from files. It does not judge them.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sort"
)

// A File has the records of one file.
type File struct {
	Name  string
	Lines []Line // in the order of the file

	// Cut is set if the last line of the file is incomplete. That happens if the process was
	// killed during a write.
	Cut bool
	// Torn has the numbers of incomplete lines in the middle of the file.
	Torn []int
}

// longest is more than the longest record of a trace: ZooKeeper accepts no path of 1 MiB.
const longest = 2 << 20

// Parse reads a file with the records of one or several traces. It fails if the file contains
// anything else, or another version of the format.
func Parse(r io.Reader, name string) (*File, error) {
	f := &File{Name: name}
	in := bufio.NewReaderSize(r, longest)
	for n := 1; ; n++ {
		text, err := in.ReadSlice('\n')
		whole := err == nil
		if err == bufio.ErrBufferFull {
			return nil, fmt.Errorf("%s:%d: no line of a trace: longer than %d bytes: %.60q", name, n, longest, text)
		}
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			var l Line
			bad := json.Unmarshal(text, &l)
			switch {
			case bad == nil && l.V != Version:
				return nil, fmt.Errorf("%s:%d: version %d of the format; this program knows %d", name, n, l.V, Version)
			case bad == nil && (l.Trace == "" || l.Event == "" || l.N == 0):
				return nil, fmt.Errorf("%s:%d: no line of a trace: %.60q", name, n, text)
			case bad == nil:
				f.Lines = append(f.Lines, l)
			case !whole && len(f.Lines) > 0:
				f.Cut = true
			case len(f.Lines) == 0:
				return nil, fmt.Errorf("%s:%d: no line of a trace: %w", name, n, bad)
			default:
				f.Torn = append(f.Torn, n)
			}
		}
		if !whole {
			return f, nil
		}
	}
}

// one is a trace: the records of one Session of one process, in order.
type one struct {
	id    string
	owner string
	lines []Line
}

// traces sorts the records of files by trace. A file may have several traces, and a trace may
// continue in the next file, as when files are rotated.
func traces(files []*File) []*one {
	byID := make(map[string]*one)
	var all []*one
	for _, f := range files {
		for _, l := range f.Lines {
			t := byID[l.Trace]
			if t == nil {
				t = &one{id: l.Trace}
				byID[l.Trace] = t
				all = append(all, t)
			}
			if l.Event == Begin {
				t.owner = l.Owner
			}
			t.lines = append(t.lines, l)
		}
	}
	for _, t := range all {
		sort.SliceStable(t.lines, func(i, j int) bool { return t.lines[i].N < t.lines[j].N })
	}
	return all
}
