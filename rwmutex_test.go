package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestRWMutexLetsReadersInTogetherAndWritersAlone(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		t.Run(layout.String(), func(t *testing.T) {
			anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
				a, b := zsync.NewRWMutex(connect(), "/rw", zsync.WithLayout(layout)), zsync.NewRWMutex(connect(), "/rw", zsync.WithLayout(layout))
				ctx := within(t, 2*time.Minute)
				must(t, a.RLock(ctx))
				must(t, b.RLock(ctx))
				if ok, err := a.TryLock(ctx); ok || err != nil {
					t.Fatalf("TryLock beside readers = %v, %v; want false, nil", ok, err)
				}
				must(t, a.RUnlock())
				write := async(func() error { return a.Lock(ctx) })
				must(t, b.RUnlock())
				must(t, <-write)
				if ok, err := b.TryRLock(ctx); ok || err != nil {
					t.Fatalf("TryRLock beside a writer = %v, %v; want false, nil", ok, err)
				}
				if ok, err := b.TryLock(ctx); ok || err != nil {
					t.Fatalf("TryLock beside a writer = %v, %v; want false, nil", ok, err)
				}
				read := async(func() error { return b.RLock(ctx) })
				must(t, a.Unlock())
				must(t, <-read)
				if ok, err := a.TryRLock(ctx); !ok || err != nil {
					t.Fatalf("TryRLock beside a reader = %v, %v; want true, nil", ok, err)
				}
				must(t, a.RUnlock())
				must(t, b.RUnlock())
				wantErr(t, a.Unlock(), zsync.ErrNotLocked)
				wantErr(t, b.RUnlock(), zsync.ErrNotLocked)
				if ok, err := a.TryLock(ctx); !ok || err != nil {
					t.Fatalf("TryLock of a free RWMutex = %v, %v; want true, nil", ok, err)
				}
				must(t, a.Unlock())
			})
		})
	}
}

func TestRWMutexRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, rw := range []*zsync.RWMutex{
			zsync.NewRWMutex(nil, "/rw"), zsync.NewRWMutex(s, "rw"), zsync.NewRWMutex(s, "/rw", nil),
			zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(-1)), zsync.NewRWMutex(s, "/rw", zsync.WithLayout(7)),
		} {
			ctx := t.Context()
			nop := func(context.Context) error { return nil }
			_, tryErr := rw.TryLock(ctx)
			_, tryRErr := rw.TryRLock(ctx)
			_, tokErr := rw.Token(ctx)
			_, txnErr := rw.Txn(ctx)
			_, cErr := rw.Contenders(ctx)
			for _, err := range []error{
				rw.Lock(ctx), rw.RLock(ctx), rw.Unlock(), rw.RUnlock(), rw.Do(ctx, nop), rw.RDo(ctx, nop),
				rw.Downgrade(ctx), tryErr, tryRErr, tokErr, txnErr, cErr, rw.RLocker().Lock(ctx),
			} {
				wantErr(t, err, zsync.ErrInvalid)
			}
			if !session.IsClosed(rw.Lost()) {
				t.Error("Lost of an RWMutex that cannot be held is open")
			}
		}
		rw := zsync.NewRWMutex(s, "/rw")
		wantErr(t, rw.Do(t.Context(), nil), zsync.ErrInvalid)
		wantErr(t, rw.RDo(t.Context(), nil), zsync.ErrInvalid)
		wantErr(t, rw.Downgrade(t.Context()), zsync.ErrNotLocked)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, rw.RLock(ended), context.Canceled)
		wantErr(t, rw.Lock(ended), context.Canceled)
		if names := childrenOf(t, s, "/rw"); len(names) > 0 {
			t.Errorf("refused calls have written %v", names)
		}
	})
}

func TestRLockAndRUnlockCostThreeRequests(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		must(t, rw.RLock(t.Context())) // makes the parent
		must(t, rw.RUnlock())
		cost := func(f func()) int64 {
			before := s.Stats().Requests
			f()
			return s.Stats().Requests - before
		}
		if got := cost(func() { must(t, rw.RLock(t.Context())); must(t, rw.RUnlock()) }); got != 3 {
			t.Errorf("RLock and RUnlock cost %d requests, want 3", got)
		}
		if got := cost(func() { must(t, rw.Lock(t.Context())); must(t, rw.Unlock()) }); got != 3 {
			t.Errorf("Lock and Unlock cost %d requests, want 3", got)
		}
		must(t, rw.RLock(t.Context()))
		if got := cost(func() { must(t, rw.RLock(t.Context())); must(t, rw.RUnlock()) }); got != 0 {
			t.Errorf("joining a reader of this process, and leaving, cost %d requests, want 0", got)
		}
		must(t, rw.RUnlock())
		must(t, rw.Lock(t.Context()))
		if got := cost(func() { must(t, rw.Downgrade(t.Context())) }); got != 2 {
			t.Errorf("Downgrade cost %d requests, want 2", got)
		}
		must(t, rw.RUnlock())
		if n := len(childrenOf(t, s, "/rw")); n != 0 {
			t.Errorf("%d znodes are left", n)
		}
	})
}

