package locks

import (
	"context"
	"fmt"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/verify"
	"github.com/zsync/zsync/zktest"
)

// retained returns a Mutex at /m whose place was kept by an Unlock just now.
func retained(t *testing.T, s *zsync.Session, opts ...zsync.LockOption) *zsync.Mutex {
	t.Helper()
	m := zsync.NewMutex(s, "/m", append([]zsync.LockOption{zsync.WithRetention(time.Minute)}, opts...)...)
	harness.Must(t, m.Lock(t.Context()))
	harness.Must(t, m.Unlock())
	return m
}

func TestARetainedLockCostsNoRequestAndGoesWhenItWasIdleForLongEnough(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := retained(t, s)
		names := suite.ChildrenOf(t, other, "/m")
		before := s.Stats().Requests
		for range 100 {
			harness.Must(t, m.Lock(t.Context()))
			if h := s.Stats().Holds; h != 1 {
				t.Fatalf("%d holds while it is locked", h)
			}
			harness.Must(t, m.Unlock())
			harness.WantErr(t, m.Unlock(), zsync.ErrNotLocked)
			if _, open := <-m.Lost(); open || s.Stats().Holds != 0 {
				t.Fatalf("%d holds after Unlock", s.Stats().Holds)
			}
		}
		if n := s.Stats().Requests - before; n != 0 {
			t.Errorf("100 times Lock and Unlock cost %d requests", n)
		}
		if now := suite.ChildrenOf(t, other, "/m"); !slices.Equal(now, names) || len(names) != 1 {
			t.Errorf("the place %q became %q", names, now)
		}
		time.Sleep(40 * time.Second)
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		time.Sleep(time.Minute - time.Millisecond)
		if now := suite.ChildrenOf(t, other, "/m"); len(now) != 1 {
			t.Errorf("after less than a minute of idleness there is %q", now)
		}
		time.Sleep(2 * time.Millisecond)
		if now := suite.ChildrenOf(t, other, "/m"); len(now) != 0 {
			t.Errorf("after a minute of idleness there is %q", now)
		}
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
	})
}

func TestAPlaceThatIsKeptGoesAtOnceWhenSomebodyElseComes(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		for _, delay := range []time.Duration{0, 30 * time.Millisecond} {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m, other := retained(t, a), zsync.NewMutex(b, "/m")
			srv.SetLatency(delay)
			start := time.Now()
			harness.Must(t, other.Lock(t.Context()))
			// The create, the event, the deletion, the notification: two round trips.
			// The watch on the one ahead may add one before it can fire.
			if d := time.Since(start); d > 6*delay+time.Millisecond {
				t.Errorf("Lock beside a place that is kept took %v at %v each way", d, delay)
			}
			got := harness.Async(func() error { return m.Lock(t.Context()) })
			harness.PendingStill(t, got)
			harness.Must(t, other.Unlock())
			harness.Must(t, <-got)
			srv.SetLatency(0)
			harness.Must(t, m.Unlock())
			time.Sleep(2 * time.Minute)
		}
	})
}

func TestWhatIsRecalledInUseIsHandedOnNoMoreOftenThanHandoffsSay(t *testing.T) {
	for _, n := range []int{1, 5, 16} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m, other := retained(t, a, zsync.WithHandoffs(n)), zsync.NewMutex(b, "/m")
			var passed, since atomic.Int64
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 200 {
						harness.Must(t, m.Lock(t.Context()))
						passed.Add(1)
						time.Sleep(time.Millisecond)
						harness.Must(t, m.Unlock())
					}
				})
			}
			time.Sleep(300 * time.Millisecond)
			if p := passed.Load(); p < 250 {
				t.Fatalf("%d holds in 300 ms of 1 ms each", p)
			}
			before := a.Stats().Requests
			time.Sleep(300 * time.Millisecond)
			if r := a.Stats().Requests - before; r > 2 {
				t.Errorf("%d requests while nobody else wanted it", r)
			}
			since.Store(passed.Load())
			harness.Must(t, other.Lock(t.Context()))
			if p := passed.Load() - since.Load(); p > int64(n)+1 {
				t.Errorf("n=%d: %d holds of one process while another waited", n, p)
			}
			harness.Must(t, other.Unlock())
			wg.Wait()
		})
	}
}

