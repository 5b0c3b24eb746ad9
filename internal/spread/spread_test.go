package spread

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBalanceSpreadsEvenlyAndMovesNoMoreThanItMust(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var shards []string
		for i := range rnd.IntN(60) {
			shards = append(shards, fmt.Sprint("shard", i))
		}
		wants := make(map[string][]string)
		var owners map[string]string
		for range 20 {
			before := len(wants)
			if id := fmt.Sprint("member", rnd.IntN(8)); wants[id] != nil {
				delete(wants, id)
			} else {
				wants[id] = append(slices.Clone(shards), "")[:len(shards)]
			}
			former := owners
			owners = Balance(former, wants)
			if len(wants) == 0 {
				if len(owners) > 0 {
					t.Fatalf("%v own something, and nobody is there", owners)
				}
				continue
			}
			load := make(map[string]int)
			moved := 0
			for _, shard := range shards {
				owner := owners[shard]
				if wants[owner] == nil {
					t.Fatalf("%q belongs to %q, who is not there", shard, owner)
				}
				load[owner]++
				if former[shard] != owner {
					moved++
				}
			}
			for id := range wants {
				if load[id] < len(shards)/len(wants) || load[id] > (len(shards)+len(wants)-1)/len(wants) {
					t.Fatalf("%d shards over %d members: %v", len(shards), len(wants), load)
				}
			}
			if most := (len(shards)+len(wants)-1)/len(wants) + 1; before > 0 && moved > most {
				t.Fatalf("%d of %d shards moved, with %d members before and %d now; want at most %d", moved, len(shards), before, len(wants), most)
			}
		}
	}
}

func TestBalanceGivesAShardOnlyToThoseWhoNameIt(t *testing.T) {
	got := Balance(map[string]string{"a": "x", "b": "x", "gone": "x"}, map[string][]string{"x": {"a", "b"}, "y": {"b", "c"}, "z": {"d"}})
	if want := map[string]string{"a": "x", "b": "x", "c": "y", "d": "z"}; !maps.Equal(got, want) {
		t.Errorf("balance = %v, want %v", got, want)
	}
	got = Balance(map[string]string{"a": "x", "b": "x", "c": "x"}, map[string][]string{"x": {"a", "b", "c"}, "y": {"c"}})
	if want := map[string]string{"a": "x", "b": "x", "c": "y"}; !maps.Equal(got, want) {
		t.Errorf("balance = %v, want %v", got, want)
	}
}

// plainly is Balance as its steps say, with a look at everything for each of them.
func plainly(owners map[string]string, wants map[string][]string) map[string]string {
	now, load, named := make(map[string]string), make(map[string]int), make(map[string][]string)
	for _, id := range slices.Sorted(maps.Keys(wants)) {
		for _, shard := range wants[id] {
			named[shard] = append(named[shard], id)
		}
	}
	fewest := func(shard string) string {
		return slices.MinFunc(named[shard], func(a, b string) int { return cmp.Or(load[a]-load[b], cmp.Compare(a, b)) })
	}
	shards := slices.Sorted(maps.Keys(named))
	for _, shard := range shards {
		if owner := owners[shard]; slices.Contains(named[shard], owner) {
			now[shard] = owner
			load[owner]++
		}
	}
	for _, shard := range shards {
		if _, ok := now[shard]; !ok {
			now[shard] = fewest(shard)
			load[now[shard]]++
		}
	}
	for {
		best, widest := "", 1
		for _, shard := range shards {
			if gap := load[now[shard]] - load[fewest(shard)]; gap > widest {
				best, widest = shard, gap
			}
		}
		if widest == 1 {
			return now
		}
		to := fewest(best)
		load[now[best]]--
		load[to]++
		now[best] = to
	}
}

func TestBalanceDoesWhatItsStepsSayAndNothingWhenAskedAgain(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		ids, shards := []string{"", "m", "n", "o", "p", "q"}, []string{"", "a", "b", "c", "d", "e", "f", "g"}
		owners := map[string]string{"gone": "m"}
		for _, shard := range shards {
			if rnd.IntN(3) > 0 {
				owners[shard] = append(ids, "nobody")[rnd.IntN(len(ids)+1)]
			}
		}
		wants := make(map[string][]string)
		for _, id := range ids[:rnd.IntN(len(ids)+1)] {
			for range rnd.IntN(2 * len(shards)) { // some are named twice
				wants[id] = append(wants[id], shards[rnd.IntN(len(shards))])
			}
		}
		got, want := Balance(owners, wants), plainly(owners, wants)
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d: Balance(%v, %v) = %v, want %v", seed, owners, wants, got, want)
		}
		if again := Balance(got, wants); !maps.Equal(again, got) {
			t.Fatalf("seed %d: asked again: %v, want %v", seed, again, got)
		}
	}
}

func TestBalanceOfTenThousandShardsIsEven(t *testing.T) {
	var shards []string
	for i := range 10_000 {
		shards = append(shards, fmt.Sprint("shard", i))
	}
	wants := make(map[string][]string)
	var owners map[string]string
	for n := 1; n <= 4; n++ {
		wants[fmt.Sprint("member", n)] = shards
		former := owners
		owners = Balance(former, wants)
		load, moved := make(map[string]int), 0
		for shard, owner := range owners {
			if load[owner]++; former[shard] != owner {
				moved++
			}
		}
		for id := range wants {
			if load[id] < len(shards)/n || load[id] > (len(shards)+n-1)/n {
				t.Fatalf("%d members: %v", n, load)
			}
		}
		if moved > (len(shards)+n-1)/n {
			t.Errorf("%d members: %d shards moved", n, moved)
		}
	}
}
