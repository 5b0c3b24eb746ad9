package strangers

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Of the random digits of a name of zk.Lock, one stands where the version of a UUID would.
func TestALockOfGoZookeeperIsNeverTakenForARetainedPlace(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		conn, m := harness.Plain(t, srv), zsync.NewMutex(suite.Open(t, srv), "/m")
		for range 100 {
			l := zk.NewLock(conn, "/m", zk.WorldACL(zk.PermAll))
			harness.Must(t, l.Lock())
			cs, err := m.Contenders(t.Context())
			harness.Must(t, err)
			if len(cs) != 1 || !cs[0].Holding || cs[0].Retained {
				t.Errorf("one holds, and retains nothing: %+v", cs)
			}
			start := time.Now()
			if ok, err := m.TryLock(t.Context()); ok || err != nil || time.Since(start) > 0 {
				t.Errorf("TryLock behind %s: %v, %v after %v", cs[0].Node, ok, err, time.Since(start))
			}
			harness.Must(t, l.Unlock())
		}
	})
}
