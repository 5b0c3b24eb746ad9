package zsync

import (
	"context"
	"errors"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

const defaultIDMemory = 24 * time.Hour

// WithIDMemory sets for how long [Queue.SendID] remembers an ID, by the servers' clock. The option
// of the ID's producer counts. The default is 24 hours.
func WithIDMemory(d time.Duration) QueueOption {
	return checked(func(c *setup) { c.IDMemory = d }, d >= time.Millisecond, "WithIDMemory(%v): must be at least a millisecond", d)
}

// SendID sends v once for an ID: a text, not empty, such as an order number. Within the time of
// [WithIDMemory], a second SendID with that ID stores nothing, and sent is false, whatever became
// of the first element. So after an unknown outcome, call SendID again. Errors are as for Send.
func (q *Queue[T]) SendID(ctx context.Context, id string, v T) (sent bool, err error) {
	if err := q.checkID(id); err != nil {
		return false, opError("send", q.path, err)
	}
	err = q.send(ctx, queue.Batch{Priority: q.middle(), ID: id}, []T{v})
	if errors.Is(err, queue.ErrKnown) {
		return false, nil
	}
	return err == nil, opError("send", q.path, err)
}

// Cancel removes the element that was sent with the ID, unless a consumer has claimed it or the
// queue has forgotten the ID ([WithIDMemory]), and reports whether it did. It can remove a returned
// element, but not a dead letter or a requeued element. SendID still remembers the ID.
func (q *Queue[T]) Cancel(ctx context.Context, id string) (bool, error) {
	if err := q.checkID(id); err != nil {
		return false, opError("cancel", q.path, err)
	}
	return ask(ctx, q, "cancel", func(e queue.Engine, ctx context.Context) (bool, error) { return e.Cancel(ctx, id) })
}

func (q *Queue[T]) checkID(id string) error {
	switch {
	case q.misuse() != nil:
		return q.misuse()
	case q.cfg.queueLayout != LayoutZsync:
		return session.Invalid("IDs need zsync's own layout, not %v", q.cfg.queueLayout)
	case id == "":
		return session.Invalid("the ID is empty")
	}
	return nil
}
