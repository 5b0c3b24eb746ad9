package zsync_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

func TestBarrierHoldsBackWhileClosedAndLetsEveryoneThroughWhenOpened(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		a, b := zsync.NewBarrier(connect(), "/gate/b"), zsync.NewBarrier(connect(), "/gate/b")
		ctx := within(t, 2*time.Minute)
		must(t, b.Wait(ctx)) // never closed
		for range 20 {
			must(t, a.Close(ctx))
			must(t, b.Close(ctx))
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			wantErr(t, b.Wait(short), context.DeadlineExceeded)
			cancel()
			var opened atomic.Bool
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					if err := b.Wait(ctx); err != nil {
						t.Error(err)
					}
					if !opened.Load() {
						t.Error("went through a closed Barrier")
					}
				})
			}
			opened.Store(true)
			must(t, a.Open(ctx))
			must(t, b.Open(ctx))
			wg.Wait()
			must(t, b.Wait(ctx))
		}
	})
}

// A path that has children is the parent of another primitive's znodes, or of another program's.
func TestABarrierIsRefusedAtAPathThatHasChildren(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := open(t, srv), within(t, time.Second)
		must(t, zsync.NewMutex(s, "/lock").Lock(ctx))
		_, err := s.Txn(ctx, &zk.CreateRequest{Path: "/theirs", Acl: zk.WorldACL(zk.PermAll)}, &zk.CreateRequest{Path: "/theirs/child", Acl: zk.WorldACL(zk.PermAll)})
		must(t, err)
		for _, path := range []string{"/lock", "/theirs"} {
			b := zsync.NewBarrier(s, path)
			wantErr(t, b.Close(ctx), zsync.ErrMixed)
			wantErr(t, b.Wait(ctx), zsync.ErrMixed)
			wantErr(t, b.Open(ctx), zsync.ErrMixed)
		}
	})
}

func TestBarrierRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, b := range []*zsync.Barrier{zsync.NewBarrier(nil, "/b"), zsync.NewBarrier(s, ""), zsync.NewBarrier(s, "b"), zsync.NewBarrier(s, "/"), zsync.NewBarrier(s, "/b/")} {
			wantErr(t, b.Close(t.Context()), zsync.ErrInvalid)
			wantErr(t, b.Open(t.Context()), zsync.ErrInvalid)
			wantErr(t, b.Wait(t.Context()), zsync.ErrInvalid)
		}
		b := zsync.NewBarrier(s, "/b")
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		wantErr(t, b.Wait(ctx), cause, context.Canceled)
		wantErr(t, b.Close(ctx), cause, context.Canceled)
		wantErr(t, b.Open(ctx), cause, context.Canceled)
		if n := s.Stats().Requests; n != 0 {
			t.Errorf("%d requests were sent", n)
		}
		must(t, s.Close())
		wantErr(t, b.Wait(t.Context()), zsync.ErrClosed)
		wantErr(t, b.Close(t.Context()), zsync.ErrClosed)
	})
}

func TestBarrierCostsOneNotificationToEachWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a := zsync.NewBarrier(open(t, srv), "/b")
		must(t, a.Close(t.Context()))
		synctest.Wait()
		before := srv.Counts()
		const sessions, each = 10, 20
		var wg sync.WaitGroup
		for range sessions {
			b := zsync.NewBarrier(open(t, srv), "/b")
			for range each {
				wg.Go(func() {
					if err := b.Wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		synctest.Wait()
		must(t, a.Open(t.Context()))
		wg.Wait()
		synctest.Wait()
		d := srv.Counts().Sub(before)
		if d.Notifications != sessions {
			t.Errorf("%d notifications for waiters in %d sessions", d.Notifications, sessions)
		}
		if n, want := d.Total(), int64(sessions*(1+2*each)+1); n != want {
			t.Errorf("%d requests, want %d: a handshake a session, 2 a Wait, 1 for Open", n, want)
		}
		if w := srv.Counts().Watches; w != 0 {
			t.Errorf("%d watches are left", w)
		}
	})
}

func TestBarrierChangesExactlyOnceWhenRepliesAreLost(t *testing.T) {
	for _, tc := range []struct {
		name string
		act  zktest.Action
	}{{"request lost", zktest.DropRequest}, {"reply lost", zktest.DropReply}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				ba, bb := zsync.NewBarrier(a, "/b"), zsync.NewBarrier(b, "/b")
				must(t, ba.Close(t.Context()))
				must(t, ba.Open(t.Context()))
				// While a's client is away from the server, b does the opposite.
				during := func(op, meanwhile func(context.Context) error) {
					t.Helper()
					var hit, back atomic.Bool
					gap := make(chan struct{})
					id := a.ID()
					srv.Intercept(func(r zktest.Request) zktest.Action {
						switch {
						case r.Op == zktest.OpMulti && r.Session == id && hit.CompareAndSwap(false, true):
							close(gap)
							return tc.act
						case r.Op == zktest.OpConnect && r.Session == id && back.CompareAndSwap(false, true):
							return zktest.Delay(time.Second)
						}
						return zktest.Pass
					})
					done := async(func() error { return op(t.Context()) })
					<-gap
					time.Sleep(time.Millisecond)
					must(t, meanwhile(t.Context()))
					must(t, <-done)
					srv.Intercept(nil)
				}
				lost := tc.act == zktest.DropRequest
				during(ba.Close, bb.Open)
				if got := isShut(t, bb); got != lost {
					t.Errorf("after a Close (%s) with an Open meanwhile: closed = %v, want %v", tc.name, got, lost)
				}
				must(t, ba.Close(t.Context()))
				during(ba.Open, bb.Close)
				if got := isShut(t, bb); got == lost {
					t.Errorf("after an Open (%s) with a Close meanwhile: closed = %v, want %v", tc.name, got, !lost)
				}
			})
		})
	}
}

// isShut reports whether b is closed.
func isShut(t *testing.T, b *zsync.Barrier) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := b.Wait(ctx)
	if err != nil {
		wantErr(t, err, context.DeadlineExceeded)
	}
	return err != nil
}

func TestOpenThatFindsNothingToOpenLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		b := zsync.NewBarrier(s, "/y")
		must(t, b.Open(t.Context()))
		if names := childrenOf(t, s, "/"); len(names) > 1 {
			t.Errorf("left behind: %v", names)
		}
		must(t, b.Close(t.Context()))
		time.Sleep(time.Hour) // and the servers remove the empty container
		must(t, b.Open(t.Context()))
		if isShut(t, b) {
			t.Error("it is closed after Open")
		}
		time.Sleep(time.Hour)
		must(t, b.Open(t.Context()))
		time.Sleep(time.Hour)
		if names := childrenOf(t, s, "/"); len(names) > 1 {
			t.Errorf("left behind: %v", names)
		}
	})
}

func TestBarrierWaitSeesAnOpeningThatItWasAwayFor(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ba, bb := zsync.NewBarrier(a, "/b"), zsync.NewBarrier(b, "/b")
		for _, away := range []func(){
			func() { srv.Disconnect(b.ID()) },
			func() { srv.Expire(b.ID()) },
			func() { srv.Partition(b.ID()); time.Sleep(testTimeout) },
		} {
			must(t, ba.Close(t.Context()))
			got := async(func() error { return bb.Wait(t.Context()) })
			pendingStill(t, got)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect {
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			away()
			must(t, ba.Open(t.Context()))
			must(t, ba.Close(t.Context()))
			must(t, <-got)
			srv.Intercept(nil)
			must(t, ba.Open(t.Context()))
		}
	})
}

func TestBarrierOutlivesTheOneWhoClosedIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		must(t, zsync.NewBarrier(a, "/b").Close(t.Context()))
		must(t, a.Close())
		bb := zsync.NewBarrier(b, "/b")
		got := async(func() error { return bb.Wait(t.Context()) })
		pendingStill(t, got)
		srv.Expire(b.ID())
		time.Sleep(time.Second)
		pendingStill(t, got)
		must(t, bb.Open(t.Context()))
		must(t, <-got)
		time.Sleep(3 * time.Minute)
		if names := childrenOf(t, b, "/"); len(names) != 1 { // /zookeeper
			t.Errorf("an open Barrier has left %v", names)
		}
	})
}

func TestCancelledBarrierWaitLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		b := zsync.NewBarrier(s, "/b")
		must(t, b.Close(t.Context()))
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			wantErr(t, b.Wait(ctx), context.DeadlineExceeded)
			cancel()
		}
		if st := s.Stats(); st.Watches > 1 || st.Waiters != 0 {
			t.Errorf("%d watches and %d waiters are left", st.Watches, st.Waiters)
		}
	})
}
