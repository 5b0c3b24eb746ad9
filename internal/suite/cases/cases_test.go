package cases

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// Each test here is about a fault that broke another library. The number is
// that of the case in docs/verification.md.

func TestCase02ASessionReplacedWithoutNoticeIsALoss(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		old := s.ID()
		srv.ChangeSession(old)
		srv.Disconnect(old)
		<-m.Lost()
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
	})
}

func TestCase03ACutOffClientDeclaresTheLossItself(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		time.Sleep(time.Minute)
		cut := time.Now()
		srv.Partition(s.ID())
		<-m.Lost()
		// A hold is certain for 7T/20 at least, and its session is confirmed while more than that is left.
		if d := time.Since(cut); d > harness.Timeout*3/4 || d < harness.Timeout*7/20 {
			t.Errorf("lost %v after the cut; want between 7/20 and 3/4 of %v", d, harness.Timeout)
		}
	})
}

func TestCase04AHandshakeThatHangsHoldsNobodyUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		addrs := srv.Addrs()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Addr == addrs[0] {
				return zktest.Hang
			}
			return zktest.Pass
		})
		start := time.Now()
		s := suite.Open(t, srv) // goes on to the other server
		if d := time.Since(start); d > harness.Timeout/2 {
			t.Errorf("Connect took %v past a server that hangs", d)
		}
		s.Close()

		srv.Intercept(func(r zktest.Request) zktest.Action { return zktest.Hang })
		start = time.Now()
		_, err := zsync.Connect(harness.Within(t, time.Second), strings.Join(addrs, ","), zsync.WithDialer(srv.Dial))
		harness.WantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > time.Second+100*time.Millisecond {
			t.Errorf("Connect returned after %v, want its context's second", d)
		}
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002"))
}

// brokenConn fails the write that comes after a number of writes.
type brokenConn struct {
	net.Conn
	left atomic.Int32
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.left.Add(-1) < 0 {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

func TestCase05AWriteThatFailsWhileCredentialsAreSentIsRetried(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var dials atomic.Int32
		dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
			c, err := srv.Dial(network, addr, timeout)
			if n := dials.Add(1); err == nil && n <= 3 {
				b := &brokenConn{Conn: c}
				b.left.Store(1) // the handshake alone gets through
				return b, nil
			}
			return c, err
		}
		s := suite.Open(t, srv, zsync.WithDialer(dial), zsync.WithAuth("digest", []byte("me:secret")), zsync.WithACL(zk.AuthACL(zk.PermAll)))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		if n := dials.Load(); n < 4 {
			t.Errorf("%d connections, want the three broken ones and a good one", n)
		}
		// The credentials count on this connection and on the next.
		srv.Disconnect(s.ID())
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		stranger := suite.Open(t, srv)
		harness.WantErr(t, zsync.NewMutex(stranger, "/m").Lock(t.Context()), zk.ErrNoAuth)
	})
}

func TestCase06NoChangeOfStateIsDropped(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		states := s.States(t.Context())
		for range 20 {
			srv.Disconnect(s.ID())
			time.Sleep(time.Second)
		}
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		s.Close()
		var want []zsync.State
		for range 20 {
			want = append(want, zsync.StateSuspended, zsync.StateConnected)
		}
		want = append(want, zsync.StateSuspended, zsync.StateExpired, zsync.StateConnecting, zsync.StateConnected, zsync.StateClosed)
		var got []zsync.State
		for st := range states {
			got = append(got, st)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
	})
}

func TestCase07AnAbandonedCreateIsCollected(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		srv.Intercept(harness.First(zktest.Delay(2*time.Second), harness.Op(zktest.OpCreate)))
		start := time.Now()
		harness.WantErr(t, m.Lock(harness.Within(t, time.Second)), context.DeadlineExceeded)
		if d := time.Since(start); d > time.Second+100*time.Millisecond {
			t.Errorf("Lock returned %v after its call, with a context of a second", d)
		}
		time.Sleep(5 * time.Second)
		if n := suite.ChildrenOf(t, s, "/m"); len(n) != 0 {
			t.Errorf("left behind: %v", n)
		}
	})
}