func TestRWMutexServesReadersAndWritersInTheOrderOfArrival(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var rws []*zsync.RWMutex
		for range 7 {
			rws = append(rws, zsync.NewRWMutex(open(t, srv), "/rw"))
		}
		ctx := t.Context()
		must(t, rws[0].RLock(ctx))
		w1 := arrive(t, func() error { return rws[1].Lock(ctx) })
		r2 := arrive(t, func() error { return rws[2].RLock(ctx) }) // a reader after a writer waits for it
		r3 := arrive(t, func() error { return rws[3].RLock(ctx) })
		w4 := arrive(t, func() error { return rws[4].Lock(ctx) })
		r5 := arrive(t, func() error { return rws[5].RLock(ctx) })
		must(t, rws[0].RUnlock())
		must(t, <-w1)
		pendingStill(t, r2)

		before := srv.Counts()
		must(t, rws[1].Unlock())
		must(t, <-r2)
		must(t, <-r3)
		pendingStill(t, w4)
		pendingStill(t, r5)
		if d := srv.Counts().Sub(before); d.Notifications != 3 {
			t.Errorf("%d notifications for the end of a writer with 2 readers behind it, want 2 and its own", d.Notifications)
		}
		before = srv.Counts()
		must(t, rws[2].RUnlock())
		pendingStill(t, w4)
		if d := srv.Counts().Sub(before); d.Notifications != 1 {
			t.Errorf("%d notifications for the end of one reader of two, want its own", d.Notifications)
		}
		must(t, rws[3].RUnlock())
		must(t, <-w4)
		pendingStill(t, r5)
		must(t, rws[4].Unlock())
		must(t, <-r5)
		must(t, rws[5].RUnlock())
	})
}

func TestReaderLeavesNobodyBehindWhenTheWriterAheadOfItGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
		must(t, a.RLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		write := arrive(t, func() error { return b.Lock(ctx) })
		read := arrive(t, func() error { return c.RLock(t.Context()) })
		cancel()
		wantErr(t, <-write, context.Canceled)
		must(t, <-read)
		must(t, c.RUnlock())
		must(t, a.RUnlock())
	})
}

// An endingContext ends when it is first waited for, after f.
type endingContext struct {
	context.Context
	once sync.Once
	f    func()
	over chan struct{}
}

func (c *endingContext) Done() <-chan struct{} {
	c.once.Do(func() { c.f(); close(c.over) })
	return c.over
}

func (c *endingContext) Err() error {
	if session.IsClosed(c.over) {
		return context.Canceled
	}
	return nil
}

// Readers of one process have no handles: while one is let in whose context ends,
// another unlocks, and may end the grant of the first.
func TestReaderWhoIsLetInAsItsContextEndsLeavesNothingThoughAnotherUnlocks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		rw, other := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
		var outcomes [2]int // let in, and given up
		for range 64 {
			must(t, rw.RLock(t.Context()))
			ctx := &endingContext{Context: t.Context(), f: func() { must(t, rw.RUnlock()) }, over: make(chan struct{})}
			if err := rw.RLock(ctx); err == nil {
				outcomes[0]++
				must(t, rw.RUnlock())
			} else {
				outcomes[1]++
				wantErr(t, err, context.Canceled)
			}
			synctest.Wait()
			ok, err := other.TryLock(t.Context())
			if !ok || err != nil {
				t.Fatalf("after %v: TryLock = %v, %v", outcomes, ok, err)
			}
			must(t, other.Unlock())
		}
		if outcomes[0] == 0 || outcomes[1] == 0 {
			t.Errorf("let in and given up: %v", outcomes)
		}
	})
}

