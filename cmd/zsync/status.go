package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// A statusLine is one who holds or waits, as status shows it.
type statusLine struct {
	Path    string    `json:"path"`
	Kind    string    `json:"kind"`
	Mode    string    `json:"mode"`
	Holding bool      `json:"holding"`
	Owner   string    `json:"owner"`
	Since   time.Time `json:"since"`
	Session string    `json:"session"`
	Node    string    `json:"node"`
}

func statusCommand(c *client) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status PATH... [flags]",
		Short: "show who holds and who waits",
		Long: `status shows who holds and who waits at each PATH, in their order, for every
kind of primitive that there is. Times are those of the servers' clocks.`,
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
				return e.Encode(lines)
			}
			return printStatus(cmd.OutOrStdout(), args, lines)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// lookAt asks everything that can have a line at path.
func lookAt(ctx context.Context, s *zsync.Session, path string) (lines []statusLine, err error) {
	for _, kind := range []struct {
		name       string
		contenders func(context.Context) ([]zsync.Contender, error)
	}{
		{"lock", zsync.NewMutex(s, path).Contenders},
		{"read-write lock", zsync.NewRWMutex(s, path).Contenders},
		{"kazoo lock", zsync.NewRWMutex(s, path, zsync.WithLayout(zsync.LayoutKazoo)).Contenders},
		{"election", zsync.NewElection(s, path).Contenders},
	} {
		contenders, err := kind.contenders(ctx)
		if err != nil {
			return nil, err
		}
		for _, c := range contenders {
			lines = append(lines, statusLine{
				Path: path, Kind: kind.name, Mode: c.Mode.String(), Holding: c.Holding, Owner: c.Owner,
				Since: c.Since, Session: fmt.Sprintf("%#x", uint64(c.Session)), Node: c.Node,
			})
		}
	}
	return lines, nil
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
			state := "waits"
			if l.Holding {
				state = "holds"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", path, l.Kind, l.Mode, state, l.Owner, l.Since.Local().Format(time.DateTime), l.Session)
		}
		if !found {
			fmt.Fprintf(t, "%s\t-\t-\tfree\t-\t-\t-\n", path)
		}
	}
	return t.Flush()
}
