package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// This file prints the results as Markdown tables, with the median and the spread of the rounds.
// The plots are the business of plot.go.

// A spread summarizes the measurements of one thing in several rounds.
type spread struct{ least, median, most float64 }

func spreadOf(xs []float64) spread {
	xs = slices.Sorted(slices.Values(xs))
	mid := xs[len(xs)/2]
	if len(xs)%2 == 0 {
		mid = (mid + xs[len(xs)/2-1]) / 2
	}
	return spread{xs[0], mid, xs[len(xs)-1]}
}

// rates returns the measurements of one peer and one job, by round.
func (r *result) rates(delay time.Duration, j job, peer string) map[int]float64 {
	m := make(map[int]float64)
	for _, s := range r.samples {
		if s.delay == delay && s.job == j && s.peer == peer {
			m[s.rep] = s.rate
		}
	}
	return m
}

func values(m map[int]float64) (xs []float64) {
	for _, x := range m {
		xs = append(xs, x)
	}
	return xs
}

// peers and jobs return the peers and the jobs of the samples, in the order of their first samples.
func (r *result) peers() []string {
	return inOrder(r.samples, func(s sample) string { return s.peer })
}

func (r *result) jobs(delay time.Duration) []job {
	of := slices.DeleteFunc(slices.Clone(r.samples), func(s sample) bool { return s.delay != delay })
	return inOrder(of, func(s sample) job { return s.job })
}

func inOrder[T comparable](samples []sample, key func(sample) T) (all []T) {
	for _, s := range samples {
		if k := key(s); !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return all
}

// markdown returns the measurements as Markdown, with a table for each link.
func (r *result) markdown() string {
	var b strings.Builder
	least, most := r.loads()
	fmt.Fprintf(&b, "Measured on %s. Clients in %s on %d processors of %s/%s, server: %s. %s\n", r.began.UTC().Format("2 January 2006, 15:04 UTC"),
		runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, r.server, r.about)
	fmt.Fprintf(&b, "Operations per second: the median of %d rounds (least–most). In each round the clients ran one after the other. The load of the machine was %.1f to %.1f.\n", r.plan.reps, least, most)
	peers := r.peers()
	first := r.plan.peers[0].name
	slices.SortStableFunc(peers, func(a, b string) int { return btoi(b == first) - btoi(a == first) })
	for _, delay := range r.plan.delays {
		fmt.Fprintf(&b, "\n| %s | %s | %s ÷ best other, by round (least–most) |\n|---|%s---|\n", link(delay), strings.Join(peers, " | "), first, strings.Repeat("---|", len(peers)))
		for _, j := range r.jobs(delay) {
			fmt.Fprintf(&b, "| %s |", j)
			for _, p := range peers {
				fmt.Fprintf(&b, " %s |", cell(values(r.rates(delay, j, p))))
			}
			fmt.Fprintf(&b, " %s |\n", r.ratio(delay, j, first, peers))
		}
	}
	for _, f := range r.failed {
		fmt.Fprintf(&b, "\nFailed: %s.\n", f)
	}
	fmt.Fprintf(&b, "\n    %s\n", r.command())
	return b.String()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func link(delay time.Duration) string {
	if delay == 0 {
		return "loopback"
	}
	return fmt.Sprintf("round trip of %v", delay)
}

func cell(xs []float64) string {
	if len(xs) == 0 {
		return ""
	}
	s := spreadOf(xs)
	return fmt.Sprintf("%s (%s–%s)", rate(s.median), rate(s.least), rate(s.most))
}

func rate(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.1f", x)
	}
	text := fmt.Sprintf("%.0f", x)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ratio returns the speed of the first peer relative to the best of the others: the median of the
// ratios per round. In a round, both clients ran one right after the other, so their ratio is fair.
func (r *result) ratio(delay time.Duration, j job, first string, peers []string) string {
	mine := r.rates(delay, j, first)
	best, of := 0.0, ""
	for _, p := range peers {
		if xs := values(r.rates(delay, j, p)); p != first && len(xs) > 0 && spreadOf(xs).median > best {
			best, of = spreadOf(xs).median, p
		}
	}
	if of == "" || len(mine) == 0 {
		return ""
	}
	var ratios []float64
	for rep, x := range r.rates(delay, j, of) {
		if m, ok := mine[rep]; ok && x > 0 {
			ratios = append(ratios, m/x)
		}
	}
	if len(ratios) == 0 {
		return ""
	}
	s := spreadOf(ratios)
	return fmt.Sprintf("%.2f × %s (%.2f–%.2f)", s.median, of, s.least, s.most)
}

func (r *result) loads() (least, most float64) {
	var all []float64
	for _, s := range r.samples {
		all = append(all, s.load)
	}
	s := spreadOf(all)
	return s.least, s.most
}

// command returns the command line that repeats the measurement. A reader must replace the paths of
// the peers' programs.
func (r *result) command() string {
	var jobs, delays []string
	for _, j := range r.plan.jobs {
		jobs = append(jobs, fmt.Sprintf("%s:%d", j.workload, j.n))
	}
	for _, d := range r.plan.delays {
		delays = append(delays, d.String())
	}
	peers := ""
	for _, p := range r.plan.peers {
		peers += " -peer '" + p.name + "=…'"
	}
	return fmt.Sprintf("go run ./bench/compare -servers HOST:PORT%s -do %s -delays %s -reps %d -dur %v", peers, strings.Join(jobs, ","), strings.Join(delays, ","), r.plan.reps, r.plan.dur)
}

// The marks that surround the measurements in a document.
const (
	beginMark = "<!-- measured by bench/compare: begin -->"
	endMark   = "<!-- measured by bench/compare: end -->"
)

func (r *result) writeDoc(file string) error {
	if file == "" {
		return nil
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), beginMark)
	_, tail, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q, between which the tables go", file, beginMark, endMark)
	}
	return os.WriteFile(file, []byte(head+beginMark+"\n\n"+r.markdown()+"\n"+endMark+tail), 0o644)
}
