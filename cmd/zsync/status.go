package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/look"
)

// This file has zsync status: it shows the holders and waiters at paths. Package look reads a path.

func statusCommand(c *client) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status PATH... [flags]",
		Short: "show the holders and waiters of a path",
		Long: `zsync status shows the primitive at each PATH. For a lock, a semaphore, an election, a double
barrier or a cond, it shows the holders and waiters, in order. For a queue, it shows the elements,
waiting consumers and dead letters. For a wait group, it shows the tasks. For a group, it shows the
members. For a once, it shows whether it is done. For a schedule, it shows the last instant. Times
are from the servers' clocks: the time of the grant or, if that is not recorded, the time at which
the contender came. If zsync may not read a path or an owner, it shows the rest, and exits with
status 77.

The kind of some znodes is uncertain. zsync status recognizes a closed gate and a map
only by the data that zsync stores in them, and an unused semaphore by the znodes around
it. It shows any other data unchanged: the data of a Value, of a gate that Curator
closed, or of a map of an older zsync. A gate closed by kazoo has no data, and is shown
as free.

--json prints an array of objects, one for each line of the table, with the
fields path, kind (empty if the path is free), mode, state, holding, owner,
since (when it came), held (since when it holds, if that is known), session and
node. Some kinds have more fields: count (of elements, tasks or shards), dead (the
number of dead letters), layout (of a queue), info (of a member), failure (of a
schedule), and value (the data; a string if it is not JSON).`,
		Example: "  zsync status /jobs/nightly /services/scheduler",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if err := checkPaths(args, true); err != nil {
				return err
			}
			ctx, stop := untilSignalOf(cmd.Context(), c.hearAll())
			defer stop()
			c.log = &outageLog{h: c.host}
			s, err := c.open(ctx)
			if err != nil {
				return err
			}
			defer s.Close()
			lines, refused, err := c.statusOf(ctx, s, args)
			if err != nil {
				return err
			}
			show := printStatus
			if asJSON {
				show = func(w io.Writer, lines []look.Line) error { return writeJSON(w, lines) }
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

// statusOf looks at each path. For /, it looks at the whole tree. The result `refused` is true if
// the permission to read a path is missing.
func (h *host) statusOf(ctx context.Context, s *zsync.Session, paths []string) (lines []look.Line, refused bool, err error) {
	lines = []look.Line{}
	for _, path := range paths {
		if path == "/" { // only paths below / can have primitives
			t, err := h.survey(ctx, s, path)
			if err != nil {
				return nil, false, verdict(err, exitServers)
			}
			for _, p := range t.Places {
				lines = append(lines, p.Lines...)
			}
			for _, path := range t.Refused {
				lines = append(lines, look.Line{Path: path, State: "not ours to read"})
				refused = true
			}
			continue
		}
		more, err := look.At(ctx, s, path)
		lines = append(lines, more...)
		switch {
		case errors.Is(err, zk.ErrNoAuth): // still show the other paths
			lines = append(lines, look.Line{Path: path, State: "not ours to read"})
			h.say(err)
			refused = true
		case err != nil:
			return nil, false, verdict(err, exitServers)
		}
	}
	return lines, refused, nil
}

// The method `survey` looks at the tree below root. It prints a message if it has not seen all
// znodes.
func (h *host) survey(ctx context.Context, s *zsync.Session, root string) (*look.Tree, error) {
	t, err := look.Look(ctx, s, root)
	if err == nil && t.Cut {
		h.say(fmt.Errorf("%s: there are more than %d znodes; the rest is left out", root, look.TooMany))
	}
	return t, err
}

// printStatus prints lines as a table.
func printStatus(w io.Writer, lines []look.Line) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PATH\tKIND\tMODE\tSTATE\tOWNER\tSINCE\tSESSION")
	for _, l := range lines {
		since := ""
		if l.Since != nil {
			at, atMost := l.Since, false
			if l.Holding {
				at, atMost = l.HeldSince()
			}
			if since = at.Local().Format(time.DateTime); atMost {
				since = "here since " + since
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			plain(l.Path), dash(l.Kind), dash(l.Mode), l.State, dash(printable(l.Owner)), dash(since), dash(l.Session))
	}
	return t.Flush()
}

// The function `dash` returns s as text for a table, or "-" if s is empty.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
