package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestWaitGroupWaitsForTheTasksOfAllSessions(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b, c := zsync.NewWaitGroup(connect(), "/w/g"), zsync.NewWaitGroup(connect(), "/w/g"), zsync.NewWaitGroup(connect(), "/w/g")
		ctx := within(t, 2*time.Minute)
		must(t, a.Wait(ctx)) // nothing added
		for range 5 {
			must(t, a.Add(ctx, 2))
			must(t, b.Add(ctx, 1))
			wantCount(t, c, 3)
			got := async(func() error { return c.Wait(ctx) })
			must(t, b.Done())
			must(t, b.Done()) // one of a's
			eventuallyCount(t, a, 1)
			select {
			case err := <-got:
				t.Fatalf("Wait returned %v with a task open", err)
			case <-time.After(20 * time.Millisecond):
			}
			must(t, c.Done())
			must(t, <-got)
			wantNegative(t, c)
			wantNegative(t, a)
			must(t, a.Wait(ctx))
		}
	})
}

// eventuallyCount is wantCount after a Done, which returns nil and goes on if servers
// take too long to answer.
func eventuallyCount(t *testing.T, wg *zsync.WaitGroup, want int) {
	t.Helper()
	eventually(t, func() error {
		if n, err := wg.Count(t.Context()); n != want || err != nil {
			return fmt.Errorf("Count = %d, %v; want %d", n, err, want)
		}
		return nil
	})
}

// wantNegative wants Done to tell that no task is open. When servers take too long to
// answer it returns nil, and the next is asked: the answers come in order.
func wantNegative(t *testing.T, wg *zsync.WaitGroup) {
	t.Helper()
	eventually(t, func() error {
		start := time.Now()
		err := wg.Done()
		if took := time.Since(start); err == nil && took < session.ReleaseTime {
			t.Fatalf("Done = nil after %v, though no task is open", took)
		}
		if !errors.Is(err, zsync.ErrNegativeCounter) {
			return fmt.Errorf("Done = %v, want ErrNegativeCounter", err)
		}
		return nil
	})
}

func TestWaitGroupSeesWhatWasAddedThroughAnotherServerBefore(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		addrs := srv.Addrs()
		at := func(addr string) *zsync.Session {
			s, err := zsync.Connect(t.Context(), addr, zsync.WithDialer(srv.Dial))
			must(t, err)
			t.Cleanup(func() { s.Close() })
			return s
		}
		a, b := zsync.NewWaitGroup(at(addrs[0]), "/w"), zsync.NewWaitGroup(at(addrs[1]), "/w")
		gate, late := zsync.NewBarrier(inside.Session(a), "/b"), zsync.NewBarrier(inside.Session(b), "/b")
		srv.SetLag(addrs[1], 5*time.Second)
		must(t, a.Add(t.Context(), 1))
		pendingStill(t, async(func() error { return b.Wait(t.Context()) }))
		wantCount(t, b, 1)
		must(t, b.Done())
		must(t, a.Wait(t.Context()))
		must(t, gate.Close(t.Context()))
		got := async(func() error { return late.Wait(t.Context()) })
		pendingStill(t, got)
		must(t, gate.Open(t.Context()))
		must(t, <-got)
	}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
}

func TestWaitGroupRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, wg := range []*zsync.WaitGroup{zsync.NewWaitGroup(nil, "/w"), zsync.NewWaitGroup(s, "w"), zsync.NewWaitGroup(s, "/w", nil)} {
			wantErr(t, wg.Add(t.Context(), 1), zsync.ErrInvalid)
			wantErr(t, wg.Done(), zsync.ErrInvalid)
			wantErr(t, wg.Wait(t.Context()), zsync.ErrInvalid)
			wantErr(t, wg.Go(t.Context(), func() {}), zsync.ErrInvalid)
			_, err := wg.Count(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
		}
		wg := zsync.NewWaitGroup(s, "/w")
		wantErr(t, wg.Go(t.Context(), nil), zsync.ErrInvalid)
		wantErr(t, wg.Add(t.Context(), math.MinInt), zsync.ErrInvalid)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		cancel(cause)
		wantErr(t, wg.Add(ctx, 1), cause, context.Canceled)
		wantErr(t, wg.Wait(ctx), cause, context.Canceled)
		wantErr(t, wg.Go(ctx, func() { t.Error("called") }), cause)
		must(t, wg.Add(t.Context(), 0))
		if n := s.Stats().Requests; n != 0 {
			t.Errorf("%d requests were sent", n)
		}
		must(t, s.Close())
		wantErr(t, wg.Add(t.Context(), 1), zsync.ErrClosed)
		wantErr(t, wg.Wait(t.Context()), zsync.ErrClosed)
		wantErr(t, wg.Done(), zsync.ErrClosed)
	})
}

func TestNegativeCounterIsRefusedAndChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewWaitGroup(open(t, srv), "/w"), zsync.NewWaitGroup(open(t, srv), "/w"), zsync.NewWaitGroup(open(t, srv), "/w")
		wantErr(t, a.Done(), zsync.ErrNegativeCounter)
		must(t, a.Add(t.Context(), 2))
		must(t, b.Add(t.Context(), 3))
		wantErr(t, a.Add(t.Context(), -6), zsync.ErrNegativeCounter)
		wantErr(t, c.Add(t.Context(), -6), zsync.ErrNegativeCounter)
		wantCount(t, c, 5)
		must(t, c.Add(t.Context(), -4))
		wantCount(t, a, 1)
		must(t, a.Add(t.Context(), -1))
		wantCount(t, b, 0)
		wantErr(t, b.Done(), zsync.ErrNegativeCounter)
	})
}

func TestAddsAndDonesOfManyGoroutinesShareRequests(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		s := open(t, srv)
		wg, same := zsync.NewWaitGroup(s, "/w"), zsync.NewWaitGroup(s, "/w")
		must(t, wg.Add(t.Context(), 1))
		synctest.Wait()
		time.Sleep(time.Second)
		before := srv.Counts()
		const n = 1000
		var gs sync.WaitGroup
		for i := range n {
			gs.Go(func() {
				g := wg
				if i%2 == 0 {
					g = same
				}
				if err := g.Add(t.Context(), 1); err != nil {
					t.Error(err)
				}
			})
		}
		gs.Wait()
		wantCount(t, wg, n+1)
		for range n + 1 {
			gs.Go(func() {
				if err := wg.Done(); err != nil {
					t.Error(err)
				}
			})
		}
		gs.Wait()
		time.Sleep(time.Second)
		d := srv.Counts().Sub(before)
		if d.Total() > 4*2+5 {
			t.Errorf("%d Adds and Dones cost %v", 2*n, d.Requests)
		}
		must(t, wg.Wait(t.Context()))
	})
}

func TestWaitCostsOneNotificationForEachSessionWithTasks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const sessions, tasks = 10, 50
		var wgs []*zsync.WaitGroup
		for range sessions {
			wg := zsync.NewWaitGroup(open(t, srv), "/w")
			must(t, wg.Add(t.Context(), tasks))
			wgs = append(wgs, wg)
		}
		waiter := open(t, srv)
		got := async(func() error { return zsync.NewWaitGroup(waiter, "/w").Wait(t.Context()) })
		synctest.Wait()
		before := srv.Counts()
		requests := waiter.Stats().Requests
		for range tasks {
			for _, wg := range wgs {
				must(t, wg.Done())
			}
		}
		must(t, <-got)
		if n := srv.Counts().Sub(before).Notifications; n > sessions {
			t.Errorf("%d notifications for %d tasks of %d sessions", n, sessions*tasks, sessions)
		}
		if n := waiter.Stats().Requests - requests; n > sessions+1 {
			t.Errorf("Wait went on with %d requests", n)
		}
	})
}

func TestCountOfAFewSessionsCostsFiveRequests(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		for range 3 {
			must(t, zsync.NewWaitGroup(open(t, srv), "/w").Add(t.Context(), 2))
		}
		s := open(t, srv)
		synctest.Wait()
		before := s.Stats().Requests
		wantCount(t, zsync.NewWaitGroup(s, "/w"), 6)
		if n := s.Stats().Requests - before; n != 5 {
			t.Errorf("%d requests, want 5", n)
		}
	})
}

func TestWaitAndCountSayThatAZnodeIsNoNumberOfTasks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wg := zsync.NewWaitGroup(s, "/w")
		_, err := znodes.Create(t.Context(), live(t, s), "/w/"+znodes.ProtectedName(znodes.NewGUID(), "tasks"), []byte("three"))
		must(t, err)
		_, err = wg.Count(t.Context())
		wantErr(t, err, zsync.ErrInvalid)
		wantErr(t, wg.Wait(within(t, time.Second)), zsync.ErrInvalid)
	})
}

