// Package marks has the data by which zsync and its tools recognize znodes with certainty.
// Other libraries neither write nor read them.
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
	// Dir is the data of the parent znode of a primitive. If that znode has other data, Dir is
	// their last line: see [Mark].
	Dir = "zsync directory"
)

// Mark returns the data of the parent znode of a primitive that stores data there.
func Mark(data []byte) []byte { return append(append(bytes.Clone(data), '\n'), Dir...) }

// IsDir reports whether data is the data of the parent znode of a primitive.
func IsDir(data []byte) bool {
	return string(data) == Dir || bytes.HasSuffix(data, []byte("\n"+Dir))
}

// Unmark returns data without the mark.
func Unmark(data []byte) []byte {
	if string(data) == Dir {
		return nil
	}
	return bytes.TrimSuffix(data, []byte("\n"+Dir))
}

// Within returns the owner of a session, followed by the sessions whose commands have started its
// process. These commands wait for the end of the process.
func Within(owner string, sessions []string) string {
	if len(sessions) == 0 {
		return owner
	}
	return owner + " within " + strings.Join(sessions, " ")
}

var within = regexp.MustCompile(`^(.*) within((?: 0x[0-9a-f]{1,16})+)$`)

// Outer returns the owner and the sessions from which [Within] has made data.
func Outer(data string) (owner string, sessions []string) {
	m := within.FindStringSubmatch(data)
	if m == nil {
		return data, nil
	}
	return m[1], strings.Fields(m[2])
}
