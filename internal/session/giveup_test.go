package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/zktest"
)

// closings notes when the servers are asked to close a session.
func closings(srv *zktest.Server) func() (first time.Time, n int) {
	var at, n atomic.Int64
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpCloseSession {
			at.CompareAndSwap(0, time.Now().UnixNano())
			n.Add(1)
		}
		return zktest.Pass
	})
	return func() (time.Time, int) { return time.Unix(0, at.Load()), int(n.Load()) }
}

// Whoever holds something through a session that is given up is told of it, and
// has a tenth of the session timeout, before the servers can grant it to others.
// It is given up once, however many reasons there are.
func TestHoldersHaveTimeBeforeASessionThatIsGivenUpIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		_, err := inc.Stake(t.Context())
		must(t, err)
		closed := closings(srv)
		for range 3 {
			inc.Abandon()
		}
		start := time.Now()
		synctest.Wait()
		if !errors.Is(inc.Loss(), ErrLost) {
			t.Fatal("nobody was told")
		}
		for range 20 { // more reasons, of those who are late
			time.Sleep(testTimeout / 100)
			inc.Abandon()
		}
		next := live(t, s)
		_, err = next.Stake(t.Context())
		must(t, err)
		time.Sleep(time.Minute)
		at, n := closed()
		if took := at.Sub(start); n != 1 || took < testTimeout/10 || took > testTimeout/10+testTimeout/100 {
			t.Errorf("%d sessions were closed, the first after %v; want one after %v", n, took, testTimeout/10)
		}
		if next == inc || next.Ctx.Err() != nil {
			t.Errorf("the next session was given up too: %v", next.Loss())
		}
	})
}

// Holders have that time although the whole Session fails meanwhile, because the servers refuse the
// credentials of the next session. Whoever calls Close gives up all that he holds.
func TestHoldersHaveTimeThoughTheWholeSessionFails(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		id, start := s.ID(), time.Now()
		live(t, s).Abandon()
		live(t, s)
		s.m.fail(zk.ErrAuthFailed)
		time.Sleep(time.Until(start.Add(testTimeout/10 - time.Millisecond)))
		if !slices.Contains(srv.Sessions(), id) {
			t.Error("the servers have ended the session too early")
		}
		s.m.Close()
		if ids := srv.Sessions(); len(ids) != 0 {
			t.Errorf("sessions left: %x", ids)
		}
	})
}

func TestASessionThatIsGivenUpIsClosedWithTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		closed := closings(srv)
		start := time.Now()
		inc.Abandon()
		live(t, s)
		s.m.Close()
		if _, n := closed(); n != 2 || time.Since(start) > testTimeout/20 {
			t.Errorf("%d sessions were closed after %v, want both at once", n, time.Since(start))
		}
	})
}

// setWatches sets so many watches that the next connection sets them again in portions.
func setWatches(t *testing.T, inc *Incarnation) {
	for i := range 500 {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/%d%s", i, strings.Repeat("x", 1000))})
		must(t, second(inc.Exists(t.Context(), w.Key.Path)))
	}
}

// The server hangs while the watches of a session are set again, and the session is given up then. Others
// wait no longer than the holders have.
func TestASessionThatIsGivenUpWhileItsWatchesAreSetAgainIsEndedInTime(t *testing.T) {
	const timeout = 4 * time.Second
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, func(c *Config) { c.Timeout = timeout })
		inc, id := live(t, s), s.ID()
		setWatches(t, inc)
		hung := false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpSetWatches {
				hung = true
				return zktest.Hang
			}
			return zktest.Pass
		})
		srv.Disconnect(id)
		time.Sleep(timeout / 50)
		synctest.Wait()
		if !hung || inc.Ctx.Err() != nil {
			t.Fatal("the test shows nothing")
		}
		inc.Abandon()
		time.Sleep(timeout/10 - time.Millisecond)
		if !slices.Contains(srv.Sessions(), id) {
			t.Error("ended too early")
		}
		time.Sleep(timeout / 20)
		if slices.Contains(srv.Sessions(), id) {
			t.Error("ended too late")
		}
	})
}

// Close begins after the reply to a handshake, which has renewed the session, and before the connection
// serves it: the watches are still being set again. Nobody has to wait for the expiry.
func TestCloseEndsASessionWhoseWatchesAreBeingSetAgain(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			inc := live(t, s)
			setWatches(t, inc)
			srv.SetLatency(100 * time.Millisecond)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if hangs && r.Op == zktest.OpSetWatches {
					return zktest.Hang
				}
				return zktest.Pass
			})
			srv.Disconnect(s.ID())
			time.Sleep(250 * time.Millisecond)
			if !IsClosed(inc.Disconnection()) {
				t.Fatal("the test shows nothing")
			}
			began := time.Now()
			s.m.Close()
			if took := time.Since(began); took > 1100*time.Millisecond {
				t.Errorf("server hangs %v: Close took %v", hangs, took)
			}
			synctest.Wait()
			if n := len(srv.Sessions()); n != 0 && !hangs {
				t.Errorf("%d sessions left", n)
			}
		})
	}
}

// Close begins when the handshake is over, and before the connection serves the session.
func TestCloseEndsASessionWhoseHandshakeIsJustOver(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc, closed := live(t, s), make(chan struct{})
		inc.conns.Spawn = func(f func()) { // called at the end of Begin
			go func() {
				s.m.Close()
				close(closed)
			}()
			<-inc.Ctx.Done()
			time.Sleep(time.Microsecond)
			s.m.Spawn(f)
		}
		srv.Disconnect(s.ID())
		<-closed
		if n := len(srv.Sessions()); n != 0 {
			t.Errorf("%d sessions left", n)
		}
	})
}

// The caller of Connect leaves after the reply to the first handshake, and before the reply to its credentials.
func TestConnectThatIsGivenUpInAHandshakeLeavesNoSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpAuth {
				time.Sleep(testTimeout / 50)
			}
			return zktest.Pass
		})
		cfg := testConfig()
		cfg.Dialer, cfg.Auths = srv.Dial, []conn.Auth{{Scheme: "digest", Credentials: []byte("a:b")}}
		m := New(srv.Addrs(), "", cfg)
		wantErr(t, m.Connect(within(t, testTimeout/100)), context.DeadlineExceeded)
		if n := len(srv.Sessions()); n != 1 {
			t.Fatalf("%d sessions: the test shows nothing", n)
		}
		<-m.ended
		synctest.Wait()
		if n := len(srv.Sessions()); n != 0 {
			t.Errorf("%d sessions left", n)
		}
	})
}
