// Package kinds finds out, from the names of znodes, which primitive they belong to, and in which
// layout. It is for tools that look at a tree, and does no I/O. A test makes every primitive and
// checks that this package recognises it.
package kinds

import (
	"regexp"
	"slices"
	"strings"
)

// A Kind is a primitive in a layout.
type Kind string

// These kinds are recognised by the children of their znode, if no mark says
// otherwise.
const (
	Lock          Kind = "lock"            // a Mutex, or the line of a Once, a Schedule or a LeaderSelector
	RWLock        Kind = "read-write lock" // an RWMutex
	KazooLock     Kind = "kazoo lock"      // kazoo's Lock, ReadLock, WriteLock and Election
	Election      Kind = "election"
	Semaphore     Kind = "semaphore"
	KazooPermits  Kind = "kazoo semaphore"
	WaitGroup     Kind = "wait group"
	DoubleBarrier Kind = "double barrier"
	Cond          Kind = "cond"
	Once          Kind = "once"
	Schedule      Kind = "schedule"
	Queue         Kind = "queue"
	ForeignQueue  Kind = "foreign queue" // of another library
	Group         Kind = "group"         // only in kazoo's layout can the names show this kind
	Partition     Kind = "partition"
)

// These kinds are recognised by marks.
const (
	Gate  Kind = "gate"  // a closed Barrier
	Map   Kind = "map"   // its children are entries, whatever their names and data are
	Entry Kind = "entry" // a key of a Map and its value
)

// In `lines` are the kinds that have holders and waiters. Each needs its path for
// itself, but does not see contenders of another kind there.
var lines = []Kind{Lock, RWLock, KazooLock, Election, Semaphore, KazooPermits, Cond}

// The function `of` returns the kind that a znode's name shows.
func of(name string) (kind Kind, ok bool) {
	base, number := cutNumber(name)
	switch {
	case strings.HasSuffix(base, "-__READ__"), strings.HasSuffix(base, "-__WRIT__"):
		return RWLock, number
	case strings.HasSuffix(base, "__lock__"), strings.HasSuffix(base, "__rlock__"):
		return KazooLock, number
	case strings.HasSuffix(base, "-latch-"):
		return Election, number
	case strings.HasSuffix(base, "-wait-"):
		return Cond, number
	case strings.HasSuffix(base, "-lock-"):
		return Lock, number
	case base == "qn-", base == "queue-", strings.HasPrefix(base, "entry-"):
		return ForeignQueue, number
	case bucket.MatchString(name), tail.MatchString(name):
		return Queue, true
	case strings.HasPrefix(name, "_c_") && strings.HasSuffix(name, "-tasks"):
		return WaitGroup, true
	case strings.HasPrefix(name, "keeper-"), name == "parties":
		return DoubleBarrier, true
	case strings.HasSuffix(name, "__party__"):
		return Group, true
	case name == "leases":
		return Semaphore, true
	case name == "done":
		return Once, true
	case name == "last":
		return Schedule, true
	case len(name) == 32 && strings.Trim(name, "0123456789abcdef") == "":
		return KazooPermits, true
	}
	return "", false
}

// The znodes of a Queue: its buckets, and the tail of each priority.
var (
	bucket = regexp.MustCompile(`^(b-\d{5}-\d{10,}|d-\d{5}-\d{13,}-[0-9a-f]{12})$`)
	tail   = regexp.MustCompile(`^t-\d{5}$`)
)

// cutNumber cuts the sequence number off a name.
func cutNumber(name string) (base string, ok bool) {
	base = strings.TrimRight(name, "0123456789")
	if n := len(name) - len(base); n < 5 {
		return name, false
	}
	return strings.TrimSuffix(base, "-") + suffix(base), len(name)-len(base) >= 10
}

// The function `suffix` returns the dash before a number. If that dash is a minus sign, `suffix`
// returns nothing. In Curator's layout, the name ends in a dash. In kazoo's layout, it does not.
func suffix(base string) string {
	if strings.HasSuffix(base, "-") && !strings.HasSuffix(base, "__-") {
		return "-"
	}
	return ""
}