// kazoo's issue 649: readers and writers that give up, here among goroutines
// of one process too, leave nobody waiting for what is not there.
func TestCase26NobodyWaitsForAWriterThatHasGivenUp(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var rws []*zsync.RWMutex
		for range 3 {
			rws = append(rws, zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithHandoffs(rnd.IntN(4))))
		}
		var wg sync.WaitGroup
		for i := range 12 {
			rw := rws[i%len(rws)]
			src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
			wg.Go(func() {
				for range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(src.IntN(8))*time.Millisecond)
					lock, unlock := rw.Lock, rw.Unlock
					if src.IntN(2) == 0 {
						lock, unlock = rw.RLock, rw.RUnlock
					}
					err := lock(ctx)
					cancel()
					if err == nil {
						time.Sleep(time.Duration(src.IntN(4)) * time.Millisecond)
						if err := unlock(); err != nil {
							t.Error(err)
						}
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for _, rw := range rws {
			must(t, rw.Lock(within(t, time.Second)))
			must(t, rw.Unlock())
		}
		if names := childrenOf(t, inside.Session(rws[0]), "/rw"); len(names) > 0 {
			t.Errorf("%v are left", names)
		}
	})
}

func TestCase25NoWriterGetsInBetweenDowngradeAndRUnlock(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		t.Run(layout.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b, c, d := zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithLayout(layout)), zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithLayout(layout)),
					zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithLayout(layout)), zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithLayout(layout))
				ctx := t.Context()
				must(t, a.Lock(ctx))
				lost := a.Lost()
				tok, err := a.Token(ctx)
				must(t, err)
				early := arrive(t, func() error { return d.RLock(ctx) })
				write := arrive(t, func() error { return b.Lock(ctx) })
				read := arrive(t, func() error { return c.RLock(ctx) })
				must(t, a.Downgrade(ctx))
				must(t, <-early) // a reader that came before the writer reads along
				pendingStill(t, write)
				pendingStill(t, read)
				wantErr(t, a.Unlock(), zsync.ErrNotLocked)
				wantErr(t, a.Downgrade(ctx), zsync.ErrNotLocked)
				next, err := a.Token(ctx)
				must(t, err)
				if next <= tok || session.IsClosed(lost) || session.IsClosed(a.Lost()) {
					t.Errorf("token %d after %d, lost %v, %v", next, tok, session.IsClosed(lost), session.IsClosed(a.Lost()))
				}
				must(t, d.RUnlock())
				pendingStill(t, write)
				must(t, a.RUnlock())
				must(t, <-write)
				must(t, b.Unlock())
				must(t, <-read)
				must(t, c.RUnlock())
				if names := childrenOf(t, inside.Session(a), "/rw"); len(names) > 0 {
					t.Errorf("%v are left", names)
				}
			})
		})
	}
}

func TestCase25AWriterWaitsWhileBothNodesOfADowngradeStand(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		for range 20 { // either order of the two names
			a, b, c := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
			ctx := t.Context()
			must(t, a.Lock(ctx))
			write := arrive(t, func() error { return b.Lock(ctx) })
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpDelete && strings.Contains(r.Path, "__WRIT__") {
					return zktest.Delay(time.Minute / 10)
				}
				return zktest.Pass
			})
			down := arrive(t, func() error { return a.Downgrade(ctx) })
			cs, err := c.Contenders(ctx)
			must(t, err)
			if len(cs) != 3 || !cs[0].Holding || !cs[1].Holding || cs[2].Holding || cs[0].Mode == cs[1].Mode {
				t.Errorf("contenders during a downgrade: %+v", cs)
			}
			read := arrive(t, func() error { return c.RLock(ctx) })
			must(t, <-down)
			srv.Intercept(nil)
			pendingStill(t, write)
			pendingStill(t, read)
			must(t, a.RUnlock())
			must(t, <-write)
			must(t, b.Unlock())
			must(t, <-read)
			must(t, c.RUnlock())
		}
	})
}

// The faults between each request of a downgrade and its reply.
func TestDowngradeIsAllOrNothingWhateverIsLost(t *testing.T) {
	for _, op := range []zktest.Op{zktest.OpMulti, zktest.OpDelete} {
		for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			t.Run(fmt.Sprint(op, fault), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					a, b := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
					must(t, a.Lock(t.Context()))
					write := arrive(t, func() error { return b.Lock(t.Context()) })
					var once sync.Once
					srv.Intercept(func(r zktest.Request) (act zktest.Action) {
						if r.Op == op {
							once.Do(func() { act = fault })
						}
						return act
					})
					must(t, a.Downgrade(t.Context()))
					time.Sleep(time.Second)
					pendingStill(t, write)
					if n := len(childrenOf(t, inside.Session(a), "/rw")); n != 2 {
						t.Errorf("%d znodes for a reader and a waiting writer", n)
					}
					must(t, a.RUnlock())
					must(t, <-write)
					must(t, b.Unlock())
				})
			})
		}
	}
}

