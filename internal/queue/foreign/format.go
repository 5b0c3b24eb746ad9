package foreign

import (
	"cmp"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/zsync/zsync/internal/session"
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

// An elementName is the parsed name of an element.
type elementName struct {
	name  string
	class string // its priority
	seq   int32
	part  string // its position in the znode from which `split` has moved it, or empty
}

// The map `formats` has the format of each layout, by the name that zsync.QueueLayout.String
// returns.
var formats = map[string]*format{
	"SimpleDistributedQueue": {"qn-", "qn-", "", asIs, justOne},
	"DistributedQueue":       {"queue-", "queue-", "queue-1%08X", curatorFrame, curatorOpen},
	"kazoo":                  {"entry-", "entry-100-", "entry-%03d-", asIs, justOne},
}

// The method `element` parses a name. The text between the prefix and the number is the priority.
// All these libraries compare whole names as text, including the suffix that `split` appends to
// the number.
func (f *format) element(name string) (e elementName, ok bool) {
	rest, ok := strings.CutPrefix(name, f.prefix)
	if !ok || strings.Contains(rest, "|") { // names of Curator's delay and id queues have "|"
		return e, false
	}
	rest, part, _ := strings.Cut(rest, "#")
	for _, n := range []int{11, 10} {
		if len(rest) < n {
			continue
		}
		text := rest[len(rest)-n:]
		if n == 11 && text[0] != '-' || n == 11 && len(rest) > n && f.prefix == "entry-" && rest[len(rest)-n-1] != '-' {
			continue
		}
		if seq, ok := session.ParseSeq(text); ok {
			return elementName{name: name, class: rest[:len(rest)-n], seq: seq, part: part}, true
		}
	}
	return e, false
}

// The method `elements` parses names, and leaves out the names of other znodes.
func (f *format) elements(names []string) (es []elementName) {
	for _, name := range names {
		if e, ok := f.element(name); ok {
			es = append(es, e)
		}
	}
	return es
}

// The function `inOrder` compares two elements by their positions.
func inOrder(a, b elementName) int {
	return cmp.Or(strings.Compare(a.class, b.class), cmp.Compare(a.seq-b.seq, 0), strings.Compare(a.part, b.part))
}

// The function `cutFirst` removes the first of some elements, which are in no order.
func cutFirst(es []elementName) (first elementName, rest []elementName) {
	at := 0
	for i := range es {
		if inOrder(es[i], es[at]) < 0 {
			at = i
		}
	}
	first, es[at] = es[at], es[len(es)-1]
	return first, es[:len(es)-1]
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
