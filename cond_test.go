package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
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
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// newCond returns a Cond of s at /c, with a Mutex at /l.
func newCond(s *zsync.Session) *zsync.Cond { return zsync.NewCond(s, "/c", zsync.NewMutex(s, "/l")) }

// waitOnce locks, waits once, and unlocks.
func waitOnce(ctx context.Context, c *zsync.Cond) error {
	if err := c.L.Lock(ctx); err != nil {
		return err
	}
	if err := c.Wait(ctx); err != nil {
		return err
	}
	return c.L.Unlock()
}

// sleepers makes n waiters, in their order, each of a session of its own.
func sleepers(t *testing.T, srv *zktest.Server, n int) (ss []*zsync.Session, woken []<-chan error) {
	for range n {
		s := open(t, srv)
		ss = append(ss, s)
		woken = append(woken, async(func() error { return waitOnce(t.Context(), newCond(s)) }))
		synctest.Wait()
	}
	return ss, woken
}

// wantEmpty fails if anything is left of the Cond or its lock.
func wantEmpty(t *testing.T, s *zsync.Session) {
	t.Helper()
	awaitLogs()
	if got := append(childrenOf(t, s, "/c"), childrenOf(t, s, "/l")...); len(got) != 0 {
		t.Errorf("%q are left", got)
	}
}

func TestSignalWakesTheLongestWaiterWhicheverProcessItIsIn(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		_, woken := sleepers(t, srv, 5)
		s := open(t, srv)
		c := newCond(s)
		for i := range woken {
			for _, w := range woken[i:] {
				pendingStill(t, w)
			}
			must(t, c.Signal(t.Context()))
			must(t, <-woken[i])
		}
		must(t, c.Signal(t.Context()))
		wantEmpty(t, s)
	})
}

func TestBroadcastWakesAllThatWaitAndNobodyLater(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 20)
		must(t, newCond(ss[0]).Broadcast(t.Context()))
		for _, w := range woken {
			must(t, <-w)
		}
		later := async(func() error { return waitOnce(t.Context(), newCond(ss[1])) })
		pendingStill(t, later)
		must(t, newCond(ss[2]).Broadcast(t.Context()))
		must(t, <-later)
		wantEmpty(t, ss[0])
	})
}

func TestSignalsAtTheSameTimeWakeDifferentWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 10)
		var wg sync.WaitGroup
		for _, s := range ss[:7] {
			wg.Go(func() {
				if err := newCond(s).Signal(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, w := range woken[:7] {
			must(t, <-w)
		}
		for _, w := range woken[7:] {
			pendingStill(t, w)
		}
		must(t, newCond(ss[0]).Broadcast(t.Context()))
		for _, w := range woken[7:] {
			must(t, <-w)
		}
	})
}

func TestASignalToAProcessThatDiedGoesToTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 3)
		signaller := open(t, srv)
		id := ss[0].ID()
		srv.Partition(id) // to the servers, as good as dead, and its session lives on
		must(t, newCond(signaller).Signal(t.Context()))
		signaller.Close() // who signalled need not be there any more
		must(t, <-woken[1])
		pendingStill(t, woken[2])
		srv.Heal(id)
		must(t, <-woken[0]) // in the next session, a spurious wake-up
		must(t, newCond(ss[1]).Signal(t.Context()))
		must(t, <-woken[2])
		wantEmpty(t, ss[1])
	})
}

// The signal cannot be deleted then. It is passed on once all the same, and stands in the way of none.
func TestASignalToTheDeadBelowWhichAnotherProgramHasPutSomethingIsPassedOnOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 4)
		signaller, c := open(t, srv), harness.Plain(t, srv)
		srv.Partition(ss[0].ID())
		must(t, newCond(signaller).Signal(t.Context()))
		var below string
		for _, name := range harness.Children(t, c, "/c") {
			if strings.HasSuffix(name, "-signal") {
				below = "/c/" + name + "/x"
				_, err := c.Create(below, nil, 0, zk.WorldACL(zk.PermAll))
				must(t, err)
			}
		}
		must(t, <-woken[1])
		pendingStill(t, woken[2])
		pendingStill(t, woken[3])
		must(t, newCond(signaller).Signal(t.Context()))
		must(t, <-woken[2])
		pendingStill(t, woken[3])
		must(t, newCond(signaller).Broadcast(t.Context()))
		must(t, <-woken[3])
		must(t, c.Delete(below, -1))
		must(t, newCond(signaller).Signal(t.Context()))
		srv.Heal(ss[0].ID())
		must(t, <-woken[0])
		wantEmpty(t, signaller)
	})
}

func TestASignalNobodyCouldTakeDoesNotWakeALaterWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 1)
		id := ss[0].ID()
		srv.Partition(id)
		s := open(t, srv)
		must(t, newCond(s).Signal(t.Context()))
		time.Sleep(3 * testTimeout)
		later := async(func() error { return waitOnce(t.Context(), newCond(s)) })
		pendingStill(t, later)
		must(t, newCond(s).Signal(t.Context()))
		must(t, <-later)
		srv.Heal(id)
		must(t, <-woken[0])
		wantEmpty(t, s)
	})
}

func TestASignalToACancelledWaiterGoesToTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, s := open(t, srv), open(t, srv), open(t, srv)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		ca := newCond(a)
		first := async(func() error { return waitOnce(ctx, ca) })
		synctest.Wait()
		second := async(func() error { return waitOnce(t.Context(), newCond(b)) })
		synctest.Wait()
		c := newCond(s)
		must(t, c.L.Lock(t.Context()))
		must(t, c.Signal(t.Context()))
		synctest.Wait() // the first is woken, and waits for the lock
		cancel(cause)
		wantErr(t, <-first, cause, context.Canceled)
		wantErr(t, ca.L.Unlock(), zsync.ErrNotLocked)
		pendingStill(t, second)
		must(t, c.L.Unlock())
		must(t, <-second)
		wantEmpty(t, s)
	})
}

func TestACancelledWaitLeavesNothingAndDoesNotHoldTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := newCond(s)
		for range 20 {
			wantErr(t, waitOnce(within(t, time.Second), c), context.DeadlineExceeded)
			wantErr(t, c.L.Unlock(), zsync.ErrNotLocked)
			wantEmpty(t, s)
		}
		ended, cancel := context.WithCancel(t.Context())
		must(t, c.L.Lock(t.Context()))
		cancel()
		wantErr(t, c.Wait(ended), context.Canceled)
		wantErr(t, c.L.Unlock(), zsync.ErrNotLocked)
		if n := s.Stats().Watches; n > 2 {
			t.Errorf("%d watches are left", n)
		}
	})
}

func TestWaitWithoutTheLockIsRefusedAndLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wantErr(t, newCond(s).Wait(t.Context()), zsync.ErrNotLocked)
		wantEmpty(t, s)
	})
}

func TestASessionThatExpiresDuringWaitIsASpuriousWakeUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := newCond(s)
		must(t, c.L.Lock(t.Context()))
		woken := async(func() error { return c.Wait(t.Context()) })
		synctest.Wait()
		srv.Expire(s.ID())
		must(t, <-woken)
		must(t, c.L.Unlock()) // it is held
		must(t, c.L.Lock(t.Context()))
		srv.Expire(s.ID()) // before Wait
		time.Sleep(time.Second)
		must(t, c.Wait(t.Context()))
		must(t, c.L.Unlock())
		wantEmpty(t, s)
	})
}

func TestAWaiterWhoseZnodeOrTreeIsDeletedWakesUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		_, woken := sleepers(t, srv, 2)
		s := open(t, srv)
		for _, name := range childrenOf(t, s, "/c") {
			must(t, znodes.RemoveNow(t.Context(), live(t, s), "/c/"+name))
		}
		must(t, znodes.RemoveNow(t.Context(), live(t, s), "/c"))
		must(t, <-woken[0])
		must(t, <-woken[1])
		wantEmpty(t, s)
	})
}

// Who is woken by a stranger's write has no signal yet, and waits for L: the caller of
// Signal may hold that.
func TestAWaiterWhoseZnodeSomebodyElseHasWrittenIsGivenSignals(t *testing.T) {
	for name, wake := range map[string]func(*zsync.Cond, context.Context) error{"Signal": (*zsync.Cond).Signal, "Broadcast": (*zsync.Cond).Broadcast} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(time.Millisecond)
				_, woken := sleepers(t, srv, 1)
				time.Sleep(time.Second) // with the latency, the waiter is not in the line yet
				s := open(t, srv)
				c := newCond(s)
				must(t, c.L.Lock(t.Context()))
				stranger := harness.Plain(t, srv)
				for _, name := range childrenOf(t, s, "/c") {
					_, err := stranger.Set("/c/"+name, []byte("x"), -1)
					must(t, err)
				}
				time.Sleep(time.Second)
				must(t, wake(c, within(t, time.Minute)))
				must(t, c.L.Unlock())
				must(t, <-woken[0])
				time.Sleep(time.Minute)
				wantEmpty(t, s)
			})
		})
	}
}

// A waiter that wakes up for nothing finds no signal of its own to take; one may be
// given to it before it has left.
func TestASignalToAWaiterThatLeavesUnsignalledIsNotLeftBehind(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 1)
		s := open(t, srv)
		var signalled atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == ss[0].ID() && r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/c/") && !signalled.Swap(true) {
				must(t, newCond(s).Signal(t.Context()))
			}
			return zktest.Pass
		})
		stranger := harness.Plain(t, srv)
		for _, name := range childrenOf(t, s, "/c") {
			_, err := stranger.Set("/c/"+name, []byte("x"), -1)
			must(t, err)
		}
		must(t, <-woken[0])
		time.Sleep(time.Minute)
		wantEmpty(t, s)
		if !signalled.Load() {
			t.Error("the case did not come about")
		}
	})
}

