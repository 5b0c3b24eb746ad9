package session

import (
	"context"

	"github.com/go-zookeeper/zk"
)

// A Batch is requests that are executed in this order, over one connection, or
// from one of them on not at all. All are on their way at once, so together
// they take one round trip.
//
// They are put on one link in one piece, and never on another: what a
// connection drops is not repeated over the next. So if the connection is
// replaced meanwhile, some first ones of them may have been executed, and some
// of those answered; the others have no answer, now or later, and whoever has
// sent the batch decides what to do about them.
//
// A server executes the requests of one connection in their order, and answers
// in that order. So an answer says that what came before it in the batch was
// executed, and answered; and what a request sees has been made by those before
// it, or is newer. A read behind a sync is as new as the sync, and a listing
// behind a create shows what was created.
//
// A Batch is used once.
type Batch struct {
	requests []request // all batched
}

// A batched request is a pending, of whatever type.
type batched interface {
	request
	settle(ctx context.Context, inc *Incarnation) error
}

func (p *pending[T]) settle(ctx context.Context, inc *Incarnation) error {
	_, err := p.Wait(ctx, inc)
	return err
}

// add adds a request. Its answer may be read when the batch has been waited for.
func add[T any](b *Batch, c call[T]) *pending[T] {
	p := newPending(c)
	b.requests = append(b.requests, p)
	return p
}

// startBatch sends b as soon as there is a connection, and returns without waiting for
// the answers. If there is an error nothing was sent.
func (inc *Incarnation) startBatch(ctx context.Context, b *Batch) error {
	l, err := inc.openLink(ctx)
	if err == nil {
		l.sendOrFail(b.requests...)
	}
	return err
}

// wait waits for the answers to b, which was begun in inc. It is nil if every
// request was answered, with a result or with an error of its own; otherwise it
// is the error of the first that was not. When ctx or the incarnation ends first
// it returns their error, and what has no answer is of unknown outcome.
func (b *Batch) wait(ctx context.Context, inc *Incarnation) error {
	for _, r := range b.requests {
		if err := r.(batched).settle(ctx, inc); OutcomeOf(err) != Answered {
			return err
		}
	}
	return nil
}

// retryAll makes attempts at the requests that f adds, which may safely be
// applied twice, until every one is answered in one attempt.
func (inc *Incarnation) retryAll(ctx context.Context, f func(b *Batch)) error {
	return inc.repeat(ctx, func(*attempts) error {
		b := new(Batch)
		f(b)
		if err := inc.startBatch(ctx, b); err != nil {
			return err
		}
		return b.wait(ctx, inc)
	})
}

// fresh makes a read behind a sync: what it sees is not older than the call. If
// the sync was refused, what was read behind it is not looked at.
func fresh[T any](ctx context.Context, inc *Incarnation, c call[T]) (v T, err error) {
	var sync *pending[void]
	var read *pending[T]
	err = inc.retryAll(ctx, func(b *Batch) { sync, read = add(b, syncCall(c.path)), add(b, c) })
	switch {
	case err != nil:
		return v, err
	case sync.err != nil:
		return v, sync.err
	}
	return read.val, read.err
}

// GetFresh is Get of what is not older than the call, in one round trip.
func (inc *Incarnation) GetFresh(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := fresh(ctx, inc, getCall(path))
	return n.Data, n.Stat, err
}

// ExistsFresh is Exists of what is not older than the call, in one round trip.
func (inc *Incarnation) ExistsFresh(ctx context.Context, path string) (*zk.Stat, error) {
	stat, err := fresh(ctx, inc, existsCall(path))
	if IsNoNode(err) {
		return nil, nil
	}
	return stat, err
}

// ListFresh lists znodes, as they are not before the call, in one round trip. What
// does not exist is empty.
func (inc *Incarnation) ListFresh(ctx context.Context, dirs ...string) (lists [][]string, err error) {
	var sync *pending[void]
	var listed []*pending[listing]
	err = inc.retryAll(ctx, func(b *Batch) {
		sync, listed = add(b, syncCall(dirs[0])), nil
		for _, dir := range dirs {
			listed = append(listed, add(b, childrenCall(dir)))
		}
	})
	switch {
	case err != nil:
		return nil, err
	case sync.err != nil:
		return nil, sync.err
	}
	for _, l := range listed {
		if l.err != nil && !IsNoNode(l.err) {
			return nil, l.err
		}
		lists = append(lists, l.val.names)
	}
	return lists, nil
}

// A Look is whether a znode is there, as a listing of its children tells.
type Look struct {
	Stat *zk.Stat
	Err  error
}

// LookAtAll looks at several znodes in one round trip, and sets the watches on their
// children that are wanted. An error is of what has not been answered.
func (inc *Incarnation) LookAtAll(ctx context.Context, paths ...string) (looks []Look, err error) {
	var listed []*pending[listing]
	err = inc.retryAll(ctx, func(b *Batch) {
		listed = listed[:0]
		for _, path := range paths {
			listed = append(listed, add(b, childrenCall(path)))
		}
	})
	if err != nil {
		return nil, err
	}
	for _, l := range listed {
		looks = append(looks, Look{l.val.stat, l.err})
	}
	return looks, nil
}

// ChildrenFresh is Children of what is not older than the call, in one round trip.
func (inc *Incarnation) ChildrenFresh(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	l, err := fresh(ctx, inc, childrenCall(path))
	return l.names, l.stat, err
}

// ChildrenFreshBeside is ChildrenFresh that reads the znode at path in the same round trip,
// which is probably among those children. Its Stat is nil if it is not there, or may not
// be read.
func (inc *Incarnation) ChildrenFreshBeside(ctx context.Context, dir, path string) (names []string, n Node, err error) {
	var sync *pending[void]
	var listed *pending[listing]
	var read *pending[Node]
	err = inc.retryAll(ctx, func(b *Batch) {
		sync, listed, read = add(b, syncCall(dir)), add(b, childrenCall(dir)), add(b, getCall(path))
	})
	if err == nil {
		err = sync.err
	}
	if err == nil {
		err = listed.err
	}
	if err != nil {
		return nil, n, err
	}
	if read.err == nil {
		n = read.val
	}
	return listed.val.names, n, nil
}
