package locks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// These tests are of claims and grants: what a goroutine is told of the lock that
// it has, what becomes of a lock that nobody was given, and whose znode it is.

// The znode of one who waits is deleted, and the one ahead with it: it has been told
// of both when it looks, and its server fails. Both stand in the line anew, and
// whoever is the first there alone holds, though the other's server lags.
//
// Both go in one transaction, and its events come one after the other: between them
// the waiter is granted the lock, as the one ahead of it has gone and nothing tells
// that it has not stood then. Such a hold is that of somebody whose znode a stranger
// deletes: it is told to be lost, at the latest when its connection is back.
func TestOneHolderWhenTheServerFailsBehindTheNotificationAndTheNextLags(t *testing.T) {
	for _, first := range []string{"the holder", "the waiter"} {
		t.Run(first, func(t *testing.T) {
			var late atomic.Int64 // the waiter's session, whose creates come second
			hook := func(r zktest.Request) {
				if r.Session == late.Load() && (r.Op == zktest.OpCreate || r.Op == zktest.OpCreate2 || r.Op == zktest.OpMulti) {
					time.Sleep(time.Second)
				}
			}
			suite.AfterEvent(t, hook, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
				mp, mw := zsync.NewMutex(p, "/m"), zsync.NewMutex(w, "/m")
				harness.Must(t, mp.Lock(t.Context()))
				gotW := harness.Async(func() error { return mw.Lock(t.Context()) })
				synctest.Wait()
				if first == "the holder" {
					late.Store(w.ID())
				}
				mend := strike()
				var ops []any
				for _, name := range suite.ChildrenOf(t, p, "/m") {
					ops = append(ops, &zk.DeleteRequest{Path: "/m/" + name, Version: -1})
				}
				_, err := p.Txn(t.Context(), ops...)
				harness.Must(t, err)
				harness.WantErr(t, mp.Unlock(), zsync.ErrLost)
				if first == "the waiter" {
					time.Sleep(100 * time.Millisecond) // it has made its znode
					gotP := harness.Async(func() error { return mp.Lock(t.Context()) })
					harness.Must(t, <-gotW)
					token := harness.Async(func() error { _, err := mw.Token(t.Context()); return err })
					txn := harness.Async(func() error { _, err := mw.Txn(t.Context(), &zk.CreateRequest{Path: "/written"}); return err })
					mend()
					time.Sleep(time.Second)
					if harness.Closed(mw.Lost()) { // granted a moment before it was told that its znode is gone
						harness.WantErr(t, <-token, zsync.ErrLost)
						harness.WantErr(t, <-txn, zsync.ErrLost)
						harness.WantErr(t, mw.Unlock(), zsync.ErrLost)
						harness.Must(t, <-gotP)
						harness.Must(t, mp.Unlock())
						return
					}
					harness.Must(t, <-token)
					harness.Must(t, <-txn)
					harness.PendingStill(t, gotP)
					harness.Must(t, mw.Unlock())
					harness.Must(t, <-gotP)
					harness.Must(t, mp.Unlock())
					return
				}
				harness.Must(t, mp.Lock(t.Context()))
				time.Sleep(5 * time.Second)
				select {
				case err := <-gotW: // granted a moment before it was told that its znode is gone
					harness.Must(t, err)
					harness.WantErr(t, mw.Unlock(), zsync.ErrLost)
					gotW = harness.Async(func() error { return mw.Lock(t.Context()) })
					time.Sleep(time.Second)
				default:
				}
				harness.PendingStill(t, gotW)
				mend()
				time.Sleep(time.Second)
				harness.PendingStill(t, gotW)
				harness.Must(t, mp.Unlock())
				harness.Must(t, <-gotW)
				harness.Must(t, mw.Unlock())
			})
		})
	}
}