// Nobody else waits who would pass the signal on.
func TestASignalOfASessionThatEndedIsNotLeftBehind(t *testing.T) {
	for _, cancelled := range []bool{true, false} {
		t.Run(fmt.Sprintf("cancelled: %v", cancelled), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, o := open(t, srv), open(t, srv)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				woken := async(func() error { return waitOnce(ctx, newCond(s)) })
				synctest.Wait()
				c := newCond(o)
				must(t, c.L.Lock(t.Context())) // so the waiter cannot take its signal yet
				must(t, c.Signal(t.Context()))
				synctest.Wait()
				srv.Expire(s.ID())
				time.Sleep(testTimeout)
				if cancelled {
					cancel()
					wantErr(t, <-woken, context.Canceled)
				}
				must(t, c.L.Unlock())
				if !cancelled {
					must(t, <-woken)
				}
				synctest.Wait()
				wantEmpty(t, o)
			})
		})
	}
}

// An Unlock that gets no answer is none of ctx's business.
func TestWaitEndsWithItsContextThoughTheServerDoesNotAnswerUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := newCond(s)
		must(t, c.L.Lock(t.Context()))
		srv.Intercept(first(zktest.Hang, op(zktest.OpDelete)))
		begun := time.Now()
		wantErr(t, c.Wait(within(t, time.Second)), context.DeadlineExceeded)
		if d := time.Since(begun); d > 1100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		time.Sleep(3 * testTimeout)
		wantErr(t, c.L.Unlock(), zsync.ErrNotLocked)
		wantEmpty(t, s)
	})
}

// A localLocker is a Locker that knows nothing of ZooKeeper.
type localLocker chan struct{}

func (l localLocker) Lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
}

func (l localLocker) Unlock() error {
	select {
	case <-l:
		return nil
	default:
		return zsync.ErrNotLocked
	}
}

func TestCondWorksWithAnyLocker(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		for name, l := range map[string]zsync.Locker{
			"write lock":            zsync.NewRWMutex(s, "/rw"),
			"read lock":             zsync.NewRWMutex(s, "/rw").RLocker(),
			"mutex of kazoo's":      zsync.NewMutex(s, "/k", zsync.WithLayout(zsync.LayoutKazoo)),
			"mutex, strictly":       zsync.NewMutex(s, "/l", zsync.WithHandoffs(0)),
			"mutex, other session":  zsync.NewMutex(o, "/l"),
			"one of this process":   make(localLocker, 1),
			"one that sync has too": localSync{new(sync.Mutex)},
		} {
			c := zsync.NewCond(s, "/c", l)
			woken := async(func() error { return waitOnce(t.Context(), c) })
			pendingStill(t, woken)
			must(t, l.Lock(t.Context())) // it was given up
			must(t, c.Signal(t.Context()))
			pendingStillUnlessShared(t, name, woken)
			must(t, l.Unlock())
			must(t, <-woken)
			must(t, l.Lock(t.Context())) // and is given up again
			must(t, l.Unlock())
		}
		wantEmpty(t, s)
	})
}

// pendingStillUnlessShared fails if Wait has returned while the lock is held by
// another, but for a lock that both can hold.
func pendingStillUnlessShared(t *testing.T, name string, woken <-chan error) {
	t.Helper()
	if name != "read lock" {
		pendingStill(t, woken)
	}
}

// localSync makes a Locker of a sync.Mutex.
type localSync struct{ mu *sync.Mutex }

func (l localSync) Lock(ctx context.Context) error {
	for !l.mu.TryLock() { // a goroutine that waits in sync's Lock stops a bubble's clock
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return session.CtxErr(ctx)
		}
	}
	return nil
}

func (l localSync) Unlock() error { l.mu.Unlock(); return nil }

// An embeddingLocker has a Mutex embedded, and a Lock and an Unlock of its own.
type embeddingLocker struct {
	*zsync.Mutex
	locks, unlocks int
}

func (l *embeddingLocker) Lock(ctx context.Context) error { l.locks++; return l.Mutex.Lock(ctx) }
func (l *embeddingLocker) Unlock() error                  { l.unlocks++; return l.Mutex.Unlock() }

func TestWaitCallsTheMethodsOfATypeWithAMutexEmbedded(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		l := &embeddingLocker{Mutex: zsync.NewMutex(s, "/l")}
		c := zsync.NewCond(s, "/c", l)
		woken := async(func() error { return waitOnce(t.Context(), c) })
		pendingStill(t, woken)
		must(t, c.Signal(t.Context()))
		must(t, <-woken)
		if l.locks != 2 || l.unlocks != 2 {
			t.Errorf("%d calls of Lock and %d of Unlock, want 2 of each", l.locks, l.unlocks)
		}
		woken = async(func() error { return l.Do(t.Context(), c.Wait) }) // the hold is Do's
		pendingStill(t, woken)
		must(t, c.Signal(t.Context()))
		must(t, <-woken)
		wantEmpty(t, s)
	})
}

