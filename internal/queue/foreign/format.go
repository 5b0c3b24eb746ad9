package foreign

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/zsync/zsync/internal/znodes"
)

// This file writes and parses the names and frames of other libraries. It does no I/O.

// The type `format` is the way in which another library writes elements.
type format struct {
	prefix string
	plain  string // the name of an element without a priority, up to its number
	ranked string // the name of an element with a priority, for fmt.Sprintf
	frame  func(all ...[]byte) []byte
	open   func(data []byte) ([][]byte, error) // the inverse of `frame`; a znode can hold several elements
}

func asIs(all ...[]byte) []byte             { return all[0] }
func justOne(data []byte) ([][]byte, error) { return [][]byte{data}, nil }

// The map `formats` has the format of each layout, by the name that zsync.QueueLayout.String
// returns.
var formats = map[string]*format{
	"SimpleDistributedQueue": {"qn-", "qn-", "", asIs, justOne},
	"DistributedQueue":       {"queue-", "queue-", "queue-1%08X", curatorFrame, curatorOpen},
	"kazoo":                  {"entry-", "entry-100-", "entry-%03d-", asIs, justOne},
}

// The method `class` returns the priority of an element: the text between the prefix and the number in its
// name. A suffix that `split` has appended to the number can follow. If the name is not the name of an
// element, `ok` is false.
func (f *format) class(name string) (class string, ok bool) {
	rest, ok := strings.CutPrefix(name, f.prefix)
	rest, _, _ = strings.Cut(rest, "#")
	n := len(rest) - len("0000000000")
	if !ok || n < 0 || strings.Contains(name, "|") { // names of Curator's delay and id queues have "|"
		return "", false
	}
	_, ok = znodes.ParseSeq(rest[n:])
	return rest[:n], ok
}

// The method `elements` returns the names of elements among `names`. Like these libraries, compare the whole
// names as text for the order of the elements.
func (f *format) elements(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, ok := f.class(name)
		return !ok
	})
}

// Curator's frame is a version, the elements, and an end byte. Each element is an item byte, its
// length and its data.
const (
	curatorVersion = 0x00010001
	curatorItem    = 0x01
	curatorEnd     = 0x02
)

func curatorFrame(all ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, curatorVersion)
	for _, data := range all {
		b = append(b, curatorItem)
		b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
		b = append(b, data...)
	}
	return append(b, curatorEnd)
}

var errFrame = errors.New("not an element in Curator's frame")

func curatorOpen(b []byte) (all [][]byte, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != curatorVersion {
		return nil, errFrame
	}
	for b = b[4:]; ; {
		switch {
		case len(b) > 0 && b[0] == curatorEnd:
			return all, nil
		case len(b) < 5 || b[0] != curatorItem:
			return nil, errFrame
		}
		n := int(int32(binary.BigEndian.Uint32(b[1:])))
		if n < 0 || n > len(b)-5 {
			return nil, errFrame
		}
		all, b = append(all, b[5:5+n]), b[5+n:]
	}
}
