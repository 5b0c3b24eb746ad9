package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync elect: it runs a command while this process leads. With --again, it campaigns
// again after a loss. hold.go runs the command.

func electCommand(c *client) *cobra.Command {
	h := newHolding(c)
	again, selector := false, false
	cmd := &cobra.Command{
		Use:   "elect PATH [flags] -- CMD [ARG...]",
		Short: "run a command on the elected leader",
		Long: `zsync elect waits until it is elected among the candidates at PATH, and runs a command
while it leads. Candidates are elected in the order in which they came.

It is a zsync.Election. --owner names the candidate; zsync status prints it.

With --again, the command campaigns again after a loss, even if no server answers for a long time.
SIGINT and SIGTERM end it in any case.`,
		Example: "  zsync elect /services/scheduler --again -- ./scheduler",
		RunE: func(cmd *cobra.Command, args []string) error {
			layout := zsync.LayoutCurator
			switch {
			case h.kazoo && selector:
				return fail(exitUsage, "--kazoo and --selector do not go together")
			case h.kazoo:
				layout = zsync.LayoutKazoo
			case selector:
				layout = zsync.LayoutSelector
			}
			for {
				t, _, err := beginTask(h, cmd, args, false)
				if err != nil {
					return err
				}
				e := zsync.NewElection(t.session, t.path, zsync.WithLayout(layout))
				err = t.under(hold{acquire: e.Campaign, release: e.Resign, lost: e.Lost, tokens: token(e.Token), lines: []line{e}})
				t.session.Close()
				// A signal that ended the command also ends zsync, even after a loss of the
				// leadership.
				if !again || !lost(err) || t.told {
					return err
				}
				h.say(errors.Unwrap(err))
				h.connect = 0 // the limit was for the first connection; from now on, a candidate waits for servers without a limit
			}
		},
	}
	h.addFlags(cmd)
	h.addKazoo(cmd, "Election", "LeaderLatch")
	cmd.Flags().BoolVar(&selector, "selector", false, "share the path with Curator's LeaderSelector, not its LeaderLatch")
	cmd.Flags().BoolVar(&again, "again", false, "after a loss, campaign again, and run the command again")
	return cmd
}
