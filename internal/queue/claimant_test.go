package queue

import (
	"fmt"
	"testing"
	"time"
)

// A consumer that is never idle passes through any number of buckets. It must not remember each of them.
func TestAClaimantForgetsDeletedBucketsAndNoOthers(t *testing.T) {
	c := &claimant{past: make(map[string]spans), pastAt: make(map[string]time.Time)}
	began := time.Now()
	add := func(name string, at time.Time) {
		c.past[name], c.pastAt[name] = only(1), at
	}
	for i := range 150 {
		add(fmt.Sprintf("b-00000-%010d", i), began.Add(-time.Second))
	}
	add("b-00000-0000000150", began.Add(time.Second)) // created after the listing
	c.prune([]bucket{{name: "b-00000-0000000149"}}, began)
	for _, name := range []string{"b-00000-0000000149", "b-00000-0000000150"} {
		if !c.past[name].has(1) {
			t.Errorf("%s is forgotten", name)
		}
	}
	if len(c.past) != 2 || len(c.pastAt) != 2 {
		t.Errorf("%d and %d buckets are remembered; want 2", len(c.past), len(c.pastAt))
	}
}