func TestCase08AThousandWaitersForOneZnodeShareOneWatch(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		inc := inside.Live(t, s)
		_, err := znodes.Create(t.Context(), inc, "/gate", nil)
		harness.Must(t, err)
		var woken sync.WaitGroup
		for range 1000 {
			woken.Go(func() {
				if err := inc.AwaitGone(t.Context(), "/gate"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		before := srv.Counts()
		if before.Watches != 1 {
			t.Errorf("%d watches on the server, want 1", before.Watches)
		}
		harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/gate"))
		woken.Wait()
		if n := srv.Counts().Sub(before).Notifications; n != 1 {
			t.Errorf("%d notifications, want 1", n)
		}
	})
}

func TestCase09WatchesAreSetAgainAheadOfEveryCall(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		inc := inside.Live(t, s)
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/x"})
		_, err := inc.Exists(t.Context(), "/x")
		harness.Must(t, err)
		srv.Stop()
		var waiting sync.WaitGroup
		for range 10 {
			waiting.Go(func() { inc.Exists(t.Context(), "/y") })
		}
		other := zktest.Request{}
		var mu sync.Mutex
		var ops []zktest.Op
		srv.Intercept(func(r zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			if other.Op == 0 && r.Op != zktest.OpConnect {
				other = r
			}
			ops = append(ops, r.Op)
			return zktest.Pass
		})
		srv.Restart()
		waiting.Wait()
		if other.Op != zktest.OpSetWatches {
			t.Errorf("first request of the new connection is %v, want setWatches; all: %v", other.Op, ops)
		}
		b := suite.Open(t, srv)
		_, err = znodes.Create(t.Context(), inside.Live(t, b), "/x", nil)
		harness.Must(t, err)
		harness.Must(t, session.AwaitIn(t.Context(), inc, w.Fired))
		inc.Watches.Leave(w)
	})
}

func TestCase11ReconnectingToASingleServerIsImmediate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		inc := inside.Live(t, s)
		for range 10 {
			time.Sleep(time.Second)
			start := time.Now()
			srv.Disconnect(s.ID())
			synctest.Wait()
			_, err := inc.Exists(t.Context(), "/x")
			harness.Must(t, err)
			if d := time.Since(start); d > 5*time.Millisecond {
				t.Errorf("back after %v, want at once", d)
			}
		}
	})
}

func TestCase12AForeignChildOfAnyNameDoesNoHarm(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		inc := inside.Live(t, s)
		for _, name := range []string{"_c_", "_c_short", "lock", "lock-", "x", "_c_0123456789abcdef0123456789abcdef-other-0000000000"} {
			_, err := znodes.Create(t.Context(), inc, "/m/"+name, nil)
			harness.Must(t, err)
		}
		m := zsync.NewMutex(s, "/m")
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpCreate))) // forces the search by GUID
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
	})
}

func TestCase13CloseIsPromptAndNoSessionIsOpenedAfterIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		for _, broken := range []func(*zsync.Session){
			func(*zsync.Session) {},
			func(s *zsync.Session) { srv.Stop() },
			func(s *zsync.Session) { srv.Partition(s.ID()) },
			func(s *zsync.Session) {
				srv.Intercept(func(zktest.Request) zktest.Action { return zktest.Hang })
				srv.Disconnect(s.ID())
			},
		} {
			s := suite.Open(t, srv)
			id := s.ID()
			broken(s)
			start := time.Now()
			harness.Must(t, s.Close())
			harness.Must(t, s.Close())
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("Close took %v", d)
			}
			harness.WantErr(t, zsync.NewMutex(s, "/m").Lock(t.Context()), zsync.ErrClosed)
			srv.Intercept(nil)
			srv.Heal(id)
			srv.Restart()
			time.Sleep(time.Minute)
			if n := srv.Sessions(); len(n) != 0 {
				t.Errorf("sessions after Close: %x", n)
			}
		}
	})
}

