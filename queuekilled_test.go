package zsync_test

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// workingOn has a process work on the first element, as how says, until it is killed.
func workingOn(t *testing.T, srv *zktest.Server, how string, opts ...zsync.QueueOption) {
	t.Helper()
	s, kill := mortal(t, srv)
	q := zsync.NewQueue[int](s, "/q", opts...)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	got := make(chan int, 100)
	work := func(v int) {
		got <- v
		<-ctx.Done()
	}
	switch how {
	case "Work":
		go q.Work(ctx, 1, func(_ context.Context, v int) error { work(v); return nil })
	case "All":
		go func() {
			for d, err := range q.All(ctx) {
				if err == nil {
					work(d.Value)
				}
			}
		}()
	case "Receive":
		go func() {
			if d, err := q.Receive(ctx); err == nil {
				work(d.Value)
			}
		}()
	case "Deliveries":
		go func() {
			for d := range q.Deliveries(ctx) {
				work(d.Value)
			}
		}()
	}
	if v := <-got; v != 0 {
		t.Errorf("%s works on %d, want the first", how, v)
	}
	time.Sleep(time.Second)
	kill()
	time.Sleep(time.Minute)
}

// What kills its process takes nothing else to the dead letters.
func TestOnlyWhatWasHandedToAConsumerThatIsKilledWasTried(t *testing.T) {
	for _, c := range []struct {
		how    string
		limit  int
		beside int // what is counted besides: the one that is offered
	}{{"Work", 0, 0}, {"Work", 1, 0}, {"Work", 2, 0}, {"All", 0, 0}, {"All", 1, 0}, {"All", 2, 0}, {"Receive", 1, 0}, {"Deliveries", 0, 0}, {"Deliveries", 1, 1}, {"Deliveries", 3, 1}} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var opts []zsync.QueueOption
			if c.limit > 0 {
				opts = append(opts, zsync.WithMaxAttempts(c.limit))
			}
			q := zsync.NewQueue[int](open(t, srv), "/q", opts...)
			must(t, q.Send(t.Context(), counted(20)...))
			workingOn(t, srv, c.how, opts...)
			tried, left := 0, 20
			for d := range q.Deliveries(within(t, time.Minute)) {
				left--
				switch {
				case d.Value == 0 && d.Attempt != 2:
					t.Errorf("%s, limit %d: the first comes back for attempt %d", c.how, c.limit, d.Attempt)
				case d.Value != 0 && d.Attempt > 1:
					tried++
				}
			}
			if c.limit == 1 {
				left-- // the first
			}
			if buried := left; tried+buried > c.beside {
				t.Errorf("%s, limit %d: %d that were not handed out count as tried, and %d are buried", c.how, c.limit, tried, buried)
			}
		})
	}
}