func TestHoldWhoseZnodeIsDeletedIsToldAtOnce(t *testing.T) {
	for name, wait := range map[string]bool{"free": false, "after a wait": true} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				m, rw, e := zsync.NewMutex(a, "/m"), zsync.NewRWMutex(a, "/rw"), zsync.NewElection(a, "/e")
				sem, permit := zsync.NewSemaphore(a, "/s", 1), zsync.NewSemaphore(b, "/s", 1)
				holder, writer, leader := zsync.NewMutex(b, "/m"), zsync.NewRWMutex(b, "/rw"), zsync.NewElection(b, "/e")
				if wait {
					harness.Must(t, holder.Lock(t.Context()))
					harness.Must(t, writer.Lock(t.Context()))
					harness.Must(t, leader.Campaign(t.Context()))
					harness.Must(t, permit.Acquire(t.Context(), 1))
				}
				ended := make(chan error, 2)
				f := func(ctx context.Context) error {
					<-ctx.Done()
					ended <- context.Cause(ctx)
					return nil
				}
				did := harness.Async(func() error { return m.Do(t.Context(), f) })
				semDid := harness.Async(func() error { return sem.Do(t.Context(), 1, f) })
				reads := harness.Async(func() error { return rw.RLock(t.Context()) })
				leads := harness.Async(func() error { return e.Campaign(t.Context()) })
				synctest.Wait()
				if wait {
					harness.Must(t, holder.Unlock())
					harness.Must(t, writer.Unlock())
					harness.Must(t, leader.Resign())
					harness.Must(t, permit.Release(1))
				}
				harness.Must(t, <-reads)
				harness.Must(t, <-leads)
				time.Sleep(time.Minute)
				lost := sem.Lost()
				if harness.Closed(lost) {
					t.Error("Lost of permits is closed before")
				}
				for _, path := range []string{"/m", "/rw", "/e", "/s/leases"} {
					suite.DeleteContender(t, b, path, 0)
				}
				synctest.Wait() // no time passes: it is the notification
				if n := len(ended); n != 2 {
					t.Fatalf("%d contexts of Do have ended, want 2", n)
				}
				for range 2 {
					if why := <-ended; suite.LossOf(why) != zsync.LossDeleted {
						t.Errorf("the context of Do ends with %v", why)
					}
				}
				for _, did := range []<-chan error{did, semDid} {
					if err := <-did; suite.LossOf(err) != zsync.LossDeleted {
						t.Errorf("Do: %v", err)
					}
				}
				if !harness.Closed(rw.Lost()) || !harness.Closed(e.Lost()) || !harness.Closed(lost) {
					t.Errorf("Lost of a reader closed: %v; of a leader: %v; of permits: %v", harness.Closed(rw.Lost()), harness.Closed(e.Lost()), harness.Closed(lost))
				}
				if err := rw.RUnlock(); suite.LossOf(err) != zsync.LossDeleted {
					t.Errorf("RUnlock: %v", err)
				}
				if err := e.Resign(); suite.LossOf(err) != zsync.LossDeleted {
					t.Errorf("Resign: %v", err)
				}
			})
		})
	}
}

func TestWhatIsUnlockedInOrderIsNeverToldToBeLost(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		first := m.Lost()
		next := harness.Async(func() error { return m.Lock(t.Context()) })
		synctest.Wait()
		harness.Must(t, m.Unlock()) // handed over in the process: the znode stays
		harness.Must(t, <-next)
		second := m.Lost()
		srv.Expire(s.ID())
		time.Sleep(2 * harness.Timeout)
		if harness.Closed(first) || !harness.Closed(second) {
			t.Errorf("Lost of the first, who had unlocked it, closed: %v; of the second, who held it: %v", harness.Closed(first), harness.Closed(second))
		}
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		// And its own deletion is no loss.
		harness.Must(t, m.Lock(t.Context()))
		third := m.Lost()
		time.Sleep(time.Second) // it is watched
		harness.Must(t, m.Unlock())
		time.Sleep(time.Second)
		if harness.Closed(third) {
			t.Error("Unlock is taken for a loss")
		}
	})
}

