package znodes

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// Without the sync, the first snapshot may be older than the call.
func TestAFollowerTellsNothingIfTheServersRefuseItsSync(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := Create(t.Context(), live(t, s), "/d", nil)
		harness.Must(t, err)
		srv.Intercept(harness.First(zktest.Fail(zktest.CodeNoAuth), harness.Op(zktest.OpSync)))
		told := false
		err = FollowDir(harness.Within(t, harness.Timeout), s, "/d", false, func(map[string]session.Node, <-chan struct{}, <-chan struct{}) (bool, error) {
			told = true
			return true, nil
		})
		if harness.WantErr(t, err, zk.ErrNoAuth); told {
			t.Error("it told a snapshot")
		}
	})
}

// A reader that is still busy with a snapshot gets the next one instead, as soon as there is a change.
func TestAFollowerTellsTheNextSnapshotIfTheReaderHasNotTakenTheOneBefore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), live(t, open(t, srv))
		harness.Must(t, second(Create(t.Context(), other, "/d", nil)))
		told := errors.New("told")
		calls := 0
		err := FollowDir(harness.Within(t, harness.Timeout), s, "/d", false, func(nodes map[string]session.Node, changed, _ <-chan struct{}) (bool, error) {
			if calls++; calls == 1 {
				harness.Must(t, second(Create(t.Context(), other, "/d/x", nil)))
				<-changed
				return false, nil
			}
			if len(nodes) != 1 {
				t.Errorf("call %d: %d nodes, want 1", calls, len(nodes))
			}
			return true, told
		})
		harness.WantErr(t, err, told)
	})
}
