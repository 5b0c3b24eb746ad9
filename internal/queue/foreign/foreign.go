// Package foreign stores a queue in the znodes of another library. These znodes cannot record
// claims. So a consumer takes an element by deleting its znode, and returns the element by creating
// the znode again. If the process crashes between these two steps, the element is lost.
package foreign

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// The type `engine` is the Engine of another library's layout.
type engine struct {
	*format
	*queue.Common
	m       *session.Manager
	cfg     queue.Settings
	dir     string
	called  string        // the layout's name, from zsync.QueueLayout.String
	sending chan struct{} // a goroutine puts a token in before it sends an element, and removes the token afterwards
	taking  chan struct{} // a goroutine puts a token in before it calls `fetch`, and removes the token afterwards
}

// New returns the Engine of another library's layout: Curator's SimpleDistributedQueue, Curator's
// DistributedQueue, or kazoo's. It does no I/O.
func New(m *session.Manager, cfg queue.Settings, called string) queue.Engine {
	q := &engine{
		format: formats[called], m: m, cfg: cfg, dir: m.Full(cfg.Path), called: called,
		sending: make(chan struct{}, 1), taking: make(chan struct{}, 1),
	}
	q.Common = queue.NewCommon(m, cfg, func(stored []byte) []byte {
		if all, err := q.open(stored); err == nil && len(all) == 1 {
			return all[0]
		}
		return stored
	})
	return q
}

func (q *engine) lacks(feature string) error {
	return session.Invalid("%s needs zsync's own layout, not %s", feature, q.called)
}

