package zsync_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// However much six goroutines of a process want the lock, each for a second at a
// time, everyone else gets it within a few rounds of them, here or elsewhere.
func TestNobodyStarvesAtATurnstile(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 5} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithHandoffs(n))
			other := zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithHandoffs(n))
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
				must(t, other.Lock(within(t, time.Minute)))
				must(t, other.Unlock())
				must(t, other.RLock(within(t, time.Minute)))
				must(t, other.RUnlock())
				must(t, m.Lock(within(t, time.Minute)))
				must(t, m.Unlock())
				must(t, m.RLock(within(t, time.Minute)))
				must(t, m.RUnlock())
			}
			cancel()
			wg.Wait()
		})
	}
}

// The servers are asked whether others wait while half of the hand-overs are still
// to come, so none of them waits for the answer.
func TestNoHandoverWaitsForAListing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const latency, hold, rounds = 10 * time.Millisecond, 2 * time.Millisecond, 10
		m := zsync.NewMutex(open(t, srv), "/m")
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
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
