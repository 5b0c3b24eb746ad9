package txn

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// commitAcross applies one operation as a Value applies its own.
func commitAcross(t *testing.T, s *zsync.Session, receipts string, op any) error {
	_, err := txn.Across(t.Context(), inside.Manager(s), receipts, []any{op})
	return err
}

func TestStoresThatFollowEachOtherShareAReceiptWhichIsDeletedWhenTheyPause(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		srv.SetLatency(2 * time.Millisecond)
		v := zsync.NewValue[int](s, "/v")
		harness.Must(t, v.Store(t.Context(), 0))
		harness.Must(t, v.Store(t.Context(), 0)) // the first to what is there reads it
		before := s.Stats().Requests
		for i := range 10 {
			time.Sleep(txn.IdleTime - time.Second)
			harness.Must(t, v.Store(t.Context(), i))
		}
		if n := s.Stats().Requests - before; n != 10 {
			t.Errorf("10 Stores cost %d requests", n)
		}
		if names := suite.ChildrenOf(t, o, "/v-receipts"); len(names) != 1 {
			t.Errorf("receipts %q; want one", names)
		}
		suite.AwaitLogs()
		if names := suite.ChildrenOf(t, o, "/v-receipts"); len(names) != 0 {
			t.Errorf("receipts %q are left", names)
		}
		if n := s.Stats().Requests - before; n != 11 {
			t.Errorf("10 Stores and the deletion cost %d requests", n)
		}
		harness.Must(t, v.Store(t.Context(), 7))
		harness.Must(t, s.Close()) // at once
		if names := suite.ChildrenOf(t, o, "/v-receipts"); len(names) != 0 {
			t.Errorf("receipts %q are left by Close", names)
		}
	})
}

func TestManyStoresAtOnceKeepABoundedNumberOfReceipts(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		harness.Must(t, zsync.NewValue[int](s, "/v").Store(t.Context(), 0))
		srv.SetLatency(2 * time.Millisecond)
		for range 2 {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					if err := zsync.NewValue[int](s, "/v").Store(t.Context(), i); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			time.Sleep(100 * time.Millisecond)
			if n := len(suite.ChildrenOf(t, o, "/v-receipts")); n != txn.MaxIdle {
				t.Errorf("%d receipts are kept, want %d", n, txn.MaxIdle)
			}
		}
		if _, stat, err := o.Get(t.Context(), "/v"); err != nil || stat.Version != 200 {
			t.Errorf("%+v, %v; want 200 writes behind the first", stat, err)
		}
		suite.AwaitLogs()
		if names := suite.ChildrenOf(t, o, "/v-receipts"); len(names) != 0 {
			t.Errorf("receipts %q are left", names)
		}
	})
}

// A program that writes each path once must not fill the memory and the servers with the logs of a minute.
func TestStoresToManyPathsKeepABoundedNumberOfReceipts(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		hot := zsync.NewValue[int](s, "/hot")
		harness.Must(t, hot.Store(t.Context(), 0))
		const paths = txn.MaxIdleAll + 100
		kept := func() (n int) {
			for _, name := range suite.ChildrenOf(t, o, "/") {
				if strings.HasSuffix(name, "-receipts") {
					n += len(suite.ChildrenOf(t, o, "/"+name))
				}
			}
			return n
		}
		for i := range paths {
			harness.Must(t, zsync.NewValue[int](s, fmt.Sprintf("/v%d", i)).Store(t.Context(), i))
		}
		time.Sleep(time.Second)
		if n := kept(); n != txn.MaxIdleAll {
			t.Errorf("%d receipts are kept after Stores to %d paths; want %d", n, paths, txn.MaxIdleAll)
		}
		before := s.Stats().Requests
		harness.Must(t, hot.Store(t.Context(), 1))
		harness.Must(t, hot.Store(t.Context(), 2))
		if n := s.Stats().Requests - before; n > 3 { // the first reads the Value
			t.Errorf("two Stores to a path that is written all the time cost %d requests", n)
		}
		suite.AwaitLogs()
		if n := kept(); n != 0 {
			t.Errorf("%d receipts are left", n)
		}
	})
}

// Somebody tidies up, or writes what is not his, between two Stores, or while one has
// no reply.
func TestAKeptReceiptThatSomebodyHasDeletedOrWrittenDoesNoHarm(t *testing.T) {
	type hurt struct {
		name string
		do   func(c *zk.Conn, path string) error
	}
	for _, h := range []hurt{
		{"deleted", func(c *zk.Conn, path string) error { return c.Delete(path, -1) }},
		{"written", func(c *zk.Conn, path string) error { _, err := c.Set(path, nil, -1); return err }},
		{"closed", func(c *zk.Conn, path string) error {
			_, err := c.SetACL(path, zk.WorldACL(zk.PermRead), -1)
			return err
		}},
	} {
		for _, lost := range []zktest.Action{zktest.Pass, zktest.DropReply, zktest.DropRequest} {
			t.Run(fmt.Sprintf("%s/%v", h.name, lost), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, o := suite.Open(t, srv), suite.Open(t, srv)
					v := zsync.NewValue[int](s, "/v")
					harness.Must(t, v.Store(t.Context(), 1))
					c := harness.Plain(t, srv)
					hit := func() {
						for _, name := range suite.ChildrenOf(t, o, "/v-receipts") {
							harness.Must(t, h.do(c, "/v-receipts/"+name))
						}
					}
					if lost == zktest.Pass {
						hit()
					} else {
						suite.MultisOf(srv, o, func(n int, _ int64) zktest.Action {
							if n == 1 {
								return lost
							}
							if n == 2 {
								hit()
							}
							return zktest.Pass
						})
					}
					err := v.Store(t.Context(), 2)
					srv.Intercept(nil)
					_, stat, e := o.Get(t.Context(), "/v")
					harness.Must(t, e)
					if lost != zktest.Pass && h.name != "closed" {
						// Whether it was applied cannot be found out.
						if err == nil || !strings.Contains(err.Error(), "may have been applied") || stat.Version > 1 {
							t.Errorf("Store: %v; written %d times", err, stat.Version)
						}
					} else if harness.Must(t, err); stat.Version != 1 {
						t.Errorf("written %d times, want once", stat.Version)
					}
					harness.Must(t, v.Store(t.Context(), 3))
					harness.Must(t, v.Store(t.Context(), 4))
				})
			})
		}
	}
}

