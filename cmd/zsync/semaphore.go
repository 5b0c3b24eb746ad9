package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync semaphore: it runs a command while it holds permits. hold.go has the function
// that runs it.

func semaphoreCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var limit, permits int64
	cmd := &cobra.Command{
		Use:   "semaphore -n LIMIT PATH [flags] -- CMD [ARG...]",
		Short: "run a command under permits of a semaphore",
		Long: `zsync semaphore runs a command while it holds permits of the semaphore at PATH, which
has LIMIT permits. If each command needs one permit, at most LIMIT commands run at once,
on all machines together. Waiters are served in the order in which they came, however
many permits they need. All commands at PATH must name the same LIMIT.

It is a zsync.Semaphore. The command's environment has no ZSYNC_TOKEN.`,
		Example: `  zsync semaphore -n 3 /jobs/import -- ./import.sh
  zsync semaphore -n 16 --permits 4 /cores -- make -j4`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("limit"):
				return fail(exitUsage, "how many permits are there? give -n")
			case limit < 1:
				return fail(exitUsage, "-n %d: must be at least 1", limit)
			case permits < 1:
				return fail(exitUsage, "--permits %d: must be at least 1", permits)
			case permits > limit:
				return fail(exitUsage, "--permits: %d permits exceed the limit of %d (-n)", permits, limit)
			}
			t, _, err := beginTask(h, cmd, args, false)
			if err != nil {
				return err
			}
			defer t.session.Close()
			m := zsync.NewSemaphore(t.session, t.path, limit, h.layout())
			return t.under(hold{
				acquire: func(ctx context.Context) error { return m.Acquire(ctx, permits) },
				try:     func(ctx context.Context) (bool, error) { return m.TryAcquire(ctx, permits) },
				release: func() error { return m.Release(permits) },
				lost:    m.Lost,
				lines:   []line{m},
			})
		},
	}
	h.addFlags(cmd)
	h.addTry(cmd, "")
	h.addKazoo(cmd, "Semaphore", "InterProcessSemaphoreV2")
	cmd.Flags().Int64VarP(&limit, "limit", "n", 0, "number of permits of the semaphore")
	cmd.Flags().Int64Var(&permits, "permits", 1, "permits that the command needs")
	return cmd
}
