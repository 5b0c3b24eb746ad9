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
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
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
	switch {
	case q.cfg.Priorities == 1:
	case b.Priority == queue.Middle:
		name = fmt.Sprintf(q.ranked, (q.cfg.Priorities-1)/2)
	default:
		name = fmt.Sprintf(q.ranked, b.Priority)
	}
	var ops []any
	path := session.ChildPath(q.dir, name)
	size := 2 * q.m.SizeOf(q.Receipts, make([]byte, 64))
	for _, data := range b.Data {
		ops = append(ops, &zk.CreateRequest{Path: path, Data: q.frame(data), Acl: q.m.Config.ACL, Flags: zk.FlagSequence})
		size += q.m.SizeOf(path, data) + 32
	}
	if size > session.MaxPacket {
		return fmt.Errorf("a request of %[2]d bytes (elements: %[1]d), %[3]d too many: %[4]w", len(b.Data), size, size-session.MaxPacket, session.ErrTooLarge)
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
		i := session.FailedOp(rs)
		if i < 0 {
			return err
		}
		c, creates := ops[i].(*zk.CreateRequest)
		switch {
		case creates && session.IsNoNode(err):
			err = q.m.During(ctx, func(inc *session.Incarnation) error {
				if dir := session.ParentPath(c.Path); dir != q.dir {
					return inc.MakeDir(ctx, session.Dir{Path: dir})
				}
				// The queue's znode is not a container: the servers delete an empty container, and a client of
				// another library fails if the znode does not exist.
				_, err := inc.Create(ctx, q.dir, []byte(marks.Dir))
				return err
			})
		case creates && session.IsNodeExists(err) && c.Flags&zk.FlagSequence != 0:
			return fmt.Errorf("%s has used its sequence numbers up: %w", session.ParentPath(c.Path), err)
		}
		if err != nil {
			return err
		}
	}
}

