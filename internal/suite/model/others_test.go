package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
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
		look := r.open()
		o := zsync.NewOnce(look, "/o")
		done, err := o.Done(t.Context())
		harness.Must(t, err)
		if marked.Load() > 0 && !done {
			t.Error("it was done, and is not any more")
		}
		harness.Must(t, o.Do(harness.Within(t, time.Second), func(context.Context) error { return nil }))
		if left := suite.ChildrenOf(t, look, "/o"); len(left) != 1 || left[0] != "done" {
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
		if r.rnd.IntN(2) == 0 {
			modelOfTasks(r, expire, opts)
			return
		}
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
						case delta < 0 && (ctx.Err() != nil || !suite.IsAnswer(err, zk.ErrNoAuth)):
							unsure.Add(int64(-delta))
						case delta > 0 && ctx.Err() != nil && kind != 1: // with none ended it must be taken back whole
							ghosts.Add(int64(delta))
						case ctx.Err() == nil && !suite.IsAnswer(err, zk.ErrNoAuth):
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
		w := zsync.NewWaitGroup(r.open(), "/w", opts...)
		n, err := w.Count(t.Context())
		harness.Must(t, err)
		if expire && len(opts) == 0 {
			// The tasks of a session end with it, and nobody waits for them.
			for _, s := range r.ss {
				s.Close()
			}
			harness.Must(t, w.Wait(harness.Within(t, time.Second)))
			suite.WantCount(t, w, 0)
			return
		}
		if most, least := count.Load()+ghosts.Load(), count.Load()-unsure.Load(); int64(n) > most || int64(n) < least {
			t.Errorf("kind %d: %d tasks are open; want from %d to %d", kind, n, least, most)
		}
		if n > 0 {
			harness.Must(t, w.Add(t.Context(), -n))
		}
		harness.Must(t, w.Wait(harness.Within(t, time.Second)))
	})
}

// A taskRun is a program of a WaitGroup whose tasks are each added and then ended
// once, while a process that nothing befalls has some open throughout.
type taskRun struct {
	*modelRun
	mortal bool // tasks end with their sessions, and sessions end
	litter bool // a stranger's znode stands at times among those with open tasks
	kept   int  // how many that process has
	opts   []zsync.WaitGroupOption
}

// A taskPool is how many tasks are added, and not ended by anyone yet.
type taskPool struct{ n atomic.Int64 }

// take takes up to k tasks out of the pool, to end them.
func (p *taskPool) take(k int64) int {
	for {
		n := p.n.Load()
		if k = min(k, n); p.n.CompareAndSwap(n, n-k) {
			return int(k)
		}
	}
}

// modelOfTasks: in the end just the tasks are open that nobody has ended. Whatever
// Done could tell and however late it was done, it has ended one task, and that of
// nobody else; and what an Add that failed had added was taken back.
func modelOfTasks(m *modelRun, expire bool, opts []zsync.WaitGroupOption) {
	r := &taskRun{m, expire && len(opts) == 0, m.rnd.IntN(3) == 0, 1 + m.rnd.IntN(3), opts}
	t := r.t
	r.denies = r.rnd.IntN(2) == 0
	keeper := zsync.NewWaitGroup(r.open(), "/w", opts...)
	harness.Must(t, keeper.Add(t.Context(), r.kept))
	r.hurt(expire)
	if r.rnd.IntN(2) == 0 {
		d := r.dice()
		r.done.Go(func() { r.bar(d) })
	}
	if r.litter {
		d, s := r.dice(), r.open()
		r.done.Go(func() { r.litterWith(d, s) })
	}
	var program, each sync.WaitGroup
	each.Add(2 * len(r.ss))
	shared := new(taskPool) // tasks have no names, so anyone may end them
	for _, s := range r.ss {
		pool := shared
		if r.mortal {
			pool = new(taskPool) // but for those that a session takes along
		}
		w := zsync.NewWaitGroup(s, "/w", opts...)
		for range 2 {
			d := r.dice()
			program.Go(func() {
				for range 6 {
					r.add(d, w, pool)
					harness.Nap(d, 30)
					r.end(d, w, pool, 1+d.IntN(3))
					r.look(d, w)
				}
				each.Done()
				each.Wait()
				for r.end(d, w, pool, 1) {
				}
			})
		}
	}
	program.Wait()
	r.heal()
	time.Sleep(time.Minute)
	suite.WantCount(t, zsync.NewWaitGroup(r.open(), "/w", opts...), r.kept)
	harness.Must(t, keeper.Add(t.Context(), -r.kept))
	for _, s := range r.ss {
		harness.Must(t, zsync.NewWaitGroup(s, "/w", opts...).Wait(harness.Within(t, time.Second)))
	}
}

