package closing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A function works until a wait of its process is over. Close ends the wait, and so need not wait
// for its limit.
func TestCloseEndsEveryWaitThoughAFunctionStillRuns(t *testing.T) {
	ways := map[string]func(ctx context.Context, s, other *zsync.Session) error{
		"Mutex.Lock": func(ctx context.Context, s, other *zsync.Session) error {
			if err := zsync.NewMutex(other, "/p").Lock(ctx); err != nil {
				return err
			}
			return zsync.NewMutex(s, "/p").Lock(ctx)
		},
		"Semaphore.Acquire": func(ctx context.Context, s, other *zsync.Session) error {
			if err := zsync.NewSemaphore(other, "/p", 1).Acquire(ctx, 1); err != nil {
				return err
			}
			return zsync.NewSemaphore(s, "/p", 1).Acquire(ctx, 1)
		},
		"Barrier.Wait": func(ctx context.Context, s, other *zsync.Session) error {
			if err := zsync.NewBarrier(other, "/p").Close(ctx); err != nil {
				return err
			}
			return zsync.NewBarrier(s, "/p").Wait(ctx)
		},
		"WaitGroup.Wait": func(ctx context.Context, s, other *zsync.Session) error {
			if err := zsync.NewWaitGroup(other, "/p").Add(ctx, 1); err != nil {
				return err
			}
			return zsync.NewWaitGroup(s, "/p").Wait(ctx)
		},
		"WaitGroup.Enter": func(ctx context.Context, s, other *zsync.Session) error {
			return zsync.NewWaitGroup(s, "/p").Enter(ctx, 2)
		},
		"WaitGroup.Leave": func(ctx context.Context, s, other *zsync.Session) error {
			entered := make(chan error, 1)
			go func() { entered <- zsync.NewWaitGroup(other, "/p").Enter(ctx, 2) }()
			wg := zsync.NewWaitGroup(s, "/p")
			if err := errors.Join(wg.Enter(ctx, 2), <-entered); err != nil {
				return err
			}
			return wg.Leave(ctx)
		},
		"Cond.Wait": func(ctx context.Context, s, other *zsync.Session) error {
			m := zsync.NewMutex(s, "/l")
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return zsync.NewCond(s, "/p", m).Wait(ctx)
		},
		"Election.Transfer": func(ctx context.Context, s, other *zsync.Session) error {
			e := zsync.NewElection(s, "/p")
			if err := e.Campaign(ctx); err != nil {
				return err
			}
			// The candidate ahead of the heir is of another program, so it does not give way.
			if _, err := other.Txn(ctx, &zk.CreateRequest{Path: "/p/_c_48e50edc-09ec-4785-b44e-13769185aea0-latch-", Flags: zk.FlagSequence}); err != nil {
				return err
			}
			go zsync.NewElection(other, "/p").Campaign(context.WithoutCancel(ctx))
			for {
				if line, err := e.Contenders(ctx); err != nil || len(line) == 3 {
					return errors.Join(err, e.Transfer(ctx, line[2]))
				}
			}
		},
		"Group.Join": func(ctx context.Context, s, other *zsync.Session) error {
			if _, err := zsync.NewGroup[string](other, "/p").Join(ctx, "me", "other"); err != nil {
				return err
			}
			_, err := zsync.NewGroup[string](s, "/p").Join(ctx, "me", "this")
			return err
		},
		"Partition.Run": func(ctx context.Context, s, other *zsync.Session) error {
			return zsync.NewPartition(s, "/p").Run(ctx, nil, func(context.Context, string) error { return nil })
		},
		"Election.Observe": func(ctx context.Context, s, other *zsync.Session) error {
			return toItsEnd(zsync.NewElection(s, "/p").Observe(ctx))
		},
		"Group.Watch": func(ctx context.Context, s, other *zsync.Session) error {
			return toItsEnd(zsync.NewGroup[string](s, "/p").Watch(ctx))
		},
		"Map.Watch": func(ctx context.Context, s, other *zsync.Session) error {
			return toItsEnd(zsync.NewMap[string](s, "/p").Watch(ctx))
		},
		"Value.Watch": func(ctx context.Context, s, other *zsync.Session) error {
			return toItsEnd(zsync.NewValue[string](s, "/p").Watch(ctx))
		},
	}
	for name, wait := range ways {
		for _, within := range []bool{false, true} { // whether the wait has the context of the function, which Close ends, too
			t.Run(fmt.Sprintf("%s, within: %t", name, within), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, other := suite.Open(t, srv, zsync.WithCloseTimeout(time.Minute)), suite.Open(t, srv)
					waited := make(chan error, 1)
					done := harness.Async(func() error {
						return zsync.NewMutex(s, "/m").Do(t.Context(), func(ctx context.Context) error {
							if !within {
								ctx = t.Context()
							}
							go func() { waited <- wait(ctx, s, other) }()
							err := <-waited
							waited <- err
							return nil
						})
					})
					harness.PendingStill(t, done)
					began := time.Now()
					harness.Must(t, s.Close())
					if took := time.Since(began); took > time.Second {
						t.Errorf("Close took %v", took)
					}
					harness.WantErr(t, <-waited, zsync.ErrClosed)
					harness.Must(t, <-done)
				})
			})
		}
	}
}

// toItsEnd receives from c until it is closed, which is all that a channel can tell of Close.
func toItsEnd[T any](c <-chan T) error {
	for range c {
	}
	return zsync.ErrClosed
}

// A party whose Session is being closed does not let others in.
func TestAPartyThatIsBeingClosedIsNoLongerCounted(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv, zsync.WithCloseTimeout(time.Minute)), suite.Open(t, srv)
		entered := harness.Arrive(t, func() error { return zsync.NewWaitGroup(s, "/p").Enter(t.Context(), 2) })
		done := harness.Arrive(t, func() error {
			return zsync.NewMutex(s, "/m").Do(t.Context(), func(context.Context) error { time.Sleep(10 * time.Second); return nil })
		})
		closed := harness.Arrive(t, s.Close)
		alone := harness.Async(func() error { return zsync.NewWaitGroup(other, "/p").Enter(t.Context(), 2) })
		harness.PendingStill(t, alone)
		harness.WantErr(t, <-entered, zsync.ErrClosed)
		harness.Must(t, <-done)
		harness.Must(t, <-closed)
	})
}
