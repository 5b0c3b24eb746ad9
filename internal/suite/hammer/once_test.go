package hammer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The invariants of the hammer: between two Resets at most one Do that ran its
// own function returns nil; a Do returns nil only after one has; functions run
// one at a time among sessions that the servers have not ended.
func TestHammerOnce(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 3)
		harness.UnderChaos(t, srv, rnd, sessions, func() {
			for round := range 5 {
				hammerOnce(t, rnd, sessions, fmt.Sprintf("/o%d", round), harness.Standing(srv))
			}
		})
	})
}

func hammerOnce(t *testing.T, rnd *rand.Rand, sessions []*zsync.Session, path string, alive func(id int64) bool) {
	var succeeded, returned atomic.Int32 // functions that returned nil; Dos of these that did
	var mu sync.Mutex
	inside := make(map[*zsync.Session]int64) // the session of each function whose context has not ended; guarded by mu
	var wg sync.WaitGroup
	for i := range 3 * len(sessions) {
		s := sessions[i%len(sessions)]
		o := zsync.NewOnce(s, path)
		delay, work := time.Duration(rnd.IntN(500))*time.Millisecond, time.Duration(rnd.IntN(3000))*time.Millisecond
		fails, patience := rnd.IntN(3) == 0, time.Duration(1+rnd.IntN(60))*time.Second
		wg.Go(func() {
			time.Sleep(delay) // real time: callers come at random times, also on real servers
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ran := false
			err := o.Do(ctx, func(ctx context.Context) error {
				ran = true
				mu.Lock()
				own := s.ID()
				for _, id := range inside {
					// Whose session others have ended was granted before, and is not told yet.
					if alive(id) && alive(own) && ctx.Err() == nil {
						t.Errorf("a function of session %#x runs while that of session %#x does", own, id)
					}
				}
				inside[s] = own
				mu.Unlock()
				select {
				case <-time.After(work):
				case <-ctx.Done():
				}
				mu.Lock()
				delete(inside, s)
				mu.Unlock()
				if fails {
					return os.ErrInvalid
				}
				if ctx.Err() == nil {
					succeeded.Add(1)
				}
				return ctx.Err()
			})
			switch {
			case err == nil && ran:
				if n := returned.Add(1); n > 1 {
					t.Errorf("%d functions have done it", n)
				}
			case err == nil && succeeded.Load() == 0:
				t.Error("Do returned nil, and nobody has done it")
			}
		})
	}
	wg.Wait()
	// What has been done stays so, and what has not can still be.
	ran := false
	if err := zsync.NewOnce(sessions[0], path).Do(t.Context(), func(context.Context) error { ran = true; return nil }); err != nil && !errors.Is(err, zsync.ErrLost) {
		t.Error(err)
	}
	if ran && returned.Load() > 0 {
		t.Error("it was done, and then it was not")
	}
}

func TestHammerOnceOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		sessions := []*zsync.Session{connect(), connect(), connect()}
		rnd := rand.New(rand.NewPCG(1, 1))
		start := time.Now()
		for round := 0; time.Since(start) < time.Minute; round++ {
			hammerOnce(t, rnd, sessions, fmt.Sprintf("/o%d", round), stands)
		}
	})
}
