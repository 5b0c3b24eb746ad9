package semaphore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// What becomes of permits that are held when a znode of theirs is deleted: by somebody
// else, with the session, or, which must not be, by ourselves.

// watched is longer than what is held may be held unwatched.
const watched = 20 * time.Millisecond

// deleteLease has s delete the znode of one of m's permits.
func deleteLease(t *testing.T, s *zsync.Session, m *zsync.Semaphore, i int) {
	t.Helper()
	dir, _ := inside.SemaphoreZnodes(m)
	names := suite.ChildrenOf(t, s, dir)
	slices.Sort(names)
	harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, s), znodes.ChildPath(dir, names[i])))
}

func TestAllPermitsAreToldAtOnceWhenTheZnodeOfOneIsDeletedAndTheOthersGoSoon(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		for _, part := range []bool{false, true} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				m, other := zsync.NewSemaphore(a, "/s", f.Limit, zsync.WithLayout(f.Layout)), zsync.NewSemaphore(b, "/s", f.Limit, zsync.WithLayout(f.Layout))
				harness.Must(t, m.Acquire(t.Context(), 2*f.Unit))
				harness.Must(t, m.Acquire(t.Context(), f.Unit))
				time.Sleep(watched)
				n := 3 * f.Unit
				if part { // where permits have weight, another znode takes the place of one
					n -= f.Unit + f.Unit/2
					harness.Must(t, m.Release(f.Unit+f.Unit/2))
					time.Sleep(watched)
				}
				lost := m.Lost()
				if harness.Closed(lost) {
					t.Fatalf("%s: Lost is closed by Release", f.Name)
				}
				deleteLease(t, b, m, 0)
				synctest.Wait() // no time passes
				if !harness.Closed(lost) {
					t.Fatalf("%s: Lost is not closed", f.Name)
				}
				if ok, err := m.TryAcquire(t.Context(), 1); ok || err != nil {
					t.Errorf("%s: TryAcquire beside what is lost = %v, %v", f.Name, ok, err)
				}
				// Whoever was told may have gone home.
				time.Sleep(harness.Timeout/10 + time.Second)
				if left := inside.Leases(t, other); len(left) > 0 {
					t.Errorf("%s: left: %q", f.Name, left)
				}
				harness.Must(t, other.Acquire(harness.Within(t, time.Second), f.Limit))
				harness.Must(t, other.Release(f.Limit))
				for ; n > 0; n -= f.Unit {
					if err := m.Release(min(n, f.Unit)); suite.LossOf(err) != zsync.LossDeleted {
						t.Errorf("%s: Release: %v", f.Name, err)
					}
				}
				if st := a.Stats(); st.Holds != 0 {
					t.Errorf("%s: %d holds are left", f.Name, st.Holds)
				}
				harness.Must(t, m.Acquire(t.Context(), f.Limit))
				harness.Must(t, m.Release(f.Limit))
			})
		}
	}
}

// The reply to the transaction that makes two permits is lost, and somebody deletes the
// first before it is tried again: then the first is made and the second is there.
func TestPermitDeletedBeforeItsReplyWasHeardIsALossAndNoFailure(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, other := zsync.NewSemaphore(a, "/s", 3), zsync.NewSemaphore(b, "/s", 3)
		harness.Must(t, other.Acquire(t.Context(), 2))
		got := harness.Async(func() error { return m.Acquire(t.Context(), 2) })
		synctest.Wait()
		dir, _ := inside.SemaphoreZnodes(m)
		theirs := suite.ChildrenOf(t, b, dir)
		lost, deleted := harness.First(zktest.DropReply, func(r zktest.Request) bool {
			return r.Op == zktest.OpMulti && len(r.Ops) > 2 && r.Session == a.ID() && strings.HasPrefix(r.Ops[len(r.Ops)-1].Path, dir)
		}), false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Session == a.ID() {
				ours := slices.DeleteFunc(suite.ChildrenOf(t, b, dir), func(name string) bool { return slices.Contains(theirs, name) })
				slices.Sort(ours)
				if deleted = len(ours) == 2; deleted {
					harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, b), znodes.ChildPath(dir, ours[0])))
				}
			}
			return lost(r)
		})
		harness.Must(t, other.Release(2))
		harness.Must(t, <-got)
		if !deleted {
			t.Fatal("nothing was deleted")
		}
		time.Sleep(watched)
		if !harness.Closed(m.Lost()) {
			t.Error("Lost is not closed")
		}
		if err := m.Release(2); suite.LossOf(err) != zsync.LossDeleted {
			t.Errorf("Release: %v", err)
		}
		time.Sleep(10 * time.Second)
		if left := inside.Leases(t, other); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

