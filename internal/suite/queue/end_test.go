package queue

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// The claim and the read of what is claimed are answered half a round trip after
// each other, or together: whatever has come when the end comes, the rest goes back.
func TestElementsAreAllThereWheneverTheirConsumerEnds(t *testing.T) {
	t.Parallel()
	const n = 12
	for at := range 40 {
		for _, closes := range []bool{true, false} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := open(t, srv), open(t, srv)
				q := zsync.NewQueue[int](a, "/q")
				must(t, q.Send(t.Context(), counted(n)...))
				srv.SetLatency(time.Millisecond)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				received := make(chan []int, 1)
				go func() {
					var got []int
					for x := range zsync.NewQueue[int](b, "/q", zsync.WithPrefetch(4)).Recv(ctx) {
						got = append(got, x)
					}
					received <- got
				}()
				time.Sleep(time.Duration(at) * time.Millisecond / 2)
				if closes {
					must(t, b.Close())
				}
				cancel()
				got := <-received
				time.Sleep(time.Second) // it goes back
				left, err := q.Len(t.Context())
				must(t, err)
				got = append(got, collect(t, q.Recv(t.Context()), left)...)
				if !slices.Equal(sorted(got), counted(n)) {
					t.Errorf("ended after %d half milliseconds, by closing %v: received %v", at, closes, got)
				}
			})
		}
	}
}

// Its claim begins in another goroutine, and makes room for what it asks for at once.
func TestTheFirstReceiveNGetsAsManyAsItAsksFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), counted(500)...))
		for range 100 {
			ds, err := q.ReceiveN(t.Context(), 5)
			if err != nil || len(ds) != 5 {
				t.Fatalf("received %d, %v", len(ds), err)
			}
			must(t, ds[0].Ack(t.Context()))
			for _, d := range ds[1:] {
				must(t, d.Nack())
			}
			time.Sleep(time.Second) // they are back, and nobody consumes
		}
	})
}

// Its journal has known no session then.
func TestASendThatEndsBeforeThereIsASessionLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		srv.Stop()
		time.Sleep(time.Minute) // the session is over, and there is no other
		if err := q.Send(within(t, time.Second), 1); err == nil {
			t.Error("it was sent to nobody")
		}
		time.Sleep(time.Second) // nothing more is sent for a moment
		srv.Restart()
		must(t, q.Send(within(t, time.Minute), 2))
		ackAll(t, q.Deliveries(t.Context()), 1)
		wantLen(t, q, 0)
	})
}

// What is in hand goes back first, and that takes a moment.
func TestAckOfADeliveryThatGoesBackBecauseTheSessionIsBeingClosedSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d, err := q.Receive(t.Context())
		must(t, err)
		srv.SetLatency(100 * time.Millisecond)
		closed := make(chan error)
		go func() { closed <- s.Close() }()
		<-d.Context().Done()
		var lost *zsync.LostError
		if err := d.Ack(t.Context()); !errors.As(err, &lost) || lost.Reason != zsync.LossClosed {
			t.Errorf("Ack = %v, want a loss because the session is closed", err)
		}
		must(t, <-closed)
	})
}
