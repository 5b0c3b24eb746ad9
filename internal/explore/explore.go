// Package explore runs a model in every way that its choices allow. Exhaustive tests use it: they run
// the library's own code against a small model of servers, networks and time.
//
// A model is a function that calls Pick at each choice: for example, which message comes next, or
// whether a reply is lost. The function All calls the model until it has tried each alternative of
// each choice. The model must depend on nothing but these choices.
//
// Most runs reach states that earlier runs have reached. A model calls the method At with its state.
// If the state is known, the call ends the run: other runs try everything that can follow. So the
// state must include everything on which the rest of the run depends. This includes the state of the
// code under test.
//
// Package explore does not judge states: a model calls Fail.
package explore

import (
	"fmt"
	"hash/maphash"
)

// A Run is one execution of a model.
type Run struct {
	search *search
	picks  []pick
	next   int    // index of the next pick
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
	Cut          bool   // the exploration has ended at the limit
	Fault        string // the first violation, with the notes of its run
}

func (f Found) String() string { return fmt.Sprintf("%d states, %d runs", f.States, f.Runs) }

// To end early, a run panics with a value of the type `ended`.
type ended struct{ fault string }

// If a run does not repeat an earlier run, it panics with a value of the type `strayed`.
type strayed string

// All explores a model: it runs the model with all choices, but makes at most `limit` runs. The same
// choices must lead to the same run. If they do not, the model depends on something else, and All
// panics.
func All(limit int, model func(*Run)) Found { return Retrying(limit, 0, model) }

// Retrying does the same as All. It is for a model whose code under test has several goroutines.
// The scheduler can interrupt one of them, and so change the run. If that happens, the function
// Retrying makes the same run again, at most `retries` times. If none of these runs repeats the
// earlier run, the scheduler has changed the earlier run. Then Retrying begins anew, but at most as
// often.
func Retrying(limit, retries int, model func(*Run)) Found {
	for left := retries; ; left-- {
		found, err := explore(limit, retries, model)
		if err == "" {
			return found
		}
		if left == 0 {
			panic(err)
		}
	}
}

// The function `explore` makes one exploration. If a run cannot be repeated, `explore` returns the
// reason and the notes of the run.
func explore(limit, retries int, model func(*Run)) (found Found, err string) {
	s := &search{seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
	r := &Run{search: s}
	for {
		fault, err := r.once(model)
		for left := retries; err != "" && left > 0; left-- {
			fault, err = r.once(model)
		}
		if err != "" {
			return found, string(err) + r.story()
		}
		found.Runs++
		found.States = len(s.seen)
		if fault != "" {
			found.Fault = fault + r.story()
			return found, ""
		}
		for len(r.picks) > 0 && r.picks[len(r.picks)-1].taken == r.picks[len(r.picks)-1].of-1 {
			r.picks = r.picks[:len(r.picks)-1]
		}
		if len(r.picks) == 0 {
			return found, ""
		}
		if found.Runs == limit {
			found.Cut = true
			return found, ""
		}
		r.picks[len(r.picks)-1].taken++
	}
}

// The function `once` makes one run of the model. It first repeats the picks of r.
func (r *Run) once(model func(*Run)) (fault string, err strayed) {
	r.next, r.notes = 0, r.notes[:0]
	defer func() {
		switch p := recover().(type) {
		case nil:
		case ended:
			fault = p.fault
		case strayed:
			err = p
		default:
			panic(p)
		}
	}()
	model(r)
	if r.next < len(r.picks) {
		panic(strayed(fmt.Sprintf("explore: a run made %d choices, and an earlier one %d", r.next, len(r.picks))))
	}
	return "", ""
}

// Pick returns a number below n. Over all runs of an exploration, it returns each of these numbers.
func (r *Run) Pick(n int) int {
	if r.next == len(r.picks) {
		r.picks = append(r.picks, pick{0, n})
	}
	p := r.picks[r.next]
	if p.of != n {
		panic(strayed(fmt.Sprintf("explore: choice %d is among %d in one run, and among %d in another", r.next, p.of, n)))
	}
	r.next++
	return p.taken
}

// At checks the present state. If an earlier run was in this state, the call ends the run.
func (r *Run) At(state func() string) {
	if r.next < len(r.picks) { // this run repeats the beginning of an earlier run
		return
	}
	h := maphash.String(r.search.seed, state())
	if _, ok := r.search.seen[h]; ok {
		panic(ended{})
	}
	r.search.seen[h] = struct{}{}
}

// The method `story` returns the notes of the run, one per line.
func (r *Run) story() (lines string) {
	for _, n := range r.notes {
		lines += "\n  " + fmt.Sprintf(n.format, n.args...)
	}
	return lines
}

// Note adds a note to the run, for the report of a violation. The arguments must not change.
func (r *Run) Note(format string, args ...any) { r.notes = append(r.notes, note{format, args}) }

// Fail ends the exploration with a violation.
func (r *Run) Fail(format string, args ...any) { panic(ended{fmt.Sprintf(format, args...)}) }

// End stops the run: nothing of interest follows.
func (r *Run) End() { panic(ended{}) }
