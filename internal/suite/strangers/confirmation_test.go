package strangers

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Before a grant, the session must be confirmed. These tests are about outages during that time.

// The waiter is the first in the line, but its session must be confirmed before the grant, which takes
// an outage. Meanwhile, another client deletes its znode, and a third contender gets the lock.
func TestAWaiterIsNotGrantedIfItsZnodeIsDeletedDuringTheConfirmation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		holding, s, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
		holder, waiter, third := zsync.NewMutex(holding, "/m"), zsync.NewMutex(s, "/m"), zsync.NewMutex(holding, "/m")
		harness.Must(t, holder.Lock(t.Context()))
		granted := harness.Arrive(t, func() error { return waiter.Lock(t.Context()) })
		time.Sleep(time.Minute) // then the create confirms the session no longer
		var silent atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if silent.Load() && r.Session == s.ID() && r.Op != zktest.OpPing {
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		silent.Store(true)
		harness.Must(t, holder.Unlock())
		synctest.Wait()
		harness.Must(t, conn.Delete("/m/"+harness.Children(t, conn, "/m")[0], -1))
		harness.Must(t, third.Lock(t.Context()))
		silent.Store(false)
		time.Sleep(20 * time.Second)
		harness.PendingStill(t, granted)
		harness.Must(t, third.Unlock())
		harness.Must(t, <-granted)
		harness.Must(t, waiter.Unlock())
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
