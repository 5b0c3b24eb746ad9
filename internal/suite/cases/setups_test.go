package cases

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// This file is about servers that are set up otherwise than ZooKeeper's own documentation begins with, or are of
// another version.

// everyCall is one call of each kind that writes.
var everyCall = map[string]func(ctx context.Context, s *zsync.Session) error{
	"Mutex.Lock": func(ctx context.Context, s *zsync.Session) error { return zsync.NewMutex(s, "/a/m").Lock(ctx) },
	"Mutex.TryLock": func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewMutex(s, "/a/tm").TryLock(ctx)
		return err
	},
	"RWMutex.RLock": func(ctx context.Context, s *zsync.Session) error { return zsync.NewRWMutex(s, "/a/rw").RLock(ctx) },
	"Semaphore.Acquire": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewSemaphore(s, "/a/s", 2).Acquire(ctx, 1)
	},
	"WaitGroup.Add":     func(ctx context.Context, s *zsync.Session) error { return zsync.NewWaitGroup(s, "/a/wg").Add(ctx, 1) },
	"WaitGroup.Enter":   func(ctx context.Context, s *zsync.Session) error { return zsync.NewWaitGroup(s, "/a/b").Enter(ctx, 1) },
	"Once.Do":           func(ctx context.Context, s *zsync.Session) error { return zsync.NewOnce(s, "/a/o").Do(ctx, ok) },
	"Election.Campaign": func(ctx context.Context, s *zsync.Session) error { return zsync.NewElection(s, "/a/e").Campaign(ctx) },
	"Value.Store":       func(ctx context.Context, s *zsync.Session) error { return zsync.NewValue[int](s, "/a/v").Store(ctx, 1) },
	"Map.Store": func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewMap[int](s, "/a/map").Store(ctx, "k", 1)
	},
	"Int64.Add": func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewInt64(s, "/a/i").Add(ctx, 1)
		return err
	},
	"Queue.Send": func(ctx context.Context, s *zsync.Session) error { return zsync.NewQueue[int](s, "/a/q").Send(ctx, 1) },
	"Group.Join": func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewGroup[int](s, "/a/g").Join(ctx, "x", 1)
		return err
	},
	"Barrier.Close": func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/a/gate").Close(ctx) },
	"Schedule.Do": func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewSchedule(s, "/a/sc").Do(ctx, time.Now(), ok)
		return err
	},
	"Session.Txn": func(ctx context.Context, s *zsync.Session) error {
		_, err := s.Txn(ctx, &zk.CreateRequest{Path: "/x", Acl: zk.WorldACL(zk.PermAll)})
		return err
	},
}

// setUp runs f in virtual time with a server of such a setup.
func setUp(t *testing.T, f func(t *testing.T, srv *zktest.Server), opts ...zktest.Option) {
	t.Helper()
	harness.VirtualTime(t, func(t *testing.T) { f(t, zktest.Start(t, opts...)) })
}

// handshakes counts those of srv while f runs.
func handshakes(srv *zktest.Server, f func()) int64 {
	before := srv.Counts().Requests[zktest.OpConnect.String()]
	f()
	return srv.Counts().Requests[zktest.OpConnect.String()] - before
}

// Another attempt does not help, so the first call and those after it fail at once, and the servers are left in peace.
func TestEveryCallFailsWhereAllServersDemandCredentialsAndThereAreNone(t *testing.T) {
	addrs := zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
	for name, first := range everyCall {
		t.Run(name, func(t *testing.T) {
			setUp(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				start := time.Now()
				n := handshakes(srv, func() {
					harness.WantErr(t, first(t.Context(), s), zk.ErrAuthFailed)
					for name, call := range everyCall {
						if err := call(t.Context(), s); !errors.Is(err, zk.ErrAuthFailed) {
							t.Errorf("%s: %v", name, err)
						}
					}
				})
				if took := time.Since(start); took > time.Second || n > 6 { // a session that has asked in vain is ended
					t.Errorf("%d connections in %v", n, took)
				}
			}, zktest.WithRequiredAuth(), addrs)
		})
	}
}

func TestEveryCallSucceedsWhereServersDemandCredentialsAndThereAreSome(t *testing.T) {
	setUp(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, zsync.WithAuth("digest", []byte("u:p")))
		for name, call := range everyCall {
			if err := call(t.Context(), s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		srv.Disconnect(s.ID())
		harness.Must(t, zsync.NewMutex(s, "/b").Lock(t.Context()))
	}, zktest.WithRequiredAuth())
}

