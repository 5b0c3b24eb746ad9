package lock

import (
	"sync/atomic"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// Release has taken the last permit, and has not ended the hold yet. A Token or a Txn at that moment must send no
// request: it has no znode to write or to check.
func TestATokenOrATxnOfPermitsWithoutAZnodeSendsNoRequest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := open(t, srv)
		inc := incarnation(t, m)
		stake, err := inc.Stake(t.Context())
		harness.Must(t, err)
		pool := Pool{Manager: m, Root: "/s", Dir: "/s/leases", Limit: new(atomic.Int64)}
		p := pool.NewPermits(inc, stake)
		made := session.Creation{Dir: session.Dir{Path: "/s/leases"}, Paths: []string{"/s/leases/one"}}
		harness.Must(t, inc.MakeDir(t.Context(), made.Dir))
		harness.Must(t, inc.CreateEphemeral(t.Context(), &made))
		harness.Must(t, p.Add([]Permit{{Path: "/s/leases/one", Weight: 1}}, 1))
		p.mu.Lock()
		p.give(1) // as Release does before it calls `finish`
		p.mu.Unlock()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData || r.Op == zktest.OpMulti {
				t.Errorf("a write of %q", r.Path)
			}
			return zktest.Pass
		})
		_, err = p.Token(t.Context())
		harness.WantErr(t, err, ErrNotLocked)
		_, err = p.Txn(t.Context(), []any{&zk.CreateRequest{Path: "/x"}})
		harness.WantErr(t, err, ErrNotLocked)
		p.n = 0
		p.finish()
		_, err = p.Token(t.Context())
		harness.WantErr(t, err, ErrNotLocked)
	})
}