func TestASecondWaiterToARetainedLockWaitsNoLongerThanTheFirst(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, other := retained(t, a, zsync.WithHandoffs(4)), zsync.NewMutex(b, "/m")
		stop := make(chan struct{})
		var passed atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for !harness.Closed(stop) {
					harness.Must(t, m.Lock(t.Context()))
					passed.Add(1)
					time.Sleep(time.Millisecond)
					harness.Must(t, m.Unlock())
				}
			})
		}
		// One who comes and goes fires the watch; a listing that is asked for then
		// sets it again, and what it said must not count for the next who comes.
		for range 20 {
			time.Sleep(time.Duration(3+passed.Load()%13) * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			other.Lock(ctx)
			cancel()
			time.Sleep(time.Duration(passed.Load()%11) * time.Millisecond)
			from := passed.Load()
			harness.Must(t, other.Lock(t.Context()))
			if p := passed.Load() - from; p > 5 {
				t.Errorf("%d holds of one process while another waited", p)
			}
			harness.Must(t, other.Unlock())
		}
		close(stop)
		wg.Wait()
	})
}

func TestASessionThatIsNotCertainToLiveGrantsNothingThatItKeeps(t *testing.T) {
	t.Parallel()
	runs := 200
	if harness.UnderRace {
		runs = 20
	}
	for seed := range runs {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m := zsync.NewMutex(a, "/m", zsync.WithRetention(time.Hour))
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
			time.Sleep(time.Duration(seed) * 77 * time.Millisecond)
			id := a.ID()
			srv.Partition(id)
			got := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(t.Context()) })
			// Take it again and again for as long as it is to be had without servers.
			var lost <-chan struct{}
			var margin time.Duration
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				margin = a.Margin()
				err := m.Lock(ctx)
				cancel()
				if err != nil {
					break
				}
				if margin <= harness.Timeout/4 {
					t.Fatalf("seed %d: granted with %v left", seed, margin)
				}
				lost = m.Lost()
				select {
				case <-lost:
					t.Fatalf("seed %d: lost at once", seed)
				default:
				}
				time.Sleep(10 * time.Millisecond)
				if seed%2 == 0 {
					break // and hold it
				}
				harness.Must(t, m.Unlock()) // which gives it up: nobody can say who waits
			}
			harness.Must(t, <-got)
			if lost != nil && !harness.Closed(lost) && seed%2 == 0 {
				t.Fatalf("seed %d: granted elsewhere before the loss was told", seed)
			}
			srv.Heal(id)
		})
	}
}

func TestAPlaceThatIsLostWhileItIsKeptIsNobodysLoss(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, srv *zktest.Server, s, other *zsync.Session){
		"the session expires":  func(t *testing.T, srv *zktest.Server, s, _ *zsync.Session) { srv.Expire(s.ID()) },
		"the znode is deleted": func(t *testing.T, _ *zktest.Server, _, other *zsync.Session) { deleteChildren(t, other, "/m") },
		"the connection drops": func(t *testing.T, srv *zktest.Server, s, _ *zsync.Session) { srv.Disconnect(s.ID()) },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				var events atomic.Pointer[[]zsync.Event]
				events.Store(new([]zsync.Event))
				var mu sync.Mutex
				s := suite.Open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.Op != "" {
						all := append(slices.Clone(*events.Load()), e)
						events.Store(&all)
					}
				})))
				other := suite.Open(t, srv)
				m := retained(t, s)
				for range 3 {
					harness.Must(t, m.Lock(t.Context()))
					time.Sleep(time.Second)
					harness.Must(t, m.Unlock())
					time.Sleep(time.Second)
					lose(t, srv, s, other)
					time.Sleep(time.Second)
					if h := s.Stats().Holds; h != 0 {
						t.Errorf("%d holds", h)
					}
				}
				harness.Must(t, m.Lock(t.Context()))
				if n := len(suite.ChildrenOf(t, other, "/m")); n != 1 {
					t.Errorf("it is locked by %d znodes", n)
				}
				harness.Must(t, m.Unlock())
				acquired, released := 0, 0
				for _, e := range *events.Load() {
					switch e.Kind {
					case zsync.EventAcquired:
						acquired++
					case zsync.EventReleased:
						released++
						if released > 1 && released < 5 && e.Wait != time.Second {
							t.Errorf("released after %v", e.Wait)
						}
					default:
						t.Errorf("told of %v", e)
					}
				}
				if acquired != 5 || released != 5 {
					t.Errorf("told of %d acquisitions and %d releases, want 5 of each", acquired, released)
				}
			})
		})
	}
}