// The method `read` reads a znode with elements. If the servers refuse to let the client read the
// znode, `read` returns nil without an error, and consumers skip the znode for a while.
func (q *engine) read(ctx context.Context, inc *session.Incarnation, e elementName) (*delivery, error) {
	data, stat, err := inc.Get(ctx, session.ChildPath(q.dir, e.name))
	if q.Skips.Unreadable(e.name, err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	it := &delivery{elementName: e, q: q, inc: inc, stored: data, version: stat.Version, sent: time.UnixMilli(stat.Ctime), done: make(chan struct{})}
	it.ctx, it.cancel = context.WithCancelCause(context.Background())
	if it.inside, it.fault = q.open(data); it.fault != nil {
		it.inside = [][]byte{data}
	} else if len(it.inside) > 0 {
		it.value, it.fault = q.cfg.Decode(it.inside[0])
	}
	return it, nil
}

func (q *engine) deletion(it *delivery) *zk.DeleteRequest {
	return &zk.DeleteRequest{Path: session.ChildPath(q.dir, it.name), Version: it.version}
}

// maxSplit is the largest number of elements in one transaction of `split` or `Clear`.
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
func (q *engine) split(ctx context.Context, inc *session.Incarnation, it *delivery) error {
	path, all := session.ChildPath(q.dir, it.name), it.inside
	size, n := q.m.SizeOf(path, it.stored), len(all)
	ops := []any{nil}
	for ; n > 0 && len(ops) <= maxSplit; n-- {
		part := fmt.Sprintf("%s#%05d", path, n-1)
		if size += q.m.SizeOf(part, nil); size > session.MaxPacket {
			break
		}
		ops = append(ops, &zk.CreateRequest{Path: part, Data: q.frame(all[n-1]), Acl: q.m.Config.ACL})
	}
	switch {
	case n == 0:
		ops[0] = q.deletion(it)
	case n < len(all):
		ops[0] = &zk.SetDataRequest{Path: path, Data: q.frame(all[:n]...), Version: it.version}
	default:
		return fmt.Errorf("%d elements in the znode %s, which cannot be taken apart: %w", n, q.m.Bare(path), session.ErrTooLarge)
	}
	_, err := inc.Multi(ctx, ops...)
	return unlessOutrun(err)
}

// If `err` means that another client was faster, unlessOutrun returns nil.
func unlessOutrun(err error) error {
	if session.IsNoNode(err) || session.IsBadVersion(err) {
		return nil
	}
	return err
}

// The method `seize` takes an element that this process has read: it deletes the znode, or makes an
// element that does not decode a dead letter. If this process has not got the element, the result is nil
// without an error. No context stops `seize`, because after the deletion only this process has the
// element.
func (q *engine) seize(it *delivery) (ours *delivery, err error) {
	ctx := session.Finishing
	if len(it.inside) != 1 {
		return nil, q.split(ctx, it.inc, it)
	}
	ops := []any{q.deletion(it)}
	if it.fault != nil {
		if err := q.Skips.Misfit(it.name, it.fault); err != nil {
			return nil, err
		}
		letter := q.Make(it.class, it.stored, it.sent, 0, it.fault)
		if q.Oversized(letter[0].(*zk.CreateRequest)) {
			return nil, fmt.Errorf("the element %s cannot go to the dead letters: %w", it.name, session.ErrTooLarge)
		}
		ops = append(ops, letter...)
	} else {
		q.Skips.Fits()
	}
	switch err := q.commit(ctx, ops); {
	case err != nil:
		return nil, unlessOutrun(err)
	case it.fault != nil:
		q.Report(it.name, it.fault)
		return nil, nil
	}
	return it, nil
}

// Take takes the first element and settles it.
func (q *engine) Take(ctx context.Context) (e *queue.Element, err error) {
	inner, leave := queue.WhileOpen(ctx, q.m)
	defer leave()
	for {
		it, err := q.first(inner, false)
		if err != nil || it == nil {
			return nil, err
		}
		got, err := q.take(inner, it)
		if err != nil {
			return nil, err
		}
		if got != nil {
			e := got.Element()
			got.Taken()
			return &e, nil
		}
	}
}

// The method `take` calls `seize`. If ctx ends first, an element that `seize` takes is written back.
func (q *engine) take(ctx context.Context, it *delivery) (*delivery, error) {
	it.leaving, it.stay = q.m.BeforeClose()
	if session.IsClosed(it.leaving) {
		it.stay()
		return nil, session.ErrClosed // Close would not wait for an element that is taken now
	}
	return queue.Detached(ctx, q.m, func() (*delivery, error) {
		got, err := q.seize(it)
		if got == nil {
			it.stay()
		}
		return got, err
	}, func(got *delivery) {
		if got != nil {
			got.PutBack()
		}
	})
}

// The method `look` lists the elements, and reads the first that the client can read. It returns nil if
// there is none. It leaves out skipped elements, but if `odd` is set, it returns a skipped misfit if there
// is no other element: the caller gets the error of the misfit again. If `aside` is set, it leaves out
// znodes without elements, which `seize` would delete.
func (q *engine) look(ctx context.Context, inc *session.Incarnation, odd, aside bool) (*delivery, error) {
	for changed := true; changed; {
		changed = false
		names, _, err := inc.Children(ctx, q.dir)
		if err != nil {
			return nil, err
		}
		var es, left []elementName
		for _, e := range q.elements(names) {
			switch {
			case !q.Skips.Skipped(e.name):
				es = append(es, e)
			case odd && q.Skips.Left(e.name):
				left = append(left, e)
			}
		}
		for _, e := range append(es, left...) {
			it, err := q.read(ctx, inc, e)
			switch {
			case session.IsNoNode(err):
				changed = true
			case err != nil:
				return nil, err
			case it != nil && (len(it.inside) > 0 || !aside):
				return it, nil
			}
		}
	}
	return nil, nil
}

// The method `first` reads the first element, or returns nil if there is none: see `look`.
func (q *engine) first(ctx context.Context, aside bool) (found *delivery, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		for _, synced := range []bool{false, true} {
			if synced { // this server may lag: only a listing after a sync proves that there is no element
				if err := inc.Sync(ctx, q.dir); err != nil {
					return err
				}
			}
			if found, err = q.look(ctx, inc, synced, aside); found != nil || err != nil && !session.IsNoNode(err) {
				return err
			}
		}
		if q.cfg.KeepDead > 0 && !aside {
			q.Sweep(inc)
		}
		return nil
	})
	return found, err
}

func (q *engine) Peek(ctx context.Context) (*queue.Element, error) {
	it, err := q.first(ctx, true)
	if err != nil || it == nil {
		return nil, err
	}
	e := it.Element()
	return &e, nil
}

func (q *engine) names(ctx context.Context) ([]elementName, error) {
	return queue.Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) ([]elementName, error) {
		names, err := inc.Names(ctx, q.dir)
		return q.elements(names), err
	})
}