// An attempt gets nowhere, and the session ends. In the next the servers refuse it; the
// reply to what bars the first is lost, and that session ends as well. In the third
// the receipt is found given: by the bar, and not by the transaction.
func TestWhatWasBarredInASessionThatEndedIsNotTakenForApplied(t *testing.T) {
	for _, kept := range []bool{false, true} {
		for _, bar := range []zktest.Action{zktest.DropReply, zktest.DropRequest} {
			t.Run(fmt.Sprintf("%v/%v", kept, bar == zktest.DropReply), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					var over atomic.Int64 // the session that ends when its connection is replaced
					s := suite.Open(t, srv, zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
						if id := over.Swap(0); id != 0 {
							srv.Expire(id)
						}
						return srv.Dial(network, addr, timeout)
					}))
					o := suite.Open(t, srv)
					_, err := znodes.Create(t.Context(), inside.Live(t, o), "/v-receipts/keep", nil)
					harness.Must(t, err)
					harness.Must(t, zsync.NewValue[int](o, "/v").Store(t.Context(), 1))
					v := zsync.NewValue[int](s, "/v")
					want := int32(0)
					if kept {
						harness.Must(t, v.Store(t.Context(), 1))
						want++
					}
					var multis, bars atomic.Int32
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Session == o.ID() {
							return zktest.Pass
						}
						switch r.Op {
						case zktest.OpMulti:
							switch multis.Add(1) {
							case 1:
								over.Store(r.Session)
								return zktest.DropRequest
							case 2:
								return zktest.Fail(zktest.CodeNoAuth)
							}
						case zktest.OpSetData:
							if bars.Add(1) == 1 {
								over.Store(r.Session)
								return bar
							}
						}
						return zktest.Pass
					})
					err = v.Store(t.Context(), 2)
					_, stat, e := o.Get(t.Context(), "/v")
					harness.Must(t, e)
					if bars.Load() == 0 || multis.Load() < 3 {
						t.Fatalf("%d bars and %d transactions: nothing is tested", bars.Load(), multis.Load())
					}
					switch bar {
					case zktest.DropReply: // barred for good
						if !suite.IsAnswer(err, zk.ErrNoAuth) || stat.Version != want {
							t.Errorf("Store: %v, and the version is %d, want %d", err, stat.Version, want)
						}
					default: // nothing bars the third
						if err != nil || stat.Version != want+1 {
							t.Errorf("Store: %v, and the version is %d, want %d", err, stat.Version, want+1)
						}
					}
					srv.Intercept(nil)
					synctest.Wait()
				})
			})
		}
	}
}

// As before; but the session ends when the bar is found given, and is looked at. That is
// found out in the next.
func TestWhatIsLookedAtWhenTheSessionEndsIsFoundOutInTheNext(t *testing.T) {
	for _, act := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			var over atomic.Int64 // the session that ends when its connection is replaced
			s := suite.Open(t, srv, zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
				if id := over.Swap(0); id != 0 {
					srv.Expire(id)
				}
				return srv.Dial(network, addr, timeout)
			}))
			v := zsync.NewValue[int](s, "/v")
			harness.Must(t, v.Store(t.Context(), 1))
			harness.Must(t, v.Store(t.Context(), 2))
			var multis, bars, looks atomic.Int32
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch r.Op {
				case zktest.OpMulti:
					switch multis.Add(1) {
					case 1:
						over.Store(r.Session)
						return zktest.DropRequest
					case 2:
						return zktest.Fail(zktest.CodeNoAuth)
					}
				case zktest.OpSetData:
					if bars.Add(1) == 1 {
						return zktest.DropReply
					}
				case zktest.OpExists:
					if looks.Add(1) == 1 {
						over.Store(r.Session)
						return act
					}
				}
				return zktest.Pass
			})
			err := v.Store(t.Context(), 3)
			srv.Intercept(nil)
			if bars.Load() < 2 || looks.Load() < 2 {
				t.Fatalf("%d bars, %d looks: nothing is tested", bars.Load(), looks.Load())
			}
			if !suite.IsAnswer(err, zk.ErrNoAuth) || strings.Contains(err.Error(), "may have been applied") {
				t.Errorf("Store: %v; want NoAuth", err)
			}
			if got, _, err := v.Load(t.Context()); got != 2 || err != nil {
				t.Errorf("the value is %v, %v; want 2", got, err)
			}
		})
	}
}
