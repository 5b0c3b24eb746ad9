// Package spread decides which member of a Partition owns which shard. It does no I/O. It
// does not decide when a member takes or releases a shard.
package spread

import (
	"encoding/binary"
	"maps"
	"slices"
)

// Balance returns the new owner of each shard. The argument `owners` has the present owner of each
// shard, and the argument `wants` has the shards that each member lists. A shard keeps its owner if
// an even spread allows that. The result depends on the arguments alone. The result is also a fixed
// point: a later call with this result as `owners`, and with an equal `wants`, returns the same
// owners. Versions of zsync that run at the same time must have the same fixed points.
//
//  1. A shard loses its owner if that owner is no longer a member, or does not list the shard. If
//     no member lists the shard, it has no owner.
//  2. A shard without an owner is given to a member that lists it. If several members list it, the
//     member with the fewest shards gets it.
//  3. A shard moves from its owner A to a member B if B lists the shard and A has at least two
//     shards more than B. This step repeats until no shard can move.
func Balance(owners map[string]string, wants map[string][]string) map[string]string {
	b := newBalancing(wants)
	for i, shard := range b.shards { // Step 1.
		if m, ok := slices.BinarySearch(b.ids, owners[shard]); ok && slices.Contains(b.sets[b.set[i]], m) {
			b.owner[i] = m
			b.load[m]++
		}
	}
	for i, m := range b.owner { // Step 2.
		if m < 0 {
			b.owner[i] = b.fewest(b.set[i])
			b.load[b.owner[i]]++
		}
	}
	for b.move() { // Step 3. Each move lowers the sum of the squares of the loads, so the loop ends.
	}
	now := make(map[string]string, len(b.shards))
	for i, shard := range b.shards {
		now[shard] = b.ids[b.owner[i]]
	}
	return now
}

// The type `balancing` has the state of one call of Balance. It numbers the members and the shards
// in the order of their names.
type balancing struct {
	ids    []string // of the members
	load   []int    // by member: number of its shards
	shards []string
	owner  []int   // by shard: the member that owns it, or -1
	set    []int   // by shard: an index in `sets`; that set has the members that list the shard
	sets   [][]int // the sets of members that list a shard; many shards have the same set
	least  []int   // by set: the member with the fewest shards
}

func newBalancing(wants map[string][]string) *balancing {
	b := &balancing{ids: slices.Sorted(maps.Keys(wants))}
	named := make(map[string][]int) // by shard: the members that list it
	for m, id := range b.ids {
		for _, shard := range wants[id] {
			named[shard] = append(named[shard], m)
		}
	}
	b.shards = slices.Sorted(maps.Keys(named))
	known := make(map[string]int) // index in `sets`, by the members of the set
	for _, shard := range b.shards {
		var key []byte
		for _, m := range named[shard] {
			key = binary.AppendUvarint(key, uint64(m))
		}
		n, ok := known[string(key)]
		if !ok {
			n = len(b.sets)
			known[string(key)] = n
			b.sets = append(b.sets, named[shard])
		}
		b.set = append(b.set, n)
		b.owner = append(b.owner, -1)
	}
	b.load, b.least = make([]int, len(b.ids)), make([]int, len(b.sets))
	return b
}

// The method `fewest` returns, from the members of a set, the member with the fewest shards. If
// there are several such members, it returns the first of them.
func (b *balancing) fewest(set int) int {
	return slices.MinFunc(b.sets[set], func(m, n int) int { return b.load[m] - b.load[n] })
}

// The method `move` gives one shard of a member A to a member B that lists the shard, if A has at
// least two shards more than B. For each shard, B is the member with the fewest shards among the
// members that list the shard. If several shards can move, the shard with the greatest difference
// between A and B moves. The result is false if no shard can move.
func (b *balancing) move() bool {
	for set := range b.sets {
		b.least[set] = b.fewest(set)
	}
	best, widest := -1, 1
	for i, m := range b.owner {
		if gap := b.load[m] - b.load[b.least[b.set[i]]]; gap > widest {
			best, widest = i, gap
		}
	}
	if best < 0 {
		return false
	}
	to := b.least[b.set[best]]
	b.load[b.owner[best]]--
	b.load[to]++
	b.owner[best] = to
	return true
}
