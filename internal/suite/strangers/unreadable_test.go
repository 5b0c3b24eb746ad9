package strangers

import (
	"context"
	"errors"
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

// ZooKeeper since 3.8.4 drops a watch without an event if its client may not read the znode when that
// changes. The client takes the watch for set. So the next read sets it again: a call that
// begins when the client has its permission again does not wait in vain, nor does an earlier call.
func TestAWatchThatTheServersHaveDroppedIsSetAgainByTheNextRead(t *testing.T) {
	type call func(ctx context.Context, s *zsync.Session) error
	var semaphore *zsync.Semaphore // of the other session
	for name, c := range map[string]struct {
		znode             string // which the waiter may not read for a while
		close, wait, open call
	}{
		"Barrier": {"/p",
			func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/p").Close(ctx) },
			func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/p").Wait(ctx) },
			func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/p").Open(ctx) },
		},
		"Semaphore": {"/p/leases",
			func(ctx context.Context, s *zsync.Session) error {
				semaphore = zsync.NewSemaphore(s, "/p", 1)
				return semaphore.Acquire(ctx, 1)
			},
			func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewSemaphore(s, "/p", 1).Do(ctx, 1, func(context.Context) error { return nil })
			},
			func(context.Context, *zsync.Session) error { return semaphore.Release(1) },
		},
		"Map": {"/p",
			func(ctx context.Context, s *zsync.Session) error {
				m := zsync.NewMap[int](s, "/p")
				if err := m.Store(ctx, "k", 1); err != nil {
					return err
				}
				return m.Clear(ctx)
			},
			func(ctx context.Context, s *zsync.Session) error {
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				for all := range zsync.NewMap[int](s, "/p").Watch(ctx) {
					if len(all) > 0 {
						return nil
					}
				}
				return zsync.ErrNoValue
			},
			func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewMap[int](s, "/p").Store(ctx, "k", 1)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv, zsync.WithAuth("digest", []byte("me:secret")))
				ctx := harness.Within(t, time.Hour)
				waits := func() <-chan error {
					harness.Must(t, c.close(ctx, other))
					w := harness.Async(func() error { return c.wait(ctx, s) })
					harness.PendingStill(t, w)
					return w
				}
				first := waits()
				harness.SetACL(t, srv, c.znode, append(zk.WorldACL(zk.PermAll&^zk.PermRead), zk.DigestACL(zk.PermAll, "me", "secret")...))
				harness.Must(t, c.open(ctx, other))
				if c.znode != "/p" || name == "Map" {
					harness.SetACL(t, srv, c.znode, zk.WorldACL(zk.PermAll))
				}
				second := waits()
				harness.Must(t, c.open(ctx, other))
				harness.Must(t, <-second)
				harness.Must(t, <-first)
			})
		})
	}
}

// A waiter of a Semaphore reads the first holder from time to time. So it also learns of a release whose
// event the servers have withheld: it lists the permits, and acquires, or says that it may not read.
func TestAWaiterOfASemaphoreLearnsOfAReleaseWhoseEventTheServersHaveWithheld(t *testing.T) {
	for _, restored := range []bool{true, false} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := suite.Open(t, srv), suite.Open(t, srv, zsync.WithAuth("digest", []byte("me:secret")))
			held := zsync.NewSemaphore(other, "/p", 2)
			harness.Must(t, held.Acquire(t.Context(), 2))
			waits := harness.Async(func() error { return zsync.NewSemaphore(s, "/p", 2).Acquire(harness.Within(t, time.Hour), 1) })
			harness.PendingStill(t, waits)
			harness.SetACL(t, srv, "/p/leases", append(zk.WorldACL(zk.PermAll&^zk.PermRead), zk.DigestACL(zk.PermAll, "me", "secret")...))
			harness.Must(t, held.Release(2))
			if restored {
				harness.SetACL(t, srv, "/p/leases", zk.WorldACL(zk.PermAll))
			}
			start := time.Now()
			if err := <-waits; restored && err != nil || !restored && !errors.Is(err, zk.ErrNoAuth) || time.Since(start) > time.Minute {
				t.Errorf("permission restored: %v; after %v: %v", restored, time.Since(start), err)
			}
		})
	}
}
