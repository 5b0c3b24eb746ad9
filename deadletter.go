package zsync

import (
	"context"
	"iter"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A DeadLetter is an element that was set aside.
type DeadLetter struct {
	ID    string    // no other dead letter of the queue has had it, or will have
	Data  []byte    // as it was sent
	Since time.Time // when it was set aside, by the servers' clock

	Reason   string    // why: what [Delivery.Reject] was given, or an error's text; at most 1,000 bytes
	Attempts int       // how often it had been delivered
	First    time.Time // when it was sent, by the servers' clock

	letter *queue.Letter
}

// Dead yields the dead letters of q, the oldest first, those that are there
// when it begins. An error ends it. It costs one listing and one read for each.
func (q *Queue[T]) Dead(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return q.dead(ctx, "dead")
}

// dead is Dead for op, which errors name.
func (q *Queue[T]) dead(ctx context.Context, op string) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		if q.misuse() != nil {
			yield(DeadLetter{}, opError(op, q.path, q.misuse()))
			return
		}
		for l, err := range q.q.Letters(ctx) {
			var d DeadLetter
			if err == nil {
				d = DeadLetter{ID: l.ID, Data: l.Data, Since: l.Since, Reason: l.Reason, Attempts: l.Attempts, First: l.First, letter: l}
			}
			if !yield(d, opError(op, q.path, err)) || err != nil {
				return
			}
		}
	}
}

// RequeueDead puts back the dead letters for which choose returns true, all if
// it is nil, and returns how many. Each comes at the end of the queue, with the priority that it
// had, and no attempts. A dead letter that another process removes in the meantime is left out. An
// error ends the call. If ctx ends first, a letter is either in the queue or still a dead letter.
func (q *Queue[T]) RequeueDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	return q.forDead(ctx, "requeue", choose, func(d DeadLetter) (bool, error) {
		err := q.q.Requeue(ctx, d.letter)
		if session.IsNoNode(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// PurgeDead deletes the dead letters for which choose returns true, all if it is
// nil, and returns how many. A dead letter that another process removes in the meantime is left
// out. An error ends the call. To keep them for a time, choose by [DeadLetter].Since.
func (q *Queue[T]) PurgeDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	return q.forDead(ctx, "purge", choose, func(d DeadLetter) (bool, error) { return q.q.Discard(ctx, d.letter) })
}

// forDead does something with each dead letter that is chosen, and counts those
// for which it was done.
func (q *Queue[T]) forDead(ctx context.Context, op string, choose func(DeadLetter) bool, do func(DeadLetter) (bool, error)) (n int, err error) {
	for d, err := range q.dead(ctx, op) {
		if err != nil {
			return n, err
		}
		if choose != nil && !choose(d) {
			continue
		}
		done, err := do(d)
		if err != nil {
			return n, opError(op, q.path, err)
		}
		if done {
			n++
		}
	}
	return n, nil
}
