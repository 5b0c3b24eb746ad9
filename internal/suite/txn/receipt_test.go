package txn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestATxnIsNotInTheWayOfTheNext(t *testing.T) {
	suite.Anywhere(t, func(t *testing.T, connect func(opts ...zsync.Option) *zsync.Session) {
		s := connect()
		for range 50 {
			_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/a"}, &zk.CreateRequest{Path: "/a/b"})
			harness.Must(t, err)
			_, err = s.Txn(t.Context(), &zk.DeleteRequest{Path: "/a/b", Version: -1})
			harness.Must(t, err)
			_, err = s.Txn(t.Context(), &zk.DeleteRequest{Path: "/a", Version: -1})
			harness.Must(t, err)
		}
	})
}

func TestATxnThatSetsDataFiresNoWatchOfChildren(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		inc := inside.Live(t, o)
		_, err := znodes.Create(t.Context(), inc, "/a/x", nil)
		harness.Must(t, err)
		m := zsync.NewMutex(s, "/a/lock")
		harness.Must(t, m.Lock(t.Context()))
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: "/a"})
		defer inc.Watches.Leave(w)
		lock := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: "/a/lock"})
		defer inc.Watches.Leave(lock)
		for _, path := range []string{"/a", "/a/lock"} {
			_, _, err = inc.Children(t.Context(), path)
			harness.Must(t, err)
		}
		set := &zk.SetDataRequest{Path: "/a/x", Data: []byte("1"), Version: -1}
		for range 3 {
			_, err = s.Txn(t.Context(), set)
			harness.Must(t, err)
			_, err = m.Txn(t.Context(), set)
			harness.Must(t, err)
		}
		synctest.Wait()
		if harness.Closed(w.Fired) || harness.Closed(lock.Fired) {
			t.Error("a watch of the children has fired")
		}
	})
}

func TestEachTxnIsAppliedOnceThoughManyShareReceiptsAndRepliesAreLost(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv, zsync.WithSessionTimeout(time.Minute))
				_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/d"}, &zk.CreateRequest{Path: "/n"})
				harness.Must(t, err)
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(seed, 1))
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op != zktest.OpMulti && r.Op != zktest.OpExists && r.Op != zktest.OpConnect {
						return zktest.Pass
					}
					mu.Lock()
					defer mu.Unlock()
					switch rng.IntN(12) {
					case 0:
						return zktest.DropReply
					case 1:
						return zktest.DropRequest
					case 2:
						if r.Op == zktest.OpConnect {
							break
						}
						return zktest.Fail(-127) // Throttled
					case 3:
						return zktest.Delay(time.Duration(rng.IntN(3000)) * time.Microsecond)
					}
					return zktest.Pass
				})
				srv.SetLatency(time.Millisecond)
				var made, failed atomic.Int64
				var wg sync.WaitGroup
				for w := range 20 {
					wg.Go(func() {
						for i := range 5 {
							name := fmt.Sprintf("/d/%d-%d", w, i)
							if w%4 == 0 { // some cannot succeed
								_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: name}, &zk.DeleteRequest{Path: "/none", Version: -1})
								if !errors.Is(err, zk.ErrNoNode) {
									t.Errorf("%s: %v, want NoNode", name, err)
								}
								failed.Add(1)
								continue
							}
							rs, err := s.Txn(t.Context(), &zk.CreateRequest{Path: name}, &zk.SetDataRequest{Path: "/n", Version: -1})
							if err != nil || rs[0].String != name {
								t.Errorf("%s: %+v, %v", name, rs, err)
							}
							made.Add(1)
						}
					})
				}
				wg.Wait()
				srv.Intercept(nil)
				time.Sleep(time.Minute)
				stat, err := inside.Live(t, s).Exists(t.Context(), "/n")
				harness.Must(t, err)
				if n := len(suite.ChildrenOf(t, s, "/d")); n != int(made.Load()) || int(stat.Version) != n {
					t.Errorf("%d znodes and version %d; want %d", n, stat.Version, made.Load())
				}
				if n := len(suite.Ephemerals(srv, s.ID())); n > txn.MaxIdle {
					t.Errorf("%d receipts are kept, want at most %d", n, txn.MaxIdle)
				}
			})
		})
	}
}

func TestWhereTheRootIsClosedAReceiptIsGoneWhenItsTxnReturns(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		admin, s := suite.Open(t, srv), suite.Open(t, srv)
		_, err := znodes.Create(t.Context(), inside.Live(t, admin), "/a", nil)
		harness.Must(t, err)
		harness.SetACL(t, srv, "/", zk.WorldACL(zk.PermRead))
		for range 3 {
			_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/a/b"})
			harness.Must(t, err)
			_, err = s.Txn(t.Context(), &zk.DeleteRequest{Path: "/a/b", Version: -1})
			harness.Must(t, err)
			if names := suite.ChildrenOf(t, s, "/a"); len(names) != 0 {
				t.Fatalf("%q are left", names)
			}
		}
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
		_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: "/a/b"})
		harness.Must(t, err)
	})
}

