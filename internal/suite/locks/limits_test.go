package locks

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A hungHold is a hold in one process and what another does to get it. hold
// returns when it is held.
type hungHold struct {
	hold    func(ctx context.Context) error
	lost    func() <-chan struct{}
	release func() error
	other   func(ctx context.Context) error
}

// limited makes everything that can be given up, with a limit on it.
func limited(a, b *zsync.Session, max time.Duration, health func(context.Context) error) map[string]hungHold {
	var ls []zsync.LockOption
	var es []zsync.ElectionOption
	if max > 0 {
		ls, es = append(ls, zsync.WithMaxHold(max)), append(es, zsync.WithMaxHold(max))
	}
	if health != nil {
		ls, es = append(ls, zsync.WithHealth(health)), append(es, zsync.WithHealth(health))
	}
	m, rw, e := zsync.NewMutex(a, "/m", ls...), zsync.NewRWMutex(a, "/rw", ls...), zsync.NewElection(a, "/e", es...)
	r, s := zsync.NewRWMutex(a, "/r", ls...), zsync.NewSemaphore(a, "/s", 2, ls...)
	w := zsync.NewSemaphore(a, "/w", 5000, ls...)
	two := func(ctx context.Context) error { return s.Acquire(ctx, 2) }
	return map[string]hungHold{
		"Mutex":          {m.Lock, m.Lost, m.Unlock, zsync.NewMutex(b, "/m").Lock},
		"RWMutex":        {rw.Lock, rw.Lost, rw.Unlock, zsync.NewRWMutex(b, "/rw").RLock},
		"RWMutex, reads": {r.RLock, r.Lost, r.RUnlock, zsync.NewRWMutex(b, "/r").Lock},
		"Election":       {e.Campaign, e.Lost, e.Resign, zsync.NewElection(b, "/e").Campaign},
		"Semaphore":      {two, s.Lost, func() error { return s.Release(2) }, func(ctx context.Context) error { return zsync.NewSemaphore(b, "/s", 2).Acquire(ctx, 1) }},
		"weights": {func(ctx context.Context) error { return w.Acquire(ctx, 4000) }, w.Lost, func() error { return w.Release(4000) },
			func(ctx context.Context) error { return zsync.NewSemaphore(b, "/w", 5000).Acquire(ctx, 4999) }},
	}
}

func namesOfLimited() []string {
	return []string{"Mutex", "RWMutex", "RWMutex, reads", "Election", "Semaphore", "weights"}
}

func TestAHungHolderIsToldAndGivenTimeBeforeAnotherIsGranted(t *testing.T) {
	limits := map[string]struct {
		max    time.Duration
		health func(ctx context.Context) error
		told   time.Duration // at the latest, after it was granted
	}{
		"held for too long":     {3 * time.Second, nil, 3 * time.Second},
		"unhealthy":             {0, func(context.Context) error { return errors.New("no disk") }, harness.Timeout / 3},
		"hung with its context": {0, func(ctx context.Context) error { <-ctx.Done(); return nil }, harness.Timeout * 2 / 3},
	}
	for why, l := range limits {
		for _, name := range namesOfLimited() {
			t.Run(name+", "+why, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := suite.Open(t, srv), suite.Open(t, srv)
					h := limited(a, b, l.max, l.health)[name]
					harness.Must(t, h.hold(t.Context()))
					start, lost := time.Now(), h.lost()
					got := harness.Async(func() error { return h.other(t.Context()) })
					<-lost
					if d := time.Since(start); d > l.told+time.Millisecond {
						t.Errorf("told after %v, want %v at the latest", d, l.told)
					}
					told := time.Now()
					harness.Must(t, <-got)
					if d := time.Since(told); d < harness.Timeout/10 || d > harness.Timeout/10+time.Second {
						t.Errorf("another was granted %v after the loss was told, want %v", d, harness.Timeout/10)
					}
					time.Sleep(time.Minute)
					var e *zsync.LostError
					if err := h.release(); !errors.As(err, &e) || e.Reason != zsync.LossGivenUp || e.Err == nil || e.Session != a.ID() || !e.Since.Equal(told) {
						t.Errorf("the release says %v (%+v)", err, e)
					}
					if h.release() == nil {
						t.Error("a second release succeeds")
					}
					if a.Stats().Holds != 0 {
						t.Errorf("%d holds are left", a.Stats().Holds)
					}
				})
			})
		}
	}
}

