package queue

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

type receivedTracer struct{ n atomic.Int64 }

func (r *receivedTracer) Start(ctx context.Context, _ zsync.Op) context.Context { return ctx }
func (r *receivedTracer) End(_ context.Context, op zsync.Op, err error) {
	if op.Name == "receive" && err == nil {
		r.n.Add(int64(op.Count))
	}
}

// Op.Count is the number of elements. ReceiveN returns the elements that it can claim at once.
func TestTracerSeesTheNumberOfElementsThatReceiveNReturns(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		tr := new(receivedTracer)
		s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(harness.Timeout), zsync.WithTracer(tr))
		must(t, err)
		defer s.Close()
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1, 2, 3))
		ds, err := q.ReceiveN(t.Context(), 100)
		must(t, err)
		if got := tr.n.Load(); got != int64(len(ds)) {
			t.Errorf("ReceiveN has returned %d elements, and the tracer has seen %d", len(ds), got)
		}
		for _, d := range ds {
			must(t, d.Ack(t.Context()))
		}
	})
}