func TestAReceiptThatSomebodyHasDeletedOrWrittenIsReplaced(t *testing.T) {
	for name, hurt := range map[string]func(c *zk.Conn, path string) error{
		"deleted": func(c *zk.Conn, path string) error { return c.Delete(path, -1) },
		"written": func(c *zk.Conn, path string) error { _, err := c.Set(path, nil, -1); return err },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				for i := range 3 {
					_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: fmt.Sprint("/x", i)})
					harness.Must(t, err)
					time.Sleep(time.Second) // until the one before is deleted in the background
					paths := suite.Ephemerals(srv, s.ID())
					harness.Must(t, hurt(harness.Plain(t, srv), paths[len(paths)-1]))
					_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: fmt.Sprint("/x", i)})
					harness.WantErr(t, err, zk.ErrNodeExists)
				}
				suite.AwaitLogs()
				if paths := suite.Ephemerals(srv, s.ID()); len(paths) > 1 { // one is kept for the next Txn
					t.Errorf("%q are left", paths)
				}
			})
		})
	}
}

// A client may be permitted to write a znode, and to create none. Its Txn has no receipt, so the outcome is unknown
// after a lost reply.
func TestATxnHasNoReceiptIfTheServersPermitNone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		admin, s := suite.Open(t, srv), suite.Open(t, srv)
		_, err := znodes.Create(t.Context(), inside.Live(t, admin), "/a", nil)
		harness.Must(t, err)
		for _, path := range []string{"/a", "/"} {
			harness.SetACL(t, srv, path, zk.WorldACL(zk.PermRead|zk.PermWrite))
		}
		write := &zk.SetDataRequest{Path: "/a", Data: []byte("1"), Version: 0}
		_, err = s.Txn(t.Context(), write)
		harness.Must(t, err)
		_, err = s.Txn(t.Context(), write)
		harness.WantErr(t, err, zk.ErrBadVersion)
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
		write.Version = 1
		_, err = s.Txn(t.Context(), write)
		if err == nil || !strings.Contains(err.Error(), "cannot be found out") {
			t.Errorf("after a lost reply: %v", err)
		}
		if _, stat, err := s.Get(t.Context(), "/a"); err != nil || stat.Version != 2 {
			t.Errorf("%v, %v: the version is not 2", stat, err)
		}
	})
}

// A transaction, or its reply, is lost, and before it is sent again somebody writes its
// receipt, or deletes it and makes another. Nobody can say then whether it was applied.
func TestATxnWhoseReceiptAnotherHasWrittenIsNotTakenForApplied(t *testing.T) {
	for name, hurt := range map[string]func(c *zk.Conn, path string) error{
		"written": func(c *zk.Conn, path string) error { _, err := c.Set(path, nil, -1); return err },
		"made again": func(c *zk.Conn, path string) error {
			if err := c.Delete(path, -1); err != nil {
				return err
			}
			_, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
			return err
		},
	} {
		for _, lost := range []zktest.Action{zktest.DropReply, zktest.DropRequest} {
			t.Run(fmt.Sprintf("%s/%v", name, lost), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, o := suite.Open(t, srv), suite.Open(t, srv)
					for i := range 3 { // all on one page, which is at version 2 then
						_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: fmt.Sprint("/x", i)})
						harness.Must(t, err)
					}
					c, page := harness.Plain(t, srv), suite.Ephemerals(srv, s.ID())[0]
					suite.MultisOf(srv, o, func(n int, _ int64) zktest.Action {
						switch n {
						case 1:
							return lost
						case 2:
							harness.Must(t, hurt(c, page))
						}
						return zktest.Pass
					})
					_, err := s.Txn(t.Context(), &zk.SetDataRequest{Path: "/x0", Version: -1})
					if err == nil || !strings.Contains(err.Error(), "may have been applied") {
						_, stat, _ := o.Get(t.Context(), "/x0")
						t.Errorf("Txn: %v, and it was applied %d times", err, stat.Version)
					}
					_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: "/y"})
					harness.Must(t, err)
				})
			})
		}
	}
}

