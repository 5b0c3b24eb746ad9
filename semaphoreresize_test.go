package zsync_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestResizeIsFollowedByEveryoneWhoUsesTheSemaphore(t *testing.T) {
	t.Parallel()
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx := t.Context()
			a := zsync.NewSemaphore(open(t, srv), "/s", 2, zsync.WithLayout(layout))
			b := zsync.NewSemaphore(open(t, srv), "/s", 2, zsync.WithLayout(layout))
			must(t, a.Acquire(ctx, 2))
			waits := async(func() error { return b.Acquire(ctx, 2) })
			synctest.Wait()

			// More permits: who waits first has them, while the holder goes on.
			must(t, a.Resize(ctx, 4))
			must(t, <-waits)
			if ok, err := b.TryAcquire(ctx, 1); ok || err != nil {
				t.Errorf("a fifth permit of four: %v, %v", ok, err)
			}
			if session.IsClosed(a.Lost()) {
				t.Error("Resize took a permit away")
			}
			// Fewer: nobody gets one before enough are back.
			must(t, b.Resize(ctx, 3))
			must(t, b.Release(1))
			if ok, err := a.TryAcquire(ctx, 1); ok || err != nil {
				t.Errorf("a fourth permit of three: %v, %v", ok, err)
			}
			must(t, b.Release(1))
			if ok, err := a.TryAcquire(ctx, 1); !ok || err != nil {
				t.Errorf("the third permit of three: %v, %v", ok, err)
			}
			must(t, a.Release(3))

			// Nobody holds anything. Whoever comes follows, whatever it names.
			must(t, a.Resize(ctx, 1))
			time.Sleep(time.Hour) // what is empty has been removed
			for _, n := range []int64{1, 2, 7} {
				c := zsync.NewSemaphore(open(t, srv), "/s", n, zsync.WithLayout(layout))
				must(t, c.Acquire(ctx, 1))
				if ok, err := b.TryAcquire(ctx, 1); ok || err != nil {
					t.Errorf("a second permit of one: %v, %v", ok, err)
				}
				must(t, c.Release(1))
				wantErr(t, c.Acquire(ctx, 2), zsync.ErrInvalid)
			}
			must(t, zsync.NewSemaphore(open(t, srv), "/s", 9, zsync.WithLayout(layout)).Resize(ctx, 5000))
			must(t, b.Acquire(ctx, 3))
			must(t, b.Release(3))
		})
	}
}

func TestResizeBelowWhatAnAcquireWaitsForEndsIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		a, b := zsync.NewSemaphore(open(t, srv), "/s", 3), zsync.NewSemaphore(open(t, srv), "/s", 3)
		c := zsync.NewSemaphore(open(t, srv), "/s", 3)
		must(t, a.Acquire(ctx, 1))
		large := async(func() error { return b.Acquire(ctx, 3) })
		synctest.Wait()
		small := async(func() error { return c.Acquire(ctx, 1) })
		pendingStill(t, small) // behind the large one
		must(t, a.Resize(ctx, 2))
		wantErr(t, <-large, zsync.ErrInvalid)
		must(t, <-small)
	})
}

func TestNobodyIsGrantedByTheLimitFromBeforeOnceResizeHasReturned(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		sa, sb := open(t, srv), open(t, srv)
		a, b := zsync.NewSemaphore(sa, "/s", 2), zsync.NewSemaphore(sb, "/s", 2)
		must(t, b.Acquire(ctx, 1))
		// a has read the limit and the permits when the limit changes.
		hold := make(chan struct{})
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == sa.ID() && r.Op == zktest.OpMulti {
				<-hold
			}
			return zktest.Pass
		})
		got := async(func() error { return a.Acquire(ctx, 1) })
		synctest.Wait()
		must(t, b.Resize(ctx, 1))
		close(hold)
		pendingStill(t, got)
		must(t, b.Release(1))
		must(t, <-got)
	})
}

func TestResizeIsAppliedOnceWhateverHappensToItsReply(t *testing.T) {
	t.Parallel()
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		ctx := t.Context()
		s := open(t, srv)
		a, b := zsync.NewSemaphore(s, "/s", 2), zsync.NewSemaphore(open(t, srv), "/s", 2)
		must(t, b.Acquire(ctx, 1))
		arm(s)
		must(t, a.Resize(ctx, 3))
		must(t, b.Resize(ctx, 4))
		time.Sleep(time.Minute)
		must(t, b.Acquire(within(t, time.Second), 3))
		if ok, err := b.TryAcquire(ctx, 1); ok || err != nil {
			t.Errorf("a fifth permit of four: %v, %v", ok, err)
		}
	})
}

func TestResizeRefusesWhatIsNoLimit(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		s := open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 2)
		wantErr(t, m.Resize(ctx, 0), zsync.ErrInvalid)
		wantErr(t, m.Resize(ctx, -1), zsync.ErrInvalid)
		wantErr(t, zsync.NewSemaphore(s, "s", 2).Resize(ctx, 1), zsync.ErrInvalid)
		wantErr(t, new(zsync.Semaphore).Resize(ctx, 1), zsync.ErrInvalid)
		must(t, zsync.NewValue[string](s, "/v").Store(ctx, "mine"))
		wantErr(t, zsync.NewSemaphore(s, "/v", 2).Resize(ctx, 3), zsync.ErrInvalid)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(t, m.Resize(ended, 3), context.Canceled)
		if x, _, err := zsync.NewValue[string](s, "/v").Load(ctx); x != "mine" || err != nil {
			t.Errorf("another program's value is %q, %v", x, err)
		}
	})
}

