package line

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/session"
)

// A Child is the parsed name of a sequential znode.
type Child struct {
	Name string // as ZooKeeper gives it, without the parent
	Base string // what it is: "lock-", "__READ__", ...
	Seq  int32  // wraps after 2^31-1, as the server's counter does
}

// contenderBases is what marks the contenders of locks and elections, of every
// kind and layout, before their number.
var contenderBases = []string{"lock-", "__lock__", "__rlock__", "__WRIT__", "__READ__", "latch-"}

// Exhausted reports whether c's number is one of those that a server gives when
// it has given them all. See split.
func (c Child) Exhausted() bool { return c.Seq < 0 || c.Seq == math.MaxInt32 }

// ParseChild splits name into base and sequence number, for the first of bases
// that it carries right before its number. The number is read from the end: a
// name may hold anything before its base.
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

// ParseChildren returns the children among names that carry one of bases, in the
// order of their numbers: from 0 to 2147483647, and from there on through -1.
// Others are none of our business and are left out. Children with equal numbers
// (a writer and the read node it downgrades to) are ordered by name. So everyone
// sees them in one order, in whichever a server lists them. Whether that is the
// order of their arrival says split.
func ParseChildren(names []string, bases ...string) []Child {
	line := make([]Child, 0, len(names))
	for _, name := range names {
		if c, ok := ParseChild(name, bases...); ok {
			line = append(line, c)
		}
	}
	return byNumbers(line)
}

// byNumbers sorts line by number, and those of one number by name. A line may be long, and
// is sorted each time that it is listed, so it is sorted as integers: the number, with the
// place of its child behind.
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

// numberWindow is the distance of two numbers from which on their order tells nothing.
const numberWindow = 1 << 30

// split cuts line, which is sorted by number, into the contenders before the first exhausted
// number, and the rest. tell reports whether in is in the order of arrival, and all of it ahead
// of exhausted, whose own order is not known.
//
// A parent numbers its children one by one, until it has had 2^31 of them. Since ZooKeeper 3.6
// it then gives 2147483647 again and again, and -2147483648 and its successors while earlier
// creates are under way. Before 3.6 it continues from -2147483648 through -1, and begins again
// at 0. So numbers do not tell beside a number just below 0, nor if they are far apart. Any
// client may choose its number; with an exhausted one it is behind.
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

// certainlyAfter reports whether the number of c says that it came after d.
func (c Child) certainlyAfter(d Child) bool {
	_, exhausted, tell := split(byNumbers([]Child{c, d}))
	return tell && len(exhausted) == 0 && c.Seq > d.Seq
}

// KazooName is kazoo's form of the same.
func KazooName(guid, base string) string { return strings.ReplaceAll(guid, "-", "") + base }

// SamePlace reports whether c and d are one contender: a writer, and the read
// node with which it downgrades.
func (c Child) SamePlace(d Child) bool {
	return c.Name == d.Name || c.Seq == d.Seq && !c.Exhausted()
}

// The UUID in a name may have a mark: see session.NewMarkedGUID. In the name of a writer the mark
// says that the contender may only keep its place; in the name of a reader, that its znode was
// put in the place of another (Claim.Beside).

// sharedBases are those of contenderBases that readers have.
var sharedBases = []string{"__rlock__", "__READ__"}

// MayBeKept reports whether the contender of this name may only keep its place.
func MayBeKept(name string) bool {
	c, ok := ParseChild(name, contenderBases...)
	return ok && !slices.Contains(sharedBases, c.Base) && marked(c)
}

// beside reports whether c was put in the place of another.
func (c Child) beside() bool { return slices.Contains(sharedBases, c.Base) && marked(c) }

// marked reports whether c's name begins with a marked UUID, as the layouts spell it. The names
// of go-zookeeper's zk.Lock have 32 random hexadecimal digits instead.
func marked(c Child) bool {
	head := beforeBase(c)
	if guid, ok := strings.CutPrefix(head, "_c_"); ok {
		return len(guid) > guidSize && guid[guidSize] == '-' && session.IsMarkedGUID(guid[:guidSize])
	}
	const bare = guidSize - 4 // without its dashes
	return len(head) >= bare && session.IsMarkedGUID(head[:bare])
}

// weightBase is what the number of permits follows in the name of a znode that stands
// for several.
const weightBase = "-weight-"

// PermitsName returns a unique name for the znode of n permits.
func PermitsName(n int64) string {
	return "_c_" + session.NewGUID() + weightBase + strconv.FormatInt(n, 10)
}

// Without returns the names but those of the znodes at paths. What others have is compared with
// what is left for us, as with ours the sum may be more than a number can tell.
func Without(names, paths []string) []string {
	ours := make(map[string]bool, len(paths))
	for _, path := range paths {
		ours[session.BaseName(path)] = true
	}
	return slices.DeleteFunc(names, func(name string) bool { return ours[name] })
}

// CountPermits returns how many permits znodes of these names stand for: each for one,
// whatever it is called, as Curator and kazoo count them, unless its name says more,
// which in kazoo's layout none does.
func CountPermits(names []string, kazoo bool) (out int64) {
	for _, name := range names {
		weight := int64(1)
		if i := strings.LastIndex(name, weightBase); i >= 0 && !kazoo {
			if n, err := strconv.ParseInt(name[i+len(weightBase):], 10, 64); err == nil && n > 0 {
				weight = n
			}
		}
		if out += weight; out < 0 { // nobody has so many
			return math.MaxInt64
		}
	}
	return out
}
