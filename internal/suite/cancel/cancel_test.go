package cancel

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// What the end of a context means, whatever it ends with and however close to a
// reply.

func TestAContextThatEndsWithAServersAnswerIsNotTakenForTheAnswer(t *testing.T) {
	// As errgroup does it: the context of all ends with the error of one.
	for _, cause := range []error{
		&zsync.Error{Op: "txn", Err: zk.ErrNoNode}, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrBadVersion,
		fmt.Errorf("x: %w", zk.ErrInvalidFlags), errors.New("unknown error: -6"), zsync.ErrLost, zsync.ErrClosed,
	} {
		t.Run(cause.Error(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				holder := zsync.NewMutex(a, "/m")
				harness.Must(t, holder.Lock(t.Context()))
				gate := zsync.NewBarrier(a, "/gate")
				harness.Must(t, gate.Close(t.Context()))
				once := zsync.NewOnce(a, "/once")
				running := make(chan struct{})
				go once.Do(t.Context(), func(ctx context.Context) error { close(running); <-t.Context().Done(); return ctx.Err() })
				<-running
				ctx, cancel := context.WithCancelCause(t.Context())
				waits := map[string]<-chan error{
					"Lock":         harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(ctx) }),
					"Lock, strict": harness.Async(func() error { return zsync.NewMutex(b, "/m", zsync.WithHandoffs(0)).Lock(ctx) }),
					"Campaign": harness.Async(func() error {
						return zsync.NewElection(b, "/m", zsync.WithLayout(zsync.LayoutSelector)).Campaign(ctx)
					}),
					"Barrier": harness.Async(func() error { return zsync.NewBarrier(b, "/gate").Wait(ctx) }),
					"Once": harness.Async(func() error {
						return zsync.NewOnce(b, "/once").Do(ctx, func(context.Context) error { return nil })
					}),
				}
				synctest.Wait()
				cancel(cause)
				for name, done := range waits {
					if err := <-done; !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
						t.Errorf("%s returned %v, want the context's cause", name, err)
					}
				}
				_, err := holder.Token(ctx)
				if err == nil || harness.Closed(holder.Lost()) {
					t.Errorf("Token with an ended context: %v, and the hold is lost: %v", err, harness.Closed(holder.Lost()))
				}
				time.Sleep(time.Second)
				if n := harness.Children(t, harness.Plain(t, srv), "/m"); len(n) != 1 {
					t.Errorf("in line: %v, want the holder alone", n)
				}
			})
		})
	}
}

// lateCtx has ended when a request is answered, but the reply is seen first.
type lateCtx struct {
	context.Context
	ended atomic.Bool
}

func (c *lateCtx) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

func TestOpenThatEndsWithItsContextDoesNotClaimToHaveOpened(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/gate"}) // by another library: no receipts yet
		harness.Must(t, err)
		ctx := &lateCtx{Context: t.Context()}
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti {
				ctx.ended.Store(true)
			}
			return zktest.Pass
		})
		harness.WantErr(t, zsync.NewBarrier(s, "/gate").Open(ctx), context.Canceled)
	})
}

func TestAReplyLostAsTheContextEndsIsTheContextsError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		for i, f := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := zsync.NewMutex(s, "/m").Contenders(ctx); return err },
			func(ctx context.Context) error { return zsync.NewBarrier(s, "/b").Wait(ctx) },
			func(ctx context.Context) error { return zsync.NewBarrier(s, "/b").Close(ctx) },
			func(ctx context.Context) error { _, err := s.Txn(ctx, &zk.DeleteRequest{Path: "/x"}); return err },
			func(ctx context.Context) error { return zsync.NewMutex(s, "/m", zsync.WithHandoffs(0)).Lock(ctx) },
		} {
			ctx := &lateCtx{Context: t.Context()}
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpPing || r.Op == zktest.OpConnect || ctx.ended.Swap(true) {
					return zktest.Pass
				}
				return zktest.DropReply
			})
			if err := f(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v, want the context's error", i, err)
			}
			srv.Intercept(nil)
			time.Sleep(time.Second)
		}
		if n := harness.Children(t, harness.Plain(t, srv), "/m"); len(n) != 0 {
			t.Errorf("left behind: %v", n)
		}
	})
}

// An Acquire that waits is called off when permits of its value are lost, to notice that. Its
// context may end before it does.
func TestAnAcquireThatIsCalledOffFailsWithTheErrorOfItsContext(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		sem := zsync.NewSemaphore(a, "/s", 2, zsync.WithMaxHold(3*time.Second))
		harness.Must(t, sem.Acquire(t.Context(), 1)) // is lost in 3 s
		atGate, leave := context.WithCancel(t.Context())
		gone := harness.Async(func() error { return zsync.NewSemaphore(b, "/s", 2).Acquire(atGate, 2) })
		time.Sleep(time.Second)
		ctx := harness.Within(t, 2*time.Second+10*time.Millisecond)
		got := harness.Async(func() error { return sem.Acquire(ctx, 1) })
		time.Sleep(time.Second)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == a.ID() && r.Op == zktest.OpMulti {
				return zktest.Delay(5 * time.Second) // the create of its permit
			}
			return zktest.Pass
		})
		leave()
		<-gone
		err := <-got
		harness.WantErr(t, err, context.DeadlineExceeded)
		if errors.Is(err, context.Canceled) {
			t.Errorf("nobody has cancelled its context: %v", err)
		}
	})
}

func TestADowngradeThatAnUnlockCallsOffFailsWithTheErrorOfItsContext(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		harness.Must(t, rw.Lock(t.Context()))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpMulti {
				return zktest.Delay(5 * time.Second)
			}
			return zktest.Pass
		})
		ctx := harness.Within(t, 1010*time.Millisecond)
		got := harness.Async(func() error { return rw.Downgrade(ctx) })
		time.Sleep(time.Second)
		harness.Must(t, rw.Unlock()) // 10 ms before its ctx ends
		err := <-got
		harness.WantErr(t, err, context.DeadlineExceeded)
		if errors.Is(err, context.Canceled) {
			t.Errorf("nobody has cancelled its context: %v", err)
		}
	})
}