func TestReleaseOfPermitsThatAreWatchedIsNoLossOfTheOthers(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewSemaphore(suite.Open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			harness.Must(t, m.Acquire(t.Context(), f.Limit))
			lost := m.Lost()
			for n := f.Limit; n > f.Unit; n -= f.Unit {
				time.Sleep(watched)
				harness.Must(t, m.Release(f.Unit))
			}
			time.Sleep(watched)
			if harness.Closed(lost) {
				t.Errorf("%s: Lost is closed by Release", f.Name)
			}
			harness.Must(t, m.Release(f.Unit))
			time.Sleep(watched)
			if harness.Closed(lost) {
				t.Errorf("%s: Lost is closed by the last Release", f.Name)
			}
		})
	}
}

// The deletion of a permit that is being released is that one's loss, or nobody's:
// whoever holds the others is not disturbed.
func TestPermitDeletedJustAsItIsReleasedIsNoLossOfTheOthers(t *testing.T) {
	for after := range 8 { // steps of what the deletion is ahead of the release, and behind it
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m := zsync.NewSemaphore(a, "/s", 2)
			harness.Must(t, m.Acquire(t.Context(), 1))
			harness.Must(t, m.Acquire(t.Context(), 1))
			dir, _ := inside.SemaphoreZnodes(m)
			time.Sleep(watched)
			srv.SetLatency(4 * time.Millisecond)
			lost, id := m.Lost(), a.ID()
			asked := make(chan string, 1)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == id && r.Op == zktest.OpDelete && znodes.ParentPath(r.Path) == dir {
					select {
					case asked <- r.Path:
					default: // the last Release
					}
					return zktest.Delay(20 * time.Millisecond)
				}
				return zktest.Pass
			})
			released := harness.Async(func() error { return m.Release(1) })
			time.Sleep(time.Duration(8+4*after) * time.Millisecond)
			deleted := znodes.RemoveNow(t.Context(), inside.Live(t, b), <-asked)
			err := <-released
			if first := deleted == nil; first != (suite.LossOf(err) == zsync.LossDeleted) || !first && err != nil {
				t.Errorf("step %d: deletion: %v; Release: %v", after, deleted, err)
			}
			time.Sleep(time.Second)
			if harness.Closed(lost) {
				t.Errorf("step %d: the other is lost", after)
			}
			harness.Must(t, m.Release(1))
		})
	}
}

func TestPermitsDeletedWhileTheirProcessIsDisconnectedAreToldWhenItIsBack(t *testing.T) {
	for name, begin := range map[string]time.Duration{"watched": watched, "not watched yet": 0} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				m := zsync.NewSemaphore(a, "/s", 3)
				harness.Must(t, m.Acquire(t.Context(), 3))
				lost := m.Lost()
				time.Sleep(begin)
				id := a.ID()
				srv.Partition(id)
				time.Sleep(harness.Timeout / 10)
				deleteLease(t, b, m, 1)
				time.Sleep(harness.Timeout / 10)
				if harness.Closed(lost) {
					t.Fatal("nobody can know yet")
				}
				srv.Disconnect(id)
				srv.Heal(id)
				time.Sleep(harness.Timeout / 4)
				if !harness.Closed(lost) || a.ID() != id {
					t.Errorf("Lost closed: %v; the session lasts: %v", harness.Closed(lost), a.ID() == id)
				}
				if err := m.Release(3); suite.LossOf(err) != zsync.LossDeleted {
					t.Errorf("Release: %v", err)
				}
			})
		})
	}
}