func TestCase13ADialThatHangsDoesNotHoldConnectUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		hang := func(network, addr string, timeout time.Duration) (net.Conn, error) {
			time.Sleep(timeout)
			return nil, os.ErrDeadlineExceeded
		}
		start := time.Now()
		_, err := zsync.Connect(harness.Within(t, 100*time.Millisecond), srv.Addr(), zsync.WithDialer(hang))
		harness.WantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 150*time.Millisecond {
			t.Errorf("Connect returned after %v, want its context's 100ms", d)
		}
		time.Sleep(time.Minute) // the dialer comes back
	})
}

func TestCase14ARequestOverThePacketLimitIsRefusedAndHurtsNobody(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		big := make([]byte, 1<<20)
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/big", Data: big})
		harness.WantErr(t, err, zsync.ErrTooLarge)
		if n := s.Stats().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
		_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: "/big", Data: big[:1<<20-1024]})
		harness.Must(t, err)
	})
}

func TestCase15TheNegotiatedTimeoutIsWhatCounts(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, zsync.WithSessionTimeout(time.Hour)) // the server grants a minute
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		srv.Partition(s.ID())
		start := time.Now()
		<-m.Lost()
		if d := time.Since(start); d > 54*time.Second {
			t.Errorf("lost after %v, want before the minute that was negotiated is over", d)
		}
	}, zktest.WithSessionTimeouts(time.Second, time.Minute))
}

func TestCase15PathsAreBelowTheChroot(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		plain := suite.Open(t, srv)
		s, err := zsync.Connect(t.Context(), srv.Addr()+"/some/root", zsync.WithDialer(srv.Dial))
		harness.Must(t, err)
		defer s.Close()
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		if n := suite.ChildrenOf(t, plain, "/some/root/m"); len(n) != 1 {
			t.Errorf("below the chroot: %v, want one contender", n)
		}
		rs, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/state", Flags: zk.FlagSequence})
		harness.Must(t, err)
		if !strings.HasPrefix(rs[0].String, "/state00000000") {
			t.Errorf("response %q, want a path without the chroot", rs[0].String)
		}
		harness.Must(t, m.Unlock())
	})
}

func TestCase16AnOrphanOfACreateWithoutReplyIsDeleted(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate {
				// Applied, and from then on nobody answers s for a while.
				go func() { srv.Stop(); time.Sleep(time.Second); srv.Restart() }()
				return zktest.DropReply
			}
			return zktest.Pass
		})
		harness.WantErr(t, m.Lock(harness.Within(t, 500*time.Millisecond)), context.DeadlineExceeded)
		srv.Intercept(nil)
		time.Sleep(3 * time.Second)
		harness.Must(t, zsync.NewMutex(other, "/m").Lock(harness.Within(t, time.Second)))
	})
}

func TestCase17AReleaseThatCouldNotBeSentIsMadeUpFor(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			harness.Must(t, m.Lock(t.Context()))
			id := s.ID()
			srv.Intercept(harness.First(fault, harness.Op(zktest.OpDelete)))
			harness.Must(t, m.Unlock())
			om := zsync.NewMutex(other, "/m")
			harness.Must(t, om.Lock(harness.Within(t, time.Second)))
			harness.Must(t, om.Unlock())
			if s.ID() != id {
				t.Error("the session was not kept")
			}
		}
	})
}

func TestCase18ADyingNodeOfTheOldSessionIsNeverUsed(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		addrs := srv.Addrs()
		dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
			return srv.Dial(network, addrs[0], timeout)
		}
		s := suite.Open(t, srv, zsync.WithDialer(dial))
		other := suite.Open(t, srv, zsync.WithDialer(func(network, _ string, timeout time.Duration) (net.Conn, error) {
			return srv.Dial(network, addrs[1], timeout)
		}))
		holder, m := zsync.NewMutex(other, "/m"), zsync.NewMutex(s, "/m")
		harness.Must(t, holder.Lock(t.Context()))
		// The create is applied, its reply lost; then the session expires, and
		// the server that s comes back to still shows the node of the old one.
		var cut atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate && r.Session == s.ID() && cut.CompareAndSwap(false, true) {
				return zktest.DropReply
			}
			if r.Op == zktest.OpConnect && cut.Load() && r.Session != 0 {
				srv.Freeze(addrs[0])
				srv.Expire(r.Session)
			}
			return zktest.Pass
		})
		got := harness.Async(func() error { return m.Lock(t.Context()) })
		time.Sleep(time.Second)
		harness.PendingStill(t, got)
		srv.Thaw(addrs[0])
		harness.Must(t, holder.Unlock())
		harness.Must(t, <-got)
		names := suite.ChildrenOf(t, other, "/m")
		if len(names) != 1 {
			t.Fatalf("%v, want the one node of the new session", names)
		}
		stat, err := inside.Live(t, other).Exists(t.Context(), "/m/"+names[0])
		harness.Must(t, err)
		if stat.EphemeralOwner != s.ID() {
			t.Errorf("the node belongs to session %x, want %x", stat.EphemeralOwner, s.ID())
		}
		harness.Must(t, m.Unlock())
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002"))
}

