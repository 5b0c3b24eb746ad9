package queue

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// hold receives n elements and claims no more.
func hold(t *testing.T, q *zsync.Queue[int], n int) []zsync.Delivery[int] {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ch := q.Deliveries(ctx)
	ds := collect(t, ch, n)
	cancel()
	for range ch {
	}
	return ds
}

// ackTogether acknowledges ds together.
func ackTogether(t *testing.T, ds []zsync.Delivery[int]) {
	t.Helper()
	var all sync.WaitGroup
	for _, d := range ds {
		all.Go(func() {
			if err := d.Ack(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// tryingCosts calls TryRecv until nothing is left, and returns what it got and the most
// requests that a call has cost.
func tryingCosts(t *testing.T, srv *zktest.Server, q *zsync.Queue[int]) (got []int, most int) {
	t.Helper()
	for {
		before := srv.Counts()
		v, ok, err := q.TryRecv(t.Context())
		must(t, err)
		d := srv.Counts().Sub(before)
		most = max(most, int(d.Total()-d.Requests[zktest.OpDelete.String()])) // empty buckets are deleted in the background
		if !ok {
			return got, most
		}
		got = append(got, v)
		time.Sleep(time.Minute) // what goes on in the background is over
	}
}

func TestTryRecvFindsWhatIsInALaterBucketInAFewRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		buckets func(t *testing.T, srv *zktest.Server, q, other *zsync.Queue[int]) []int
		limit   int
	}{
		"the first ones are claimed": {func(t *testing.T, srv *zktest.Server, q, other *zsync.Queue[int]) []int {
			for i := 0; i < 4600; i += 200 {
				must(t, q.Send(t.Context(), counted(i + 200)[i:]...))
			}
			hold(t, other, 4590)
			return counted(4600)[4590:]
		}, 10},
		"the first ones are claimed, and some of them settled": {func(t *testing.T, srv *zktest.Server, q, other *zsync.Queue[int]) []int {
			for i := 0; i < 4600; i += 200 {
				must(t, q.Send(t.Context(), counted(i + 200)[i:]...))
			}
			var some []zsync.Delivery[int]
			for i, d := range hold(t, other, 4590) {
				if i%7 < 3 || i%1000 > 900 {
					some = append(some, d)
				}
			}
			ackTogether(t, some)
			return counted(4600)[4590:]
		}, 10},
		"the first ones are empty": {func(t *testing.T, srv *zktest.Server, q, other *zsync.Queue[int]) []int {
			for i := 0; i < 4600; i += 200 {
				must(t, q.Send(t.Context(), counted(i + 200)[i:]...))
			}
			ackTogether(t, hold(t, other, 4590))
			return counted(4600)[4590:]
		}, 10},
		"all priorities but the last are claimed": {func(t *testing.T, srv *zktest.Server, q, other *zsync.Queue[int]) []int {
			for i := range 300 {
				must(t, q.SendPriority(t.Context(), i, i))
			}
			hold(t, other, 299)
			return []int{299}
		}, 14},
		"all priorities have one that is not due": {func(t *testing.T, srv *zktest.Server, q, other *zsync.Queue[int]) []int {
			for i := range 150 {
				must(t, q.SendPriority(t.Context(), i, -1))
			}
			for _, d := range hold(t, other, 150) {
				must(t, d.NackAfter(1000*time.Hour))
			}
			for i := range 3 {
				must(t, q.SendPriority(t.Context(), 299, i))
			}
			_, _, err := q.Peek(t.Context()) // lists what is not due, and remembers it
			must(t, err)
			return counted(3)
		}, 14},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				opts := []zsync.QueueOption{zsync.WithPrefetch(1), zsync.WithPriorities(300)}
				s := open(t, srv)
				create(t, s, "/q-receipts") // so that a TryRecv need not create it
				create(t, s, "/q-receipts/keep")
				q := zsync.NewQueue[int](s, "/q", opts...)
				other := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(30), zsync.WithPriorities(300))
				want := c.buckets(t, srv, q, other)
				time.Sleep(time.Minute)
				got, most := tryingCosts(t, srv, q)
				if !slices.Equal(got, want) {
					t.Errorf("received %v, want %v", got, want)
				}
				if more := 3; most > c.limit+more { // it claims, and lists the marks
					t.Errorf("a TryRecv has cost %d requests, want %d at most", most, c.limit+more)
				}
			})
		})
	}
}

func TestPeekWritesNothingThoughTheZnodeOfTheKeysIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		keyed := zsync.WithKey(func(v int) string { return strconv.Itoa(v) })
		must(t, zsync.NewQueue[int](s, "/q", keyed).Send(t.Context(), 7))
		time.Sleep(3 * time.Minute) // the log that no Send uses is deleted
		remove(t, s, "/q/keys")
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch r.Op {
			case zktest.OpCreate, zktest.OpSetData, zktest.OpDelete, zktest.OpMulti:
				t.Errorf("Peek: %v %s %v", r.Op, r.Path, r.Ops)
			}
			return zktest.Pass
		})
		if v, ok, err := zsync.NewQueue[int](s, "/q").Peek(t.Context()); v != 7 || !ok || err != nil {
			t.Errorf("Peek = %v, %v, %v", v, ok, err)
		}
		srv.Intercept(nil)
	})
}

func TestPeekWritesNothingThoughSomebodyIsDead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		must(t, killedWith7(t, srv).Send(t.Context(), 8))
		q := zsync.NewQueue[int](open(t, srv), "/q")
		time.Sleep(3 * time.Minute) // the receipt that no Send uses is deleted
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch r.Op {
			case zktest.OpCreate, zktest.OpSetData, zktest.OpDelete, zktest.OpMulti:
				t.Errorf("Peek: %v %s %v", r.Op, r.Path, r.Ops)
			}
			return zktest.Pass
		})
		for range 3 {
			if v, ok, err := q.Peek(t.Context()); v != 7 || !ok || err != nil { // the mark of its consumer is gone
				t.Errorf("Peek = %v, %v, %v", v, ok, err)
			}
			time.Sleep(4 * time.Second)
		}
		srv.Intercept(nil)
	})
}
