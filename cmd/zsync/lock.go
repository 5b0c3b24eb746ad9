package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

func lockCommand(c *client) *cobra.Command {
	h := &holding{client: c}
	rw := false
	cmd := &cobra.Command{
		Use:   "lock PATH [flags] -- CMD [ARG...]",
		Short: "run a command while nobody else holds the lock",
		Long: `lock runs a command while nobody else holds the lock at PATH, on whatever
machine. Those who wait are served in the order in which they came.

The lock is a zsync.Mutex. With --rw it is the write lock of a zsync.RWMutex,
which also keeps out the readers that zsync rlock runs. The two are different
locks; zsync refuses to run a command under one where it meets the other, unless
with --kazoo: there the two look alike.`,
		Example: `  zsync lock /jobs/nightly -- ./nightly.sh
  zsync lock /jobs/nightly --no-wait -- ./nightly.sh || [ $? = 75 ]`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := beginTask(h, cmd, args)
			if err != nil {
				return err
			}
			defer t.session.Close()
			m, rwm := zsync.NewMutex(t.session, t.path, h.layout()), zsync.NewRWMutex(t.session, t.path, h.layout())
			mine, other, format := locking(m), line(rwm), "%s is in use as a read-write lock: add --rw"
			if rw {
				mine, other, format = writing(rwm), m, "%s is in use as a plain lock: leave out --rw"
			}
			return t.under(h.unlessMixed(mine, other, format))
		},
	}
	h.addFlags(cmd)
	h.addNoWait(cmd)
	h.addKazoo(cmd, "Lock or WriteLock", "InterProcessMutex or InterProcessReadWriteLock")
	cmd.Flags().BoolVar(&rw, "rw", false, "take the write lock that goes with zsync rlock")
	return cmd
}

func rlockCommand(c *client) *cobra.Command {
	h := &holding{client: c}
	cmd := &cobra.Command{
		Use:   "rlock PATH [flags] -- CMD [ARG...]",
		Short: "run a command while nobody holds the write lock",
		Long: `rlock runs a command while nobody holds the write lock at PATH. Any number of
such commands run at once. Those who write use zsync lock --rw, or a
zsync.RWMutex. Readers and writers are served in the order in which they came.`,
		Example: `  zsync rlock /data -- ./backup.sh
  zsync lock --rw /data -- ./migrate.sh`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := beginTask(h, cmd, args)
			if err != nil {
				return err
			}
			defer t.session.Close()
			m, rwm := zsync.NewMutex(t.session, t.path, h.layout()), zsync.NewRWMutex(t.session, t.path, h.layout())
			return t.under(h.unlessMixed(reading(rwm), m, "%s is in use as a plain lock, which has no readers"))
		},
	}
	h.addFlags(cmd)
	h.addNoWait(cmd)
	h.addKazoo(cmd, "ReadLock", "InterProcessReadWriteLock")
	return cmd
}

// unlessMixed returns mine, refused while the other kind of lock is in use at
// the path. kazoo's locks do not tell their kind.
func (h *holding) unlessMixed(mine hold, other line, format string) hold {
	if h.kazoo {
		return mine
	}
	return mine.unless(other, format)
}

// The holds that there are to a lock.
func locking(m *zsync.Mutex) hold {
	return hold{m.Lock, m.TryLock, m.Unlock, m.Lost, m.Token}
}

func writing(m *zsync.RWMutex) hold {
	return hold{m.Lock, m.TryLock, m.Unlock, m.Lost, m.Token}
}

func reading(m *zsync.RWMutex) hold {
	return hold{m.RLock, m.TryRLock, m.RUnlock, m.Lost, m.Token}
}

// beginTask is begin for the arguments PATH -- CMD ARG...
func beginTask(h *holding, cmd *cobra.Command, args []string) (*task, error) {
	path, argv, err := pathAndCommand(cmd, args)
	if err != nil {
		return nil, err
	}
	return h.begin(cmd.Context(), path, argv)
}

// A line is what has contenders at a path.
type line interface {
	Path() string
	Contenders(ctx context.Context) ([]zsync.Contender, error)
}

// unless returns a hold that is refused while another kind of lock is in use at
// the path. That is asked after the hold has been acquired: of two that come at
// once, at least the later one then meets the other.
func (h hold) unless(other line, format string) hold {
	check := func(ctx context.Context) error {
		cs, err := other.Contenders(ctx)
		if err == nil && len(cs) > 0 {
			err = fail(exitUsage, format+" (%s)", other.Path(), cs[0].Owner)
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