// The server of the holder is late with everything, the deletion included; after it
// has failed, so is the next.
func TestPermitsDeletedWhileTheServerLagsAreToldWithTheEventAndNotBefore(t *testing.T) {
	for _, moves := range []bool{false, true} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			addrs := srv.Addrs()
			at := func(addr string) *zsync.Session {
				s, err := zsync.Connect(t.Context(), addr, zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(harness.Timeout))
				harness.Must(t, err)
				t.Cleanup(func() { s.Close() })
				return s
			}
			a, b := at(addrs[1]), at(addrs[0])
			srv.SetLag(addrs[1], 100*time.Millisecond)
			m := zsync.NewSemaphore(a, "/s", 2)
			harness.Must(t, m.Acquire(t.Context(), 2))
			lost := m.Lost()
			time.Sleep(5 * time.Second)
			if harness.Closed(lost) {
				t.Fatal("what the server has not heard of yet is taken for a deletion")
			}
			srv.Freeze(addrs[1])
			deleteLease(t, b, m, 0)
			if moves {
				srv.Disconnect(a.ID()) // and the watch is set again before the server hears of it
				time.Sleep(time.Second)
			} else if synctest.Wait(); harness.Closed(lost) {
				t.Error("told before its server has heard of it")
			}
			srv.Thaw(addrs[1])
			time.Sleep(harness.Timeout / 10)
			if !harness.Closed(lost) {
				t.Errorf("moves %v: Lost is not closed", moves)
			}
			if err := m.Release(2); suite.LossOf(err) != zsync.LossDeleted {
				t.Errorf("moves %v: Release: %v", moves, err)
			}
		}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
	}
}

func TestPermitsThatAreHeldForAMomentAreNotWatchedAndOthersTellNobodyElse(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m, next := zsync.NewSemaphore(a, "/s", 2), zsync.NewSemaphore(b, "/s", 2)
		harness.Must(t, m.Acquire(t.Context(), 2)) // everything is made
		harness.Must(t, m.Release(2))
		harness.Must(t, m.Acquire(t.Context(), 1)) // lasts
		time.Sleep(watched)
		cost := func(held time.Duration) (requests uint64, notifications int) {
			before, sent := srv.Counts(), a.Stats().Requests
			harness.Must(t, m.Acquire(t.Context(), 1))
			time.Sleep(held)
			harness.Must(t, m.Release(1))
			time.Sleep(watched)
			return uint64(a.Stats().Requests - sent), int(srv.Counts().Sub(before).Notifications)
		}
		if r, n := cost(9 * time.Millisecond); r != 4 || n != 0 {
			t.Errorf("held for 9 ms: %d requests, %d notifications; want 4, 0", r, n)
		}
		if r, n := cost(11 * time.Millisecond); r != 5 || n != 1 {
			t.Errorf("held for 11 ms: %d requests, %d notifications; want 5, 1", r, n)
		}
		harness.Must(t, m.Acquire(t.Context(), 1))
		time.Sleep(watched)
		waits := harness.Arrive(t, func() error { return next.Acquire(t.Context(), 1) })
		before := srv.Counts()
		harness.Must(t, m.Release(1))
		harness.Must(t, <-waits)
		synctest.Wait()
		if d := srv.Counts().Sub(before); d.Notifications != 2 {
			t.Errorf("%d notifications for a release, want 2: to the next, and to the one who gave up", d.Notifications)
		}
		harness.Must(t, next.Release(1))
		harness.Must(t, m.Release(1))
	})
}

func TestAThousandPermitsAreWatchedInOneRoundTripAndWithoutGoroutines(t *testing.T) {
	const n = 1000
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewSemaphore(a, "/s", n)
		harness.Must(t, m.Acquire(t.Context(), 1))
		time.Sleep(watched)
		srv.SetLatency(10 * time.Millisecond)
		before := harness.Goroutines()
		sent := a.Stats().Requests
		harness.Must(t, m.Acquire(t.Context(), n-1))
		acquired := a.Stats().Requests
		time.Sleep(45 * time.Millisecond) // 10 ms, and a round trip of 20
		if r := a.Stats().Requests - acquired; r != n-1 {
			t.Errorf("%d requests to watch what took %d to acquire, want %d", r, acquired-sent, n-1)
		}
		// Each of the two sessions keeps up to two goroutines for what it does next.
		if more := harness.Goroutines() - before; more > 4 {
			t.Errorf("%d goroutines more", more)
		}
		lost := m.Lost()
		deleteLease(t, b, m, n/2)
		time.Sleep(50 * time.Millisecond)
		if !harness.Closed(lost) {
			t.Error("Lost is not closed")
		}
		if err := m.Release(n); !errors.Is(err, zsync.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		time.Sleep(time.Second)
		if left := inside.Leases(t, zsync.NewSemaphore(b, "/s", n)); len(left) > 0 {
			t.Errorf("%d are left", len(left))
		}
		if w := a.Stats().Watches; w > 2*conn.MaxIdleWatches {
			t.Errorf("%d watches are left", w)
		}
	})
}

