package zsync_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
)

// Models of Once and WaitGroup.

func TestModelOfOnce(t *testing.T) {
	models(t, func(r *modelRun) {
		t := r.t
		var running, marked atomic.Int32
		failed := errors.New("failed")
		r.hurt(true)
		var wg sync.WaitGroup
		for _, s := range r.ss {
			shared := zsync.NewOnce(s, "/o")
			for range 3 {
				d := r.dice()
				wg.Go(func() {
					for range 3 {
						o := shared
						if d.IntN(3) == 0 {
							o = zsync.NewOnce(s, "/o")
						}
						ctx, cancel := cut(t, d)
						ran, fails := false, d.IntN(3) == 0
						err := o.Do(ctx, func(ctx context.Context) error {
							ran = true
							if marked.Load() > 0 {
								t.Error("it runs though a Do has said that it is done")
							}
							if running.Add(1) > 1 {
								t.Error("it runs twice at a time")
							}
							left := sync.OnceFunc(func() { running.Add(-1) })
							defer left()
							defer context.AfterFunc(ctx, left)() // lost: another may run
							time.Sleep(time.Duration(d.IntN(10)) * time.Millisecond)
							if fails {
								return failed
							}
							return nil
						})
						cancel()
						switch {
						case err == nil:
							if ran && fails {
								t.Error("Do returned nil though its function failed")
							}
							marked.Add(1)
						case ran && fails && !errors.Is(err, failed):
							t.Errorf("its function failed, and Do returned %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(time.Minute)
		o := zsync.NewOnce(open(t, r.srv), "/o")
		done, err := o.Done(t.Context())
		must(t, err)
		if marked.Load() > 0 && !done {
			t.Error("it was done, and is not any more")
		}
		must(t, o.Do(within(t, time.Second), func(context.Context) error { return nil }))
		if left := childrenOf(t, zsync.SessionOf(o), "/o"); len(left) != 1 || left[0] != "done" {
			t.Errorf("left: %q", left)
		}
	})
}

// What a WaitGroup must count after random Adds: exactly those that returned nil,
// but for negative ones whose outcome their caller was not told, and for tasks
// of a cancelled Add that others have ended before they were taken back. So one
// program in three never cancels an Add of a positive number, and one only adds:
// these are exact above.
func modelOfWaitGroup(t *testing.T, expire bool, opts ...zsync.WaitGroupOption) {
	models(t, func(r *modelRun) {
		t := r.t
		r.denies = r.rnd.IntN(2) == 0
		kind := r.rnd.IntN(3)
		var count, unsure, ghosts atomic.Int64
		r.hurt(expire)
		var wg sync.WaitGroup
		for _, s := range r.ss {
			w := zsync.NewWaitGroup(s, "/w", opts...)
			for range 2 {
				d := r.dice()
				wg.Go(func() {
					for range 6 {
						ctx, cancel := cut(t, d)
						delta := 1 + d.IntN(3)
						if d.IntN(2) == 0 && kind != 1 {
							delta = -delta
						}
						if delta > 0 && kind == 0 {
							cancel()
							ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
						}
						switch err := w.Add(ctx, delta); {
						case err == nil:
							count.Add(int64(delta))
						case errors.Is(err, zsync.ErrNegativeCounter), errors.Is(err, zsync.ErrLost):
						case delta < 0 && (ctx.Err() != nil || !session.IsAnswer(err, zk.ErrNoAuth)):
							unsure.Add(int64(-delta))
						case delta > 0 && ctx.Err() != nil && kind != 1: // with none ended it must be taken back whole
							ghosts.Add(int64(delta))
						case ctx.Err() == nil && !session.IsAnswer(err, zk.ErrNoAuth):
							t.Errorf("Add of %d: %v", delta, err)
						}
						if n, err := w.Count(ctx); err == nil && n < 0 {
							t.Errorf("count %d", n)
						}
						cancel()
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(time.Minute)
		w := zsync.NewWaitGroup(open(t, r.srv), "/w", opts...)
		n, err := w.Count(t.Context())
		must(t, err)
		if expire && len(opts) == 0 {
			// The tasks of a session end with it, and nobody waits for them.
			for _, s := range r.ss {
				s.Close()
			}
			must(t, w.Wait(within(t, time.Second)))
			wantCount(t, w, 0)
			return
		}
		if most, least := count.Load()+ghosts.Load(), count.Load()-unsure.Load(); int64(n) > most || int64(n) < least {
			t.Errorf("kind %d: %d tasks are open; want from %d to %d", kind, n, least, most)
		}
		if n > 0 {
			must(t, w.Add(t.Context(), -n))
		}
		must(t, w.Wait(within(t, time.Second)))
	})
}

func TestModelOfWaitGroup(t *testing.T) { modelOfWaitGroup(t, false) }

func TestModelOfWaitGroupWhoseSessionsExpire(t *testing.T) { modelOfWaitGroup(t, true) }

func TestModelOfWaitGroupWithPersistentTasks(t *testing.T) {
	modelOfWaitGroup(t, true, zsync.WithPersistentTasks())
}
