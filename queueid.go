package zsync

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// defaultIDMemory is for how long an ID is remembered without [WithIDMemory].
const defaultIDMemory = 24 * time.Hour

// WithIDMemory sets for how long [Queue.SendID] remembers an ID, by the servers'
// clocks: a day without it. It is for the producers; each ID is remembered for as
// long as the one who sent it has said.
func WithIDMemory(d time.Duration) QueueOption {
	return checked(func(c *queueConfig) { c.IDMemory = d }, d >= time.Millisecond, "WithIDMemory(%v): must be at least a millisecond", d)
}

// SendID is [Queue.Send] of one element that is sent once for this ID: sent is false
// if one with the same ID was sent before, within the time of [WithIDMemory], and
// nothing is stored then. It does not matter what has become of that one. So a
// program that has failed, or does not know whether its Send was stored, sends again
// with the same ID. An ID is any text but the empty one, for instance that of an
// order.
//
// # Errors
//
// Those of Send. In the layouts of other libraries it is [ErrInvalid].
//
// # Znodes
//
// <path>-ids/<2 digits>/<30 digits> of the ID's hash, written in the transaction that
// stores the element, and deleted some time after it is forgotten by whoever
// consumes.
//
// # Cost
//
// That of Send; 3 requests if the ID is remembered, or is to be replaced, and a few
// once for each of the 256 directories.
func (q *Queue[T]) SendID(ctx context.Context, id string, v T) (sent bool, err error) {
	if err := q.checkID(id); err != nil {
		return false, opError("send", q.path, err)
	}
	err = q.send(ctx, queue.Batch{Priority: queue.Middle, ID: id}, []T{v})
	if errors.Is(err, queue.ErrKnown) {
		return false, nil
	}
	return err == nil, opError("send", q.path, err)
}

// Cancel removes the element that was sent with the ID, if nobody has claimed it,
// and reports whether it did. One that came back from its consumer can be cancelled;
// one that is with the dead letters, or was requeued, cannot. The ID is remembered
// all the same: SendID with it stores nothing.
//
// If ctx ends first the element is removed or not.
//
// # Cost
//
// About 7 requests.
func (q *Queue[T]) Cancel(ctx context.Context, id string) (bool, error) {
	if err := cmp.Or(q.checkID(id), session.CtxErr(ctx)); err != nil {
		return false, opError("cancel", q.path, err)
	}
	done, err := q.q.Cancel(ctx, id)
	return done, opError("cancel", q.path, err)
}

func (q *Queue[T]) checkID(id string) error {
	switch {
	case q.misuse() != nil:
		return q.misuse()
	case q.cfg.layout != LayoutZsync:
		return session.Invalid("IDs need zsync's own layout, not %v", q.cfg.layout)
	case id == "":
		return session.Invalid("the ID is empty")
	}
	return nil
}
