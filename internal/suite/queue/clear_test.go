package queue

import (
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// What stands first of a key must not be removed before what waits for it: a consumer
// that looks in between would receive what is about to be removed.
func TestClearFreesNothingForAConsumerThatLooksInBetween(t *testing.T) {
	for name, arrange := range map[string]func(t *testing.T, q *zsync.Queue[int], ch <-chan zsync.Delivery[int]){
		"behind one that was given back for later": func(t *testing.T, q *zsync.Queue[int], ch <-chan zsync.Delivery[int]) {
			must(t, q.Send(t.Context(), 10, 11, 12))
			must(t, wantNext(t, ch, 10).NackAfter(time.Hour))
		},
		"behind one of a lower priority that was given back for later": func(t *testing.T, q *zsync.Queue[int], ch <-chan zsync.Delivery[int]) {
			must(t, q.SendPriority(t.Context(), 2, 10))
			d := wantNext(t, ch, 10)
			must(t, q.SendPriority(t.Context(), 1, 11))
			must(t, q.SendPriority(t.Context(), 0, 12))
			must(t, d.NackAfter(time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), open(t, srv)
				q, producer := keyed(s, zsync.WithPriorities(3)), keyed(other, zsync.WithPriorities(3))
				ch := keyed(open(t, srv)).Deliveries(t.Context())
				arrange(t, producer, ch)
				wantNext(t, ch, -1)
				// Each time Clear has removed something, the consumer is woken and has a
				// second to look before Clear goes on.
				sends := make(chan error, 10)
				sent, commits := 0, 0
				read := oneByOne(srv, func(r zktest.Request) zktest.Action {
					if r.Session == s.ID() && r.Op == zktest.OpMulti {
						if commits++; commits > 1 && sent < 5 {
							sent++
							v := 1000 + 10*sent
							go func() { sends <- producer.Send(t.Context(), v) }()
							return zktest.Delay(time.Second)
						}
					}
					return zktest.Pass
				})
				if n, err := q.Clear(t.Context()); n != 3 || err != nil {
					t.Errorf("Clear = %d, %v; want 3", n, err)
				}
				n := 0
				read(func() { n = sent })
				if n == 0 {
					t.Error("the case did not come about")
				}
				for i := range n {
					must(t, <-sends)
					must(t, wantNext(t, ch, 1010+10*i).Ack(t.Context()))
				}
				wantNext(t, ch, -1)
			})
		})
	}
}

func TestClearDoesNotRunAfterProducers(t *testing.T) {
	t.Parallel()
	inAllLayouts(t, func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption) {
		s, other := open(t, srv), open(t, srv)
		q, producer := zsync.NewQueue[int](s, "/q", layout), zsync.NewQueue[int](other, "/q", layout)
		must(t, producer.Send(t.Context(), counted(2500)...))
		sends := make(chan error, 100)
		sent := 0
		read := oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpMulti && sent < 100 {
				sent++
				go func() { sends <- producer.Send(t.Context(), 5000) }()
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		if n, err := q.Clear(t.Context()); n != 2500 || err != nil {
			t.Errorf("Clear = %d, %v; want what was there", n, err)
		}
		n := 0
		read(func() { n = sent })
		if n == 0 || n == 100 {
			t.Errorf("%d were sent while it ran", n)
		}
		for range n {
			must(t, <-sends)
		}
		wantLen(t, q, n)
	})
}

func TestClearWorksAtTheLongestPath(t *testing.T) {
	t.Parallel()
	inAllLayouts(t, func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/"+strings.Repeat("q", 2047), layout)
		const n = 1000
		for range n / 100 {
			must(t, q.Send(t.Context(), counted(100)...)) // more do not fit into a request
		}
		if got, err := q.Clear(within(t, time.Minute)); got != n || err != nil {
			t.Errorf("Clear = %d, %v; want %d", got, err, n)
		}
		if st := s.Stats(); st.Reconnects > 0 {
			t.Errorf("it cost %d connections", st.Reconnects)
		}
		wantLen(t, q, 0)
	})
}

func TestClearRingsTheBellForWhatWaitsForItsKey(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		q, producer := keyed(s), keyed(other)
		must(t, producer.Send(t.Context(), 10))
		ch := keyed(open(t, srv)).Deliveries(t.Context())
		must(t, wantNext(t, ch, 10).NackAfter(time.Hour))
		sends := make(chan error, 1)
		late := false
		oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpMulti && !late {
				late = true
				go func() { sends <- producer.Send(t.Context(), 11) }() // waits for 10
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		if n, err := q.Clear(t.Context()); n != 1 || err != nil {
			t.Errorf("Clear = %d, %v; want 1", n, err)
		}
		must(t, <-sends)
		must(t, wantNext(t, ch, 11).Ack(t.Context()))
	})
}
