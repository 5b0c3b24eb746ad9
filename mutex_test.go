package zsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/zktest"
)

func TestMutexExcludesAcrossSessionsAndPassesOn(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
		a, b := NewMutex(connect(), "/m"), NewMutex(connect(), "/m")
		ctx := within(t, 30*time.Second)
		must(t, a.Lock(ctx))
		if ok, err := b.TryLock(ctx); ok || err != nil {
			t.Fatalf("TryLock of a held Mutex = %v, %v; want false, nil", ok, err)
		}
		got := async(func() error { return b.Lock(ctx) })
		must(t, a.Unlock())
		must(t, <-got)
		if isClosed(b.Lost()) {
			t.Error("Lost is closed while the lock is held")
		}
		must(t, b.Unlock())
		wantErr(t, b.Unlock(), ErrNotLocked)
		if ok, err := a.TryLock(ctx); !ok || err != nil {
			t.Fatalf("TryLock of a free Mutex = %v, %v; want true, nil", ok, err)
		}
		must(t, a.Unlock())
	})
}

func TestMutexCostsTwoRequestsToLockAndOneToUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := NewMutex(s, "/m")
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
	if underRace {
		runs = 100
	}
	for seed := range runs {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 1))
			timeout := time.Duration(1+rnd.IntN(20)) * time.Second
			srv.SetLatency(time.Duration(rnd.IntN(50)) * time.Millisecond)
			a, b := open(t, srv, WithSessionTimeout(timeout)), open(t, srv, WithSessionTimeout(timeout))
			ma, mb := NewMutex(a, "/m"), NewMutex(b, "/m")
			must(t, ma.Lock(t.Context()))
			lost := ma.Lost()
			got := async(func() error { return mb.Lock(t.Context()) })
			time.Sleep(time.Duration(rnd.Int64N(int64(timeout))))
			id := a.ID()
			srv.Partition(id)
			must(t, <-got)
			if !isClosed(lost) {
				t.Fatalf("seed %d: Lock returned before the former holder's Lost was closed", seed)
			}
			wantErr(t, ma.Unlock(), ErrLost)
			must(t, mb.Unlock())
			srv.Heal(id)
		})
	}
}

func TestHoldSurvivesAReconnect(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		srv.Disconnect(s.ID())
		time.Sleep(time.Second)
		if isClosed(m.Lost()) {
			t.Fatal("the hold was lost with the connection")
		}
		srv.Stop()
		time.Sleep(testTimeout / 4)
		srv.Restart()
		time.Sleep(time.Minute)
		if isClosed(m.Lost()) {
			t.Fatal("the hold was lost with a server that was away for a quarter of the timeout")
		}
		must(t, m.Unlock())
	})
}

func TestWaiterCarriesOnInTheNextSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := NewMutex(a, "/m"), NewMutex(b, "/m")
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
		ma, mb := NewMutex(a, "/m"), NewMutex(b, "/m")
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
		m := NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		m2 := NewMutex(s, "/n")
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
			m := NewMutex(s, "/m")
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

func TestThousandWaitersCostOneNotificationForEachHandover(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const waiters = 1000
		holder := open(t, srv)
		m := NewMutex(holder, "/m")
		must(t, m.Lock(t.Context()))
		var sessions []*Session
		for range 20 {
			sessions = append(sessions, open(t, srv))
		}
		turn := make(chan *Mutex, waiters)
		for i := range waiters {
			w := NewMutex(sessions[i%len(sessions)], "/m")
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
		if d.Notifications != waiters {
			t.Errorf("%d notifications for %d hand-overs", d.Notifications, waiters)
		}
	})
}

func TestTokensGrowStrictlyEvenWhenTheParentIsMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ms := []*Mutex{NewMutex(a, "/m"), NewMutex(b, "/m"), NewMutex(a, "/m")}
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
		m := NewMutex(s, "/m", WithHandoffs(8))
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
		// One listing for each 8 hand-overs, and the last release.
		if got := s.Stats().Requests - before; got > 100/8+2 {
			t.Errorf("100 hand-overs cost %d requests", got)
		}
	})
}

func TestHandoffsAreBoundedWhileAnotherProcessWaits(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				m := NewMutex(a, "/m", WithHandoffs(n))
				other := NewMutex(b, "/m")
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
		m, same := NewMutex(s, "/m"), NewMutex(s, "/m")
		boom := errors.New("boom")
		var leaked context.Context
		err := m.Do(t.Context(), func(ctx context.Context) error {
			leaked = ctx
			wantErr(t, m.Lock(ctx), ErrDeadlock)
			wantErr(t, same.Lock(ctx), ErrDeadlock)
			return same.Do(ctx, func(context.Context) error { return boom })
		})
		wantErr(t, err, boom)
		wantErr(t, m.Unlock(), ErrNotLocked)
		if err := leaked.Err(); err == nil {
			t.Error("Do's context outlives it")
		}
	})
}

func TestDoTellsItsFunctionThatTheHoldIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := NewMutex(s, "/m")
		err := m.Do(t.Context(), func(ctx context.Context) error {
			srv.Expire(s.ID())
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), ErrLost)
			return nil
		})
		wantErr(t, err, ErrLost)
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
	})
}