func TestSemaphoreDoHoldsWhileItsFunctionRuns(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		sa := open(t, srv)
		a, b := zsync.NewSemaphore(sa, "/s", 3), zsync.NewSemaphore(open(t, srv), "/s", 3)
		failed := errors.New("failed")
		wantErr(t, a.Do(ctx, 2, func(context.Context) error {
			if ok, _ := b.TryAcquire(ctx, 2); ok {
				t.Error("four permits of three")
			}
			return failed
		}), failed)
		func() {
			defer func() {
				if x := recover(); x != "oops" {
					t.Errorf("recovered %v", x)
				}
			}()
			a.Do(ctx, 3, func(context.Context) error { panic("oops") })
		}()
		must(t, b.Acquire(within(t, time.Second), 3))
		must(t, b.Release(3))

		err := a.Do(ctx, 1, func(ctx context.Context) error {
			srv.Expire(sa.ID())
			<-ctx.Done()
			var lost *zsync.LostError
			if cause := context.Cause(ctx); !errors.As(cause, &lost) || lost.Reason != zsync.LossExpired {
				t.Errorf("the cause is %v", cause)
			}
			return nil
		})
		wantErr(t, err, zsync.ErrLost)
		must(t, a.Acquire(within(t, time.Second), 3)) // nothing of the loss is left
		wantErr(t, a.Do(ctx, 1, nil), zsync.ErrInvalid)
		wantErr(t, a.Do(ctx, 0, func(context.Context) error { return nil }), zsync.ErrInvalid)
		wantErr(t, new(zsync.Semaphore).Do(ctx, 1, func(context.Context) error { return nil }), zsync.ErrInvalid)
	})
}

func TestPermitsNobodyWasGivenAreNotHeldWhileALossIsUnnoticed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		a, c := open(t, srv), open(t, srv)
		sa, sc := zsync.NewSemaphore(a, "/s", 2), zsync.NewSemaphore(c, "/s", 2)
		must(t, sa.Acquire(ctx, 1)) // by a goroutine that will go home without a Release
		must(t, sc.Acquire(ctx, 1))
		first := async(func() error { return sc.Acquire(ctx, 1) }) // has the gate
		synctest.Wait()
		behind := async(func() error { return sa.Acquire(ctx, 1) }) // waits at the gate
		synctest.Wait()
		srv.Expire(a.ID())
		must(t, <-first)
		must(t, sc.Release(2))
		time.Sleep(testTimeout / 2)
		pendingStill(t, behind) // its process has not released what was lost
		if ok, err := sc.TryAcquire(ctx, 2); !ok || err != nil {
			t.Errorf("nobody holds a permit, and both are not to be had: %v, %v; leases %v", ok, err, childrenOf(t, c, "/s/leases"))
		}
		must(t, sc.Release(2))
		wantErr(t, sa.Release(1), zsync.ErrLost)
		must(t, <-behind)
	})
}

func TestSemaphoreWorksAtTheLongestPath(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		for _, n := range []int64{3, 5000} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				m := zsync.NewSemaphore(open(t, srv), "/"+strings.Repeat("a", session.MaxPath-1), n, zsync.WithLayout(layout))
				must(t, m.Acquire(t.Context(), 2))
				must(t, m.Resize(t.Context(), 2))
				must(t, m.Release(2))
				wantErr(t, zsync.NewSemaphore(open(t, srv), "/"+strings.Repeat("a", session.MaxPath), n, zsync.WithLayout(layout)).Acquire(t.Context(), 1), zsync.ErrInvalid)
			})
		}
	}
}

// addTask adds a task with a WaitGroup that is garbage when it returns.
//
//go:noinline
func addTask(t *testing.T, s *zsync.Session) {
	must(t, zsync.NewWaitGroup(s, "/w").Add(t.Context(), 1))
}

func TestDoneOfALostTaskEndsNoOtherThoughItsWaitGroupWasCollected(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		addTask(t, a)
		wb := zsync.NewWaitGroup(b, "/w")
		must(t, wb.Add(t.Context(), 1))
		collect := func() {
			for range 3 {
				runtime.GC()
				time.Sleep(time.Second)
			}
		}
		collect()
		srv.Expire(a.ID())
		time.Sleep(20 * time.Second)
		collect()
		wantErr(t, zsync.NewWaitGroup(a, "/w").Done(), zsync.ErrLost)
		wantCount(t, wb, 1)
		// What knows of nothing any more is forgotten.
		must(t, wb.Done())
		runtime.KeepAlive(wb)
		for range 10 {
			collect()
		}
		if n := zsync.KeptTallies(a); n > 0 {
			t.Errorf("%d tallies are kept for nothing", n)
		}
	})
}

// A Resize that ends between its requests has changed nothing, and refuses nobody.
func TestAResizeOfAFreshPathThatIsGivenUpRefusesNobody(t *testing.T) {
	t.Parallel()
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			ctx, cancel := context.WithCancel(t.Context())
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == a.ID() && r.Op == zktest.OpMulti {
					cancel()
					return zktest.DropRequest
				}
				return zktest.Pass
			})
			wantErr(t, zsync.NewSemaphore(a, "/s", 3, zsync.WithLayout(layout)).Resize(ctx, 5), context.Canceled)
			time.Sleep(time.Minute)
			for range 3 {
				must(t, zsync.NewSemaphore(b, "/s", 3, zsync.WithLayout(layout)).Acquire(within(t, time.Minute), 1))
			}
			wantErr(t, zsync.NewSemaphore(b, "/s", 5, zsync.WithLayout(layout)).Acquire(within(t, time.Minute), 1), zsync.ErrInvalid)
		})
	}
}