func TestWaitInsideDoIsNotToldOfTheLossOfAnotherAndDoIsToldOfItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, c := zsync.NewMutex(a, "/m"), zsync.NewCond(a, "/c", nil)
		c.L = m
		waited := make(chan error, 1)
		did := harness.Async(func() error {
			return m.Do(t.Context(), func(ctx context.Context) error {
				waited <- c.Wait(ctx)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		time.Sleep(time.Second)
		harness.Must(t, m.Lock(t.Context())) // in the hands of another goroutine
		srv.Expire(a.ID())
		time.Sleep(harness.Timeout / 2)
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, <-waited) // woken for nothing, and L is held again
		time.Sleep(time.Second)
		if ok, err := zsync.NewMutex(b, "/m").TryLock(t.Context()); ok || err != nil {
			t.Fatalf("TryLock elsewhere, beside the Do: %v, %v", ok, err)
		}
		srv.Expire(a.ID())
		harness.WantErr(t, <-did, zsync.ErrLost) // the context has ended with what Wait has got again
	})
}

func TestWaitInsideRDoGivesUpTheReadLockOfItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		rw := zsync.NewRWMutex(a, "/rw", zsync.WithHandoffs(0)) // each reader has a znode
		harness.Must(t, rw.RLock(t.Context()))                  // another goroutine's
		c := zsync.NewCond(a, "/c", rw.RLocker())
		harness.Must(t, rw.RDo(t.Context(), func(ctx context.Context) error {
			harness.Must(t, zsync.NewCond(b, "/c", zsync.NewMutex(b, "/x")).Signal(ctx)) // nobody waits yet
			woken := harness.Async(func() error { return c.Wait(ctx) })
			time.Sleep(time.Second)
			if n := len(suite.ChildrenOf(t, b, "/rw")); n != 1 {
				t.Errorf("%d readers while one of two waits, want 1", n)
			}
			harness.Must(t, zsync.NewCond(b, "/c", zsync.NewMutex(b, "/x")).Signal(ctx))
			harness.Must(t, <-woken)
			if n := len(suite.ChildrenOf(t, b, "/rw")); n != 2 {
				t.Errorf("%d readers after the wait, want 2", n)
			}
			return nil
		}))
		harness.Must(t, rw.RUnlock()) // that of the other goroutine is still there
		harness.WantErr(t, rw.RUnlock(), zsync.ErrNotLocked)
	})
}

func TestNestedDoTellsWhatWasLostWhileItRan(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(a, "/m")
		var inner error
		harness.WantErr(t, m.Do(t.Context(), func(ctx context.Context) error {
			inner = m.Do(ctx, func(context.Context) error {
				srv.Expire(a.ID())
				time.Sleep(2 * harness.Timeout)
				return nil
			})
			return nil
		}), zsync.ErrLost)
		harness.WantErr(t, inner, zsync.ErrLost)
		// And that the outer one has ended meanwhile.
		var outlives <-chan error
		harness.Must(t, m.Do(t.Context(), func(ctx context.Context) error {
			in := make(chan struct{})
			outlives = harness.Async(func() error {
				return m.Do(ctx, func(context.Context) error { close(in); time.Sleep(time.Minute); return nil })
			})
			<-in
			return nil
		}))
		harness.Must(t, zsync.NewMutex(b, "/m").Lock(harness.Within(t, time.Second)))
		harness.WantErr(t, <-outlives, zsync.ErrNotLocked)
	})
}

func TestWhatWasUnlockedInsideDoCanBeLockedAgain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m, rw := zsync.NewMutex(suite.Open(t, srv), "/m"), zsync.NewRWMutex(suite.Open(t, srv), "/rw")
		harness.WantErr(t, m.Do(t.Context(), func(ctx context.Context) error {
			_, err := m.TryLock(ctx)
			harness.WantErr(t, err, zsync.ErrDeadlock)
			harness.Must(t, m.Unlock())
			return m.Lock(ctx)
		}), zsync.ErrNotLocked) // what it had is gone; what was locked by hand stays
		harness.Must(t, m.Unlock())
		harness.WantErr(t, rw.Do(t.Context(), func(ctx context.Context) error {
			harness.Must(t, rw.Unlock())
			return rw.RLock(ctx)
		}), zsync.ErrNotLocked)
		harness.Must(t, rw.RUnlock())
	})
}

