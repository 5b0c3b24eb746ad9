package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestMutexExcludesAcrossSessionsAndPassesOn(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b := zsync.NewMutex(connect(), "/m"), zsync.NewMutex(connect(), "/m")
		ctx := within(t, 2*time.Minute)
		must(t, a.Lock(ctx))
		if ok, err := b.TryLock(ctx); ok || err != nil {
			t.Fatalf("TryLock of a held Mutex = %v, %v; want false, nil", ok, err)
		}
		got := async(func() error { return b.Lock(ctx) })
		must(t, a.Unlock())
		must(t, <-got)
		if session.IsClosed(b.Lost()) {
			t.Error("Lost is closed while the lock is held")
		}
		must(t, b.Unlock())
		wantErr(t, b.Unlock(), zsync.ErrNotLocked)
		if ok, err := a.TryLock(ctx); !ok || err != nil {
			t.Fatalf("TryLock of a free Mutex = %v, %v; want true, nil", ok, err)
		}
		must(t, a.Unlock())
	})
}

func TestMutexCostsTwoRequestsToLockAndOneToUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context())) // makes the parent
		must(t, m.Unlock())
		before := s.Stats().Requests
		for range 10 {
			must(t, m.Lock(t.Context()))
			must(t, m.Unlock())
		}
		if got := s.Stats().Requests - before; got != 30 {
			t.Errorf("10 uncontended Lock and Unlock cost %d requests, want 30", got)
		}
	})
}

func TestHolderCutOffSeesLostBeforeAnotherLockReturns(t *testing.T) {
	t.Parallel()
	runs := 1000
	if harness.UnderRace {
		runs = 100
	}
	for seed := range runs {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 1))
			timeout := time.Duration(1+rnd.IntN(20)) * time.Second
			srv.SetLatency(time.Duration(rnd.IntN(50)) * time.Millisecond)
			a, b := open(t, srv, zsync.WithSessionTimeout(timeout)), open(t, srv, zsync.WithSessionTimeout(timeout))
			ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
			must(t, ma.Lock(t.Context()))
			lost := ma.Lost()
			got := async(func() error { return mb.Lock(t.Context()) })
			time.Sleep(time.Duration(rnd.Int64N(int64(timeout))))
			id := a.ID()
			srv.Partition(id)
			must(t, <-got)
			if !session.IsClosed(lost) {
				t.Fatalf("seed %d: Lock returned before the former holder's Lost was closed", seed)
			}
			wantErr(t, ma.Unlock(), zsync.ErrLost)
			must(t, mb.Unlock())
			srv.Heal(id)
		})
	}
}

func TestHoldSurvivesAReconnect(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		srv.Disconnect(s.ID())
		time.Sleep(time.Second)
		if session.IsClosed(m.Lost()) {
			t.Fatal("the hold was lost with the connection")
		}
		srv.Stop()
		time.Sleep(testTimeout / 4)
		srv.Restart()
		time.Sleep(time.Minute)
		if session.IsClosed(m.Lost()) {
			t.Fatal("the hold was lost with a server that was away for a quarter of the timeout")
		}
		must(t, m.Unlock())
	})
}

func TestWaiterCarriesOnInTheNextSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		must(t, ma.Lock(t.Context()))
		got := async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		for range 3 {
			old := b.ID()
			srv.Expire(old)
			time.Sleep(time.Second)
			if b.ID() == old {
				t.Fatal("the session id did not change")
			}
			pendingStill(t, got)
		}
		must(t, ma.Unlock())
		must(t, <-got)
		must(t, mb.Unlock())
		if n := len(childrenOf(t, a, "/m")); n != 0 {
			t.Errorf("%d znodes are left", n)
		}
	})
}

func TestCancelledLockLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		must(t, ma.Lock(t.Context()))
		cause := errors.New("enough")
		for range 100 {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
			err := mb.Lock(ctx)
			wantErr(t, err, cause, context.Canceled)
			if n := len(childrenOf(t, a, "/m")); n != 1 {
				t.Fatalf("%d znodes after a cancelled Lock, want the holder's", n)
			}
		}
		if n := b.Stats().Watches; n > 1 {
			t.Errorf("%d watches are left, want at most the one on the holder", n)
		}
		if n := b.Stats().Waiters; n != 0 {
			t.Errorf("%d waiters are left", n)
		}
		must(t, ma.Unlock())
	})
}

func TestLockWithServersDownEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		m2 := zsync.NewMutex(s, "/n")
		srv.Stop()
		synctest.Wait()
		start := time.Now()
		wantErr(t, m2.Lock(within(t, 50*time.Millisecond)), context.DeadlineExceeded)
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("Lock returned after %v, want 100ms at most", d)
		}
		start = time.Now()
		must(t, m.Unlock())
		if d := time.Since(start); d > time.Millisecond {
			t.Errorf("Unlock took %v, want it to return at once", d)
		}
		srv.Restart()
		time.Sleep(2 * time.Second)
		if n := len(childrenOf(t, s, "/m")); n != 0 {
			t.Errorf("%d znodes are left after the reconnect", n)
		}
	})
}

func TestLostReplyToTheCreateIsResolvedByItsGUID(t *testing.T) {
	for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := zsync.NewMutex(s, "/m")
			must(t, m.Lock(t.Context()))
			must(t, m.Unlock())
			var once sync.Once
			srv.Intercept(func(r zktest.Request) (a zktest.Action) {
				a = zktest.Pass
				if r.Op == zktest.OpCreate {
					once.Do(func() { a = fault })
				}
				return a
			})
			must(t, m.Lock(t.Context()))
			if n := len(childrenOf(t, s, "/m")); n != 1 {
				t.Errorf("%v: %d znodes for one holder", fault, n)
			}
			must(t, m.Unlock())
			if n := len(childrenOf(t, s, "/m")); n != 0 {
				t.Errorf("%v: %d znodes are left", fault, n)
			}
		})
	}
}

func TestThousandWaitersCostTwoNotificationsForEachHandover(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const waiters = 1000
		holder := open(t, srv)
		m := zsync.NewMutex(holder, "/m")
		must(t, m.Lock(t.Context()))
		var sessions []*zsync.Session
		for range 20 {
			sessions = append(sessions, open(t, srv))
		}
		turn := make(chan *zsync.Mutex, waiters)
		for i := range waiters {
			w := zsync.NewMutex(sessions[i%len(sessions)], "/m")
			go func() {
				if err := w.Lock(t.Context()); err != nil {
					t.Error(err)
				}
				turn <- w
			}()
			if i%50 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		before := srv.Counts()
		must(t, m.Unlock())
		for range waiters {
			must(t, (<-turn).Unlock())
		}
		synctest.Wait()
		d := srv.Counts().Sub(before)
		// To the next in the line, and to the one who has left, which is one if
		// they are of one process.
		if d.Notifications < waiters || d.Notifications > 2*waiters {
			t.Errorf("%d notifications for %d hand-overs", d.Notifications, waiters)
		}
	})
}

func TestTokensGrowStrictlyEvenWhenTheParentIsMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ms := []*zsync.Mutex{zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m"), zsync.NewMutex(a, "/m")}
		var last int64
		for i := range 30 {
			m := ms[i%len(ms)]
			must(t, m.Lock(t.Context()))
			tok, err := m.Token(t.Context())
			must(t, err)
			if tok <= last {
				t.Fatalf("token %d after %d", tok, last)
			}
			again, err := m.Token(t.Context())
			must(t, err)
			if again != tok {
				t.Fatalf("second call gave %d, first %d", again, tok)
			}
			last = tok
			must(t, m.Unlock())
			if i%7 == 0 {
				time.Sleep(3 * time.Minute) // the empty container is reaped
			}
		}
	})
}