func TestDowngradeThatIsCancelledLeavesTheWriterAsItWas(t *testing.T) {
	for _, drop := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
			must(t, a.Lock(t.Context()))
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpMulti {
					if drop {
						return zktest.DropReply
					}
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			wantErr(t, a.Downgrade(within(t, 100*time.Millisecond)), context.DeadlineExceeded)
			srv.Intercept(nil)
			time.Sleep(5 * time.Second)
			if names := childrenOf(t, inside.Session(a), "/rw"); len(names) != 1 || !strings.Contains(names[0], "__WRIT__") {
				t.Errorf("left: %v, want the writer", names)
			}
			read := arrive(t, func() error { return b.RLock(t.Context()) })
			wantErr(t, a.RUnlock(), zsync.ErrNotLocked)
			must(t, a.Unlock())
			must(t, <-read)
			must(t, b.RUnlock())
		})
	}
}

func TestUnlockBesideADowngradeReturnsWithinHalfASecondWhateverTheServersDo(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			a, b := zsync.NewRWMutex(s, "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
			must(t, a.Lock(t.Context()))
			if lost {
				srv.Stop()
			} else {
				srv.Partition(s.ID())
			}
			down := arrive(t, func() error { return a.Downgrade(t.Context()) })
			start := time.Now()
			must(t, a.Unlock())
			if d := time.Since(start); d > time.Second/2 {
				t.Errorf("Unlock took %v", d)
			}
			wantErr(t, <-down, zsync.ErrNotLocked)
			wantErr(t, a.RUnlock(), zsync.ErrNotLocked)
			if lost {
				srv.Restart()
			} else {
				srv.Heal(s.ID())
			}
			must(t, b.Lock(t.Context()))
			must(t, b.Unlock())
			must(t, a.Lock(t.Context()))
			must(t, a.Unlock())
		})
	}
}

func TestDowngradeOfALostHoldIsErrLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		must(t, rw.Lock(t.Context()))
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		wantErr(t, rw.Downgrade(t.Context()), zsync.ErrLost)
		wantErr(t, rw.Unlock(), zsync.ErrLost)
		must(t, rw.Lock(t.Context()))
		for _, n := range childrenOf(t, s, "/rw") {
			must(t, znodes.RemoveNow(t.Context(), live(t, s), "/rw/"+n))
		}
		wantErr(t, rw.Downgrade(t.Context()), zsync.ErrLost)
		wantErr(t, rw.Unlock(), zsync.ErrLost)
		if names := childrenOf(t, s, "/rw"); len(names) > 0 {
			t.Errorf("%v are left", names)
		}
	})
}

func TestReadersOfOneProcessShareAZnode(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		other := zsync.NewRWMutex(open(t, srv), "/rw")
		must(t, other.Lock(t.Context()))
		var reads []<-chan error
		for range 100 {
			reads = append(reads, arrive(t, func() error { return rw.RLock(t.Context()) }))
		}
		if n := len(childrenOf(t, s, "/rw")); n != 2 {
			t.Fatalf("%d znodes for a writer and 100 readers of one process, want 2", n)
		}
		must(t, other.Unlock())
		for _, r := range reads {
			must(t, <-r)
		}
		before := s.Stats().Requests
		for range 100 { // come and go beside the others
			must(t, rw.RLock(t.Context()))
		}
		for range 200 {
			must(t, rw.RUnlock())
		}
		if got := s.Stats().Requests - before; got > 100/defaultHandoffs+2 {
			t.Errorf("100 more readers, and the end of all, cost %d requests", got)
		}
		wantErr(t, rw.RUnlock(), zsync.ErrNotLocked)
		if n := len(childrenOf(t, s, "/rw")); n != 0 {
			t.Errorf("%d znodes are left", n)
		}
	})
}

