package foreign

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// This file gives taken elements to consumers, and settles them or writes them back.

// The type `delivery` is an element that this process has read and then takes.
type delivery struct {
	name    string
	q       *engine
	inc     *session.Incarnation // the session in which it was taken
	stored  []byte
	inside  [][]byte // the elements in its znode, one after `seize`
	version int32
	sent    time.Time
	value   any
	fault   error

	leaving <-chan struct{} // closed when the Session begins to close
	stay    func()          // lets Session.Close continue

	ctx    context.Context // ends at the settlement; its cause is the loss
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	fate   queue.Fate    // valid after the settlement; guarded by mu
	inHand bool          // guarded by mu
	done   chan struct{} // closed after the first attempt if the fate is Return, and at the settlement for another fate
	err    error         // of the first attempt; read it only after `done` is closed
}

// The method `settle` decides the Fate of the delivery, unless an earlier call has decided it. The
// argument `lost` is the loss, or nil.
func (it *delivery) settle(f queue.Fate, lost error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ctx.Err() != nil {
		return
	}
	it.fate = f
	it.cancel(lost)
	if it.inHand {
		it.q.m.Holds.Add(-1)
	}
	it.value, it.inside = nil, nil
	if f == queue.Return {
		it.q.m.Spawn(it.putBack)
	} else {
		close(it.done)
		it.stay()
		it.stored = nil
	}
}

// putBack writes the element back to its position, exactly once. Only this process has the element.
// So if the servers refuse the write, putBack tries again until the Session begins to close, and
// then one last time.
func (it *delivery) putBack() {
	q, ctx := it.q, session.Finishing
	defer it.stay()
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		last := session.IsClosed(it.leaving)
		create := &zk.CreateRequest{Path: znodes.ChildPath(q.dir, it.name), Data: it.stored, Acl: q.m.Config.ACL}
		err := q.commit(ctx, []any{create})
		if errors.Is(err, session.ErrTooLarge) { // another library has stored the element without a receipt
			err = q.m.During(ctx, func(inc *session.Incarnation) error {
				_, err := znodes.Create(ctx, inc, create.Path, create.Data)
				return err
			})
		} else if session.IsNodeExists(err) {
			err = nil
		}
		if !session.IsClosed(it.done) {
			it.err = err
			close(it.done)
		}
		switch {
		case err == nil:
			return
		case last || !refusal(err):
			q.m.Log.Error("zsync: an element may be lost, as it could not be put back", "path", q.cfg.Path, "element", it.name, "err", err)
			return
		case wait == time.Second:
			q.m.Log.Error("zsync: cannot put an element back; the Session keeps trying", "path", q.cfg.Path, "element", it.name, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-it.leaving:
		}
	}
}

func (it *delivery) Element() queue.Element {
	it.mu.Lock()
	defer it.mu.Unlock()
	e := queue.Element{ID: it.name, Value: it.value, Fault: it.fault, Sent: it.sent}
	if it.inside != nil {
		e.Data = it.inside[0]
	}
	return e
}

// Withdrawn never ends an offer because of a lost connection: no other client can get the element.
func (it *delivery) Withdrawn() (down, over <-chan struct{}) { return nil, it.inc.Ctx.Done() }

func (it *delivery) Taken() { it.settle(queue.Remove, nil) }

// Handed also writes the element back if it is not settled when the session ends or the Session begins
// to close. Until Handed is called, the caller ends its offer then.
func (it *delivery) Handed() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ctx.Err() != nil {
		return
	}
	it.inHand = true
	it.q.m.Holds.Add(1)
	it.q.m.Spawn(func() {
		select { // if several are ready, it may be settled already
		case <-it.done:
		case <-it.inc.Ctx.Done():
		case <-it.leaving:
		}
		it.settle(queue.Return, it.inc.EndError(cmp.Or(context.Cause(it.inc.Ctx), session.ErrClosed)))
	})
}

func (it *delivery) PutBack() { it.Settle(session.Finishing, queue.Settlement{Fate: queue.Return}) }

func (it *delivery) SetAside() {}

func (it *delivery) Settle(ctx context.Context, s queue.Settlement) error {
	switch s.Fate {
	case queue.Bury:
		return it.q.lacks("Reject")
	case queue.Later:
		it.Settle(ctx, queue.Settlement{Fate: queue.Return})
		return it.q.lacks("NackAfter")
	}
	it.settle(s.Fate, nil)
	switch cause := context.Cause(it.ctx); {
	case cause != context.Canceled:
		return cause
	case it.fate != s.Fate: // it no longer changes
		return lock.ErrNotLocked
	}
	limit := time.NewTimer(session.ReleaseTime)
	defer limit.Stop()
	select {
	case <-it.done:
		return it.err
	case <-it.inc.Disconnection():
	case <-limit.C:
	case <-ctx.Done():
	}
	return nil
}

func (it *delivery) Txn(context.Context, []any) ([]zk.MultiResponse, error) {
	return nil, it.q.lacks("Txn")
}

func (it *delivery) Context() context.Context { return it.ctx }

func (q *engine) Join(ctx context.Context, o queue.Joining) *queue.Consumer {
	c := q.Enter(ctx, o, func() {})
	c.Next, c.Poll = func() (queue.Item, error) { return q.next(c) }, func() queue.Item { return nil }
	return c
}

// The method `next` takes an element for a consumer.
func (q *engine) next(c *queue.Consumer) (queue.Item, error) {
	for try := 0; ; try++ {
		select {
		case err := <-c.Faults:
			return nil, err
		default:
		}
		select {
		case q.taking <- struct{}{}:
		case err := <-c.Faults:
			return nil, err
		case <-c.Ctx.Done():
			return nil, session.CtxErr(c.Ctx)
		case <-q.m.Closing: // before c.Ctx ends, Close waits for functions
			return nil, q.m.Failure()
		}
		it, err := q.fetch(c.Ctx)
		<-q.taking
		switch over := cmp.Or(session.CtxErr(c.Ctx), q.m.Failure()); {
		case over != nil && it != nil:
			it.PutBack()
			return nil, over
		case over != nil:
			return nil, over
		case it != nil:
			return it, nil
		}
		if err != nil && !errors.Is(err, session.ErrVanished) { // the place in the line was deleted
			q.Complain(err)
			select {
			case err := <-c.Faults:
				return nil, err
			case <-time.After(max(q.m.Config.Retry.Delay(try), time.Second)):
			case <-c.Ctx.Done():
			case <-q.m.Closing:
			}
		}
	}
}
