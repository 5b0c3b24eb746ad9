package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// This file counts the steps and the faults of days, and prints them as a table. It checks nothing.

// The type `tally` counts the steps and the faults of days.
type tally struct {
	mu     sync.Mutex
	ops    map[string]int            // the number of steps, by arena; guarded by mu
	faults map[string]int            // by kind; guarded by mu
	pairs  map[string]map[string]int // by kind of fault and state: how often the fault found a process in the state; guarded by mu
	checks int                       // the number of checks by the method `serve`; guarded by mu
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

// allStates has the states of a process, in the order of the table's columns.
var allStates = []string{"connects", "is idle", "calls", "waits", "holds", "has lost", "is away", "closes"}

// The map `impossible` has the pairs of a fault and a state that exclude each other. A process that
// connects has no Session that could close or move. A process that closes is not deployed.
var impossible = map[pair]bool{
	{"close", "connects"}: true, {"return", "connects"}: true, {"late", "connects"}: true, {"depose", "connects"}: true,
	{"shorten", "connects"}: true, {"deploy", "closes"}: true,
}

type pair struct{ fault, state string }

// String returns the number of steps in each arena, and the table of faults and states.
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
			if impossible[pair{k, s}] {
				fmt.Fprintf(&b, " %9s", "-")
				continue
			}
			fmt.Fprintf(&b, " %9d", t.pairs[k][s])
		}
		b.WriteString("\n")
	}
	return b.String()
}