func TestReadersOfAProcessStarveNoWriter(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		for _, local := range []bool{false, true} {
			t.Run(fmt.Sprint(n, local), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					rw := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(n))
					writer := rw
					limit := 0 // a writer of this process is not overtaken at all
					if !local {
						writer = zsync.NewRWMutex(open(t, srv), "/rw")
						limit = n
					}
					must(t, rw.RLock(t.Context()))
					write := arrive(t, func() error { return writer.Lock(t.Context()) })
					var in atomic.Int32
					var wg sync.WaitGroup
					for range 20 {
						wg.Go(func() {
							if err := rw.RLock(t.Context()); err != nil {
								t.Error(err)
							}
							in.Add(1)
							time.Sleep(time.Second)
							if err := rw.RUnlock(); err != nil {
								t.Error(err)
							}
						})
					}
					synctest.Wait()
					if got := int(in.Load()); got != limit {
						t.Errorf("%d readers went before the writer that waits, want %d", got, limit)
					}
					must(t, rw.RUnlock())
					must(t, <-write)
					if got := int(in.Load()); got != limit {
						t.Errorf("%d readers went before the writer, want %d", got, limit)
					}
					must(t, writer.Unlock())
					wg.Wait()
				})
			})
		}
	}
}

func TestReaderOvertakenByNobodyJoinsWhenTheLocalWriterGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(1))
		must(t, rw.RLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		write := arrive(t, func() error { return rw.Lock(ctx) })
		r1 := arrive(t, func() error { return rw.RLock(t.Context()) })
		r2 := arrive(t, func() error { return rw.RLock(t.Context()) })
		cancel()
		wantErr(t, <-write, context.Canceled)
		must(t, <-r1)
		must(t, <-r2)
		for range 3 {
			must(t, rw.RUnlock())
		}
		if n := len(childrenOf(t, s, "/rw")); n != 0 {
			t.Errorf("%d znodes are left", n)
		}
	})
}

func TestRDoAndDoAreReentrantAndAnUpgradeIsADeadlock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw, same := zsync.NewRWMutex(s, "/rw"), zsync.NewRWMutex(s, "/rw")
		other := zsync.NewRWMutex(open(t, srv), "/rw")
		nop := func(context.Context) error { return nil }
		must(t, rw.RDo(t.Context(), func(ctx context.Context) error {
			write := arrive(t, func() error { return other.Lock(t.Context()) })
			for _, rw := range []*zsync.RWMutex{rw, same} {
				wantErr(t, rw.Lock(ctx), zsync.ErrDeadlock)
				wantErr(t, rw.Do(ctx, nop), zsync.ErrDeadlock)
				_, err := rw.TryLock(ctx)
				wantErr(t, err, zsync.ErrDeadlock)
				must(t, rw.RDo(ctx, nop))
				wantErr(t, rw.RLock(ctx), zsync.ErrDeadlock)
			}
			pendingStill(t, write)
			go func() { <-write; other.Unlock() }()
			return nil
		}))
		must(t, rw.Do(t.Context(), func(ctx context.Context) error {
			for _, rw := range []*zsync.RWMutex{rw, same} {
				wantErr(t, rw.Lock(ctx), zsync.ErrDeadlock)
				must(t, rw.Do(ctx, nop))
				must(t, rw.RDo(ctx, nop))
				_, err := rw.TryRLock(ctx)
				wantErr(t, err, zsync.ErrDeadlock)
			}
			return nil
		}))
	})
}

func TestDoThatDowngradesEndsAsAReader(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw, other := zsync.NewRWMutex(s, "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
		must(t, rw.Do(t.Context(), func(ctx context.Context) error {
			must(t, rw.Downgrade(ctx))
			must(t, other.RLock(t.Context()))
			wantErr(t, rw.Lock(ctx), zsync.ErrDeadlock)
			return rw.RDo(ctx, func(context.Context) error { return nil })
		}))
		must(t, other.RUnlock())
		err := rw.Do(t.Context(), func(ctx context.Context) error {
			must(t, rw.Downgrade(ctx))
			srv.Expire(s.ID())
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), zsync.ErrLost)
			return nil
		})
		wantErr(t, err, zsync.ErrLost)
		must(t, other.Lock(t.Context()))
		must(t, other.Unlock())
	})
}

func TestLossOfAReadHoldIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		if !session.IsClosed(rw.Lost()) {
			t.Error("Lost is open while nothing is held")
		}
		must(t, rw.RLock(t.Context()))
		must(t, rw.RLock(t.Context()))
		lost := rw.Lost()
		if session.IsClosed(lost) {
			t.Fatal("Lost is closed while rw is held")
		}
		rdo := async(func() error {
			return rw.RDo(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil })
		})
		pendingStill(t, rdo)
		srv.Expire(s.ID())
		<-lost
		wantErr(t, <-rdo, zsync.ErrLost)
		time.Sleep(time.Second)
		again := arrive(t, func() error { return rw.RLock(t.Context()) })
		for range 2 {
			wantErr(t, rw.RUnlock(), zsync.ErrLost)
		}
		must(t, <-again)
		if session.IsClosed(rw.Lost()) {
			t.Error("Lost is closed for the hold in the new session")
		}
		srv.Expire(s.ID())
		<-rw.Lost()
		wantErr(t, rw.RUnlock(), zsync.ErrLost)
		must(t, rw.RLock(t.Context())) // now nobody has waited for the release
		if session.IsClosed(rw.Lost()) {
			t.Error("Lost is closed for the hold after a loss")
		}
		must(t, rw.RUnlock())
	})
}

func TestReadTokensGrow(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		ctx := t.Context()
		var last int64
		next := func() {
			t.Helper()
			tok, err := rw.Token(ctx)
			must(t, err)
			if tok <= last {
				t.Errorf("token %d after %d", tok, last)
			}
			last = tok
		}
		_, err := rw.Token(ctx)
		wantErr(t, err, zsync.ErrNotLocked)
		must(t, rw.Lock(ctx))
		next()
		must(t, rw.Unlock())
		must(t, rw.RLock(ctx))
		next()
		must(t, rw.RLock(ctx))
		must(t, rw.RUnlock())
		must(t, rw.RLock(ctx)) // came after one who may have had the token has gone
		next()
		must(t, rw.RUnlock())
		must(t, rw.RUnlock())
		must(t, rw.Lock(ctx))
		next()
		must(t, rw.Unlock())
	})
}

func TestCancelledRLockLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
		must(t, a.Lock(t.Context()))
		cause := errors.New("enough")
		for range 100 {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
			wantErr(t, b.RLock(ctx), cause, context.Canceled)
			if n := len(childrenOf(t, inside.Session(a), "/rw")); n != 1 {
				t.Fatalf("%d znodes after a cancelled RLock, want the writer's", n)
			}
		}
		if st := inside.Session(b).Stats(); st.Watches > 1 || st.Waiters != 0 || st.Holds != 0 {
			t.Errorf("left: %+v", st)
		}
		must(t, a.Unlock())
	})
}

func TestRLockerAndLockAllTakeReadLocks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		rw, other := zsync.NewRWMutex(s, "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
		unlock, err := zsync.LockAll(t.Context(), rw.RLocker(), zsync.NewMutex(s, "/m"))
		must(t, err)
		must(t, other.RLock(t.Context()))
		must(t, other.RUnlock())
		if ok, _ := other.TryLock(t.Context()); ok {
			t.Error("a writer got in beside RLocker")
		}
		must(t, unlock())
		must(t, other.Lock(t.Context()))
		must(t, other.Unlock())
	})
}

// Goroutines of one process wait for each other without asking the servers, so
// nobody else tells them that the Session is closed.
func TestThoseWhoWaitForAGoroutineOfTheirProcessFailWhenTheSessionIsClosed(t *testing.T) {
	for _, handoffs := range []int{0, 1, 16} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(handoffs, lost), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					rw := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(handoffs))
					must(t, rw.Lock(t.Context()))
					write := arrive(t, func() error { return rw.Lock(t.Context()) })
					read := arrive(t, func() error { return rw.RLock(t.Context()) })
					if lost {
						srv.Expire(s.ID())
						time.Sleep(time.Second)
						pendingStill(t, write)
						pendingStill(t, read)
					}
					closed := async(s.Close)
					wantErr(t, <-write, zsync.ErrClosed)
					wantErr(t, <-read, zsync.ErrClosed)
					must(t, <-closed)
					wantErr(t, rw.Unlock(), zsync.ErrLost)
				})
			})
		}
	}
}

// A goroutine that was granted rw waits for another to notice that it has lost
// it, and loses it as well.
func TestNobodyIsGrantedAHoldThatWasLostWhileItsPredecessorLingered(t *testing.T) {
	for _, handoffs := range []int{0, 16} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			rw := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(handoffs))
			must(t, rw.RLock(t.Context()))
			write := arrive(t, func() error { return rw.Lock(t.Context()) })
			for range 3 {
				srv.Expire(s.ID())
				time.Sleep(time.Second)
				pendingStill(t, write)
			}
			wantErr(t, rw.RUnlock(), zsync.ErrLost)
			must(t, <-write)
			if session.IsClosed(rw.Lost()) {
				t.Error("the hold that was granted is lost already")
			}
			must(t, rw.Unlock())
			if st := s.Stats(); st.Holds != 0 || st.Waiters != 0 {
				t.Errorf("%d holds and %d waiters are left", st.Holds, st.Waiters)
			}
		})
	}
}

