package foreign

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// This file gives taken elements to consumers, and settles them or writes them back.

// The type `delivery` is an element that this process has read and then takes.
type delivery struct {
	elementName
	q       *engine
	inc     *session.Incarnation // the session in which it was taken
	stored  []byte
	inside  [][]byte // the elements in its znode, one after `seize`
	version int32
	sent    time.Time
	value   any
	fault   error
	offer   chan struct{} // a consumer that offers it puts a token in, and takes it out after; `hold` leaves the token in

	mu      sync.Mutex
	settled bool          // guarded by mu
	fate    queue.Fate    // guarded by mu
	inHand  bool          // guarded by mu
	lost    error         // guarded by mu
	done    chan struct{} // closed after the first attempt if the fate is Return, and at the settlement for another fate
	err     error         // of the first attempt; read it only after `done` is closed

	ctx    context.Context // nil until the first call of Context; guarded by mu
	cancel context.CancelCauseFunc
}

// The method `hold` is called with a delivery that this process has taken. If the delivery is not
// settled when the session ends or the Session begins to close, `hold` writes the element back. If a
// consumer offers the element at that moment, the program may already have it, so `hold` waits for
// the end of the offer.
func (q *engine) hold(it *delivery) {
	leaving, stay := q.m.BeforeClose()
	q.m.Spawn(func() {
		defer stay()
		// If it.done is ready too, the delivery is settled already.
		select {
		case <-it.done:
			return
		case <-it.inc.Ctx.Done():
		case <-leaving:
		}
		it.offer <- struct{}{} // the same events end an offer; from here on, no consumer offers the element
		it.mu.Lock()
		if !it.settled {
			it.lost = it.inc.EndError(cmp.Or(context.Cause(it.inc.Ctx), session.ErrClosed))
			it.settleLocked(queue.Return)
		}
		it.mu.Unlock()
		<-it.done
	})
}

// settleLocked decides the Fate of the delivery.
func (it *delivery) settleLocked(f queue.Fate) {
	it.settled, it.fate = true, f
	if it.inHand {
		it.q.m.Holds.Add(-1)
	}
	if it.cancel != nil {
		it.cancel(it.lost)
	}
	it.value, it.inside = nil, nil
	if f == queue.Return {
		it.q.m.Spawn(it.putBack)
	} else {
		close(it.done)
		it.stored = nil
	}
}

// putBack writes the element back to its position, exactly once. Only this process has the element.
// So if the servers refuse the write, putBack tries again until the Session begins to close, and
// then one last time.
func (it *delivery) putBack() {
	q := it.q
	leaving, stay := q.m.BeforeClose()
	defer stay()
	ctx := session.Finishing
	last := false
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		create := &zk.CreateRequest{Path: session.ChildPath(q.dir, it.name), Data: it.stored, Acl: q.m.Config.ACL}
		var err error
		if q.Oversized(create) { // another library has stored the element without a receipt, and the element is too large for a transaction with one
			err = q.m.During(ctx, func(inc *session.Incarnation) error {
				_, err := inc.Create(ctx, create.Path, create.Data)
				return err
			})
		} else if err = q.commit(ctx, []any{create}); session.IsNodeExists(err) {
			err = nil
		}
		if !session.IsClosed(it.done) {
			it.err = err
			close(it.done)
		}
		if err == nil || last || !refusal(err) {
			if err != nil {
				q.m.Log.Error("zsync: an element may be lost, as it could not be put back", "path", q.cfg.Path, "element", it.name, "err", err)
			}
			return
		}
		if wait == time.Second {
			q.m.Log.Error("zsync: cannot put an element back; the Session keeps trying", "path", q.cfg.Path, "element", it.name, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-leaving: // if both cases are ready, either leads to another attempt
			last = true
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

func (it *delivery) Withdrawn() (down, over <-chan struct{}) {
	return it.inc.Disconnection(), it.inc.Ctx.Done()
}

func (it *delivery) Taken() {
	it.Settle(session.Finishing, queue.Settlement{Fate: queue.Remove})
	<-it.offer
}

func (it *delivery) Handed() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if !it.settled {
		it.inHand = true
		it.q.m.Holds.Add(1)
	}
	<-it.offer
}

func (it *delivery) PutBack() {
	q := it.q
	q.mu.Lock()
	keep := q.consumers > 0 && it.inc.Alive()
	if <-it.offer; keep { // if `hold` is faster now, `pop` skips the delivery
		q.ready = append([]*delivery{it}, q.ready...)
	}
	q.mu.Unlock()
	if !keep {
		it.Settle(session.Finishing, queue.Settlement{Fate: queue.Return})
	}
}

func (it *delivery) SetAside() {}

func (it *delivery) Settle(ctx context.Context, s queue.Settlement) error {
	switch s.Fate {
	case queue.Bury:
		return it.q.lacks("Reject")
	case queue.Later:
		it.Settle(ctx, queue.Settlement{Fate: queue.Return})
		return it.q.lacks("NackAfter")
	}
	it.mu.Lock()
	if !it.settled {
		it.settleLocked(s.Fate)
	}
	lost, fate := it.lost, it.fate
	it.mu.Unlock()
	switch {
	case lost != nil:
		return lost
	case fate != s.Fate:
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

func (it *delivery) Context() context.Context {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ctx == nil {
		it.ctx, it.cancel = context.WithCancelCause(context.Background())
		if it.settled {
			it.cancel(it.lost)
		}
	}
	return it.ctx
}

// The type `taker` is a consumer that takes elements when `Next` is called.
type taker struct {
	*queue.Subscriber
	q *engine
}

func (q *engine) Join(ctx context.Context, o queue.Joining) queue.Consumer {
	q.mu.Lock()
	q.consumers++
	q.mu.Unlock()
	return &taker{q.Enter(ctx, o), q}
}

func (c *taker) Leave() {
	c.Part(func() {
		q := c.q
		q.mu.Lock()
		var back []*delivery
		if q.consumers--; q.consumers == 0 {
			back, q.ready = q.ready, nil
		}
		q.mu.Unlock()
		for _, it := range back {
			it.Settle(session.Finishing, queue.Settlement{Fate: queue.Return})
		}
	})
}

func (c *taker) Next() (queue.Item, error) {
	q := c.q
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
		case <-q.m.Closing:
			return nil, q.m.Failure()
		}
		it := q.pop()
		var err error
		if it == nil {
			err = q.fetch(c.Ctx, max(q.cfg.Prefetch, 1))
			it = q.pop()
		}
		if it != nil && it.inc.Connection(c.Ctx) != nil {
			it.PutBack()
			it = nil
		}
		<-q.taking
		over := cmp.Or(session.CtxErr(c.Ctx), q.m.Failure())
		switch {
		case over != nil && it != nil:
			it.PutBack()
			return nil, over
		case over != nil:
			return nil, over
		case it != nil:
			return it, nil
		case err != nil:
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

func (c *taker) Poll() queue.Item {
	if it := c.q.pop(); it != nil {
		return it
	}
	return nil
}

// The method `pop` returns the first ready element that is not lost. The caller then offers it.
func (q *engine) pop() *delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ready) > 0 {
		it := q.ready[0]
		q.ready = q.ready[1:]
		select {
		case it.offer <- struct{}{}:
			return it
		default: // `hold` writes it back
		}
	}
	return nil
}

func (q *engine) Receive(ctx context.Context, n int, got func(queue.Item)) error {
	return queue.Receive(q.Join(ctx, queue.Joining{Hand: true}), n, got)
}