func TestLateResignOfALostLeadershipTellsWhoLeadsNow(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		e := zsync.NewElection(a, "/e")
		harness.Must(t, e.Campaign(t.Context())) // one goroutine
		srv.Expire(a.ID())
		time.Sleep(2 * harness.Timeout)
		harness.Must(t, e.Campaign(t.Context())) // another
		lost := e.Lost()
		harness.Must(t, e.Resign()) // whose?
		if !harness.Closed(lost) {
			t.Error("who leads is not told that he has been resigned")
		}
		harness.Must(t, e.Campaign(t.Context())) // a third
		lost = e.Lost()
		harness.Must(t, e.Resign()) // the second's own, as late
		if !harness.Closed(lost) {
			t.Error("the third is not told that he has been resigned")
		}
		harness.WantErr(t, e.Resign(), zsync.ErrNotLocked) // the third's, or a second one of somebody who makes sure
		harness.Must(t, e.Campaign(t.Context()))
		lost = e.Lost()
		harness.Must(t, e.Resign()) // the first's, at last
		if !harness.Closed(lost) {
			t.Error("the fourth is not told that he has been resigned")
		}
		harness.Must(t, zsync.NewElection(b, "/e").Campaign(harness.Within(t, time.Second)))
		// Without a loss before, Resign closes nothing.
		e = zsync.NewElection(b, "/f")
		harness.Must(t, e.Campaign(t.Context()))
		lost = e.Lost()
		harness.Must(t, e.Resign())
		time.Sleep(time.Minute)
		if harness.Closed(lost) {
			t.Error("Lost is closed by Resign")
		}
	})
}

func TestNoHandoverOnAZnodeThatIsGone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(a, "/m", zsync.WithHandoffs(2))
		harness.Must(t, m.Lock(t.Context()))
		var holders, most atomic.Int64
		var all []<-chan error
		for range 40 {
			all = append(all, harness.Async(func() error {
				for {
					if err := m.Lock(t.Context()); err != nil {
						return err
					}
					harness.Raise(&most, holders.Add(1))
					time.Sleep(time.Second)
					holders.Add(-1)
					if err := m.Unlock(); !errors.Is(err, zsync.ErrLost) {
						return err
					}
				}
			}))
		}
		time.Sleep(time.Second)
		suite.DeleteContender(t, b, "/m", 0)
		synctest.Wait()
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		mb := zsync.NewMutex(b, "/m")
		harness.Must(t, mb.Lock(t.Context()))
		if n := holders.Add(1); n > 1 {
			t.Errorf("%d hold it", n)
		}
		time.Sleep(10 * time.Second)
		if n := holders.Add(-1); n > 0 {
			t.Errorf("%d others held it", n)
		}
		harness.Must(t, mb.Unlock())
		for _, done := range all {
			harness.Must(t, <-done)
		}
		if most.Load() > 1 {
			t.Errorf("%d held it at once", most.Load())
		}
	})
}

func TestTokenOfAnEarlierHoldIsNeverGreaterThoughItsReplyIsLate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMutex(suite.Open(t, srv), "/m")
		harness.Must(t, m.Lock(t.Context()))
		next := harness.Async(func() error { return m.Lock(t.Context()) })
		synctest.Wait()
		var sets atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData && sets.Add(1) <= 4 {
				return zktest.DropReply
			}
			return zktest.Pass
		})
		var early int64
		asked := harness.Async(func() (err error) { early, err = m.Token(t.Context()); return err })
		for sets.Load() < 4 {
			time.Sleep(50 * time.Microsecond)
		}
		harness.Must(t, m.Unlock()) // while the question is open
		harness.Must(t, <-next)
		late, err := m.Token(t.Context())
		harness.Must(t, err)
		if err := <-asked; err == nil && early >= late {
			t.Errorf("the token of the earlier hold is %d, that of the later %d", early, late)
		} else if err != nil {
			harness.WantErr(t, err, zsync.ErrNotLocked)
		}
	})
}

