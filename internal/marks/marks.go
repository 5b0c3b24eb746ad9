// Package marks defines the data by which zsync and its tools recognize znodes with certainty.
// Other libraries do not write or read these data.
package marks

import (
	"bytes"
	"regexp"
	"strings"
)

const (
	// Gate is the beginning of the data of a closed Barrier's znode. The owner follows.
	Gate = "zsync: closed by "
	// Map is the data of the znode whose children are the keys of a Map.
	Map = "zsync map"
	// Dir is the data of the parent znode of a primitive. If the znode also stores other data, Dir is
	// the last line: see [Mark].
	Dir = "zsync directory"
)

// Mark adds the mark, a last line that is `Dir`, to the data that a primitive stores in its parent
// znode.
func Mark(data []byte) []byte { return append(append(bytes.Clone(data), '\n'), Dir...) }

// IsDir reports whether `data` is the data of the parent znode of a primitive.
func IsDir(data []byte) bool {
	return string(data) == Dir || bytes.HasSuffix(data, []byte("\n"+Dir))
}

// IsParent reports whether `data` is the data of a parent znode of a primitive, or of a Map's keys.
func IsParent(data []byte) bool { return IsDir(data) || string(data) == Map }

// Unmark returns `data`, the data of a parent znode, without the mark.
func Unmark(data []byte) []byte {
	if string(data) == Dir {
		return nil
	}
	return bytes.TrimSuffix(data, []byte("\n"+Dir))
}

// Within returns data with two parts: an owner, and the sessions of outer commands. An outer
// command has started the owner's process, and waits for its end.
func Within(owner string, sessions []string) string {
	if len(sessions) == 0 {
		return owner
	}
	return owner + " within " + strings.Join(sessions, " ")
}

var within = regexp.MustCompile(`^(.*) within((?: 0x[0-9a-f]{1,16})+)$`)

// Outer is the inverse of [Within]: it returns the owner and the sessions in data.
func Outer(data string) (owner string, sessions []string) {
	m := within.FindStringSubmatch(data)
	if m == nil {
		return data, nil
	}
	return m[1], strings.Fields(m[2])
}