// An attempt is applied, or is not, and its reply is lost; from then on the servers
// refuse every transaction.
func TestAChangeWhoseRepetitionIsRefusedIsToldAsItWas(t *testing.T) {
	t.Parallel()
	number := func(ctx context.Context, s *zsync.Session) (int, error) {
		n, _, err := zsync.NewValue[int](s, "/p").Load(ctx)
		return n, err
	}
	type user struct {
		before, change func(ctx context.Context, s *zsync.Session) error
		applied        func(ctx context.Context, s *zsync.Session) (bool, error)
	}
	users := map[string]user{
		"tasks": {
			before: func(ctx context.Context, s *zsync.Session) error { return zsync.NewWaitGroup(s, "/p").Add(ctx, 1) },
			change: func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewWaitGroup(s, "/p", zsync.WithPersistentTasks()).Add(ctx, 2)
			},
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				n, err := zsync.NewWaitGroup(s, "/p").Count(ctx)
				return n == 3, err
			},
		},
		"value": {
			before: func(ctx context.Context, s *zsync.Session) error { return zsync.NewValue[int](s, "/p").Store(ctx, 1) },
			change: func(ctx context.Context, s *zsync.Session) error { return zsync.NewValue[int](s, "/p").Store(ctx, 2) },
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				n, err := number(ctx, s)
				return n == 2, err
			},
		},
		"swap": {
			before: func(ctx context.Context, s *zsync.Session) error { return zsync.NewValue[int](s, "/p").Store(ctx, 1) },
			change: func(ctx context.Context, s *zsync.Session) error {
				_, err := zsync.NewValue[int](s, "/p").Update(ctx, func(n int) (int, error) { return n + 1, nil })
				return err
			},
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				n, err := number(ctx, s)
				return n == 2, err
			},
		},
		"map": {
			before: func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewMap[int](s, "/p").Store(ctx, "k", 1)
			},
			change: func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewMap[int](s, "/p").Store(ctx, "k", 2)
			},
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				n, _, err := zsync.NewMap[int](s, "/p").Load(ctx, "k")
				return n == 2, err
			},
		},
		"barrier": {
			change: func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/p").Close(ctx) },
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				_, _, err := s.Get(ctx, "/p")
				return err == nil, nil
			},
		},
		"open barrier": {
			before: func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/p").Close(ctx) },
			change: func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/p").Open(ctx) },
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				_, _, err := s.Get(ctx, "/p")
				return err != nil, nil
			},
		},
		"once": {
			before: func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewOnce(s, "/p").Do(ctx, func(context.Context) error { return nil })
			},
			change: func(ctx context.Context, s *zsync.Session) error { return zsync.NewOnce(s, "/p").Reset(ctx) },
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				done, err := zsync.NewOnce(s, "/p").Done(ctx)
				return !done, err
			},
		},
		"permits": {
			change: func(ctx context.Context, s *zsync.Session) error {
				return zsync.NewSemaphore(s, "/p", 1).Resize(ctx, 2)
			},
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				data, _, err := s.Get(ctx, "/p")
				return string(data) == "2\nzsync directory", err
			},
		},
		"queue": {
			before: func(ctx context.Context, s *zsync.Session) error { return zsync.NewQueue[int](s, "/p").Send(ctx, 1) },
			change: func(ctx context.Context, s *zsync.Session) error { return zsync.NewQueue[int](s, "/p").Send(ctx, 2) },
			applied: func(ctx context.Context, s *zsync.Session) (bool, error) {
				n, err := zsync.NewQueue[int](s, "/p").Len(ctx)
				return n == 2, err
			},
		},
	}
	for name, u := range users {
		for _, lost := range []zktest.Action{zktest.DropReply, zktest.DropRequest} {
			for i := range 4 {
				expires, kept := i%2 == 1, i/2 == 1
				t.Run(fmt.Sprintf("%s/%v/%v/%v", name, lost == zktest.DropReply, expires, kept), func(t *testing.T) {
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						ctx := t.Context()
						// The session ends when what was sent in it is through.
						var over atomic.Int64
						s := suite.Open(t, srv, zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
							if id := over.Swap(0); id != 0 {
								srv.Expire(id)
							}
							return srv.Dial(network, addr, timeout)
						}))
						o := suite.Open(t, srv)
						_, err := znodes.Create(ctx, inside.Live(t, o), "/p-receipts/keep", nil)
						harness.Must(t, err)
						if u.before != nil {
							harness.Must(t, u.before(ctx, o))
						}
						if kept {
							harness.Must(t, commitAcross(t, s, "/p-receipts", &zk.CreateRequest{Path: "/x", Acl: zk.WorldACL(zk.PermAll)}))
						}
						refused := false
						suite.MultisOf(srv, o, func(n int, session int64) zktest.Action {
							if n == 1 {
								if expires {
									over.Store(session)
								}
								return lost
							}
							refused = true
							return zktest.Fail(zktest.CodeNoAuth)
						})
						err = u.change(ctx, s)
						srv.Intercept(nil)
						if !refused {
							t.Fatal("no second attempt was made")
						}
						applied, e := u.applied(ctx, o)
						harness.Must(t, e)
						if applied != (lost == zktest.DropReply) {
							t.Errorf("applied: %v", applied)
						}
						if (err == nil) != applied || err != nil && !suite.IsAnswer(err, zk.ErrNoAuth) {
							t.Errorf("the change is %v; applied: %v", err, applied)
						}
					})
				})
			}
		}
	}
}

