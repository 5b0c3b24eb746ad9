package lock

// This file has the names of contenders and permits, and finds the order of contenders from their
// names. It reads no znodes.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/znodes"
)

// A Child is the parsed name of a sequential znode.
type Child struct {
	Name string // as ZooKeeper returns it, without the parent
	Base string // its kind, such as "lock-" or "__READ__"
	Seq  int32  // the number; wraps after 2^31-1, like the server's counter
}

// The map `kinds` has the bases of all contenders of locks and elections, in every layout, and for
// each base the primitive. The base is the part of a name before the number.
var kinds = map[string]string{
	"lock-":     "a Mutex",
	"__WRIT__":  "an RWMutex",
	"__READ__":  "an RWMutex",
	"latch-":    "an Election",
	"__lock__":  "a lock of kazoo's layout",
	"__rlock__": "a lock of kazoo's layout",
}

var contenderBases = slices.Sorted(maps.Keys(kinds))

// Exhausted reports whether c's number is exhausted: a parent gives such a number only after it has
// given all numbers below 2147483647. See `split`.
func (c Child) Exhausted() bool { return c.Seq < 0 || c.Seq == math.MaxInt32 }

// ParseChild finds the base and the number in `name`. The base is the first of `bases` that comes
// right before a number. ParseChild parses from the end, because any text may come before the base.
func ParseChild(name string, bases ...string) (Child, bool) {
	for _, base := range bases {
		i := strings.LastIndex(name, base)
		if i < 0 {
			continue
		}
		if seq, ok := znodes.ParseSeq(name[i+len(base):]); ok {
			return Child{Name: name, Base: base, Seq: seq}, true
		}
	}
	return Child{}, false
}

// ParseChildren returns the children with a base in `bases`, in the order of their numbers: first 0
// to 2147483647, then -2147483648 to -1. Two children can have the same number: a writer, and the
// read znode to which it downgrades. These are in the order of their names, so that every client gets
// the same order. The function `split` finds out whether this is the order of arrival.
func ParseChildren(names []string, bases ...string) []Child {
	line := make([]Child, 0, len(names))
	for _, name := range names {
		if c, ok := ParseChild(name, bases...); ok {
			line = append(line, c)
		}
	}
	slices.SortFunc(line, func(a, b Child) int {
		if a.Seq != b.Seq {
			return cmp.Compare(uint32(a.Seq), uint32(b.Seq))
		}
		return strings.Compare(a.Name, b.Name)
	})
	return line
}

// numberWindow is a limit: if two numbers differ by this much or more, they do not show which
// contender came first.
const numberWindow = 1 << 30

// The function `split` divides a line that is sorted by number. The first result has the contenders
// before the first exhausted number, and the second has the rest. If `tell` is true, the first
// result has the order of arrival, and all its contenders are ahead of the rest. The order within
// the rest is unknown.
//
// A parent gives its first 2^31 children successive numbers. After these, ZooKeeper 3.6 and later
// gives each child the number 2147483647. But while earlier creates are under way, children can
// also get -2147483648 and the numbers after it. Before 3.6, the numbers continue from -2147483648
// through -1, and then from 0. So numbers do not show the order if a number is just below 0, or if
// two numbers are far apart. A client can also choose a number itself. If numbers show the order,
// contenders with exhausted numbers are behind all others.
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

// certainlyAfter reports whether the numbers show that c arrived after d.
func (c Child) certainlyAfter(d Child) bool {
	return !c.Exhausted() && !d.Exhausted() && c.Seq > d.Seq && c.Seq-d.Seq < numberWindow
}

