package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A core is the Engine of zsync's own layout, and, with a foreign, of those of
// other libraries.
type core struct {
	site
	deadLetters
	listeners
	finder
	cfg Config

	foreign *foreign  // another library's layout, or nil
	line    line.Line // of those who want elements
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

// New returns the Engine of zsync's own layout. It does no I/O.
func New(m *session.Manager, cfg Config) Engine { return newEngine(m, cfg, nil) }

// NewForeign is New for the layout of another library: SimpleDistributedQueue,
// DistributedQueue, both of Curator, or kazoo.
func NewForeign(m *session.Manager, cfg Config, layout string) Engine {
	f := *foreignLayouts[layout]
	f.layout = layout
	return newEngine(m, cfg, &f)
}

func newEngine(m *session.Manager, cfg Config, f *foreign) Engine {
	c := newCore(m, cfg, f)
	cfg.Prefetch = 1
	c.pull = newCore(m, cfg, f)
	c.pull.sweeper, c.pull.order = c.sweeper, c.order
	return c
}

func newCore(m *session.Manager, cfg Config, f *foreign) *core {
	at := newSite(m, cfg.Path)
	c := &core{site: at, cfg: cfg, foreign: f, order: &order{}}
	c.deadLetters.site, c.listeners.site, c.finder.site, c.under.site, c.gate.site = at, at, at, at, at
	c.sweeper = &sweeper{deadLetters: c.deadLetters, keep: cfg.KeepDead}
	c.under.last, c.skips.complain = time.Now(), c.complain
	c.line = line.New(m, cfg.Path+"-consumers", session.ProtectedName, "turn-")
	c.usher.m, c.usher.line = m, &c.line
	c.gate.line, c.gate.maxLen, c.gate.length = line.New(m, cfg.Path+"-senders", session.ProtectedName, "room-"), cfg.MaxLen, c.length
	c.gate.busy = make(chan struct{}, 1)
	c.out.producer = producer{at, f, cfg.Priorities, cfg.IDMemory, c.vet, &c.usher, c.sweeper}
	c.out.more = make(chan struct{}, 1)
	return c
}

// check decodes an item. The error is why it goes to the dead letters.
func (q *core) check(it *item) error {
	if it.fault != nil {
		it.misfit = true
		return it.fault
	}
	v, err := q.cfg.Decode(it.data)
	if err == nil {
		q.skips.fits()
	} else {
		it.misfit = true
	}
	if n := q.cfg.MaxAttempts; err == nil && n > 0 && it.attempts() >= n {
		err = fmt.Errorf("delivered %d times without success", it.attempts())
	}
	if err == nil {
		it.value, it.decoded = v, true
	}
	return err
}

func (q *core) Send(ctx context.Context, b Batch) error {
	if ctx.Err() != nil {
		return session.CtxErr(ctx)
	}
	if err := q.m.Failure(); err != nil || len(b.Data) == 0 {
		return err
	}
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

// letterOf returns the operations that make a dead letter of an item. In another
// library's layout the priority is written as there.
func (q *core) letterOf(it *item, fault error, attempts int) []any {
	class := it.class
	if q.foreign == nil {
		class = fmt.Sprintf("%05d%s", it.prio, keyOf(it.tag))
	}
	return q.letter(class, it.stored(), it.sent, attempts, fault)
}

// letterNow prepares to make a dead letter in a transaction of its own, and
// returns the operations.
func (q *core) letterNow(ctx context.Context, inc *session.Incarnation, it *item, fault error) ([]any, error) {
	ops := q.letterOf(it, fault, it.attempts())
	if oversized(q.m, q.receipts, ops[0].(*zk.CreateRequest)) {
		return nil, fmt.Errorf("the element %s cannot go to the dead letters: %w", it.key(), session.ErrTooLarge)
	}
	return ops, inc.MakeDir(ctx, q.dead)
}

func (q *core) Letter(ctx context.Context, id string) (*Letter, error) {
	d, err := q.deadLetters.Letter(ctx, id)
	if q.foreign != nil && err == nil {
		if all, fault := q.foreign.open(d.Framed); fault == nil && len(all) == 1 {
			d.Data = all[0]
		}
	}
	return d, err
}

func (q *core) Requeue(ctx context.Context, d *Letter) error {
	remove, size := q.removal(d)
	if q.foreign != nil {
		if err := q.create(ctx, q.dir, nil); err != nil { // others make it a container
			return err
		}
		create := &zk.CreateRequest{Path: session.ChildPath(q.dir, q.foreign.prefix+d.Priority), Data: d.Framed, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
		_, err := q.m.CommitAcrossSessions(ctx, q.receipts, append(remove, create))
		return err
	}
	prio, tag, err := placeOf(d)
	if err != nil {
		return err
	}
	p := &parcel{ctx: ctx, prio: prio, data: [][]byte{d.Data}, tags: []string{tag}, with: remove, done: make(chan error, 1)}
	p.size = q.out.elementSize(d.Data) + size
	return q.out.send(p)
}

// vet refuses the queue if others may change what is in its directories. With an ACL of
// one's own those that are missing are made now, so that nobody makes them between this
// look and their use; without one it does nothing. It asks once in a session.
func (q *core) vet(ctx context.Context, inc *session.Incarnation) error {
	if q.vetted.Load() == inc {
		return nil
	}
	for _, dir := range []string{q.dir, q.claims, q.live, q.senders, q.ids, q.dead} {
		if err := inc.Vet(ctx, dir, nil); err != nil {
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
	if q.foreign != nil {
		return len(q.foreign.elements(names)), nil
	}
	buckets := parseBuckets(names)
	paths := make([]string, len(buckets))
	for i, b := range buckets {
		paths[i] = session.ChildPath(q.dir, b.name)
	}
	nodes, err := inc.GetVisible(ctx, paths)
	n := 0
	for _, node := range nodes {
		if node.Stat != nil {
			n += int(node.Stat.NumChildren)
		}
	}
	return n, err
}