// A rudeLocker is a Locker whose Unlock does as it likes.
type rudeLocker struct{ unlock func() error }

func (rudeLocker) Lock(context.Context) error { return nil }
func (l rudeLocker) Unlock() error            { return l.unlock() }

func TestAnUnlockThatDoesNotReturnEndsWaitAndLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wait := func(unlock func() error) (thrown any, err error) {
			defer func() { thrown = recover() }()
			return nil, zsync.NewCond(s, "/c", rudeLocker{unlock}).Wait(within(t, time.Minute))
		}
		if thrown, err := wait(func() error { panic("rude") }); thrown != "rude" {
			t.Errorf("%v, %v, want the panic of Unlock", err, thrown)
		}
		began := time.Now()
		if thrown, err := wait(func() error { runtime.Goexit(); return nil }); err == nil || thrown != nil || time.Since(began) > time.Second {
			t.Errorf("%v, %v after %v, want an error at once", err, thrown, time.Since(began))
		}
		wantEmpty(t, s)
		_, err := wait(s.Close)
		wantErr(t, err, zsync.ErrClosed)
	})
}

func TestBroadcastReachesMoreThanFitIntoOneTransaction(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := zsync.NewCond(s, "/"+strings.Repeat("long", 400), make(localLocker, 1))
		var woken []<-chan error
		for range 400 {
			woken = append(woken, async(func() error { return waitOnce(t.Context(), c) }))
		}
		synctest.Wait()
		before := srv.Counts()
		must(t, c.Broadcast(t.Context()))
		if n := srv.Counts().Sub(before).Requests["multi"]; n < 2 {
			t.Errorf("%d transactions", n)
		}
		for _, w := range woken {
			must(t, <-w)
		}
	})
}

func TestCondWakesInOrderAnywhere(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		sessions := []*zsync.Session{connect(), connect(), connect()}
		c := newCond(sessions[0])
		const n = 12
		var mu sync.Mutex
		var order []int // guarded by mu
		var wg sync.WaitGroup
		await := func(ready func() bool) {
			for !ready() && ctx.Err() == nil {
				pause(t, 5*time.Millisecond)
			}
		}
		for i := range n {
			wg.Go(func() {
				if err := waitOnce(ctx, newCond(sessions[i%3])); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			await(func() bool { cs, err := c.Contenders(ctx); return err != nil || len(cs) == i+1 })
		}
		cs, err := c.Contenders(ctx)
		must(t, err)
		for i, waiter := range cs {
			if waiter.Session != sessions[i%3].ID() || waiter.Owner == "" || waiter.Holding {
				t.Errorf("contender %d is %+v", i, waiter)
			}
		}
		for i := range n / 2 {
			must(t, c.Signal(ctx))
			await(func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == i+1 })
		}
		if cs, err := c.Contenders(ctx); len(cs) != n/2 || err != nil {
			t.Errorf("%d contenders are left, %v", len(cs), err)
		}
		must(t, c.Broadcast(ctx))
		wg.Wait()
		for i, who := range order[:n/2] {
			if who != i {
				t.Errorf("woken in the order %v", order)
				break
			}
		}
		left := func() []string {
			return slices.DeleteFunc(childrenOf(t, sessions[0], "/c"), txn.IsLogName) // a session keeps its log for its next transactions
		}
		await(func() bool { return len(left()) == 0 })
		if left := left(); len(left) != 0 {
			t.Errorf("%q are left", left)
		}
	})
}

func TestWaitInsideDoTakesTheLockAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/l")
		c := zsync.NewCond(s, "/c", m)
		done := async(func() error { return m.Do(t.Context(), c.Wait) })
		pendingStill(t, done)
		must(t, c.Signal(t.Context()))
		must(t, <-done)
		wantErr(t, m.Unlock(), zsync.ErrNotLocked)
	})
}

func TestAWaiterIsWokenWhateverBefallsItsRequests(t *testing.T) {
	t.Parallel()
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		a, b, s := open(t, srv), open(t, srv), open(t, srv)
		ca := newCond(a)
		must(t, ca.L.Lock(t.Context()))
		arm(a)
		first := async(func() error { return errors.Join(ca.Wait(t.Context()), ignoreLost(ca.L.Unlock())) })
		time.Sleep(time.Second)
		second := async(func() error { return waitOnce(t.Context(), newCond(b)) })
		time.Sleep(3 * testTimeout) // by now it has had the lock
		// One for each. If the first has woken for nothing there is one too many.
		must(t, newCond(s).Signal(t.Context()))
		must(t, newCond(s).Signal(t.Context()))
		must(t, <-first)
		must(t, <-second)
		time.Sleep(5 * testTimeout)
		must(t, newCond(s).Signal(t.Context())) // to nobody: whatever is left is tidied up
		wantEmpty(t, s)
	})
}

