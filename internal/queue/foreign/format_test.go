package foreign

import (
	"slices"
	"testing"
)

// What is put back must find its place among elements that were listed later.
func TestForeignElementsHaveTheSameOrderInEveryListing(t *testing.T) {
	for l, names := range map[string][]string{
		"SimpleDistributedQueue": {"qn-0000000005", "qn-0000000007"},
		"DistributedQueue":       {"queue-0FFFFFFFF0000000009", "queue-1000000070000000005", "queue-1000000070000000005#00000", "queue-1000000070000000005#00001", "queue-1000000070000000006"},
		"kazoo":                  {"entry-050-0000000009", "entry-100-0000000005", "entry-100-0000000006"},
	} {
		f := formats[l]
		reversed := slices.Clone(names)
		slices.Reverse(reversed)
		if got := slices.Sorted(slices.Values(f.elements(reversed))); !slices.Equal(got, names) {
			t.Errorf("the order is %q, want %q", got, names)
		}
	}
}
