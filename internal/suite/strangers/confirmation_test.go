package strangers

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Before a grant, the session must be confirmed. These tests are about outages during that time, or
// during another request before the caller learns of the grant.

// An outage loses the requests of one session, except its pings.
type outage struct{ on atomic.Bool }

// outageFrom returns an outage of s. The outage begins with the action `first` for the first request
// that `match` accepts.
func outageFrom(srv *zktest.Server, s *zsync.Session, first zktest.Action, match func(zktest.Request) bool) *outage {
	var o outage
	var begun atomic.Bool
	srv.Intercept(func(r zktest.Request) zktest.Action {
		switch {
		case r.Session != s.ID() || r.Op == zktest.OpPing:
		case o.on.Load():
			return zktest.DropRequest
		case match(r) && begun.CompareAndSwap(false, true):
			o.on.Store(true)
			return first
		}
		return zktest.Pass
	})
	return &o
}

// The method `strike` waits until o has begun and all goroutines wait. Then, as another client, it
// deletes the only child of dir whose name contains `name`.
func (o *outage) strike(t *testing.T, conn *zk.Conn, dir, name string) {
	t.Helper()
	synctest.Wait()
	if !o.on.Load() {
		t.Fatal("the outage has not begun")
	}
	var found []string
	for _, n := range harness.Children(t, conn, dir) {
		if strings.Contains(n, name) {
			found = append(found, n)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d znodes %q at %s, want 1", len(found), name, dir)
	}
	harness.Must(t, conn.Delete(dir+"/"+found[0], -1))
}

// thirdIsFirst lets a third contender acquire and, after the outage, release. The caller of `granted`
// must wait until then.
func (o *outage) thirdIsFirst(t *testing.T, granted <-chan error, acquire, release func() error) {
	t.Helper()
	harness.Must(t, acquire())
	harness.PendingStill(t, granted)
	o.on.Store(false)
	time.Sleep(20 * time.Second)
	harness.PendingStill(t, granted)
	harness.Must(t, release())
	harness.Must(t, <-granted)
}

// twoSemaphores returns two Semaphore values of a path, of two sessions. Both can acquire free
// permits without the gate.
func twoSemaphores(t *testing.T, s, other *zsync.Session, limit int64) (mine, third *zsync.Semaphore) {
	t.Helper()
	mine, third = zsync.NewSemaphore(s, "/s", limit), zsync.NewSemaphore(other, "/s", limit)
	for _, m := range []*zsync.Semaphore{mine, third} {
		harness.Must(t, m.Acquire(t.Context(), 1))
		harness.Must(t, m.Release(1))
	}
	return mine, third
}

// The waiter is the first in the line, but its session must be confirmed before the grant, which takes
// an outage. Meanwhile, another client deletes its znode, and a third contender gets the lock.
func TestAWaiterIsNotGrantedIfItsZnodeIsDeletedDuringTheConfirmation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		holding, s, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		holder, waiter, third := zsync.NewMutex(holding, "/m"), zsync.NewMutex(s, "/m"), zsync.NewMutex(holding, "/m")
		harness.Must(t, holder.Lock(t.Context()))
		granted := harness.Arrive(t, func() error { return waiter.Lock(t.Context()) })
		time.Sleep(time.Minute) // then the create confirms the session no longer
		o := outageFrom(srv, s, zktest.DropRequest, func(zktest.Request) bool { return true })
		harness.Must(t, holder.Unlock())
		o.strike(t, conn, "/m", "lock-")
		o.thirdIsFirst(t, granted, func() error { return third.Lock(t.Context()) }, third.Unlock)
		harness.Must(t, waiter.Unlock())
	})
}

// A contender finds the line empty, so it sets no watch on its znode. A slow server answers the
// request that confirms the session late, over the same connection. Meanwhile, another client deletes
// the znode, and a third contender gets the lock.
func TestAContenderThatNeverWaitedIsNotGrantedIfItsZnodeIsDeletedDuringTheConfirmation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		mine, third := zsync.NewMutex(s, "/m"), zsync.NewMutex(other, "/m")
		harness.Must(t, third.Lock(t.Context())) // so the directory of the lock exists
		harness.Must(t, third.Unlock())
		time.Sleep(20 * time.Second)
		o := outageFrom(srv, s, zktest.Delay(3*time.Second), func(r zktest.Request) bool {
			return r.Op == zktest.OpDelete || r.Op == zktest.OpSync
		})
		granted := harness.Arrive(t, func() error { return mine.Lock(t.Context()) })
		o.strike(t, conn, "/m", "lock-")
		o.thirdIsFirst(t, granted, func() error { return third.Lock(t.Context()) }, third.Unlock)
		harness.Must(t, mine.Unlock())
	})
}

