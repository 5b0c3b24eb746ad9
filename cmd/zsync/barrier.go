package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

func barrierCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "barrier",
		Short: "hold programs back until they may all go on",
		Long: `A gate lets everyone wait who comes while it is closed, until somebody opens it
(close, wait, open: a zsync.Barrier).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return fail(exitUsage, "want a subcommand; see zsync barrier --help")
		},
	}
	cmd.AddCommand(
		gateCommand(c, "close", "close the gate: from now on wait waits", (*zsync.Barrier).Close),
		gateCommand(c, "wait", "wait while the gate is closed", (*zsync.Barrier).Wait),
		gateCommand(c, "open", "open the gate, for all who wait", (*zsync.Barrier).Open),
	)
	return cmd
}

func gateCommand(c *client, name, short string, do func(*zsync.Barrier, context.Context) error) *cobra.Command {
	h := &holding{client: c}
	cmd := &cobra.Command{
		Use:   name + " PATH [flags]",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			t, err := h.begin(cmd.Context(), args[0], nil)
			if err != nil {
				return err
			}
			defer t.session.Close()
			return verdict(do(zsync.NewBarrier(t.session, t.path), t.waiting), exitBusy)
		},
	}
	h.addTimeout(cmd)
	return cmd
}