func TestCase19APredecessorThatVanishesBeforeTheWatchOnlyCausesAnotherListing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		ma, mb, mc := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m"), zsync.NewMutex(c, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		waits := harness.Async(func() error { return mb.Lock(ctx) })
		synctest.Wait()
		names := suite.ChildrenOf(t, a, "/m")
		// c lists, finds b ahead; b goes before c can watch it.
		srv.Intercept(harness.First(zktest.Delay(time.Second), func(r zktest.Request) bool {
			return r.Session == c.ID() && r.Watch
		}))
		got := harness.Async(func() error { return mc.Lock(t.Context()) })
		synctest.Wait()
		cancel()
		harness.WantErr(t, <-waits, context.Canceled)
		time.Sleep(2 * time.Second)
		harness.PendingStill(t, got)
		if now := suite.ChildrenOf(t, a, "/m"); len(now) != 2 || len(names) != 2 {
			t.Errorf("in line: %v, then %v; want c to have kept its place", names, now)
		}
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-got)
		harness.Must(t, mc.Unlock())
	})
}

func TestCase20AWaiterSurvivesTheTreeBeingRebuilt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, admin := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		got := harness.Async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		inc := inside.Live(t, admin)
		all := lock.ParseChildren(suite.ChildrenOf(t, admin, "/m"), "lock-")
		for _, c := range slices.Backward(all) { // the waiter's first
			harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/m/"+c.Name))
		}
		if err := znodes.RemoveNow(t.Context(), inc, "/m"); err != nil && !session.IsNoNode(err) && !errors.Is(err, zk.ErrNotEmpty) {
			t.Fatal(err)
		}
		harness.Must(t, <-got)
		// a's hold went with its znode, and b's is real.
		harness.WantErr(t, ma.Unlock(), zsync.ErrLost)
		if names := suite.ChildrenOf(t, admin, "/m"); len(names) != 1 {
			t.Errorf("in line: %v, want b alone", names)
		}
		harness.Must(t, mb.Unlock())
	})
}

func TestCase20ALockOnAReapedParentMakesItAgain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/deep/down/m")
		for range 3 {
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
			time.Sleep(10 * time.Minute)
			if stat, _ := inside.Live(t, s).Exists(t.Context(), "/deep/down/m"); stat != nil {
				t.Fatal("the container was not reaped")
			}
			// What is above it stays, as something may be stored there, until somebody deletes it.
			harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, s), "/deep/down"))
		}
	})
}

func TestCase21AWaiterWhoseNodeIsDeletedIsNeverGrantedOnIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		ma, mb, mc := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m"), zsync.NewMutex(c, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		got := harness.Async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		names := suite.ChildrenOf(t, a, "/m")
		for _, n := range names {
			if stat, _ := inside.Live(t, c).Exists(t.Context(), "/m/"+n); stat.EphemeralOwner == b.ID() {
				harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, c), "/m/"+n))
			}
		}
		synctest.Wait() // b has learned it, and stands in the line again
		again := suite.ChildrenOf(t, a, "/m")
		if len(again) != 2 || slices.Equal(again, names) {
			t.Fatalf("the line is %q, and was %q before b's was deleted", again, names)
		}
		next := harness.Async(func() error { return mc.Lock(t.Context()) })
		synctest.Wait()
		harness.PendingStill(t, got)
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-got)
		harness.PendingStill(t, next)
		harness.Must(t, mb.Unlock())
		harness.Must(t, <-next)
		harness.Must(t, mc.Unlock())
	})
}

