package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/marks"
)

// This file has the subcommands of zsync barrier: close, open and wait use a Barrier; enter and
// leave use a double barrier. hold.go runs the command between enter and leave.

func barrierCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "barrier",
		Short: "make programs wait for each other",
		Long: `There are two kinds of barrier, which must not share a path.

The commands of a gate are barrier close, barrier wait and barrier open. While the gate
is closed, zsync barrier wait blocks. A gate is a zsync.Barrier, and can share its path
with Curator's DistributedBarrier and kazoo's Barrier.

The commands of a double barrier are barrier enter and barrier leave. N parties begin
together and end together, round after round. It uses Enter and Leave of a
zsync.WaitGroup.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(
		enterCommand(c),
		leaveCommand(c),
		gateCommand(c, "close", "close the gate: from now on, wait blocks", (*zsync.Barrier).Close),
		gateCommand(c, "wait", "wait until the gate is open", (*zsync.Barrier).Wait),
		gateCommand(c, "open", "open the gate: every wait ends", (*zsync.Barrier).Open),
	)
	return cmd
}

func gateCommand(c *client, name, short string, do func(*zsync.Barrier, context.Context) error) *cobra.Command {
	h := newHolding(c)
	cmd := &cobra.Command{
		Use:   name + " PATH [flags]",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			t, err := h.begin(cmd.Context(), nil, args[0])
			if err != nil {
				return err
			}
			defer t.session.Close()
			stop := func(bool) {}
			if name == "wait" {
				stop = t.narrateOf(t.gate)
			}
			err = do(zsync.NewBarrier(t.session, t.path), t.waiting)
			stop(err == nil)
			var late *lateError
			if errors.As(err, &late) && name == "wait" {
				return t.inVain(err, colon(t.gate()))
			}
			return verdict(err, exitBusy)
		},
	}
	h.addTimeout(cmd)
	return cmd
}

// The method `gate` returns a text about a closed barrier: the client that closed it, if known, and
// the time. If `gate` cannot read the barrier's znode, it returns "".
func (t *task) gate() string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.waiting), asking)
	defer cancel()
	data, stat, err := t.session.Get(ctx, t.path)
	if err != nil {
		return ""
	}
	by := ""
	if owner := strings.TrimPrefix(string(data), marks.Gate); owner != "" {
		by = " by " + printable(owner)
	}
	return "closed" + by + " since " + time.UnixMilli(stat.Ctime).Format(time.DateTime)
}

func enterCommand(c *client) *cobra.Command {
	h := newHolding(c)
	n := 0
	cmd := &cobra.Command{
		Use:   "enter -n N PATH [flags] [-- CMD [ARG...]]",
		Short: "wait until N parties have entered, then run a command",
		Long: `zsync barrier enter waits until N parties have entered at PATH. Then all N run their
commands, and each zsync ends when the commands of all have ended. A party that dies
before the round begins does not count; a party that dies later counts as having left.
If a party loses its session, it is no longer a member, and zsync stops its command.
--timeout limits only the wait to enter.

Without a command, zsync barrier enter is a rendezvous: it ends when N parties have
entered. Its membership ends at the same time, so the next N parties can enter.`,
		Example: `  zsync barrier enter -n 3 /load-test -- ./client
  zsync barrier enter -n 3 /deploy && ./switch-over`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndPerhapsCommand(cmd, args)
			if err != nil {
				return err
			}
			if argv == nil {
				return h.meet(cmd, n, path, "")
			}
			return h.enter(cmd, n, path, argv)
		},
	}
	h.addFlags(cmd)
	addParties(cmd, &n)
	return cmd
}

func leaveCommand(c *client) *cobra.Command {
	h := newHolding(c)
	n := 0
	cmd := &cobra.Command{
		Use:   "leave -n N PATH [flags]",
		Short: "wait until N parties are ready to leave",
		Long: `zsync barrier leave waits until N parties are ready to leave at PATH. A script calls
zsync barrier enter before its work and zsync barrier leave after it. Then the parties
begin and end together.

But between the two commands, the script is not a member. If another party dies
during its work, zsync barrier leave waits for it indefinitely. So set --timeout, or
run the work as the command of zsync barrier enter.`,
		Example: `  zsync barrier enter -n 3 /job && ./work; zsync barrier leave -n 3 --timeout 1h /job`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			err := h.meet(cmd, n, args[0], "/leave")
			var e *zsync.Error
			if errors.As(err, &e) { // the error says "enter" and the inner path, which the user did not type
				e.Op, e.Path = "leave", args[0]
			}
			return err
		},
	}
	h.addTimeout(cmd)
	addParties(cmd, &n)
	return cmd
}

func addParties(cmd *cobra.Command, n *int) {
	cmd.Flags().IntVarP(n, "parties", "n", 0, "number of parties")
}

// pathAndPerhapsCommand parses the arguments PATH [-- CMD ARG...].
func pathAndPerhapsCommand(cmd *cobra.Command, args []string) (path string, argv []string, err error) {
	if len(args) == 1 && cmd.ArgsLenAtDash() < 0 {
		return args[0], nil, nil
	}
	paths, argv, err := pathsAndCommand(cmd, args, false)
	if err != nil {
		return "", nil, err
	}
	return paths[0], argv, nil
}

// The method `parties` connects, and returns the double barrier at path+below. It fails if the
// command line does not give the number of parties.
func (h *holding) parties(cmd *cobra.Command, n int, path, below string, argv []string) (*task, *zsync.WaitGroup, error) {
	switch {
	case !cmd.Flags().Changed("parties"):
		return nil, nil, fail(exitUsage, "how many parties are there? give -n")
	case n < 1:
		return nil, nil, fail(exitUsage, "-n %d: must be at least 1", n)
	}
	t, err := h.begin(cmd.Context(), argv, path)
	if err != nil {
		return nil, nil, err
	}
	return t, zsync.NewWaitGroup(t.session, path+below), nil
}

// The method `meet` enters the double barrier at path+below, and waits until n parties have
// entered. Then it closes the session, so this party leaves.
func (h *holding) meet(cmd *cobra.Command, n int, path, below string) error {
	t, wg, err := h.parties(cmd, n, path, below, nil)
	if err != nil {
		return err
	}
	defer t.session.Close()
	return verdict(wg.Enter(t.waiting, n), t.busy)
}

// The method `enter` enters the double barrier, runs the command, and leaves.
func (h *holding) enter(cmd *cobra.Command, n int, path string, argv []string) error {
	t, wg, err := h.parties(cmd, n, path, "", argv)
	if err != nil {
		return err
	}
	defer t.session.Close()
	return t.under(hold{
		acquire: func(ctx context.Context) error { return wg.Enter(ctx, n) },
		release: func() error {
			if t.missed != nil && ends(t.missed) {
				return &signalError{t.missed}
			}
			ctx, stop := untilSignalOf(context.Background(), t.signals)
			defer stop()
			return wg.Leave(ctx)
		},
		lost: wg.Lost,
	})
}
