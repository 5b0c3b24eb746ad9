package queue

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Elements move between buckets while Len counts. So a single count can miss an element, or count two states of the
// queue at once.
func TestLenIsALengthThatTheQueueHadDuringTheCall(t *testing.T) {
	for name, c := range map[string]struct {
		before      int
		during      func(t *testing.T, q *zsync.Queue[int], d zsync.Delivery[int]) error
		least, most int
	}{
		"an element is delayed": {
			before: 1,
			during: func(t *testing.T, q *zsync.Queue[int], d zsync.Delivery[int]) error { return d.NackAfter(time.Hour) },
			least:  1, most: 1,
		},
		"some are sent, then as many are removed": {
			before: 1000, // a full bucket, so the next elements are in another
			during: func(t *testing.T, q *zsync.Queue[int], d zsync.Delivery[int]) error {
				err := q.Send(t.Context(), 1, 2, 3, 4, 5)
				for range 5 {
					if _, ok, e := q.TryRecv(t.Context()); !ok {
						err = errors.Join(err, e, errors.New("nothing was received"))
					}
				}
				return err
			},
			least: 1000, most: 1005,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				counter := open(t, srv)
				q := zsync.NewQueue[int](open(t, srv), "/q")
				must(t, q.Send(t.Context(), make([]int, c.before)...))
				d, err := q.Receive(t.Context())
				must(t, err)
				var listed, changed atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Session != counter.ID():
					case !listed.Load():
						listed.Store(r.Path == "/q" && harness.Op(zktest.OpGetChildren2)(r))
					case !changed.Swap(true): // after the listing of the buckets, before they are read
						if err := c.during(t, q, d); err != nil {
							t.Error(err)
						}
					}
					return zktest.Pass
				})
				n, err := zsync.NewQueue[int](counter, "/q").Len(t.Context())
				must(t, err)
				if n < c.least || n > c.most || !changed.Load() {
					t.Errorf("Len is %d; the queue had %d to %d elements", n, c.least, c.most)
				}
			})
		})
	}
}

// A consumer delays the only element while a producer counts the queue, which is full all the time.
func TestAnElementThatMovesDuringTheCountDoesNotMakeRoom(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		producer := open(t, srv)
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 1))
		d, err := q.Receive(t.Context())
		must(t, err)
		var listed, changed atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != producer.ID():
			case !listed.Load():
				listed.Store(r.Path == "/q" && harness.Op(zktest.OpGetChildren2)(r))
			case !changed.Swap(true): // after the listing of the buckets, before they are read
				if err := d.NackAfter(time.Hour); err != nil {
					t.Error(err)
				}
			}
			return zktest.Pass
		})
		wantErr(t, zsync.NewQueue[int](producer, "/q", zsync.WithMaxLen(1)).TrySend(t.Context(), 2), zsync.ErrFull)
		if !changed.Load() {
			t.Error("the element has not moved")
		}
	})
}
