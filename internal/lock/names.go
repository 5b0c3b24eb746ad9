package lock

// This file has the names of contenders and permits, and the order that names alone can show.
// It reads no znodes.

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/session"
)

// A Child is the parsed name of a sequential znode.
type Child struct {
	Name string // as ZooKeeper returns it, without the parent
	Base string // its kind: "lock-", "__READ__", ...
	Seq  int32  // wraps after 2^31-1, like the server's counter
}

// contenderBases mark the contenders of locks and elections, of every kind and layout, before
// their number.
var contenderBases = []string{"lock-", "__lock__", "__rlock__", "__WRIT__", "__READ__", "latch-"}

// kindOf returns the primitive, with its article, whose contenders have this base.
func kindOf(base string) string {
	switch base {
	case "latch-":
		return "an Election"
	case "lock-":
		return "a Mutex"
	case "__WRIT__", "__READ__":
		return "an RWMutex"
	case "__lock__", "__rlock__":
		return "a lock of kazoo's layout"
	}
	return "another primitive"
}

// Exhausted reports whether c has a number that a parent gives only after it has given all numbers
// below 2147483647. See split.
func (c Child) Exhausted() bool { return c.Seq < 0 || c.Seq == math.MaxInt32 }

// ParseChild splits name into base and number, for the first of bases that comes right before a
// number. It parses from the end: a name may have any text before its base.
func ParseChild(name string, bases ...string) (Child, bool) {
	for _, base := range bases {
		i := strings.LastIndex(name, base)
		if i < 0 {
			continue
		}
		if seq, ok := session.ParseSeq(name[i+len(base):]); ok {
			return Child{Name: name, Base: base, Seq: seq}, true
		}
	}
	return Child{}, false
}

// ParseChildren returns the children among names with any of bases, in the order of their
// numbers: from 0 to 2147483647, then from -2147483648 to -1. Other names are left out. Children
// with equal numbers (a writer, and the read znode to which it downgrades) are ordered by name.
// So every client has the same order, however a server lists them. split says whether that is the
// order of arrival.
func ParseChildren(names []string, bases ...string) []Child {
	line := make([]Child, 0, len(names))
	for _, name := range names {
		if c, ok := ParseChild(name, bases...); ok {
			line = append(line, c)
		}
	}
	return byNumbers(line)
}

