package zsync

import (
	"context"
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

	q      queue.Engine
	letter *queue.Letter
	path   string
}

// RequeueDead puts back the dead letters for which choose returns true, all if
// it is nil, as [DeadLetter.Requeue] does, and returns how many. Those that
// others remove in the meantime are left out. An error ends it.
func (q *Queue[T]) RequeueDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	n, err := q.countDead(ctx, choose, func(d DeadLetter) (bool, error) {
		err := q.q.Requeue(ctx, d.letter)
		if session.IsNoNode(err) {
			return false, nil
		}
		return err == nil, err
	})
	return n, opError("requeue", q.path, err)
}

// PurgeDead deletes the dead letters for which choose returns true, all if it is
// nil, and returns how many. Those that others remove in the meantime are left
// out. An error ends it. To keep them for a time, choose by [DeadLetter].Since.
func (q *Queue[T]) PurgeDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	n, err := q.countDead(ctx, choose, func(d DeadLetter) (bool, error) { return q.q.Discard(ctx, d.letter) })
	return n, opError("purge", q.path, err)
}

// eachDead calls f for each dead letter, the oldest first, while it returns true.
// Those that others remove in the meantime are left out.
func (q *Queue[T]) eachDead(ctx context.Context, f func(DeadLetter) (more bool, err error)) error {
	ids, err := q.q.Dead(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		l, err := q.q.Letter(ctx, id)
		if session.IsNoNode(err) {
			continue
		}
		if err != nil {
			return err
		}
		d := DeadLetter{ID: l.ID, Data: l.Data, Since: l.Since, Reason: l.Reason, Attempts: l.Attempts, First: l.First, q: q.q, letter: l, path: q.path}
		if more, err := f(d); err != nil || !more {
			return err
		}
	}
	return nil
}

// countDead does something with each dead letter that is chosen, and counts those
// for which it was done.
func (q *Queue[T]) countDead(ctx context.Context, choose func(DeadLetter) bool, do func(DeadLetter) (bool, error)) (n int, err error) {
	if q.misuse() != nil {
		return 0, q.misuse()
	}
	err = q.eachDead(ctx, func(d DeadLetter) (bool, error) {
		if choose != nil && !choose(d) {
			return true, nil
		}
		done, err := do(d)
		if done {
			n++
		}
		return true, err
	})
	return n, err
}
