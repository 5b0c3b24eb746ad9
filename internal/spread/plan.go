package spread

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// This file stores the result of Balance as a plan, and makes the plan small enough for one znode.

// Fit returns the owners that Balance computes, if `fits` accepts them. Otherwise, Fit leaves out
// as few members as possible. It leaves out members without shards first. The result `out` lists
// the ids of the members that are left out. Equal `owners` and equal `wants` give the same result
// in every process.
func Fit(owners map[string]string, wants map[string][]string, fits func(plan map[string]string) bool) (plan map[string]string, out []string) {
	rank := make(map[string]int) // -1 for a member with shards
	for _, id := range owners {
		rank[id] = -1
	}
	ids := slices.SortedFunc(maps.Keys(wants), func(a, b string) int { return cmp.Or(rank[a]-rank[b], strings.Compare(a, b)) })
	for wants = maps.Clone(wants); ; {
		n := len(wants)
		if plan = Balance(owners, wants); n == 0 || fits(plan) {
			return plan, ids[n:]
		}
		delete(wants, ids[n-1])
	}
}

// A PlanCodec encodes a plan as JSON. A plan is a map[string]string: by shard, the id of the member
// that owns it. Another program may have written other data. PlanCodec decodes such data as an
// empty plan, and a member then replaces the data.
type PlanCodec struct{}

func (PlanCodec) Marshal(v any) ([]byte, error) { return json.Marshal(map[string]any{"owners": v}) }

func (PlanCodec) Unmarshal(data []byte, v any) error {
	var plan struct{ Owners map[string]string }
	if json.Unmarshal(data, &plan) != nil {
		plan.Owners = nil
	}
	*v.(*map[string]string) = plan.Owners
	return nil
}