func (q *engine) Send(ctx context.Context, b queue.Batch) error {
	name := q.plain
	if q.cfg.Priorities > 1 {
		name = fmt.Sprintf(q.ranked, b.Priority)
	}
	var ops []any
	path := znodes.ChildPath(q.dir, name)
	size := 2 * znodes.SizeOf(q.m, q.Receipts, make([]byte, 64))
	for _, data := range b.Data {
		ops = append(ops, &zk.CreateRequest{Path: path, Data: q.frame(data), Acl: q.m.Config.ACL, Flags: zk.FlagSequence})
		size += znodes.SizeOf(q.m, path, data) + 32
	}
	if size > znodes.MaxPacket {
		return fmt.Errorf("a request of %[2]d bytes (elements: %[1]d), %[3]d too many: %[4]w", len(b.Data), size, size-znodes.MaxPacket, session.ErrTooLarge)
	}
	select {
	case q.sending <- struct{}{}: // in the order of the calls
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
	defer func() { <-q.sending }()
	return q.commit(ctx, ops)
}

// The method `commit` applies `ops` exactly once. It creates a missing parent znode.
func (q *engine) commit(ctx context.Context, ops []any) error {
	for {
		rs, err := q.Commit(ctx, ops)
		i := znodes.FailedOp(rs)
		if i < 0 {
			return err
		}
		c, creates := ops[i].(*zk.CreateRequest)
		switch {
		case creates && session.IsNoNode(err):
			err = q.m.During(ctx, func(inc *session.Incarnation) error {
				if dir := znodes.ParentPath(c.Path); dir != q.dir {
					return znodes.MakeDir(ctx, inc, znodes.Dir{Path: dir})
				}
				// The queue's znode is not a container: the servers delete an empty container, and a client of
				// another library fails if the znode does not exist.
				_, err := znodes.Create(ctx, inc, q.dir, []byte(marks.Dir))
				return err
			})
		case creates && session.IsNodeExists(err) && c.Flags&zk.FlagSequence != 0:
			return fmt.Errorf("%s has used its sequence numbers up: %w", znodes.ParentPath(c.Path), err)
		}
		if err != nil {
			return err
		}
	}
}

// The method `look` lists the elements, and reads the first that `skip` does not leave out and that the client
// can read. It returns nil if there is none. If `aside` is set, it also leaves out znodes without elements, which
// `seize` would delete.
func (q *engine) look(ctx context.Context, inc *session.Incarnation, aside bool, skip func(name string) bool) (*delivery, error) {
	names, _, err := inc.Children(ctx, q.dir)
	if err != nil {
		return nil, err
	}
	for es := slices.DeleteFunc(q.elements(names), skip); len(es) > 0; {
		name := slices.Min(es)
		es = slices.DeleteFunc(es, func(other string) bool { return other == name })
		data, stat, err := inc.Get(ctx, znodes.ChildPath(q.dir, name))
		switch {
		case session.IsNoNode(err): // another client was faster; elements that were sent since the listing may be free
			return q.look(ctx, inc, aside, skip)
		case q.Skips.Unreadable(name, err):
			continue
		case err != nil:
			return nil, err
		}
		it := &delivery{name: name, q: q, inc: inc, stored: data, version: stat.Version, sent: time.UnixMilli(stat.Ctime), done: make(chan struct{})}
		it.ctx, it.cancel = context.WithCancelCause(context.Background())
		if it.inside, it.fault = q.open(data); it.fault != nil {
			it.inside = [][]byte{data}
		} else if len(it.inside) > 0 {
			it.value, it.fault = q.cfg.Decode(it.inside[0])
		} else if aside {
			continue
		}
		return it, nil
	}
	return nil, nil
}

// The method `take` takes an element that this process has read. If this process has not got the element,
// the result is nil without an error. If ctx ends first, an element that is taken later is written back.
func (q *engine) take(ctx context.Context, it *delivery) (*delivery, error) {
	it.leaving, it.stay = q.m.BeforeClose()
	if session.IsClosed(it.leaving) {
		it.stay()
		return nil, session.ErrClosed // Close would not wait for an element that is taken now
	}
	return queue.Detached(ctx, q.m, func() (*delivery, error) {
		if ours, err := q.seize(it); !ours {
			it.stay()
			return nil, err
		}
		return it, nil
	}, (*delivery).PutBack)
}

// The method `seize` deletes the znode of an element, and returns true if only this process has the element
// now. It makes an element that does not decode a dead letter instead. No context stops it.
func (q *engine) seize(it *delivery) (ours bool, err error) {
	path := znodes.ChildPath(q.dir, it.name)
	ops := []any{&zk.DeleteRequest{Path: path, Version: it.version}}
	switch {
	case len(it.inside) != 1:
		return false, q.split(path, it)
	case it.fault != nil:
		if err := q.Skips.Misfit(it.name, it.fault); err != nil {
			return false, err
		}
		class, _ := q.class(it.name)
		ops = append(ops, q.Make(class, it.stored, it.sent, 0, it.fault)...)
	default:
		q.Skips.Fits()
	}
	if err := q.commit(session.Finishing, ops); err != nil {
		return false, unlessOutrun(err)
	}
	if it.fault != nil {
		q.Report(it.name, it.fault)
	}
	return it.fault == nil, nil
}

// maxSplit is the largest number of elements that one transaction of `split` moves.
const maxSplit = 500

// The method `split` moves each element of a znode with no element, or with several (Curator's
// putMulti), to a znode of its own, <name>#<i>. All these libraries order elements by name, so the
// elements keep their positions. If the elements do not fit into one transaction, `split` moves the last
// elements first, so that the other elements keep their number `i`.
//
// A client that has read the znode before the split cannot delete it afterwards: it has a new version, or
// does not exist. For the same reason, a second attempt of the split fails. No split uses a name again
// for other data: the version would restart at 0, and a client of another library could delete an
// element that it has not read.
func (q *engine) split(path string, it *delivery) error {
	size, n, ops := znodes.SizeOf(q.m, path, it.stored), len(it.inside), []any{nil}
	for ; n > 0 && len(ops) <= maxSplit; n-- {
		part := fmt.Sprintf("%s#%05d", path, n-1)
		if size += znodes.SizeOf(q.m, part, nil); size > znodes.MaxPacket {
			break
		}
		ops = append(ops, &zk.CreateRequest{Path: part, Data: q.frame(it.inside[n-1]), Acl: q.m.Config.ACL})
	}
	switch {
	case n == 0:
		ops[0] = &zk.DeleteRequest{Path: path, Version: it.version}
	case len(ops) > 1:
		ops[0] = &zk.SetDataRequest{Path: path, Data: q.frame(it.inside[:n]...), Version: it.version}
	default:
		return fmt.Errorf("%d elements in the znode %s, which cannot be taken apart: %w", n, q.m.Bare(path), session.ErrTooLarge)
	}
	_, err := znodes.Multi(session.Finishing, it.inc, ops...)
	return unlessOutrun(err)
}

// If `err` means that another client was faster, unlessOutrun returns nil.
func unlessOutrun(err error) error {
	if session.IsNoNode(err) || session.IsBadVersion(err) {
		return nil
	}
	return err
}

// The function `refusal` is called with the error of a failed attempt. It reports whether another
// attempt would fail, too.
func refusal(err error) bool {
	return session.OutcomeOf(err) == session.Answered || errors.Is(err, session.ErrTooLarge) || errors.Is(err, session.ErrUnprotected)
}

// The method `first` reads the first element, or returns nil if there is none. If all others are left out, it
// returns a misfit that is skipped, so the caller gets the error of the misfit again. This server may lag, and only a
// listing after a sync proves that there is no element.
func (q *engine) first(ctx context.Context, aside bool) (*delivery, error) {
	it, err := queue.Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (*delivery, error) {
		it, err := q.look(ctx, inc, aside, q.Skips.Skipped)
		if it == nil && err == nil && !q.Skips.Next().IsZero() {
			it, err = q.look(ctx, inc, aside, func(name string) bool { return q.Skips.Skipped(name) && !q.Skips.Left(name) })
		}
		if it == nil && err == nil && !aside && q.cfg.KeepDead > 0 {
			q.Sweep(inc)
		}
		return it, err
	})
	if session.IsNoNode(err) {
		return nil, nil // the queue does not exist
	}
	return it, err
}

