package verify

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// This file has the result of a judgement, and prints it. It judges nothing.

// A Report is the result of [Files] and [Inputs].
type Report struct {
	Violations []Finding // never allowed
	Missing    []Finding // prevents a complete judgement
	Notes      []Finding // allowed, and worth knowing

	Traces, Sessions, Paths, Holds, Losses, Tokens, Lines int
	Claims, Removed                                       int // of elements
	Tolerance                                             time.Duration
}

// A Finding is an entry of a Report. If the entry is about one path, Path is that path.
type Finding struct {
	Path string
	Text string
}

func (f Finding) String() string {
	if f.Path == "" {
		return f.Text
	}
	return f.Path + ": " + f.Text
}

func (r *Report) violation(path, format string, args ...any) {
	r.Violations = append(r.Violations, Finding{path, fmt.Sprintf(format, args...)})
}

func (r *Report) note(path, format string, args ...any) {
	r.Notes = append(r.Notes, Finding{path, fmt.Sprintf(format, args...)})
}

func (r *Report) missing(format string, args ...any) {
	r.Missing = append(r.Missing, Finding{"", fmt.Sprintf(format, args...)})
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

// Whole reports whether there is no violation, and no record is missing.
func (r *Report) Whole() bool { return len(r.Violations) == 0 && len(r.Missing) == 0 }

// Print writes r as text.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s: %s, %s of %s, %s, %s\n", count(r.Lines, "line"), count(r.Traces, "trace"), count(r.Sessions, "session"),
		count(r.Holds, "hold"), count(r.Paths, "path"), count(r.Losses, "loss"), count(r.Tokens, "token"))
	if r.Claims > 0 {
		fmt.Fprintf(&b, "of queues: %s of elements, %d removed\n", count(r.Claims, "claim"), r.Removed)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "VIOLATION  %s\n", v)
	}
	for _, v := range r.Missing {
		fmt.Fprintf(&b, "missing    %s\n", v)
	}
	for _, v := range r.Notes {
		fmt.Fprintf(&b, "note       %s\n", v)
	}
	switch {
	case len(r.Violations) > 0:
		fmt.Fprintf(&b, "%s\n", count(len(r.Violations), "violation"))
	case len(r.Missing) > 0:
		b.WriteString("no violation, as far as the lines go that are there\n")
	default:
		fmt.Fprintf(&b, "no violation: never two holders, tokens in order, losses told in time (clocks within %v)\n", r.Tolerance)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
