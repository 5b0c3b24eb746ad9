package zsync

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// This file knows what znodes are called: which paths are well formed, how the
// children of a line are named by zsync, Curator, go-zookeeper and kazoo, and
// how their sequence numbers compare. It does no I/O.

// A Layout is a choice of znode names, so that programs written with other
// libraries can share a path with zsync.
type Layout int

const (
	// LayoutCurator is the layout of Apache Curator and of go-zookeeper's
	// own Lock: "_c_<uuid>-lock-<seq>"; for an Election, that of Curator's
	// LeaderLatch: "_c_<uuid>-latch-<seq>". It is the default.
	LayoutCurator Layout = iota
	// LayoutKazoo is the layout of kazoo (Python): "<guid>__lock__<seq>".
	LayoutKazoo
	// LayoutSelector is that of Curator's LeaderSelector, for elections
	// alone: "_c_<uuid>-lock-<seq>". See [WithElectionLayout].
	LayoutSelector
)

// String returns "curator", "kazoo" or "selector".
func (l Layout) String() string {
	switch l {
	case LayoutCurator:
		return "curator"
	case LayoutKazoo:
		return "kazoo"
	case LayoutSelector:
		return "selector"
	}
	return "Layout(" + strconv.Itoa(int(l)) + ")"
}

// naming returns how a znode of the layout is named, up to its number.
func (l Layout) naming() func(guid, base string) string {
	if l == LayoutKazoo {
		return kazooName
	}
	return protectedName
}

// A child is the parsed name of a sequential znode.
type child struct {
	name string // as ZooKeeper gives it, without the parent
	base string // what it is: "lock-", "__READ__", ...
	seq  int32  // wraps after 2^31-1, as the server's counter does
}

// contenderBases is what marks the contenders of locks and elections, of every
// kind and layout, before their number.
var contenderBases = []string{"lock-", "__lock__", "__rlock__", "__WRIT__", "__READ__", "latch-"}

// before reports whether c came before d. Sequence numbers are compared by
// serial arithmetic (RFC 1982), so the order survives the wrap from 2147483647
// to -2147483648 as long as fewer than 2^31 lie between the two.
func (c child) before(d child) bool { return c.seq-d.seq < 0 }

// exhausted reports whether c's number is one of those that a server gives when
// it has given them all. See line.inOrder.
func (c child) exhausted() bool { return c.seq < 0 || c.seq == math.MaxInt32 }

// parseChild splits name into base and sequence number, for the first of bases
// that it carries right before its number. The number is read from the end: a
// name may hold anything before its base.
func parseChild(name string, bases ...string) (child, bool) {
	for _, base := range bases {
		i := strings.LastIndex(name, base)
		if i < 0 {
			continue
		}
		if seq, ok := parseSeq(name[i+len(base):]); ok {
			return child{name: name, base: base, seq: seq}, true
		}
	}
	return child{}, false
}

// parseSeq reads the server's "%010d" of an int32: ten digits, or a minus sign
// and as many digits as "%010d" gives a negative number.
func parseSeq(s string) (int32, bool) {
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

// parseChildren returns the children among names that carry one of bases, in
// the order of the line. Others are none of our business and are left out.
// Children with equal numbers (a writer and the read node it downgrades to)
// are ordered by name, so that everyone sees them in one order.
func parseChildren(names []string, bases ...string) []child {
	line := make([]child, 0, len(names))
	for _, name := range names {
		if c, ok := parseChild(name, bases...); ok {
			line = append(line, c)
		}
	}
	slices.SortFunc(line, func(a, b child) int {
		if a.seq != b.seq {
			return cmp.Compare(a.seq-b.seq, 0)
		}
		return strings.Compare(a.name, b.name)
	})
	return line
}

// newGUID returns what makes a znode's name unique: 36 lower-case characters,
// dashed, as Curator wants them.
func newGUID() string { return uuid.NewString() }

// protectedName is Curator's form of a name that its creator can find again
// when the reply to the create was lost.
func protectedName(guid, base string) string { return "_c_" + guid + "-" + base }

// kazooName is kazoo's form of the same.
func kazooName(guid, base string) string { return strings.ReplaceAll(guid, "-", "") + base }

// childPath joins a parent and the name of a child.
func childPath(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// parentPath returns the parent of p.
func parentPath(p string) string { return path.Dir(p) }

// baseName returns the last element of p.
func baseName(p string) string { return path.Base(p) }

// maxPath bounds the paths of primitives and the chroot, so that a request which
// names many of their znodes stays below the packet limit.
const maxPath = 2048

// checkPath refuses what ZooKeeper would refuse, the root, which can carry no
// primitive, and what is too long.
func checkPath(p string) error {
	if len(p) > maxPath {
		return invalid("path of %d bytes is too long; the limit is %d", len(p), maxPath)
	}
	return checkPathText(p)
}

// checkPathText is checkPath but for the length. The rules are those of
// ZooKeeper's PathUtils.
func checkPathText(p string) error {
	switch {
	case p == "":
		return invalid("path is empty; want an absolute path such as /locks/nightly")
	case p[0] != '/':
		return invalid("path %q is relative; it must begin with a slash", p)
	case p == "/":
		return invalid("path %q is the root; name a znode below it", p)
	case p[len(p)-1] == '/':
		return invalid("path %q ends in a slash", p)
	case !utf8.ValidString(p):
		return invalid("path %q is not valid UTF-8", p)
	}
	for elem := range strings.SplitSeq(p[1:], "/") {
		switch elem {
		case "":
			return invalid("path %q has an empty element", p)
		case ".", "..":
			return invalid("path %q has a relative element %q", p, elem)
		}
	}
	for _, r := range p {
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return invalid("path %q contains the character %U, which ZooKeeper refuses", p, r)
		}
	}
	return nil
}