func TestDoneAfterCloseIsErrLostAndErrClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wg := zsync.NewWaitGroup(s, "/w")
		must(t, wg.Add(t.Context(), 2))
		must(t, s.Close())
		wantErr(t, wg.Done(), zsync.ErrLost, zsync.ErrClosed)
		wantErr(t, wg.Done(), zsync.ErrLost, zsync.ErrClosed)
	})
}

func TestTasksEndWithTheSessionThatAddedThem(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		dying, other := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		must(t, dying.Add(t.Context(), 2))
		must(t, other.Add(t.Context(), 1))
		got := async(func() error { return other.Wait(t.Context()) })
		pendingStill(t, got)
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		wantCount(t, other, 1)
		// Its Dones end none of the tasks of others, and not its own later ones.
		must(t, other.Add(t.Context(), 1))
		wantErr(t, dying.Done(), zsync.ErrLost)
		wantErr(t, dying.Add(t.Context(), -1), zsync.ErrLost)
		must(t, dying.Add(t.Context(), 1))
		wantCount(t, other, 3)
		must(t, dying.Done())
		must(t, other.Done())
		pendingStill(t, got)
		must(t, other.Done())
		must(t, <-got)
		wantErr(t, dying.Done(), zsync.ErrNegativeCounter)
		// The same with a process that is killed: nothing comes back.
		must(t, dying.Add(t.Context(), 1))
		got = async(func() error { return other.Wait(t.Context()) })
		pendingStill(t, got)
		srv.Partition(a.ID())
		start := time.Now()
		must(t, <-got)
		if d := time.Since(start); d > 2*testTimeout {
			t.Errorf("Wait took %v", d)
		}
	})
}

// Of two tasks one is lost and one is open. What would end both at once fails, and what
// ends them one after the other then ends no other.
func TestAddThatFailsLeavesLostTasksToTheNextDone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(t *testing.T, srv *zktest.Server, wg *zsync.WaitGroup){
		"refused": func(t *testing.T, srv *zktest.Server, wg *zsync.WaitGroup) {
			multisOf(srv, open(t, srv), func(int, int64) zktest.Action { return zktest.Fail(zktest.CodeNoAuth) })
			wantErr(t, wg.Add(t.Context(), -2), zk.ErrNoAuth)
			srv.Intercept(nil)
		},
		"too many": func(t *testing.T, _ *zktest.Server, wg *zsync.WaitGroup) {
			wantErr(t, wg.Add(t.Context(), -4), zsync.ErrNegativeCounter)
		},
		"cancelled as it begins": func(t *testing.T, _ *zktest.Server, wg *zsync.WaitGroup) {
			ctx := &endsSoon{Context: t.Context(), done: make(chan struct{})}
			close(ctx.done)
			wantErr(t, wg.Add(ctx, -2), context.Canceled)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for failed := false; !failed; { // what is cancelled may have been on its way already
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := open(t, srv), open(t, srv)
					wg, other := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
					must(t, other.Add(t.Context(), 1))
					must(t, wg.Add(t.Context(), 1))
					srv.Expire(a.ID())
					time.Sleep(time.Second)
					must(t, wg.Add(t.Context(), 1))
					fail(t, srv, wg)
					time.Sleep(time.Minute)
					n, err := other.Count(t.Context())
					must(t, err)
					if failed = n == 2; !failed {
						wantCount(t, other, 1)
						return
					}
					wantErr(t, wg.Done(), zsync.ErrLost)
					wantCount(t, other, 2)
					must(t, wg.Done())
					wantCount(t, other, 1)
				})
			}
		})
	}
}

// An endsSoon is a context that ends between the look at its error and the wait for its end.
type endsSoon struct {
	context.Context
	done  chan struct{}
	asked atomic.Int32
}

func (c *endsSoon) Done() <-chan struct{} { return c.done }

func (c *endsSoon) Err() error {
	if c.asked.Add(1) == 1 {
		return nil
	}
	return context.Canceled
}

func TestPersistentTasksOutliveTheirSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		wa, wb := zsync.NewWaitGroup(a, "/w", zsync.WithPersistentTasks()), zsync.NewWaitGroup(b, "/w")
		must(t, wa.Add(t.Context(), 4))
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		wantCount(t, wb, 4)
		must(t, wa.Done())
		must(t, wb.Done())
		must(t, a.Close())
		wantCount(t, wb, 2)
		got := async(func() error { return wb.Wait(t.Context()) })
		must(t, wb.Done())
		pendingStill(t, got)
		must(t, wb.Done())
		must(t, <-got)
	})
}

func TestGoEndsItsTaskWhenTheFunctionReturnsOrExits(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		wg := zsync.NewWaitGroup(open(t, srv), "/w")
		var ran atomic.Int32
		for i := range 10 {
			must(t, wg.Go(t.Context(), func() {
				time.Sleep(time.Second)
				ran.Add(1)
				if i == 3 {
					runtime.Goexit()
				}
			}))
		}
		must(t, wg.Wait(t.Context()))
		if n := ran.Load(); n != 10 {
			t.Errorf("Wait returned after %d of 10 functions", n)
		}
	})
}

func TestDoneReturnsAtOnceWhileTheConnectionIsDown(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		wa, wb := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		must(t, wa.Add(t.Context(), 1))
		srv.Stop()
		synctest.Wait()
		start := time.Now()
		must(t, wa.Done())
		if d := time.Since(start); d > time.Second {
			t.Errorf("Done took %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, wa.Add(ctx, 1), context.DeadlineExceeded)
		srv.Restart()
		must(t, wb.Wait(t.Context()))
		time.Sleep(time.Second)
		wantCount(t, wb, 0)
	})
}

func TestCancelledAddIsTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wg := zsync.NewWaitGroup(s, "/w")
		must(t, wg.Add(t.Context(), 1))
		synctest.Wait()
		srv.SetLatency(100 * time.Millisecond)
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*15)*time.Millisecond+1)
			err := wg.Add(ctx, 5)
			cancel()
			time.Sleep(2 * time.Second)
			if err == nil {
				must(t, wg.Add(t.Context(), -5))
			} else {
				wantErr(t, err, context.DeadlineExceeded)
			}
			wantCount(t, wg, 1)
		}
		must(t, wg.Done())
		must(t, wg.Wait(t.Context()))
	})
}

func TestACancelledAddIsTakenBackAsFarAsNobodyHasEndedItsTasks(t *testing.T) {
	for name, opts := range map[string][]zsync.WaitGroupOption{"ephemeral": nil, "persistent": {zsync.WithPersistentTasks()}} {
		for ended := range 4 {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := zsync.NewWaitGroup(open(t, srv), "/w", opts...), zsync.NewWaitGroup(open(t, srv), "/w", opts...)
					must(t, a.Add(t.Context(), 1))
					multisOf(srv, inside.Session(b), func(n int, _ int64) zktest.Action {
						switch n {
						case 1:
							return zktest.DropReply
						case 2: // when it learns of it
							return zktest.Delay(time.Second)
						}
						return zktest.Pass
					})
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					wantErr(t, a.Add(ctx, 3), context.DeadlineExceeded)
					wantCount(t, b, 4)
					for range ended {
						must(t, b.Done())
					}
					must(t, b.Done()) // of the task that was added
					time.Sleep(time.Minute)
					wantCount(t, b, 0)
					must(t, b.Wait(within(t, time.Second)))
				})
			})
		}
	}
}

// Done does not wait for servers that are far away, and an Add whose ctx has ended not
// at all. What they owe then nobody else ends: neither a persistent task nor that of a
// session that lives on ends with this one.
func TestTasksAreEndedAsToldThoughTheSessionIsClosedRightAfter(t *testing.T) {
	keep := []zsync.WaitGroupOption{zsync.WithPersistentTasks()}
	done := func(t *testing.T, wg *zsync.WaitGroup) { must(t, wg.Done()) }
	for name, c := range map[string]struct {
		opts  []zsync.WaitGroupOption
		tasks int // of the session that is closed
		end   func(t *testing.T, wg *zsync.WaitGroup)
		want  int
	}{
		"Done of another's":  {nil, 0, done, 0},
		"Done of persistent": {keep, 0, done, 0},
		"cancelled Add": {keep, 1, func(t *testing.T, wg *zsync.WaitGroup) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			wantErr(t, wg.Add(ctx, 5), context.DeadlineExceeded)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				lives, ends := open(t, srv), open(t, srv)
				a, b := zsync.NewWaitGroup(lives, "/w", c.opts...), zsync.NewWaitGroup(ends, "/w", c.opts...)
				must(t, a.Add(t.Context(), 1))
				time.Sleep(time.Minute) // the receipt is deleted
				must(t, b.Add(t.Context(), c.tasks))
				srv.SetLatency(150 * time.Millisecond)
				c.end(t, b)
				start := time.Now()
				must(t, ends.Close())
				if d := time.Since(start); d > 2*time.Second {
					t.Errorf("Close took %v", d)
				}
				wantCount(t, a, c.want)
			})
		})
	}
}

