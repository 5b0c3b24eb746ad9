// Package spread decides which member of a Partition owns which shard. It does no I/O. It
// does not decide when a member takes or releases a shard.
package spread

import (
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
	differs := make([]bool, len(shards)) // by shard: other members list it than the shard before
	load := make([]int, len(ids))        // by member: number of its shards
	owner := make([]int, len(shards))    // by shard: the member that owns it, or -1
	fewest := func(i int) int {          // the first of the members that list shard i and have the fewest shards
		return slices.MinFunc(named[shards[i]], func(m, n int) int { return load[m] - load[n] })
	}
	for i, shard := range shards {
		differs[i], owner[i] = i == 0 || !slices.Equal(named[shard], named[shards[i-1]]), -1
		if m, ok := slices.BinarySearch(ids, owners[shard]); ok && slices.Contains(named[shard], m) { // Step 1.
			owner[i] = m
			load[m]++
		}
	}
	for i, m := range owner { // Step 2.
		if m < 0 {
			owner[i] = fewest(i)
			load[owner[i]]++
		}
	}
	for { // Step 3. Each move lowers the sum of the squares of the loads, so the loop ends.
		// The shard with the greatest difference between A and B moves.
		best, to, widest := -1, 0, 1
		least := 0 // as a rule, the same members list many successive shards
		for i, m := range owner {
			if differs[i] {
				least = fewest(i)
			}
			if gap := load[m] - load[least]; gap > widest {
				best, to, widest = i, least, gap
			}
		}
		if best < 0 {
			break
		}
		load[owner[best]]--
		owner[best] = to
		load[to]++
	}
	now := make(map[string]string, len(shards))
	for i, shard := range shards {
		now[shard] = ids[owner[i]]
	}
	return now
}
