package strangers

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A contest is for a lock or a leadership.
type contest struct {
	name  string
	path  string
	base  string // of the names of contenders
	enter func(s *zsync.Session, path string) contestant
}

type contestant struct {
	acquire func(context.Context) error
	release func() error
	lost    func() <-chan struct{}
}

var contests = []contest{
	{"Mutex", "/m", "-lock-", func(s *zsync.Session, path string) contestant {
		m := zsync.NewMutex(s, path)
		return contestant{m.Lock, m.Unlock, m.Lost}
	}},
	{"RWMutex", "/rw", "-__WRIT__", func(s *zsync.Session, path string) contestant {
		m := zsync.NewRWMutex(s, path)
		return contestant{m.Lock, m.Unlock, m.Lost}
	}},
	{"Election", "/e", "-latch-", func(s *zsync.Session, path string) contestant {
		e := zsync.NewElection(s, path)
		return contestant{e.Campaign, e.Resign, e.Lost}
	}},
}

// oneHolds runs f, which adds znodes to a line of a holder, a leaver and a waiter. The numbers of
// the leaver and the waiter begin at next, if that is not 0. The waiter must wait until the
// holder has released, and no longer.
func oneHolds(t *testing.T, next int32, f func(c contest, conn *zk.Conn)) {
	t.Helper()
	for _, c := range contests {
		t.Run(c.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ss, conn := suite.OpenEach(t, srv, 3), harness.Plain(t, srv)
				holder, leaver, waiter := c.enter(ss[0], c.path), c.enter(ss[1], c.path), c.enter(ss[2], c.path)
				for range 7 {
					harness.Must(t, holder.acquire(t.Context()))
					harness.Must(t, holder.release())
				}
				harness.Must(t, holder.acquire(t.Context()))
				if next != 0 {
					srv.SetSequence(c.path, next)
				}
				ctx, leave := context.WithCancel(t.Context())
				left := harness.Async(func() error { return leaver.acquire(ctx) })
				synctest.Wait()
				got := harness.Async(func() error { return waiter.acquire(t.Context()) })
				synctest.Wait()
				f(c, conn)
				leave()
				<-left
				harness.PendingStill(t, got)
				harness.Must(t, holder.release())
				soon(t, got)
				if harness.Closed(waiter.lost()) {
					t.Error("what was granted is lost")
				}
			})
		})
	}
}

// soon expects a success within a minute.
func soon(t *testing.T, got <-chan error) {
	t.Helper()
	select {
	case err := <-got:
		harness.Must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it still waits after a minute")
	}
}

// The server lists children in no order. With many chosen numbers, one of them is the first of
// the list.
func chooseNumbers(t *testing.T, conn *zk.Conn, c contest, number string) {
	t.Helper()
	for i := range 40 {
		_, err := conn.Create(fmt.Sprintf("%s/x%d%s%s", c.path, i, c.base, number), nil, 0, zk.WorldACL(zk.PermAll))
		harness.Must(t, err)
	}
}

func TestOneHoldsBesideChosenNumbers(t *testing.T) {
	for _, number := range []string{"-2147483640", "2147483647", "-000000001", "2147483646", "1073741900"} {
		t.Run(number, func(t *testing.T) {
			oneHolds(t, 0, func(c contest, conn *zk.Conn) { chooseNumbers(t, conn, c, number) })
		})
	}
}

func TestOneHoldsWhileTheNumbersOfAPathAreUsedUp(t *testing.T) {
	oneHolds(t, math.MaxInt32-3, func(c contest, conn *zk.Conn) {
		for i := range 60 { // contenders as Curator makes them
			_, err := conn.Create(fmt.Sprintf("%s/_c_%08x-0000-4000-8000-000000000000%s", c.path, i, c.base), nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			harness.Must(t, err)
		}
	})
}

// Servers before 3.6 go on through -1, and begin again at 0.
func TestOneHoldsWhereNumbersBeginAgain(t *testing.T) {
	for _, c := range contests {
		t.Run(c.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ss := suite.OpenEach(t, srv, 2)
				holder, waiter := c.enter(ss[0], c.path), c.enter(ss[1], c.path)
				harness.Must(t, holder.acquire(t.Context()))
				harness.Must(t, holder.release())
				srv.SetSequence(c.path, -1)
				harness.Must(t, holder.acquire(t.Context()))
				got := harness.Async(func() error { return waiter.acquire(t.Context()) })
				harness.PendingStill(t, got)
				harness.Must(t, holder.release())
				soon(t, got)
			})
		})
	}
}