// A Done that the servers refuse is tried again after a while, and Close does not drop it meanwhile.
func TestADoneThatWasRefusedIsTriedAgainBeforeTheSessionIsClosed(t *testing.T) {
	for _, cured := range []bool{true, false} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			lives, ends := open(t, srv), open(t, srv)
			opts := zsync.WithPersistentTasks()
			a, b := zsync.NewWaitGroup(lives, "/w", opts), zsync.NewWaitGroup(ends, "/w", opts)
			must(t, a.Add(t.Context(), 1))
			time.Sleep(time.Minute) // the receipt is deleted
			refuse := func(until int) {
				multisOf(srv, lives, func(n int, _ int64) zktest.Action {
					if n <= until {
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
			}
			refuse(math.MaxInt)
			must(t, b.Done())
			time.Sleep(time.Hour) // the next attempt is some time ahead
			want := 1
			if cured {
				refuse(1) // once more
				want = 0
			}
			start := time.Now()
			must(t, ends.Close())
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("Close took %v", d)
			}
			wantCount(t, a, want)
		})
	}
}

// What does not fit into one transaction is done in several.
func TestTasksOfThousandsOfSessionsAreEndedAtOnce(t *testing.T) {
	const sessions = 9000
	path := "/" + strings.Repeat("w", 100) // 1.5 MB in all
	for name, end := range map[string]func(ctx context.Context, wg *zsync.WaitGroup) error{
		"one Add": func(ctx context.Context, wg *zsync.WaitGroup) error { return wg.Add(ctx, -sessions) },
		"many Dones and an Add": func(ctx context.Context, wg *zsync.WaitGroup) error {
			var all []<-chan error
			for range sessions {
				all = append(all, async(wg.Done))
			}
			all = append(all, async(func() error { return wg.Add(ctx, 1) }), async(wg.Done))
			for _, c := range all {
				if err := <-c; err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				wg := zsync.NewWaitGroup(s, path)
				must(t, wg.Add(t.Context(), 1))
				must(t, wg.Done())
				var ops []any
				for range sessions {
					ops = append(ops, &zk.CreateRequest{Path: path + "/" + znodes.ProtectedName(znodes.NewGUID(), "tasks"), Data: []byte("1")})
					if len(ops) == 1000 {
						_, err := s.Txn(t.Context(), ops...)
						must(t, err)
						ops = nil
					}
				}
				wantCount(t, wg, sessions)
				must(t, end(t.Context(), wg))
				wantCount(t, wg, 0)
				wantErr(t, wg.Add(t.Context(), -1), zsync.ErrNegativeCounter)
			})
		})
	}
}