func TestASignalPassesFromOneThatGivesUpWhateverBefallsItsRequests(t *testing.T) {
	t.Parallel()
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		a, b, s := open(t, srv), open(t, srv), open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		first := async(func() error { return waitOnce(ctx, newCond(a)) })
		synctest.Wait()
		second := async(func() error { return waitOnce(t.Context(), newCond(b)) })
		synctest.Wait()
		c := newCond(s)
		must(t, c.L.Lock(t.Context()))
		must(t, c.Signal(t.Context()))
		synctest.Wait() // the first is woken, and waits for the lock
		arm(a)
		cancel()
		begun := time.Now()
		wantErr(t, <-first, context.Canceled)
		if d := time.Since(begun); d > 100*time.Millisecond {
			t.Errorf("it took %v to give up", d)
		}
		must(t, c.L.Unlock())
		must(t, <-second)
		time.Sleep(5 * testTimeout)
		wantEmpty(t, s)
	})
}

func TestASignalToTheDeadIsPassedOnWhateverBefallsTheRequestsOfWhoDoesIt(t *testing.T) {
	t.Parallel()
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		ss, woken := sleepers(t, srv, 3)
		must(t, ss[2].Close()) // will not do it instead
		wantErr(t, <-woken[2], zsync.ErrClosed)
		srv.Partition(ss[0].ID())
		s := open(t, srv)
		must(t, newCond(s).Signal(t.Context()))
		arm(ss[1])
		err := <-woken[1]
		if errors.Is(err, zsync.ErrLost) && strings.HasPrefix(err.Error(), "zsync: unlock") {
			err = nil // it was woken, and its session ended as it unlocked
		}
		must(t, err)
		time.Sleep(5 * testTimeout)
		must(t, newCond(s).Signal(t.Context())) // to nobody: whatever is left is tidied up
		wantEmpty(t, s)
	})
}

func TestSignalWakesOneWhateverBefallsItsRequests(t *testing.T) {
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		ss, woken := sleepers(t, srv, 3)
		s := open(t, srv)
		arm(s)
		must(t, newCond(s).Signal(t.Context()))
		must(t, <-woken[0])
		time.Sleep(5 * testTimeout)
		pendingStill(t, woken[1])
		must(t, newCond(ss[0]).Broadcast(t.Context()))
		must(t, <-woken[1])
		must(t, <-woken[2])
		wantEmpty(t, ss[0])
	})
}

// The client has given its session up and signalled in the next, when the servers
// get what it sent in the first, which they have not given up yet.
func TestASignalThatComesLateFromAFormerSessionWakesNobody(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 3)
		s := open(t, srv)
		c := newCond(s)
		dir, mark, err := zsync.CondMark(t.Context(), c)
		must(t, err)
		id := s.ID()
		srv.Partition(id)
		_, err = txn.Across(t.Context(), inside.Manager(inside.Session(c)), dir, mark)
		must(t, err)
		must(t, <-woken[0])
		srv.Heal(id)
		time.Sleep(5 * testTimeout)
		pendingStill(t, woken[1])
		must(t, newCond(ss[0]).Broadcast(t.Context()))
		must(t, <-woken[1])
		must(t, <-woken[2])
		wantEmpty(t, s)
	})
}

func TestBroadcastWakesAllWhateverBefallsItsRequests(t *testing.T) {
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		ss, woken := sleepers(t, srv, 3)
		s := open(t, srv)
		arm(s)
		must(t, newCond(s).Broadcast(t.Context()))
		for _, w := range woken {
			must(t, <-w)
		}
		time.Sleep(5 * testTimeout)
		wantEmpty(t, ss[0])
	})
}

// ignoreLost drops ErrLost.
func ignoreLost(err error) error {
	if errors.Is(err, zsync.ErrLost) {
		return nil
	}
	return err
}

// The waiter looks for what it made by a part of the name, and the signal to it
// has a name much like it.
func TestASignalIsNotTakenForTheWaiterWhoseCreateHadNoReply(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		must(t, znodes.MakeDir(t.Context(), live(t, o), znodes.Dir{Path: "/c"}))
		id := s.ID()
		lost := first(zktest.DropReply, func(r zktest.Request) bool {
			return r.Session == id && r.Op == zktest.OpCreate && strings.HasPrefix(r.Path, "/c/")
		})
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpConnect {
				return zktest.Delay(time.Second)
			}
			return lost(r)
		})
		woken := async(func() error { return waitOnce(t.Context(), newCond(s)) })
		for len(childrenOf(t, o, "/c")) == 0 {
			time.Sleep(time.Millisecond)
		}
		sought := childrenOf(t, o, "/c")[0][:len("_c_")+36]
		must(t, newCond(o).Signal(t.Context()))
		found := 0
		for _, name := range childrenOf(t, o, "/c") { // in no order on real servers
			if strings.Contains(name, sought) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d names contain %q", found, sought)
		}
		must(t, <-woken)
		wantEmpty(t, o)
	})
}

