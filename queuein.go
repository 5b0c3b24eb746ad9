package zsync

import (
	"cmp"
	"context"
	"errors"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// In returns a channel, and sends its elements in order. When you close it, In sends the rest; then
// done yields nil, or the first error, and is closed. After any error, even in q's arguments, In
// discards all further elements, so that no sender blocks. When ctx ends or the Session is closed,
// done yields the error, and In stops reading: a sender must select on done, too. Elements that
// come during a request are sent in the next request: up to 1,000, or as many as there is room for
// ([WithMaxLen]), all or none.
func (q *Queue[T]) In(ctx context.Context) (in chan<- T, done <-chan error) {
	ch, result := make(chan T, maxHeld), make(chan error, 1)
	if q.misuse() != nil {
		result <- opError("send", q.path, q.misuse())
		close(result)
		go func() {
			for open := true; open; {
				select {
				case _, open = <-ch:
				case <-ctx.Done():
					return
				}
			}
		}()
		return ch, result
	}
	q.s.m.Spawn(func() {
		err := opError("send", q.path, errors.New("the codec or the function of WithKey has ended its goroutine")) // unless drain returns
		defer func() { result <- err; close(result) }()
		err = q.drain(ctx, ch)
	})
	return ch, result
}

// maxHeld is the largest number of elements that In sends in one request.
const maxHeld = 1000

func (q *Queue[T]) drain(ctx context.Context, in <-chan T) (first error) {
	if err := q.s.m.Failure(); err != nil {
		return opError("send", q.path, err)
	}
	most := min(maxHeld, cmp.Or(q.cfg.MaxLen, maxHeld)) // more elements would never fit into the queue
	for {
		select {
		case v, ok := <-in:
			switch {
			case !ok:
				return first
			case first != nil:
				continue
			}
			vs := []T{v}
			for len(in) > 0 && len(vs) < most {
				vs = append(vs, <-in)
			}
			if first = q.sendAll(ctx, vs); first != nil && (ctx.Err() != nil || errors.Is(first, ErrClosed)) {
				return first
			}
		case <-ctx.Done():
			return opError("send", q.path, session.CtxErr(ctx))
		case <-q.s.m.Closing:
			return opError("send", q.path, q.s.m.Failure())
		}
	}
}

// sendAll sends vs in one request or, if they are too large or there is no room for all, in several.
func (q *Queue[T]) sendAll(ctx context.Context, vs []T) error {
	n := len(vs) / 2
	err := q.send(ctx, queue.Batch{Priority: q.middle(), NoWait: n > 0}, vs) // a single element waits for room
	if n == 0 || !errors.Is(err, ErrFull) && !errors.Is(err, ErrTooLarge) {
		return opError("send", q.path, err)
	}
	if err := q.sendAll(ctx, vs[:n]); err != nil {
		return err
	}
	return q.sendAll(ctx, vs[n:])
}