func TestTasksAreEndedAsToldThoughTheServersRefuseItAtFirst(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]zsync.WaitGroupOption{"ephemeral": nil, "persistent": {zsync.WithPersistentTasks()}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := zsync.NewWaitGroup(open(t, srv, longSession), "/w", opts...), zsync.NewWaitGroup(open(t, srv, suite.LongSession), "/w", opts...)
				must(t, a.Add(t.Context(), 2))
				refused := 0
				multisOf(srv, inside.Session(b), func(n int, _ int64) zktest.Action {
					switch {
					case n == 1: // the Add
						return zktest.Delay(time.Second)
					case n < 6:
						refused++
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				wantErr(t, a.Add(ctx, 3), context.DeadlineExceeded)
				time.Sleep(time.Hour)
				wantCount(t, b, 2)
				multisOf(srv, inside.Session(b), func(n int, _ int64) zktest.Action {
					switch {
					case n == 1:
						time.Sleep(time.Second) // Done does not wait for so long
						fallthrough
					case n < 6:
						refused++
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				must(t, a.Done())
				wantCount(t, b, 2)
				time.Sleep(time.Hour)
				wantCount(t, b, 1)
				if refused < 8 {
					t.Errorf("%d requests were refused", refused)
				}
				// Who gives nothing up is told, and it is not tried again.
				multisOf(srv, inside.Session(b), func(int, int64) zktest.Action { return zktest.Fail(zktest.CodeNoAuth) })
				wantErr(t, a.Add(t.Context(), -1), zk.ErrNoAuth)
				srv.Intercept(nil)
				time.Sleep(time.Hour)
				wantCount(t, b, 1)
				multisOf(srv, inside.Session(b), func(int, int64) zktest.Action { return zktest.Fail(zktest.CodeNoAuth) })
				must(t, a.Done())
				time.Sleep(time.Hour)
				wantCount(t, b, 1)
				srv.Intercept(nil)
				time.Sleep(time.Minute)
				wantCount(t, b, 0)
			}, longSessions)
		})
	}
}

// Another program's znode among those with open tasks hides how many there are. A
// task whose end nobody would be told of is ended when that znode has gone.
func TestTasksAreEndedAsToldThoughAnotherProgramsZnodeIsInTheWayAtFirst(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, srv *zktest.Server, a, b *zsync.WaitGroup, done chan struct{}){
		"Go": func(_ *testing.T, _ *zktest.Server, _, _ *zsync.WaitGroup, done chan struct{}) { close(done) },
		"a Done that has returned": func(t *testing.T, srv *zktest.Server, a, b *zsync.WaitGroup, _ chan struct{}) {
			multisOf(srv, inside.Session(b), func(n int, _ int64) zktest.Action {
				if n == 1 {
					time.Sleep(time.Second) // Done does not wait for so long
				}
				return zktest.Pass
			})
			must(t, a.Done())
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := zsync.NewWaitGroup(open(t, srv), "/w"), zsync.NewWaitGroup(open(t, srv), "/w")
				done := make(chan struct{})
				if name != "Go" {
					must(t, a.Add(t.Context(), 1))
				} else {
					must(t, a.Go(t.Context(), func() { <-done }))
				}
				must(t, b.Done()) // the one of a, which does not know of it
				must(t, b.Add(t.Context(), 1))
				stranger := live(t, open(t, srv))
				litter := "/w/" + znodes.ProtectedName(znodes.NewGUID(), "tasks")
				_, err := znodes.Create(t.Context(), stranger, litter, []byte("three"))
				must(t, err)
				end(t, srv, a, b, done)
				time.Sleep(time.Minute)
				must(t, znodes.RemoveNow(t.Context(), stranger, litter))
				time.Sleep(time.Minute)
				wantCount(t, b, 0)
			})
		})
	}
}

// Each request that a change of the counter sends is lost once, and its reply
// once.
func TestWaitGroupCountsExactlyOnceWhenRequestsAndRepliesAreLost(t *testing.T) {
	t.Parallel()
	ops := []struct {
		name string
		f    func(ctx context.Context, own, other *zsync.WaitGroup) error
		want int // beside 2 of own and 2 of other
		err  error
	}{
		{"first add", func(ctx context.Context, own, other *zsync.WaitGroup) error {
			return zsync.NewWaitGroup(inside.Session(own), own.Path(), zsync.WithPersistentTasks()).Add(ctx, 3)
		}, 3, nil},
		{"add", func(ctx context.Context, own, other *zsync.WaitGroup) error { return own.Add(ctx, 3) }, 3, nil},
		{"done", func(ctx context.Context, own, other *zsync.WaitGroup) error { return own.Done() }, -1, nil},
		{"end all own", func(ctx context.Context, own, other *zsync.WaitGroup) error { return own.Add(ctx, -2) }, -2, nil},
		{"end others' too", func(ctx context.Context, own, other *zsync.WaitGroup) error { return own.Add(ctx, -3) }, -3, nil},
		{"end all", func(ctx context.Context, own, other *zsync.WaitGroup) error { return own.Add(ctx, -4) }, -4, nil},
		{"end too many", func(ctx context.Context, own, other *zsync.WaitGroup) error { return own.Add(ctx, -5) }, 0, zsync.ErrNegativeCounter},
	}
	for _, op := range ops {
		for _, act := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			for at := range 10 { // the at'th request
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := open(t, srv), open(t, srv)
					own, other := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
					must(t, own.Add(t.Context(), 2))
					must(t, other.Add(t.Context(), 2))
					synctest.Wait()
					var n atomic.Int32
					id := a.ID()
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Session == id && r.Op != zktest.OpConnect && int(n.Add(1)) == at+1 {
							return act
						}
						return zktest.Pass
					})
					err := op.f(t.Context(), own, other)
					if !errors.Is(err, op.err) {
						t.Fatalf("%s, %v of request %d: got %v, want %v", op.name, act, at, err, op.err)
					}
					time.Sleep(time.Second)
					got, err := other.Count(t.Context())
					if err != nil || got != 4+op.want {
						t.Errorf("%s, %v of request %d: Count = %d, %v; want %d", op.name, act, at, got, err, 4+op.want)
					}
				})
			}
		}
	}
}