// The first goroutine ends its wait while it reads its znode after the outage. The second one takes
// over its place in the line. The session must not go on confirming itself when both have left.
func TestAWaitThatEndsAfterTheConfirmationConfirmsTheSessionNoLonger(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		holding, s := suite.Open(t, srv), suite.Open(t, srv)
		holder, waiter := zsync.NewMutex(holding, "/m"), zsync.NewMutex(s, "/m")
		harness.Must(t, holder.Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		first := harness.Arrive(t, func() error { return waiter.Lock(ctx) })
		second := harness.Arrive(t, func() error { return waiter.Lock(t.Context()) })
		time.Sleep(time.Minute) // then the create confirms the session no longer
		var silent, cut atomic.Bool
		var others atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != s.ID() || r.Op == zktest.OpPing:
			case silent.Load():
				return zktest.DropRequest
			case r.Op == zktest.OpGetChildren2 && strings.HasPrefix(r.Path, "/m/") && cut.CompareAndSwap(false, true):
				cancel()
				return zktest.DropRequest
			default:
				others.Add(1)
			}
			return zktest.Pass
		})
		silent.Store(true)
		harness.Must(t, holder.Unlock())
		synctest.Wait()
		silent.Store(false)
		harness.WantErr(t, <-first, context.Canceled)
		harness.Must(t, <-second)
		harness.Must(t, waiter.Unlock())
		if !cut.Load() {
			t.Fatal("the waiter has not read its znode")
		}
		time.Sleep(2 * time.Minute) // the logs of transactions are deleted
		before := others.Load()
		time.Sleep(time.Minute)
		if n := others.Load() - before; n > 0 {
			t.Errorf("%d requests in a minute without a hold", n)
		}
	})
}

func TestPermitsAreNotGrantedIfTheyAreDeletedDuringTheConfirmation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		mine, third := twoSemaphores(t, s, other, 1)
		time.Sleep(20 * time.Second) // then the create confirms the session no longer
		o := outageFrom(srv, s, zktest.Pass, func(r zktest.Request) bool { return r.Op == zktest.OpGetChildren2 && r.Path == "/s/leases" })
		granted := harness.Async(func() error { return mine.Acquire(t.Context(), 1) })
		o.strike(t, conn, "/s/leases", "")
		o.thirdIsFirst(t, granted, func() error { return third.Acquire(t.Context(), 1) }, func() error { return third.Release(1) })
		harness.Must(t, mine.Release(1))
	})
}

// The client creates the znodes of its permits, and lists the permits after an outage. The listing
// does not have a znode of its own.
func TestPermitsAreNotGrantedIfTheyAreDeletedBeforeTheListing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		mine, third := twoSemaphores(t, s, other, 1)
		o := outageFrom(srv, s, zktest.Pass, harness.Op(zktest.OpMulti))
		granted := harness.Async(func() error { return mine.Acquire(t.Context(), 1) })
		o.strike(t, conn, "/s/leases", "")
		o.on.Store(false)
		harness.Must(t, <-granted)
		if ok, err := third.TryAcquire(t.Context(), 1); ok || err != nil {
			t.Errorf("a second permit of one: %v, %v", ok, err)
		}
		harness.Must(t, mine.Release(1))
	})
}

// The client has created the znode of its permit, and the server does not answer the release of the
// gate.
func TestPermitsAreNotGrantedIfTheyAreDeletedDuringTheReleaseOfTheGate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		mine, third := twoSemaphores(t, s, other, 1)
		harness.Must(t, third.Acquire(t.Context(), 1))
		granted := harness.Arrive(t, func() error { return mine.Acquire(t.Context(), 1) })
		o := outageFrom(srv, s, zktest.Hang, harness.Op(zktest.OpDelete))
		harness.Must(t, third.Release(1))
		o.strike(t, conn, "/s/leases", "")
		o.strike(t, conn, "/s/locks", "")
		o.thirdIsFirst(t, granted, func() error { return third.Acquire(t.Context(), 1) }, func() error { return third.Release(1) })
		harness.Must(t, mine.Release(1))
	})
}

func TestAPartyDoesNotEnterIfItsZnodeIsDeletedDuringTheConfirmation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		enter := func(wg *zsync.WaitGroup) func() error { return func() error { return wg.Enter(t.Context(), 2) } }
		mine := zsync.NewWaitGroup(s, "/w")
		entered := harness.Arrive(t, enter(mine))
		name := harness.Children(t, conn, "/w/parties")[0]
		time.Sleep(20 * time.Second) // then the create confirms the session no longer
		o := outageFrom(srv, s, zktest.DropRequest, func(zktest.Request) bool { return true })
		second := zsync.NewWaitGroup(other, "/w")
		harness.Must(t, enter(second)())
		o.strike(t, conn, "/w/parties", name)
		harness.Must(t, second.Leave(t.Context()))
		third, fourth := zsync.NewWaitGroup(other, "/w"), zsync.NewWaitGroup(other, "/w")
		waits := harness.Arrive(t, enter(third))
		harness.Must(t, enter(fourth)())
		harness.Must(t, <-waits)
		o.on.Store(false)
		time.Sleep(10 * time.Second)
		harness.PendingStill(t, entered) // else three parties of two would be inside
		harness.Must(t, enter(second)())
		harness.Must(t, <-entered)
	})
}

