package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/suite"
)

// Four processes do what is due every 200 ms, one after another, and their functions
// fail at times. The hammer with skewed clocks and kills is in virtual time, beside the
// public package.
func TestHammerScheduleOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		const period = 200 * time.Millisecond
		boom := errors.New("boom")
		first := time.Now().Truncate(period).Add(period)
		f := floor{stands: stands}
		var mu sync.Mutex
		succeeded, tried := make(map[time.Time]int), make(map[time.Time]int)
		var wg sync.WaitGroup
		for i := range 4 {
			s := connect()
			c := zsync.NewSchedule(s, "/jobs")
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			do := func(at time.Time) (ran bool, err error) {
				return c.Do(t.Context(), at, func(ctx context.Context) error {
					v := &visit{write: true, session: s.ID(), lost: ctx.Done()}
					f.enter(t, v)
					defer f.leave(v)
					time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond) // real time: the work of a job on real servers
					if rnd.IntN(4) == 0 {
						return boom
					}
					mu.Lock()
					defer mu.Unlock()
					tried[at]++
					return nil
				})
			}
			wg.Go(func() {
				for n := range 5 * 60 {
					at := first.Add(time.Duration(n) * period)
					time.Sleep(time.Until(at)) // real time: a job is due at its time
					ran, err := do(at)
					for errors.Is(err, boom) || errors.Is(err, zsync.ErrLost) {
						ran, err = do(at)
					}
					if err != nil {
						t.Errorf("Do: %v", err)
						return
					}
					mu.Lock()
					if ran {
						succeeded[at]++
					}
					// No later one is begun before this one is done.
					if tried[at] == 0 {
						t.Errorf("instant %d is said to be done, and no function has succeeded", n)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for at, n := range succeeded {
			if n > 1 {
				t.Errorf("%d processes succeeded with %v", n, at.Sub(first))
			}
		}
		if len(tried) != 5*60 {
			t.Errorf("%d instants were done, want %d", len(tried), 5*60)
		}
	})
}
