package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/internal/look"
)

// This file has zsync ls: it lists the primitives below a path, once or repeatedly. Package look
// reads the tree.

// The type `summary` is one primitive in a list.
type summary struct {
	Path    string     `json:"path"`
	Kind    string     `json:"kind"`
	State   string     `json:"state,omitempty"`
	Holders int        `json:"holders"`
	Waiters int        `json:"waiters"`
	Owner   string     `json:"owner,omitempty"`  // the first holder
	Since   *time.Time `json:"since,omitempty"`  // the time at which the first holder joined the line
	Held    *time.Time `json:"held,omitempty"`   // the time of the first holder's grant, if it is known
	Oldest  *time.Time `json:"oldest,omitempty"` // the time at which the first waiter joined the line
}

func lsCommand(c *client) *cobra.Command {
	h := newHolding(c)
	h.root = true
	asJSON, watch, every := false, false, seconds(2*time.Second)
	cmd := &cobra.Command{
		Use:   "ls [PATH] [flags]",
		Short: "list all primitives below a path, with holders and waiters",
		Long: `zsync ls lists every primitive at PATH and below it (default: /), one per line: the
numbers of holders and waiters, the first holder, the duration of its hold, and the
longest wait. A < before the duration means that it includes the holder's wait, because
the moment of the grant is unknown. The command zsync, and programs that take a token,
record that moment. With --watch, zsync ls sees each later handoff itself, so it knows
the moment of those grants. Times are converted from the servers' clocks. zsync ls sends
a request for each znode, and a few for each primitive, at most eight at once.

zsync status PATH shows all contenders of one path. With --watch, zsync ls refreshes
its output, and says when the servers stop answering and when they answer again. zsync
top does that in a terminal.`,
		Example: "  zsync ls\n  zsync ls /jobs --watch",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if watch && asJSON {
				return fail(exitUsage, "--watch and --json do not go together")
			}
			root := "/"
			if len(args) == 1 {
				root = args[0]
			}
			h.shows = watch
			t, err := h.begin(cmd.Context(), nil, root)
			if err != nil {
				return err
			}
			defer t.session.Close()
			var seen look.Memory
			for {
				stop := func() {}
				if watch {
					stop = t.missing()
				}
				rows, err := t.list(t.waiting, t.session, root, &seen)
				if stop(); err != nil {
					return verdict(err, exitBusy)
				}
				out := cmd.OutOrStdout()
				if asJSON {
					return outputError(writeJSON(out, rows))
				}
				if watch && isTerminal(out) {
					io.WriteString(out, "\x1b[H\x1b[2J") // move the cursor to the upper left, and clear the screen
				}
				if err := printList(out, rows, time.Now()); err != nil || !watch {
					return outputError(err)
				}
				select {
				case <-time.After(max(time.Duration(every), shortest)):
					fmt.Fprintln(out)
				case <-t.waiting.Done():
					return verdict(context.Cause(t.waiting), exitBusy)
				}
			}
		},
	}
	h.addTimeout(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh the output until a signal comes")
	cmd.Flags().Var(&every, "interval", "`TIME` between two refreshes")
	return cmd
}

// The method `missing` reports an outage once, unless the caller calls `stop` within the time
// `overdue`. If `missing` has reported an outage, `stop` reports its end.
func (t *task) missing() (stop func()) {
	began, said := time.Now(), make(chan struct{})
	timer := time.AfterFunc(overdue, func() {
		defer close(said)
		t.say(fmt.Errorf("the servers have not answered since %s: what is shown is old", began.Local().Format(time.DateTime)))
	})
	return func() {
		if timer.Stop() {
			return
		}
		if <-said; t.waiting.Err() == nil {
			t.say(fmt.Errorf("the servers answer again, after %v", time.Since(began).Round(time.Second)))
		}
	}
}

// The method `list` summarizes the primitives below root.
func (h *host) list(ctx context.Context, s *zsync.Session, root string, seen *look.Memory) ([]summary, error) {
	t, err := h.survey(ctx, s, root)
	if err != nil {
		return nil, err
	}
	seen.Note(t)
	return sumUpAll(t), nil
}

func sumUpAll(t *look.Tree) []summary {
	rows := []summary{}
	for _, p := range t.Places {
		rows = append(rows, sumUp(p.Lines)...)
	}
	for _, path := range t.Refused {
		rows = append(rows, summary{Path: path, State: "not ours to read"})
	}
	return rows
}

// sumUp returns a summary for each kind in the lines of a path. It omits free paths.
func sumUp(lines []look.Line) (rows []summary) {
	for _, l := range lines {
		if l.Kind == "" {
			continue
		}
		if n := len(rows); n == 0 || rows[n-1].Kind != l.Kind {
			rows = append(rows, summary{Path: l.Path, Kind: l.Kind})
		}
		row := &rows[len(rows)-1]
		switch {
		case l.Since == nil: // the line is about a fact, not about a contender
			if row.State != "" {
				row.State += "; "
			}
			row.State += l.State
			if row.Owner == "" {
				row.Owner = l.Owner
			}
		case l.Holding:
			if row.Holders++; row.Since == nil {
				row.Owner, row.Since = l.Owner, l.Since
				if since, atMost := l.HeldSince(); !atMost {
					row.Held = since
				}
			}
			if l.Retained {
				row.State = "may only be kept"
			}
		default:
			if row.Waiters++; row.Oldest == nil || l.Since.Before(*row.Oldest) {
				row.Oldest = l.Since
			}
		}
	}
	for i := range rows {
		if word := rows[i].calm(); word != "" {
			rows[i].State = strings.TrimSuffix(word+"; "+rows[i].State, "; ")
		}
	}
	return rows
}

// The method `calm` returns a text about the waiters of r if their wait is normal: if they wait for
// work, or for the end of a leadership. For other waiters, and for candidates without a leader, it
// returns "".
func (r summary) calm() string {
	switch {
	case r.Waiters == 0:
	case r.Kind == "queue":
		return fmt.Sprintf("%d idle", r.Waiters)
	case r.Kind == string(kinds.Election) && r.Holders > 0:
		return fmt.Sprintf("%d standby", r.Waiters)
	}
	return ""
}

func printList(w io.Writer, rows []summary, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PATH\tKIND\tHOLD\tFOR\tWAIT\tFOR\tOWNER\tSTATE")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", plain(r.Path), dash(r.Kind),
			tally(r.Holders), held(now, r.Held, r.Since), tally(r.Waiters), age(now, r.Oldest), dash(printable(r.Owner)), dash(r.State))
	}
	return t.Flush()
}

// The function `tally` returns the number n as text for a list, or "-" for 0.
func tally(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// The function `held` returns the duration of a hold as text. If only the time of the arrival is
// known, it returns an upper limit.
func held(now time.Time, since, came *time.Time) string {
	if since == nil && came != nil {
		return "<" + age(now, came)
	}
	return age(now, since)
}

// The function `age` returns the time from `since` to `now`, in at most two units.
func age(now time.Time, since *time.Time) string {
	if since == nil {
		return "-"
	}
	d := max(now.Sub(*since), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}