// bar has the servers refuse every transaction for a while, again and again.
func (r *taskRun) bar(d *rand.Rand) {
	for r.pause(d) {
		r.barred.Store(true)
		r.pause(d)
		r.barred.Store(false)
	}
}

// litterWith has a stranger's znode stand among those with open tasks for a while,
// again and again: then nobody can tell how many there are.
func (r *taskRun) litterWith(d *rand.Rand, s *zsync.Session) {
	inc := inside.Live(r.t, s)
	path := "/w/" + znodes.ProtectedName(znodes.NewGUID(), "tasks")
	for r.pause(d) {
		_, err := znodes.Create(context.Background(), inc, path, []byte("litter"))
		harness.Must(r.t, err)
		r.pause(d)
		harness.Must(r.t, znodes.RemoveNow(context.Background(), inc, path))
	}
}

// pause sleeps for up to 700 ms, and reports whether the harm goes on.
func (r *taskRun) pause(d *rand.Rand) bool {
	select {
	case <-r.stop:
		return false
	case <-time.After(time.Duration(d.IntN(700)) * time.Millisecond):
		return true
	}
}

// unable reports an error after which nothing was changed, as a call may be told by
// the servers or because of a stranger.
func (r *taskRun) unable(err error) bool {
	return suite.IsAnswer(err, zk.ErrNoAuth) || r.litter && errors.Is(err, zsync.ErrInvalid)
}

// add adds tasks.
func (r *taskRun) add(d *rand.Rand, w *zsync.WaitGroup, pool *taskPool) {
	ctx, cancel := cut(r.t, d)
	defer cancel()
	n, err := 0, error(nil)
	if d.IntN(4) == 0 {
		nap := time.Duration(d.IntN(50)) * time.Millisecond
		err = w.Go(ctx, func() { time.Sleep(nap) })
	} else {
		n = 1 + d.IntN(3)
		err = w.Add(ctx, n)
	}
	switch {
	case err == nil:
		pool.n.Add(int64(n))
	case ctx.Err() != nil && errors.Is(err, ctx.Err()), r.unable(err):
	default:
		r.t.Errorf("Add: %v", err)
	}
}

// end ends up to n of the tasks that are in the pool, and reports whether there were
// any.
func (r *taskRun) end(d *rand.Rand, w *zsync.WaitGroup, pool *taskPool, n int) bool {
	n = pool.take(int64(n))
	if n > 1 && d.IntN(3) == 0 {
		err := w.Add(harness.Within(r.t, 5*time.Minute), -n)
		switch {
		case r.unable(err):
			pool.n.Add(int64(n))
		case err != nil && !(r.mortal && errors.Is(err, zsync.ErrLost)):
			r.t.Errorf("Add of %d: %v", -n, err)
		}
		return true
	}
	for range n {
		began := time.Now()
		switch err := w.Done(); {
		case err == nil, r.mortal && errors.Is(err, zsync.ErrLost):
		case r.litter && errors.Is(err, zsync.ErrInvalid):
			pool.n.Add(1)
		default:
			r.t.Errorf("Done: %v", err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			r.t.Errorf("Done took %v", took)
		}
	}
	return n > 0
}

// look calls what changes nothing.
func (r *taskRun) look(d *rand.Rand, w *zsync.WaitGroup) {
	ctx, cancel := cutWithin(r.t, d, 400)
	defer cancel()
	switch d.IntN(4) {
	case 0:
		if err := w.Wait(ctx); err == nil || ctx.Err() == nil && !r.unable(err) {
			r.t.Errorf("Wait: %v, while %d tasks are open", err, r.kept)
		}
	case 1:
		// While others end tasks of that process the sum may be of several instants.
		if n, err := w.Count(ctx); err == nil && (n < 0 || r.mortal && n < r.kept) {
			r.t.Errorf("%d tasks are open; want %d at least", n, r.kept)
		}
	}
}

func TestModelOfWaitGroup(t *testing.T) { modelOfWaitGroup(t, false) }

func TestModelOfWaitGroupWhoseSessionsExpire(t *testing.T) { modelOfWaitGroup(t, true) }

func TestModelOfWaitGroupWithPersistentTasks(t *testing.T) {
	modelOfWaitGroup(t, true, zsync.WithPersistentTasks())
}
