package semaphore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestResizeIsFollowedByEveryoneWhoUsesTheSemaphore(t *testing.T) {
	t.Parallel()
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx := t.Context()
			a := zsync.NewSemaphore(suite.Open(t, srv), "/s", 2, zsync.WithLayout(layout))
			b := zsync.NewSemaphore(suite.Open(t, srv), "/s", 2, zsync.WithLayout(layout))
			harness.Must(t, a.Acquire(ctx, 2))
			waits := harness.Async(func() error { return b.Acquire(ctx, 2) })
			synctest.Wait()

			// More permits: who waits first has them, while the holder goes on.
			harness.Must(t, a.Resize(ctx, 4))
			harness.Must(t, <-waits)
			if ok, err := b.TryAcquire(ctx, 1); ok || err != nil {
				t.Errorf("a fifth permit of four: %v, %v", ok, err)
			}
			if harness.Closed(a.Lost()) {
				t.Error("Resize took a permit away")
			}
			// Fewer: nobody gets one before enough are back.
			harness.Must(t, b.Resize(ctx, 3))
			harness.Must(t, b.Release(1))
			if ok, err := a.TryAcquire(ctx, 1); ok || err != nil {
				t.Errorf("a fourth permit of three: %v, %v", ok, err)
			}
			harness.Must(t, b.Release(1))
			if ok, err := a.TryAcquire(ctx, 1); !ok || err != nil {
				t.Errorf("the third permit of three: %v, %v", ok, err)
			}
			harness.Must(t, a.Release(3))

			// Nobody holds anything. Whoever comes follows, whatever it names.
			harness.Must(t, a.Resize(ctx, 1))
			time.Sleep(time.Hour) // what is empty has been removed
			for _, n := range []int64{1, 2, 7} {
				c := zsync.NewSemaphore(suite.Open(t, srv), "/s", n, zsync.WithLayout(layout))
				harness.Must(t, c.Acquire(ctx, 1))
				if ok, err := b.TryAcquire(ctx, 1); ok || err != nil {
					t.Errorf("a second permit of one: %v, %v", ok, err)
				}
				harness.Must(t, c.Release(1))
				harness.WantErr(t, c.Acquire(ctx, 2), zsync.ErrInvalid)
			}
			harness.Must(t, zsync.NewSemaphore(suite.Open(t, srv), "/s", 9, zsync.WithLayout(layout)).Resize(ctx, 5000))
			harness.Must(t, b.Acquire(ctx, 3))
			harness.Must(t, b.Release(3))
		})
	}
}

func TestResizeBelowWhatAnAcquireWaitsForEndsIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		a, b := zsync.NewSemaphore(suite.Open(t, srv), "/s", 3), zsync.NewSemaphore(suite.Open(t, srv), "/s", 3)
		c := zsync.NewSemaphore(suite.Open(t, srv), "/s", 3)
		harness.Must(t, a.Acquire(ctx, 1))
		large := harness.Async(func() error { return b.Acquire(ctx, 3) })
		synctest.Wait()
		small := harness.Async(func() error { return c.Acquire(ctx, 1) })
		harness.PendingStill(t, small) // behind the large one
		harness.Must(t, a.Resize(ctx, 2))
		harness.WantErr(t, <-large, zsync.ErrInvalid)
		harness.Must(t, <-small)
	})
}

func TestNobodyIsGrantedByTheLimitFromBeforeOnceResizeHasReturned(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		sa, sb := suite.Open(t, srv), suite.Open(t, srv)
		a, b := zsync.NewSemaphore(sa, "/s", 2), zsync.NewSemaphore(sb, "/s", 2)
		harness.Must(t, b.Acquire(ctx, 1))
		// a has read the limit and the permits when the limit changes.
		hold := make(chan struct{})
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == sa.ID() && r.Op == zktest.OpMulti {
				<-hold
			}
			return zktest.Pass
		})
		got := harness.Async(func() error { return a.Acquire(ctx, 1) })
		synctest.Wait()
		harness.Must(t, b.Resize(ctx, 1))
		close(hold)
		harness.PendingStill(t, got)
		harness.Must(t, b.Release(1))
		harness.Must(t, <-got)
	})
}

func TestResizeIsAppliedOnceWhateverHappensToItsReply(t *testing.T) {
	t.Parallel()
	suite.EachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		ctx := t.Context()
		s := suite.Open(t, srv)
		a, b := zsync.NewSemaphore(s, "/s", 2), zsync.NewSemaphore(suite.Open(t, srv), "/s", 2)
		harness.Must(t, b.Acquire(ctx, 1))
		arm(s)
		harness.Must(t, a.Resize(ctx, 3))
		harness.Must(t, b.Resize(ctx, 4))
		time.Sleep(time.Minute)
		harness.Must(t, b.Acquire(harness.Within(t, time.Second), 3))
		if ok, err := b.TryAcquire(ctx, 1); ok || err != nil {
			t.Errorf("a fifth permit of four: %v, %v", ok, err)
		}
	})
}

func TestResizeRefusesWhatIsNoLimit(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		s := suite.Open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 2)
		harness.WantErr(t, m.Resize(ctx, 0), zsync.ErrInvalid)
		harness.WantErr(t, m.Resize(ctx, -1), zsync.ErrInvalid)
		harness.WantErr(t, zsync.NewSemaphore(s, "s", 2).Resize(ctx, 1), zsync.ErrInvalid)
		harness.WantErr(t, new(zsync.Semaphore).Resize(ctx, 1), zsync.ErrInvalid)
		harness.Must(t, zsync.NewValue[string](s, "/v").Store(ctx, "mine"))
		harness.WantErr(t, zsync.NewSemaphore(s, "/v", 2).Resize(ctx, 3), zsync.ErrInvalid)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		harness.WantErr(t, m.Resize(ended, 3), context.Canceled)
		if x, _, err := zsync.NewValue[string](s, "/v").Load(ctx); x != "mine" || err != nil {
			t.Errorf("another program's value is %q, %v", x, err)
		}
	})
}