// A contender has its turn. The record has changed since it was read, so the contender reads whether
// its function must still run. This read takes an outage.
func TestNoFunctionRunsIfTheZnodeOfItsTurnIsDeletedDuringTheLastRead(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name   string
		do     func(s *zsync.Session, f func(context.Context) error) error
		record string
		change func(s *zsync.Session) error // changes the record
	}{
		{"OnceValue", func(s *zsync.Session, f func(context.Context) error) error {
			_, err := zsync.OnceValue(s, "/o", func(ctx context.Context) (int, error) { return 1, f(ctx) })(context.Background())
			return err
		}, "/o/done", func(s *zsync.Session) error {
			o := zsync.NewOnce(s, "/o")
			return errors.Join(o.Do(context.Background(), func(context.Context) error { return nil }), o.Reset(context.Background()))
		}},
		{"Schedule", func(s *zsync.Session, f func(context.Context) error) error {
			_, err := zsync.NewSchedule(s, "/o").Do(context.Background(), suite.Noon, f)
			return err
		}, "/o/last", func(s *zsync.Session) error {
			_, err := zsync.NewSchedule(s, "/o").Do(context.Background(), suite.Noon.Add(-time.Hour), func(context.Context) error { return nil })
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
				harness.WantErr(t, c.do(other, func(context.Context) error { return failed }), failed) // makes the parent
				var running, runs atomic.Int64
				alone := func(context.Context) error {
					runs.Add(1)
					if running.Add(1) > 1 {
						t.Error("two functions run together")
					}
					time.Sleep(30 * time.Second)
					running.Add(-1)
					return nil
				}
				var changed atomic.Bool
				o := outageFrom(srv, s, zktest.DropRequest, func(r zktest.Request) bool {
					if r.Op == zktest.OpCreate && !changed.Swap(true) {
						harness.Must(t, c.change(other))
					}
					return r.Op == zktest.OpGetData && r.Path == c.record && changed.Load()
				})
				mine := harness.Arrive(t, func() error { return c.do(s, alone) })
				o.strike(t, conn, "/o", "lock-")
				third := harness.Arrive(t, func() error { return c.do(other, alone) })
				srv.SetLatency(100 * time.Microsecond) // the reply to the read comes before the client, 10 ms after the grant, sets the watch that would show the loss
				o.on.Store(false)
				harness.Must(t, <-third)
				harness.Must(t, <-mine)
				if n := runs.Load(); n != 1 {
					t.Errorf("%d functions ran, want 1", n)
				}
			})
		})
	}
}

// The read znode exists beside the write znode, but the client has no reply. Another client deletes the
// read znode. The write znode must stay until there is another read znode.
func TestADowngradeDoesNotEndIfItsZnodeIsDeletedBeforeItsReplyHasCome(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		mine, third := zsync.NewRWMutex(s, "/rw"), zsync.NewRWMutex(other, "/rw")
		harness.Must(t, mine.Lock(t.Context()))
		waits := harness.Arrive(t, func() error { return third.Lock(t.Context()) })
		o := outageFrom(srv, s, zktest.DropReply, harness.Op(zktest.OpMulti))
		done := harness.Arrive(t, func() error { return mine.Downgrade(t.Context()) })
		o.strike(t, conn, "/rw", "__READ__")
		o.on.Store(false)
		harness.Must(t, <-done)
		harness.PendingStill(t, waits)
		harness.Must(t, mine.RUnlock())
		harness.Must(t, <-waits)
	})
}

// A consumer has claimed an element, and the session must be confirmed before the program gets the
// element.
func TestAnElementIsNotDeliveredIfTheMarkIsDeletedDuringTheConfirmation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		mine, third := zsync.NewQueue[string](s, "/q"), zsync.NewQueue[string](other, "/q")
		receive := func() error {
			d, err := mine.Receive(t.Context())
			if err == nil {
				err = d.Ack(t.Context())
			}
			return err
		}
		harness.Must(t, third.Send(t.Context(), "a"))
		harness.Must(t, receive())
		got := harness.Async(receive)
		time.Sleep(20 * time.Second) // then the claim confirms the session no longer
		o := outageFrom(srv, s, zktest.DropRequest, harness.Op(zktest.OpDelete))
		harness.Must(t, third.Send(t.Context(), "b"))
		o.strike(t, conn, "/q-live", "")
		d, err := third.Receive(t.Context())
		harness.Must(t, err)
		harness.PendingStill(t, got)
		srv.SetLatency(5 * time.Millisecond)
		o.on.Store(false)
		time.Sleep(10 * time.Second)
		harness.PendingStill(t, got)
		harness.Must(t, d.Return())
		harness.Must(t, <-got)
	})
}
