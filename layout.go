package zsync

import (
	"strconv"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// This file has the layouts of the znodes of a line: the names that zsync, Curator,
// go-zookeeper and kazoo give them. It does no I/O.

// A Layout is a choice of znode names, with which programs that use other libraries can
// share a path with zsync.
type Layout int

const (
	// LayoutCurator is the layout of Apache Curator and of go-zookeeper's own Lock:
	// "_c_<uuid>-lock-<seq>"; for an Election, the layout of Curator's LeaderLatch:
	// "_c_<uuid>-latch-<seq>". It is the default.
	LayoutCurator Layout = iota
	// LayoutKazoo is the layout of kazoo (Python): "<guid>__lock__<seq>".
	LayoutKazoo
	// LayoutSelector is the layout of Curator's LeaderSelector, for elections only:
	// "_c_<uuid>-lock-<seq>". See [WithLayout].
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
		return line.KazooName
	}
	return session.ProtectedName
}