func TestCase21AHolderWhoseNodeIsDeletedLearnsItAtTheNextCall(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		for _, n := range suite.ChildrenOf(t, s, "/m") {
			harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, s), "/m/"+n))
		}
		_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/written"})
		harness.WantErr(t, err, zsync.ErrLost)
		if !harness.Closed(m.Lost()) {
			t.Error("Lost is open after Txn has found the znode gone")
		}
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		if stat, _ := inside.Live(t, s).Exists(t.Context(), "/written"); stat != nil {
			t.Error("Txn wrote without the hold")
		}
	})
}

func TestCase22ATimedOutAcquireLeavesNothingHoweverItEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fault func(srv *zktest.Server, id int64)
	}{
		{"in the line", func(*zktest.Server, int64) {}},
		{"connection dropped", func(srv *zktest.Server, id int64) { srv.Disconnect(id) }},
		{"session expired", func(srv *zktest.Server, id int64) { srv.Expire(id) }},
		{"partitioned", func(srv *zktest.Server, id int64) {
			srv.Partition(id)
			time.AfterFunc(3*time.Second, func() { srv.Heal(id) })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
				harness.Must(t, ma.Lock(t.Context()))
				for range 10 {
					got := harness.Async(func() error { return mb.Lock(harness.Within(t, 100*time.Millisecond)) })
					time.Sleep(50 * time.Millisecond)
					tt.fault(srv, b.ID())
					harness.WantErr(t, <-got, context.DeadlineExceeded)
					time.Sleep(time.Minute)
					if n := suite.ChildrenOf(t, a, "/m"); len(n) != 1 {
						t.Fatalf("in line: %v, want the holder alone", n)
					}
				}
				if st := b.Stats(); st.Watches > 1 || st.Waiters != 0 || st.Holds != 0 {
					t.Errorf("left: %+v", st)
				}
				harness.Must(t, ma.Unlock())
			})
		})
	}
}

func TestCase23TwoGoroutinesOfOneSessionExcludeEachOther(t *testing.T) {
	suite.Anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		s := connect()
		ctx := harness.Within(t, 2*time.Minute)
		var in atomic.Int32
		var wg sync.WaitGroup
		shared := zsync.NewMutex(s, "/m")
		for i := range 8 {
			m := shared
			if i%2 == 0 {
				m = zsync.NewMutex(s, "/m") // another value, the same Mutex
			}
			wg.Go(func() {
				for range 10 {
					if err := m.Lock(ctx); err != nil {
						t.Error(err)
						return
					}
					if in.Add(1) != 1 {
						t.Error("two hold the Mutex")
					}
					in.Add(-1)
					if err := m.Unlock(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestCase24EveryWayOfLearningTellsTheLoss(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var kinds []zsync.EventKind
		s := suite.Open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			mu.Lock()
			kinds = append(kinds, e.Kind)
			mu.Unlock()
		})))
		m := zsync.NewMutex(s, "/m")
		states := s.States(t.Context())
		err := m.Do(t.Context(), func(ctx context.Context) error {
			_, err := m.Token(ctx)
			harness.Must(t, err)
			srv.Expire(s.ID())
			<-ctx.Done()
			harness.WantErr(t, context.Cause(ctx), zsync.ErrLost)
			<-m.Lost()
			_, err = m.Token(t.Context())
			harness.WantErr(t, err, zsync.ErrLost)
			_, err = m.Txn(t.Context(), &zk.CreateRequest{Path: "/x"})
			harness.WantErr(t, err, zsync.ErrLost)
			return nil
		})
		harness.WantErr(t, err, zsync.ErrLost)
		synctest.Wait()
		mu.Lock()
		if !slices.Contains(kinds, zsync.EventLost) || !slices.Contains(kinds, zsync.EventExpired) {
			t.Errorf("the observer was told %v", kinds)
		}
		mu.Unlock()
		for st := range states {
			if st == zsync.StateExpired {
				break
			}
		}
		if s.Stats().Expiries != 1 {
			t.Errorf("%+v", s.Stats())
		}
	})
}

