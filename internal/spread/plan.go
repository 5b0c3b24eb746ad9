package spread

import (
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strings"
)

// A Plan says who is to own which shard.
type Plan struct {
	Owners map[string]string `json:"owners"` // by shard: the id of the member
}

// Fit returns the plan that Balance makes. If it does not fit, the plan is for fewer members, and out are
// those that have no part in it: those that own nothing so far go first. Every member that knows the same
// owners and wants gets the same.
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

// A PlanCodec is JSON, and takes what is no Plan, as a stranger may write it, for an
// empty one, which is made anew.
type PlanCodec struct{}

func (PlanCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (PlanCodec) Unmarshal(data []byte, v any) error {
	if json.Unmarshal(data, v) != nil {
		*v.(*Plan) = Plan{}
	}
	return nil
}
