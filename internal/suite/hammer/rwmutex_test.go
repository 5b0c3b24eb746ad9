package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A floor is where holders meet: it knows who is there, and that those who may
// not meet do not while the holds of both stand. Those who use one value do not
// meet even after a loss.
type floor struct {
	stands func(session int64) bool
	mu     sync.Mutex
	here   map[*visit]bool
}

type visit struct {
	write   bool
	session int64
	lost    <-chan struct{}
	of      any // the value; nil: its users may meet after a loss
}

func (f *floor) valid(v *visit) bool {
	return !harness.Closed(v.lost) && f.stands(v.session)
}

func (f *floor) enter(t *testing.T, v *visit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for o := range f.here {
		if (o.write || v.write) && (v.of != nil && o.of == v.of || f.valid(o) && f.valid(v)) {
			t.Errorf("write %v of session %x meets write %v of session %x", v.write, v.session, o.write, o.session)
		}
	}
	if f.here == nil {
		f.here = make(map[*visit]bool)
	}
	f.here[v] = true
}

func (f *floor) leave(v *visit) {
	f.mu.Lock()
	delete(f.here, v)
	f.mu.Unlock()
}

// hammerRWMutex takes rw again and again, in every way.
func hammerRWMutex(t *testing.T, s *zsync.Session, rw *zsync.RWMutex, f *floor, rnd *rand.Rand, loops int, pause time.Duration) {
	check := func(err error) {
		if err != nil && !errors.Is(err, zsync.ErrLost) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	stay := func(ctx context.Context, write bool, lost <-chan struct{}) {
		v := &visit{write: write, session: s.ID(), lost: lost, of: rw}
		f.enter(t, v)
		select {
		case <-time.After(time.Duration(rnd.Int64N(int64(pause)))):
		case <-ctx.Done():
		}
		f.leave(v)
	}
	for range loops {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.Int64N(int64(200*pause))))
		switch rnd.IntN(6) {
		case 0:
			check(rw.Do(ctx, func(ctx context.Context) error {
				stay(ctx, true, ctx.Done())
				return nil
			}))
		case 1, 2:
			check(rw.RDo(ctx, func(ctx context.Context) error {
				stay(ctx, false, ctx.Done())
				return nil
			}))
		case 3:
			if err := rw.RLock(ctx); err == nil {
				stay(context.Background(), false, rw.Lost())
				check(rw.RUnlock())
			} else {
				check(err)
			}
		case 4:
			if ok, err := rw.TryLock(ctx); ok {
				stay(context.Background(), true, rw.Lost())
				check(rw.Unlock())
			} else {
				check(err)
			}
		case 5:
			err := rw.Lock(ctx)
			if check(err); err != nil {
				break
			}
			stay(context.Background(), true, rw.Lost())
			v := &visit{session: s.ID(), lost: rw.Lost(), of: rw}
			f.enter(t, v) // as a reader already: no writer may be here until RUnlock
			if err := rw.Downgrade(ctx); err == nil {
				stay(context.Background(), false, rw.Lost())
				f.leave(v)
				check(rw.RUnlock())
			} else {
				check(err)
				f.leave(v)
				check(rw.Unlock())
			}
		}
		cancel()
	}
}

// anyOptions draws the options of a lock.
func anyOptions(rnd *rand.Rand) []zsync.LockOption {
	handoffs := rnd.IntN(4)
	opts := []zsync.LockOption{zsync.WithHandoffs(handoffs)}
	if handoffs > 0 && rnd.IntN(2) == 0 {
		opts = append(opts, zsync.WithRetention(time.Duration(1+rnd.IntN(3000))*time.Millisecond))
	}
	if rnd.IntN(3) == 0 {
		opts = append(opts, zsync.WithMaxHold(time.Duration(20+rnd.IntN(200))*time.Millisecond))
	}
	return opts
}

func TestHammerRWMutex(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		for range 3 {
			sessions = append(sessions, suite.Open(t, srv, zsync.WithSessionTimeout(time.Duration(1+rnd.IntN(5))*time.Second)))
		}
		f := floor{stands: harness.Standing(srv)}
		var wg sync.WaitGroup
		for _, s := range sessions {
			rw := zsync.NewRWMutex(s, "/rw", anyOptions(rnd)...)
			for range 4 {
				src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
				wg.Go(func() { hammerRWMutex(t, s, rw, &f, src, 15, 100*time.Millisecond) })
			}
		}
		harness.UnderChaos(t, srv, rnd, sessions, wg.Wait)
		time.Sleep(10 * time.Second)
		last := zsync.NewRWMutex(sessions[0], "/rw")
		harness.Must(t, last.Lock(harness.Within(t, time.Minute)))
		harness.Must(t, last.Unlock())
		wantNothingLeft(t, srv, sessions, "/rw")
	})
}

func TestHammerRWMutexForReal(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		f := floor{stands: stands}
		var wg sync.WaitGroup
		until := time.Now().Add(time.Minute)
		for i := range 4 {
			s := connect()
			rw := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(i))
			for j := range 4 {
				src := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				wg.Go(func() {
					for time.Now().Before(until) {
						hammerRWMutex(t, s, rw, &f, src, 10, 5*time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
	})
}