// The session ends while a request of a change is under way.
// The reply to a change is lost, and the servers do not show its receipt. Then the znode
// of the tasks tells what became of it; if they do not show that either, nobody knows, and
// what may have been made goes.
func TestWaitGroupCountsExactlyOnceThoughReceiptsAreNotShown(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), zsync.NewWaitGroup(open(t, srv), "/w")
		wg := zsync.NewWaitGroup(s, "/w")
		var shown atomic.Bool
		hurt := func() {
			lost := first(zktest.DropReply, op(zktest.OpMulti))
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Session != s.ID(),
					r.Op != zktest.OpExists && r.Op != zktest.OpGetData,
					!strings.HasSuffix(r.Path, "-txn") && shown.Load():
					if r.Session == s.ID() {
						return lost(r)
					}
					return zktest.Pass
				}
				return zktest.Fail(zktest.CodeNoAuth)
			})
		}
		count := func(want int) {
			t.Helper()
			if n, err := other.Count(t.Context()); n != want || err != nil {
				t.Errorf("Count = %d, %v; want %d", n, err, want)
			}
		}
		shown.Store(true)
		hurt()
		must(t, wg.Add(t.Context(), 2))
		count(2)
		hurt()
		must(t, wg.Add(t.Context(), 3))
		count(5)
		hurt()
		must(t, wg.Done())
		count(4)
		hurt()
		must(t, wg.Add(t.Context(), -4))
		count(0)
		shown.Store(false)
		hurt()
		if err := wg.Add(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "may have been applied") {
			t.Errorf("Add of which nothing is shown: %v", err)
		}
		srv.Intercept(nil)
		time.Sleep(10 * time.Second)
		count(0)
		must(t, wg.Add(t.Context(), 1))
		count(1)
		must(t, wg.Done())
	})
}

func TestPersistentTasksAreEndedOnceThoughTheirLogIsNotShown(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wg := zsync.NewWaitGroup(s, "/w", zsync.WithPersistentTasks())
		must(t, wg.Add(t.Context(), 5))
		must(t, wg.Done()) // its receipt is kept for the next
		hidden := childrenOf(t, s, "/w-receipts")
		for _, name := range hidden {
			_, err := plain(t, srv).SetACL("/w-receipts/"+name, zk.WorldACL(zk.PermAll&^zk.PermRead), -1)
			must(t, err)
		}
		srv.Intercept(first(zktest.DropReply, op(zktest.OpMulti)))
		must(t, wg.Done())
		srv.Intercept(nil)
		time.Sleep(10 * time.Second)
		if n, err := wg.Count(t.Context()); n != 3 || err != nil || len(hidden) != 1 {
			t.Errorf("Count = %d, %v, with %d logs not shown; want 3", n, err, len(hidden))
		}
	})
}

func TestPersistentTasksAreRefusedIfTheirLogsAreUnprotected(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		_, err := plain(t, srv).Create("/w-receipts", nil, 0, zk.WorldACL(zk.PermAll))
		must(t, err)
		s := open(t, srv, zsync.WithAuth("digest", []byte("u:p")), zsync.WithACL(zk.DigestACL(zk.PermAll, "u", "p")))
		wg := zsync.NewWaitGroup(s, "/w", zsync.WithPersistentTasks())
		wantErr(t, wg.Add(within(t, time.Minute), 1), zsync.ErrUnprotected)
	})
}

