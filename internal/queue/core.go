package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A core is what Engines have in common, whatever their layout.
type core struct {
	site
	deadLetters
	listeners
	finder
	cfg Config

	layout  layout
	trace   *trace.Writer // of claims; nil if there is none, or nothing is claimed in this layout
	line    line.Line     // of those who want elements
	out     outbox
	under   reaper
	gate    gate
	sweeper *sweeper
	usher   usher
	vetted  atomic.Pointer[session.Incarnation] // in which the directories were found to be ours
	zxid    atomic.Int64                        // that made path, as last seen by the pump
	pull    *core                               // of Receive: it claims nothing ahead
	order   *order                              // shared with pull

	mu     sync.Mutex
	pump   *pump   // of the present consumers; guarded by mu
	ledger *ledger // the newest, or nil; guarded by mu
}

// A layout is an Engine with its way to keep elements in znodes: see own, and foreign. What
// follows is what its core asks of it.
type layout interface {
	Engine

	// lacks returns the error of a feature that it has no place for, or nil.
	lacks(feature string) error

	// store makes the steps that store the elements of g.
	store(g *posted, inc *session.Incarnation) error

	// length returns how many elements there are, of which names are the children of the
	// queue's znode; count counts them in st.
	length(ctx context.Context, inc *session.Incarnation, names []string) (int, error)
	count(ctx context.Context, inc *session.Incarnation, names []string, st *Stats) error

	// first returns the first free element, or nil if there is none, and what is done in
	// one transaction with its removal so that it is removed only while nobody has claimed
	// it. With spread it may be one of the first of several. With aside nothing is written,
	// and nothing waited for.
	first(ctx context.Context, inc *session.Incarnation, spread int, aside bool) (it *item, with []any, err error)

	// restore puts an element that was removed, and that nobody has got, back to its
	// place, exactly once.
	restore(it *item) error

	// serve claims elements for p into l while it is p's turn. It ends without an error, or
	// with errNoRoom, when the turn is to be left.
	serve(p *pump, inc *session.Incarnation, l *ledger) error

	// stands reports whether what was claimed into l certainly is ours, and goes on to be
	// known to be.
	stands(ctx context.Context, l *ledger) bool

	// post carries out the entries of p. For each it sends no more data than bytes.
	post(p *posting) error
	bytes(e *entry) int

	// common returns the core.
	common() *core

	// class is how the name of a dead letter writes the priority of e.
	class(e element) string
}

func newEngine(m *session.Manager, cfg Config, in func(*core) layout) Engine {
	c := newCore(m, cfg, in)
	cfg.Prefetch = 1
	c.pull = newCore(m, cfg, in)
	c.pull.sweeper, c.pull.order = c.sweeper, c.order
	return c.layout
}

func (q *core) common() *core { return q }

func newCore(m *session.Manager, cfg Config, in func(*core) layout) *core {
	at := newSite(m, cfg.Path)
	c := &core{site: at, cfg: cfg, order: &order{}}
	c.layout = in(c)
	c.deadLetters.site, c.listeners.site, c.finder.site, c.under.site, c.gate.site = at, at, at, at, at
	c.sweeper = &sweeper{deadLetters: c.deadLetters, keep: cfg.KeepDead, due: time.Now()}
	c.under.last, c.skips.complain = time.Now(), c.complain
	c.line = line.New(m, cfg.Path+"-consumers", session.ProtectedName, "turn-")
	c.usher.m, c.usher.line = m, &c.line
	c.gate.line, c.gate.maxLen, c.gate.length = line.New(m, cfg.Path+"-senders", session.ProtectedName, "room-"), cfg.MaxLen, c.length
	c.gate.busy = make(chan struct{}, 1)
	c.out.producer = producer{at, c.layout, cfg.Priorities, cfg.IDMemory, c.vet, &c.usher, c.sweeper, new(sync.Map)}
	c.out.more = make(chan struct{}, 1)
	return c
}