func TestWhoReleasesWhatWasGivenUpLetsTheNextInAtOnce(t *testing.T) {
	for _, name := range namesOfLimited() {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				h := limited(a, b, time.Second, nil)[name]
				harness.Must(t, h.hold(t.Context()))
				got := harness.Async(func() error { return h.other(t.Context()) })
				<-h.lost()
				told := time.Now()
				harness.WantErr(t, h.release(), zsync.ErrLost)
				harness.Must(t, <-got)
				if d := time.Since(told); d > 100*time.Millisecond {
					t.Errorf("granted after %v", d)
				}
			})
		})
	}
}

func TestAHealthyHolderThatReleasesInTimeIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, name := range namesOfLimited() {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				var asked atomic.Int64
				h := limited(a, b, time.Minute, func(context.Context) error { asked.Add(1); return nil })[name]
				for range 3 { // each hold has its own time
					harness.Must(t, h.hold(t.Context()))
					time.Sleep(40 * time.Second)
					if harness.Closed(h.lost()) {
						t.Fatal("lost")
					}
					harness.Must(t, h.release())
				}
				if n := asked.Load(); n < 3*11 || n > 3*12 {
					t.Errorf("health was asked %d times in 120 s, want once every %v", n, harness.Timeout/3)
				}
				before := asked.Load()
				time.Sleep(time.Hour)
				if asked.Load() != before {
					t.Error("health is asked while nothing is held")
				}
			})
		})
	}
}

func TestTheContextOfDoEndsWithWhatWasGivenUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		disk := errors.New("no disk")
		sick := func(context.Context) error { return disk }
		f := func(ctx context.Context) error {
			<-ctx.Done()
			var e *zsync.LostError
			if !errors.As(context.Cause(ctx), &e) || e.Reason != zsync.LossGivenUp || !errors.Is(e.Err, disk) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return nil
		}
		harness.WantErr(t, zsync.NewMutex(s, "/m", zsync.WithHealth(sick)).Do(t.Context(), f), zsync.ErrLost)
		harness.WantErr(t, zsync.NewRWMutex(s, "/rw", zsync.WithHealth(sick)).RDo(t.Context(), f), zsync.ErrLost)
		harness.WantErr(t, zsync.NewSemaphore(s, "/s", 3, zsync.WithHealth(sick)).Do(t.Context(), 2, f), zsync.ErrLost)
		ctx, cancel := context.WithCancel(t.Context())
		terms := 0
		err := zsync.NewElection(s, "/e", zsync.WithHealth(sick)).Run(ctx, func(ctx context.Context) error {
			if terms++; terms == 3 {
				cancel()
				return nil
			}
			return f(ctx)
		})
		harness.WantErr(t, err, context.Canceled)
		if terms != 3 {
			t.Errorf("led %d times", terms)
		}
	})
}

func TestPermitsThatAreAcquiredInTurnsAreNotHeldForTooLong(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(suite.Open(t, srv), "/s", 3, zsync.WithMaxHold(10*time.Second))
		harness.Must(t, m.Acquire(t.Context(), 1))
		lost := m.Lost()
		for range 20 { // there is always one out, and none for more than 6 s
			time.Sleep(2 * time.Second)
			harness.Must(t, m.Acquire(t.Context(), 1))
			time.Sleep(2 * time.Second)
			harness.Must(t, m.Release(1))
		}
		if harness.Closed(lost) {
			t.Error("lost")
		}
		time.Sleep(11 * time.Second)
		if !harness.Closed(lost) {
			t.Error("not lost")
		}
		// The process gets no permit before it has released what it lost.
		got := harness.Async(func() error { return m.Acquire(t.Context(), 3) })
		time.Sleep(harness.Timeout / 2)
		harness.PendingStill(t, got)
		harness.WantErr(t, m.Release(1), zsync.ErrLost)
		harness.Must(t, <-got)
		harness.Must(t, m.Release(3))
	})
}

