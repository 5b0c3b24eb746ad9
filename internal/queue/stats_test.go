package queue

import (
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// The servers refuse to list the buckets or the dead letters. Stats must not say that there are none.
func TestStatsReturnsTheErrorOfAListing(t *testing.T) {
	for _, path := range []string{"/q", "/q-dead"} {
		t.Run(path, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				q := queueAt(open(t, srv), "/q")
				send(t, q, "x")
				_, err := harness.Plain(t, srv).Create("/q-dead", nil, 0, zk.WorldACL(zk.PermAll))
				harness.Must(t, err)
				srv.Intercept(harness.First(zktest.Fail(zktest.CodeNoAuth), func(r zktest.Request) bool {
					return r.Op == zktest.OpGetChildren2 && r.Path == path
				}))
				_, err = q.Stats(t.Context())
				harness.WantErr(t, err, zk.ErrNoAuth)
			})
		})
	}
}
