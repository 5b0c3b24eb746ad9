package hammer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestHammerEveryAddToAnInt64Counts(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		const clients, adds = 3, 15
		var wg sync.WaitGroup
		var sessions []*zsync.Session
		var mu sync.Mutex
		sums := make(map[int64]bool)
		for range clients {
			s := suite.Open(t, srv)
			sessions = append(sessions, s)
			n := zsync.NewInt64(s, "/n")
			wg.Go(func() {
				for range adds {
					x, err := n.Add(context.Background(), 1)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if sums[x] {
						t.Errorf("two Adds returned %d", x)
					}
					sums[x] = true
					mu.Unlock()
				}
			})
		}
		harness.UnderChaos(t, srv, rnd, sessions, wg.Wait)
		if x, err := zsync.NewInt64(sessions[0], "/n").Load(t.Context()); x != clients*adds || err != nil {
			t.Errorf("Load = %d, %v; want %d", x, err, clients*adds)
		}
	})
}

func TestHammerInt64OnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		until := time.Now().Add(time.Minute)
		var mu sync.Mutex
		adds, sums := int64(0), make(map[int64]bool)
		var wg sync.WaitGroup
		for range 4 {
			n := zsync.NewInt64(connect(), "/n")
			for range 2 {
				wg.Go(func() {
					for time.Now().Before(until) && !t.Failed() {
						x, err := n.Add(t.Context(), 1)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						if adds++; sums[x] {
							t.Errorf("two Adds returned %d", x)
						}
						sums[x] = true
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		if x, err := zsync.NewInt64(connect(), "/n").Load(t.Context()); x != adds || err != nil {
			t.Errorf("Load = %d, %v after %d Adds", x, err, adds)
		}
	})
}
