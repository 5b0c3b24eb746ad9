package cancel

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// waits has a call of each kind that waits for another process, for ever in this program.
var waits = map[string]func(ctx context.Context, s *zsync.Session) error{
	"Mutex.Lock":    func(ctx context.Context, s *zsync.Session) error { return zsync.NewMutex(s, "/held").Lock(ctx) },
	"Mutex.Do":      func(ctx context.Context, s *zsync.Session) error { return zsync.NewMutex(s, "/held").Do(ctx, idle) },
	"RWMutex.RLock": func(ctx context.Context, s *zsync.Session) error { return zsync.NewRWMutex(s, "/rw").RLock(ctx) },
	"Semaphore.Acquire": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewSemaphore(s, "/full", 1).Acquire(ctx, 1)
	},
	"Election.Campaign": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewElection(s, "/leader").Campaign(ctx)
	},
	"Election.Run": func(ctx context.Context, s *zsync.Session) error { return zsync.NewElection(s, "/led").Run(ctx, idle) },
	"Election.Observe": func(ctx context.Context, s *zsync.Session) error {
		return drained(zsync.NewElection(s, "/leader").Observe(ctx))
	},
	"LockAllContext": func(ctx context.Context, s *zsync.Session) error {
		_, _, err := zsync.LockAllContext(ctx, zsync.NewMutex(s, "/free"), zsync.NewMutex(s, "/held"))
		return err
	},
	"Cond.Wait": func(ctx context.Context, s *zsync.Session) error {
		m := zsync.NewMutex(s, "/m")
		if err := m.Lock(ctx); err != nil {
			return err
		}
		return zsync.NewCond(s, "/c", m).Wait(ctx)
	},
	"Once.Do":         func(ctx context.Context, s *zsync.Session) error { return zsync.NewOnce(s, "/once").Do(ctx, idle) },
	"Barrier.Wait":    func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/gate").Wait(ctx) },
	"WaitGroup.Wait":  func(ctx context.Context, s *zsync.Session) error { return zsync.NewWaitGroup(s, "/tasks").Wait(ctx) },
	"WaitGroup.Enter": func(ctx context.Context, s *zsync.Session) error { return zsync.NewWaitGroup(s, "/room").Enter(ctx, 2) },
	"Value.Watch": func(ctx context.Context, s *zsync.Session) error {
		return drained(zsync.NewValue[int](s, "/v").Watch(ctx))
	},
	"Map.Watch": func(ctx context.Context, s *zsync.Session) error {
		return drained(zsync.NewMap[int](s, "/map").Watch(ctx))
	},
	"Group.Watch": func(ctx context.Context, s *zsync.Session) error {
		return drained(zsync.NewGroup[int](s, "/g").Watch(ctx))
	},
	"Queue.Receive": func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewQueue[int](s, "/q").Receive(ctx)
		return err
	},
	"Queue.ReceiveN": func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewQueue[int](s, "/q").ReceiveN(ctx, 2)
		return err
	},
	"Queue.Recv": func(ctx context.Context, s *zsync.Session) error {
		return drained(zsync.NewQueue[int](s, "/q").Recv(ctx))
	},
	"Queue.Deliveries": func(ctx context.Context, s *zsync.Session) error {
		return drained(zsync.NewQueue[int](s, "/q").Deliveries(ctx))
	},
	"Queue.All": func(ctx context.Context, s *zsync.Session) error {
		for _, err := range zsync.NewQueue[int](s, "/q").All(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"Queue.Work": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewQueue[int](s, "/q").Work(ctx, 2, func(context.Context, int) error { return nil })
	},
	"Queue.In": func(ctx context.Context, s *zsync.Session) error {
		_, done := zsync.NewQueue[int](s, "/q").In(ctx)
		return <-done
	},
	"Queue.Send": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewQueue[int](s, "/crowded", zsync.WithMaxLen(1)).Send(ctx, 2)
	},
	"Flight.Do": func(ctx context.Context, s *zsync.Session) error {
		_, _, err := zsync.NewFlight[int](s, "/flight", time.Hour).Do(ctx, "k", func(context.Context) (int, error) { return 0, nil })
		return err
	},
	"Schedule.Run": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewSchedule(s, "/schedule").Run(ctx, zsync.Every(time.Hour), func(context.Context, time.Time) error { return nil })
	},
	"Partition.Run": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewPartition(s, "/p").Run(ctx, []string{"a", "b"}, func(ctx context.Context, _ string) error { return idle(ctx) })
	},
}

// idle is a function that runs until its context ends.
func idle(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// drained receives until c is closed.
func drained[T any](c <-chan T) error {
	for range c {
	}
	return nil
}

// occupy makes every call of waits wait.
func occupy(t *testing.T, s *zsync.Session) {
	t.Helper()
	harness.Must(t, zsync.NewMutex(s, "/held").Lock(t.Context()))
	harness.Must(t, zsync.NewRWMutex(s, "/rw").Lock(t.Context()))
	harness.Must(t, zsync.NewSemaphore(s, "/full", 1).Acquire(t.Context(), 1))
	harness.Must(t, zsync.NewBarrier(s, "/gate").Close(t.Context()))
	harness.Must(t, zsync.NewWaitGroup(s, "/tasks").Add(t.Context(), 1))
	harness.Must(t, zsync.NewQueue[int](s, "/crowded", zsync.WithMaxLen(1)).Send(t.Context(), 1))
	harness.Must(t, zsync.NewElection(s, "/leader").Campaign(t.Context()))
	go zsync.NewOnce(s, "/once").Do(t.Context(), idle)
	go zsync.NewFlight[int](s, "/flight", time.Hour).Do(t.Context(), "k", func(ctx context.Context) (int, error) { return 0, idle(ctx) })
	synctest.Wait()
}

// The wait may have begun while the servers served, and its session may be over since. No other
// session begins.
func TestEveryWaitEndsWithItsContextThoughNoSessionIsThere(t *testing.T) {
	for name, wait := range waits {
		for _, outage := range []time.Duration{0, time.Second, time.Minute} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				occupy(t, suite.Open(t, srv))
				s := suite.Open(t, srv)
				ctx, cancel := context.WithCancel(t.Context())
				done := harness.Async(func() error { return wait(ctx, s) })
				time.Sleep(10 * time.Second)
				select {
				case err := <-done:
					t.Fatalf("%s does not wait: %v", name, err)
				default:
				}
				srv.Stop()
				time.Sleep(outage)
				cancel()
				began := time.Now()
				select {
				case <-done:
				case <-time.After(time.Hour):
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("%s ends %v after its context, %v after the servers have stopped", name, took, outage)
				}
				srv.Restart()
			})
		}
	}
}