func TestSemaphoreDoHoldsWhileItsFunctionRuns(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		sa := suite.Open(t, srv)
		a, b := zsync.NewSemaphore(sa, "/s", 3), zsync.NewSemaphore(suite.Open(t, srv), "/s", 3)
		failed := errors.New("failed")
		harness.WantErr(t, a.Do(ctx, 2, func(context.Context) error {
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
		harness.Must(t, b.Acquire(harness.Within(t, time.Second), 3))
		harness.Must(t, b.Release(3))

		err := a.Do(ctx, 1, func(ctx context.Context) error {
			srv.Expire(sa.ID())
			<-ctx.Done()
			var lost *zsync.LostError
			if cause := context.Cause(ctx); !errors.As(cause, &lost) || lost.Reason != zsync.LossExpired {
				t.Errorf("the cause is %v", cause)
			}
			return nil
		})
		harness.WantErr(t, err, zsync.ErrLost)
		harness.Must(t, a.Acquire(harness.Within(t, time.Second), 3)) // nothing of the loss is left
		harness.WantErr(t, a.Do(ctx, 1, nil), zsync.ErrInvalid)
		harness.WantErr(t, a.Do(ctx, 0, func(context.Context) error { return nil }), zsync.ErrInvalid)
		harness.WantErr(t, new(zsync.Semaphore).Do(ctx, 1, func(context.Context) error { return nil }), zsync.ErrInvalid)
	})
}

func TestPermitsNobodyWasGivenAreNotHeldWhileALossIsUnnoticed(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		a, c := suite.Open(t, srv), suite.Open(t, srv)
		sa, sc := zsync.NewSemaphore(a, "/s", 2), zsync.NewSemaphore(c, "/s", 2)
		harness.Must(t, sa.Acquire(ctx, 1)) // by a goroutine that will go home without a Release
		harness.Must(t, sc.Acquire(ctx, 1))
		first := harness.Async(func() error { return sc.Acquire(ctx, 1) }) // has the gate
		synctest.Wait()
		behind := harness.Async(func() error { return sa.Acquire(ctx, 1) }) // waits at the gate
		synctest.Wait()
		srv.Expire(a.ID())
		harness.Must(t, <-first)
		harness.Must(t, sc.Release(2))
		time.Sleep(harness.Timeout / 2)
		harness.PendingStill(t, behind) // its process has not released what was lost
		if ok, err := sc.TryAcquire(ctx, 2); !ok || err != nil {
			t.Errorf("nobody holds a permit, and both are not to be had: %v, %v; leases %v", ok, err, suite.ChildrenOf(t, c, "/s/leases"))
		}
		harness.Must(t, sc.Release(2))
		harness.WantErr(t, sa.Release(1), zsync.ErrLost)
		harness.Must(t, <-behind)
	})
}

func TestSemaphoreWorksAtTheLongestPath(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		for _, n := range []int64{3, 5000} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				m := zsync.NewSemaphore(suite.Open(t, srv), "/"+strings.Repeat("a", znodes.MaxPath-1), n, zsync.WithLayout(layout))
				harness.Must(t, m.Acquire(t.Context(), 2))
				harness.Must(t, m.Resize(t.Context(), 2))
				harness.Must(t, m.Release(2))
				harness.WantErr(t, zsync.NewSemaphore(suite.Open(t, srv), "/"+strings.Repeat("a", znodes.MaxPath), n, zsync.WithLayout(layout)).Acquire(t.Context(), 1), zsync.ErrInvalid)
			})
		}
	}
}

// A Resize that ends between its requests has changed nothing, and refuses nobody.
func TestAResizeOfAFreshPathThatIsGivenUpRefusesNobody(t *testing.T) {
	t.Parallel()
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			ctx, cancel := context.WithCancel(t.Context())
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == a.ID() && r.Op == zktest.OpMulti {
					cancel()
					return zktest.DropRequest
				}
				return zktest.Pass
			})
			harness.WantErr(t, zsync.NewSemaphore(a, "/s", 3, zsync.WithLayout(layout)).Resize(ctx, 5), context.Canceled)
			time.Sleep(time.Minute)
			for range 3 {
				harness.Must(t, zsync.NewSemaphore(b, "/s", 3, zsync.WithLayout(layout)).Acquire(harness.Within(t, time.Minute), 1))
			}
			harness.WantErr(t, zsync.NewSemaphore(b, "/s", 5, zsync.WithLayout(layout)).Acquire(harness.Within(t, time.Minute), 1), zsync.ErrInvalid)
		})
	}
}

func TestALaggingServerDoesNotRefuseTheLimitThatResizeHasSet(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx := t.Context()
			a := zsync.NewSemaphore(suite.OpenAt(t, srv, 0), "/s", 3, zsync.WithLayout(layout))
			harness.Must(t, a.Acquire(ctx, 1))
			s := suite.OpenAt(t, srv, 1)
			srv.SetLag(srv.Addrs()[1], 5*time.Second)
			harness.Must(t, a.Resize(ctx, 5))
			harness.Must(t, zsync.NewSemaphore(s, "/s", 5, zsync.WithLayout(layout)).Acquire(ctx, 4))
		}, zktest.WithAddrs("10.0.0.1:2181", "10.0.0.2:2181"))
	}
}
