package main

import (
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

func electCommand(c *client) *cobra.Command {
	h := newHolding(c)
	again, selector := false, false
	cmd := &cobra.Command{
		Use:   "elect PATH [flags] -- CMD [ARG...]",
		Short: "run a command on the one that is elected leader",
		Long: `elect waits to be elected among all who stand at PATH, and runs a command while
it leads. Those who stand are elected in the order in which they came.

It is a zsync.Election. --owner is what the leader is called; zsync status shows
it.`,
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
				e := zsync.NewElection(t.session, t.path, zsync.WithElectionLayout(layout))
				err = t.under(hold{acquire: e.Campaign, release: e.Resign, lost: e.Lost, tokens: token(e.Token), lines: []line{e}})
				t.session.Close()
				if !again || !lost(err) {
					return err
				}
				say(err)
			}
		},
	}
	h.addFlags(cmd)
	h.addKazoo(cmd, "Election", "LeaderLatch")
	cmd.Flags().BoolVar(&selector, "selector", false, "share the path with Curator's LeaderSelector instead of with its LeaderLatch")
	cmd.Flags().BoolVar(&again, "again", false, "when the leadership is lost stand again, and run the command anew")
	return cmd
}
