package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// paused fails unless the queue is paused, or not, as wanted.
func paused[T any](t *testing.T, q *zsync.Queue[T], want bool) {
	t.Helper()
	st, err := q.Stats(t.Context())
	if must(t, err); st.Paused != want {
		t.Errorf("paused: %v, want %v", st.Paused, want)
	}
}

func TestNoConsumerClaimsWhileTheQueueIsPaused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		queue := func() *zsync.Queue[int] { return zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(1)) }
		admin, working, idle, receiving, late := queue(), queue(), queue(), queue(), queue()
		must(t, admin.Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		var worked atomic.Int64
		done := async(func() error {
			return working.Work(ctx, 1, func(context.Context, int) error {
				if worked.Add(1) == 1 {
					time.Sleep(time.Hour)
					return errors.New("once more")
				}
				return nil
			})
		})
		time.Sleep(time.Second)
		got := make(chan int, 10)
		waiting := idle.Recv(ctx)
		go func() {
			for v := range waiting {
				got <- v
			}
		}()
		received := async(func() error {
			d, err := receiving.Receive(ctx)
			if err != nil {
				return err
			}
			got <- d.Value
			return d.Ack(t.Context())
		})
		time.Sleep(time.Second)
		must(t, admin.Pause(t.Context()))
		must(t, admin.Pause(t.Context()))
		paused(t, late, true)
		must(t, admin.Send(t.Context(), 2, 3, 4))
		time.Sleep(2 * time.Hour) // the call under way fails, and its element returns
		if worked.Load() != 1 || len(got) != 0 {
			t.Errorf("%d calls, and %d received", worked.Load(), len(got))
		}
		if v, ok, err := late.TryRecv(t.Context()); ok || err != nil {
			t.Errorf("TryRecv = %v, %v, %v", v, ok, err)
		}
		if v, ok, err := late.Peek(t.Context()); ok || err != nil {
			t.Errorf("Peek = %v, %v, %v", v, ok, err)
		}
		if st, err := late.Stats(t.Context()); err != nil || st.Claimed != 0 || st.Ready != 4 || st.Attempts != 1 {
			t.Errorf("%+v, %v", st, err)
		}
		before := srv.Counts()
		time.Sleep(time.Hour)
		if n := srv.Counts().Sub(before).Total(); n != 0 {
			t.Errorf("%d requests in an hour of a pause", n)
		}
		must(t, late.Resume(t.Context()))
		time.Sleep(time.Minute)
		if n := int(worked.Load()) + len(got); n != 5 {
			t.Errorf("%d deliveries of 4 elements and an attempt that failed, want 5", n)
		}
		paused(t, admin, false)
		must(t, late.Resume(t.Context()))
		cancel()
		wantErr(t, <-done, context.Canceled)
		if err := <-received; err != nil { // the other two were quicker
			wantErr(t, err, context.Canceled)
		}
		wantLen(t, admin, 0)

		kazoo := zsync.NewQueue[int](open(t, srv), "/k", zsync.WithQueueLayout(zsync.LayoutKazooQueue))
		wantErr(t, kazoo.Pause(t.Context()), zsync.ErrInvalid)
		wantErr(t, kazoo.Resume(t.Context()), zsync.ErrInvalid)
		wantErr(t, zsync.NewQueue[int](nil, "/q").Pause(t.Context()), zsync.ErrInvalid)
		must(t, zsync.NewMap[int](open(t, srv), "/map").Store(t.Context(), "k", 1))
		wantErr(t, zsync.NewQueue[int](open(t, srv), "/map").Pause(t.Context()), zsync.ErrMixed)
	})
}

func TestClaimedElementsAreFinishedDuringAPause(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q, other := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, other.Send(t.Context(), counted(6)...))
		ds := collect(t, q.Deliveries(t.Context()), 4)
		must(t, other.Pause(t.Context()))
		must(t, ds[0].Ack(t.Context()))
		must(t, ds[1].Reject(t.Context(), "bad"))
		must(t, ds[2].NackAfter(time.Minute))
		_, err := ds[3].Txn(t.Context(), q.SendOp(7))
		must(t, err)
		time.Sleep(time.Hour)
		if st, err := other.Stats(t.Context()); err != nil || st.Dead != 1 || st.Ready+st.Claimed != 4 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// The reply of a Pause or Resume is lost, or the request is.