func TestGoroutinesShareOnePlaceAndHandOverWithoutARoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m", zsync.WithHandoffs(8))
		must(t, m.Lock(t.Context()))
		var in, total atomic.Int32
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				if in.Add(1) != 1 {
					t.Error("two goroutines hold the Mutex")
				}
				total.Add(1)
				time.Sleep(time.Millisecond)
				in.Add(-1)
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := len(childrenOf(t, s, "/m")); n != 1 {
			t.Fatalf("100 goroutines take %d places, want 1", n)
		}
		before := s.Stats().Requests
		must(t, m.Unlock())
		wg.Wait()
		// One listing, when half of the 8 hand-overs that are allowed before it are used:
		// it sets a watch, which tells of nobody. And the watch on what is held, and the release.
		if got := s.Stats().Requests - before; got != 3 {
			t.Errorf("100 hand-overs cost %d requests", got)
		}
	})
}

// A Txn without a reply may be applied late. That is not in the hold of the next one of
// this process: neither who waits, nor who comes back to a place that is kept, nor who
// begins to read beside who read when it wrote.
func TestNoTxnIsAppliedWhenAnotherGoroutineHasTheLock(t *testing.T) {
	write := &zk.SetDataRequest{Path: "/log", Version: -1}
	for name, f := range map[string]func(t *testing.T, s *zsync.Session, short context.Context) error{
		"who waits": func(t *testing.T, s *zsync.Session, short context.Context) error {
			m := zsync.NewMutex(s, "/m")
			must(t, m.Lock(t.Context()))
			next := async(func() error { return m.Lock(t.Context()) })
			_, err := m.Txn(short, write)
			must(t, m.Unlock())
			must(t, <-next)
			return err
		},
		"who comes back": func(t *testing.T, s *zsync.Session, short context.Context) error {
			m := zsync.NewMutex(s, "/m", zsync.WithRetention(time.Minute))
			must(t, m.Lock(t.Context()))
			_, err := m.Txn(short, write)
			must(t, m.Unlock())
			must(t, m.Lock(t.Context()))
			return err
		},
		"who reads": func(t *testing.T, s *zsync.Session, short context.Context) error {
			rw := zsync.NewRWMutex(s, "/rw")
			must(t, rw.Lock(t.Context()))
			_, err := rw.Txn(short, write)
			must(t, rw.Downgrade(t.Context()))
			must(t, rw.RLock(t.Context()))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), live(t, open(t, srv))
				_, err := znodes.Create(t.Context(), other, "/log", nil)
				must(t, err)
				srv.Intercept(first(zktest.Delay(3*time.Second), func(r zktest.Request) bool {
					return slices.ContainsFunc(r.Ops, func(o zktest.Request) bool { return o.Path == "/log" })
				}))
				wantErr(t, f(t, s, within(t, time.Second)), context.DeadlineExceeded)
				before, err := other.Exists(t.Context(), "/log")
				must(t, err)
				time.Sleep(10 * time.Second)
				after, err := other.Exists(t.Context(), "/log")
				must(t, err)
				if before.Version != after.Version || after.Version == 0 {
					t.Errorf("written %d times when the next one had the lock, and %d in the end", before.Version, after.Version)
				}
			})
		})
	}
}

func TestHandoffsAreBoundedWhileAnotherProcessWaits(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				m := zsync.NewMutex(a, "/m", zsync.WithHandoffs(n))
				other := zsync.NewMutex(b, "/m")
				must(t, m.Lock(t.Context()))
				var passed atomic.Int32
				var wg sync.WaitGroup
				got := async(func() error { return other.Lock(t.Context()) })
				synctest.Wait()
				for range 20 {
					wg.Go(func() {
						if err := m.Lock(t.Context()); err != nil {
							t.Error(err)
						}
						passed.Add(1)
						time.Sleep(time.Millisecond)
						if err := m.Unlock(); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				must(t, m.Unlock())
				must(t, <-got)
				if p := int(passed.Load()); p > n {
					t.Errorf("%d hand-overs went before the other process, want %d at most", p, n)
				}
				must(t, other.Unlock())
				wg.Wait()
			})
		})
	}
}