func TestWaitGroupChangeIsCarriedOverToTheNextSession(t *testing.T) {
	for _, act := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		for at := range 8 {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				own, other := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
				must(t, other.Add(t.Context(), 10))
				arm := func() {
					var n atomic.Int32
					id := a.ID()
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Session == id && r.Op != zktest.OpConnect && int(n.Add(1)) == at+1 {
							go srv.Expire(id)
							return act
						}
						return zktest.Pass
					})
				}
				arm()
				must(t, own.Add(t.Context(), -3)) // of the other's
				time.Sleep(time.Second)
				wantCount(t, other, 7)
				arm()
				must(t, own.Add(t.Context(), 2))
				time.Sleep(time.Minute)
				// It may have been lost after it returned, with the request that
				// removes the receipt.
				n, err := other.Count(t.Context())
				must(t, err)
				if n != 9 && n != 7 {
					t.Errorf("%v of request %d: Count = %d, want 9, or 7 if lost later", act, at, n)
				}
			})
		}
	}
}

func TestTheTasksOfOneSessionMayBeMoreThanOneAddTakes(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("an int has 32 bits, so this is not shown: the tasks of one session may be more than one Add takes")
	}
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewWaitGroup(open(t, srv), "/w"), zsync.NewWaitGroup(open(t, srv), "/w")
		must(t, a.Add(t.Context(), math.MaxInt32))
		must(t, a.Add(t.Context(), 1))
		n, err := b.Count(t.Context())
		if err != nil || int64(n) != math.MaxInt32+1 {
			t.Errorf("Count = %d, %v", n, err)
		}
		wantErr(t, b.Wait(within(t, time.Second)), context.DeadlineExceeded)
		must(t, b.Done())
	})
}

// addTask adds a task with a WaitGroup that is garbage when it returns.
//
//go:noinline
func addTask(t *testing.T, s *zsync.Session) {
	must(t, zsync.NewWaitGroup(s, "/w").Add(t.Context(), 1))
}

func TestDoneOfALostTaskEndsNoOtherThoughItsWaitGroupWasCollected(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		addTask(t, a)
		wb := zsync.NewWaitGroup(b, "/w")
		must(t, wb.Add(t.Context(), 1))
		collect := func() {
			for range 3 {
				runtime.GC()
				time.Sleep(time.Second)
			}
		}
		collect()
		srv.Expire(a.ID())
		time.Sleep(20 * time.Second)
		collect()
		wantErr(t, zsync.NewWaitGroup(a, "/w").Done(), zsync.ErrLost)
		wantCount(t, wb, 1)
		// What knows of nothing any more is forgotten.
		must(t, wb.Done())
		runtime.KeepAlive(wb)
		for range 10 {
			collect()
		}
		if n := zsync.KeptTallies(a); n > 0 {
			t.Errorf("%d tallies are kept for nothing", n)
		}
	})
}

// The goroutine of a lost task may still run, and its Done comes later. The end of another task, which Go has
// added since, must not count as that Done: a Wait would wait for the goroutine of the lost task.
func TestGoEndsItsOwnTaskThoughAnEarlierTaskIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		wg, other := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		early := make(chan struct{})
		must(t, wg.Go(t.Context(), func() { <-early }))
		must(t, wg.Add(t.Context(), 1))
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		must(t, wg.Go(t.Context(), func() {}))
		time.Sleep(time.Second)
		wantCount(t, other, 0)
		must(t, wg.Add(t.Context(), 2))
		close(early) // its task was lost, and so it ends no other
		time.Sleep(time.Second)
		wantCount(t, other, 2)
		wantErr(t, wg.Done(), zsync.ErrLost)
		wantCount(t, other, 2)
		must(t, wg.Done())
		must(t, wg.Done())
		wantCount(t, other, 0)
	})
}

func TestACancelledAddIsTakenBackThoughAnEarlierTaskIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		wg, other := zsync.NewWaitGroup(a, "/w"), zsync.NewWaitGroup(b, "/w")
		must(t, wg.Add(t.Context(), 1))
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == a.ID() && (r.Op == zktest.OpCreate || r.Op == zktest.OpMulti) {
				return zktest.Delay(2 * time.Second)
			}
			return zktest.Pass
		})
		wantErr(t, wg.Add(within(t, time.Second), 1), context.DeadlineExceeded)
		time.Sleep(time.Minute)
		wantCount(t, other, 0)
		wantErr(t, wg.Done(), zsync.ErrLost)
	})
}
