package locks

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// However much six goroutines of a process want the lock, each for a second at a
// time, everyone else gets it within a few rounds of them, here or elsewhere.
func TestNobodyStarvesAtATurnstile(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 5} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewRWMutex(suite.Open(t, srv), "/rw", zsync.WithHandoffs(n))
			other := zsync.NewRWMutex(suite.Open(t, srv), "/rw", zsync.WithHandoffs(n))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 6 {
				lock, unlock := m.Lock, m.Unlock
				if i%3 > 0 {
					lock, unlock = m.RLock, m.RUnlock
				}
				wg.Go(func() {
					for lock(ctx) == nil {
						time.Sleep(time.Second)
						if err := unlock(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range 5 {
				harness.Must(t, other.Lock(harness.Within(t, time.Minute)))
				harness.Must(t, other.Unlock())
				harness.Must(t, other.RLock(harness.Within(t, time.Minute)))
				harness.Must(t, other.RUnlock())
				harness.Must(t, m.Lock(harness.Within(t, time.Minute)))
				harness.Must(t, m.Unlock())
				harness.Must(t, m.RLock(harness.Within(t, time.Minute)))
				harness.Must(t, m.RUnlock())
			}
			cancel()
			wg.Wait()
		})
	}
}

// The servers are asked whether others wait while half of the hand-overs are still
// to come, so none of them waits for the answer.
func TestNoHandoverWaitsForAListing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const latency, hold, rounds = 10 * time.Millisecond, 2 * time.Millisecond, 10
		m := zsync.NewMutex(suite.Open(t, srv), "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		srv.SetLatency(latency)
		start := time.Now()
		done := make(chan struct{})
		var last time.Duration
		var mu sync.Mutex
		for range 8 {
			go func() {
				for range rounds {
					if m.Lock(t.Context()) != nil {
						t.Error("not locked")
					}
					time.Sleep(hold)
					mu.Lock()
					last = time.Since(start)
					mu.Unlock()
					if m.Unlock() != nil {
						t.Error("not unlocked")
					}
				}
				done <- struct{}{}
			}()
		}
		for range 8 {
			<-done
		}
		if want := latency + 8*rounds*hold; last != want {
			t.Errorf("80 holds of %v took %v, want %v: hand-overs have waited", hold, last, want)
		}
		srv.SetLatency(0)
	})
}