func TestDoIsReentrantAlongItsContextAndLockInsideItIsADeadlock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, same := zsync.NewMutex(s, "/m"), zsync.NewMutex(s, "/m")
		boom := errors.New("boom")
		var leaked context.Context
		err := m.Do(t.Context(), func(ctx context.Context) error {
			leaked = ctx
			wantErr(t, m.Lock(ctx), zsync.ErrDeadlock)
			wantErr(t, same.Lock(ctx), zsync.ErrDeadlock)
			return same.Do(ctx, func(context.Context) error { return boom })
		})
		wantErr(t, err, boom)
		wantErr(t, m.Unlock(), zsync.ErrNotLocked)
		if err := leaked.Err(); err == nil {
			t.Error("Do's context outlives it")
		}
	})
}

func TestDoTellsItsFunctionThatTheHoldIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		err := m.Do(t.Context(), func(ctx context.Context) error {
			srv.Expire(s.ID())
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), zsync.ErrLost)
			return nil
		})
		wantErr(t, err, zsync.ErrLost)
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
	})
}

// Locks of one path that do not exclude each other are not taken for each other.
func TestDoOfAnotherLockOfThePathIsNotReentrant(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		type doer interface {
			zsync.Locker
			Do(ctx context.Context, f func(ctx context.Context) error) error
		}
		kinds := []func(s *zsync.Session) doer{
			func(s *zsync.Session) doer { return zsync.NewMutex(s, "/p") },
			func(s *zsync.Session) doer { return zsync.NewMutex(s, "/p", zsync.WithLayout(zsync.LayoutKazoo)) },
			func(s *zsync.Session) doer { return zsync.NewRWMutex(s, "/p") },
		}
		for i, outer := range kinds {
			for j, inner := range kinds {
				if i == j {
					continue
				}
				must(t, outer(s).Do(t.Context(), func(ctx context.Context) error {
					wantErr(t, inner(s).Do(ctx, func(context.Context) error { return nil }), zsync.ErrMixed)
					wantErr(t, inner(other).Do(ctx, func(context.Context) error { return nil }), zsync.ErrMixed)
					return nil
				}))
			}
		}
	})
}

func TestNestedDoNeedsWhatTheOuterOneStillHolds(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, rw := zsync.NewMutex(s, "/m"), zsync.NewRWMutex(s, "/rw")
		never := func(context.Context) error { t.Error("the nested function runs"); return nil }
		wantErr(t, m.Do(t.Context(), func(ctx context.Context) error {
			must(t, m.Unlock())
			wantErr(t, m.Do(ctx, never), zsync.ErrNotLocked)
			return nil
		}), zsync.ErrNotLocked)
		must(t, rw.Do(t.Context(), func(ctx context.Context) error {
			must(t, rw.Downgrade(ctx))
			wantErr(t, rw.Do(ctx, never), zsync.ErrDeadlock)
			ran := false
			must(t, rw.RDo(ctx, func(context.Context) error { ran = true; return nil }))
			if !ran {
				t.Error("RDo has not run its function")
			}
			return nil
		}))
		wantErr(t, m.Do(t.Context(), func(ctx context.Context) error {
			wantErr(t, m.Do(context.WithoutCancel(ctx), func(inner context.Context) error {
				srv.Expire(s.ID())
				<-inner.Done()
				wantErr(t, context.Cause(inner), zsync.ErrLost)
				return nil
			}), zsync.ErrLost)
			wantErr(t, m.Do(context.WithoutCancel(ctx), never), zsync.ErrLost)
			return nil
		}), zsync.ErrLost)
	})
}

