package spread

import (
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strings"
)

// This file stores the result of Balance as a Plan, and makes the Plan small enough for one znode.
// spread.go spreads the shards.

// A Plan records the owner of each shard.
type Plan struct {
	Owners map[string]string `json:"owners"` // by shard: the id of the member
}

// Fit returns the plan that Balance makes, if `fits` accepts that plan. Otherwise, Fit leaves out
// as few members as possible. It leaves out members without shards first. The result `out` lists
// the ids of the members that are left out. Equal `owners` and equal `wants` give the same result
// in every process.
func Fit(owners map[string]string, wants map[string][]string, fits func(Plan) bool) (plan Plan, out []string) {
	if plan = (Plan{Balance(owners, wants)}); fits(plan) {
		return plan, nil
	}
	own := make(map[string]bool)
	for _, id := range owners {
		own[id] = true
	}
	ids := slices.SortedFunc(maps.Keys(wants), func(a, b string) int {
		if own[a] != own[b] {
			return map[bool]int{true: -1, false: 1}[own[a]]
		}
		return strings.Compare(a, b)
	})
	of := func(n int) Plan {
		some := make(map[string][]string, n)
		for _, id := range ids[:n] {
			some[id] = wants[id]
		}
		return Plan{Balance(owners, some)}
	}
	n := sort.Search(len(ids)-1, func(n int) bool { return !fits(of(n + 1)) })
	return of(n), ids[n:]
}

// A PlanCodec encodes a Plan as JSON. Another program may have written other data. PlanCodec
// decodes such data as an empty Plan, and a member then replaces the data.
type PlanCodec struct{}

func (PlanCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (PlanCodec) Unmarshal(data []byte, v any) error {
	if json.Unmarshal(data, v) != nil {
		*v.(*Plan) = Plan{}
	}
	return nil
}