// The log is there already, and may be written, when no other may be made any more.
func TestAChangeIsAppliedOnceThoughNoLogMayBeMadeAnyMore(t *testing.T) {
	for _, lost := range []zktest.Action{zktest.DropReply, zktest.DropRequest} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx := t.Context()
			s, o := suite.Open(t, srv), suite.Open(t, srv)
			_, err := znodes.Create(ctx, inside.Live(t, o), "/v-receipts/keep", nil)
			harness.Must(t, err)
			harness.Must(t, zsync.NewValue[int](o, "/v").Store(ctx, 1))
			plain, _, err := zk.Connect([]string{srv.Addr()}, time.Second, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
			harness.Must(t, err)
			defer plain.Close()
			suite.MultisOf(srv, o, func(n int, _ int64) zktest.Action {
				if n == 1 {
					return lost
				}
				_, err := plain.SetACL("/v-receipts", zk.WorldACL(zk.PermRead), -1)
				harness.Must(t, err)
				return zktest.Pass
			})
			err = zsync.NewValue[int](s, "/v").Store(ctx, 2)
			got, _, e := zsync.NewValue[int](o, "/v").Load(ctx)
			harness.Must(t, e)
			if err != nil || got != 2 {
				t.Errorf("%v: %v, and the value is %d", lost, err, got)
			}
		})
	}
}

// The reply to a Txn is lost, and the servers refuse to show its receipt. The Txn may still be applied while the znode of
// the lock exists. So Unlock deletes this znode, and does not hand it to the next goroutine.
func TestALockIsNotHandedOnIfTheOutcomeOfATxnIsOpen(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		m, id := zsync.NewMutex(s, "/m"), s.ID()
		harness.Must(t, m.Lock(t.Context()))
		next := harness.Async(func() error { return m.Lock(t.Context()) })
		harness.PendingStill(t, next)
		lost := false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == id && r.Op == zktest.OpMulti && !lost:
				lost = true
				return zktest.DropReply
			case r.Session == id && r.Op == zktest.OpExists && lost:
				return zktest.Fail(-125)
			}
			return zktest.Pass
		})
		_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/x"})
		srv.Intercept(nil)
		if err == nil || !strings.Contains(err.Error(), "may have been applied") {
			t.Fatalf("Txn: %v", err)
		}
		before := suite.ChildrenOf(t, o, "/m")
		harness.Must(t, m.Unlock())
		harness.Must(t, <-next)
		if after := suite.ChildrenOf(t, o, "/m"); slices.Equal(before, after) {
			t.Errorf("the next goroutine has the znode of the Txn: %q", after)
		}
		harness.Must(t, m.Unlock())
	})
}

// A Txn writes a znode several times. The responses after a lost reply are those of the servers.
func TestALostReplyOfATxnWithTwoWritesOfAZnodeIsReconstructed(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		suite.Create(t, o, "/x", "")
		suite.Create(t, o, "/y", "")
		ops := []any{
			&zk.SetDataRequest{Path: "/x", Data: []byte("long"), Version: -1},
			&zk.SetDataRequest{Path: "/y", Version: -1},
			&zk.SetDataRequest{Path: "/x", Data: []byte("er"), Version: -1},
			&zk.SetDataRequest{Path: "/x", Version: -1},
		}
		want, err := s.Txn(t.Context(), ops...)
		harness.Must(t, err)
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
		got, err := s.Txn(t.Context(), ops...)
		harness.Must(t, err)
		for i, op := range ops {
			// Each time, three writes of /x and one of /y.
			version := want[i].Stat.Version + 3
			if op.(*zk.SetDataRequest).Path == "/y" {
				version = want[i].Stat.Version + 1
			}
			if got := got[i].Stat; got == nil || got.Version != version || got.DataLength != want[i].Stat.DataLength {
				t.Errorf("operation %d: %+v, want version %d and length %d", i, got, version, want[i].Stat.DataLength)
			}
		}
		// The znode that a Txn has made is not the znode that it wrote before.
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpMulti)))
		got, err = s.Txn(t.Context(), &zk.SetDataRequest{Path: "/y", Version: -1}, &zk.DeleteRequest{Path: "/y", Version: -1},
			&zk.CreateRequest{Path: "/y", Acl: zk.WorldACL(zk.PermAll)})
		harness.Must(t, err)
		if got[0].Stat != nil || got[2].String != "/y" {
			t.Errorf("the responses are %+v", got)
		}
	})
}
