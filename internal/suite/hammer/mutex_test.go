package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// hammerMutex takes m again and again, in every way, and checks that it is
// alone and that tokens grow.
func hammerMutex(t *testing.T, s *zsync.Session, m *zsync.Mutex, f *floor, highest *atomic.Int64, rnd *rand.Rand, loops int, pause time.Duration) {
	check := func(err error) {
		if err != nil && !errors.Is(err, zsync.ErrLost) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	stay := func(ctx context.Context) {
		v := &visit{write: true, session: s.ID(), lost: m.Lost(), of: m}
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
		time.Sleep(time.Duration(rnd.Int64N(int64(pause)))) // real time: the hold lasts for a while, on real servers and over TCP
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
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		for range 3 {
			sessions = append(sessions, suite.Open(t, srv, zsync.WithSessionTimeout(time.Duration(1+rnd.IntN(5))*time.Second)))
		}
		layout := zsync.Layout(rnd.IntN(2))
		f := floor{stands: harness.Standing(srv)}
		var highest atomic.Int64
		var wg sync.WaitGroup
		for _, s := range sessions {
			m := zsync.NewMutex(s, "/m", append(anyOptions(rnd), zsync.WithLayout(layout))...)
			for range 4 {
				src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
				wg.Go(func() { hammerMutex(t, s, m, &f, &highest, src, 12, 100*time.Millisecond) })
			}
		}
		harness.UnderChaos(t, srv, rnd, sessions, wg.Wait)
		time.Sleep(10 * time.Second)
		last := zsync.NewMutex(sessions[0], "/m", zsync.WithLayout(layout))
		harness.Must(t, last.Lock(harness.Within(t, time.Minute)))
		harness.Must(t, last.Unlock())
		wantNothingLeft(t, srv, sessions, "/m")
	})
}

func TestHammerMutexForReal(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		f := floor{stands: stands}
		var highest atomic.Int64
		var wg sync.WaitGroup
		until := time.Now().Add(time.Minute)
		for i := range 4 {
			s := connect()
			m := zsync.NewMutex(s, "/m", zsync.WithHandoffs(i))
			for j := range 4 {
				src := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				wg.Go(func() {
					for time.Now().Before(until) {
						hammerMutex(t, s, m, &f, &highest, src, 10, 5*time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
	})
}
