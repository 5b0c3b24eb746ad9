package loss

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The servers do not let a holder read its znode for a while, as when an ACL is being changed.
func TestAHolderWhoMayNotReadItsZnodeForAWhileIsToldAllTheSame(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, s *zsync.Session, refuse func()) (told <-chan struct{}){
		"Mutex": func(t *testing.T, s *zsync.Session, refuse func()) <-chan struct{} {
			m := zsync.NewMutex(s, "/x")
			harness.Must(t, m.Lock(t.Context()))
			refuse()
			return m.Lost()
		},
		"Semaphore": func(t *testing.T, s *zsync.Session, refuse func()) <-chan struct{} {
			m := zsync.NewSemaphore(s, "/x", 3)
			harness.Must(t, m.Acquire(t.Context(), 2))
			refuse()
			return m.Lost()
		},
		"Revoke": func(t *testing.T, s *zsync.Session, refuse func()) <-chan struct{} {
			m := zsync.NewMutex(s, "/x")
			harness.Must(t, m.Lock(t.Context()))
			refuse()
			return m.Revoked()
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				id, refuse := s.ID(), atomic.Bool{}
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if refuse.Load() && r.Session == id && strings.HasPrefix(r.Path, "/x/") && (r.Op == zktest.OpGetData || strings.HasPrefix(r.Op.String(), "getChildren")) {
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				time.AfterFunc(time.Minute, func() { refuse.Store(false) })
				told := hold(t, s, func() { refuse.Store(true) })
				time.Sleep(10 * time.Minute)
				if harness.Closed(told) {
					t.Fatal("told before anything has happened")
				}
				if name == "Revoke" {
					harness.Must(t, zsync.NewMutex(other, "/x").Revoke(t.Context()))
				} else {
					deleteBelow(t, harness.Plain(t, srv), "/x")
				}
				time.Sleep(time.Second)
				if !harness.Closed(told) {
					t.Error("the holder is not told")
				}
			})
		})
	}
}

// deleteBelow deletes all below a znode that has no children.
func deleteBelow(t *testing.T, c *zk.Conn, path string) {
	t.Helper()
	for _, child := range harness.Children(t, c, path) {
		if len(harness.Children(t, c, path+"/"+child)) > 0 {
			deleteBelow(t, c, path+"/"+child)
		} else {
			harness.Must(t, c.Delete(path+"/"+child, -1))
		}
	}
}
