package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// One attempt is all there is, so an attempt that was none buries it.
func TestElementThatWasOnlyOfferedWhenTheSessionEndsWasNotTried(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, srv *zktest.Server, s *zsync.Session){
		"closed": func(t *testing.T, srv *zktest.Server, s *zsync.Session) { must(t, s.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				for i := range 3 {
					s := open(t, srv)
					q := zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(1))
					must(t, q.Send(t.Context(), i))
					ctx, cancel := context.WithCancel(t.Context())
					q.Deliveries(ctx)
					synctest.Wait() // it is offered to nobody
					end(t, srv, s)
					time.Sleep(time.Minute)
					cancel()
					ds, err := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(1)).ReceiveN(within(t, time.Minute), 2)
					must(t, err)
					if len(ds) != 1 || ds[0].Value != i || ds[0].Attempt != 1 {
						t.Errorf("received %v, want element %d for the first time", ds, i)
					}
					must(t, ds[0].Ack(t.Context()))
				}
			})
		})
	}
}

func TestElementThatIsReleasedComesBackWithTheSameAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		for i, opts := range [][]zsync.QueueOption{{zsync.WithMaxAttempts(1)}, {zsync.WithRetryBackoff(zsync.Backoff{Min: time.Hour, Max: time.Hour})}, {zsync.WithQueueLayout(zsync.LayoutKazooQueue)}} {
			q := zsync.NewQueue[int](open(t, srv), fmt.Sprintf("/q%d", i), opts...)
			must(t, q.Send(t.Context(), 1))
			ch := q.Deliveries(t.Context())
			for range 3 {
				d := wantNext(t, ch, 1)
				if d.Attempt != 1 {
					t.Errorf("attempt %d, want the first", d.Attempt)
				}
				must(t, d.Return())
				wantErr(t, d.Ack(t.Context()), zsync.ErrNotLocked)
			}
			ackAll(t, ch, 1)
		}
		wantErr(t, zsync.Delivery[int]{}.Return(), zsync.ErrInvalid)
	})
}

// refuseNotes has what a session writes down of attempts refused.
func refuseNotes(srv *zktest.Server, id int64) {
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Session == id && r.Op == zktest.OpMulti && strings.HasPrefix(r.Ops[0].Path, "/q-live/") {
			return zktest.Fail(codeNoAuth)
		}
		return zktest.Pass
	})
}

// Else a consumer that dies of it could be given it again.
func TestNothingIsOfferedWhoseAttemptTheServersDoNotLetUsWriteDown(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		id := s.ID()
		q := zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(1))
		must(t, q.Send(t.Context(), 1))
		refuseNotes(srv, id)
		ch := q.Deliveries(t.Context())
		time.Sleep(time.Minute)
		select {
		case d := <-ch:
			t.Errorf("%d was delivered, and that is not written down", d.Value)
		default:
		}
		srv.Intercept(nil)
		d := wantNext(t, ch, 1)
		srv.Partition(id) // as if it had died
		time.Sleep(time.Minute)
		other := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxAttempts(1))
		again := other.Deliveries(t.Context())
		time.Sleep(time.Minute)
		select {
		case d := <-again:
			t.Errorf("%d is tried twice, as attempt %d", d.Value, d.Attempt)
		default:
		}
		srv.Heal(id)
		wantErr(t, d.Ack(t.Context()), zsync.ErrLost)
		wantLen(t, other, 0)
	})
}

func TestATxnThatWasToldToBeRefusedIsNotDoneLater(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		id := s.ID()
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d := wantNext(t, q.Deliveries(t.Context()), 1)
		time.Sleep(time.Second)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpMulti {
				return zktest.Fail(codeNoAuth)
			}
			return zktest.Pass
		})
		_, err := d.Txn(t.Context(), &zk.CreateRequest{Path: "/done"})
		wantErr(t, err, zk.ErrNoAuth)
		srv.Intercept(nil)
		time.Sleep(time.Minute)
		if slices.Contains(childrenOf(t, s, "/"), "done") {
			t.Error("it was done after all")
		}
		_, err = d.Txn(t.Context(), &zk.CreateRequest{Path: "/done"})
		must(t, err)
		wantLen(t, q, 0)
	})
}

func TestReceiveNAsksForAllAgainWhenWhatItGotWasNone(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, zsync.NewQueue[string](s, "/q").Send(t.Context(), "no number"))
		got := make(chan int, 1)
		go func() {
			ds, err := q.ReceiveN(t.Context(), 5)
			if err != nil {
				t.Error(err)
			}
			got <- len(ds)
		}()
		time.Sleep(time.Second)
		must(t, q.Send(t.Context(), counted(5)...))
		if n := <-got; n != 5 {
			t.Errorf("received %d of 5", n)
		}
	})
}
