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

// Whoever holds something through a session that is given up is told of it, and
// has a tenth of the session timeout, before the servers can grant it to others.
func TestHoldersHaveTimeBeforeASessionThatIsGivenUpIsClosed(t *testing.T) {
	for _, holds := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			inc := live(t, open(t, srv))
			if holds {
				_, err := inc.Stake(t.Context())
				must(t, err)
			}
			var closed atomic.Int64
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpCloseSession {
					closed.Store(time.Now().UnixNano())
				}
				return zktest.Pass
			})
			start := time.Now()
			inc.giveUp()
			synctest.Wait()
			if inc.Ctx.Err() == nil {
				t.Fatal("nobody was told")
			}
			time.Sleep(time.Minute)
			took := time.Duration(closed.Load() - start.UnixNano())
			if least := testTimeout / 10; holds && took < least || !holds && took >= least {
				t.Errorf("holds: %v: the session was closed after %v", holds, took)
			}
		})
	}
}

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
			s.m.FollowDir(ctx, "/d", func(map[string]Node, <-chan struct{}) (bool, error) { cancel(); return true, nil })
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