// Other goroutines acquire and release permits of the Semaphore value more often than every third of the session timeout.
// WithHealth is asked nevertheless, because a permit is held all the time.
func TestHealthIsAskedAlthoughPermitsComeAndGo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var sick atomic.Bool
		var asked atomic.Int64
		m := zsync.NewSemaphore(suite.Open(t, srv), "/s", 3, zsync.WithHealth(func(context.Context) error {
			if asked.Add(1); sick.Load() {
				return errors.New("no disk")
			}
			return nil
		}))
		harness.Must(t, m.Acquire(t.Context(), 1))
		lost := m.Lost()
		turns := func(n int) {
			for range n {
				time.Sleep(harness.Timeout / 10)
				harness.Must(t, m.Acquire(t.Context(), 1))
				harness.Must(t, m.Release(1))
			}
		}
		turns(20) // for two session timeouts
		if n := asked.Load(); n != 5 && n != 6 {
			t.Errorf("health was asked %d times in %v, want once every %v", n, 2*harness.Timeout, harness.Timeout/3)
		}
		sick.Store(true)
		turns(1)
		time.Sleep(harness.Timeout / 3) // by then, WithHealth is asked again
		if !harness.Closed(lost) {
			t.Error("not lost")
		}
		harness.WantErr(t, m.Release(1), zsync.ErrLost)
	})
}

// The same for read locks. RUnlock has no handle, so it ends the oldest hold.
func TestReadLocksThatAreTakenInTurnsAreNotHeldForTooLong(t *testing.T) {
	for name, opts := range map[string][]zsync.LockOption{"shared": nil, "each": {zsync.WithHandoffs(0)}, "few": {zsync.WithHandoffs(1)}} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				rw := zsync.NewRWMutex(suite.Open(t, srv), "/rw", append(opts, zsync.WithMaxHold(10*time.Second))...)
				harness.Must(t, rw.RLock(t.Context()))
				lost := rw.Lost()
				for range 20 { // there is always a reader, and none holds for more than 6 s
					time.Sleep(2 * time.Second)
					harness.Must(t, rw.RLock(t.Context()))
					time.Sleep(2 * time.Second)
					harness.Must(t, rw.RUnlock())
				}
				if harness.Closed(lost) {
					t.Error("lost")
				}
				time.Sleep(11 * time.Second)
				if !harness.Closed(lost) {
					t.Error("not lost")
				}
				harness.WantErr(t, rw.RUnlock(), zsync.ErrLost)
			})
		})
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return nil
}

// A function of Do hangs, and other functions of the same Semaphore value come and go. Do releases the permits that it
// has acquired, so the hung one is found.
func TestAHungDoIsToldAlthoughOtherPermitsComeAndGo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(suite.Open(t, srv), "/s", 3, zsync.WithMaxHold(10*time.Second))
		start := time.Now()
		told := make(chan time.Duration, 1)
		hung := harness.Async(func() error {
			return m.Do(t.Context(), 1, func(ctx context.Context) error {
				<-ctx.Done()
				told <- time.Since(start)
				return nil
			})
		})
		time.Sleep(time.Second)
		harness.Must(t, m.Acquire(t.Context(), 1))
		for len(told) == 0 && time.Since(start) < time.Minute {
			err := m.Do(t.Context(), 1, func(ctx context.Context) error { return sleep(ctx, 2*time.Second) })
			// After the loss, the permit of the first Acquire is not released yet: ErrDeadlock.
			if err != nil && !errors.Is(err, zsync.ErrLost) && !errors.Is(err, zsync.ErrDeadlock) {
				t.Fatal(err)
			}
			if err == nil { // the same without Do: always one permit is out, and none for more than 6 s
				harness.Must(t, m.Acquire(t.Context(), 1))
				harness.Must(t, m.Release(1))
			}
		}
		if len(told) == 0 {
			t.Fatal("the hung Do is not told")
		}
		if d := <-told; d > 10*time.Second+time.Millisecond {
			t.Errorf("told after %v", d)
		}
		harness.WantErr(t, <-hung, zsync.ErrLost)
		harness.WantErr(t, m.Release(1), zsync.ErrLost)
	})
}

