// Package foreign is a queue in the znodes of another library, which cannot represent claims. A
// consumer takes an element by deleting it, and writes it back to return it. If the process crashes
// between the two, the element is lost.
package foreign

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	txns "github.com/zsync/zsync/internal/txn"
)

// This file sends, takes and counts elements. The program's side of a taken element is in item.go;
// names and frames are in format.go.

// An engine is the Engine of a layout.
type engine struct {
	*format
	queue.DeadLetters
	m       *session.Manager
	cfg     queue.Config
	dir     string
	called  string // the program's name of the layout
	sweeper *queue.Sweeper
	skips   queue.Skipper
	line    lock.Line     // of consumers that wait for elements
	sending chan struct{} // has a token: the goroutine that has put it there may send
	taking  chan struct{} // has a token: the goroutine that has put it there may take
}

// New returns the Engine of another library's layout: Curator's SimpleDistributedQueue, Curator's
// DistributedQueue, or kazoo's. It does no I/O.
func New(m *session.Manager, cfg queue.Config, called string) queue.Engine {
	q := &engine{
		format: formats[called], m: m, cfg: cfg, dir: m.Full(cfg.Path), called: called,
		line:    lock.New(m, cfg.Path+"-consumers", session.ProtectedName, "turn-"),
		sending: make(chan struct{}, 1), taking: make(chan struct{}, 1),
	}
	q.DeadLetters = queue.NewDeadLetters(m, cfg.Path, func(stored []byte) []byte {
		if all, err := q.open(stored); err == nil && len(all) == 1 {
			return all[0]
		}
		return stored
	})
	q.sweeper = queue.NewSweeper(q.DeadLetters, q.dir+"-senders", q.dir+"-ids", cfg.KeepDead)
	q.skips.Complain = q.complain
	return q
}

func (q *engine) lacks(feature string) error {
	return session.Invalid("%s needs zsync's own layout, not %s", feature, q.called)
}

func (q *engine) complain(err error) {
	q.m.Log.Error("zsync: cannot consume", "path", q.cfg.Path, "err", err)
}

// makeQueue creates the queue's znode. It is not a container: the servers delete an empty container,
// and a client of another library would fail because the znode is missing.
func (q *engine) makeQueue(ctx context.Context) error {
	return q.m.During(ctx, func(inc *session.Incarnation) error {
		_, err := inc.Create(ctx, q.dir, []byte(marks.Dir))
		return err
	})
}

