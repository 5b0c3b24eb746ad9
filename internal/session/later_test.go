package session

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

// Whoever closes the Session while it comes back gives up what he holds too: the
// servers hear of it behind those who hold something, whichever way it is closed.
func TestServersHearOfACloseAtAHandshakeBehindThoseWhoHoldSomething(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		var told, ended atomic.Int64
		start := time.Now()
		inc.OnEnd(func() {
			time.Sleep(500 * time.Millisecond)
			told.Store(int64(time.Since(start)))
		})
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch r.Op {
			case zktest.OpConnect:
				return zktest.Delay(time.Second)
			case zktest.OpCloseSession:
				ended.Store(int64(time.Since(start)))
			}
			return zktest.Pass
		})
		srv.Disconnect(inc.ID.Load())
		time.Sleep(900 * time.Millisecond) // the handshake is on its way
		s.Close()
		if ended.Load() != 0 && ended.Load() < told.Load() {
			t.Errorf("the servers were asked to end the session after %v, and who holds something heard of it after %v", time.Duration(ended.Load()), time.Duration(told.Load()))
		}
		time.Sleep(2 * time.Second)
		if n := srv.Sessions(); len(n) != 0 {
			t.Errorf("sessions left: %x", n)
		}
	})
}

// Whoever has waited for so long that little is left begins to hold when the session is
// certain to live for a while, and not in the last moment before it is given up.
func TestAHoldDoesNotBeginInAHurry(t *testing.T) {
	for _, part := range []time.Duration{70, 80, 85, 88, 89} {
		t.Run(fmt.Sprintf("after %d percent of the timeout", part), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(60 * time.Millisecond)
				inc := live(t, open(t, srv))
				time.Sleep(testTimeout * part / 100)
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				left := inc.certain()
				time.Sleep(time.Second)
				if left < testTimeout/4 || !inc.Alive() {
					t.Errorf("granted with %v left, alive a second later: %v", left, inc.Alive())
				}
			})
		})
	}
}

// Servers may be configured differently: the next may grant more than was granted
// first. The session goes on with what it had, and so do the pings: the connection is
// not given up for want of one.
func TestAServerThatGrantsALongerTimeoutKeepsItsConnection(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		zktest.WithSessionTimeouts(4*testTimeout, 4*testTimeout)(srv)
		srv.Disconnect(inc.ID.Load())
		time.Sleep(time.Minute)
		if n := inc.Manager.reconnects.Load(); n != 1 || inc.Ctx.Err() != nil {
			t.Errorf("%d reconnects in a minute, %v", n, inc.Ctx.Err())
		}
	})
}

// A reply to a read of many znodes that breaks the protocol costs the connection, as
// any other does.
func TestAMalformedBundleCostsTheConnection(t *testing.T) {
	r := &pending[bundle]{Done: make(chan struct{}), call: bundleCall([]string{"/a", "/b"})}
	if _, ok := r.answer(0, []byte{1, 2, 3}); ok {
		t.Error("taken for a reply")
	}
}

// Where somebody deletes the receipt of a transaction whose reply was lost nobody can
// say whether it was applied. That is said, whichever operation the repetition fails at.
func TestATransactionWhoseReceiptWasDeletedIsNotSaidToHaveChangedNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), live(t, open(t, srv))
		_, err := s.m.Commit(t.Context(), []any{&zk.CreateRequest{Path: "/first"}})
		must(t, err)
		var sent atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && sent.Add(1) == 1:
				go func() {
					time.Sleep(100 * time.Millisecond)
					names, _, _ := other.Children(context.Background(), "/")
					for _, name := range names {
						if strings.HasPrefix(name, "_c_") {
							other.RemoveNow(context.Background(), "/"+name)
						}
					}
				}()
				return zktest.DropReply
			case r.Op == zktest.OpConnect && sent.Load() == 1:
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		_, err = s.m.Commit(t.Context(), []any{&zk.CreateRequest{Path: "/second"}})
		if err == nil || !strings.Contains(err.Error(), "may have been applied") {
			t.Errorf("it was applied, and it is said: %v", err)
		}
	})
}

// Removals that are refused are tried again at times of their own. However many wait they
// are looked at together: a look is at all of them.
func TestManyRemovalsThatAreRefusedAreLookedAtTogether(t *testing.T) {
	const n = 5000
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		var last atomic.Pointer[time.Time]
		var sent, times atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpDelete || !strings.HasPrefix(r.Path, "/d/") {
				return zktest.Pass
			}
			sent.Add(1)
			if now := time.Now(); last.Load() == nil || !last.Load().Equal(now) {
				last.Store(&now)
				times.Add(1)
			}
			return zktest.Fail(zktest.CodeNotEmpty)
		})
		var rs []*Removal
		for i := range n {
			rs = append(rs, inc.InBackground(fmt.Sprintf("/d/%d", i), nil))
		}
		time.Sleep(time.Second)
		if s, at := sent.Load(), times.Load(); s < 2*n || at > 300 {
			t.Errorf("%d attempts in a second at %d times; want at least %d, at 200 times or so", s, at, 2*n)
		}
		srv.Intercept(nil)
		for _, r := range rs {
			<-r.Done
		}
	})
}
