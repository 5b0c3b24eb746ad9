package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestHammerPersistentTasksAreCountedExactlyOnce(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 3)
		var total atomic.Int64
		harness.UnderChaos(t, srv, rnd, sessions, func() {
			var gs sync.WaitGroup
			for i := range 6 {
				wg := zsync.NewWaitGroup(sessions[i%3], "/w", zsync.WithPersistentTasks())
				rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
				gs.Go(func() {
					for range 15 {
						delta := rnd.IntN(9) - 4
						switch err := wg.Add(t.Context(), delta); {
						case err == nil:
							total.Add(int64(delta))
						case delta < 0 && errors.Is(err, zsync.ErrNegativeCounter):
						default:
							t.Errorf("Add(%d): %v", delta, err)
						}
						time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
					}
				})
			}
			gs.Wait()
		})
		suite.WantCount(t, zsync.NewWaitGroup(suite.Open(t, srv), "/w"), int(total.Load()))
	})
}

func TestHammerWaitReturnsNeitherTooEarlyNorNever(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 3)
		harness.UnderChaos(t, srv, rnd, sessions, func() { hammerTasks(t, rnd, sessions, harness.Standing(srv), 8, time.Second) })
		waiter := zsync.NewWaitGroup(sessions[0], "/w")
		harness.Must(t, waiter.Wait(harness.Within(t, time.Minute)))
		suite.WantCount(t, waiter, 0)
	})
}

// hammerTasks adds tasks and ends them, each of six goroutines so many times, while
// others wait for them.
func hammerTasks(t *testing.T, rnd *rand.Rand, sessions []*zsync.Session, stands func(int64) bool, rounds int, pause time.Duration) {
	type task struct {
		s       *zsync.Session
		session int64 // as it was before the task was added
		ending  atomic.Bool
	}
	var mu sync.Mutex
	var open []*task // added, Done not called; guarded by mu
	var gs sync.WaitGroup
	for i := range 6 {
		s := sessions[i%len(sessions)]
		wg := zsync.NewWaitGroup(s, "/w")
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		gs.Go(func() {
			for range rounds {
				tk := &task{s: s, session: s.ID()}
				if err := wg.Add(t.Context(), 1); err != nil {
					t.Errorf("Add: %v", err)
					return
				}
				mu.Lock()
				open = append(open, tk)
				mu.Unlock()
				time.Sleep(time.Duration(rnd.Int64N(int64(pause)))) // real time: a task takes a while, also on real servers
				tk.ending.Store(true)
				mu.Lock()
				open = slices.DeleteFunc(open, func(x *task) bool { return x == tk })
				mu.Unlock()
				if err := wg.Done(); err != nil && !errors.Is(err, zsync.ErrLost) {
					t.Errorf("Done: %v", err)
				}
				time.Sleep(time.Duration(rnd.Int64N(int64(2 * pause)))) // real time: the pause between tasks, also on real servers
			}
		})
	}
	waiter := zsync.NewWaitGroup(sessions[0], "/w")
	ctx, cancel := context.WithCancel(t.Context())
	watching := harness.Async(func() error {
		for {
			mu.Lock()
			before := slices.Clone(open)
			mu.Unlock()
			if err := waiter.Wait(ctx); err != nil {
				return nil
			}
			for _, tk := range before {
				if !tk.ending.Load() && tk.s.ID() == tk.session && stands(tk.session) {
					t.Error("Wait returned while a task was open")
				}
			}
			time.Sleep(pause / 10) // real time: the pause between waits, also on real servers
		}
	})
	gs.Wait()
	cancel()
	<-watching
}

func TestHammerTasksOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		sessions := []*zsync.Session{connect(), connect(), connect()}
		for start, part := time.Now(), uint64(0); time.Since(start) < time.Minute && !t.Failed(); part++ {
			hammerTasks(t, rand.New(rand.NewPCG(part, 6)), sessions, stands, 20, 20*time.Millisecond)
		}
		waiter := zsync.NewWaitGroup(sessions[0], "/w")
		harness.Must(t, waiter.Wait(harness.Within(t, time.Minute)))
		suite.WantCount(t, waiter, 0)
	})
}

func TestHammerPersistentTasksOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		sessions := []*zsync.Session{connect(), connect(), connect()}
		var total atomic.Int64
		var gs sync.WaitGroup
		until := time.Now().Add(time.Minute)
		for i := range 6 {
			wg := zsync.NewWaitGroup(sessions[i%3], "/w", zsync.WithPersistentTasks())
			gs.Go(func() {
				for time.Now().Before(until) {
					delta := rand.IntN(9) - 4
					switch err := wg.Add(t.Context(), delta); {
					case err == nil:
						total.Add(int64(delta))
					case delta < 0 && errors.Is(err, zsync.ErrNegativeCounter):
					default:
						t.Errorf("Add(%d): %v", delta, err)
						return
					}
				}
			})
		}
		gs.Wait()
		suite.WantCount(t, zsync.NewWaitGroup(connect(), "/w"), int(total.Load()))
	})
}