// Do of one goroutine is told of it as well though the znode was another's, and the
// Session goes on.
func TestEveryDoIsToldOfAPermitThatIsDeleted(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewSemaphore(a, "/s", 3)
		var did []<-chan error
		for range 3 {
			did = append(did, harness.Async(func() error {
				return m.Do(t.Context(), 1, func(ctx context.Context) error {
					<-ctx.Done()
					if why := context.Cause(ctx); suite.LossOf(why) != zsync.LossDeleted {
						t.Errorf("the context ends with %v", why)
					}
					return nil
				})
			}))
		}
		time.Sleep(time.Second)
		id := a.ID()
		deleteLease(t, b, m, 2)
		synctest.Wait()
		for _, d := range did {
			if err := <-d; suite.LossOf(err) != zsync.LossDeleted {
				t.Errorf("Do: %v", err)
			}
		}
		harness.Must(t, m.Do(harness.Within(t, time.Second), 3, func(ctx context.Context) error { return ctx.Err() }))
		if a.ID() != id {
			t.Error("the session was replaced")
		}
	})
}

// The servers delete what is held in a session that ends, and may tell its connection
// so before it is closed.
func TestPermitsOfASessionThatEndsAreNotSaidToBeDeleted(t *testing.T) {
	ends := map[zsync.LossReason]func(*zktest.Server, *zsync.Session){
		zsync.LossExpired: func(srv *zktest.Server, s *zsync.Session) { srv.Expire(s.ID()) },
		zsync.LossClosed:  func(_ *zktest.Server, s *zsync.Session) { s.Close() },
	}
	for want, end := range ends {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv)
			m := zsync.NewSemaphore(s, "/s", 3)
			harness.Must(t, m.Acquire(t.Context(), 2))
			var cause error
			done := harness.Async(func() error {
				return m.Do(t.Context(), 1, func(ctx context.Context) error {
					<-ctx.Done()
					cause = context.Cause(ctx)
					return nil
				})
			})
			time.Sleep(watched)
			end(srv, s)
			if err := <-done; want == zsync.LossClosed {
				if err != nil || !errors.Is(cause, zsync.ErrClosed) { // Close has waited for the function
					t.Errorf("%v: Do: %v, and its context: %v", want, err, cause)
				}
			} else if suite.LossOf(err) != want || suite.LossOf(cause) != want {
				t.Errorf("%v: Do: %v, and its context: %v", want, err, cause)
			}
			if err := m.Release(2); suite.LossOf(err) != want {
				t.Errorf("%v: Release: %v", want, err)
			}
		})
	}
}

// The first transaction has no answer, the second finds no directory, and what the
// first may have made is deleted for longer than is waited for. The third makes
// permits that nobody deletes.
func TestPermitsAreNotDeletedByWhatAnEarlierAttemptHasLeftToDelete(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m, other := zsync.NewSemaphore(a, "/s", f.Limit, zsync.WithLayout(f.Layout)), zsync.NewSemaphore(b, "/s", f.Limit, zsync.WithLayout(f.Layout))
			dir, _ := inside.SemaphoreZnodes(m)
			id, made := a.ID(), atomic.Int32{}
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Session != id:
				case r.Op == zktest.OpMulti && made.Add(1) == 1:
					return zktest.Fail(-4) // ConnectionLoss: whether it was applied is not known
				case r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, dir+"/") && made.Load() < 3:
					return zktest.Fail(-4)
				}
				return zktest.Pass
			})
			harness.Must(t, m.Acquire(harness.Within(t, 5*time.Second), 3*f.Unit))
			time.Sleep(time.Second)
			if harness.Closed(m.Lost()) {
				t.Errorf("%s: our own permits were deleted", f.Name)
			}
			if ok, err := other.TryAcquire(t.Context(), f.Limit); ok || err != nil {
				t.Errorf("%s: TryAcquire of all = %v, %v", f.Name, ok, err)
			}
			harness.Must(t, m.Release(3*f.Unit))
		})
	}
}

