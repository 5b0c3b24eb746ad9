// Package marks has what zsync writes into znodes so that it, and tools, can tell for
// certain what a znode is. Other libraries neither write nor read it.
package marks

import (
	"bytes"
	"regexp"
	"strings"
)

const (
	// Gate, followed by the owner, is the data of the znode of a closed Barrier.
	Gate = "zsync: closed by "
	// Map is the data of the znode whose children are the keys of a Map.
	Map = "zsync map"
	// Dir is the data of the directory of a primitive, or the end of them: see [Mark].
	Dir = "zsync directory"
)

// Mark returns the data of a directory that holds data.
func Mark(data []byte) []byte { return append(append(bytes.Clone(data), '\n'), Dir...) }

// IsDir reports whether data are those of a directory.
func IsDir(data []byte) bool {
	return string(data) == Dir || bytes.HasSuffix(data, []byte("\n"+Dir))
}

// Unmark returns what was marked.
func Unmark(data []byte) []byte {
	if string(data) == Dir {
		return nil
	}
	return bytes.TrimSuffix(data, []byte("\n"+Dir))
}

// Within returns the owner of a session whose process was started by a command under other
// sessions: they wait for its end.
func Within(owner string, sessions []string) string {
	if len(sessions) == 0 {
		return owner
	}
	return owner + " within " + strings.Join(sessions, " ")
}

var within = regexp.MustCompile(`^(.*) within((?: 0x[0-9a-f]{1,16})+)$`)

// Outer returns the owner and the sessions that [Within] was called with.
func Outer(data string) (owner string, sessions []string) {
	m := within.FindStringSubmatch(data)
	if m == nil {
		return data, nil
	}
	return m[1], strings.Fields(m[2])
}
