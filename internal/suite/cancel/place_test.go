package cancel

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Two goroutines of one process wait for a lock, and a goroutine of another process behind them.
// The first one gives up, before or after its turn has come.
func TestTheNextGoroutineTakesOverThePlaceOfTheFirstThatGivesUp(t *testing.T) {
	for _, ahead := range []int{1, 3} {
		for at := -60 * time.Millisecond; at < 200*time.Millisecond; at += 3 * time.Millisecond {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				one, another := suite.Open(t, srv), suite.Open(t, srv)
				holders := make([]*zsync.Mutex, ahead)
				for i := range holders {
					holders[i] = zsync.NewMutex(suite.Open(t, srv), "/m")
				}
				harness.Must(t, holders[0].Lock(t.Context()))
				var all sync.WaitGroup
				for _, h := range holders[1:] {
					all.Go(func() { harness.Must(t, errors.Join(h.Lock(t.Context()), h.Unlock())) })
					synctest.Wait()
				}
				ours, theirs := zsync.NewMutex(one, "/m"), zsync.NewMutex(another, "/m")
				srv.SetLatency(10 * time.Millisecond)
				var mu sync.Mutex
				var order []string
				lock := func(ctx context.Context, name string, m *zsync.Mutex) {
					all.Go(func() {
						if m.Lock(ctx) != nil {
							return
						}
						mu.Lock()
						order = append(order, name)
						mu.Unlock()
						harness.Must(t, m.Unlock())
					})
					time.Sleep(time.Second)
				}
				ctx, cancel := context.WithCancel(t.Context())
				lock(ctx, "first", ours)
				lock(t.Context(), "second", ours)
				lock(t.Context(), "other", theirs)
				if at < 0 {
					cancel()
					time.Sleep(-at)
				}
				all.Go(func() { harness.Must(t, holders[0].Unlock()) })
				time.Sleep(at)
				cancel()
				all.Wait()
				if order[len(order)-1] != "other" {
					t.Errorf("%d ahead, the first gives up %v after the holder: the order is %q", ahead, at, order)
				}
			})
		}
	}
}

// Six goroutines each of two processes share a value. Calls have short limits. No call returns
// late, no two goroutines hold the lock that exclude each other, and nothing is left.
func TestGoroutinesThatComeAndGoShareALock(t *testing.T) {
	for seed := range harness.Seeds(t, 100, 8, 3000) {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 11))
			srv.SetLatency(time.Duration(rnd.IntN(8)) * time.Millisecond)
			sessions := suite.OpenEach(t, srv, 2)
			var writers, readers atomic.Int64
			var all sync.WaitGroup
			for _, s := range sessions {
				opts := []zsync.LockOption{zsync.WithHandoffs(rnd.IntN(6))}
				if rnd.IntN(3) == 0 {
					opts = []zsync.LockOption{zsync.WithHandoffs(1 + rnd.IntN(6)), zsync.WithRetention(time.Duration(1+rnd.IntN(100)) * time.Millisecond)}
				}
				c := comer{zsync.NewRWMutex(s, "/rw", opts...), rnd.IntN(4), &writers, &readers}
				for range 6 {
					d := rand.New(rand.NewPCG(rnd.Uint64(), 12))
					all.Go(func() {
						for range 8 {
							c.visit(t, d)
							time.Sleep(time.Duration(d.IntN(4)) * time.Millisecond)
						}
					})
				}
			}
			all.Wait()
			time.Sleep(10 * time.Second)
			for _, s := range sessions {
				if st := s.Stats(); st.Waiters != 0 || st.Holds != 0 {
					t.Errorf("%d waiters, %d holds", st.Waiters, st.Holds)
				}
			}
			if left := suite.ChildrenOf(t, sessions[0], "/rw"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

type comer struct {
	rw               *zsync.RWMutex
	writes           int // of 4 visits, less one
	writers, readers *atomic.Int64
}

// visit locks and unlocks once, or gives up.
func (c comer) visit(t *testing.T, d *rand.Rand) {
	began, limit := time.Now(), time.Duration(1+d.IntN(200))*time.Millisecond
	if d.IntN(3) == 0 {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	lock, unlock, inside := c.rw.RLock, c.rw.RUnlock, c.readers
	if d.IntN(4) <= c.writes {
		lock, unlock, inside = c.rw.Lock, c.rw.Unlock, c.writers
	}
	err := lock(ctx)
	if took := time.Since(began); took-limit > 50*time.Millisecond || err != nil && limit == time.Minute {
		t.Errorf("%v, after %v of %v", err, took, limit)
	}
	if err != nil {
		if !errors.Is(err, ctx.Err()) {
			t.Error(err)
		}
		return
	}
	inside.Add(1)
	if w, r := c.writers.Load(), c.readers.Load(); w > 1 || w == 1 && r > 0 {
		t.Errorf("%d writers, %d readers", w, r)
	}
	time.Sleep(time.Duration(d.IntN(4)) * time.Millisecond)
	inside.Add(-1)
	harness.Must(t, unlock())
}
