package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

func electCommand(c *client) *cobra.Command {
	h := &holding{client: c}
	again := false
	cmd := &cobra.Command{
		Use:   "elect PATH [flags] -- CMD [ARG...]",
		Short: "run a command on the one that is elected leader",
		Long: `elect waits to be elected among all who stand at PATH, and runs a command while
it leads. Those who stand are elected in the order in which they came.

It is a zsync.Election.`,
		Example: "  zsync elect /services/scheduler --again -- ./scheduler",
		RunE: func(cmd *cobra.Command, args []string) error {
			for {
				t, err := beginTask(h, cmd, args)
				if err != nil {
					return err
				}
				e := zsync.NewElection(t.session, t.path)
				err = t.under(hold{acquire: e.Campaign, release: e.Resign, lost: e.Lost, token: e.Token})
				t.session.Close()
				if !again || !lost(err) {
					return err
				}
				fmt.Fprintln(os.Stderr, "zsync:", err)
			}
		},
	}
	h.addFlags(cmd)
	cmd.Flags().BoolVar(&again, "again", false, "when the leadership is lost stand again, and run the command anew")
	return cmd
}