// Contenders of all libraries are ephemeral. A persistent znode with an exhausted number is behind
// all of them. With the number -1, the numbers do not show the order, and the client reads the znodes.
func TestWhoComesBesideChosenNumbersHasItsTurn(t *testing.T) {
	for _, number := range []string{"-2147483640", "-000000001"} {
		for _, c := range contests {
			t.Run(c.name+", "+number, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					ss, conn := suite.OpenEach(t, srv, 2), harness.Plain(t, srv)
					holder, waiter := c.enter(ss[0], c.path), c.enter(ss[1], c.path)
					for range 7 {
						harness.Must(t, holder.acquire(t.Context()))
						harness.Must(t, holder.release())
					}
					harness.Must(t, holder.acquire(t.Context()))
					for i := range 400 {
						_, err := conn.Create(fmt.Sprintf("%s/x%d%s%s", c.path, i, c.base, number), nil, 0, zk.WorldACL(zk.PermAll))
						harness.Must(t, err)
					}
					got := harness.Async(func() error { return waiter.acquire(t.Context()) })
					time.Sleep(time.Second)
					harness.PendingStill(t, got)
					harness.Must(t, holder.release())
					soon(t, got)
					if n := len(harness.Children(t, conn, c.path)); n != 401 {
						t.Errorf("%d znodes are left beside the holder's and the strangers'", n-401)
					}
				})
			})
		}
	}
}

// A persistent znode ahead may get children, other than a contender. It blocks until it is deleted.
func TestAWaiterWaitsOnThoughThePersistentZnodeAheadGetsAChild(t *testing.T) {
	for _, c := range contests {
		t.Run(c.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, conn := suite.Open(t, srv), harness.Plain(t, srv)
				waiter := c.enter(s, c.path)
				harness.Must(t, waiter.acquire(t.Context()))
				harness.Must(t, waiter.release())
				path := c.path + "/x" + c.base + "0000000000"
				_, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
				harness.Must(t, err)
				got := harness.Async(func() error { return waiter.acquire(t.Context()) })
				harness.PendingStill(t, got)
				_, err = conn.Create(path+"/child", nil, 0, zk.WorldACL(zk.PermAll))
				harness.Must(t, err)
				time.Sleep(time.Second)
				harness.PendingStill(t, got)
				harness.Must(t, conn.Delete(path+"/child", -1))
				harness.Must(t, conn.Delete(path, -1))
				soon(t, got)
			})
		})
	}
}

// The read node of a Downgrade is created after the znodes of the waiters, and is ahead of them:
// it takes the place of the write node, which is deleted.
func TestWritersWaitForWhoHasDowngradedBesideChosenNumbers(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		t.Run(layout.String(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ss, conn := suite.OpenEach(t, srv, 3), harness.Plain(t, srv)
				var rws []*zsync.RWMutex
				for _, s := range ss {
					rws = append(rws, zsync.NewRWMutex(s, "/rw", zsync.WithLayout(layout)))
				}
				harness.Must(t, rws[0].Lock(t.Context()))
				ctx, leave := context.WithCancel(t.Context())
				left := harness.Async(func() error { return rws[1].Lock(ctx) })
				synctest.Wait()
				got := harness.Async(func() error { return rws[2].Lock(t.Context()) })
				synctest.Wait()
				base := map[zsync.Layout]string{zsync.LayoutCurator: "-__WRIT__", zsync.LayoutKazoo: "__lock__"}[layout]
				for i := range 40 {
					_, err := conn.Create(fmt.Sprintf("/rw/x%d%s-2147483640", i, base), nil, 0, zk.WorldACL(zk.PermAll))
					harness.Must(t, err)
				}
				harness.Must(t, rws[0].Downgrade(t.Context()))
				leave()
				<-left
				harness.PendingStill(t, got)
				harness.Must(t, rws[0].RUnlock())
				soon(t, got)
			})
		})
	}
}

func TestPartiesMeetBesideChosenNumbers(t *testing.T) {
	for _, number := range []string{"-2147483647", "2147483647", "-000000001", "0536870912"} {
		t.Run(number, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ss, conn := suite.OpenEach(t, srv, 2), harness.Plain(t, srv)
				first := harness.Async(func() error { return zsync.NewWaitGroup(ss[0], "/w").Enter(t.Context(), 2) })
				time.Sleep(time.Second)
				for i := range 60 {
					_, err := conn.Create(fmt.Sprintf("/w/parties/x%d-2-party-%s", i, number), nil, 0, zk.WorldACL(zk.PermAll))
					harness.Must(t, err)
				}
				harness.PendingStill(t, first)
				second := harness.Async(func() error { return zsync.NewWaitGroup(ss[1], "/w").Enter(t.Context(), 2) })
				soon(t, first)
				soon(t, second)
			})
		})
	}
}

// Different kinds of locks do not exclude each other, so a contender is refused beside another
// kind, whatever the numbers are.
func TestOneOfAnotherKindWithAChosenNumberIsRefused(t *testing.T) {
	for _, number := range []string{"0000000000", "2147483647", "-2147483648", "-000000001", "1800000000"} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, conn := suite.Open(t, srv), harness.Plain(t, srv)
			m := zsync.NewMutex(s, "/m")
			for range 7 {
				harness.Must(t, m.Lock(t.Context()))
				harness.Must(t, m.Unlock())
			}
			_, err := conn.Create("/m/x-latch-"+number, nil, 0, zk.WorldACL(zk.PermAll))
			harness.Must(t, err)
			harness.WantErr(t, m.Lock(harness.Within(t, time.Minute)), zsync.ErrMixed)
		})
	}
}
