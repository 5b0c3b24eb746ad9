package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync once: it runs a command until one run succeeds, on one machine at a time.
// hold.go has the function that runs it.

func onceCommand(c *client) *cobra.Command {
	h := newHolding(c)
	reset := false
	cmd := &cobra.Command{
		Use:   "once PATH [flags] -- CMD [ARG...]",
		Short: "run a command once among all machines",
		Long: `zsync once runs a command that must succeed once, on all machines together. If it has
succeeded at PATH before, zsync succeeds and runs nothing. While another machine runs
its command, zsync waits. If the command fails, zsync exits with the command's status,
and the next waiting machine runs its own command.

It is a zsync.Once. --reset, without a command, forgets the success.`,
		Example: `  zsync once /migrations/0042 -- ./migrate.sh 0042
  zsync once /migrations/0042 --reset`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if reset {
				return resetOnce(h, cmd, args)
			}
			t, _, err := beginTask(h, cmd, args, false)
			if err != nil {
				return err
			}
			defer t.session.Close()
			// The running process is the first contender in a line, as with a Mutex.
			lines := []line{zsync.NewMutex(t.session, t.path)}
			stop := t.narrate(lines)
			ctx, record := t.untilRecorded()
			err = zsync.NewOnce(t.session, t.path).Do(ctx, func(ctx context.Context) error {
				stop(true)
				defer record()
				return t.run(ctx.Done(), nil)
			})
			stop(false) // the Once is done, or Do has failed
			var late *lateError
			if errors.As(err, &late) {
				return t.inVain(err, t.taken(lines, ": "))
			}
			return verdict(err, t.busy)
		},
	}
	h.addFlags(cmd)
	cmd.Flags().BoolVar(&reset, "reset", false, "forget the success, so that the next once runs its command")
	return cmd
}

func resetOnce(h *holding, cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fail(exitUsage, "want: zsync once PATH --reset")
	}
	t, err := h.begin(cmd.Context(), nil, args[0])
	if err != nil {
		return err
	}
	defer t.session.Close()
	return verdict(zsync.NewOnce(t.session, t.path).Reset(t.waiting), exitBusy)
}
