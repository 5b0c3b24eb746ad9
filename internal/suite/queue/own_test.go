package queue

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// What is returned is written with the bytes that were read.
func TestAProgramMayChangeTheBytesOfADelivery(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithCodec(zsync.Raw))
		must(t, q.Send(t.Context(), "element"))
		ch := q.Deliveries(t.Context())
		for _, settle := range []func(d zsync.Delivery[string]) error{
			zsync.Delivery[string].Nack,
			func(d zsync.Delivery[string]) error { return d.NackAfter(time.Second) },
			func(d zsync.Delivery[string]) error { return d.Reject(t.Context(), "no") },
		} {
			d := <-ch
			if d.Value != "element" {
				t.Fatalf("received %q, want what was sent", d.Value)
			}
			copy(d.Data(), "CHANGED")
			must(t, settle(d))
		}
		for d, err := range q.Dead(t.Context()) {
			if must(t, err); !bytes.Equal(d.Data, []byte("element")) {
				t.Errorf("%q went to the dead letters, want what was sent", d.Data)
			}
		}
	})
}

// A slowTracer takes an hour to hear that something was received.
type slowTracer struct{}

func (slowTracer) Start(ctx context.Context, op zsync.Op) context.Context {
	if op.Name == "receive" {
		time.Sleep(time.Hour)
	}
	return ctx
}

func (slowTracer) End(context.Context, zsync.Op, error) {}

// Until the claim is known to be with the program its ledger gives back nothing of it.
func TestATracerThatIsSlowKeepsNoElementFromOthers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, zsync.WithTracer(slowTracer{}))
		q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, other.Send(t.Context(), 1))
		d := wantNext(t, q.Deliveries(t.Context()), 1)
		srv.Expire(s.ID())
		again, err := other.Receive(within(t, time.Minute))
		must(t, err)
		if again.Attempt != 2 {
			t.Errorf("attempt %d, want the second", again.Attempt)
		}
		wantErr(t, d.Ack(t.Context()), zsync.ErrLost)
		must(t, again.Ack(t.Context()))
	})
}
