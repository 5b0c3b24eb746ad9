package queue

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// lateAnswer has f settle an element, and its request, or the reply to that, lost. It
// hears what came of it when others have given its claims back long ago.
func lateAnswer(t *testing.T, action zktest.Action, f func(t *testing.T, d zsync.Delivery[int]) error, check func(t *testing.T, other *zsync.Queue[int], again <-chan zsync.Delivery[int], d zsync.Delivery[int], err error)) {
	t.Helper()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		other := zsync.NewQueue[int](o, "/q")
		must(t, other.Send(t.Context(), 1))
		_, err := o.Txn(t.Context(), &zk.CreateRequest{Path: "/q-dead"})
		must(t, err)
		d := <-zsync.NewQueue[int](s, "/q").Deliveries(t.Context())
		time.Sleep(time.Second) // that it is in hand is written down
		id := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == id && r.Op == zktest.OpMulti:
				return action
			case r.Op == zktest.OpConnect:
				return zktest.Hang
			}
			return zktest.Pass
		})
		settled := make(chan error, 1)
		go func() { settled <- f(t, d) }()
		again := other.Deliveries(t.Context())
		time.Sleep(time.Minute)
		srv.Intercept(nil)
		check(t, other, again, d, <-settled)
	})
}

// After the end of the session only the elements tell.
func TestSettlementThatWasDoneIsNotToldToBeLostHoweverLateItsAnswerIs(t *testing.T) {
	settle := map[string]func(t *testing.T, d zsync.Delivery[int]) error{
		"ack": func(t *testing.T, d zsync.Delivery[int]) error { return d.Ack(t.Context()) },
		"txn": func(t *testing.T, d zsync.Delivery[int]) error {
			_, err := d.Txn(t.Context(), &zk.CreateRequest{Path: "/done"})
			return err
		},
		"reject": func(t *testing.T, d zsync.Delivery[int]) error { return d.Reject(t.Context(), "no") },
	}
	for name, f := range settle {
		t.Run(name+", applied", func(t *testing.T) {
			lateAnswer(t, zktest.DropReply, f, func(t *testing.T, other *zsync.Queue[int], again <-chan zsync.Delivery[int], d zsync.Delivery[int], err error) {
				wantErr(t, err, zk.ErrNoNode)
				if errors.Is(err, zsync.ErrLost) {
					t.Errorf("it was applied, and the error is a loss: %v", err)
				}
				if name != "reject" {
					wantErr(t, d.Ack(t.Context()), zk.ErrNoNode) // once more
				}
				wantLen(t, other, 0)
			})
		})
		t.Run(name+", not applied", func(t *testing.T) {
			lateAnswer(t, zktest.DropRequest, f, func(t *testing.T, other *zsync.Queue[int], again <-chan zsync.Delivery[int], d zsync.Delivery[int], err error) {
				wantErr(t, err, zsync.ErrLost)
				must(t, wantNext(t, again, 1).Ack(t.Context()))
			})
		})
	}
}

// ErrLost would say that another gets the element.
func TestAckThatWasDoneIsNotToldToBeLostWhenTheSessionIsClosedBeforeItsReply(t *testing.T) {
	for name, action := range map[string]zktest.Action{"the connection ends": zktest.DropReply, "the server hangs": zktest.HangReply} {
		t.Run(name, func(t *testing.T) { closedBeforeReply(t, action) })
	}
}

func closedBeforeReply(t *testing.T, action zktest.Action) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		id := s.ID()
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d, err := q.Receive(within(t, time.Minute))
		must(t, err)
		time.Sleep(time.Second)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == id && r.Op == zktest.OpMulti:
				return action
			case r.Op == zktest.OpConnect:
				return zktest.Hang
			}
			return zktest.Pass
		})
		acked := make(chan error, 1)
		go func() { acked <- d.Ack(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		must(t, s.Close())
		time.Sleep(time.Minute)
		for _, err := range []error{<-acked, d.Ack(t.Context())} { // what the first was told, and what is known in the end
			wantErr(t, err, zsync.ErrClosed)
			if errors.Is(err, zsync.ErrLost) {
				t.Errorf("Ack: %v; and it was done", err)
			}
		}
		srv.Intercept(nil)
		wantLen(t, zsync.NewQueue[int](open(t, srv), "/q"), 0)
	})
}
