package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync lock and rlock: their flags select a Mutex or a side of an RWMutex. hold.go
// waits for the lock, runs the command and releases the lock.

func lockCommand(c *client) *cobra.Command {
	h := newHolding(c)
	rw := false
	cmd := &cobra.Command{
		Use:   "lock PATH... [flags] -- CMD [ARG...]",
		Short: "run a command under a lock",
		Long: `zsync lock runs a command while no other process holds the lock at PATH, on any machine.
Waiters are served in the order in which they came. With several PATHs, zsync holds
all of them. Commands that name the same paths in different orders do not deadlock.

A lock does not make a job run once: five machines that run this command run the
job five times, one after another. For a nightly job, use zsync schedule.

The lock is a zsync.Mutex. With --rw, it is the write lock of a zsync.RWMutex, which
also excludes the readers of zsync rlock. The mutex and the write lock are different
locks: if one is in use at PATH, zsync refuses the other. With --kazoo, zsync cannot
distinguish the two, and does not refuse.

A script locks itself with its second line:

  [ "${ZSYNC_HELD-}" = "/locks/x $PPID" ] || exec zsync lock -n /locks/x -- "$0" "$@"

In the command's environment, ZSYNC_HELD has the path and the process ID of zsync. So
the script can check whether its parent is a zsync that holds /locks/x.`,
		Example: `  zsync lock /locks/backup -- ./backup.sh
  zsync lock /locks/backup --try -E 0 -- ./backup.sh
  zsync lock /accounts/1 /accounts/2 --timeout 5 -- ./transfer.sh
  zsync lock /locks/backup --on-lost 'logger "lost the lock"' -- ./backup.sh`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, paths, err := beginTask(h, cmd, args, true)
			if err != nil {
				return err
			}
			defer t.session.Close()
			var holds []hold
			for _, path := range paths {
				m, rwm := zsync.NewMutex(t.session, path, h.layout()), zsync.NewRWMutex(t.session, path, h.layout())
				mine, other, format := locking(m), line(rwm), "%s is in use as a read-write lock: add --rw"
				if rw {
					mine, other, format = writing(rwm), m, "%s is in use as a plain lock: leave out --rw"
				}
				holds = append(holds, h.unlessMixed(mine, other, format))
			}
			return t.under(all(holds))
		},
	}
	h.addFlags(cmd)
	h.addTry(cmd, "n")
	h.addKazoo(cmd, "Lock or WriteLock", "InterProcessMutex or InterProcessReadWriteLock")
	cmd.Flags().BoolVar(&rw, "rw", false, "take the write lock, which also excludes the readers of zsync rlock")
	return cmd
}

func rlockCommand(c *client) *cobra.Command {
	h := newHolding(c)
	cmd := &cobra.Command{
		Use:   "rlock PATH... [flags] -- CMD [ARG...]",
		Short: "run a command under a read lock",
		Long: `zsync rlock runs a command while no process holds the write lock at PATH. Any number of
readers run at once. Writers use zsync lock --rw, or a zsync.RWMutex. Readers and
writers are served in the order in which they came.`,
		Example: `  zsync rlock /data -- ./backup.sh
  zsync lock --rw /data -- ./migrate.sh`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, paths, err := beginTask(h, cmd, args, true)
			if err != nil {
				return err
			}
			defer t.session.Close()
			var holds []hold
			for _, path := range paths {
				m, rwm := zsync.NewMutex(t.session, path, h.layout()), zsync.NewRWMutex(t.session, path, h.layout())
				holds = append(holds, h.unlessMixed(reading(rwm), m, "%s is in use as a plain lock, which has no readers"))
			}
			return t.under(all(holds))
		},
	}
	h.addFlags(cmd)
	h.addTry(cmd, "n")
	h.addKazoo(cmd, "ReadLock", "InterProcessReadWriteLock")
	return cmd
}

// unlessMixed returns the hold `mine` with a change: the acquisition fails while the other kind of
// lock is in use at the path. With --kazoo there is no check, because the znodes of kazoo's locks
// do not show their kind.
func (h *holding) unlessMixed(mine hold, other line, format string) hold {
	if h.kazoo {
		return mine
	}
	return mine.unless(other, format)
}

// The functions locking, writing and reading return the holds of a lock.
func locking(m *zsync.Mutex) hold {
	return hold{m.Lock, m.TryLock, m.Unlock, m.Lost, token(m.Token), []line{m}}
}

func writing(m *zsync.RWMutex) hold {
	return hold{m.Lock, m.TryLock, m.Unlock, m.Lost, token(m.Token), []line{m}}
}

func reading(m *zsync.RWMutex) hold {
	return hold{m.RLock, m.TryRLock, m.RUnlock, m.Lost, token(m.Token), []line{m}}
}

// beginTask parses the arguments PATH -- CMD ARG..., and calls `begin`. If `several` is true, the
// arguments may have several PATHs.
func beginTask(h *holding, cmd *cobra.Command, args []string, several bool) (*task, []string, error) {
	paths, argv, err := pathsAndCommand(cmd, args, several)
	if err != nil {
		return nil, nil, err
	}
	for i, p := range paths {
		if slices.Contains(paths[:i], p) {
			return nil, nil, fail(exitUsage, "%s is given twice", p)
		}
	}
	t, err := h.begin(cmd.Context(), argv, paths...)
	return t, paths, err
}

// The method `unless` returns a hold whose acquisition fails while another kind of lock is in use
// at the path. The check follows the acquisition. So if two commands acquire the two kinds at the
// same time, at least the later command finds the hold of the other.
func (h hold) unless(other line, format string) hold {
	check := func(ctx context.Context) error {
		cs, err := other.Contenders(ctx)
		if err == nil && len(cs) > 0 {
			err = fail(exitConfig, format+" (%s)", other.Path(), cs[0].Owner)
		}
		if err != nil {
			h.release()
		}
		return err
	}
	guarded := h
	guarded.acquire = func(ctx context.Context) error {
		if err := h.acquire(ctx); err != nil {
			return err
		}
		return check(ctx)
	}
	guarded.try = func(ctx context.Context) (bool, error) {
		ok, err := h.try(ctx)
		if !ok || err != nil {
			return ok, err
		}
		return true, check(ctx)
	}
	return guarded
}