// deleteChildren has a stranger delete all that is below path.
func deleteChildren(t *testing.T, s *zsync.Session, path string) {
	t.Helper()
	for _, name := range suite.ChildrenOf(t, s, path) {
		_, err := s.Txn(t.Context(), &zk.DeleteRequest{Path: path + "/" + name, Version: -1})
		harness.Must(t, err)
	}
}

func TestLockWhileAKeptPlaceIsBeingDeletedWaitsBehindWhoRecalledIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, other := retained(t, a), zsync.NewMutex(b, "/m")
		id := a.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpDelete {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		first := harness.Async(func() error { return other.Lock(t.Context()) })
		time.Sleep(100 * time.Millisecond) // the deletion is on its way
		second := harness.Async(func() error { return m.Lock(t.Context()) })
		harness.Must(t, <-first)
		harness.PendingStill(t, second)
		harness.Must(t, other.Unlock())
		harness.Must(t, <-second)
		harness.Must(t, m.Unlock())
	})
}

func TestUnlockKeepsNothingOnceSomebodyElseHasCome(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, other := retained(t, a), zsync.NewMutex(b, "/m")
		harness.Must(t, m.Lock(t.Context()))
		got := harness.Async(func() error { return other.Lock(t.Context()) })
		synctest.Wait()
		before := srv.Counts()
		harness.Must(t, m.Unlock())
		if n := srv.Counts().Sub(before).Requests["delete"]; n != 1 {
			t.Errorf("Unlock sent %d deletions, want 1", n)
		}
		harness.Must(t, <-got)
		harness.Must(t, other.Unlock())
		harness.Must(t, m.Lock(t.Context())) // alone again
		harness.Must(t, m.Unlock())
		before = srv.Counts()
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		if n := srv.Counts().Sub(before).Total(); n != 0 {
			t.Errorf("alone again, Lock and Unlock cost %d requests", n)
		}
	})
}

func TestEachHoldOfARetainedLockHasAGreaterToken(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, other := retained(t, a), zsync.NewMutex(b, "/m", zsync.WithRetention(time.Second))
		last := int64(0)
		for i := range 30 {
			l := m
			if i%7 == 3 {
				l = other
			}
			harness.Must(t, l.Do(t.Context(), func(ctx context.Context) error {
				tok, err := l.Token(ctx)
				harness.Must(t, err)
				if again, _ := l.Token(ctx); tok <= last || again != tok {
					t.Errorf("token %d (then %d) after %d", tok, again, last)
				}
				last = tok
				rs, err := l.Txn(ctx, &zk.CreateRequest{Path: fmt.Sprintf("/x%d", i), Acl: zk.WorldACL(zk.PermAll)})
				if harness.Must(t, err); len(rs) != 1 {
					t.Error(rs)
				}
				return nil
			}))
			_, err := l.Token(t.Context())
			harness.WantErr(t, err, zsync.ErrNotLocked)
			_, err = l.Txn(t.Context())
			harness.WantErr(t, err, zsync.ErrNotLocked)
		}
	})
}