func (q *engine) Send(ctx context.Context, b queue.Batch) error {
	prio := b.Priority
	switch {
	case !b.Due.IsZero(), b.ID != "", b.Keys != nil:
		return q.lacks("a delay, an ID or a key")
	case q.cfg.Priorities == 1:
		prio = -1
	case prio == queue.Middle:
		prio = (q.cfg.Priorities - 1) / 2
	}
	var ops []any
	path := session.ChildPath(q.dir, q.name(prio))
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

// commit applies ops exactly once. If the queue's znode, or the parent of the dead letters, does not
// exist, commit creates it.
func (q *engine) commit(ctx context.Context, ops []any) error {
	for {
		rs, err := txns.Across(ctx, q.m, q.Receipts, ops)
		i := session.FailedOp(rs)
		if i < 0 {
			return err
		}
		c, creates := ops[i].(*zk.CreateRequest)
		switch {
		case creates && session.IsNoNode(err) && session.ParentPath(c.Path) == q.Dir:
			err = q.m.During(ctx, func(inc *session.Incarnation) error { return inc.MakeDir(ctx, session.Dir{Path: q.Dir}) })
		case creates && session.IsNoNode(err):
			err = q.makeQueue(ctx)
		case creates && session.IsNodeExists(err) && c.Flags&zk.FlagSequence != 0:
			return fmt.Errorf("%s has used its sequence numbers up: %w", session.ParentPath(c.Path), err)
		}
		if err != nil {
			return err
		}
	}
}

// read reads the znode of an element, with the elements in it. If the servers refuse to let the client
// read it, read returns nil without an error, and consumers skip the znode for a while.
func (q *engine) read(ctx context.Context, inc *session.Incarnation, e element) (*item, error) {
	data, stat, err := inc.Get(ctx, session.ChildPath(q.dir, e.name))
	if q.skips.Unreadable(e.name, 0, e.name, err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	it := &item{element: e, q: q, inc: inc, stored: data, version: stat.Version, sent: time.UnixMilli(stat.Ctime), done: make(chan struct{})}
	it.ctx, it.decided = context.WithCancelCause(context.Background())
	if it.inside, it.fault = q.open(data); it.fault != nil {
		it.inside = [][]byte{data}
	}
	return it, nil
}

func (q *engine) deletion(it *item) *zk.DeleteRequest {
	return &zk.DeleteRequest{Path: session.ChildPath(q.dir, it.name), Version: it.version}
}

// maxSplit is the largest number of elements in one transaction of split or Clear.
const maxSplit = 500

// split moves each element of a znode to its own znode, <name>#<i>. It is called for a znode that
// holds several elements, as Curator's putMulti creates it, or none. All these libraries order
// elements by name, so the new znodes keep the positions. If the elements do not fit into one
// transaction, split takes out the last elements first, so that the others keep their i.
//
// A client that has read the znode before finds a new version, or no znode. So does a second attempt
// of split. No name is used again for other data: versions would restart at 0, and a client of another
// library could delete an unread element.
func (q *engine) split(ctx context.Context, inc *session.Incarnation, it *item) error {
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

// unlessOutrun returns err, or nil if err means that another client was faster.
func unlessOutrun(err error) error {
	if session.IsNoNode(err) || session.IsBadVersion(err) {
		return nil
	}
	return err
}

// seize takes an element that was read: it deletes the znode. If the element does not decode, it
// becomes a dead letter. seize returns nil without an error if this process has not got the element.
// No caller's context ends it, because after the deletion only this process has the element.
func (q *engine) seize(it *item) (ours *item, err error) {
	ctx := session.Finishing
	if len(it.inside) != 1 {
		return nil, q.split(ctx, it.inc, it)
	}
	if it.fault == nil {
		it.value, it.fault = q.cfg.Decode(it.inside[0])
	}
	ops := []any{q.deletion(it)}
	if it.fault != nil {
		if err := q.skips.Misfit(it.name, 0, it.fault); err != nil {
			return nil, err
		}
		letter := q.Make(it.class, it.stored, it.sent, 0, it.fault)
		if queue.Oversized(q.m, q.Receipts, letter[0].(*zk.CreateRequest)) {
			return nil, fmt.Errorf("the element %s cannot go to the dead letters: %w", it.name, session.ErrTooLarge)
		}
		ops = append(ops, letter...)
	} else {
		q.skips.Fits()
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

// take takes the first element. If there is none, take returns nil or, with wait, waits for one. Then
// it also passes over elements that cannot be taken, unless odd is set: then it returns their errors.
func (q *engine) take(ctx context.Context, wait, odd bool) (taken *item, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		if wait {
			place, err := q.line.Contend(ctx, inc, q.line.Bases[0], q.m.Owner, lock.EveryoneAhead)
			if err != nil {
				return err
			}
			defer place.Leave()
		}
		for {
			it, err := q.first(ctx, inc, wait, false)
			if err != nil || it == nil {
				return err
			}
			taken, err = q.await(ctx, it)
			if err != nil && ctx.Err() == nil && wait {
				left := q.skips.Left(it.name, 0) // Misfit has reported it
				if !left && refusal(err) {
					q.skips.Skip(it.name, 0, fmt.Errorf("consumers skip %s for a minute: %w", it.name, err))
				}
				if !odd && (left || refusal(err)) {
					continue
				}
			}
			if err != nil || taken != nil {
				return err
			}
		}
	})
	return taken, err
}

// await seizes an element in the background, and waits for that. If ctx ends first, or Session.Close
// finds the element unsettled, the background writes the element back.
func (q *engine) await(ctx context.Context, it *item) (*item, error) {
	leaving, stay := q.m.BeforeClose()
	if session.IsClosed(leaving) {
		stay()
		return nil, session.ErrClosed // Close would not wait for an element that seize takes now
	}
	return queue.Detached(ctx, q.m, func() (*item, error) {
		it, err := q.seize(it)
		if it == nil {
			stay()
			return nil, err
		}
		q.m.Spawn(func() {
			defer stay()
			select {
			case <-it.ctx.Done():
			case <-leaving:
				it.decide(queue.Return, it.inc.EndError(session.ErrClosed))
			}
			it.finish(leaving)
		})
		return it, nil
	}, func(it *item) { it.decide(queue.Return, nil) })
}

// first reads the first element. If there is none, it returns nil or, with wait, waits for one. With
// aside, for Peek, it passes over a znode that holds no elements. Without, it returns the znode, and
// seize splits it.
func (q *engine) first(ctx context.Context, inc *session.Incarnation, wait, aside bool) (it *item, err error) {
	for synced := false; ; {
		var watches []*conn.Watch
		if wait {
			watches = append(watches, inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: q.dir}))
		}
		again := q.skips.Next() // read before the listing, during which a skip can end
		it, changed, err := q.look(ctx, inc, synced, aside)
		switch {
		case wait && session.IsNoNode(err):
			err = q.makeQueue(ctx)
		case err != nil || it != nil || changed:
		case wait:
			q.sweeper.Sweep(inc, 0)
			if next := q.sweeper.Next(); again.IsZero() || next.Before(again) {
				again = next
			}
			q.m.Waiters.Add(1)
			err = inc.AwaitAny(ctx, watches, again)
			q.m.Waiters.Add(-1)
		case synced:
			if q.cfg.KeepDead > 0 && !aside {
				q.sweeper.Sweep(inc, 0)
			}
			return nil, nil
		default:
			synced = true // this server may lag: only a listing after a sync proves that there is no element
			err = inc.Sync(ctx, q.dir)
		}
		for _, w := range watches {
			inc.Watches.Leave(w)
		}
		if err != nil || it != nil {
			return it, err
		}
	}
}

// look lists the elements, and reads the first that it does not skip. With left, it reads the skipped
// misfits last: then the caller gets their error again. It reports as changed that another client has
// removed an element since the listing.
func (q *engine) look(ctx context.Context, inc *session.Incarnation, left, aside bool) (it *item, changed bool, err error) {
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) && (left || aside) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var es, misfits []element
	for _, e := range q.elements(names) {
		switch {
		case !q.skips.Skipped(e.name, 0):
			es = append(es, e)
		case left && q.skips.Left(e.name, 0):
			misfits = append(misfits, e)
		}
	}
	for _, e := range append(es, misfits...) {
		switch it, err := q.read(ctx, inc, e); {
		case session.IsNoNode(err):
			changed = true
		case err != nil:
			return nil, false, err
		case it != nil && (len(it.inside) > 0 || !aside):
			return it, false, nil
		}
	}
	return nil, changed, nil
}