func (q *engine) Len(ctx context.Context) (int, error) {
	es, err := q.names(ctx)
	return len(es), err
}

func (q *engine) Stats(ctx context.Context) (queue.Totals, error) {
	return queue.Synced(ctx, q.Common, func(ctx context.Context, inc *session.Incarnation) (st queue.Totals, err error) {
		names, err := inc.Names(ctx, q.dir)
		if err != nil {
			return st, err
		}
		dead, err := q.Unread(ctx, inc)
		es := q.elements(names)
		st.Ready, st.Dead = len(es), len(dead)
		for i := 0; i < len(es) && err == nil && st.Oldest.IsZero(); i++ {
			var stat *zk.Stat
			if stat, err = inc.Exists(ctx, session.ChildPath(q.dir, es[i].name)); stat != nil {
				st.Oldest = time.UnixMilli(stat.Ctime)
			}
		}
		return st, err
	})
}

func (q *engine) Clear(ctx context.Context) (n int, err error) {
	es, err := q.names(ctx)
	there := make(map[string]bool, len(es)) // the znodes that existed when Clear began
	for _, e := range es {
		there[whole(e.name)] = true
	}
	for err == nil && len(es) > 0 {
		var ops []any
		size := 0
		for _, e := range es {
			path := session.ChildPath(q.dir, e.name)
			if size += q.m.SizeOf(path, nil); len(ops) == maxSplit || len(ops) > 0 && size > session.MaxPacket/2 {
				break
			}
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		}
		if err = q.commit(ctx, ops); err == nil {
			n += len(ops)
		} else if err = unlessOutrun(err); err != nil {
			break
		}
		es, err = q.names(ctx)
		es = slices.DeleteFunc(es, func(e elementName) bool { return !there[whole(e.name)] })
	}
	return n, err
}

func (q *engine) Requeue(ctx context.Context, d *queue.Letter) error {
	create := &zk.CreateRequest{Path: session.ChildPath(q.dir, q.prefix+d.Priority), Data: d.Framed, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	return q.commit(ctx, append(slices.Clone(d.Removal), create))
}

func (q *engine) Cancel(context.Context, string) (bool, error) { return false, q.lacks("Cancel") }
func (q *engine) Pause(context.Context) error                  { return q.lacks("Pause") }
func (q *engine) Resume(context.Context) error                 { return q.lacks("Resume") }

func (q *engine) List(context.Context, queue.Status) iter.Seq2[queue.Element, error] {
	return func(yield func(queue.Element, error) bool) { yield(queue.Element{}, q.lacks("List")) }
}

// The function `refusal` is called with the error of a failed attempt. It reports whether another
// attempt would fail, too.
func refusal(err error) bool {
	return session.OutcomeOf(err) == session.Answered || errors.Is(err, session.ErrTooLarge) || errors.Is(err, session.ErrUnprotected)
}

// The method `fetch` waits in the line for an element, and takes it. If an element does not decode, it can
// return nil without an error. If the servers refuse to let the client take an element, consumers skip it
// for a while.
func (q *engine) fetch(ctx context.Context) (got *delivery, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		place, err := q.Line.Contend(ctx, inc)
		if errors.Is(err, session.ErrVanished) {
			return nil
		} else if err != nil {
			return err
		}
		defer place.Leave()
		for got == nil && err == nil {
			w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: q.dir})
			again := q.Skips.Next() // before `look`, because a skip can end between the two calls
			var it *delivery
			switch it, err = q.look(ctx, inc, false, false); {
			case session.IsNoNode(err):
				_, err = inc.Create(ctx, q.dir, []byte(marks.Dir))
			case err == nil && it == nil:
				if next := q.Sweep(inc); again.IsZero() || next.Before(again) {
					again = next
				}
				q.m.Waiters.Add(1)
				err = inc.AwaitAny(ctx, []*conn.Watch{w}, again)
				q.m.Waiters.Add(-1)
			case err == nil:
				got, err = q.take(ctx, it)
				switch {
				case err == nil || ctx.Err() != nil:
				case q.Skips.Left(it.name):
					inc.Watches.Leave(w)
					return nil // `Complain` has already sent the error to the consumers for which `Odd` is set
				case refusal(err):
					q.Skips.Skip(it.name)
					q.Complain(err)
					err = nil
				}
			}
			inc.Watches.Leave(w)
		}
		return err
	})
	return got, err
}