// Whoever asks about a hold while it is given up may find its znode gone. That is
// no loss.
func TestUnlockIsNotToldAsALoss(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var kinds []zsync.EventKind
		s := open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if e.Op == "lock" {
				kinds = append(kinds, e.Kind)
			}
		})))
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		h, err := zsync.CurrentGrant(m)
		must(t, err)
		lost := m.Lost()
		must(t, m.Unlock())
		_, err = h.Token(t.Context())
		wantErr(t, err, zsync.ErrNotLocked)
		if session.IsClosed(lost) || !slices.Equal(kinds, []zsync.EventKind{zsync.EventAcquired, zsync.EventReleased}) {
			t.Errorf("lost %v, events %v", session.IsClosed(lost), kinds)
		}
	})
}

// A deletion that the servers refuse is tried again, so that an Unlock, or a Lock
// that has given up, does not block the others for as long as its session lives.
func TestWhatMayNotBeDeletedNowIsDeletedLater(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		m, n, other := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m"), b.ID()
		for _, code := range []int32{zktest.CodeThrottled, zktest.CodeNoAuth, -1} {
			must(t, m.Lock(t.Context()))
			refusals := 3
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpDelete && r.Session != other && refusals > 0 {
					refusals--
					return zktest.Fail(code)
				}
				return zktest.Pass
			})
			must(t, m.Unlock())
			must(t, n.Lock(within(t, time.Minute)))
			refusals = 3
			wantErr(t, m.Lock(within(t, time.Second)), context.DeadlineExceeded)
			time.Sleep(time.Minute)
			must(t, n.Unlock())
			must(t, n.Lock(within(t, time.Minute)))
			must(t, n.Unlock())
		}
	})
}

// Giving up cannot be refused: what may never be deleted goes with its session,
// after which others have it, and what else was held is told to be lost.
func TestWhatMayNeverBeDeletedGoesWithItsSession(t *testing.T) {
	type held struct {
		take, give func() error
	}
	first := context.Background()
	for name, make := range map[string]func(ctx context.Context, s *zsync.Session) held{
		"Mutex": func(ctx context.Context, s *zsync.Session) held {
			m := zsync.NewMutex(s, "/p")
			return held{func() error { return m.Lock(ctx) }, m.Unlock}
		},
		"RWMutex": func(ctx context.Context, s *zsync.Session) held {
			rw := zsync.NewRWMutex(s, "/p")
			return held{func() error { return rw.Lock(ctx) }, rw.Unlock}
		},
		"reader": func(ctx context.Context, s *zsync.Session) held {
			rw := zsync.NewRWMutex(s, "/p")
			if ctx == first { // a writer waits for it
				return held{func() error { return rw.RLock(ctx) }, rw.RUnlock}
			}
			return held{func() error { return rw.Lock(ctx) }, rw.Unlock}
		},
		"Election": func(ctx context.Context, s *zsync.Session) held {
			e := zsync.NewElection(s, "/p")
			return held{func() error { return e.Campaign(ctx) }, e.Resign}
		},
		"Semaphore": func(ctx context.Context, s *zsync.Session) held {
			m := zsync.NewSemaphore(s, "/p", 3)
			return held{func() error { return m.Acquire(ctx, 3) }, func() error { return errors.Join(m.Release(1), m.Release(2)) }}
		},
		"weight": func(ctx context.Context, s *zsync.Session) held {
			m := zsync.NewSemaphore(s, "/p", 3000)
			return held{func() error { return m.Acquire(ctx, 3000) }, func() error { return errors.Join(m.Release(1), m.Release(2999)) }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), open(t, srv)
				elsewhere := zsync.NewMutex(s, "/elsewhere")
				must(t, elsewhere.Lock(t.Context()))
				one, two := make(first, s), make(within(t, time.Minute), other)
				must(t, one.take())
				waits := async(two.take)
				pendingStill(t, waits)
				id := s.ID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && (r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/p") || r.Op == zktest.OpMulti) {
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				began := time.Now()
				must(t, one.give())
				if d := time.Since(began); d > time.Second {
					t.Errorf("giving up took %v", d)
				}
				must(t, <-waits)
				if d := time.Since(began); d < testTimeout/2 || d > 2*testTimeout {
					t.Errorf("another has it after %v; the session timeout is %v", d, testTimeout)
				}
				if why := lossOf(elsewhere.Unlock()); why != zsync.LossGivenUp {
					t.Errorf("what is held elsewhere is lost for %v", why)
				}
				must(t, two.give())
			})
		})
	}
}