func TestCase27TheOrderHoldsAcrossTwoToTheThirtyFirstCreations(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		first := zsync.NewMutex(s, "/m")
		harness.Must(t, first.Lock(t.Context()))
		harness.Must(t, first.Unlock())
		srv.SetSequence("/m", math.MaxInt32-3)
		harness.Must(t, first.Lock(t.Context()))
		order := make(chan int, 8)
		var wg sync.WaitGroup
		for i := range 8 {
			m := zsync.NewMutex(s, "/m")
			wg.Go(func() {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
				}
				order <- i
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		harness.Must(t, first.Unlock())
		for i := range 8 {
			if got := <-order; got != i {
				t.Errorf("turn %d went to waiter %d", i, got)
			}
		}
		wg.Wait()
	})
}

func TestCase27TheOrderHoldsWhereTheServerRepeatsTheLastNumber(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		first := zsync.NewMutex(s, "/m")
		harness.Must(t, first.Lock(t.Context()))
		harness.Must(t, first.Unlock())
		// As a Java server does: the last number over and over, and now and
		// then one from beyond the wrap.
		var creates atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate {
				next := int32(math.MaxInt32)
				if creates.Add(1)%3 == 0 {
					next = math.MinInt32
				}
				srv.SetSequence("/m", next)
			}
			return zktest.Pass
		})
		harness.Must(t, first.Lock(t.Context()))
		order := make(chan int, 20)
		var wg sync.WaitGroup
		var in atomic.Int32
		for i := range 20 {
			m := zsync.NewMutex(s, "/m")
			wg.Go(func() {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
				}
				if in.Add(1) != 1 {
					t.Error("two hold the Mutex")
				}
				order <- i
				time.Sleep(time.Second)
				in.Add(-1)
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		harness.Must(t, first.Unlock())
		for i := range 20 {
			if got := <-order; got != i {
				t.Errorf("turn %d went to waiter %d", i, got)
			}
		}
		wg.Wait()
	})
}

func TestCase28ContextDecidesWithinMillisecondsWhateverTheServersDo(t *testing.T) {
	for _, tt := range []struct {
		name string
		hurt func(srv *zktest.Server, id int64)
	}{
		{"stopped", func(srv *zktest.Server, id int64) { srv.Stop() }},
		{"partitioned", func(srv *zktest.Server, id int64) { srv.Partition(id) }},
		{"silent", func(srv *zktest.Server, id int64) {
			srv.Intercept(func(zktest.Request) zktest.Action { return zktest.Hang })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				m := zsync.NewMutex(s, "/m")
				tt.hurt(srv, s.ID())
				for i, f := range []func(context.Context) error{
					m.Lock,
					func(ctx context.Context) error { _, err := m.TryLock(ctx); return err },
					func(ctx context.Context) error { _, err := m.Contenders(ctx); return err },
					func(ctx context.Context) error { _, err := s.Txn(ctx, &zk.CreateRequest{Path: "/x"}); return err },
				} {
					start := time.Now()
					err := f(harness.Within(t, 50*time.Millisecond))
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("call %d: %v", i, err)
					}
					if d := time.Since(start); d > 100*time.Millisecond {
						t.Errorf("returned after %v, want 100ms at most", d)
					}
				}
			})
		})
	}
}

func TestCase03AMachineThatSleptTrustsNoSessionFromBefore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		// While it slept the monotonic clock stood still, and the servers' went on.
		sleep := func(s *zsync.Session) {
			now := time.Now()
			inc := inside.Live(t, s)
			inc.LeaseMu.Lock()
			defer inc.LeaseMu.Unlock()
			inc.Lease.Sure = &lease.Instant{Mono: now, Wall: now.Round(0).Add(-harness.Timeout)}
		}
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		sleep(s)
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)

		harness.Must(t, m.Lock(t.Context()))
		woken := time.Now()
		sleep(s)
		<-m.Lost() // though nobody asks
		if d := time.Since(woken); d > harness.Timeout/10 {
			t.Errorf("lost %v after the machine woke up, want %v at most", d, harness.Timeout/10)
		}
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
	})
}

