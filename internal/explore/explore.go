// Package explore runs a model in every way that its choices allow. Exhaustive tests use it: they run
// the library's own code against a small model of servers, networks and time.
//
// A model is a function that asks Pick at each choice: which message comes next, whether a reply is
// lost. All calls it until each alternative of each choice has been taken. The
// function must depend on nothing else.
//
// Most ways lead to states that other ways have reached before. A model names its state with At, and
// a run ends when it comes to a known state, because all that can follow is known. So the state
// must include all that the rest of the run depends on, in the code under test too.
package explore

import (
	"fmt"
	"hash/maphash"
)

// A Run is one way through a model.
type Run struct {
	search *search
	picks  []pick
	next   int    // the pick that follows
	notes  []note // what has happened
}

type note struct {
	format string
	args   []any
}

type pick struct{ taken, of int }

type search struct {
	seed maphash.Seed
	seen map[uint64]struct{}
}

// Found is the result of an exploration.
type Found struct {
	Runs, States int
	Cut          bool   // there were more runs than the limit
	Fault        string // the first violation, and what led to it
}

func (f Found) String() string { return fmt.Sprintf("%d states, %d runs", f.States, f.Runs) }

// ended is the value with which a run panics to end early.
type ended struct{ fault string }

// All makes all runs of model, at most limit.
func All(limit int, model func(*Run)) Found {
	s := &search{seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
	r := &Run{search: s}
	var found Found
	for {
		fault := r.once(model)
		found.Runs++
		found.States = len(s.seen)
		if fault != "" {
			for _, n := range r.notes {
				fault += "\n  " + fmt.Sprintf(n.format, n.args...)
			}
			found.Fault = fault
			return found
		}
		for len(r.picks) > 0 && r.picks[len(r.picks)-1].taken == r.picks[len(r.picks)-1].of-1 {
			r.picks = r.picks[:len(r.picks)-1]
		}
		if len(r.picks) == 0 {
			return found
		}
		if found.Runs == limit {
			found.Cut = true
			return found
		}
		r.picks[len(r.picks)-1].taken++
	}
}

// once runs the model one time. It begins with the picks that are given.
func (r *Run) once(model func(*Run)) (fault string) {
	r.next, r.notes = 0, r.notes[:0]
	defer func() {
		switch p := recover().(type) {
		case nil:
		case ended:
			fault = p.fault
		default:
			panic(p)
		}
	}()
	model(r)
	return ""
}

// Pick returns a number below n. The runs of an exploration return each.
func (r *Run) Pick(n int) int {
	if r.next == len(r.picks) {
		r.picks = append(r.picks, pick{0, n})
	}
	p := r.picks[r.next]
	if p.of != n {
		panic(fmt.Sprintf("explore: choice %d is among %d in one run, and among %d in another", r.next, p.of, n))
	}
	r.next++
	return p.taken
}

// At ends the run if an earlier one has been in this state.
func (r *Run) At(state func() string) {
	if r.next < len(r.picks) { // it repeats the beginning of an earlier run
		return
	}
	h := maphash.String(r.search.seed, state())
	if _, ok := r.search.seen[h]; ok {
		panic(ended{})
	}
	r.search.seen[h] = struct{}{}
}

// Note records what happens, for the report of a violation. The arguments must not change.
func (r *Run) Note(format string, args ...any) { r.notes = append(r.notes, note{format, args}) }

// Fail ends the exploration with a violation.
func (r *Run) Fail(format string, args ...any) { panic(ended{fmt.Sprintf(format, args...)}) }

// End ends the run: nothing of interest follows.
func (r *Run) End() { panic(ended{}) }
