package foreign

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// This file is about taken elements: how a consumer gets them, and how they are settled or written
// back. Taking them from the servers is not its business.

// An item is an element that this process has read, and perhaps taken. After that, only this process
// has the element, and a goroutine waits until its fate is decided: see await.
type item struct {
	element
	q       *engine
	inc     *session.Incarnation // the session in which it was read
	inside  [][]byte             // the elements in its znode
	version int32
	sent    time.Time
	fault   error

	mu     sync.Mutex
	stored []byte     // nil once the fate is carried out, like value; guarded by mu
	value  any        // guarded by mu
	fate   queue.Fate // once ctx has ended; guarded by mu
	inHand bool       // guarded by mu

	ctx     context.Context // ends when the fate is decided
	decided context.CancelCauseFunc
	done    chan struct{} // closed after the first attempt to carry the fate out
	err     error         // of that attempt; read it only after done is closed
}

// decide decides the fate of an item, unless an earlier call has done so. It reports whether that is
// the fate now.
func (it *item) decide(f queue.Fate, lost error) bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ctx.Err() == nil {
		if it.fate = f; it.inHand {
			it.q.m.Holds.Add(-1)
		}
		it.decided(lost)
	}
	return it.fate == f
}

// finish carries the fate out. To remove an item, nothing is left to do.
func (it *item) finish(leaving <-chan struct{}) {
	it.mu.Lock()
	stored := it.stored
	back := it.fate == queue.Return
	it.stored, it.value, it.inside = nil, nil, nil
	it.mu.Unlock()
	if back {
		it.putBack(stored, leaving)
	} else {
		close(it.done)
	}
}

// putBack writes the element back to its position, exactly once. Only this process has the element.
// So if the servers refuse, putBack tries again, until the Session is being closed, and then once
// more.
func (it *item) putBack(stored []byte, leaving <-chan struct{}) {
	q, ctx := it.q, session.Finishing
	create := &zk.CreateRequest{Path: session.ChildPath(q.dir, it.name), Data: stored, Acl: q.m.Config.ACL}
	last := false
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		var err error
		if queue.Oversized(q.m, q.Receipts, create) { // too large for a receipt: another library has stored it
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

func (it *item) Element() queue.Element {
	data := it.Data()
	it.mu.Lock()
	defer it.mu.Unlock()
	return queue.Element{ID: it.name, Data: data, Value: it.value, Fault: it.fault, Sent: it.sent}
}

func (it *item) Data() []byte {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ctx.Err() != nil || len(it.inside) == 0 {
		return nil
	}
	return it.inside[0]
}

// Withdrawn returns channels that are never closed: no other process has the element.
func (it *item) Withdrawn() (down, over <-chan struct{}) { return nil, nil }

func (it *item) Taken() { it.decide(queue.Remove, nil) }

func (it *item) Handed() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ctx.Err() == nil {
		it.inHand = true
		it.q.m.Holds.Add(1)
	}
}

func (it *item) PutBack() { it.Settle(session.Finishing, queue.Settlement{Fate: queue.Return}) }

func (it *item) SetAside() {}

func (it *item) Settle(ctx context.Context, s queue.Settlement) error {
	switch s.Fate {
	case queue.Bury:
		return it.q.lacks("Reject")
	case queue.Later:
		it.PutBack()
		return it.q.lacks("NackAfter")
	}
	ours := it.decide(s.Fate, nil)
	switch lost := context.Cause(it.ctx); {
	case lost != context.Canceled:
		return lost
	case !ours:
		return lock.ErrNotLocked
	case s.Fate == queue.Remove:
		return nil
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

func (it *item) Txn(context.Context, []any) ([]zk.MultiResponse, error) {
	return nil, it.q.lacks("Txn")
}

func (it *item) Context() context.Context { return it.ctx }

// A consumer takes an element when Next is called.
type consumer struct {
	q   *engine
	odd bool
	ctx context.Context
	end func() // ends ctx, and no longer delays Session.Close
}

func (q *engine) Join(ctx context.Context, o queue.Joining) queue.Consumer {
	c := &consumer{q: q, odd: o.Odd}
	c.ctx, c.end = queue.WhileOpen(ctx, q.m)
	return c
}

func (c *consumer) Leaving() <-chan struct{} { return c.ctx.Done() }

func (c *consumer) Leave() { c.end() }

func (c *consumer) Next() (queue.Claim, error) {
	q := c.q
	for try := 0; ; try++ {
		select {
		case q.taking <- struct{}{}:
		case <-c.ctx.Done():
			return nil, session.CtxErr(c.ctx)
		case <-q.m.Closing:
			return nil, q.m.Failure()
		}
		it, err := q.take(c.ctx, true, c.odd)
		<-q.taking
		switch {
		case c.ctx.Err() != nil:
			if it != nil {
				it.PutBack()
			}
			return nil, session.CtxErr(c.ctx)
		case it != nil:
			return it, nil
		case q.m.Failure() != nil:
			return nil, q.m.Failure()
		case errors.Is(err, session.ErrVanished): // another client has deleted the place in the line
			continue
		case c.odd:
			return nil, err
		}
		q.complain(err)
		select {
		case <-time.After(max(q.m.Config.Retry.Delay(try), time.Second)):
		case <-c.ctx.Done():
		case <-q.m.Closing:
		}
	}
}

func (q *engine) Receive(ctx context.Context, n int, got func(queue.Claim)) error {
	c := q.Join(ctx, queue.Joining{Hand: true}).(*consumer)
	defer c.Leave()
	it, err := c.Next()
	if err != nil {
		return err
	}
	for more := it.(*item); more != nil; n-- {
		got(more)
		if more.Handed(); n == 1 {
			break
		}
		more, _ = q.take(c.ctx, false, false) // an error shows in the next call
	}
	return nil
}
