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
//  3. A shard moves from its owner A to the member B that lists the shard and has the fewest
//     shards, if A has at least two shards more than B. This step repeats until no shard can move.
func Balance(owners map[string]string, wants map[string][]string) map[string]string {
	ids := slices.Sorted(maps.Keys(wants)) // members and shards have numbers, in the order of their names
	named := make(map[string][]int)        // by shard: the members that list it
	for m, id := range ids {
		for _, shard := range wants[id] {
			named[shard] = append(named[shard], m)
		}
	}
	shards := slices.Sorted(maps.Keys(named))
	// Many shards are listed by the same members.
	var sets [][]int                  // each set of members that list a shard
	set := make([]int, len(shards))   // by shard: the index in `sets`
	known := make(map[string]int)     // by the members of a set: the index in `sets`
	load := make([]int, len(ids))     // by member: number of its shards
	owner := make([]int, len(shards)) // by shard: the member that owns it, or -1
	fewest := func(set []int) int {   // the first member of the set that has the fewest shards
		return slices.MinFunc(set, func(m, n int) int { return load[m] - load[n] })
	}
	for i, shard := range shards {
		var key []byte
		for _, m := range named[shard] {
			key = binary.AppendUvarint(key, uint64(m))
		}
		n, ok := known[string(key)]
		if !ok {
			n = len(sets)
			known[string(key)] = n
			sets = append(sets, named[shard])
		}
		set[i], owner[i] = n, -1
		if m, ok := slices.BinarySearch(ids, owners[shard]); ok && slices.Contains(sets[n], m) { // Step 1.
			owner[i] = m
			load[m]++
		}
	}
	for i, m := range owner { // Step 2.
		if m < 0 {
			owner[i] = fewest(sets[set[i]])
			load[owner[i]]++
		}
	}
	least := make([]int, len(sets)) // by set: the member with the fewest shards
	for {                           // Step 3. Each move lowers the sum of the squares of the loads, so the loop ends.
		for n := range sets {
			least[n] = fewest(sets[n])
		}
		// The shard with the greatest difference between A and B moves.
		best, widest := -1, 1
		for i, m := range owner {
			if gap := load[m] - load[least[set[i]]]; gap > widest {
				best, widest = i, gap
			}
		}
		if best < 0 {
			break
		}
		load[owner[best]]--
		owner[best] = least[set[best]]
		load[owner[best]]++
	}
	now := make(map[string]string, len(shards))
	for i, shard := range shards {
		now[shard] = ids[owner[i]]
	}
	return now
}