// One server that is set up wrongly costs a connection, not the Session.
func TestASessionGoesOnWhereOneOfTheServersDemandsCredentials(t *testing.T) {
	setUp(t, func(t *testing.T, srv *zktest.Server) {
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Addr == "127.0.0.1:2" && r.Op != zktest.OpConnect {
				return zktest.Refuse(zktest.CodeAuthRequired)
			}
			return zktest.Pass
		})
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		for name, call := range everyCall {
			if err := call(t.Context(), s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			srv.Disconnect(s.ID())
		}
		if harness.Closed(m.Lost()) {
			t.Error("the hold was lost")
		}
	}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
}

// Directories are persistent then.
func TestEveryCallSucceedsWhereTheServersKnowNoContainers(t *testing.T) {
	for name, first := range everyCall {
		t.Run(name, func(t *testing.T) {
			setUp(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				n := handshakes(srv, func() {
					harness.Must(t, first(t.Context(), s))
					for other, call := range everyCall {
						if other != name {
							harness.Must(t, call(t.Context(), s))
						}
					}
				})
				if n > 2 { // it takes one request of each kind to find out
					t.Errorf("%d connections", n)
				}
			}, zktest.WithoutRequests(zktest.OpCreateContainer, zktest.OpCreateTTL, zktest.OpMultiRead))
		})
	}
}

// A server goes on to answer that the session is another server's, which asked the leader late to continue it, until
// the client comes anew.
func TestASessionThatHasMovedIsContinuedOverAnotherConnection(t *testing.T) {
	for name, call := range everyCall {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				came := make(chan struct{}, 100)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch r.Op {
					case zktest.OpConnect:
						came <- struct{}{}
					case zktest.OpCreate, zktest.OpCreateContainer, zktest.OpDelete, zktest.OpSetData, zktest.OpMulti:
						if len(came) == 0 {
							return zktest.Fail(zktest.CodeSessionMoved)
						}
					}
					return zktest.Pass
				})
				start := time.Now()
				if err := call(t.Context(), s); err != nil || time.Since(start) > time.Second || len(came) != 1 {
					t.Errorf("%v after %v and %d connections", err, time.Since(start), len(came))
				}
			})
		})
	}
}

// A server with localSessionsEnabled keeps a session of which neither the leader nor any other server knows. Another
// connection changes nothing then, and the caller is told what the servers say.
func TestACallFailsWhereTheServersGoOnWithASessionThatHasExpired(t *testing.T) {
	for name, call := range everyCall {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				id, home := s.ID(), ""
				harness.OneByOne(srv, func(r zktest.Request) zktest.Action {
					switch {
					case r.Session != id:
					case r.Op == zktest.OpConnect && r.Addr != home:
						return zktest.Fail(zktest.CodeSessionExpired)
					case slices.Contains([]zktest.Op{zktest.OpCreate, zktest.OpCreateContainer, zktest.OpDelete, zktest.OpSetData, zktest.OpMulti}, r.Op):
						home = cmp.Or(home, r.Addr)
						return zktest.Fail(zktest.CodeSessionExpired)
					}
					return zktest.Pass
				})
				start := time.Now()
				n := handshakes(srv, func() {
					for range 2 {
						harness.WantErr(t, call(t.Context(), s), zk.ErrSessionExpired)
					}
				})
				if took := time.Since(start); took > time.Second || n > 3 || s.ID() != id {
					t.Errorf("%d connections in %v, session 0x%x became 0x%x", n, took, id, s.ID())
				}
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		})
	}
}

// If the servers have ended the session after all, the next handshake says so, and only what was held is lost.
func TestACallGoesOnInTheNextSessionWhereAServerLearnsLateThatTheFirstHasExpired(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		id := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && (r.Op == zktest.OpConnect || r.Op == zktest.OpCreate) {
				return zktest.Fail(zktest.CodeSessionExpired)
			}
			return zktest.Pass
		})
		harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
		if s.ID() == id {
			t.Error("the session that has expired goes on")
		}
	})
}

func TestARefusalThatNoRepetitionCuresEndsEveryCallAndSaysWhatIsWrong(t *testing.T) {
	for code, text := range map[int32]string{
		zktest.CodeQuotaExceeded: "the quota of a znode above the path is exceeded",
		-119:                     "read-only",
		-120:                     "localSessionsUpgradingEnabled",
		-4711:                    "server's code -4711",
	} {
		for name, call := range everyCall {
			t.Run(name, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := suite.Open(t, srv)
					srv.Intercept(func(r zktest.Request) zktest.Action {
						switch r.Op {
						case zktest.OpCreate, zktest.OpCreateContainer, zktest.OpDelete, zktest.OpSetData, zktest.OpMulti:
							return zktest.Fail(code)
						}
						return zktest.Pass
					})
					start := time.Now()
					if err := call(t.Context(), s); err == nil || !strings.Contains(err.Error(), text) || time.Since(start) > time.Second {
						t.Errorf("%d: %v after %v", code, err, time.Since(start))
					}
				})
			})
		}
	}
}

func ok(context.Context) error { return nil }