func TestTriesAfterCloseFail(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, rw := zsync.NewMutex(s, "/m"), zsync.NewRWMutex(s, "/rw")
		must(t, m.Lock(t.Context()))
		must(t, rw.Lock(t.Context()))
		must(t, s.Close())
		_, err := m.TryLock(t.Context())
		wantErr(t, err, zsync.ErrClosed)
		_, err = rw.TryLock(t.Context())
		wantErr(t, err, zsync.ErrClosed)
		_, err = rw.TryRLock(t.Context())
		wantErr(t, err, zsync.ErrClosed)
	})
}

func TestLockAllTakesAgainWhatWasLostWhileItWaited(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		a, b := zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b")
		blocker := zsync.NewMutex(other, "/b")
		must(t, blocker.Lock(t.Context()))
		var unlock func() error
		got := async(func() (err error) { unlock, err = zsync.LockAll(t.Context(), b, a); return err })
		pendingStill(t, got)
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		pendingStill(t, got)
		must(t, blocker.Unlock())
		must(t, <-got)
		if session.IsClosed(a.Lost()) || session.IsClosed(b.Lost()) {
			t.Error("a lock is not held")
		}
		must(t, unlock())
		_, err := zsync.LockAll(t.Context(), a, (*zsync.Mutex)(nil))
		wantErr(t, err, zsync.ErrInvalid)
	})
}

// A foreignLocker is a locker of another package, which can be lost.
type foreignLocker struct {
	localLocker
	path string
	lost chan struct{}
}

func (l *foreignLocker) Path() string          { return l.path }
func (l *foreignLocker) Lost() <-chan struct{} { return l.lost }

func TestLockAllTakesAgainAForeignLockerThatWasLostWhileItWaited(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		b, blocker := zsync.NewMutex(open(t, srv), "/b"), zsync.NewMutex(open(t, srv), "/b")
		must(t, blocker.Lock(t.Context()))
		first := &foreignLocker{make(localLocker, 1), "/a", make(chan struct{})}
		var held context.Context
		var unlock func() error
		got := async(func() (err error) { held, unlock, err = zsync.LockAllContext(t.Context(), b, first); return err })
		pendingStill(t, got)
		lost := first.lost
		first.lost = make(chan struct{}) // of its next hold
		close(lost)
		pendingStill(t, got)
		must(t, blocker.Unlock())
		must(t, <-got)
		must(t, held.Err())
		close(first.lost)
		<-held.Done()
		wantErr(t, context.Cause(held), zsync.ErrLost)
		must(t, unlock())
		must(t, first.Lock(t.Context()))
	})
}

// A function that gives up because its context has ended is not kept waiting by
// servers that do not answer.
func TestDoAndRunEndWithTheirContextThoughTheServersAreSilent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, rw, e := zsync.NewMutex(s, "/m"), zsync.NewRWMutex(s, "/rw"), zsync.NewElection(s, "/e")
		for i, do := range []func(ctx context.Context, f func(ctx context.Context) error) error{m.Do, rw.Do, rw.RDo, e.Run} {
			ctx, cancel := context.WithCancel(t.Context())
			var ended time.Time
			err := do(ctx, func(ctx context.Context) error {
				srv.Partition(s.ID())
				cancel()
				ended = time.Now()
				return ctx.Err()
			})
			wantErr(t, err, context.Canceled)
			if d := time.Since(ended); d > 2*session.Grace {
				t.Errorf("%d: it took %v to return", i, d)
			}
			srv.Heal(s.ID())
			time.Sleep(time.Minute)
		}
	})
}

