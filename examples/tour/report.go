package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// This file has the records of a run, the checks of the promises, and the final table. The run is
// the business of main.go.

// A journal has the reports of the workers and the observations of the parent.
type journal struct {
	goal    int
	names   []string            // the names of the workers
	reports map[string][]report // by worker
	counter int                 // the number in the file at the end
	killed  string              // the worker that was killed
	holding bool                // at the kill, the parent saw that it held the lock and that all others waited
	passed  time.Duration       // the time from the kill to the end of the next round
	heir    string              // the worker of this round
}

// rounds returns the completed rounds of all workers, ordered by the numbers that the workers
// wrote. This is also the order of their holds.
func (j *journal) rounds() []report {
	var all []report
	for _, name := range j.names {
		for _, r := range j.reports[name] {
			if r.Kind == done {
				all = append(all, r)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b report) int { return cmp.Compare(a.Count, b.Count) })
	return all
}

// A finding is the result of the check of one promise.
type finding struct {
	promise string
	failure string // empty if the promise was kept
}

// findings checks every promise of the tour.
func (j *journal) findings() []finding {
	return []finding{
		{"no addition is lost", j.lostAddition()},
		{"nobody is inside with another", j.intrusion()},
		{"tokens strictly increase", j.disorder()},
		{"the lock passes on from a dead holder", j.stuck()},
	}
}

// lostAddition compares the reported additions with the number in the file. If two workers are
// inside at once, both may read a number and write the next. Then the number in the file is less
// than the number of rounds, and one number occurs twice.
//
// The kill does not change this result: the worker dies between the read and the write, and has
// reported every earlier round.
func (j *journal) lostAddition() string {
	rounds := j.rounds()
	for i, r := range rounds {
		if r.Count != i+1 {
			return fmt.Sprintf("%d rounds are reported, the file says %d; the first number out of order is %d", len(rounds), j.counter, r.Count)
		}
	}
	if len(rounds) != j.goal || j.counter != j.goal {
		return fmt.Sprintf("%d rounds are reported and the file says %d; want %d", len(rounds), j.counter, j.goal)
	}
	return ""
}

// intrusion searches for a round in which the worker found the mark of another
// worker. A worker that died inside or had lost the lock could not remove its
// mark. Such a mark is no intrusion.
func (j *journal) intrusion() string {
	left := map[string]bool{"": true}
	for _, reports := range j.reports {
		for _, r := range reports {
			left[r.Mark] = true
		}
	}
	for _, r := range j.rounds() {
		switch {
		case !left[r.Found]:
			return fmt.Sprintf("who wrote %d found %s inside", r.Count, r.Found)
		case r.After != "":
			return fmt.Sprintf("the mark of who wrote %d was replaced by that of %s", r.Count, r.After)
		}
	}
	return ""
}

// disorder searches for a token that is not greater than the previous token.
func (j *journal) disorder() string {
	last := int64(0)
	for _, r := range j.rounds() {
		if r.Token <= last {
			return fmt.Sprintf("number %d was written under token %d, after token %d", r.Count, r.Token, last)
		}
		last = r.Token
	}
	return ""
}

// stuck returns a text if no other worker got the lock after the kill of its holder, and otherwise
// "".
func (j *journal) stuck() string {
	switch {
	case j.killed == "":
		return "nobody was killed"
	case !j.holding:
		return j.killed + " was killed, but was not seen to hold the lock while all others waited"
	case j.heir == "":
		return "nobody came after " + j.killed
	}
	return ""
}

// print writes the table and the findings, in width columns unless width is 0. It reports whether
// all promises were kept.
func (j *journal) print(w io.Writer, width int) (ok bool) {
	fates := j.fates()
	beside := width == 0 || width >= besides
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\trounds\tlargest wait\t")
	for i, name := range append(slices.Clone(j.names), "total") {
		reports := j.rounds()
		if name != "total" {
			reports = j.reports[name]
		}
		cells := name + "\t" + summary(reports) + "\t"
		if fates[i] != "" && beside {
			cells += "   " + fates[i]
		}
		fmt.Fprintln(t, cells)
	}
	t.Flush()
	fmt.Fprintln(w)
	for i, name := range append(slices.Clone(j.names), "total") {
		if fates[i] != "" && !beside {
			fmt.Fprint(w, wrap(name+": "+fates[i], width))
		}
	}
	if !beside {
		fmt.Fprintln(w)
	}
	ok = true
	for _, f := range j.findings() {
		if f.failure == "" {
			fmt.Fprint(w, wrap("  held    "+f.promise, width))
			continue
		}
		ok = false
		fmt.Fprint(w, wrap("  BROKEN  "+f.promise+": "+f.failure, width))
	}
	return ok
}

// besides is the width of the table with the remarks next to it.
const besides = 64

// wrap breaks text between words into lines of width columns, unless width is 0. It indents the
// later lines like the words of the first line.
func wrap(text string, width int) string {
	if width == 0 || len(text) <= width {
		return text + "\n"
	}
	indent := strings.Repeat(" ", len(text)-len(strings.TrimLeft(text, " "))+2)
	var b strings.Builder
	for len(text) > width {
		i := strings.LastIndexByte(text[:width+1], ' ')
		if i <= len(indent) {
			i = width
		}
		b.WriteString(strings.TrimRight(text[:i], " ") + "\n")
		text = indent + strings.TrimLeft(text[i:], " ")
	}
	return b.String() + text + "\n"
}

// fates returns a remark on each worker, and on the total.
func (j *journal) fates() []string {
	var fates []string
	for _, name := range j.names {
		fates = append(fates, j.fate(name))
	}
	return append(fates, fmt.Sprintf("the file says %d of %d", j.counter, j.goal))
}

// summary returns two cells: the number of rounds and the largest wait.
func summary(reports []report) string {
	n, wait := 0, time.Duration(0)
	for _, r := range reports {
		if r.Kind == done {
			n++
			wait = max(wait, r.Wait)
		}
	}
	return fmt.Sprintf("%d\t%v", n, wait.Round(time.Millisecond))
}

// fate returns a remark on a worker.
func (j *journal) fate(name string) string {
	lost := 0
	for _, r := range j.reports[name] {
		if r.Kind == dropped {
			lost++
		}
	}
	switch {
	case name == j.killed:
		return "killed inside"
	case lost > 0:
		return fmt.Sprintf("lost the lock %d times", lost)
	case name == j.heir:
		return fmt.Sprintf("took over after %v", j.passed.Round(10*time.Millisecond))
	}
	return ""
}
