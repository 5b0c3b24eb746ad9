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

// before reports whether c came before d. Sequence numbers are compared by
// serial arithmetic (RFC 1982), so the order survives the wrap from 2147483647
// to -2147483648 as long as fewer than 2^31 lie between the two.
func (c Child) before(d Child) bool { return c.Seq-d.Seq < 0 }

// Exhausted reports whether c's number is one of those that a server gives when
// it has given them all. See Line.InOrder.
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

// ParseChildren returns the children among names that carry one of bases, in
// the order of the line. Others are none of our business and are left out.
// Children with equal numbers (a writer and the read node it downgrades to)
// are ordered by name, so that everyone sees them in one order.
func ParseChildren(names []string, bases ...string) []Child {
	line := make([]Child, 0, len(names))
	for _, name := range names {
		if c, ok := ParseChild(name, bases...); ok {
			line = append(line, c)
		}
	}
	return inOrder(line)
}

// inOrder sorts line by number, and those of one number by name. A line may be long, and is
// sorted each time that it is listed, so it is sorted as integers: the distance of each
// number from the first one's, with the place of its child behind.
func inOrder(line []Child) []Child {
	if len(line) == 0 {
		return line
	}
	keys := make([]uint64, len(line))
	for i, c := range line {
		const zero = 1 << 31 // so that a number before the first one's is less
		keys[i] = uint64(uint32(c.Seq-line[0].Seq)+zero)<<32 | uint64(i)
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

// KazooName is kazoo's form of the same.
func KazooName(guid, base string) string { return strings.ReplaceAll(guid, "-", "") + base }

// SamePlace reports whether c and d are one contender: a writer, and the read
// node with which it downgrades.
func (c Child) SamePlace(d Child) bool {
	return c.Name == d.Name || c.Seq == d.Seq && !c.Exhausted()
}

// numbered returns the contenders among names whose numbers say when they came,
// in that order, and those behind them, in none.
//
// A parent numbers its children one by one, until it has had 2^31 of them. What
// comes then depends on the server: a Java server gives 2147483647 again and
// again, and -2147483648 and what follows it while a create before is still
// under way. So numbers from there on say nothing but that whoever has one came
// after all who have others. (Or that somebody has chosen his name himself, and
// with it to be behind all others.)
func numbered(names []string, bases ...string) (in, behind []Child) {
	all := ParseChildren(names, bases...)
	if !slices.ContainsFunc(all, Child.Exhausted) {
		return all, nil
	}
	for _, c := range all {
		if c.Exhausted() {
			behind = append(behind, c)
		} else {
			in = append(in, c)
		}
	}
	return in, behind
}

// MayBeKept reports whether the contender of this name may only keep its place.
func MayBeKept(name string) bool {
	const dashed, bare = 14, 12 // of a UUID: where its version stands
	i := bare
	if len(name) > 3 && name[:3] == "_c_" {
		i = 3 + dashed
	}
	return len(name) > i && name[i] == '8' && isContender(name)
}

func isContender(name string) bool {
	_, ok := ParseChild(name, contenderBases...)
	return ok
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

// Permits returns how many permits znodes of these names stand for: each for one,
// whatever it is called, as Curator and kazoo count them, unless its name says more,
// which in kazoo's layout none does.
func Permits(names []string, kazoo bool) (out int64) {
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