func TestADowngradeOfWhatIsGivenUpLeavesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		rw := zsync.NewRWMutex(a, "/rw", zsync.WithMaxHold(time.Second))
		harness.Must(t, rw.Lock(t.Context()))
		time.Sleep(900 * time.Millisecond)
		srv.SetLatency(2 * time.Second) // it is given up meanwhile, but not deleted yet
		rw.Downgrade(t.Context())
		time.Sleep(10 * time.Second)
		srv.SetLatency(0)
		harness.Must(t, zsync.NewRWMutex(b, "/rw").Lock(harness.Within(t, 5*time.Second)))
		if n := suite.ChildrenOf(t, b, "/rw"); len(n) != 1 {
			t.Errorf("left: %v", n)
		}
	})
}

func TestBadLimitsAreRefused(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		for _, o := range []zsync.LockOption{zsync.WithMaxHold(0), zsync.WithMaxHold(-1), zsync.WithHealth(nil)} {
			harness.WantErr(t, zsync.NewMutex(s, "/m", o).Lock(t.Context()), zsync.ErrInvalid)
		}
		for _, o := range []zsync.ElectionOption{zsync.WithMaxHold(0), zsync.WithHealth(nil)} {
			harness.WantErr(t, zsync.NewElection(s, "/e", o).Campaign(t.Context()), zsync.ErrInvalid)
		}
	})
}

func TestWhatIsGivenBackKeepsNoSessionCertain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		suite.DeleteContender(t, b, "/m", 0)
		// The turn of the next comes while the loss has not been noticed: it is
		// given back.
		ctx, cancel := context.WithCancel(t.Context())
		got := harness.Async(func() error { return m.Lock(ctx) })
		time.Sleep(time.Second)
		cancel()
		<-got
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		time.Sleep(time.Minute)
		before := a.Stats().Requests
		time.Sleep(time.Hour)
		if n := a.Stats().Requests - before; n != 0 {
			t.Errorf("%d requests in an hour in which nothing is held", n)
		}
	})
}

func TestLockAllContextEndsWithAnyLossAndSaysWhy(t *testing.T) {
	for i := range 3 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			ls := []zsync.Locker{zsync.NewMutex(a, "/a"), zsync.NewRWMutex(a, "/b"), zsync.NewRWMutex(a, "/c").RLocker()}
			held, unlock, err := zsync.LockAllContext(t.Context(), ls...)
			harness.Must(t, err)
			if held.Err() != nil {
				t.Fatal("held has ended")
			}
			suite.DeleteContender(t, b, []string{"/a", "/b", "/c"}[i], 0)
			<-held.Done()
			var e *zsync.LostError
			if !errors.As(context.Cause(held), &e) || e.Reason != zsync.LossDeleted {
				t.Errorf("lock %d: the cause is %v", i, context.Cause(held))
			}
			harness.WantErr(t, unlock(), zsync.ErrLost)
			for _, l := range ls {
				harness.Must(t, l.Lock(t.Context()))
				harness.Must(t, l.Unlock())
			}
		})
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		held, unlock, err := zsync.LockAllContext(t.Context(), zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"))
		harness.Must(t, err)
		harness.Must(t, unlock())
		if held.Err() == nil || errors.Is(context.Cause(held), zsync.ErrLost) {
			t.Errorf("after unlock: %v", context.Cause(held))
		}
		held, unlock, err = zsync.LockAllContext(t.Context(), zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"))
		harness.Must(t, err)
		srv.Expire(s.ID())
		<-held.Done()
		var e *zsync.LostError
		if !errors.As(context.Cause(held), &e) || e.Reason != zsync.LossExpired {
			t.Errorf("the cause is %v", context.Cause(held))
		}
		harness.WantErr(t, unlock(), zsync.ErrLost)
		ctx, cancel := context.WithCancelCause(t.Context())
		held, unlock, err = zsync.LockAllContext(ctx, zsync.NewMutex(s, "/a"))
		harness.Must(t, err)
		enough := errors.New("enough")
		cancel(enough)
		<-held.Done()
		synctest.Wait()
		harness.WantErr(t, context.Cause(held), enough)
		harness.Must(t, unlock())
		ctx, cancelled := context.WithCancel(t.Context())
		cancelled()
		if held, unlock, err = zsync.LockAllContext(ctx, zsync.NewMutex(s, "/a")); err == nil || held != nil || unlock != nil {
			t.Error("LockAllContext with a context that has ended")
		}
	})
}

