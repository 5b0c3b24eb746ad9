package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
)

// This file is the command: it runs days, prints the first failure, and shrinks the day that
// failed. The arenas and world.go check the programs.

var (
	days  = flag.Int("days", 1, "run fleets for so many virtual `days`")
	whole = flag.Bool("whole", false, "do not shrink a day that fails")
	first = flag.Uint64("seed", 1, "`seed` of the first day; each day has the next one")
)

// The function `main` runs days within package testing, because a bubble with virtual time needs a
// test.
func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	debug.SetGCPercent(1000)
	debug.SetMemoryLimit(3 << 30) // with 1 GiB, the collector takes a tenth of the time
	runtime.GOMAXPROCS(1)
	harness.DeepStacks()
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "Fleet", F: fleet}}, nil, nil)
}

// The function `fleet` runs the days that the flags name, and stops at the first day that fails. It
// shrinks that day, unless -whole is set.
func fleet(t *testing.T) {
	began, total := time.Now(), newTally()
	for i := range uint64(*days) {
		seed := *first + i
		o := runDay(t, seed, drawDay(seed), total)
		if len(o.failures) == 0 {
			continue
		}
		said, _, _ := strings.Cut(o.failures[0], "\n")
		fmt.Printf("Day %d fails after %v: %s\n", seed, o.at, said)
		p := drawDay(seed)
		if !*whole {
			p, o = shrink(t, seed, o)
		}
		fmt.Printf("\nThe faults that it takes (go run ./internal/fleet -seed %d -days 1 is the whole day):\n", seed)
		for _, f := range p.faults {
			fmt.Printf("  %s\n", f.describe())
		}
		fmt.Printf("\nWhat happened:\n%s\n", strings.Join(timeline(p, o), "\n"))
		t.Fail()
		break
	}
	fmt.Printf("%s\n%d days in %v\n", total, *days, time.Since(began).Round(time.Second))
}

// The type `outcome` is the result of a day.
type outcome struct {
	failures, story []string
	at              time.Duration // time of the first failure
}

func runDay(t *testing.T, seed uint64, p plan, total *tally) (o outcome) {
	var verdict func() (failures, story []string)
	harness.VirtualTime(t, func(*testing.T) { verdict = Run(seed, p, total) })
	o.failures, o.story = verdict()
	for _, line := range o.story {
		if at, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(text, "FAILED") {
			o.at, _ = time.ParseDuration(at)
			break
		}
	}
	return o
}

// The function `shrink` searches for a small set of faults with which the day still fails. Usually
// the last faults are enough, so the function tries them first. Then it leaves out half of the
// remaining faults at a time, and at last single faults.
func shrink(t *testing.T, seed uint64, failed outcome) (plan, outcome) {
	p := drawDay(seed)
	runs := 0
	try := func(faults []fault) bool {
		q := p
		q.faults = faults
		runs++
		fmt.Fprintf(os.Stderr, "%d faults ...\n", len(faults))
		o := runDay(t, seed, q, newTally())
		if len(o.failures) > 0 {
			p, failed = q, o
		}
		return len(o.failures) > 0
	}
	all := slices.DeleteFunc(p.faults, func(f fault) bool { return failed.at > 0 && f.at > failed.at })
	if failed.at > 0 {
		p.harm = min(p.harm, failed.at+p.timeout)
	}
	p.faults = all
	for n := 0; n < len(all); n = max(1, 2*n) {
		if try(all[len(all)-n:]) {
			break
		}
	}
	for size := (len(p.faults) + 1) / 2; size > 0 && runs < 200; {
		shorter := false
		for i := 0; i+size <= len(p.faults) && runs < 200; {
			if try(slices.Concat(p.faults[:i], p.faults[i+size:])) {
				shorter = true
			} else {
				i += size
			}
		}
		if size == 1 && !shorter {
			break
		}
		size = max(1, size/2)
	}
	return p, failed
}

var (
	named  = regexp.MustCompile(`p\d+\.\d+`)
	pathOf = regexp.MustCompile(`/[a-z0-9]+`)
)

// The function `timeline` returns the lines of the story that concern the first failure: all
// faults, and all lines with the primitive of the failure or with a process that it names.
func timeline(p plan, o outcome) (lines []string) {
	what := o.failures[0]
	path := pathOf.FindString(what)
	who := named.FindAllString(what, -1)
	for _, line := range o.story {
		at, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		d, _ := time.ParseDuration(at)
		if o.at > 0 && (d < o.at-8*p.timeout || d > o.at+p.timeout) {
			continue
		}
		theirs := slices.ContainsFunc(who, func(w string) bool { return strings.Contains(text, w) })
		if strings.Contains(text, "FAULT") || strings.HasPrefix(text, "over:") || strings.Contains(text, "FAILED") || strings.Contains(text, "STRANGER") ||
			theirs || path != "" && strings.Contains(text, path) {
			lines = append(lines, line)
		}
	}
	return lines
}
