package session

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A transaction without a reply is found to be applied, or its caller leaves before that. In both
// cases its ephemeral znodes count.
func TestTheEphemeralZnodesOfATxnWithoutAReplyCount(t *testing.T) {
	for name, flags := range map[string]int32{"named": zk.FlagEphemeral, "numbered": zk.FlagEphemeralSequential, "abandoned": zk.FlagEphemeral} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				suite.Create(t, s, long, "")
				var lose atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMulti && lose.Swap(false) {
						return zktest.DropReply
					}
					return zktest.Pass
				})
				refused := false
				for i := 0; i < 6 && !refused; i++ {
					var ops []any
					for k := range 500 {
						ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/%d-%d-", long, i, k), Flags: flags})
					}
					lose.Store(true)
					ctx, cancel := context.WithCancel(t.Context())
					if name == "abandoned" {
						ctx, cancel = context.WithTimeout(ctx, time.Nanosecond)
					}
					_, err := s.Txn(ctx, ops...)
					cancel()
					refused = err != nil && name != "abandoned"
					time.Sleep(time.Second)
				}
				wantSize(t, srv, s, 1<<19-1<<16)
			})
		})
	}
}

// A create whose caller has left counts until its znode is deleted.
func TestTheEphemeralZnodesOfAbandonedCreatesCount(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		lock := func(limit time.Duration) error { return zsync.NewMutex(s, long).Lock(harness.Within(t, limit)) }
		harness.Must(t, lock(time.Minute))
		srv.SetLatency(time.Second)
		var all sync.WaitGroup
		for i := range 3000 {
			all.Go(func() { lock(time.Millisecond) })
			if i%500 == 499 {
				all.Wait()
			}
		}
		for i := 0; i < 300 && !t.Failed(); i++ {
			wantSize(t, srv, s, 0)
			time.Sleep(10 * time.Millisecond)
		}
		srv.SetLatency(0)
		time.Sleep(10 * time.Second)
		wantSize(t, srv, s, 0)
		harness.Must(t, zsync.NewMutex(s, long+"2").Lock(harness.Within(t, time.Minute))) // there is room again
	})
}