func TestALeaderWhoseTermIsOverHasTimeThoughAnotherGoroutineCampaigns(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		e := zsync.NewElection(a, "/e", zsync.WithMaxHold(3*time.Second))
		for range 3 { // each of them goes home when it is told
			harness.Must(t, e.Campaign(t.Context()))
			lost, began := e.Lost(), time.Now()
			other := zsync.NewElection(b, "/e")
			ctx, cancel := context.WithCancel(t.Context())
			led := harness.Async(func() error { return other.Campaign(ctx) })
			synctest.Wait()
			mine := harness.Async(func() error { return e.Campaign(ctx) }) // another goroutine of its process
			<-lost
			told := time.Now()
			if d := told.Sub(began); d != 3*time.Second {
				t.Errorf("told after %v, want 3 s", d)
			}
			harness.Must(t, <-led)
			if d := time.Since(told); d < harness.Timeout/10 || d > harness.Timeout/10+100*time.Millisecond {
				t.Errorf("another leads %v after the loss was told, want %v", d, harness.Timeout/10)
			}
			cancel()
			<-mine
			harness.Must(t, other.Resign())
			time.Sleep(time.Second)
			if names := suite.ChildrenOf(t, b, "/e"); len(names) > 0 || a.Stats().Holds != 0 {
				t.Errorf("left: %v, and %d holds", names, a.Stats().Holds)
			}
		}
	})
}

func TestAWriterWhoIsGivenUpInADowngradeHasTimeBeforeAnybodyReads(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		rw := zsync.NewRWMutex(a, "/rw", zsync.WithMaxHold(3*time.Second))
		harness.Must(t, rw.Lock(t.Context()))
		lost := rw.Lost()
		reads := harness.Async(func() error { return zsync.NewRWMutex(b, "/rw").RLock(t.Context()) })
		time.Sleep(2 * time.Second)
		srv.SetLatency(1500 * time.Millisecond)
		down := harness.Async(func() error { return rw.Downgrade(t.Context()) })
		<-lost // the read node is made, and the answer on its way
		told := time.Now()
		srv.SetLatency(0)
		harness.Must(t, <-reads)
		if d := time.Since(told); d < harness.Timeout/10 {
			t.Errorf("another reads %v after the writer was told of its loss, want %v", d, harness.Timeout/10)
		}
		harness.WantErr(t, <-down, zsync.ErrLost)
		if err := rw.Unlock(); suite.LossOf(err) != zsync.LossGivenUp {
			t.Errorf("Unlock: %v", err)
		}
		time.Sleep(time.Second)
		if names := suite.ChildrenOf(t, b, "/rw"); len(names) != 1 {
			t.Errorf("left: %v; want the reader's alone", names)
		}
	})
}