func TestContendersWhoseZnodesMayNotBeReadAreListedWithoutTheirOwners(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		secret := open(t, srv, zsync.WithAuth("digest", []byte("me:secret")))
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		for range 199 { // more than a bundle
			go zsync.NewMutex(open(t, srv), "/m").Lock(ctx)
		}
		time.Sleep(time.Second)
		_, err := secret.Txn(t.Context(), &zk.CreateRequest{
			Path: "/m/" + znodes.ProtectedName(znodes.NewGUID(), "lock-"), Data: []byte("in secret"), Acl: zk.AuthACL(zk.PermAll), Flags: zk.FlagEphemeral | zk.FlagSequence,
		})
		must(t, err)
		cs, err := m.Contenders(t.Context())
		must(t, err)
		if len(cs) != 201 {
			t.Fatalf("%d contenders, want 201", len(cs))
		}
		for _, c := range cs {
			mine := c.Session == -1 // the servers conceal the Stat, too
			if (c.Owner == "") != mine || c.Session == 0 || c.Since.IsZero() || c.Holding != (c.Session == s.ID()) {
				t.Errorf("%+v", c)
			}
		}
		cancel()
	})
}

// The directory, and what Lock has made in it, is deleted between its create and
// the listing behind that. Nobody holds anything yet, so Lock begins anew.
func TestLockSurvivesThatTheTreeIsDeletedWithinItsRoundTrip(t *testing.T) {
	for _, try := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			me, times := a.ID(), 3
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session != me || r.Op != zktest.OpGetChildren2 || r.Path != "/dir/m" || times == 0 {
					return zktest.Pass
				}
				names := childrenOf(t, b, "/dir/m")
				if len(names) == 0 {
					return zktest.Pass // before the create
				}
				times--
				for _, name := range names {
					must(t, znodes.RemoveNow(t.Context(), live(t, b), "/dir/m/"+name))
				}
				must(t, znodes.RemoveNow(t.Context(), live(t, b), "/dir/m"))
				must(t, znodes.RemoveNow(t.Context(), live(t, b), "/dir"))
				return zktest.Pass
			})
			m, n := zsync.NewMutex(a, "/dir/m"), zsync.NewMutex(b, "/dir/m")
			if try {
				ok, err := m.TryLock(t.Context())
				if must(t, err); !ok {
					t.Fatal("not locked, and nobody holds it")
				}
			} else {
				must(t, m.Lock(t.Context()))
			}
			if times != 0 {
				t.Fatalf("deleted %d times less than was meant", times)
			}
			got := async(func() error { return n.Lock(t.Context()) })
			pendingStill(t, got)
			must(t, m.Unlock())
			must(t, <-got)
			must(t, n.Unlock())
			if names := childrenOf(t, b, "/dir/m"); len(names) > 0 {
				t.Errorf("%v are left", names)
			}
		})
	}
}

// The one goroutine that tells all who hold locks is slow here.
func TestServersHearOfACloseBehindAllWhoHoldLocks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		var lost []<-chan struct{}
		for i := range 3 {
			m := zsync.NewMutex(s, fmt.Sprintf("/m/%d", i))
			must(t, m.Lock(t.Context()))
			g, err := zsync.CurrentGrant(m)
			must(t, err)
			g.Loss().AfterFunc(func(error) { time.Sleep(50 * time.Millisecond) })
			lost = append(lost, m.Lost())
		}
		time.Sleep(time.Second) // nothing else wants the claims' locks, or time would stand still
		asked := false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCloseSession {
				asked = true
				for i, c := range lost {
					if !session.IsClosed(c) {
						t.Errorf("%d was not told before the servers", i)
					}
				}
			}
			return zktest.Pass
		})
		must(t, s.Close())
		if !asked {
			t.Error("the servers were not asked to end the session")
		}
	})
}