func TestTryLockTakesAPlaceThatIsOnlyKeptAndNotOneInUse(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m := retained(t, a, zsync.WithLayout(layout))
			other := zsync.NewMutex(b, "/m", zsync.WithLayout(layout))
			srv.SetLatency(20 * time.Millisecond)
			ok, err := other.TryLock(t.Context())
			if !ok || err != nil {
				t.Fatalf("TryLock of what is only kept: %v, %v", ok, err)
			}
			start := time.Now()
			if ok, err := m.TryLock(t.Context()); ok || err != nil || time.Since(start) > 100*time.Millisecond {
				t.Errorf("TryLock of a common lock: %v, %v after %v", ok, err, time.Since(start))
			}
			harness.Must(t, other.Unlock())
			if ok, err := m.TryLock(t.Context()); !ok || err != nil {
				t.Fatalf("TryLock of what is free: %v, %v", ok, err)
			}
			start = time.Now()
			if ok, err := other.TryLock(t.Context()); ok || err != nil || time.Since(start) > time.Second {
				t.Errorf("TryLock of what is in use: %v, %v after %v", ok, err, time.Since(start))
			}
			waits := harness.Async(func() error { return other.Lock(t.Context()) })
			time.Sleep(time.Second)
			start = time.Now()
			if ok, err := zsync.NewMutex(b, "/m", zsync.WithLayout(layout)).TryLock(t.Context()); ok || err != nil || time.Since(start) > 100*time.Millisecond {
				t.Errorf("TryLock behind one who waits: %v, %v after %v", ok, err, time.Since(start))
			}
			harness.Must(t, m.Unlock())
			harness.Must(t, <-waits)
			harness.Must(t, other.Unlock())
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
			before := srv.Counts()
			if ok, err := m.TryLock(t.Context()); !ok || err != nil {
				t.Errorf("TryLock of what this process keeps: %v, %v", ok, err)
			}
			if n := srv.Counts().Sub(before).Total(); n != 0 {
				t.Errorf("it cost %d requests", n)
			}
			harness.Must(t, m.Unlock())
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			if ok, err := other.TryLock(ctx); ok || err == nil {
				t.Errorf("TryLock whose context ends: %v, %v", ok, err)
			}
		})
	}
}

// A reader ahead blocks no other reader, so both TryRLocks get the lock whose place is only kept.
func TestTwoTryRLocksTakeAPlaceThatIsOnlyKept(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		keeper := zsync.NewRWMutex(suite.Open(t, srv), "/rw", zsync.WithRetention(time.Hour))
		readers := []*zsync.RWMutex{zsync.NewRWMutex(suite.Open(t, srv), "/rw"), zsync.NewRWMutex(suite.Open(t, srv), "/rw")}
		harness.Must(t, keeper.Lock(t.Context()))
		harness.Must(t, keeper.Unlock())
		srv.SetLatency(way)
		var got []<-chan bool
		for i, rw := range readers {
			one := make(chan bool, 1)
			got = append(got, one)
			go func() {
				time.Sleep(time.Duration(i) * 3 * way / 2) // the second lists the line when the first has entered it
				ok, err := rw.TryRLock(t.Context())
				if err != nil {
					t.Error(err)
				}
				one <- ok
			}()
		}
		for i, one := range got {
			if !<-one {
				t.Errorf("reader %d did not get the free lock", i)
			}
		}
	})
}

func TestAWriteLockIsKeptAndAReadLockIsNot(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		rw := zsync.NewRWMutex(a, "/rw", zsync.WithRetention(time.Minute))
		cost := func(f func()) int64 {
			synctest.Wait()
			before := srv.Counts()
			f()
			return srv.Counts().Sub(before).Total()
		}
		write := func() { harness.Must(t, rw.Lock(t.Context())); harness.Must(t, rw.Unlock()) }
		read := func() { harness.Must(t, rw.RLock(t.Context())); harness.Must(t, rw.RUnlock()) }
		write()
		if n := cost(write); n != 0 {
			t.Errorf("the second write lock cost %d requests", n)
		}
		read() // which its own kept place must not hold up
		if n := cost(read); n != 3 {
			t.Errorf("a read lock cost %d requests, want 3: none is kept", n)
		}
		write()
		if ok, err := rw.TryRLock(t.Context()); !ok || err != nil {
			t.Errorf("TryRLock over the process's own kept place: %v, %v", ok, err)
		}
		harness.Must(t, rw.RUnlock())
		write()
		harness.Must(t, rw.Lock(t.Context()))
		harness.Must(t, rw.Downgrade(t.Context()))
		harness.Must(t, rw.RUnlock())
		if names := suite.ChildrenOf(t, b, "/rw"); len(names) != 0 {
			t.Errorf("after a downgrade %q is kept", names)
		}
		write()
		if ok, err := zsync.NewRWMutex(b, "/rw").TryRLock(t.Context()); !ok || err != nil {
			t.Errorf("TryRLock elsewhere of what is only kept: %v, %v", ok, err)
		}
	})
}