func TestCondCosts(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ss, woken := sleepers(t, srv, 99)
		// The 100th: Lock 2 and Unlock 1; its create, the listing, its own znode,
		// and that of the one ahead.
		ss, last := append(ss, open(t, srv)), srv.Counts()
		woken = append(woken, async(func() error { return waitOnce(t.Context(), newCond(ss[99])) }))
		synctest.Wait()
		if d := srv.Counts().Sub(last); d.Total() != 7 || d.Notifications != 0 {
			t.Errorf("%d requests for a Wait: %v, and %d notifications", d.Total(), d.Requests, d.Notifications)
		}
		s := open(t, srv)
		c := newCond(s)
		before := srv.Counts()
		must(t, c.Signal(t.Context()))
		must(t, <-woken[0])
		synctest.Wait()
		d := srv.Counts().Sub(before)
		// To the one that is woken, and to the one behind it.
		if d.Notifications != 2 {
			t.Errorf("%d notifications for a Signal", d.Notifications)
		}
		// Signal 4, as it makes a log; Lock 2, Unlock 1, and 1 for the one that is
		// woken; 1 for the one behind it.
		if d.Total() != 9 {
			t.Errorf("%d requests for a Signal: %v", d.Total(), d.Requests)
		}
		before, own := srv.Counts(), s.Stats().Requests
		must(t, c.Broadcast(t.Context()))
		synctest.Wait()
		if n := s.Stats().Requests - own; n != 3 {
			t.Errorf("%d requests for a Broadcast to 99", n)
		}
		for _, w := range woken[1:] {
			must(t, <-w)
		}
		// Each of 99 is told once that it is woken, once that it has L, once that
		// it has given L up, and once that the one ahead has gone; but the first
		// needs not be told the second and the last.
		if d := srv.Counts().Sub(before); d.Notifications > 4*99 {
			t.Errorf("%d notifications for a Broadcast to 99", d.Notifications)
		}
		before = srv.Counts()
		must(t, c.Signal(t.Context()))
		if d := srv.Counts().Sub(before); d.Total() != 2 {
			t.Errorf("%d requests for a Signal to nobody", d.Total())
		}
	})
}

func TestCondRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx := t.Context()
		wantErr(t, zsync.NewCond(s, "/c", nil).Wait(ctx), zsync.ErrInvalid)
		wantErr(t, zsync.NewCond(s, "c", zsync.NewMutex(s, "/l")).Wait(ctx), zsync.ErrInvalid)
		wantErr(t, zsync.NewCond(s, "c", zsync.NewMutex(s, "/l")).Signal(ctx), zsync.ErrInvalid)
		wantErr(t, zsync.NewCond(nil, "/c", zsync.NewMutex(s, "/l")).Broadcast(ctx), zsync.ErrInvalid)
		m := zsync.NewMutex(s, "/l")
		must(t, m.Lock(ctx))
		wantErr(t, zsync.NewCond(s, "c", m).Wait(ctx), zsync.ErrInvalid) // the lock is given up, whatever the error
		wantErr(t, m.Unlock(), zsync.ErrNotLocked)
		c := zsync.NewCond(s, "/c", nil)
		for _, f := range []func(context.Context) error{c.Wait, c.Signal, c.Broadcast} {
			wantErr(t, f(ctx), zsync.ErrInvalid)
		}
		c.L = (*zsync.Mutex)(nil)
		for _, f := range []func(context.Context) error{c.Wait, c.Signal, c.Broadcast} {
			wantErr(t, f(ctx), zsync.ErrInvalid)
		}
		c.L = m // as with sync.Cond it can be set later
		must(t, c.Signal(ctx))
	})
}

// A bounded buffer among sessions: everything produced is consumed, and nobody
// sleeps for ever, which would show as a deadlock.
func TestCondCarriesABoundedBuffer(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		const items, capacity = 40, 2
		var buffer, consumed int // guarded by the Mutex
		var wg sync.WaitGroup
		for range 2 {
			s := connect()
			m := zsync.NewMutex(s, "/l", zsync.WithHandoffs(0))
			filled, emptied := zsync.NewCond(s, "/filled", m), zsync.NewCond(s, "/emptied", m)
			step := func(blocked func() bool, wait *zsync.Cond, act func(), wake *zsync.Cond) bool {
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return false
				}
				for blocked() {
					if err := wait.Wait(ctx); err != nil {
						t.Error(err)
						return false
					}
				}
				act()
				if err := errors.Join(wake.Signal(ctx), m.Unlock()); err != nil {
					t.Error(err)
					return false
				}
				return true
			}
			wg.Go(func() {
				for range items / 2 {
					if !step(func() bool { return buffer == capacity }, emptied, func() { buffer++ }, filled) {
						return
					}
				}
			})
			wg.Go(func() {
				for range items / 2 {
					if !step(func() bool { return buffer == 0 }, filled, func() { buffer--; consumed++ }, emptied) {
						return
					}
				}
			})
		}
		wg.Wait()
		if consumed != items || buffer != 0 {
			t.Errorf("%d consumed, %d left; want %d, 0", consumed, buffer, items)
		}
	})
}

