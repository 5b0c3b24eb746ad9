package zsync_test

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// Each return writes what is claimed of its bucket, which may be long.
func TestReturnsIntoBucketsOfWhichMuchIsClaimedStayBelowThePacketLimit(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const buckets = 24
		s, o := open(t, srv), open(t, srv)
		q, other := zsync.NewQueue[int](s, "/q", zsync.WithPriorities(buckets)), zsync.NewQueue[int](o, "/q", zsync.WithPriorities(buckets))
		for prio := range buckets {
			must(t, other.SendPriority(t.Context(), prio, prio))
		}
		ds := collect(t, q.Deliveries(t.Context()), buckets)
		time.Sleep(time.Second) // that they are in hand is written down
		var others strings.Builder
		for n := 1001; others.Len() < 60<<10; n += 2 {
			others.WriteString("," + strconv.Itoa(n))
		}
		for _, name := range childrenOf(t, o, "/q") {
			if name[0] == 'b' {
				_, err := o.Txn(t.Context(), &zk.SetDataRequest{Path: "/q/" + name, Data: []byte("0" + others.String()), Version: -1})
				must(t, err)
			}
		}
		var largest atomic.Int64
		id := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpMulti {
				size := int64(0)
				for _, op := range r.Ops {
					size += int64(len(op.Path) + len(op.Data))
				}
				largest.Store(max(largest.Load(), size))
			}
			return zktest.Pass
		})
		srv.SetLatency(time.Millisecond) // they share transactions
		var returns sync.WaitGroup
		for _, d := range ds {
			returns.Go(func() { must(t, d.NackAfter(0)) })
		}
		returns.Wait()
		if s.ID() != id || s.Stats().Reconnects > 0 {
			t.Error("a transaction has cost the connection")
		}
		if n := largest.Load(); n < 400<<10 || n > 1<<20 {
			t.Errorf("the largest transaction had %d bytes, want some hundred thousand, and less than a mebibyte", n)
		}
	})
}