func TestASessionKeepsNoMoreThan128Places(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		left := func() (n int) {
			for _, name := range suite.ChildrenOf(t, other, "/many") {
				n += len(suite.ChildrenOf(t, other, "/many/"+name))
			}
			return n
		}
		lock := func(i int) *zsync.Mutex {
			m := zsync.NewMutex(s, fmt.Sprintf("/many/%03d", i), zsync.WithRetention(time.Hour))
			harness.Must(t, m.Lock(t.Context()))
			return m
		}
		inUse := lock(0)
		harness.Must(t, inUse.Unlock())
		harness.Must(t, inUse.Lock(t.Context()))
		for i := range 150 {
			time.Sleep(time.Millisecond)
			harness.Must(t, lock(i+1).Unlock())
		}
		synctest.Wait()
		if n := left(); n != 129 {
			t.Errorf("%d places are there, want 128 and the one in use", n)
		}
		if n := len(suite.ChildrenOf(t, other, "/many/000")); n != 1 {
			t.Error("the one in use is gone")
		}
		if n := len(suite.ChildrenOf(t, other, "/many/150")); n != 0 {
			t.Error("one too many is kept")
		}
		harness.Must(t, inUse.Unlock())
	})
}

func TestLimitsOfAHoldDoNotCountWhileItsPlaceIsKept(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		var asked atomic.Int32
		m := retained(t, s, zsync.WithMaxHold(10*time.Second), zsync.WithHealth(func(context.Context) error { asked.Add(1); return nil }))
		time.Sleep(30 * time.Second)
		if n := asked.Load(); n != 0 {
			t.Errorf("asked %d times whether nobody is well", n)
		}
		before := srv.Counts().Requests["create"]
		harness.Must(t, m.Lock(t.Context()))
		if srv.Counts().Requests["create"] != before {
			t.Error("the place was not kept")
		}
		lost := m.Lost()
		time.Sleep(9 * time.Second)
		if harness.Closed(lost) {
			t.Error("lost before its time")
		}
		got := harness.Async(func() error { return zsync.NewMutex(other, "/m").Lock(t.Context()) })
		time.Sleep(2 * time.Second)
		if !harness.Closed(lost) {
			t.Error("not given up in time")
		}
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, <-got)
	})
}

func TestWhoeverWasAskedToGiveUpKeepsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := retained(t, a)
		harness.Must(t, m.Lock(t.Context()))
		revoked := m.Revoked()
		time.Sleep(time.Second)
		harness.Must(t, zsync.NewMutex(b, "/m").Revoke(t.Context()))
		<-revoked
		harness.Must(t, m.Unlock())
		if names := suite.ChildrenOf(t, b, "/m"); len(names) != 0 {
			t.Errorf("%q is kept", names)
		}
		// Asked while nobody has it: the next hold is another's business.
		harness.Must(t, m.Lock(t.Context()))
		m.Revoked()
		time.Sleep(time.Second)
		harness.Must(t, m.Unlock())
		harness.Must(t, zsync.NewMutex(b, "/m").Revoke(t.Context()))
		time.Sleep(time.Second)
		harness.Must(t, m.Lock(t.Context()))
		select {
		case <-m.Revoked():
			t.Error("a hold was asked to give up before it began")
		case <-time.After(time.Second):
		}
		harness.Must(t, m.Unlock())
	})
}

func TestValuesOfOnePathRecallEachOthersPlaces(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		one, two := retained(t, s), zsync.NewMutex(s, "/m", zsync.WithRetention(time.Minute))
		for range 5 {
			harness.Must(t, two.Lock(t.Context()))
			harness.Must(t, two.Unlock())
			harness.Must(t, one.Lock(t.Context()))
			harness.Must(t, one.Unlock())
		}
		before := s.Stats().Requests
		harness.Must(t, two.Lock(t.Context()))
		harness.Must(t, two.Unlock())
		harness.Must(t, two.Lock(t.Context()))
		harness.Must(t, two.Unlock())
		between := s.Stats().Requests
		harness.Must(t, two.Lock(t.Context()))
		harness.Must(t, two.Unlock())
		if n := s.Stats().Requests - between; n != 0 {
			t.Errorf("the third time in a row cost %d requests, after %d", n, between-before)
		}
	})
}