// A Do whose Cond.Wait has failed holds nothing any more, and must not give up
// what another goroutine has got by then.
func TestDoWhoseWaitFailedGivesUpNothingOfOthers(t *testing.T) {
	for _, early := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, elsewhere := open(t, srv), open(t, srv)
			m := zsync.NewMutex(s, "/l")
			c := zsync.NewCond(s, "/c", m)
			ctx, cancel := context.WithCancel(t.Context())
			inside := make(chan struct{})
			second := func() error {
				return m.Do(t.Context(), func(ctx context.Context) error {
					close(inside)
					time.Sleep(10 * time.Second)
					return ctx.Err()
				})
			}
			var b <-chan error
			a := async(func() error {
				return m.Do(ctx, func(ctx context.Context) error {
					if early { // it queues before the lock is given up
						b = async(second)
						synctest.Wait()
					}
					return c.Wait(ctx)
				})
			})
			time.Sleep(time.Second)
			if !early {
				b = async(second)
			}
			<-inside
			cancel()
			err := <-a
			wantErr(t, err, context.Canceled, zsync.ErrNotLocked)
			if ok, err := zsync.NewMutex(elsewhere, "/l").TryLock(t.Context()); ok || err != nil {
				t.Errorf("TryLock while a Do runs = %v, %v", ok, err)
			}
			must(t, <-b)
		})
	}
}

// After a Wait that failed, a Do holds nothing. A second Wait with its context must not give up the hold
// of another Do.
func TestASecondWaitOfADoWhoseWaitFailedGivesUpNothingOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, elsewhere := open(t, srv), open(t, srv)
		m := zsync.NewMutex(s, "/l")
		c := zsync.NewCond(s, "/c", m)
		inside := make(chan struct{})
		var other <-chan error
		err := m.Do(t.Context(), func(ctx context.Context) error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			other = async(func() error {
				return m.Do(t.Context(), func(ctx context.Context) error {
					close(inside)
					time.Sleep(10 * time.Second)
					return ctx.Err()
				})
			})
			wantErr(t, c.Wait(short), context.DeadlineExceeded)
			<-inside
			again, stop := context.WithTimeout(ctx, time.Second)
			defer stop()
			wantErr(t, c.Wait(again), zsync.ErrNotLocked)
			return nil
		})
		wantErr(t, err, zsync.ErrNotLocked)
		if ok, err := zsync.NewMutex(elsewhere, "/l").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock while a Do runs = %v, %v", ok, err)
		}
		must(t, <-other)
	})
}

func TestWhatWaitTakesAgainBelongsToItsDo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/l")
		c := zsync.NewCond(s, "/c", rw)
		done := async(func() error {
			return rw.Do(t.Context(), func(ctx context.Context) error {
				must(t, c.Wait(ctx))
				ran := 0
				run := func(context.Context) error { ran++; return nil }
				must(t, rw.Do(ctx, run))
				must(t, rw.RDo(ctx, run))
				wantErr(t, rw.RLock(ctx), zsync.ErrDeadlock)
				if ran != 2 {
					t.Errorf("%d of 2 have run", ran)
				}
				return nil
			})
		})
		pendingStill(t, done)
		must(t, c.Signal(t.Context()))
		must(t, <-done)
		wantErr(t, rw.Unlock(), zsync.ErrNotLocked)
	})
}

func TestMutexDoInsideOnceOfItsPath(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ran := false
		must(t, zsync.NewOnce(s, "/x").Do(t.Context(), func(ctx context.Context) error {
			return zsync.NewMutex(s, "/x").Do(ctx, func(context.Context) error { ran = true; return nil })
		}))
		if !ran {
			t.Error("it has not run")
		}
	})
}

// The ctx of Wait is that of a Do of another lock, which gives itself up while the
// reply to the Unlock of L is late.
func TestWaitWhoseContextEndsWithALossOfAnotherLockWhileItUnlocks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		outer := zsync.NewMutex(s, "/outer", zsync.WithMaxHold(time.Second))
		c := newCond(s)
		done := async(func() error {
			return outer.Do(t.Context(), func(ctx context.Context) (err error) {
				defer func() {
					if p := recover(); p != nil {
						err = fmt.Errorf("Wait panicked: %v\n%s", p, debug.Stack())
					}
				}()
				if err := c.L.Lock(ctx); err != nil {
					return err
				}
				time.Sleep(900 * time.Millisecond)
				srv.Intercept(first(zktest.Delay(200*time.Millisecond), op(zktest.OpDelete)))
				return c.Wait(ctx)
			})
		})
		err := <-done
		t.Logf("%v", err)
		if strings.Contains(err.Error(), "panicked") {
			t.Error("Wait panicked")
		}
		wantErr(t, err, context.Canceled)
		synctest.Wait()
	})
}