func TestCase13ADialerThatNeverReturnsDoesNotHoldCloseUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var stuck atomic.Bool
		forever := make(chan struct{})
		defer close(forever)
		s := suite.Open(t, srv, zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
			if stuck.Load() {
				<-forever
			}
			return srv.Dial(network, addr, timeout)
		}))
		stuck.Store(true)
		srv.Disconnect(s.ID())
		synctest.Wait()
		start := time.Now()
		harness.Must(t, s.Close())
		if d := time.Since(start); d > harness.Timeout/3 {
			t.Errorf("Close took %v, want no more than the dialer was given", d)
		}
	})
}

func TestCase13ADialerThatReturnsNothingIsAnError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		_, err := zsync.Connect(harness.Within(t, time.Second), srv.Addr(), zsync.WithDialer(func(string, string, time.Duration) (net.Conn, error) {
			return nil, nil
		}))
		harness.WantErr(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "dialer") {
			t.Errorf("the error does not name the reason: %v", err)
		}
	})
}

func TestCase31TheLeaderIsTheFirstEvenWhereTheServerRepeatsTheLastNumber(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		observer := zsync.NewElection(s, "/e")
		harness.Must(t, zsync.NewElection(s, "/e").Campaign(harness.Within(t, time.Second)))
		var numbers = []int32{math.MaxInt32, math.MinInt32, math.MaxInt32, math.MaxInt32}
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate {
				srv.SetSequence("/e", numbers[0])
				numbers = numbers[1:]
			}
			return zktest.Pass
		})
		es := make([]*zsync.Election, 4)
		won := make(chan int, len(es))
		for i := range es {
			es[i] = zsync.NewElection(s, "/e", zsync.WithID(fmt.Sprint(i)))
			go func() {
				if err := es[i].Campaign(t.Context()); err == nil {
					won <- i
				}
			}()
			synctest.Wait()
		}
		// The one from before leads still, then each in the order of arrival.
		for _, name := range suite.ChildrenOf(t, s, "/e") {
			if strings.HasSuffix(name, "0000000000") {
				harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, s), "/e/"+name))
			}
		}
		for i := range es {
			if got := <-won; got != i {
				t.Errorf("turn %d went to candidate %d", i, got)
			}
			c, err := observer.Leader(t.Context())
			harness.Must(t, err)
			if c.Owner != fmt.Sprint(i) {
				t.Errorf("candidate %d leads, and Leader names %s", i, c.Owner)
			}
			if c := <-observer.Observe(harness.Within(t, time.Second)); c.Owner != fmt.Sprint(i) {
				t.Errorf("candidate %d leads, and Observe names %s", i, c.Owner)
			}
			harness.Must(t, es[i].Resign())
		}
	})
}

func TestCase03NothingIsGrantedOnAnAnswerThatIsTooOld(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		old := inside.Live(t, s)
		l := lock.New(inside.Manager(s), "/m", znodes.ProtectedName, "lock-")
		for name, acquire := range map[string]func(context.Context) (*lock.Claim, error){
			"acquire": (&lock.Place{Line: &l}).Take,
			"try":     func(ctx context.Context) (*lock.Claim, error) { return l.Try(ctx, lock.Exclusive) },
		} {
			old, slept := inside.Live(t, s), false
			l.Defers = func(*lock.Claim, []string) bool {
				if len(suite.ChildrenOf(t, s, "/m")) > 0 && !slept {
					// The answer that it is our turn has come; then the
					// machine sleeps for longer than the session lives.
					slept = true
					now := time.Now()
					old.LeaseMu.Lock()
					old.Lease.Heard = lease.Instant{Mono: now, Wall: now.Round(0).Add(-harness.Timeout)}
					old.LeaseMu.Unlock()
				}
				return false
			}
			p, err := acquire(t.Context())
			harness.Must(t, err)
			if !slept || p != nil && p.Incarnation == old {
				t.Errorf("%s: granted in the session from before the sleep", name)
			}
			if p != nil { // try may find the znode of the former session in its way
				p.Leave().Await(time.Second)
			}
		}
		if old.Alive() {
			t.Error("the first session is believed in")
		}
	})
}

