package strangers

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// private makes a znode that nobody but its maker may read.
func private(t *testing.T, s *zsync.Session, path string, flags int32) {
	t.Helper()
	_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: path, Flags: flags, Acl: zk.DigestACL(zk.PermAll, "me", "secret")})
	harness.Must(t, err)
}

// Whoever may not read the one ahead of him would not be told when it goes: the
// servers drop his watch without a word. So Lock fails at once and says why,
// instead of waiting for ever, and leaves nothing in the line.
func TestLockBehindAContenderThatMayNotBeReadFailsAndSaysSo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv, zsync.WithAuth("digest", []byte("me:secret"))), suite.Open(t, srv)
		m := zsync.NewMutex(b, "/m")
		harness.Must(t, m.Do(t.Context(), func(context.Context) error { return nil }))
		private(t, a, "/m/_c_11111111-1111-1111-1111-111111111111-lock-", zk.FlagEphemeralSequential)
		for range 3 {
			start := time.Now()
			err := m.Lock(harness.Within(t, time.Hour))
			harness.WantErr(t, err, zk.ErrNoAuth)
			if took := time.Since(start); took > time.Second || !strings.Contains(err.Error(), "/m") {
				t.Errorf("after %v: %v", took, err)
			}
			synctest.Wait()
			if n := len(suite.ChildrenOf(t, b, "/m")); n != 1 {
				t.Errorf("%d in the line, want the one ahead alone", n)
			}
		}
		// It has only to go.
		suite.DeleteContender(t, a, "/m", 0)
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
	})
}

// The same of the other waits for a znode that others have made.
func TestWaitsForWhatMayNotBeReadFailAndSaySo(t *testing.T) {
	for name, wait := range map[string]struct {
		begin func(t *testing.T, s *zsync.Session) error
		from  func(path string) bool
	}{
		"a double barrier": {
			func(t *testing.T, s *zsync.Session) error {
				return zsync.NewWaitGroup(s, "/p").Enter(harness.Within(t, time.Minute), 2)
			}, func(path string) bool { return strings.HasPrefix(path, "/p") },
		},
		"a cond": {
			func(t *testing.T, s *zsync.Session) error {
				m := zsync.NewMutex(s, "/l")
				harness.Must(t, m.Lock(t.Context()))
				defer m.Unlock()
				return zsync.NewCond(s, "/p", m).Wait(harness.Within(t, time.Minute))
			}, func(path string) bool { return strings.HasPrefix(path, "/p") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch r.Op {
					case zktest.OpGetChildren2, zktest.OpGetData, zktest.OpMultiRead:
						if wait.from(r.Path) {
							return zktest.Fail(zktest.CodeNoAuth)
						}
					}
					return zktest.Pass
				})
				start := time.Now()
				err := wait.begin(t, s)
				harness.WantErr(t, err, zk.ErrNoAuth)
				if took := time.Since(start); took > 30*time.Second || !strings.Contains(err.Error(), "/p") {
					t.Errorf("after %v: %v", took, err)
				}
				srv.Intercept(nil)
				time.Sleep(2 * harness.Timeout)
				var left []string
				for _, name := range suite.ChildrenOf(t, s, "/p") {
					left = append(left, suite.ChildrenOf(t, s, "/p/"+name)...)
				}
				if len(left) > 0 {
					t.Errorf("%v are left", left)
				}
			})
		})
	}
}
