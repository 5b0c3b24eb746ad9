package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/queue"
)

// QueueStats counts the elements of a [Queue].
type QueueStats struct {
	Ready    int           // can be received now, or, with WithKey, after a claimed element of the same key
	Claimed  int           // claimed by a consumer: delivered, or claimed ahead
	Delayed  int           // wait for their time, by the clock of this machine
	Dead     int           // dead letters
	Oldest   time.Time     // when the oldest was stored, of the first ready element of each priority that was never delayed; zero without one
	Attempts int           // the most deliveries of one element that is not claimed now; if it is large, the work fails every time
	Holders  []QueueHolder // of the claims, the largest number first
}

// A QueueHolder is a Queue value of one session that has claimed elements.
type QueueHolder struct {
	Owner   string // see [WithOwner]; empty if its session has ended, so that its elements are free
	Claimed int
}

// Stats counts the elements of the queue. It is no snapshot: an element that moves during the
// count can be counted in its old place, in its new one, or not at all. In the layouts of other
// libraries, it fills only Ready, Dead and Oldest. It writes nothing.
func (q *Queue[T]) Stats(ctx context.Context) (QueueStats, error) {
	st, err := ask(ctx, q, "stats", queue.Engine.Stats)
	all := QueueStats{Ready: st.Ready, Claimed: st.Claimed, Delayed: st.Delayed, Dead: st.Dead, Oldest: st.Oldest, Attempts: st.Attempts}
	for _, h := range st.Holders {
		all.Holders = append(all.Holders, QueueHolder(h))
	}
	return all, err
}
