package zsync_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
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
		"unhealthy":             {0, func(context.Context) error { return errors.New("no disk") }, testTimeout / 3},
		"hung with its context": {0, func(ctx context.Context) error { <-ctx.Done(); return nil }, testTimeout * 2 / 3},
	}
	for why, l := range limits {
		for _, name := range namesOfLimited() {
			t.Run(name+", "+why, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := open(t, srv), open(t, srv)
					h := limited(a, b, l.max, l.health)[name]
					must(t, h.hold(t.Context()))
					start, lost := time.Now(), h.lost()
					got := async(func() error { return h.other(t.Context()) })
					<-lost
					if d := time.Since(start); d > l.told+time.Millisecond {
						t.Errorf("told after %v, want %v at the latest", d, l.told)
					}
					told := time.Now()
					must(t, <-got)
					if d := time.Since(told); d < testTimeout/10 || d > testTimeout/10+time.Second {
						t.Errorf("another was granted %v after the loss was told, want %v", d, testTimeout/10)
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
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				h := limited(a, b, time.Second, nil)[name]
				must(t, h.hold(t.Context()))
				got := async(func() error { return h.other(t.Context()) })
				<-h.lost()
				told := time.Now()
				wantErr(t, h.release(), zsync.ErrLost)
				must(t, <-got)
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
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				var asked atomic.Int64
				h := limited(a, b, time.Minute, func(context.Context) error { asked.Add(1); return nil })[name]
				for range 3 { // each hold has its own time
					must(t, h.hold(t.Context()))
					time.Sleep(40 * time.Second)
					if session.IsClosed(h.lost()) {
						t.Fatal("lost")
					}
					must(t, h.release())
				}
				if n := asked.Load(); n < 3*11 || n > 3*12 {
					t.Errorf("health was asked %d times in 120 s, want once every %v", n, testTimeout/3)
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
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
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
		wantErr(t, zsync.NewMutex(s, "/m", zsync.WithHealth(sick)).Do(t.Context(), f), zsync.ErrLost)
		wantErr(t, zsync.NewRWMutex(s, "/rw", zsync.WithHealth(sick)).RDo(t.Context(), f), zsync.ErrLost)
		wantErr(t, zsync.NewSemaphore(s, "/s", 3, zsync.WithHealth(sick)).Do(t.Context(), 2, f), zsync.ErrLost)
		ctx, cancel := context.WithCancel(t.Context())
		terms := 0
		err := zsync.NewElection(s, "/e", zsync.WithHealth(sick)).Run(ctx, func(ctx context.Context) error {
			if terms++; terms == 3 {
				cancel()
				return nil
			}
			return f(ctx)
		})
		wantErr(t, err, context.Canceled)
		if terms != 3 {
			t.Errorf("led %d times", terms)
		}
	})
}

func TestPermitsThatAreAcquiredInTurnsAreNotHeldForTooLong(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(open(t, srv), "/s", 3, zsync.WithMaxHold(10*time.Second))
		must(t, m.Acquire(t.Context(), 1))
		lost := m.Lost()
		for range 20 { // there is always one out, and none for more than 6 s
			time.Sleep(2 * time.Second)
			must(t, m.Acquire(t.Context(), 1))
			time.Sleep(2 * time.Second)
			must(t, m.Release(1))
		}
		if session.IsClosed(lost) {
			t.Error("lost")
		}
		time.Sleep(11 * time.Second)
		if !session.IsClosed(lost) {
			t.Error("not lost")
		}
		// The process gets no permit before it has released what it lost.
		got := async(func() error { return m.Acquire(t.Context(), 3) })
		time.Sleep(testTimeout / 2)
		pendingStill(t, got)
		wantErr(t, m.Release(1), zsync.ErrLost)
		must(t, <-got)
		must(t, m.Release(3))
	})
}

func TestADowngradeOfWhatIsGivenUpLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		rw := zsync.NewRWMutex(a, "/rw", zsync.WithMaxHold(time.Second))
		must(t, rw.Lock(t.Context()))
		time.Sleep(900 * time.Millisecond)
		srv.SetLatency(2 * time.Second) // it is given up meanwhile, but not deleted yet
		rw.Downgrade(t.Context())
		time.Sleep(10 * time.Second)
		srv.SetLatency(0)
		must(t, zsync.NewRWMutex(b, "/rw").Lock(within(t, 5*time.Second)))
		if n := childrenOf(t, b, "/rw"); len(n) != 1 {
			t.Errorf("left: %v", n)
		}
	})
}

func TestBadLimitsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, o := range []zsync.LockOption{zsync.WithMaxHold(0), zsync.WithMaxHold(-1), zsync.WithHealth(nil)} {
			wantErr(t, zsync.NewMutex(s, "/m", o).Lock(t.Context()), zsync.ErrInvalid)
		}
		for _, o := range []zsync.ElectionOption{zsync.WithMaxHold(0), zsync.WithHealth(nil)} {
			wantErr(t, zsync.NewElection(s, "/e", o).Campaign(t.Context()), zsync.ErrInvalid)
		}
	})
}