func TestUnlockWithServersDownReturnsAtOnceThoughHandoffsAreUsedUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		rw := zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithHandoffs(1))
		must(t, rw.Lock(t.Context()))
		var waits []<-chan error
		for range 3 {
			waits = append(waits, arrive(t, func() error { return rw.Lock(t.Context()) }))
		}
		must(t, rw.Unlock())
		must(t, <-waits[0])
		srv.Stop()
		synctest.Wait()
		start := time.Now()
		must(t, rw.Unlock())
		if d := time.Since(start); d > time.Millisecond {
			t.Errorf("Unlock took %v, want it to return at once", d)
		}
		time.Sleep(time.Second)
		srv.Restart()
		for _, w := range waits[1:] {
			must(t, <-w)
			must(t, rw.Unlock())
		}
	})
}

// The network is cut, or a server slow, at any request, and ctx ends.
func TestRWMutexCallsEndWithTheirContextAtAnyStepAndLeaveNothing(t *testing.T) {
	t.Parallel()
	const patience = 100 * time.Millisecond
	ops := map[string]func(ctx context.Context, rw *zsync.RWMutex) (undo func() error, err error){
		"Lock":  func(ctx context.Context, rw *zsync.RWMutex) (func() error, error) { return rw.Unlock, rw.Lock(ctx) },
		"RLock": func(ctx context.Context, rw *zsync.RWMutex) (func() error, error) { return rw.RUnlock, rw.RLock(ctx) },
		"TryLock": func(ctx context.Context, rw *zsync.RWMutex) (func() error, error) {
			_, err := rw.TryLock(ctx)
			return rw.Unlock, err
		},
	}
	for name, op := range ops {
		for _, handoffs := range []int{0, 1} {
			for _, wait := range []bool{false, true} {
				for _, cut := range []bool{false, true} {
					t.Run(fmt.Sprint(name, handoffs, wait, cut), func(t *testing.T) {
						for k, struck := 0, true; struck; k++ {
							bubble(t, func(t *testing.T, srv *zktest.Server) {
								holder, rw := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithHandoffs(handoffs))
								must(t, holder.Lock(t.Context()))
								if !wait {
									must(t, holder.Unlock())
								}
								id := inside.Session(rw).ID()
								s := &strike{srv: srv, session: id, k: k, act: zktest.Delay(2 * time.Second)}
								if cut {
									s.act, s.also = zktest.Pass, func() { srv.Partition(id) }
								}
								s.begin()
								start := time.Now()
								var undo func() error
								got := async(func() (err error) { undo, err = op(within(t, patience), rw); return err })
								if wait {
									time.Sleep(patience / 2)
									must(t, holder.Unlock())
								}
								err := <-got
								if d := time.Since(start); d > patience+2*session.Grace {
									t.Errorf("request %d: it took %v with a context of %v", k, d, patience)
								}
								struck = s.end()
								if err != nil {
									wantErr(t, err, context.DeadlineExceeded)
								}
								time.Sleep(3 * time.Second)
								srv.Heal(id)
								time.Sleep(3 * time.Second)
								if err == nil && !(name == "TryLock" && wait) {
									must(t, undo())
								}
								must(t, holder.Lock(within(t, time.Second)))
								must(t, holder.Unlock())
								if names := childrenOf(t, inside.Session(holder), "/rw"); len(names) > 0 {
									t.Errorf("request %d: %v are left", k, names)
								}
							})
						}
					})
				}
			}
		}
	}
}

