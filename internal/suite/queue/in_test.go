package queue

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A lateCtx ends at the moment at which it is asked for its error, once armed.
type lateCtx struct {
	context.Context
	cancel context.CancelFunc
	armed  atomic.Bool
}

func (c *lateCtx) Err() error {
	if c.armed.CompareAndSwap(true, false) {
		c.cancel()
	}
	return c.Context.Err()
}

type sendEnds struct{ f func(op string, err error) }

func (sendEnds) Start(ctx context.Context, _ zsync.Op) context.Context { return ctx }
func (o sendEnds) End(_ context.Context, op zsync.Op, err error)       { o.f(op.Name, err) }

// When ctx ends done yields its error, also where it ends between the reply to a request
// and the next: what was accepted and is not stored is told.
func TestInTellsThatItsContextEndedThoughTheLastRequestWasAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		inner, cancel := context.WithCancel(t.Context())
		defer cancel()
		ctx := &lateCtx{Context: inner, cancel: cancel}
		q := zsync.NewQueue[int](open(t, srv, zsync.WithTracer(sendEnds{func(op string, err error) {
			if op == "send" && err == nil {
				ctx.armed.Store(true) // the reply is there, and then the context ends
			}
		}})), "/q")
		srv.SetLatency(100 * time.Millisecond)
		in, done := q.In(ctx)
		in <- 1
		synctest.Wait() // the first is under way
		for i := range 9 {
			in <- 2 + i // nine wait
		}
		err := <-done
		srv.SetLatency(0)
		n, _ := q.Len(t.Context())
		if !errors.Is(err, context.Canceled) || n >= 10 {
			t.Errorf("done yields %v; 10 accepted, %d stored, in was not closed", err, n)
		}
	})
}

// In with WithMaxLen sends as many together as there is room for: an element that stays in
// the queue is in nobody's way.
func TestInGoesOnBesideAnElementThatStays(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(10))
		must(t, q.SendAt(t.Context(), time.Now().Add(24*time.Hour), -1))
		var got atomic.Int64
		ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		go func() {
			for range ch {
				got.Add(1)
			}
		}()
		srv.SetLatency(5 * time.Millisecond)
		in, _ := q.In(t.Context())
		for i := range 100 {
			in <- i
		}
		close(in)
		time.Sleep(time.Hour)
		if n := got.Load(); n != 100 {
			n2, _ := q.Len(t.Context())
			t.Errorf("%d of 100 received after an hour, though %d of 10 places are free", n, 10-n2)
		}
	})
}

// A countedCtx ends the goroutine that asks it for its error again and again.
type countedCtx struct {
	context.Context
	t    *testing.T
	asks atomic.Int32
}

func (c *countedCtx) Err() error {
	if c.asks.Add(1) > 1000 {
		c.t.Error("somebody asks for ever")
		runtime.Goexit()
	}
	return c.Context.Err()
}

// Elements that were not sent are no success.
func TestInWhoseKeyEndsItsGoroutineReportsAnError(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithKey(func(int) string { runtime.Goexit(); return "" }))
		in, done := q.In(t.Context())
		in <- 1
		close(in)
		if err := <-done; err == nil {
			t.Error("done yields nil")
		}
		wantLen(t, q, 0)
	})
}

// errgroup, say, cancels all with what one has returned: here, that another queue is full.
func TestInEndsWithAContextThatAnothersFullQueueHasEnded(t *testing.T) {
	for name, limit := range map[string]int{"a full queue": 1, "a silent server": 0} {
		for _, cause := range []error{zsync.ErrFull, zsync.ErrTooLarge} {
			t.Run(name+"/"+cause.Error(), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					var opts []zsync.QueueOption
					if limit > 0 {
						opts = append(opts, zsync.WithMaxLen(limit))
					}
					q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
					must(t, q.Send(t.Context(), 0))
					if limit == 0 {
						srv.Intercept(func(r zktest.Request) zktest.Action { return zktest.Hang })
					}
					inner, cancel := context.WithCancelCause(t.Context())
					in, done := q.In(&countedCtx{Context: inner, t: t})
					in <- 1
					time.Sleep(100 * time.Millisecond)
					cancel(cause)
					wantErr(t, <-done, context.Canceled)
					time.Sleep(time.Minute)
				})
			})
		}
	}
}

// An error of In has the name of the method Send, also if In has sent several elements together.
func TestAnErrorOfInIsOfASendHoweverManyElementsWereSentTogether(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		srv.SetLatency(100 * time.Millisecond)
		in, done := q.In(t.Context())
		in <- 1
		synctest.Wait() // the first is under way
		in <- 2
		in <- 3
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && storesTwo(r) {
				return zktest.Fail(codeNoAuth)
			}
			return zktest.Pass
		})
		close(in)
		var e *zsync.Error
		if err := <-done; !errors.As(err, &e) || e.Op != "send" {
			t.Errorf("done yields %v", err)
		}
	})
}

func storesTwo(r zktest.Request) bool {
	n := 0
	for _, op := range r.Ops {
		if strings.Contains(op.Path, "/e-") {
			n++
		}
	}
	return n == 2
}
