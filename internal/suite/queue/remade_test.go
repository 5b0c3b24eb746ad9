package queue

import (
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A queue, or a part of it, is deleted by somebody else and made again beside producers
// that knew the former.

func TestProducerThatKnewADeletedQueueSendsBehindWhatTheNextHas(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"into a bucket": 1, "into the next bucket": 1000} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				former, other := zsync.NewQueue[int](s, "/q", zsync.WithPriorities(3)), zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPriorities(3))
				must(t, former.Send(t.Context(), counted(before)...))
				must(t, former.SendPriority(t.Context(), 2, counted(before)...))
				deleteTree(t, s, "/q")
				must(t, other.Send(t.Context(), 10))
				must(t, other.SendPriority(t.Context(), 2, 12))
				must(t, former.SendPriority(t.Context(), 0, 9)) // teaches it of one priority that the queue is another
				must(t, former.Send(t.Context(), 11))
				must(t, other.SendPriority(t.Context(), 2, 13))
				must(t, former.SendPriority(t.Context(), 2, 14))
				must(t, other.SendPriority(t.Context(), 2, 15))
				ch := other.Deliveries(t.Context())
				for v := 9; v <= 15; v++ {
					must(t, wantNext(t, ch, v).Ack(t.Context()))
				}
			})
		})
	}
}

func TestSendGoesOnWhenItsBucketWasDeletedByHand(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		for v := range 3 {
			must(t, q.Send(t.Context(), 7))
			for _, name := range childrenOf(t, s, "/q") {
				if name[0] == 'b' {
					deleteTree(t, s, "/q/"+name)
				}
			}
			must(t, q.Send(t.Context(), v))
			if got, ok, err := q.TryRecv(t.Context()); got != v || !ok || err != nil {
				t.Errorf("TryRecv = %d, %v, %v; want %d", got, ok, err, v)
			}
		}
	})
}

func TestSendMakesAnotherJournalWhenItsOwnWasDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 1))
		journals := childrenOf(t, s, "/q-receipts")
		if len(journals) != 1 {
			t.Fatalf("%d journals", len(journals))
		}
		deleteTree(t, s, "/q-receipts/"+journals[0])
		must(t, q.Send(t.Context(), 2))
		wantLen(t, q, 2)
	})
}
