package zsync_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
)

// Whoever waits for something that is put, with a signal for each thing, gets
// something, whatever becomes of others who wait.
func TestModelOfCond(t *testing.T) {
	lockModels(t, []string{"/l"}, func(r *lockRun) {
		r.refuses = false // a signal that is refused was not given
		var mu sync.Mutex
		things := 0
		get := func() bool {
			mu.Lock()
			defer mu.Unlock()
			if things > 0 {
				things--
				return true
			}
			return false
		}
		var wg, sleeping sync.WaitGroup
		for _, s := range r.ss {
			rw := zsync.NewRWMutex(s, "/l", lockOptions(r.dice(), zsync.WithLayout(zsync.LayoutCurator))...)
			write, read := zsync.NewCond(s, "/c", rw), zsync.NewCond(s, "/c", rw.RLocker())
			for i := range 3 {
				d := r.dice()
				ctx, cancel := cut(r.t, d)
				defer cancel()
				sleeping.Go(func() {
					began, done := time.Now(), false
					await := func(c *zsync.Cond) func(context.Context) error {
						return func(ctx context.Context) error {
							for !done {
								if done = get(); done {
									return nil
								}
								if err := c.Wait(ctx); err != nil {
									return err
								}
							}
							return nil
						}
					}
					var err error
					how := d.IntN(4)
					switch how {
					case 0:
						err = rw.Do(ctx, await(write))
					case 1:
						err = rw.RDo(ctx, await(read))
					case 2:
						if err = rw.Lock(ctx); err == nil {
							if err = await(write)(ctx); err == nil {
								err = rw.Unlock()
							}
						}
					case 3:
						if err = rw.RLock(ctx); err == nil {
							if err = await(read)(ctx); err == nil {
								err = rw.RUnlock()
							}
						}
					}
					// A loss ends the context of Do and RDo, and Wait fails with that of a
					// context that had ended before.
					if (done || how < 2) && errors.Is(err, zsync.ErrLost) {
						err = nil
					}
					r.got("a wait", s, ctx, began, err)
				})
				e := r.dice()
				wg.Go(func() {
					nap(e, 60)
					ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
					defer cancel()
					put := func(context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						things++
						return nil
					}
					began := time.Now()
					if err := rw.Do(ctx, put); !errors.Is(err, zsync.ErrLost) {
						r.got("Do", s, ctx, began, err)
					}
					signal := write.Signal
					if i == 0 && e.IntN(2) == 0 {
						signal = read.Broadcast
					}
					r.got("a signal", s, ctx, began, signal(ctx))
				})
			}
		}
		wg.Wait()
		sleeping.Wait()
	})
}
