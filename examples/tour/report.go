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

// A journal holds the reports of the workers and the observations of the parent.
type journal struct {
	goal    int
	names   []string            // of the workers
	reports map[string][]report // by worker
	counter int                 // the number in the file at the end
	killed  string              // the worker that was killed
	holding bool                // the parent saw it hold the lock then, and all others wait
	passed  time.Duration       // from the kill to the next round's end
	heir    string              // the worker of that round
}

// rounds returns the completed rounds of all workers, in the order of the numbers
// that they wrote: the order in which they had the lock.
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

// A finding is a promise and whether it held.
type finding struct {
	promise string
	failure string // empty if it held
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

// lostAddition compares the reported additions with the number in the file. When two workers are inside at once, both read a number and both write
// the next, so there are more rounds than the file says, and one number twice.
//
// The worker that is killed does not blur this: it dies between reading and
// writing, and has reported every round before.
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

// intrusion looks for a mark that was not the finder's own. A worker that died
// inside, or left because it had lost the lock, could not remove its mark: that
// mark is no intrusion.
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

// disorder looks for a token that is not greater than the token before it.
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

// stuck says if the lock did not pass on from a holder that was killed.
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

// print writes the table and the findings, in width columns if that is not 0,
// and reports whether all held.
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

// besides is the width of the table with the remarks beside it.
const besides = 64

// wrap breaks text into lines of width columns, if that is not 0, between its
// words. The second line and the next begin where the words of the first do.
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