// Take takes the first element and settles it.
func (q *engine) Take(ctx context.Context) (*queue.Element, error) {
	inner, leave := queue.WhileOpen(ctx, q.m)
	defer leave()
	for {
		it, err := q.first(inner, false)
		if err != nil || it == nil {
			return nil, err
		}
		if it, err = q.take(inner, it); err != nil {
			return nil, err
		}
		if it != nil {
			e := it.Element()
			it.Taken()
			return &e, nil
		}
	}
}

func (q *engine) Peek(ctx context.Context) (*queue.Element, error) {
	it, err := q.first(ctx, true)
	if it == nil {
		return nil, err
	}
	e := it.Element()
	return &e, err
}

// The method `fetch` waits in the line for an element, and takes it. If the servers refuse to let the client
// take an element, consumers skip it for a while, and `fetch` returns nil without an error.
func (q *engine) fetch(ctx context.Context) (got *delivery, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		place, err := q.Line.Contend(ctx, inc)
		if err != nil {
			return err
		}
		defer place.Leave()
		for got == nil && err == nil {
			w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: q.dir})
			again := q.Skips.Next() // before `look`, because a skip can end between the two calls
			var it *delivery
			it, err = q.look(ctx, inc, false, q.Skips.Skipped)
			switch {
			case session.IsNoNode(err):
				_, err = znodes.Create(ctx, inc, q.dir, []byte(marks.Dir))
			case err == nil && it == nil:
				if next := q.Sweep(inc); again.IsZero() || next.Before(again) {
					again = next
				}
				q.m.Waiters.Add(1)
				err = inc.AwaitAny(ctx, []*conn.Watch{w}, again)
				q.m.Waiters.Add(-1)
			case err == nil:
				got, err = q.take(ctx, it)
			}
			inc.Watches.Leave(w)
			if it != nil && err != nil && ctx.Err() == nil && (q.Skips.Left(it.name) || refusal(err)) {
				if !q.Skips.Left(it.name) { // otherwise, the consumers already have the error
					q.Skips.Skip(it.name)
					q.Complain(err)
				}
				return nil
			}
		}
		return err
	})
	return got, err
}

// The method `names` lists the elements of the queue, in no order.
func (q *engine) names(ctx context.Context) ([]string, error) {
	return queue.Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) ([]string, error) {
		names, err := inc.Names(ctx, q.dir)
		return q.elements(names), err
	})
}

func (q *engine) Len(ctx context.Context) (int, error) {
	es, err := q.names(ctx)
	return len(es), err
}

func (q *engine) Stats(ctx context.Context) (st queue.Totals, err error) {
	if st.Ready, err = q.Len(ctx); err != nil {
		return st, err
	}
	dead, err := queue.Synced(ctx, q.Common, q.Unread)
	if err != nil {
		return st, err
	}
	st.Dead = len(dead)
	it, err := q.first(ctx, true)
	if it != nil {
		st.Oldest = it.sent
	}
	return st, err
}

func (q *engine) Clear(ctx context.Context) (n int, err error) {
	there := make(map[string]bool) // the names that existed when Clear began, without the suffixes of `split`
	for first := true; ; first = false {
		names, err := q.names(ctx)
		var paths []string
		for _, name := range names {
			whole, _, _ := strings.Cut(name, "#")
			if there[whole] = there[whole] || first; there[whole] {
				paths = append(paths, znodes.ChildPath(q.dir, name))
			}
		}
		if err != nil || len(paths) == 0 {
			return n, err
		}
		ops := q.Deletions(paths)
		if err = q.commit(ctx, ops); err == nil {
			n += len(ops)
		} else if err = unlessOutrun(err); err != nil {
			return n, err
		}
	}
}

func (q *engine) Requeue(ctx context.Context, d *queue.Letter) error {
	create := &zk.CreateRequest{Path: znodes.ChildPath(q.dir, q.prefix+d.Priority), Data: d.Framed, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	return q.commit(ctx, append(slices.Clone(d.Removal), create))
}

func (q *engine) Cancel(context.Context, string) (bool, error) { return false, q.lacks("Cancel") }
func (q *engine) Pause(context.Context) error                  { return q.lacks("Pause") }
func (q *engine) Resume(context.Context) error                 { return q.lacks("Resume") }

func (q *engine) List(context.Context, queue.Status) iter.Seq2[queue.Element, error] {
	return func(yield func(queue.Element, error) bool) { yield(queue.Element{}, q.lacks("List")) }
}