func TestLockAllTakesAgainAReadLockThatWasLostWhileItWaited(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		rw, m := zsync.NewRWMutex(a, "/a"), zsync.NewMutex(a, "/b")
		blocker, writer := zsync.NewMutex(b, "/b"), zsync.NewRWMutex(b, "/a")
		harness.Must(t, blocker.Lock(t.Context()))
		var unlock func() error
		got := harness.Async(func() (err error) { unlock, err = zsync.LockAll(t.Context(), rw.RLocker(), m); return err })
		synctest.Wait()
		srv.Expire(a.ID())
		time.Sleep(2 * harness.Timeout)
		if ok, err := writer.TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock elsewhere = %v, %v; want the read lock to be taken again", ok, err)
		}
		harness.PendingStill(t, got)
		harness.Must(t, blocker.Unlock())
		harness.Must(t, <-got)
		harness.Must(t, unlock())
	})
}

// lockAllWaits begins a LockAll of s, which locks /a and waits for /b, a lock of the session other.
func lockAllWaits(t *testing.T, ctx context.Context, s, other *zsync.Session) <-chan error {
	t.Helper()
	harness.Must(t, zsync.NewMutex(other, "/b").Lock(t.Context()))
	got := harness.Async(func() error {
		_, err := zsync.LockAll(ctx, zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"))
		return err
	})
	harness.PendingStill(t, got)
	return got
}

func TestLockAllEndsWithItsContextThoughNothingIsAnswered(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		got := lockAllWaits(t, ctx, a, b)
		id := a.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpDelete {
				return zktest.Hang
			}
			return zktest.Pass
		})
		start := time.Now()
		cancel()
		harness.WantErr(t, <-got, context.Canceled)
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

// slowLocker is a Locker that takes its time.
type slowLocker struct{ *zsync.Mutex }

func (s slowLocker) Lock(ctx context.Context) error {
	err := s.Mutex.Lock(ctx)
	time.Sleep(time.Second)
	return err
}

func TestLockAllHasOneOrderBelowAllChroots(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		below := func(chroot string) *zsync.Session {
			s, err := zsync.Connect(t.Context(), srv.Addr()+chroot, zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(harness.Timeout))
			harness.Must(t, err)
			t.Cleanup(func() { s.Close() })
			return s
		}
		p, q, root := below("/p"), below("/q"), below("")
		all := func(ls ...zsync.Locker) <-chan error {
			return harness.Async(func() error {
				unlock, err := zsync.LockAll(harness.Within(t, time.Hour), ls...)
				if err != nil {
					return err
				}
				return unlock()
			})
		}
		first := all(slowLocker{zsync.NewMutex(p, "/z")}, slowLocker{zsync.NewMutex(q, "/a")})
		second := all(slowLocker{zsync.NewMutex(root, "/p/z")}, slowLocker{zsync.NewMutex(root, "/q/a")})
		harness.Must(t, <-first)
		harness.Must(t, <-second)
		_, err := zsync.LockAll(t.Context(), zsync.NewMutex(p, "/z"), zsync.NewMutex(root, "/p/z"))
		harness.WantErr(t, err, zsync.ErrDeadlock)
		unlock, err := zsync.LockAll(t.Context(), zsync.NewMutex(p, "/z"), zsync.NewMutex(q, "/z"))
		harness.Must(t, err)
		harness.Must(t, unlock())
	})
}

