package session

import (
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Without the sync, the first snapshot may be older than the call.
func TestAFollowerTellsNothingIfTheServersRefuseItsSync(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := live(t, s).Create(t.Context(), "/d", nil)
		must(t, err)
		srv.Intercept(harness.First(zktest.Fail(zktest.CodeNoAuth), harness.Op(zktest.OpSync)))
		told := false
		err = s.m.FollowDir(within(t, testTimeout), "/d", false, func(map[string]Node, <-chan struct{}, <-chan struct{}) (bool, error) {
			told = true
			return true, nil
		})
		if wantErr(t, err, zk.ErrNoAuth); told {
			t.Error("it told a snapshot")
		}
	})
}