// slowCtx is a context whose values are slow to read.
type slowCtx struct{ context.Context }

func (s slowCtx) Value(key any) any {
	time.Sleep(100 * time.Millisecond)
	return s.Context.Value(key)
}

// A Wait whose context has ended returns though what it gives up is not given up yet. By then
// the Do may be over, and another goroutine may have the lock.
func TestAWaitThatWasCancelledGivesUpTheHoldOfItsDoAlone(t *testing.T) {
	cancelled := func(cond *zsync.Cond) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(slowCtx{ctx})
			cancel()
			return cond.Wait(ctx)
		}
	}
	t.Run("Do", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			m, other := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
			wantErr(t, m.Do(t.Context(), cancelled(zsync.NewCond(a, "/c", m))), context.Canceled)
			must(t, m.Lock(t.Context()))
			got := async(func() error { return other.Lock(t.Context()) })
			time.Sleep(time.Second)
			pendingStill(t, got)
			must(t, m.Unlock())
			must(t, <-got)
		})
	})
	t.Run("RDo", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			rw, other := zsync.NewRWMutex(a, "/rw"), zsync.NewRWMutex(b, "/rw")
			wantErr(t, rw.RDo(t.Context(), cancelled(zsync.NewCond(a, "/c", rw.RLocker()))), context.Canceled)
			must(t, rw.RLock(t.Context()))
			got := async(func() error { return other.Lock(t.Context()) })
			time.Sleep(time.Second)
			pendingStill(t, got)
			must(t, rw.RUnlock())
			must(t, <-got)
		})
	})
}

// Another program's znode, whose name ends like a waiter's but has no "_c_", must not hang the Cond.
func TestAZnodeOfAnotherProgramIsNoWaiterOfACond(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		s := open(t, srv)
		suite.Create(t, s, "/c", "")
		suite.Create(t, s, "/c/x-wait-0000000000", "")
		m := zsync.NewMutex(s, "/m")
		c := zsync.NewCond(s, "/c", m)
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := c.Signal(ctx)
			cancel()
			if err != nil {
				t.Fatalf("Signal %d: %v", i, err)
			}
		}
	})
}

// After a Wait that failed, what Do's context names is no hold. The methods with that context must not use
// the hold of another Do.
func TestADoWhoseWaitFailedUsesNoHoldOfAnotherDo(t *testing.T) {
	refused := func(t *testing.T, what string, err error) {
		t.Helper()
		if !errors.Is(err, zsync.ErrNotLocked) {
			t.Errorf("%s = %v, want ErrNotLocked", what, err)
		}
	}
	write := func(path string) any { return &zk.CreateRequest{Path: path} }
	t.Run("Mutex", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := zsync.NewMutex(s, "/l")
			c := zsync.NewCond(s, "/c", m)
			other, release := failedWait(t, c, m.Do, func(ctx context.Context) {
				_, err := m.Token(ctx)
				refused(t, "Token", err)
				_, err = m.Txn(ctx, write("/x"))
				refused(t, "Txn", err)
			})
			release()
			must(t, <-other)
			// What it locks itself is its own, and what others lock without Do cannot be told from it.
			err := m.Do(t.Context(), func(ctx context.Context) error {
				must(t, m.Unlock())
				must(t, m.Lock(ctx))
				_, err := m.Token(ctx)
				must(t, err)
				_, err = m.Txn(ctx, write("/x"))
				must(t, err)
				return m.Unlock()
			})
			refused(t, "Do", err)
		})
	})
	t.Run("RWMutex", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			rw := zsync.NewRWMutex(s, "/l")
			c := zsync.NewCond(s, "/c", rw)
			other, release := failedWait(t, c, rw.Do, func(ctx context.Context) {
				_, err := rw.Token(ctx)
				refused(t, "Token", err)
				_, err = rw.Txn(ctx, write("/x"))
				refused(t, "Txn", err)
				refused(t, "Downgrade", rw.Downgrade(ctx))
			})
			if ok, err := zsync.NewRWMutex(open(t, srv), "/l").TryRLock(t.Context()); ok || err != nil {
				t.Errorf("TryRLock while a Do writes = %v, %v", ok, err)
			}
			release()
			must(t, <-other)
		})
	})
}

// failedWait calls f inside a Do whose Wait has failed, while another Do has the lock. The other Do
// ends after release.
func failedWait(t *testing.T, c *zsync.Cond, do func(context.Context, func(context.Context) error) error, f func(ctx context.Context)) (other <-chan error, release func()) {
	inside, leave := make(chan struct{}), make(chan struct{})
	wantErr(t, do(t.Context(), func(ctx context.Context) error {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		other = async(func() error {
			return do(t.Context(), func(context.Context) error {
				close(inside)
				<-leave
				return nil
			})
		})
		wantErr(t, c.Wait(short), context.DeadlineExceeded)
		<-inside
		f(ctx)
		return nil
	}), zsync.ErrNotLocked)
	return other, func() { close(leave) }
}
