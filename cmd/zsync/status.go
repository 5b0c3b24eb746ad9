package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// A statusLine is one who holds or waits, or one thing that is known of a path.
type statusLine struct {
	Path    string          `json:"path"`
	Kind    string          `json:"kind"` // empty if the path is free
	Mode    string          `json:"mode,omitempty"`
	State   string          `json:"state"` // in words
	Holding bool            `json:"holding"`
	Owner   string          `json:"owner,omitempty"`
	Since   *time.Time      `json:"since,omitempty"`
	Session string          `json:"session,omitempty"`
	Node    string          `json:"node,omitempty"`
	Count   *int            `json:"count,omitempty"`  // elements of a queue, tasks of a wait group
	Dead    *int            `json:"dead,omitempty"`   // dead letters of a queue
	Layout  string          `json:"layout,omitempty"` // of a queue, as --layout calls it
	Value   json.RawMessage `json:"value,omitempty"`  // the data of the znode: as it is if that is JSON, or else as a string
}

func statusCommand(c *client) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status PATH... [flags]",
		Short: "show what there is at a path, who holds and who waits",
		Long: `status shows what is found at each PATH: who holds and who waits, in order,
for locks, semaphores, elections, double barriers and conds; how many elements
a queue has, which consumers wait for some, and how many dead letters there are;
how many tasks a wait group has; whether a once is done, and which instant
of a schedule was the last. Times are those of the
servers' clocks. A path, or an owner, that we may not read costs the others
nothing; the exit status is then 77.

Where there is nothing of these the data of the znode is shown, if it has any:
that is a Value, or the limit of a semaphore that nobody uses. A closed gate is
a znode too, with the name of who has closed it: text that is not JSON and was
written once is taken for that. Otherwise the path is free. So is, for all that
can be seen, a gate that kazoo has closed, as it leaves no name.

--json prints an array of objects, one for each line of the table, with the
fields path, kind (empty if the path is free), mode, state, holding, owner,
since, session and node; and count, of elements or tasks, dead, of dead letters,
layout, of a queue, and value, the data, which is a string if it is not JSON itself.`,
		Example: "  zsync status /jobs/nightly /services/scheduler",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			ctx, _, stop := untilSignal(cmd.Context())
			defer stop()
			s, err := c.open(ctx)
			if err != nil {
				return err
			}
			defer s.Close()
			lines := []statusLine{}
			refused := false
			if slices.Contains(args, "/") { // where nothing can be, but below it
				if args, err = below(ctx, s, args); err != nil {
					return verdict(err, exitServers)
				}
			}
			for _, path := range args {
				more, err := lookAt(ctx, s, path)
				lines = append(lines, more...)
				switch {
				case errors.Is(err, zk.ErrNoAuth): // that of others can be shown
					lines = append(lines, statusLine{Path: path, State: "not ours to read"})
					say(err)
					refused = true
				case err != nil:
					return verdict(err, exitServers)
				}
			}
			show := printStatus
			if asJSON {
				show = func(w io.Writer, lines []statusLine) error { return writeJSON(w, lines) }
			}
			if err := outputError(show(cmd.OutOrStdout(), lines)); err != nil {
				return err
			}
			if refused {
				return &statusError{status: exitRefused}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// below puts all places that there are in the place of the root.
func below(ctx context.Context, s *zsync.Session, paths []string) (all []string, err error) {
	for _, path := range paths {
		if path != "/" {
			all = append(all, path)
			continue
		}
		v, err := explore(ctx, s, path)
		if err != nil {
			return nil, err
		}
		for _, p := range v.places {
			all = append(all, p.path)
		}
	}
	return all, nil
}

// lookAt asks everything that can be at path.
func lookAt(ctx context.Context, s *zsync.Session, path string) (lines []statusLine, err error) {
	nodes, err := nodesIn(ctx, s, path)
	if err != nil {
		return nil, err
	}
	for _, kind := range []struct {
		name       string
		contenders func(context.Context) ([]zsync.Contender, error)
		holders    *regexp.Regexp // if not nil, matches the nodes of holders
	}{
		{"lock", zsync.NewMutex(s, path).Contenders, nil},
		{"read-write lock", zsync.NewRWMutex(s, path).Contenders, nil},
		{"kazoo lock", zsync.NewRWMutex(s, path, zsync.WithLayout(zsync.LayoutKazoo)).Contenders, nil},
		{"election", zsync.NewElection(s, path).Contenders, nil},
		{"double barrier", zsync.NewWaitGroup(s, path).Contenders, nil},
		{"cond", zsync.NewCond(s, path, nil).Contenders, nil},
		{"semaphore", zsync.NewSemaphore(s, path, 1).Contenders, nil},
		{"kazoo semaphore", func(context.Context) ([]zsync.Contender, error) { return nodes, nil }, kazooPermit},
	} {
		contenders, err := kind.contenders(ctx)
		if err != nil {
			return lines, err
		}
		for _, c := range contenders {
			if c.Holding && kind.holders != nil && !kind.holders.MatchString(c.Node) {
				continue
			}
			mode := c.Mode.String()
			if kind.name == "cond" {
				mode = ""
			}
			lines = append(lines, lineOf(path, kind.name, mode, c))
		}
	}
	facts, err := factsOf(ctx, s, path)
	lines = append(lines, facts...)
	if err != nil {
		return lines, err
	}
	queue, err := queueAt(ctx, s, path, nodes)
	lines = append(lines, queue...)
	if err != nil {
		return lines, err
	}
	if len(lines) == 0 {
		return valueAt(ctx, s, path, len(nodes) == 0)
	}
	return lines, nil
}

// lineOf describes one who holds or waits.
func lineOf(path, kind, mode string, c zsync.Contender) statusLine {
	state := "waits"
	if c.Holding {
		state = "holds"
	}
	return statusLine{
		Path: path, Kind: kind, Mode: mode, State: state, Holding: c.Holding, Owner: c.Owner,
		Since: &c.Since, Session: fmt.Sprintf("%#x", uint64(c.Session)), Node: c.Node,
	}
}

// nodesIn describes the children of a znode, whatever they are: to kazoo's
// semaphore each of them is a permit that somebody holds. Those who wait for
// one come after them.
func nodesIn(ctx context.Context, s *zsync.Session, path string) ([]zsync.Contender, error) {
	return zsync.NewSemaphore(s, path, 1, zsync.WithLayout(zsync.LayoutKazoo)).Contenders(ctx)
}

// kazooPermit matches a permit of a kazoo semaphore. To kazoo anything is one,
// but not to someone who does not know what is at the path.
var kazooPermit = regexp.MustCompile(`^[0-9a-f]{32}$`)

// factsOf returns what is known of a path beside who holds and who waits.
func factsOf(ctx context.Context, s *zsync.Session, path string) (facts []statusLine, err error) {
	tasks, err := zsync.NewWaitGroup(s, path).Count(ctx)
	if err != nil {
		return nil, err
	}
	if tasks > 0 {
		facts = append(facts, statusLine{Path: path, Kind: "wait group", State: count(tasks, "open task"), Count: &tasks})
	}
	done, err := zsync.NewOnce(s, path).Done(ctx)
	if err != nil {
		return facts, err
	}
	if done {
		facts = append(facts, statusLine{Path: path, Kind: "once", State: "done"})
	}
	last, err := zsync.NewSchedule(s, path).Last(ctx)
	var noTime *time.ParseError // it is something else of that name
	switch {
	case err == nil:
		facts = append(facts, statusLine{Path: path, Kind: "schedule", State: "last done: that of " + last.Local().Format(time.DateTime)})
	case errors.Is(err, zsync.ErrNoValue), errors.As(err, &noTime):
	default:
		return facts, err
	}
	return facts, nil
}

// What tells a queue in zsync's own layout from other znodes: a bucket of its
// elements, and a consumer that waits for some.
var (
	queueBucket   = regexp.MustCompile(`^(b-\d+-\d+|d-\d+)$`)
	queueConsumer = regexp.MustCompile(`-turn--?\d+$`)
)

// queueAt describes the queue whose znode has these children. One in another
// library's layout is only known by its elements.
func queueAt(ctx context.Context, s *zsync.Session, path string, nodes []zsync.Contender) (lines []statusLine, err error) {
	line, err := nodesIn(ctx, s, path+"-consumers")
	if err != nil {
		return nil, err
	}
	for _, c := range line {
		if queueConsumer.MatchString(c.Node) {
			c.Holding = false
			lines = append(lines, lineOf(path, "queue", "consumer", c))
		}
	}
	_, _, err = zsync.NewValue[[]byte](s, path+"-claims", zsync.WithCodec(zsync.Raw)).Load(ctx)
	if err != nil && !errors.Is(err, zsync.ErrNoValue) {
		return nil, err
	}
	isQueue := err == nil || len(lines) > 0 ||
		slices.ContainsFunc(nodes, func(c zsync.Contender) bool { return queueBucket.MatchString(c.Node) })
	dead, err := deadLetters(ctx, s, path)
	if err != nil {
		return lines, err
	}
	for _, name := range []string{"zsync", "simple", "distributed", "kazoo"} {
		layout := queueLayouts[name]
		n, err := zsync.NewQueue[[]byte](s, path, zsync.WithQueueLayout(layout)).Len(ctx)
		if err != nil {
			return lines, err
		}
		state := count(n, "element")
		if layout != zsync.LayoutZsync {
			state += ", as of " + layout.String()
		}
		if n > 0 || isQueue && layout == zsync.LayoutZsync {
			lines = append(lines, statusLine{Path: path, Kind: "queue", State: state, Count: &n, Layout: name})
		}
	}
	if dead > 0 {
		lines = append(lines, statusLine{Path: path, Kind: "queue", State: count(dead, "dead letter"), Dead: &dead})
	}
	return lines, nil
}

// deadLetters counts those of the queue at path. Whichever its layout, they are
// in the same place.
func deadLetters(ctx context.Context, s *zsync.Session, path string) (n int, err error) {
	for _, err := range zsync.NewQueue[[]byte](s, path).Dead(ctx) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// valueAt describes the data at a path where nothing else is. alone says that
// the znode has no children.
func valueAt(ctx context.Context, s *zsync.Session, path string, alone bool) ([]statusLine, error) {
	data, version, err := zsync.NewValue[[]byte](s, path, zsync.WithCodec(zsync.Raw)).Load(ctx)
	switch {
	case errors.Is(err, zsync.ErrNoValue), err == nil && len(data) == 0:
		return []statusLine{{Path: path, State: "free"}}, nil
	case err != nil:
		return nil, err
	case json.Valid(data):
		return []statusLine{{Path: path, Kind: "data", State: printable(string(data)), Value: data}}, nil
	}
	value, err := json.Marshal(string(data))
	l := statusLine{Path: path, Kind: "data", State: printable(string(data)), Value: value}
	// A closed gate is made, with the name of who closes it, and not written.
	if alone && strings.HasPrefix(version.String(), "0@") {
		l.Kind, l.State, l.Owner = "gate", "closed", string(data)
	}
	return []statusLine{l}, err
}

// printStatus prints a table.
func printStatus(w io.Writer, lines []statusLine) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PATH\tKIND\tMODE\tSTATE\tOWNER\tSINCE\tSESSION")
	for _, l := range lines {
		since := ""
		if l.Since != nil {
			since = l.Since.Local().Format(time.DateTime)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			plain(l.Path), dash(l.Kind), dash(l.Mode), l.State, dash(printable(l.Owner)), dash(since), dash(l.Session))
	}
	return t.Flush()
}

// count returns n of something in words.
func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return strconv.Itoa(n) + " " + of + "s"
}

// dash is what a table shows for s.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