func TestNobodyElseWaitsForALockThatNobodyWasGiven(t *testing.T) {
	type waiter struct {
		name   string
		locker func(t *testing.T, s *zsync.Session) (held, wanted zsync.Locker, lost <-chan struct{})
	}
	for _, c := range []waiter{
		{"Mutex", func(t *testing.T, s *zsync.Session) (zsync.Locker, zsync.Locker, <-chan struct{}) {
			m := zsync.NewMutex(s, "/m", zsync.WithHandoffs(0))
			harness.Must(t, m.Lock(t.Context()))
			return m, m, m.Lost()
		}},
		{"RWMutex", func(t *testing.T, s *zsync.Session) (zsync.Locker, zsync.Locker, <-chan struct{}) {
			m := zsync.NewRWMutex(s, "/m")
			harness.Must(t, m.RLock(t.Context()))
			return m.RLocker(), m, m.Lost()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				held, wanted, lost := c.locker(t, a)
				second := harness.Async(func() error { return wanted.Lock(t.Context()) })
				synctest.Wait()
				srv.Expire(a.ID())
				<-lost // and its goroutine does something else
				time.Sleep(harness.Timeout / 2)
				var other zsync.Locker = zsync.NewMutex(b, "/m")
				if c.name == "RWMutex" {
					other = zsync.NewRWMutex(b, "/m")
				}
				harness.Must(t, other.Lock(harness.Within(t, time.Second)))
				harness.Must(t, other.Unlock())
				harness.PendingStill(t, second)
				harness.WantErr(t, held.Unlock(), zsync.ErrLost)
				harness.Must(t, <-second)
				harness.Must(t, wanted.Unlock())
			})
		})
	}
}

func TestWaiterWhoseZnodeIsDeletedStandsInTheLineAgainAtOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		ma, mb, mc := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m"), zsync.NewMutex(c, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		gotB := harness.Async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		suite.DeleteContender(t, a, "/m", 1)
		synctest.Wait()
		if n := len(suite.ChildrenOf(t, a, "/m")); n != 2 {
			t.Errorf("%d in the line, want the holder and the waiter", n)
		}
		gotC := harness.Async(func() error { return mc.Lock(t.Context()) })
		synctest.Wait()
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-gotB) // which came before c
		harness.PendingStill(t, gotC)
		harness.Must(t, mb.Unlock())
		harness.Must(t, <-gotC)
	})
}

func TestHandoverToAnotherProcessCostsOneNotificationAndNoRequest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		got := harness.Async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		before := b.Stats().Requests
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-got)
		synctest.Wait()
		if n := b.Stats().Requests - before; n != 0 {
			t.Errorf("%d requests", n)
		}
		harness.Must(t, mb.Unlock())
		// On another connection nothing is believed unseen.
		harness.Must(t, ma.Lock(t.Context()))
		got = harness.Async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		srv.Disconnect(b.ID())
		time.Sleep(900 * time.Millisecond) // the wait is not long: see WaitError
		before = b.Stats().Requests
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-got)
		// A look; and, behind the grant, what confirms the session on the new
		// connection, which is asked for when something begins to be held.
		synctest.Wait()
		if n := b.Stats().Requests - before; n != 2 {
			t.Errorf("%d requests after the connection was replaced, want 2", n)
		}
	})
}

func TestContenderThatMayNotBeDeletedGoesWithItsSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		other := b.ID()
		elsewhere := zsync.NewMutex(a, "/elsewhere")
		harness.Must(t, elsewhere.Lock(t.Context()))
		harness.Must(t, zsync.NewMutex(b, "/m").Lock(t.Context()))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == other:
			case r.Op == zktest.OpGetChildren2 && r.Path == "/m", r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/m/"), r.Op == zktest.OpMulti:
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		if err := zsync.NewMutex(a, "/m").Lock(harness.Within(t, time.Minute)); err == nil {
			t.Fatal("locked")
		}
		refused := time.Now()
		// It is lost before another can have it.
		<-elsewhere.Lost()
		told := time.Now()
		harness.Must(t, zsync.NewMutex(b, "/elsewhere").Do(t.Context(), func(context.Context) error { return nil }))
		if took := time.Since(told); took < harness.Timeout/10 {
			t.Errorf("it was granted to another %v after its holder was told", took)
		}
		if took := told.Sub(refused); took > harness.Timeout+time.Second {
			t.Errorf("the session is given up after %v, want a session timeout", took)
		}
		if why := suite.LossOf(elsewhere.Unlock()); why != zsync.LossGivenUp {
			t.Errorf("what was held elsewhere is lost for %v", why)
		}
		if n := len(suite.ChildrenOf(t, b, "/m")); n != 1 {
			t.Errorf("%d in the line, want the holder alone", n)
		}
	})
}

