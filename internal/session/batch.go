package session

// This file sends several requests together, over one connection and in order. calls.go has the
// content of each request.

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
)

// The type `batch` is a list of requests that are executed in order, over one connection. They are
// sent together, so they take one round trip. A batch is used once. If the connection ends, the
// servers may have executed the first requests, and answered some of them; the sender decides whether
// to send another batch.
//
// A reply proves that all earlier requests of the batch were executed and answered. And each request
// sees the state after all earlier requests of its connection, or a newer state: a read after a sync
// is as new as the sync, and a listing after a create shows the znode.
type batch struct {
	requests []conn.Request // each is a `pending` of some type
}

func (p *pending[T]) settle(ctx context.Context, inc *Incarnation) error {
	_, err := p.Wait(ctx, inc)
	return err
}

// The function `add` adds a request to b. The result of the request may be read after b.wait.
func add[T any](b *batch, c call[T]) *pending[T] {
	p := newPending(c)
	b.requests = append(b.requests, p)
	return p
}

// startBatch sends b as soon as there is a connection, and returns without waiting for replies.
// If it returns an error, nothing was sent.
func (inc *Incarnation) startBatch(ctx context.Context, b *batch) error {
	l, err := inc.openConn(ctx)
	if err == nil {
		l.Send(b.requests...)
	}
	return err
}

// The method `wait` waits for the replies to b. The caller must have sent b through inc. The result
// is nil if every request was answered, with a result or with its own error. Otherwise the result is
// the error of the first unanswered request, whose outcome is unknown.
func (b *batch) wait(ctx context.Context, inc *Incarnation) error {
	for _, r := range b.requests {
		if err := r.(interface {
			settle(context.Context, *Incarnation) error
		}).settle(ctx, inc); OutcomeOf(err) != Answered {
			return err
		}
	}
	return nil
}

// retryAll sends the requests that f adds, and repeats them until all are answered in one attempt.
// The requests must be safe to apply twice.
func (inc *Incarnation) retryAll(ctx context.Context, f func(b *batch)) error {
	return inc.repeat(ctx, func() error {
		b := new(batch)
		f(b)
		if err := inc.startBatch(ctx, b); err != nil {
			return err
		}
		return b.wait(ctx, inc)
	})
}

func addEach[T any](b *batch, paths []string, c func(path string) call[T]) (added []*pending[T]) {
	for _, path := range paths {
		added = append(added, add(b, c(path)))
	}
	return added
}

// retryFresh is retryAll for reads. It sends a sync before them, so no result is older than the
// call. If the servers refuse the sync, retryFresh returns the refusal, and the caller ignores the
// reads.
func (inc *Incarnation) retryFresh(ctx context.Context, path string, f func(b *batch)) error {
	var sync *pending[struct{}]
	err := inc.retryAll(ctx, func(b *batch) {
		sync = add(b, syncCall(path))
		f(b)
	})
	if err == nil {
		err = sync.err
	}
	return err
}

// The function `fresh` makes one read, through retryFresh.
func fresh[T any](ctx context.Context, inc *Incarnation, c call[T]) (v T, err error) {
	var read *pending[T]
	if err = inc.retryFresh(ctx, c.path, func(b *batch) { read = add(b, c) }); err != nil {
		return v, err
	}
	return read.val, read.err
}

// GetFresh is Get with a result that is not older than the call, in one round trip.
func (inc *Incarnation) GetFresh(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := fresh(ctx, inc, getCall(path))
	return n.Data, n.Stat, err
}

// ExistsFresh is Exists with a result that is not older than the call, in one round trip.
func (inc *Incarnation) ExistsFresh(ctx context.Context, path string) (*zk.Stat, error) {
	stat, err := fresh(ctx, inc, existsCall(path))
	if IsNoNode(err) {
		return nil, nil
	}
	return stat, err
}

// ListFresh lists znodes, with results that are not older than the call, in one round trip. A
// znode that does not exist has no children.
func (inc *Incarnation) ListFresh(ctx context.Context, dirs ...string) (lists [][]string, err error) {
	var listed []*pending[listing]
	if err := inc.retryFresh(ctx, dirs[0], func(b *batch) { listed = addEach(b, dirs, childrenCall) }); err != nil {
		return nil, err
	}
	for _, l := range listed {
		if l.err != nil && !IsNoNode(l.err) {
			return nil, l.err
		}
		lists = append(lists, l.val.names)
	}
	return lists, nil
}

// LookAtAll lists the children of several znodes in one round trip, and returns the Stat of each znode
// and the error of each listing. If a caller has joined the watch on a znode's children, the listing
// sets that watch. LookAtAll returns `err` if a request was not answered.
func (inc *Incarnation) LookAtAll(ctx context.Context, paths ...string) (stats []*zk.Stat, errs []error, err error) {
	var listed []*pending[listing]
	if err := inc.retryAll(ctx, func(b *batch) { listed = addEach(b, paths, childrenCall) }); err != nil {
		return nil, nil, err
	}
	for _, l := range listed {
		stats, errs = append(stats, l.val.stat), append(errs, l.err)
	}
	return stats, errs, nil
}

// ChildrenFresh is Children with a result that is not older than the call, in one round trip.
func (inc *Incarnation) ChildrenFresh(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	l, err := fresh(ctx, inc, childrenCall(path))
	return l.names, l.stat, err
}

// NamesFresh is Names with a result that is not older than the call, in one round trip.
func (inc *Incarnation) NamesFresh(ctx context.Context, path string) ([]string, error) {
	return orNone(inc.ChildrenFresh(ctx, path))
}

// NamesFreshBeside is NamesFresh for dir, and also reads the znode at path in the same round trip.
// That znode is usually a child of dir. n.Stat is nil if the znode does not exist or cannot be
// read.
func (inc *Incarnation) NamesFreshBeside(ctx context.Context, dir, path string) (names []string, n Node, err error) {
	var listed *pending[listing]
	var read *pending[Node]
	err = inc.retryFresh(ctx, dir, func(b *batch) { listed, read = add(b, childrenCall(dir)), add(b, getCall(path)) })
	if err != nil {
		return nil, n, err
	}
	if read.err == nil {
		n = read.val
	}
	names, err = orNone(listed.val.names, nil, listed.err)
	return names, n, err
}