func TestPauseAndResumeAreAppliedOnceAndWakeConsumersWhateverIsLost(t *testing.T) {
	for _, lose := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			q, other := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
			must(t, other.Send(t.Context(), 1))
			changes := func(r zktest.Request) bool {
				for _, op := range r.Ops {
					if op.Path == "/q/paused" {
						return true
					}
				}
				return false
			}
			srv.Intercept(first(lose, changes))
			must(t, other.Pause(t.Context()))
			srv.Intercept(nil)
			paused(t, other, true)
			received := async(func() error {
				d, err := q.Receive(t.Context())
				return errors.Join(err, d.Ack(t.Context()))
			})
			time.Sleep(time.Minute)
			pendingStill(t, received)
			srv.Intercept(first(lose, changes))
			must(t, other.Resume(t.Context()))
			srv.Intercept(nil)
			must(t, <-received)
			paused(t, other, false)
		})
	}
}

// A consumer whose server lags finds an element that is free in its past. Its claim must fail.
func TestPauseHoldsForAConsumerWhoseServerLags(t *testing.T) {
	for name, claim := range map[string]func(t *testing.T, q *zsync.Queue[int]) bool{
		"TryRecv": func(t *testing.T, q *zsync.Queue[int]) bool {
			_, ok, err := q.TryRecv(t.Context())
			must(t, err)
			return ok
		},
		"Receive": func(t *testing.T, q *zsync.Queue[int]) bool {
			_, err := q.Receive(within(t, time.Second))
			return err == nil
		},
		"Recv": func(t *testing.T, q *zsync.Queue[int]) bool {
			_, ok := <-q.Recv(within(t, time.Second))
			return ok
		},
	} {
		for _, again := range []bool{false, true} { // the consumer has claimed before
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				admin, q := zsync.NewQueue[int](suite.OpenAt(t, srv, 0), "/q"), zsync.NewQueue[int](suite.OpenAt(t, srv, 1), "/q")
				must(t, admin.Send(t.Context(), 1, 2))
				if again {
					claim(t, q)
				}
				time.Sleep(time.Minute)
				srv.SetLag(srv.Addrs()[1], 20*time.Second)
				must(t, admin.Pause(t.Context()))
				if claim(t, q) {
					t.Errorf("%s has claimed an element after Pause (it has claimed before: %v)", name, again)
				}
				time.Sleep(time.Minute)
				must(t, admin.Resume(t.Context()))
				time.Sleep(time.Minute)
				if !claim(t, q) {
					t.Errorf("%s gets nothing after Resume", name)
				}
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		}
	}
}

// Such a consumer can only look for the pause.
func TestConsumerThatMayNotCreateAtTheQueueClaims(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 1, 2))
		setACL(t, srv, "/q", zk.WorldACL(zk.PermRead|zk.PermWrite|zk.PermAdmin))
		for range 2 {
			if _, ok, err := q.TryRecv(within(t, time.Minute)); !ok || err != nil {
				t.Errorf("TryRecv = %v, %v", ok, err)
			}
		}
	})
}

// When the consumer may create at the queue again, its claims check for a pause again.
func TestPauseHoldsForAConsumerThatCouldNotCreateAtTheQueueBefore(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		admin, q := zsync.NewQueue[int](suite.OpenAt(t, srv, 0), "/q"), zsync.NewQueue[int](suite.OpenAt(t, srv, 1), "/q")
		must(t, admin.Send(t.Context(), 1, 2))
		setACL(t, srv, "/q", zk.WorldACL(zk.PermRead|zk.PermWrite|zk.PermAdmin))
		d, err := q.Receive(within(t, time.Minute))
		must(t, err)
		setACL(t, srv, "/q", zk.WorldACL(zk.PermAll))
		time.Sleep(2 * time.Minute)
		srv.SetLag(srv.Addrs()[1], 20*time.Second)
		must(t, admin.Pause(t.Context()))
		if _, err := q.Receive(within(t, time.Second)); err == nil {
			t.Error("an element was claimed after Pause")
		}
		must(t, d.Ack(t.Context()))
	}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
}
