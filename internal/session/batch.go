package session

// This file sends several requests together, over one connection and in order. verbs.go has the
// content of each request.

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
)

// Requests are executed in order, over one connection. They are sent together, so they take one round
// trip. They are sent once. If the connection ends, the servers may have executed the first requests,
// and answered some of them; the sender decides whether to send others.
//
// A reply proves that all earlier requests of the list were executed and answered. And each request
// sees the state after all earlier requests of its connection, or a newer state: a read after a sync
// is as new as the sync, and a listing after a create shows the znode.
type Requests []conn.Request // each is a Pending of some type

func (p *Pending[T]) settle(ctx context.Context, inc *Incarnation) error {
	_, err := p.Wait(ctx, inc)
	return err
}

// Add adds a request to b. The result of the request may be read after b.Wait.
func Add[T any](b *Requests, c Call[T]) *Pending[T] {
	p := NewPending(c)
	*b = append(*b, p)
	return p
}

// Start sends b as soon as there is a connection, and returns without waiting for replies.
// If it returns an error, nothing was sent.
func (b Requests) Start(ctx context.Context, inc *Incarnation) error {
	l, err := inc.OpenConn(ctx)
	if err == nil {
		l.Send(b...)
	}
	return err
}

// Wait waits for the replies to b. The caller must have sent b through inc. The result
// is nil if every request was answered, with a result or with its own error. Otherwise the result is
// the error of the first unanswered request, whose outcome is unknown.
func (b Requests) Wait(ctx context.Context, inc *Incarnation) error {
	for _, r := range b {
		if err := r.(interface {
			settle(context.Context, *Incarnation) error
		}).settle(ctx, inc); OutcomeOf(err) != Answered {
			return err
		}
	}
	return nil
}

// RetryAll sends the requests that f adds, and repeats them until all are answered in one attempt.
// The requests must be safe to apply twice.
func (inc *Incarnation) RetryAll(ctx context.Context, f func(b *Requests)) error {
	return inc.Repeat(ctx, func() error {
		var b Requests
		f(&b)
		if err := b.Start(ctx, inc); err != nil {
			return err
		}
		return b.Wait(ctx, inc)
	})
}

// AddEach adds the request `c` for each of the paths.
func AddEach[T any](b *Requests, paths []string, c func(path string) Call[T]) (added []*Pending[T]) {
	for _, path := range paths {
		added = append(added, Add(b, c(path)))
	}
	return added
}

// retryFresh is RetryAll for reads. It sends a sync before them, so no result is older than the
// call. If the servers refuse the sync, retryFresh returns the refusal, and the caller ignores the
// reads.
func (inc *Incarnation) retryFresh(ctx context.Context, path string, f func(b *Requests)) error {
	var sync *Pending[struct{}]
	err := inc.RetryAll(ctx, func(b *Requests) {
		sync = Add(b, SyncCall(path))
		f(b)
	})
	if err == nil {
		err = sync.Err
	}
	return err
}

// The function `fresh` makes one read, through retryFresh.
func fresh[T any](ctx context.Context, inc *Incarnation, c Call[T]) (v T, err error) {
	var read *Pending[T]
	if err = inc.retryFresh(ctx, c.Path, func(b *Requests) { read = Add(b, c) }); err != nil {
		return v, err
	}
	return read.Val, read.Err
}

// GetFresh is Get with a result that is not older than the call, in one round trip.
func (inc *Incarnation) GetFresh(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := fresh(ctx, inc, GetCall(path))
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
	var listed []*Pending[Listing]
	if err := inc.retryFresh(ctx, dirs[0], func(b *Requests) { listed = AddEach(b, dirs, ChildrenCall) }); err != nil {
		return nil, err
	}
	for _, l := range listed {
		if l.Err != nil && !IsNoNode(l.Err) {
			return nil, l.Err
		}
		lists = append(lists, l.Val.Names)
	}
	return lists, nil
}

// LookAtAll lists the children of several znodes in one round trip. If a caller has joined the watch
// on a znode's children, the listing sets that watch. The error is that of an unanswered request.
func (inc *Incarnation) LookAtAll(ctx context.Context, paths ...string) (listed []*Pending[Listing], err error) {
	err = inc.RetryAll(ctx, func(b *Requests) { listed = AddEach(b, paths, ChildrenCall) })
	return listed, err
}

// ChildrenFresh is Children with a result that is not older than the call, in one round trip.
func (inc *Incarnation) ChildrenFresh(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	l, err := fresh(ctx, inc, ChildrenCall(path))
	return l.Names, l.Stat, err
}

// NamesFresh is Names with a result that is not older than the call, in one round trip.
func (inc *Incarnation) NamesFresh(ctx context.Context, path string) ([]string, error) {
	return orNone(inc.ChildrenFresh(ctx, path))
}

// NamesFreshBeside is NamesFresh for dir, and also reads the znode at path in the same round trip.
// That znode is usually a child of dir. n.Stat is nil if the znode does not exist or cannot be
// read.
func (inc *Incarnation) NamesFreshBeside(ctx context.Context, dir, path string) (names []string, n Node, err error) {
	var listed *Pending[Listing]
	var read *Pending[Node]
	err = inc.retryFresh(ctx, dir, func(b *Requests) { listed, read = Add(b, ChildrenCall(dir)), Add(b, GetCall(path)) })
	if err != nil {
		return nil, n, err
	}
	if read.Err == nil {
		n = read.Val
	}
	names, err = orNone(listed.Val.Names, nil, listed.Err)
	return names, n, err
}
