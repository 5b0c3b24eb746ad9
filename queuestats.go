package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/queue"
)

// QueueStats says what is in a [Queue].
type QueueStats struct {
	Ready   int       // may be received now; with WithKey, or when those of their keys that are in hand are done
	Claimed int       // belong to a consumer, in hand or ahead
	Delayed int       // wait for their time, by the clock of this machine
	Dead    int       // dead letters
	Oldest  time.Time // of those that stand first among the ready ones of each priority, and are not of SendAt nor came back for later: when the oldest was stored; zero if there is none

	// Attempts is how often one was delivered that is not claimed now, at most: of
	// those that stand first among the ready ones of each priority, and of those
	// that were given back for a later time. If it is large something fails again and
	// again; see [WithMaxAttempts].
	Attempts int

	Holders []QueueHolder // who has claimed what, most first
}

// A QueueHolder is a process, or more exactly a Queue value in one ZooKeeper
// session, that has claimed elements.
type QueueHolder struct {
	Owner   string // see [WithOwner]; empty if its session has ended: its elements are free
	Claimed int
}

// Stats counts what is in the queue. It is no snapshot: what moves while it
// counts may be counted where it was, where it is, or not at all. In the layouts
// of other libraries, where what is claimed is in the queue no more, only Ready,
// Dead and Oldest are told.
//
// # Cost
//
// A sync, a listing of each bucket of about 1,000 elements, and what it takes to
// read the claims. It writes nothing.
func (q *Queue[T]) Stats(ctx context.Context) (QueueStats, error) {
	st, err := ask(ctx, q, "stats", queue.Engine.Stats)
	all := QueueStats{Ready: st.Ready, Claimed: st.Claimed, Delayed: st.Delayed, Dead: st.Dead, Oldest: st.Oldest, Attempts: st.Attempts}
	for _, h := range st.Holders {
		all.Holders = append(all.Holders, QueueHolder(h))
	}
	return all, err
}
