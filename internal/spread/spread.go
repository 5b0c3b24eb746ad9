// Package spread says who of many is to have which of many things.
package spread

import (
	"encoding/binary"
	"maps"
	"slices"
)

// Balance returns who is to own which shard. wants are the shards that each
// member names. What was theirs before stays theirs as far as an even spread
// allows. It depends on its arguments alone, and what it has returned it returns
// again. Versions that run side by side must agree on what needs no change.
//
//  1. What nobody names any more, and what belongs to who has gone or does not
//     name it, is taken away.
//  2. What has no owner goes to the one with the fewest of those who name it.
//  3. While somebody has two more than another who names one of them, that one
//     moves.
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
	for b.move() { // Step 3. Each move lowers the sum of the squares of the loads.
	}
	now := make(map[string]string, len(b.shards))
	for i, shard := range b.shards {
		now[shard] = b.ids[b.owner[i]]
	}
	return now
}

// A balancing is a Balance in progress. Members and shards are numbered in the order
// of their names.
type balancing struct {
	ids    []string // of the members
	load   []int    // by member: how many shards it owns
	shards []string
	owner  []int   // by shard: the member who owns it, or -1
	set    []int   // by shard: which of sets names it
	sets   [][]int // each who are the members that name some shard; shards have few different ones
	least  []int   // by set: who of it has the fewest
}

func newBalancing(wants map[string][]string) *balancing {
	b := &balancing{ids: slices.Sorted(maps.Keys(wants))}
	named := make(map[string][]int) // by shard: who names it
	for m, id := range b.ids {
		for _, shard := range wants[id] {
			named[shard] = append(named[shard], m)
		}
	}
	b.shards = slices.Sorted(maps.Keys(named))
	known := make(map[string]int) // by the numbers of a set
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

// fewest returns the first of those who have the fewest of a set.
func (b *balancing) fewest(set int) int {
	return slices.MinFunc(b.sets[set], func(m, n int) int { return b.load[m] - b.load[n] })
}

// move moves the shard that is the furthest from even, if there is one.
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