// byNumbers sorts line by number, and children with equal numbers by name. A line may be long and
// is sorted at each listing, so the keys are integers: the number, followed by the index of the
// child.
func byNumbers(line []Child) []Child {
	if len(line) < 2 {
		return line
	}
	keys := make([]uint64, len(line))
	for i, c := range line {
		keys[i] = uint64(uint32(c.Seq))<<32 | uint64(i)
	}
	slices.Sort(keys)
	sorted := make([]Child, len(line))
	for i, key := range keys {
		sorted[i] = line[uint32(key)]
	}
	for from, to := 0, 1; from < len(sorted); from, to = to, to+1 {
		for to < len(sorted) && sorted[to].Seq == sorted[from].Seq {
			to++
		}
		if to > from+1 {
			slices.SortFunc(sorted[from:to], func(a, b Child) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return sorted
}

// If two numbers differ by numberWindow or more, they do not show which contender came first.
const numberWindow = 1 << 30

// split divides line, which is sorted by number, into the contenders before the first exhausted
// number, and the rest. tell reports whether the contenders of in are in the order of arrival, and
// ahead of all of exhausted. The order within exhausted is unknown.
//
// A parent numbers its children one by one, until it has had 2^31 of them. After that, ZooKeeper
// 3.6 and later gives 2147483647 to each child, or -2147483648 and its successors while earlier
// creates are under way. Before 3.6, it continues from -2147483648 through -1, and then from 0. So
// numbers do not show the order if one number is just below 0, or if two are far apart. A client
// can also choose a number itself. If the numbers show the order, a contender with an exhausted
// number is behind all others.
func split(line []Child) (in, exhausted []Child, tell bool) {
	i := len(line)
	for i > 0 && line[i-1].Exhausted() {
		i--
	}
	in, exhausted = line[:i], line[i:]
	if i > 0 && in[i-1].Seq-in[0].Seq >= numberWindow {
		return in, exhausted, false
	}
	wraps := len(exhausted) > 0 && exhausted[len(exhausted)-1].Seq >= -numberWindow && exhausted[len(exhausted)-1].Seq < 0
	return in, exhausted, !wraps
}

// certainlyAfter reports whether the numbers show that c came after d.
func (c Child) certainlyAfter(d Child) bool {
	_, exhausted, tell := split(byNumbers([]Child{c, d}))
	return tell && len(exhausted) == 0 && c.Seq > d.Seq
}

// KazooName is kazoo's form of session.ProtectedName.
func KazooName(guid, base string) string { return strings.ReplaceAll(guid, "-", "") + base }

// SamePlace reports whether c and d are one contender: a writer, and the read znode to which it
// downgrades.
func (c Child) SamePlace(d Child) bool {
	return c.Name == d.Name || c.Seq == d.Seq && !c.Exhausted()
}

// The UUID in a name may have a mark: see session.NewMarkedGUID. In a writer's name, the mark says
// that the contender perhaps only keeps its place. In a reader's name, it says that the znode
// shares the place of another (Claim.Beside).

// sharedBases are the contenderBases of readers.
var sharedBases = []string{"__rlock__", "__READ__"}

// MayBeKept reports whether the contender with this name perhaps only keeps its place, while no
// goroutine holds the lock.
func MayBeKept(name string) bool {
	c, ok := ParseChild(name, contenderBases...)
	return ok && !slices.Contains(sharedBases, c.Base) && marked(c)
}

// beside reports whether c shares the place of another znode.
func (c Child) beside() bool { return slices.Contains(sharedBases, c.Base) && marked(c) }

// marked reports whether c's name begins with a marked UUID, in either layout. The names of
// go-zookeeper's zk.Lock have 32 random hexadecimal digits instead.
func marked(c Child) bool {
	head := beforeBase(c)
	if guid, ok := strings.CutPrefix(head, "_c_"); ok {
		return len(guid) > guidSize && guid[guidSize] == '-' && session.IsMarkedGUID(guid[:guidSize])
	}
	const bare = guidSize - 4 // without its dashes
	return len(head) >= bare && session.IsMarkedGUID(head[:bare])
}

// weightBase comes before the number of permits in the name of a znode for several permits.
const weightBase = "-weight-"

// PermitsName returns a unique name for the znode of n permits.
func PermitsName(n int64) string {
	return "_c_" + session.NewGUID() + weightBase + strconv.FormatInt(n, 10)
}

// Without returns names without the znodes at paths. With it, a caller counts the permits of
// others, and compares them with the limit minus its own permits: the sum of both could overflow.
func Without(names, paths []string) []string {
	ours := make(map[string]bool, len(paths))
	for _, path := range paths {
		ours[session.BaseName(path)] = true
	}
	return slices.DeleteFunc(names, func(name string) bool { return ours[name] })
}

// CountPermits returns the number of permits of znodes with these names. If a name has a weight,
// its znode counts as so many permits. Any other znode counts as one permit, as in Curator and
// kazoo. In kazoo's layout, no name has a weight.
func CountPermits(names []string, kazoo bool) (out int64) {
	for _, name := range names {
		weight := int64(1)
		if i := strings.LastIndex(name, weightBase); i >= 0 && !kazoo {
			if n, err := strconv.ParseInt(name[i+len(weightBase):], 10, 64); err == nil && n > 0 {
				weight = n
			}
		}
		if out += weight; out < 0 { // the sum has overflowed; no semaphore has so many permits
			return math.MaxInt64
		}
	}
	return out
}
