package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// A statusLine is one who holds or waits, or one thing that is known of a path.
type statusLine struct {
	Path    string     `json:"path"`
	Kind    string     `json:"kind"`
	Mode    string     `json:"mode,omitempty"`
	State   string     `json:"state"`
	Holding bool       `json:"holding"`
	Owner   string     `json:"owner,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Session string     `json:"session,omitempty"`
	Node    string     `json:"node,omitempty"`
}

func statusCommand(c *client) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status PATH... [flags]",
		Short: "show what there is at a path, who holds and who waits",
		Long: `status shows what is found at each PATH: who holds and who waits, in order,
for locks, semaphores, elections and double barriers; how many elements
a queue has, and how many tasks a wait group; whether a once is done. Times are
those of the servers' clocks.

Where there is nothing of these the data of the znode is shown, if it has any:
that is a Value, the limit of a semaphore that nobody uses, or a closed gate,
with the name of who has closed it. Otherwise the path is free.`,
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
			for _, path := range args {
				more, err := lookAt(ctx, s, path)
				if err != nil {
					return verdict(err, exitServers)
				}
				lines = append(lines, more...)
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return outputError(e.Encode(lines))
			}
			return outputError(printStatus(cmd.OutOrStdout(), args, lines))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// lookAt asks everything that can be at path.
func lookAt(ctx context.Context, s *zsync.Session, path string) (lines []statusLine, err error) {
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
		{"semaphore", zsync.NewSemaphore(s, path, 1).Contenders, nil},
		{"kazoo semaphore", zsync.NewSemaphore(s, path, 1, zsync.WithLayout(zsync.LayoutKazoo)).Contenders, kazooPermit},
	} {
		contenders, err := kind.contenders(ctx)
		if err != nil {
			return nil, err
		}
		for _, c := range contenders {
			if c.Holding && kind.holders != nil && !kind.holders.MatchString(c.Node) {
				continue
			}
			state := "waits"
			if c.Holding {
				state = "holds"
			}
			lines = append(lines, statusLine{
				Path: path, Kind: kind.name, Mode: c.Mode.String(), State: state, Holding: c.Holding, Owner: printable(c.Owner),
				Since: &c.Since, Session: fmt.Sprintf("%#x", uint64(c.Session)), Node: c.Node,
			})
		}
	}
	facts, err := factsOf(ctx, s, path)
	if err != nil {
		return nil, err
	}
	lines = append(lines, facts...)
	if len(lines) == 0 {
		return valueAt(ctx, s, path)
	}
	return lines, nil
}

// kazooPermit matches a permit of a kazoo semaphore. To kazoo anything is one,
// but not to someone who does not know what is at the path.
var kazooPermit = regexp.MustCompile(`^[0-9a-f]{32}$`)

// factsOf returns what is known of a path beside who holds and who waits.
func factsOf(ctx context.Context, s *zsync.Session, path string) (facts []statusLine, err error) {
	fact := func(kind, state string) {
		facts = append(facts, statusLine{Path: path, Kind: kind, State: state})
	}
	tasks, err := zsync.NewWaitGroup(s, path).Count(ctx)
	if err != nil {
		return nil, err
	}
	if tasks > 0 {
		fact("wait group", count(tasks, "open task"))
	}
	done, err := zsync.NewOnce(s, path).Done(ctx)
	if err != nil {
		return nil, err
	}
	if done {
		fact("once", "done")
	}
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue, zsync.LayoutKazooQueue} {
		n, err := zsync.NewQueue[[]byte](s, path, zsync.WithQueueLayout(layout)).Len(ctx)
		if err != nil {
			return nil, err
		}
		if n > 0 && layout == zsync.LayoutZsync {
			fact("queue", count(n, "element"))
		} else if n > 0 {
			fact("queue", count(n, "element")+", as of "+layout.String())
		}
	}
	return facts, nil
}

// valueAt describes the data at a path where nothing else is.
func valueAt(ctx context.Context, s *zsync.Session, path string) ([]statusLine, error) {
	data, _, err := zsync.NewValue[[]byte](s, path, zsync.WithCodec(zsync.Raw)).Load(ctx)
	if errors.Is(err, zsync.ErrNoValue) || err == nil && len(data) == 0 {
		return nil, nil
	}
	return []statusLine{{Path: path, Kind: "data", State: printable(string(data))}}, err
}

// printable returns what a znode holds, in a form for a table: no more than
// will fit, and nothing that a terminal would act on.
func printable(s string) string {
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		s = strconv.Quote(s)
	}
	return s
}

// printStatus prints a table.
func printStatus(w io.Writer, paths []string, lines []statusLine) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PATH\tKIND\tMODE\tSTATE\tOWNER\tSINCE\tSESSION")
	for _, path := range paths {
		found := false
		for _, l := range lines {
			if l.Path != path {
				continue
			}
			found = true
			since := ""
			if l.Since != nil {
				since = l.Since.Local().Format(time.DateTime)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", path, l.Kind, dash(l.Mode), l.State, dash(l.Owner), dash(since), dash(l.Session))
		}
		if !found {
			fmt.Fprintf(t, "%s\t-\t-\tfree\t-\t-\t-\n", path)
		}
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