func (q *engine) Take(ctx context.Context) (e *queue.Element, err error) {
	inner, leave := queue.WhileOpen(ctx, q.m)
	defer leave()
	it, err := q.take(inner, false, false)
	if err != nil || it == nil {
		return nil, err
	}
	taken := it.Element()
	if !it.decide(queue.Remove, nil) {
		return nil, session.ErrClosed // Session.Close has it written back
	}
	return &taken, nil
}

func (q *engine) Peek(ctx context.Context) (e *queue.Element, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		it, err := q.first(ctx, inc, false, true)
		if it != nil {
			first := it.Element()
			e = &first
		}
		return err
	})
	return e, err
}

func (q *engine) names(ctx context.Context) (es []element, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error {
		if err := inc.Sync(ctx, q.dir); err != nil {
			return err
		}
		names, err := inc.Names(ctx, q.dir)
		es = q.elements(names)
		return err
	})
	return es, err
}

func (q *engine) Len(ctx context.Context) (int, error) {
	es, err := q.names(ctx)
	return len(es), err
}

func (q *engine) Stats(ctx context.Context) (st queue.Stats, err error) {
	if st.Ready, err = q.Len(ctx); err != nil {
		return st, err
	}
	e, err := q.Peek(ctx)
	if err != nil {
		return st, err
	}
	if e != nil {
		st.Oldest = e.Sent
	}
	err = q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		st.Dead, err = q.Count(ctx, inc)
		return err
	})
	return st, err
}

func (q *engine) Clear(ctx context.Context) (n int, err error) {
	var there map[string]bool // the znodes that existed when Clear began
	for {
		es, err := q.names(ctx)
		if err != nil {
			return n, err
		}
		if there == nil {
			there = make(map[string]bool, len(es))
			for _, e := range es {
				there[whole(e.name)] = true
			}
		}
		var ops []any
		size := 0
		for _, e := range es {
			path := session.ChildPath(q.dir, e.name)
			if !there[whole(e.name)] {
				continue
			}
			if size += q.m.SizeOf(path, nil); len(ops) == maxSplit || len(ops) > 0 && size > session.MaxPacket/2 {
				break
			}
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		}
		if len(ops) == 0 {
			return n, nil
		}
		switch err := q.commit(ctx, ops); {
		case err == nil:
			n += len(ops)
		case unlessOutrun(err) != nil:
			return n, err
		}
	}
}

func (q *engine) Requeue(ctx context.Context, d *queue.Letter) error {
	if err := q.makeQueue(ctx); err != nil { // other libraries create a container, which the servers delete
		return err
	}
	remove, _ := q.Removal(d)
	create := &zk.CreateRequest{Path: session.ChildPath(q.dir, q.prefix+d.Priority), Data: d.Framed, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	return q.commit(ctx, append(remove, create))
}

func (q *engine) Cancel(context.Context, string) (bool, error) { return false, q.lacks("Cancel") }
func (q *engine) Pause(context.Context) error                  { return q.lacks("Pause") }
func (q *engine) Resume(context.Context) error                 { return q.lacks("Resume") }

func (q *engine) List(context.Context, queue.State) iter.Seq2[queue.Listed, error] {
	return func(yield func(queue.Listed, error) bool) { yield(queue.Listed{}, q.lacks("List")) }
}

// refusal reports whether another attempt would fail with err too.
func refusal(err error) bool {
	return session.OutcomeOf(err) == session.Answered || errors.Is(err, session.ErrTooLarge) || errors.Is(err, session.ErrUnprotected)
}