func TestCase14AnIDOverThePacketLimitIsRefusedAndHurtsNobody(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		e := zsync.NewElection(s, "/e", zsync.WithID(strings.Repeat("x", 1<<20)))
		harness.WantErr(t, e.Campaign(harness.Within(t, time.Second)), zsync.ErrTooLarge)
		if n := s.Stats().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

func TestCase24ALostHoldIsNotPassedOnToTheNextGoroutine(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		next := harness.Async(func() error { return m.Lock(t.Context()) })
		synctest.Wait()
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, <-next)
		if harness.Closed(m.Lost()) || len(suite.ChildrenOf(t, other, "/m")) != 1 {
			t.Error("the next goroutine was given what was lost")
		}
		harness.Must(t, m.Unlock())
	})
}

func TestCase08CancelledWaitsForManyZnodesKeepNoWatches(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		inc := inside.Live(t, s)
		for i := range 2 * conn.MaxIdleWatches {
			path := fmt.Sprintf("/n%d", i)
			harness.Must(t, zsync.NewBarrier(s, path).Close(t.Context()))
			harness.WantErr(t, inc.AwaitGone(harness.Within(t, time.Second), path), context.DeadlineExceeded)
			harness.WantErr(t, zsync.NewBarrier(s, path).Wait(harness.Within(t, time.Second)), context.DeadlineExceeded)
		}
		synctest.Wait()
		if client, server := s.Stats().Watches, srv.Counts().Watches; client > conn.MaxIdleWatches || server > conn.MaxIdleWatches {
			t.Errorf("%d and %d watches are kept, want %d at most", client, server, conn.MaxIdleWatches)
		}
	})
}

func TestCase18OnceRunsNothingInATurnOfTheOldSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), zsync.NewOnce(suite.Open(t, srv), "/o")
		harness.WantErr(t, other.Do(t.Context(), func(context.Context) error { return errors.ErrUnsupported }), errors.ErrUnsupported) // makes the parent
		id := s.ID()
		var creates, looks atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != id:
			case r.Op == zktest.OpCreate && creates.Add(1) == 1: // the watch on the mark fires, so it does not spare the second look
				harness.Must(t, other.Do(t.Context(), func(context.Context) error { return nil }))
				harness.Must(t, other.Reset(t.Context()))
			case r.Op == zktest.OpGetData && strings.HasSuffix(r.Path, "/done") && looks.Add(1) == 2: // it is our turn: look for the mark again
				srv.Expire(r.Session)
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		_, err := zsync.OnceValue(s, "/o", func(ctx context.Context) (int, error) {
			synctest.Wait()
			if ctx.Err() != nil {
				t.Error("the function runs without a turn")
			}
			return 1, nil
		})(t.Context())
		harness.Must(t, err)
		if s.ID() == id || looks.Load() != 2 {
			t.Errorf("%d looks for the mark in the first session", looks.Load())
		}
	})
}

func TestCase16ALostReplyIsResolvedOnAServerThatLags(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		addrs := srv.Addrs()
		var at atomic.Int32
		s := suite.Open(t, srv, zsync.WithDialer(func(network, _ string, timeout time.Duration) (net.Conn, error) {
			return srv.Dial(network, addrs[at.Load()], timeout)
		}))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		srv.Intercept(harness.First(zktest.DropReply, func(r zktest.Request) bool {
			if r.Op != zktest.OpCreate {
				return false
			}
			srv.Freeze(addrs[1]) // it does not see the create
			at.Store(1)
			return true
		}))
		harness.Must(t, m.Lock(t.Context()))
		srv.Thaw(addrs[1])
		if names := suite.ChildrenOf(t, s, "/m"); len(names) != 1 {
			t.Errorf("in line: %v, want one znode", names)
		}
		harness.Must(t, m.Unlock())
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002"))
}