// The transaction that gives permits back is refused, and then the deletion of one of
// them. What is deleted in the first round is missing in the second, and that is no loss.
func TestWhatAReleaseHasDeletedItselfIsNoLossWhenTheRestIsRefusedAtFirst(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		for which := range 3 {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				m, other := zsync.NewSemaphore(suite.Open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout)), zsync.NewSemaphore(suite.Open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
				n := 3*f.Unit - f.Unit/2 // where permits have weight, another znode takes the place of one
				for range 3 {
					harness.Must(t, m.Acquire(t.Context(), f.Unit))
				}
				var deletions, refused int
				srv.Intercept(func(q zktest.Request) zktest.Action {
					deletes := q.Op == zktest.OpDelete || slices.ContainsFunc(q.Ops, func(o zktest.Request) bool { return o.Op == zktest.OpDelete })
					if !deletes || refused == 2 {
						return zktest.Pass
					}
					if q.Op == zktest.OpDelete {
						deletions++
					}
					if q.Op == zktest.OpMulti && deletions == 0 || q.Op == zktest.OpDelete && deletions == which+1 {
						refused++
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				harness.Must(t, m.Release(n))
				time.Sleep(time.Minute)
				srv.Intercept(nil)
				if 3*f.Unit > n {
					harness.Must(t, m.Release(3*f.Unit-n))
				}
				harness.Must(t, other.Acquire(harness.Within(t, time.Second), f.Limit))
				harness.Must(t, other.Release(f.Limit))
			})
		}
	}
}

// In real time, as a goroutine that waits for a mutex keeps virtual time from passing.
func TestNothingOfACallersContextIsCalledUnderTheLockOfASemaphore(t *testing.T) {
	harness.InMemory(t)
	t.Parallel()
	srv := zktest.Start(t, harness.Patient)
	connect := func() *zsync.Session {
		s, err := zsync.Connect(t.Context(), srv.Addr())
		harness.Must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	m, other, conn := zsync.NewSemaphore(connect(), "/m", 2), zsync.NewSemaphore(connect(), "/m", 2), harness.Plain(t, srv)
	harness.Must(t, m.Acquire(t.Context(), 1))
	own := harness.Children(t, conn, "/m/leases")[0]
	harness.Must(t, other.Acquire(t.Context(), 1))
	ctx := harness.Asking(t.Context(), func() {
		asked := make(chan struct{})
		go func() { m.Lost(); close(asked) }()
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Error("Lost waits for who calls the context")
		}
	})
	watching := make(chan struct{})
	watch := sync.OnceFunc(func() { close(watching) })
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Path == "/m/leases" && r.Watch {
			watch()
		}
		return zktest.Pass
	})
	waits := harness.Async(func() error { return m.Acquire(ctx, 2) })
	<-watching
	lost := m.Lost()
	harness.Must(t, conn.Delete("/m/leases/"+own, -1))
	<-lost
	harness.WantErr(t, m.Release(1), zsync.ErrLost)
	harness.Must(t, other.Release(1))
	harness.Must(t, <-waits)
	harness.Must(t, m.Release(2))
}

// WithMaxHold ends the hold while a Token waits for its reply, and the client deletes the znodes of the permits before the
// reply comes. The permits are lost, not released.
func TestTokenOfPermitsThatAreLostWhileItWaitsReturnsTheLoss(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(suite.Open(t, srv), "/s", 5, zsync.WithMaxHold(time.Second))
		harness.Must(t, m.Acquire(t.Context(), 2))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData {
				return zktest.Delay(4 * time.Second)
			}
			return zktest.Pass
		})
		_, err := m.Token(t.Context())
		harness.WantErr(t, err, zsync.ErrLost)
		harness.WantErr(t, m.Release(2), zsync.ErrLost)
	})
}