func TestForgedNumberCostsNobodyMoreThanAPlaceInTheLine(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		inc := inside.Live(t, b)
		for i := range 300 {
			_, err := znodes.Create(t.Context(), inc, fmt.Sprintf("/m/%d-lock-2147483647", i), nil)
			harness.Must(t, err)
		}
		before := a.Stats().Requests
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		if n := a.Stats().Requests - before; n > 3 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestNobodyEntersBehindAContenderOfAnotherKind(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		type kind struct {
			name   string
			lock   func(s *zsync.Session) error
			try    func(s *zsync.Session) error
			unlock func() error
		}
		mutex := func(opts ...zsync.LockOption) kind {
			var held *zsync.Mutex
			return kind{"Mutex", func(s *zsync.Session) error { held = zsync.NewMutex(s, "/p", opts...); return held.Lock(t.Context()) },
				func(s *zsync.Session) error {
					_, err := zsync.NewMutex(s, "/p", opts...).TryLock(t.Context())
					return err
				},
				func() error { return held.Unlock() }}
		}
		rw := func(opts ...zsync.LockOption) kind {
			var held *zsync.RWMutex
			return kind{"RWMutex", func(s *zsync.Session) error {
				held = zsync.NewRWMutex(s, "/p", opts...)
				return held.RLock(t.Context())
			},
				func(s *zsync.Session) error {
					_, err := zsync.NewRWMutex(s, "/p", opts...).TryRLock(t.Context())
					return err
				},
				func() error { return held.RUnlock() }}
		}
		election := func(opts ...zsync.ElectionOption) kind {
			var held *zsync.Election
			campaign := func(s *zsync.Session) error {
				held = zsync.NewElection(s, "/p", opts...)
				return held.Campaign(harness.Within(t, time.Second))
			}
			return kind{"Election", campaign, campaign, func() error { return held.Resign() }}
		}
		kinds := []kind{mutex(), mutex(zsync.WithLayout(zsync.LayoutKazoo)), rw(), election()}
		for i, held := range kinds {
			for j, wanted := range kinds {
				if i == j {
					continue
				}
				harness.Must(t, held.lock(a))
				harness.WantErr(t, wanted.try(b), zsync.ErrMixed)
				unlock := held.unlock
				if err := wanted.lock(b); !errors.Is(err, zsync.ErrMixed) {
					t.Errorf("%s beside %s (%d, %d): %v", wanted.name, held.name, j, i, err)
				}
				harness.Must(t, unlock())
				if n := suite.ChildrenOf(t, b, "/p"); len(n) > 0 {
					t.Errorf("%v are left", n)
				}
			}
		}
		// Those that keep each other out share a path.
		selector := election(zsync.WithLayout(zsync.LayoutSelector))
		harness.Must(t, selector.lock(a))
		ok, err := zsync.NewMutex(b, "/p").TryLock(t.Context())
		if ok || err != nil {
			t.Errorf("TryLock beside a LeaderSelector: %v, %v", ok, err)
		}
		harness.Must(t, selector.unlock())
	})
}

func TestRefusedContenderOfAnotherKindHurtsNobodyWhoWaits(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		holder, m := zsync.NewMutex(a, "/p"), zsync.NewMutex(b, "/p")
		harness.Must(t, holder.Lock(t.Context()))
		got := harness.Async(func() error { return m.Lock(t.Context()) })
		synctest.Wait()
		harness.WantErr(t, zsync.NewElection(a, "/p").Campaign(t.Context()), zsync.ErrMixed)
		harness.Must(t, holder.Unlock())
		harness.Must(t, <-got)
		harness.Must(t, m.Unlock())
	})
}
