package zsync

import (
	"context"
	"iter"
	"time"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// QueueStats counts the elements of a [Queue].
type QueueStats struct {
	Ready    int           // can be received now, or, with WithKey, after a claimed element of the same key
	Claimed  int           // claimed by a consumer: delivered, or claimed ahead
	Delayed  int           // waiting for their time, by the clock of this machine
	Dead     int           // dead letters
	Oldest   time.Time     // the time at which the oldest ready element was stored; elements that were delayed do not count; zero if there is no other
	Attempts int           // the largest number of deliveries of one unclaimed element; if it is large, the work fails every time
	Holders  []QueueHolder // the holders of claims, in descending order of claims
	Paused   bool          // see [Queue.Pause]
}

// A QueueHolder is a Queue value of one session that has claimed elements.
type QueueHolder struct {
	Owner   string // see [WithOwner]; empty if its session has ended, so that its elements are free
	Claimed int
}

// Stats counts the elements of the queue, and writes nothing. It is no snapshot: an element that
// moves can be counted twice, or not at all.
func (q *Queue[T]) Stats(ctx context.Context) (QueueStats, error) {
	st, err := ask(ctx, q, "stats", queue.Engine.Stats)
	all := QueueStats{Ready: st.Ready, Claimed: st.Claimed, Delayed: st.Delayed, Dead: st.Dead, Oldest: st.Oldest, Attempts: st.Attempts, Paused: st.Paused}
	for _, h := range st.Holders {
		all.Holders = append(all.Holders, QueueHolder(h))
	}
	return all, err
}

// Pause stops all consumers of the queue, in every process, until [Queue.Resume]. When Pause has
// returned, the servers refuse each claim; TryRecv and Peek find no element. An element that was
// claimed before is still delivered and settled: when [Queue.Stats] reports 0 Claimed, no work is
// under way. Producers continue. A pause outlasts the process and its session. A second Pause
// changes nothing.
func (q *Queue[T]) Pause(ctx context.Context) error { return q.order(ctx, "pause", queue.Engine.Pause) }

// Resume ends a [Queue.Pause] of any process, if any, and wakes all consumers.
func (q *Queue[T]) Resume(ctx context.Context) error {
	return q.order(ctx, "resume", queue.Engine.Resume)
}

func (q *Queue[T]) order(ctx context.Context, op string, f func(queue.Engine, context.Context) error) error {
	_, err := ask(ctx, q, op, func(e queue.Engine, ctx context.Context) (struct{}, error) { return struct{}{}, f(e, ctx) })
	return err
}

// A QueueState is the state of an element of a [Queue], for [Queue.List].
type QueueState int

const (
	QueueReady   QueueState = iota // can be received now, or, with WithKey, after a claimed element of the same key
	QueueClaimed                   // claimed by a consumer: delivered, or claimed ahead
	QueueDelayed                   // waits for its time, by the clock of this machine
	QueueDead                      // a dead letter
)

// String returns the name of the state.
func (s QueueState) String() string {
	return nameOf(s, "QueueState", "ready", "claimed", "delayed", "dead")
}

// A QueueItem is an element in a list of [Queue.List].
type QueueItem[T any] struct {
	ID       string // see [Delivery]; of a dead letter, see [DeadLetter]
	Value    T
	Data     []byte // as it is stored
	State    QueueState
	Attempts int       // earlier deliveries, each without an Ack
	Sent     time.Time // by the servers' clock; zero if the client may not read it
	Due      time.Time // of a delayed element
	Owner    string    // of a claimed element: its consumer, see [WithOwner]
	Reason   string    // of a dead letter
}

// List yields the elements in a state, in the order of the queue; dead letters come oldest first.
// It writes nothing, and is no snapshot: an element that moves during the list can be missing, or
// come twice. If an element cannot be decoded or read, List yields it with the error, and
// continues. Any other error has an empty item, and ends the list.
func (q *Queue[T]) List(ctx context.Context, state QueueState) iter.Seq2[QueueItem[T], error] {
	return func(yield func(QueueItem[T], error) bool) {
		switch {
		case q.misuse() != nil:
			yield(QueueItem[T]{}, opError("list", q.path, q.misuse()))
		case state < QueueReady || state > QueueDead:
			yield(QueueItem[T]{}, opError("list", q.path, session.Invalid("%v is no state", state)))
		case state == QueueDead:
			for d, err := range q.dead(ctx, "list") {
				item := QueueItem[T]{ID: d.ID, Data: d.Data, State: state, Attempts: d.Attempts, Sent: d.First, Reason: d.Reason}
				if err == nil {
					item.Value, err = codec.Decode[T](q.cfg.codec, d.Data)
				}
				if !yield(item, opError("list", q.path, err)) {
					return
				}
			}
		default:
			for l, err := range q.q.List(ctx, queue.Status(state)) {
				item := QueueItem[T]{ID: l.ID, Data: l.Data, State: state, Attempts: l.Attempts, Sent: l.Sent, Due: l.Due, Owner: l.Owner}
				if item.Value, _ = l.Value.(T); err == nil {
					err = l.Fault
				}
				if !yield(item, opError("list", q.path, err)) {
					return
				}
			}
		}
	}
}
