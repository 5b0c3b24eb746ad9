package znodes

// This file has the rules for paths and names of znodes.

import (
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/zsync/zsync/internal/session"
)

// ChildPath joins a parent and the name of a child.
func ChildPath(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// ParentPath returns the parent of p.
func ParentPath(p string) string { return path.Dir(p) }

// BaseName returns the last element of p.
func BaseName(p string) string { return path.Base(p) }

// CheckPath refuses a path that ZooKeeper refuses, and a path that is too long. It also refuses the
// root, at which no primitive can be.
func CheckPath(p string) error {
	if len(p) > MaxPath {
		return session.Invalid("path of %d bytes is too long; the limit is %d", len(p), MaxPath)
	}
	return checkPathText(p)
}

// checkPathText is CheckPath without the limit on the length. ZooKeeper's PathUtils has the same
// rules.
func checkPathText(p string) error {
	switch {
	case p == "":
		return session.Invalid("path is empty; want an absolute path such as /locks/nightly")
	case p[0] != '/':
		return session.Invalid("path %q is relative; it must begin with a slash", p)
	case p == "/":
		return session.Invalid("path %q is the root; name a znode below it", p)
	case p[len(p)-1] == '/':
		return session.Invalid("path %q ends in a slash", p)
	case !utf8.ValidString(p):
		return session.Invalid("path %q is not valid UTF-8", p)
	}
	for elem := range strings.SplitSeq(p[1:], "/") {
		switch elem {
		case "":
			return session.Invalid("path %q has an empty element", p)
		case ".", "..":
			return session.Invalid("path %q has a relative element %q", p, elem)
		}
	}
	for _, r := range p {
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return session.Invalid("path %q contains the character %U, which ZooKeeper refuses", p, r)
		}
	}
	return nil
}

// MaxPath is the greatest length of a primitive's path, and of the chroot. So a request with many
// znodes of a primitive stays below the packet limit.
const MaxPath = 2048

// NewGUID returns a unique part of a znode's name: 36 lower-case characters with dashes, as
// Curator requires.
func NewGUID() string { return uuid.NewString() }

// NewMarkedGUID is NewGUID with a mark that needs no extra characters: the UUID has version 8
// (custom) instead of version 4 (random).
func NewMarkedGUID() string {
	id := uuid.New()
	id[6] = id[6]&0x0f | 0x80
	return id.String()
}

// IsMarkedGUID reports whether guid, of 36 characters or of 32 without dashes, is a result of
// NewMarkedGUID.
func IsMarkedGUID(guid string) bool {
	id, err := uuid.Parse(guid)
	return err == nil && id.Version() == 8 && id.Variant() == uuid.RFC4122
}

// ProtectedName returns a name in Curator's form, by which the creator finds the znode after a lost
// reply.
func ProtectedName(guid, base string) string { return "_c_" + guid + "-" + base }

// ParseSeq parses an int32 that the server has formatted with "%010d": ten digits, or a minus sign
// and nine or ten digits.
func ParseSeq(s string) (int32, bool) {
	if len(s) < 10 || len(s) > 11 || len(s) == 11 && s[0] != '-' {
		return 0, false
	}
	for i, r := range s {
		if (r < '0' || r > '9') && (r != '-' || i != 0) {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err == nil
}