func TestContendersTellWhoMayOnlyKeepItsPlace(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m := retained(t, a, zsync.WithLayout(layout))
			other := zsync.NewMutex(b, "/m", zsync.WithLayout(layout))
			cs, err := other.Contenders(t.Context())
			harness.Must(t, err)
			if len(cs) != 1 || !cs[0].Retained || !cs[0].Holding {
				t.Errorf("a place that is kept: %+v", cs)
			}
			harness.Must(t, other.Lock(t.Context()))
			waits := harness.Async(func() error { return m.Lock(t.Context()) })
			synctest.Wait()
			cs, err = other.Contenders(t.Context())
			harness.Must(t, err)
			if len(cs) != 2 || cs[0].Retained || !cs[0].Holding || cs[1].Retained || cs[1].Holding {
				t.Errorf("a common lock, and one who waits: %+v", cs)
			}
			harness.Must(t, other.Unlock())
			harness.Must(t, <-waits)
		})
	}
}

func TestRetentionIsRefusedWhereItMakesNoSense(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		for _, l := range []zsync.Locker{
			zsync.NewMutex(s, "/m", zsync.WithRetention(0)),
			zsync.NewMutex(s, "/m", zsync.WithRetention(-time.Second)),
			zsync.NewMutex(s, "/m", zsync.WithRetention(time.Second), zsync.WithHandoffs(0)),
			zsync.NewRWMutex(s, "/m", zsync.WithHandoffs(0), zsync.WithRetention(time.Second)),
		} {
			harness.WantErr(t, l.Lock(t.Context()), zsync.ErrInvalid)
		}
		harness.WantErr(t, zsync.NewSemaphore(s, "/s", 3, zsync.WithRetention(time.Second)).Acquire(t.Context(), 1), zsync.ErrInvalid)
	})
}

func TestRetentionCostsAWaiterAtMostOneNotificationMore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const waiters = 50
		count := func(opts ...zsync.LockOption) int64 {
			first := zsync.NewMutex(suite.Open(t, srv), "/m", opts...)
			harness.Must(t, first.Lock(t.Context()))
			var wg sync.WaitGroup
			before := srv.Counts()
			for range waiters {
				m := zsync.NewMutex(suite.Open(t, srv), "/m", opts...)
				wg.Go(func() {
					harness.Must(t, m.Lock(t.Context()))
					harness.Must(t, m.Unlock())
				})
				synctest.Wait()
			}
			harness.Must(t, first.Unlock())
			wg.Wait()
			synctest.Wait()
			return srv.Counts().Sub(before).Notifications
		}
		common := count()
		kept := count(zsync.WithRetention(time.Second))
		if kept > common+waiters+1 {
			t.Errorf("%d waiters got %d notifications, and %d with retention", waiters, common, kept)
		}
	})
}

func TestACloseGivesUpWhatIsKept(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := retained(t, a)
		harness.Must(t, a.Close())
		if names := suite.ChildrenOf(t, b, "/m"); len(names) != 0 {
			t.Errorf("%q is left", names)
		}
		harness.WantErr(t, m.Lock(t.Context()), zsync.ErrClosed)
	})
}

func TestATraceOfARetainedLockIsInOrder(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ta, tb suite.TraceBuffer
		a, b := suite.Open(t, srv, zsync.WithTrace(&ta)), suite.Open(t, srv, zsync.WithTrace(&tb))
		m, other := retained(t, a), zsync.NewMutex(b, "/m", zsync.WithRetention(time.Minute))
		srv.SetLatency(time.Millisecond)
		for range 5 {
			for _, l := range []*zsync.Mutex{m, m, other, other} {
				harness.Must(t, l.Lock(t.Context()))
				_, err := l.Token(t.Context())
				harness.Must(t, err)
				harness.Must(t, l.Unlock())
			}
		}
		srv.Expire(a.ID())
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		harness.Must(t, a.Close())
		harness.Must(t, b.Close())
		r := verify.Files([]*verify.File{ta.File(t, "a"), tb.File(t, "b")}, 0)
		if len(r.Violations)+len(r.Missing) > 0 || r.Holds < 11 {
			t.Errorf("%+v", r)
		}
	})
}