func TestWhatIsGivenBackKeepsNoSessionCertain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		m := zsync.NewMutex(a, "/m")
		must(t, m.Lock(t.Context()))
		deleteContender(t, b, "/m", 0)
		// The turn of the next comes while the loss has not been noticed: it is
		// given back.
		ctx, cancel := context.WithCancel(t.Context())
		got := async(func() error { return m.Lock(ctx) })
		time.Sleep(time.Second)
		cancel()
		<-got
		wantErr(t, m.Unlock(), zsync.ErrLost)
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
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			ls := []zsync.Locker{zsync.NewMutex(a, "/a"), zsync.NewRWMutex(a, "/b"), zsync.NewRWMutex(a, "/c").RLocker()}
			held, unlock, err := zsync.LockAllContext(t.Context(), ls...)
			must(t, err)
			if held.Err() != nil {
				t.Fatal("held has ended")
			}
			deleteContender(t, b, []string{"/a", "/b", "/c"}[i], 0)
			<-held.Done()
			var e *zsync.LostError
			if !errors.As(context.Cause(held), &e) || e.Reason != zsync.LossDeleted {
				t.Errorf("lock %d: the cause is %v", i, context.Cause(held))
			}
			wantErr(t, unlock(), zsync.ErrLost)
			for _, l := range ls {
				must(t, l.Lock(t.Context()))
				must(t, l.Unlock())
			}
		})
	}
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		held, unlock, err := zsync.LockAllContext(t.Context(), zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"))
		must(t, err)
		must(t, unlock())
		if held.Err() == nil || errors.Is(context.Cause(held), zsync.ErrLost) {
			t.Errorf("after unlock: %v", context.Cause(held))
		}
		held, unlock, err = zsync.LockAllContext(t.Context(), zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"))
		must(t, err)
		srv.Expire(s.ID())
		<-held.Done()
		var e *zsync.LostError
		if !errors.As(context.Cause(held), &e) || e.Reason != zsync.LossExpired {
			t.Errorf("the cause is %v", context.Cause(held))
		}
		wantErr(t, unlock(), zsync.ErrLost)
		ctx, cancel := context.WithCancelCause(t.Context())
		held, unlock, err = zsync.LockAllContext(ctx, zsync.NewMutex(s, "/a"))
		must(t, err)
		enough := errors.New("enough")
		cancel(enough)
		<-held.Done()
		synctest.Wait()
		wantErr(t, context.Cause(held), enough)
		must(t, unlock())
		ctx, cancelled := context.WithCancel(t.Context())
		cancelled()
		if held, unlock, err = zsync.LockAllContext(ctx, zsync.NewMutex(s, "/a")); err == nil || held != nil || unlock != nil {
			t.Error("LockAllContext with a context that has ended")
		}
	})
}

func TestALeaderWhoseTermIsOverHasTimeThoughAnotherGoroutineCampaigns(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		e := zsync.NewElection(a, "/e", zsync.WithMaxHold(3*time.Second))
		for range 3 { // each of them goes home when it is told
			must(t, e.Campaign(t.Context()))
			lost, began := e.Lost(), time.Now()
			other := zsync.NewElection(b, "/e")
			ctx, cancel := context.WithCancel(t.Context())
			led := async(func() error { return other.Campaign(ctx) })
			synctest.Wait()
			mine := async(func() error { return e.Campaign(ctx) }) // another goroutine of its process
			<-lost
			told := time.Now()
			if d := told.Sub(began); d != 3*time.Second {
				t.Errorf("told after %v, want 3 s", d)
			}
			must(t, <-led)
			if d := time.Since(told); d < testTimeout/10 || d > testTimeout/10+100*time.Millisecond {
				t.Errorf("another leads %v after the loss was told, want %v", d, testTimeout/10)
			}
			cancel()
			<-mine
			must(t, other.Resign())
			time.Sleep(time.Second)
			if names := childrenOf(t, b, "/e"); len(names) > 0 || a.Stats().Holds != 0 {
				t.Errorf("left: %v, and %d holds", names, a.Stats().Holds)
			}
		}
	})
}

func TestAWriterWhoIsGivenUpInADowngradeHasTimeBeforeAnybodyReads(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		rw := zsync.NewRWMutex(a, "/rw", zsync.WithMaxHold(3*time.Second))
		must(t, rw.Lock(t.Context()))
		lost := rw.Lost()
		reads := async(func() error { return zsync.NewRWMutex(b, "/rw").RLock(t.Context()) })
		time.Sleep(2 * time.Second)
		srv.SetLatency(1500 * time.Millisecond)
		down := async(func() error { return rw.Downgrade(t.Context()) })
		<-lost // the read node is made, and the answer on its way
		told := time.Now()
		srv.SetLatency(0)
		must(t, <-reads)
		if d := time.Since(told); d < testTimeout/10 {
			t.Errorf("another reads %v after the writer was told of its loss, want %v", d, testTimeout/10)
		}
		wantErr(t, <-down, zsync.ErrLost)
		if err := rw.Unlock(); lossOf(err) != zsync.LossGivenUp {
			t.Errorf("Unlock: %v", err)
		}
		time.Sleep(time.Second)
		if names := childrenOf(t, b, "/rw"); len(names) != 1 {
			t.Errorf("left: %v; want the reader's alone", names)
		}
	})
}