func TestRWMutexCallsSucceedOnceWhateverIsLostAtAnyStep(t *testing.T) {
	t.Parallel()
	for _, write := range []bool{false, true} {
		for _, wait := range []bool{false, true} {
			for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
				for _, expire := range []bool{false, true} {
					t.Run(fmt.Sprint(write, wait, fault, expire), func(t *testing.T) {
						for k, struck := 0, true; struck; k++ {
							bubble(t, func(t *testing.T, srv *zktest.Server) {
								holder, rw := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
								lock, unlock := rw.RLock, rw.RUnlock
								if write {
									lock, unlock = rw.Lock, rw.Unlock
								}
								must(t, holder.Lock(t.Context()))
								if !wait {
									must(t, holder.Unlock())
								}
								id := inside.Session(rw).ID()
								s := &strike{srv: srv, session: id, k: k, act: fault}
								if expire {
									s.also = func() { srv.Expire(id) }
								}
								s.begin()
								got := async(func() error { return lock(t.Context()) })
								time.Sleep(5 * time.Second)
								if wait {
									must(t, holder.Unlock())
								}
								must(t, <-got)
								ok, err := holder.TryLock(t.Context())
								// The look at its own znode may have been hit, while it was held.
								lost := expire && session.IsClosed(rw.Lost())
								if ok != lost || err != nil {
									t.Errorf("request %d: TryLock beside a holder = %v, %v", k, ok, err)
								}
								if ok {
									must(t, holder.Unlock())
								}
								// When the reply is lost, and right then the session, the
								// loss may be known before the connection is missed.
								if err := unlock(); !expire || !errors.Is(err, zsync.ErrLost) {
									must(t, err)
								}
								struck = s.end()
								time.Sleep(5 * time.Second)
								must(t, holder.Lock(within(t, time.Second)))
								must(t, holder.Unlock())
								if names := childrenOf(t, inside.Session(holder), "/rw"); len(names) > 0 {
									t.Errorf("request %d: %v are left", k, names)
								}
							})
						}
					})
				}
			}
		}
	}
}

func TestDowngradeEndsWithItsContextThoughTheTidyingIsSlow(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		rw, other := zsync.NewRWMutex(open(t, srv), "/rw"), zsync.NewRWMutex(open(t, srv), "/rw")
		must(t, rw.Lock(t.Context()))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete {
				return zktest.Delay(2 * time.Second)
			}
			return zktest.Pass
		})
		start := time.Now()
		must(t, rw.Downgrade(within(t, 100*time.Millisecond)))
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("Downgrade took %v with a context of 100ms", d)
		}
		must(t, other.RLock(t.Context()))
		must(t, other.RUnlock())
		must(t, rw.RUnlock())
	})
}

// A token is greater than that of every hold that had ended before, also for a reader
// who joins another goroutine of his process.
func TestReaderWhoJoinsHasAGreaterTokenThanWhoHadLeftBefore(t *testing.T) {
	for _, handoffs := range []int{0, 16} { // with a znode of its own, or without
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a := zsync.NewRWMutex(open(t, srv), "/rw", zsync.WithHandoffs(handoffs))
			b := zsync.NewRWMutex(open(t, srv), "/rw")
			must(t, a.RLock(t.Context()))
			_, err := a.Token(t.Context())
			must(t, err)
			must(t, b.RLock(t.Context()))
			former, err := b.Token(t.Context())
			must(t, err)
			must(t, b.RUnlock())
			must(t, a.RLock(t.Context())) // begins when that has ended
			for range 2 {
				tok, err := a.Token(t.Context())
				must(t, err)
				if tok <= former {
					t.Errorf("handoffs %d: token %d of a hold that began after that of %d had ended", handoffs, tok, former)
				}
				must(t, a.RUnlock())
			}
		})
	}
}

// A token is told while another reader joins: what his says, and what is told later, is not
// less.
func TestTokenOfReadersNeverShrinks(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		rw := zsync.NewRWMutex(open(t, srv), "/rw")
		must(t, rw.RLock(t.Context()))
		var sets, gets atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if strings.Contains(r.Path, "/rw/") {
				switch {
				case r.Op == zktest.OpSetData && sets.Add(1) == 1:
					return zktest.Fail(-103)
				case r.Op == zktest.OpGetData && gets.Add(1) == 1:
					return zktest.Delay(time.Second)
				}
			}
			return zktest.Pass
		})
		first := make(chan int64, 1)
		go func() {
			tok, err := rw.Token(t.Context())
			must(t, err)
			first <- tok
		}()
		time.Sleep(time.Second / 2)
		must(t, rw.RLock(t.Context()))
		joined, err := rw.Token(t.Context())
		must(t, err)
		tok := <-first
		again, err := rw.Token(t.Context())
		must(t, err)
		if again < tok || again < joined {
			t.Errorf("token %d after %d and %d", again, tok, joined)
		}
		must(t, rw.RUnlock())
		must(t, rw.RUnlock())
		srv.Intercept(nil)
	})
}
