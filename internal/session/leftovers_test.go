package session

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

func TestAReceiptThatMayNotBeDeletedCostsNobodyTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		var slow atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/_c_"):
				return zktest.Fail(-102) // the root gives create, not delete
			case r.Op == zktest.OpMulti && slow.CompareAndSwap(false, true):
				return zktest.Delay(2 * time.Second)
			}
			return zktest.Pass
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.m.Commit(ctx, []any{&zk.CreateRequest{Path: "/x"}})
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		if inc.Ctx.Err() != nil {
			t.Errorf("the session was given up for a receipt: %v", context.Cause(inc.Ctx))
		}
	})
}

// The reply is lost, there is no connection for another attempt, and ctx ends.
func TestATransactionGivenUpBetweenTwoAttemptsLeavesNoReceipt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		inc, me := live(t, s), s.ID()
		var lost atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == me && r.Op == zktest.OpMulti && lost.CompareAndSwap(false, true):
				return zktest.DropReply
			case r.Session == me && r.Op == zktest.OpConnect && lost.Load():
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		_, err := s.m.Commit(ctx, []any{&zk.CreateRequest{Path: "/x"}})
		wantErr(t, err, context.DeadlineExceeded)
		if names := childrenOf(t, other, "/"); len(names) != 3 { // zookeeper, x, the receipt
			t.Fatalf("%q", names)
		}
		time.Sleep(testTimeout)
		if names := childrenOf(t, other, "/"); len(names) != 2 || live(t, s) != inc {
			t.Errorf("%q are left", names)
		}
	})
}

func TestFollowersOfAQuietDirectoryAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		for _, p := range []string{"/d", "/d/a", "/d/b"} {
			_, err := inc.Create(t.Context(), p, nil)
			must(t, err)
		}
		for range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			s.m.FollowDir(ctx, "/d", false, func(map[string]Node, <-chan struct{}, <-chan struct{}) (bool, error) { cancel(); return true, nil })
		}
		synctest.Wait()
		h := inc.Watches
		h.Mu.Lock()
		defer h.Mu.Unlock()
		for key, w := range h.watches {
			if len(w.told) > 1 {
				t.Errorf("%v: %d waiters, %d functions to call", key, w.waiters, len(w.told))
			}
		}
	})
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
