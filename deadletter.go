package zsync

import (
	"context"
	"iter"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A DeadLetter is an element that no consumer receives any longer: it could not be decoded, was
// rejected, or failed too often ([WithMaxAttempts]).
type DeadLetter struct {
	ID       string    // unique: no other dead letter of the queue ever has it
	Data     []byte    // as it was sent
	Since    time.Time // when it became a dead letter, by the servers' clock
	Reason   string    // the reason of [Delivery.Reject], or the text of the last error of [Queue.Work]; at most 1,000 bytes
	Attempts int       // how often it was delivered
	First    time.Time // when it was sent, by the servers' clock
	letter   *queue.Letter
}

// Dead yields the present dead letters, oldest first. An error ends the list.
func (q *Queue[T]) Dead(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return q.dead(ctx, "dead")
}

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

// RequeueDead moves dead letters to the end of the queue, with their priority and no attempts, and
// returns their number. It moves each letter for which choose returns true, or all if choose is
// nil. It skips removed letters.
func (q *Queue[T]) RequeueDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	return q.forDead(ctx, "requeue", choose, queue.Engine.Requeue)
}

// PurgeDead deletes dead letters. It chooses and counts them like RequeueDead.
func (q *Queue[T]) PurgeDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	return q.forDead(ctx, "purge", choose, queue.Engine.Discard)
}

// forDead returns the number of letters for which do has succeeded.
func (q *Queue[T]) forDead(ctx context.Context, op string, choose func(DeadLetter) bool, do func(queue.Engine, context.Context, *queue.Letter) error) (n int, err error) {
	for d, err := range q.dead(ctx, op) {
		if err != nil {
			return n, err
		}
		if choose != nil && !choose(d) {
			continue
		}
		switch err := do(q.q, ctx, d.letter); {
		case err == nil:
			n++
		case !session.IsNoNode(err):
			return n, opError(op, q.path, err)
		}
	}
	return n, nil
}
