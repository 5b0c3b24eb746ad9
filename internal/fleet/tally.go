package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// A tally counts what happened in days of fleets.
type tally struct {
	mu     sync.Mutex
	ops    map[string]int            // by arena; guarded by mu
	faults map[string]int            // by kind; guarded by mu
	pairs  map[string]map[string]int // by kind of fault, and state of the process; guarded by mu
	checks int                       // how often a fault ended, and nothing else happened for a while; guarded by mu
}

func newTally() *tally {
	return &tally{ops: map[string]int{}, faults: map[string]int{}, pairs: map[string]map[string]int{}}
}

func (t *tally) did(arena string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ops[arena]++
}

func (t *tally) fault(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults[kind]++
}

func (t *tally) hit(kind string, states []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pairs[kind] == nil {
		t.pairs[kind] = map[string]int{}
	}
	for _, s := range states {
		t.pairs[kind][s]++
	}
}

func (t *tally) quietly() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checks++
}

// The states of a process, in the order of the table.
var allStates = []string{"connects", "is idle", "calls", "waits", "holds", "has lost", "is away", "closes"}

// String returns the counts, and the table of faults and states.
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString("Steps of programs:\n")
	for _, k := range slices.Sorted(maps.Keys(t.ops)) {
		fmt.Fprintf(&b, "  %-12s %8d\n", k, t.ops[k])
	}
	fmt.Fprintf(&b, "\nFaults, and how often each found a process in a state (%d times it was checked that all were served):\n  %-12s %8s", t.checks, "", "faults")
	for _, s := range allStates {
		fmt.Fprintf(&b, " %9s", s)
	}
	b.WriteString("\n")
	for _, k := range slices.Sorted(maps.Keys(t.faults)) {
		fmt.Fprintf(&b, "  %-12s %8d", k, t.faults[k])
		for _, s := range allStates {
			fmt.Fprintf(&b, " %9d", t.pairs[k][s])
		}
		b.WriteString("\n")
	}
	return b.String()
}