func TestCondWaitGivesUpARetainedLockToOthers(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, other := retained(t, a), retained(t, b)
		mine, theirs := zsync.NewCond(a, "/c", m), zsync.NewCond(b, "/c", other)
		harness.Must(t, m.Lock(t.Context()))
		woken := harness.Async(func() error { return mine.Wait(t.Context()) })
		synctest.Wait()
		harness.Must(t, other.Lock(t.Context()))
		harness.Must(t, theirs.Signal(t.Context()))
		harness.Must(t, other.Unlock())
		harness.Must(t, <-woken)
		harness.Must(t, m.Unlock())
		unlock, err := zsync.LockAll(t.Context(), m, zsync.NewMutex(a, "/m2", zsync.WithRetention(time.Second)))
		harness.Must(t, err)
		harness.Must(t, unlock())
		sl := zsync.SyncLocker(t.Context(), m)
		sl.Lock()
		_, err = m.Token(t.Context()) // it is held
		harness.Must(t, err)
		sl.Unlock()
	})
}

// A short retention keeps nobody awake while somebody has the lock, and ends when it should
// after that.
func TestWhoLooksAfterARetainedPlaceSleepsWhileSomebodyHasIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m", zsync.WithRetention(time.Millisecond))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		for range 3 {
			harness.Must(t, m.Lock(t.Context())) // without a request, so the place is kept still
			before := wakeUps(t)
			time.Sleep(2 * time.Minute)
			if n := wakeUps(t) - before; n > 10_000 {
				t.Errorf("goroutines were woken %d times while it was held", n)
			}
			harness.Must(t, m.Unlock())
		}
		time.Sleep(time.Millisecond - time.Microsecond)
		if now := suite.ChildrenOf(t, other, "/m"); len(now) != 1 {
			t.Errorf("before its time is over there is %q", now)
		}
		time.Sleep(2 * time.Microsecond)
		if now := suite.ChildrenOf(t, other, "/m"); len(now) != 0 {
			t.Errorf("after its time there is %q", now)
		}
	})
}

// wakeUps returns how often goroutines of the process have begun to run after they had
// waited, as far as the runtime counts them: one of eight.
func wakeUps(t *testing.T) (n uint64) {
	t.Helper()
	found := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(found)
	if found[0].Value.Kind() != metrics.KindFloat64Histogram {
		t.Fatalf("the runtime has no %s", found[0].Name)
	}
	for _, c := range found[0].Value.Float64Histogram().Counts {
		n += c
	}
	return n
}

// Revoke of a place that is only kept: nobody holds it.
func TestWhoLocksAPlaceAgainThatWasKeptIsNotAskedToGiveUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/l", zsync.WithRetention(time.Minute))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		harness.Must(t, zsync.NewMutex(o, "/l").Revoke(t.Context())) // the place is given up
		time.Sleep(time.Second)
		harness.Must(t, m.Lock(t.Context()))
		synctest.Wait()
		ch := m.Revoked()
		synctest.Wait()
		select {
		case <-ch:
			t.Error("a hold that began after the Revoke is asked to give up")
		default:
		}
		harness.Must(t, m.Unlock())
	})
}

// The one who was asked has unlocked; who locks later, when nobody else is there, was not asked.
func TestWhoLocksAgainHimselfIsNotAskedWhatHisFormerHoldWas(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/l", zsync.WithRetention(time.Minute))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, zsync.NewMutex(o, "/l").Revoke(t.Context()))
		harness.Must(t, m.Unlock()) // without having looked at Revoked
		time.Sleep(30 * time.Second)
		harness.Must(t, m.Lock(t.Context()))
		ch := m.Revoked()
		synctest.Wait()
		select {
		case <-ch:
			t.Error("a hold that began half a minute after the Revoke is asked to give up")
		default:
		}
		harness.Must(t, m.Unlock())
	})
}