// The function `unmixed` returns ErrMixed if `names` has a contender of another kind that may be ahead
// of `me`, because these two would not exclude each other. If `me` is nil, any contender of another
// kind causes the error.
//
// All children of one parent share one sequence of numbers. So if two contenders of different kinds
// arrive at the same time, the contender with the greater number leaves, and the other may stay.
// After its first listing, a contender need not check again, because no contender arrives ahead of
// it.
func unmixed(bases, names []string, me *Child) error {
	for _, name := range names {
		if _, ours := ParseChild(name, bases...); ours {
			continue
		}
		c, other := ParseChild(name, contenderBases...)
		if !other || me != nil && c.certainlyAfter(*me) {
			continue
		}
		return fmt.Errorf("%w: znode %q belongs to %s, and this is %s; give each primitive its own path", znodes.ErrMixed, strings.Clone(name), kinds[c.Base], kinds[bases[0]])
	}
	return nil
}

// KazooName is kazoo's form of znodes.ProtectedName.
func KazooName(guid, base string) string { return strings.ReplaceAll(guid, "-", "") + base }

// SamePlace reports whether c and d have the same place in the line. They may be a writer and the
// read znode to which it downgrades.
func (c Child) SamePlace(d Child) bool {
	return c.Name == d.Name || c.Seq == d.Seq && !c.Exhausted()
}

// The UUID in a name may have a mark: see znodes.NewMarkedGUID. In a writer's name, the mark means
// that the contender perhaps only keeps its place. In a reader's name, the mark means that the
// znode shares the place of another znode (Claim.Beside).

// sharedBases are the contenderBases of readers.
var sharedBases = []string{"__rlock__", "__READ__"}

// MayBeKept reports whether the contender with this name perhaps only keeps its place. If a
// contender only keeps its place, no goroutine holds the lock.
func MayBeKept(name string) bool {
	c, ok := ParseChild(name, contenderBases...)
	return ok && !slices.Contains(sharedBases, c.Base) && marked(c)
}

// The method `beside` reports whether c shares the place of another znode.
func (c Child) beside() bool { return slices.Contains(sharedBases, c.Base) && marked(c) }

// The function `marked` reports whether c's name begins with a marked UUID, in Curator's or kazoo's
// layout. A name of go-zookeeper's zk.Lock has 32 random hexadecimal digits instead of a UUID.
func marked(c Child) bool {
	head := beforeBase(c)
	if guid, ok := strings.CutPrefix(head, "_c_"); ok {
		return len(guid) > guidSize && guid[guidSize] == '-' && znodes.IsMarkedGUID(guid[:guidSize])
	}
	const bare = guidSize - 4 // length of a GUID without dashes
	return len(head) >= bare && znodes.IsMarkedGUID(head[:bare])
}

// weightBase is the text before the number of permits, in the name of a znode for several permits.
const weightBase = "-weight-"

// PermitsName returns a unique name for a znode of n permits.
func PermitsName(n int64) string {
	return "_c_" + znodes.NewGUID() + weightBase + strconv.FormatInt(n, 10)
}

// Without returns `names`, except the names of the znodes at `paths`. A caller counts the permits of
// other processes with it. A sum with its own permits could overflow. The result `whole` reports
// whether `names` had all names of the znodes at `paths`.
func Without(names, paths []string) (others []string, whole bool) {
	ours := make(map[string]bool, len(paths))
	for _, path := range paths {
		ours[znodes.BaseName(path)] = true
	}
	others = slices.DeleteFunc(names, func(name string) bool { return ours[name] })
	return others, len(names)-len(others) == len(paths)
}

// CountPermits returns the number of permits that the znodes with these names represent: for each
// its weight or, without a weight, one, as in Curator and kazoo. In kazoo's layout, no name has a
// weight.
func CountPermits(names []string, kazoo bool) (out int64) {
	for _, name := range names {
		weight := int64(1)
		if i := strings.LastIndex(name, weightBase); i >= 0 && !kazoo {
			if n, err := strconv.ParseInt(name[i+len(weightBase):], 10, 64); err == nil && n > 0 {
				weight = n
			}
		}
		if out += weight; out < 0 { // the sum has overflowed: it is greater than the limit of any semaphore
			return math.MaxInt64
		}
	}
	return out
}