// check decodes an item, and finds its fault: why it goes to the dead letters.
func (q *core) check(it *item) {
	var value any
	if it.fault == nil {
		value, it.fault = q.cfg.Decode(it.data)
	}
	if it.misfit = it.fault != nil; it.misfit {
		return
	}
	q.skips.fits()
	if n := q.cfg.MaxAttempts; n > 0 && it.attempts() >= n {
		it.fault = fmt.Errorf("delivered %d times without success", it.attempts())
	}
	it.value, it.decoded = value, it.fault == nil
}

func (q *core) Send(ctx context.Context, b Batch) error {
	p, err := q.out.parcel(ctx, b)
	if err != nil {
		return err
	}
	leave, err := q.gate.enter(ctx, len(b.Data), b.NoWait)
	if err != nil {
		return err
	}
	defer leave()
	return q.out.send(p)
}

// create makes a znode, whose parent is there, in whatever session. One that is there stays as it is.
func (q *core) create(ctx context.Context, path string, data []byte) error {
	return q.m.During(ctx, func(inc *session.Incarnation) error {
		_, err := inc.Create(ctx, path, data)
		return err
	})
}

// whileOpen returns a context that ends with ctx, and, with ErrClosed as its cause, when the
// Session is about to be closed. That waits for leave, which ends it too.
func (q *core) whileOpen(ctx context.Context) (inner context.Context, leave func()) {
	leaving, stay := q.m.BeforeClose()
	inner, cancel := context.WithCancelCause(ctx)
	if session.IsClosed(leaving) {
		cancel(session.ErrClosed)
	}
	q.m.Spawn(func() {
		select {
		case <-leaving:
			cancel(session.ErrClosed)
		case <-inner.Done():
		}
	})
	return inner, func() {
		cancel(nil)
		stay()
	}
}

// letterOf returns the operations that make a dead letter of an item.
func (q *core) letterOf(it *item, fault error, attempts int) []any {
	return q.letter(q.layout.class(it.element), it.stored, it.sent, attempts, fault)
}

// later returns the operation that stores an item anew in the queue that zxid has made, not
// to be claimed before it is due.
func (q *core) later(it *item, zxid, due int64, attempts int) *zk.CreateRequest {
	dir := session.ChildPath(q.dir, delayedName(it.prio, zxid))
	name := laterName(due, int32(attempts), it.sent.UnixMilli(), it.tag)
	return &zk.CreateRequest{Path: session.ChildPath(dir, name), Data: it.data, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
}

// letterNow prepares to make a dead letter in a transaction of its own, and
// returns the operations.
func (q *core) letterNow(ctx context.Context, inc *session.Incarnation, it *item) ([]any, error) {
	ops := q.letterOf(it, it.fault, it.attempts())
	if oversized(q.m, q.receipts, ops[0].(*zk.CreateRequest)) {
		return nil, fmt.Errorf("the element %s cannot go to the dead letters: %w", it.key(), session.ErrTooLarge)
	}
	return ops, inc.MakeDir(ctx, session.Dir{Path: q.dead})
}

// ring is the operation that wakes those who wait at the queue's znode.
func ring(dir string) *zk.SetDataRequest {
	return &zk.SetDataRequest{Path: dir, Data: []byte(marks.Dir), Version: -1}
}

// ours reports whether the queue's znode has nothing but the mark: what was stored there is not
// written over.
func ours(data []byte) bool { return len(marks.Unmark(data)) == 0 }

// vet refuses the queue if others may change what is in its directories. With an ACL of
// one's own those that are missing are made now, so that nobody makes them between this
// look and their use; without one it does nothing. It asks once in a session.
func (q *core) vet(ctx context.Context, inc *session.Incarnation) error {
	if q.vetted.Load() == inc {
		return nil
	}
	for _, dir := range []string{q.dir, q.claims, q.live, q.senders, q.ids, q.dead} {
		if err := inc.Vet(ctx, session.Dir{Path: dir}); err != nil {
			return err
		}
	}
	q.vetted.Store(inc)
	return nil
}

func (q *core) length(ctx context.Context, inc *session.Incarnation) (int, error) {
	names, err := inc.Names(ctx, q.dir)
	if err != nil {
		return 0, err
	}
	return q.layout.length(ctx, inc, names)
}
