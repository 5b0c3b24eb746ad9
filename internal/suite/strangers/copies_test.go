package strangers

import (
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

// copyOver deletes the znode at path and creates it again, in another session.
func copyOver(t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	data, _, err := conn.Get(path)
	harness.Must(t, err)
	_, err = conn.Multi(&zk.DeleteRequest{Path: path, Version: -1}, &zk.CreateRequest{Path: path, Data: data, Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral})
	harness.Must(t, err)
}

// Another waiter of the holder's session has set the watch on the copy, as it waits behind it.
func TestAHolderIsToldOfACopyOfItsZnodeThatItsNeighbourWatches(t *testing.T) {
	for _, neighbour := range []bool{false, true} {
		for _, c := range contests {
			t.Run(c.name, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, conn := suite.Open(t, srv), harness.Plain(t, srv)
					holder, waiter := c.enter(s, c.path), c.enter(s, c.path)
					harness.Must(t, holder.acquire(t.Context()))
					lost := holder.lost()
					copyOver(t, conn, c.path+"/"+harness.Children(t, conn, c.path)[0])
					ctx := harness.Within(t, time.Minute)
					if neighbour {
						harness.Async(func() error { return waiter.acquire(ctx) })
						synctest.Wait()
					}
					time.Sleep(time.Second)
					if !harness.Closed(lost) {
						t.Errorf("a neighbour waits: %v; the holder's znode was deleted, and it is not told", neighbour)
					}
					harness.WantErr(t, holder.release(), zsync.ErrLost)
				})
			})
		}
	}
}

func TestAWaiterIsNotGrantedOnACopyOfItsZnode(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		holding, conn := suite.Open(t, srv), harness.Plain(t, srv)
		var cut, dropped atomic.Bool
		s := suite.Open(t, srv, zsync.WithDialer(harness.DialUnless(&cut, srv)), zsync.WithRetry(zsync.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
		holder, first, second := zsync.NewMutex(holding, "/m"), zsync.NewMutex(s, "/m"), zsync.NewMutex(s, "/m")
		harness.Must(t, holder.Lock(t.Context()))
		held := harness.Children(t, conn, "/m")[0]
		srv.SetLatency(5 * time.Millisecond)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpCreate && strings.HasPrefix(r.Path, "/m/") && dropped.CompareAndSwap(false, true) {
				cut.Store(true)
				return zktest.DropReply // the first finds its znode by its name, on the next connection
			}
			return zktest.Pass
		})
		got := harness.Async(func() error { return first.Lock(t.Context()) })
		time.Sleep(100 * time.Millisecond)
		copied := ""
		for _, name := range harness.Children(t, conn, "/m") {
			if name != held {
				copied = "/m/" + name
			}
		}
		copyOver(t, conn, copied)
		ctx := harness.Within(t, 10*time.Second)
		harness.Async(func() error { return second.Lock(ctx) })
		synctest.Wait()
		cut.Store(false)
		time.Sleep(2 * time.Second)
		harness.Must(t, holder.Unlock())
		time.Sleep(2 * time.Second)
		select {
		case err := <-got:
			t.Fatalf("granted on a znode of another session: %v", err)
		default:
		}
		harness.Must(t, conn.Delete(copied, -1)) // the first has another, behind the second
		time.Sleep(time.Second)
		harness.Must(t, second.Unlock())
		soon(t, got)
	})
}
