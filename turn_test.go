package zsync_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// hammerMutex takes m again and again, in every way, and checks that it is
// alone and that tokens grow.
func hammerMutex(t *testing.T, m *zsync.Mutex, f *floor, highest *atomic.Int64, rnd *rand.Rand, loops int, pause time.Duration) {
	check := func(err error) {
		if err != nil && !errors.Is(err, zsync.ErrLost) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	stay := func(ctx context.Context) {
		v := &visit{write: true, session: zsync.SessionOf(m).ID(), lost: m.Lost()}
		f.enter(t, v)
		defer f.leave(v)
		if before := highest.Load(); rnd.IntN(2) == 0 {
			tok, err := m.Token(ctx)
			if check(err); err == nil {
				if tok <= before {
					t.Errorf("token %d after %d", tok, before)
				}
				for old := highest.Load(); tok > old && !highest.CompareAndSwap(old, tok); {
					old = highest.Load()
				}
			}
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(pause))))
	}
	for range loops {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.Int64N(int64(200*pause))))
		ok, err := true, error(nil)
		switch rnd.IntN(4) {
		case 0:
			err = m.Do(ctx, func(ctx context.Context) error { stay(ctx); return nil })
			ok = false
		case 1:
			ok, err = m.TryLock(ctx)
		default:
			err = m.Lock(ctx)
		}
		if check(err); ok && err == nil {
			stay(ctx)
			check(m.Unlock())
		}
		cancel()
	}
}

func TestHammerMutex(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		for range 3 {
			sessions = append(sessions, open(t, srv, zsync.WithSessionTimeout(time.Duration(1+rnd.IntN(5))*time.Second)))
		}
		layout := zsync.Layout(rnd.IntN(2))
		f := floor{stands: standing(srv)}
		var highest atomic.Int64
		var wg sync.WaitGroup
		for _, s := range sessions {
			m := zsync.NewMutex(s, "/m", zsync.WithHandoffs(rnd.IntN(4)), zsync.WithLayout(layout))
			for range 4 {
				src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
				wg.Go(func() { hammerMutex(t, m, &f, &highest, src, 12, 100*time.Millisecond) })
			}
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		chaos(t, srv, rand.New(rand.NewPCG(rnd.Uint64(), 4)), sessions, done)
		time.Sleep(10 * time.Second)
		last := zsync.NewMutex(sessions[0], "/m", zsync.WithLayout(layout))
		must(t, last.Lock(within(t, time.Minute)))
		must(t, last.Unlock())
		for _, s := range sessions {
			if st := s.Stats(); st.Holds != 0 || st.Waiters != 0 {
				t.Errorf("%d holds and %d waiters are left", st.Holds, st.Waiters)
			}
		}
		if names := childrenOf(t, sessions[0], "/m"); len(names) > 0 {
			t.Errorf("%v are left", names)
		}
	})
}

func TestHammerMutexForReal(t *testing.T) {
	onServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		f := floor{stands: stands}
		var highest atomic.Int64
		var wg sync.WaitGroup
		until := time.Now().Add(time.Minute)
		for i := range 4 {
			m := zsync.NewMutex(connect(), "/m", zsync.WithHandoffs(i))
			for j := range 4 {
				src := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				wg.Go(func() {
					for time.Now().Before(until) {
						hammerMutex(t, m, &f, &highest, src, 10, 5*time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
	})
}

// However much six goroutines of a process want the lock, each for a second at a
// time, everyone else gets it within a few rounds of them, here or elsewhere.
func TestNobodyStarvesAtATurnstile(t *testing.T) {
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