// Of finds out the kinds of a znode from the names of its children. It returns the kinds in order.
func Of(children []string) (kinds []Kind) {
	for _, name := range children {
		if k, ok := of(name); ok && !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	has := func(name string) bool { return slices.Contains(children, name) }
	if has("plan") && (has("members") || has("shards")) { // `members` and `shards` are containers, so the servers may have deleted either
		kinds = append(kinds, Partition)
	}
	slices.Sort(kinds)
	return kinds
}

// Part reports whether a child with these siblings is part of a primitive at its
// parent, as far as the names show. [Certain] reports whether they prove it.
func Part(name string, siblings []string) bool {
	switch name {
	case "done", "last": // a parent znode of a user may have that name too
		return false
	case "parties":
		return slices.ContainsFunc(siblings, func(s string) bool { return strings.HasPrefix(s, "keeper-") })
	case "locks", "leases":
		return slices.Contains(siblings, "leases") && slices.Contains(siblings, "locks")
	case "keys", "paused":
		return slices.ContainsFunc(siblings, tail.MatchString)
	}
	_, ok := of(name)
	return ok || strings.HasPrefix(name, "_c_")
}

// The expression `made` matches names that only a library generates: with a GUID, or
// with the server's number.
var made = regexp.MustCompile(`^(_c_[0-9a-f-]{36}-[\w-]+|[0-9a-f]{32}__r?lock__-?\d{10}|qn--?\d{10}|queue--?\d{10}|entry-\d+-\d{10})$`)

// Certain reports whether the names prove that a child is a part. Other parts have names
// that a user may also give to a lock.
func Certain(name string, siblings []string) bool {
	return made.MatchString(name) || bucket.MatchString(name) && slices.ContainsFunc(siblings, tail.MatchString)
}

// Is reports whether a child's name shows that its parent is of the kind k.
func Is(name string, k Kind) bool {
	got, ok := of(name)
	return ok && got == k
}

// Own reports whether every part with a name of this form is ephemeral.
func Own(name string) bool {
	k, _ := of(name)
	return k == KazooPermits || k == Group
}

// InNeighbour is for a parent that belongs to another znode, see [Beside]. It reports whether a
// child with this name is certainly part of its parent.
func InNeighbour(parent, name string) bool {
	switch {
	case strings.HasSuffix(parent, "-dead") && letter.MatchString(name), strings.HasSuffix(parent, "-ids") && len(name) == 2, strings.HasSuffix(parent, "-live") && mark.MatchString(name):
		return true
	}
	return guid.MatchString(name)
}

// The expression `mark` matches the mark of a consumer of a queue.
var mark = regexp.MustCompile(`^[0-9a-f]{16}$`)

// The expression `letter` matches the name of a dead letter, or of its reason.
var letter = regexp.MustCompile(`^(dead-.*|why)-[0-9a-f]{16}`)

// guid matches the name of a contender or receipt.
var guid = regexp.MustCompile(`^(_c_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-.*)?$`)

// Line reports whether any of `kinds` has holders and waiters.
func Line(kinds []Kind) bool {
	return slices.ContainsFunc(kinds, func(k Kind) bool { return slices.Contains(lines, k) })
}

// Mixed reports whether several of `kinds` have holders and waiters. At one path,
// contenders of these kinds do not see each other.
func Mixed(kinds []Kind) bool {
	n := 0
	for _, k := range kinds {
		if slices.Contains(lines, k) {
			n++
		}
	}
	return n > 1
}

// The list `besides` has endings of names. A znode NAME plus such an ending belongs to the znode
// NAME.
var besides = []string{"-live", "-consumers", "-receipts", "-dead", "-ids", "-__lock__", "-__resized__"}

// Beside returns the name of the neighbour to which a znode with this name belongs.
func Beside(name string) (of string, ok bool) {
	for _, end := range besides {
		if of, ok := strings.CutSuffix(name, end); ok && of != "" {
			return of, true
		}
	}
	return "", false
}
