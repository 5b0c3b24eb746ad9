package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
)

// This file has the arenas for stored state: registers (cell), Once, transactions, Queue and
// WaitGroup. Each arena calls its primitive at random and checks the results. The file ledger.go
// checks that the calls of registers are linearizable.

// The type `cell` is a register: a Value, an Int64, a key of a Map, or a Barrier.
type cell struct {
	*register
	path string
	kind string

	vmu      sync.Mutex
	versions map[zsync.Version]int64  // the value that a Load returned with this Version; guarded by vmu
	known    []read                   // guarded by vmu
	turn     [2]int                   // the number of calls before and after a loss of all data; guarded by vmu
	watched  map[*zsync.Session]int64 // by Session: the last value that its Watch has yielded; guarded by vmu
}

// The type `read` is the result of a Load.
type read struct {
	version zsync.Version
	value   int64
	era     int
}

// A cellKit has a process's value of the cell's primitive. Only one field is set.
type cellKit struct {
	value   *zsync.Value[int64]
	number  *zsync.Int64
	table   *zsync.Map[int64]
	barrier *zsync.Barrier
}

// mapKey is the key of the Map whose value is the register.
const mapKey = "k"

func init() {
	for kind, path := range map[string]string{"value": "/value", "int64": "/number", "map": "/map", "barrier": "/barrier"} {
		arenas[kind] = func(w *world) arena {
			return &cell{register: &register{w: w, name: path}, path: path, kind: kind, versions: map[zsync.Version]int64{}, watched: map[*zsync.Session]int64{}}
		}
	}
	arenas["once"] = func(w *world) arena {
		return &once{resource: &resource{w: w, name: "/once", limit: 1}}
	}
	arenas["txn"] = func(w *world) arena { return &ledger{w: w, sure: map[int64]bool{}} }
	arenas["queue"] = func(w *world) arena {
		return &queue{w: w, sent: map[int64]string{}, taken: map[int64]int{}, loose: map[int64]bool{}, claims: map[int64]*resource{}}
	}
	arenas["squatter"] = func(w *world) arena {
		return &squatter{w: w, path: map[string]string{"map": "/map/" + mapKey, "value": "/value", "int64": "/number"}[w.plan.arenas[0]]}
	}
	arenas["waitgroup"] = func(w *world) arena { return &tasks{w: w} }
}

func (c *cell) make(s *zsync.Session) any {
	k := &cellKit{}
	switch c.kind {
	case "value":
		k.value = zsync.NewValue[int64](s, c.path)
		go func() {
			for v := range k.value.Watch(context.Background()) {
				c.watch(s, v)
			}
		}()
	case "int64":
		k.number = zsync.NewInt64(s, c.path)
	case "map":
		k.table = zsync.NewMap[int64](s, c.path)
		go func() {
			for all := range k.table.Watch(context.Background()) {
				c.watch(s, all[mapKey])
			}
		}()
	case "barrier":
		k.barrier = zsync.NewBarrier(s, c.path)
	}
	return k
}

// The method `watch` records a value that a Watch has yielded.
func (c *cell) watch(s *zsync.Session, v int64) {
	c.vmu.Lock()
	defer c.vmu.Unlock()
	c.watched[s] = v
}

// The method `settled` checks that the last value from the Watch of a Value or a Map is the final
// value.
func (c *cell) settled(l *life) {
	k := l.kit[c].(*cellKit)
	if c.kind != "value" && c.kind != "map" {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, 5*c.w.timeout)
	defer cancel()
	r, err := c.load(ctx, k)
	c.vmu.Lock()
	defer c.vmu.Unlock()
	if c.w.squats {
		return
	}
	if err != nil && !errors.Is(err, zsync.ErrNoValue) {
		c.w.fail("%s: Load by p%d.%d, when all is quiet: %v", c.path, l.process, l.nth, err)
	} else if c.watched[l.s] != r.value && !(c.kind == "value" && r.value == 0) {
		c.w.fail("%s: the Watch of p%d.%d has last sent %d, and the value is %d", c.path, l.process, l.nth, c.watched[l.s], r.value)
	}
}

func (c *cell) load(ctx context.Context, k *cellKit) (r read, err error) {
	r.era = c.w.era()
	if k.value != nil {
		r.value, r.version, err = k.value.Load(ctx)
	} else {
		r.value, r.version, err = k.table.Load(ctx, mapKey)
	}
	return r, err
}

func (c *cell) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*cellKit)
	op := regOp{arg: c.w.unique()}
	began, era := time.Now(), c.w.era()
	var err error
	n := a.dice.IntN(6)
	done := a.doing("call %d of %s", n, c.path)
	switch c.kind {
	case "value", "map":
		err = c.keyed(ctx, a, k, n, &op)
	case "int64":
		err = c.number(ctx, a, k.number, n, &op)
	case "barrier":
		switch n {
		case 0, 1:
			op.kind, op.arg = "store", 1
			err = k.barrier.Close(ctx)
		case 2, 3:
			op.kind, op.arg = "store", 0
			err = k.barrier.Open(ctx)
		default:
			var cancel context.CancelFunc
			ctx, cancel = a.atMost(c.w.timeout)
			defer cancel()
			op.kind = "load"
			err = k.barrier.Wait(ctx)
		}
	}
	done()
	if errors.Is(err, zsync.ErrNoValue) {
		err = nil
	}
	if !c.w.squats || errors.Is(err, zsync.ErrClosed) { // with a squatter, calls may fail in other ways
		a.may("call of "+c.path, ctx, err)
	}
	if op.kind == "" || op.kind == "load" && c.w.staleReads {
		return
	}
	c.did(a, op, began, era, err)
}

// The method `keyed` calls a method of a Value, or the same method of a Map with `mapKey`.
func (c *cell) keyed(ctx context.Context, a *actor, k *cellKit, n int, op *regOp) (err error) {
	load := func() (read, error) {
		r, err := c.load(ctx, k)
		if err == nil || errors.Is(err, zsync.ErrNoValue) {
			c.saw(r)
		}
		return r, err
	}
	if c.w.losesData {
		n = c.script(n)
	}
	switch n {
	case 0:
		op.kind = "load"
		var r read
		r, err = load()
		op.out = r.value
	case 1:
		if k.value != nil {
			op.kind = "store"
			return k.value.Store(ctx, op.arg)
		}
		op.kind = "swap"
		op.out, _, err = k.table.Swap(ctx, mapKey, op.arg)
	case 2:
		if k.value != nil {
			var old int64
			_, err = k.value.Update(ctx, func(x int64) (int64, error) { old = x; return op.arg, nil })
			op.kind, op.out = "swap", old
			return err
		}
		op.kind = "delete"
		err = k.table.Delete(ctx, mapKey)
	case 3, 4:
		op.kind = "store"
		if k.value != nil {
			return k.value.Store(ctx, op.arg)
		}
		return k.table.Store(ctx, mapKey, op.arg)
	default: // a CompareAndSwap, with the Version of an earlier read
		r, ok := c.any(a)
		if !ok {
			if r, err = load(); err != nil {
				return err
			}
			a.nap(c.w.timeout / 8)
		}
		op.kind, op.old = "cas", r.value
		if r.era != c.w.era() {
			op.old = -1 // no value of this era matches the Version
			if r.version == (zsync.Version{}) {
				op.old = 0
			}
		}
		if k.value != nil {
			op.ok, err = k.value.CompareAndSwap(ctx, r.version, op.arg)
		} else {
			op.ok, err = k.table.CompareAndSwap(ctx, mapKey, r.version, op.arg)
		}
	}
	return err
}

// The method `script` chooses the first two calls before the servers lose their data, and the first
// two calls afterwards. Before the loss, the calls are Store and Load. After the loss, they are
// Store and CompareAndSwap with the Version of that Load. After the loss, the zxids begin again, so
// an old Version may match by mistake.
func (c *cell) script(n int) int {
	c.vmu.Lock()
	defer c.vmu.Unlock()
	era := min(c.w.era(), 1)
	turn := c.turn[era]
	c.turn[era]++
	switch {
	case turn == 0:
		return 3
	case turn == 1:
		return 5 * era // Load in the first era, CompareAndSwap in the second
	}
	return n
}

// The method `saw` records the result of a Load. It checks that no two values have the same
// Version.
func (c *cell) saw(r read) {
	c.vmu.Lock()
	defer c.vmu.Unlock()
	if r.era != c.w.era() {
		return
	}
	if v, ok := c.versions[r.version]; ok && v != r.value && c.w.era() == 0 {
		c.w.fail("%s: the Version %v is of %d and of %d", c.path, r.version, v, r.value)
	}
	c.versions[r.version] = r.value
	c.known = append(c.known, r)
}

// The method `any` returns one of the last reads. In a program whose servers lose their data, it
// returns one of the first reads. If it returns false, the caller must call Load.
func (c *cell) any(a *actor) (read, bool) {
	c.vmu.Lock()
	defer c.vmu.Unlock()
	if len(c.known) == 0 || !c.w.losesData && a.dice.IntN(3) == 0 {
		return read{}, false
	}
	if c.w.losesData {
		return c.known[a.dice.IntN(min(len(c.known), 4))], true
	}
	return c.known[max(0, len(c.known)-1-a.dice.IntN(3))], true
}

func (c *cell) number(ctx context.Context, a *actor, k *zsync.Int64, n int, op *regOp) (err error) {
	switch n {
	case 0:
		op.kind = "load"
		op.out, err = k.Load(ctx)
	case 1:
		op.kind = "store"
		err = k.Store(ctx, op.arg)
	case 2:
		op.kind = "swap"
		op.out, err = k.Swap(ctx, op.arg)
	case 3:
		op.kind = "cas"
		if op.old, err = k.Load(ctx); err != nil {
			op.kind = ""
			return err
		}
		op.ok, err = k.CompareAndSwap(ctx, op.old, op.arg)
	default:
		op.kind, op.arg = "add", 1000
		op.out, err = k.Add(ctx, op.arg)
	}
	return err
}

func (c *cell) final(ctx context.Context, s *zsync.Session) {
	k := c.make(s).(*cellKit)
	op := regOp{kind: "load"}
	began := time.Now()
	var err error
	switch c.kind {
	case "value":
		op.out, _, err = k.value.Load(ctx)
	case "map":
		op.out, _, err = k.table.Load(ctx, mapKey)
	case "int64":
		op.out, err = k.number.Load(ctx)
	case "barrier":
		if _, _, err = s.Get(ctx, c.path); err == nil {
			op.out = 1
		} else if errors.Is(err, zk.ErrNoNode) {
			err = nil
		}
	}
	if err != nil && c.w.squats {
		op.out, err = 0, nil // no stored value exists
	}
	if err != nil && !errors.Is(err, zsync.ErrNoValue) {
		c.w.fail("%s cannot be read at the end: %v", c.path, err)
		return
	}
	c.did(nil, op, began, c.w.era(), nil)
	c.w.checks = append(c.w.checks, c.explain)
}

func (c *cell) keeps(path string) bool {
	return path == c.path || path == c.path+"/"+mapKey || strings.HasSuffix(path, "%kept")
}

// The type `squatter` is the arena of a Group or a Mutex whose path is also the path of stored
// state.
type squatter struct {
	w    *world
	path string
}

func (q *squatter) make(s *zsync.Session) any { return s }

func (q *squatter) step(ctx context.Context, a *actor, kit any) {
	s := kit.(*zsync.Session)
	done := a.doing("squats at %s", q.path)
	if a.dice.IntN(2) == 0 {
		m, err := zsync.NewGroup[int](s, q.path).Join(ctx, a.name, 1)
		done()
		if a.may("Join", ctx, err, zsync.ErrMixed, zsync.ErrInvalid) {
			a.hold()
			_ = m.Leave()
		}
		return
	}
	m := zsync.NewMutex(s, q.path)
	err := m.Lock(ctx)
	done()
	if a.may("Lock", ctx, err, zsync.ErrMixed) {
		a.hold()
		_ = m.Unlock()
	}
}

func (q *squatter) final(context.Context, *zsync.Session) {}

func (q *squatter) keeps(string) bool { return false }

// The type `once` is the arena of a Once. The process that runs the function holds the Once. After
// the first Do has returned nil, no process runs the function.
type once struct {
	*resource
	done time.Time // the time at which the first Do returned nil; guarded by mu
}

func (o *once) make(s *zsync.Session) any { return zsync.NewOnce(s, "/once") }

func (o *once) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.Once)
	end := a.doing("Once.Do")
	ran := false
	err := k.Do(ctx, func(inner context.Context) error {
		ran = true
		o.mu.Lock()
		if !o.done.IsZero() {
			o.w.fail("/once: what was confirmed is so: a function runs, and the thing is done since %v", o.w.at(o.done))
		}
		o.mu.Unlock()
		l := lock{resource: o.resource}
		h := o.grantInside(a, 1, l.toldInside(a, inner, nil))
		defer h.end()
		a.hold()
		if a.dice.IntN(3) > 0 {
			return errOwn
		}
		return nil
	})
	end()
	if err == nil {
		o.mu.Lock()
		if o.done.IsZero() {
			o.done = time.Now()
		}
		o.mu.Unlock()
	}
	if ran {
		a.may("Once.Do", ctx, err, errOwn, zsync.ErrLost, zsync.ErrClosed, context.Canceled)
	} else {
		a.may("Once.Do", ctx, err)
	}
}

func (o *once) final(ctx context.Context, s *zsync.Session) {
	done, err := zsync.NewOnce(s, "/once").Done(ctx)
	if err != nil || !done && !o.done.IsZero() {
		o.w.fail("/once: what was confirmed is so: at the end Done = %v, %v; a Do has returned nil: %v", done, err, !o.done.IsZero())
	}
}

func (o *once) keeps(path string) bool {
	return strings.HasPrefix(path, "/once") && !strings.Contains(path, "_c_")
}

// The type `ledger` is the arena for transactions. Each transaction creates an entry and writes the
// parent, whose version counts the entries.
type ledger struct {
	w    *world
	mu   sync.Mutex
	sure map[int64]bool // by entry with a known outcome: true if the entry was created; guarded by mu
}

func (g *ledger) make(s *zsync.Session) any { return s }

func (g *ledger) step(ctx context.Context, a *actor, kit any) {
	s := kit.(*zsync.Session)
	acl := zk.WorldACL(zk.PermAll)
	done := a.doing("writes to the ledger")
	defer done()
	if _, err := s.Txn(ctx, &zk.CreateRequest{Path: "/ledger", Acl: acl}); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		a.may("Txn", ctx, err, zsync.ErrLost)
		return
	}
	n, version := g.w.unique(), int32(-1)
	if a.dice.IntN(2) == 0 {
		g.slot(ctx, a, s, n)
		return
	}
	if a.dice.IntN(2) == 0 {
		_, stat, err := s.Get(ctx, "/ledger")
		if err != nil {
			a.may("Get", ctx, err)
			return
		}
		version = stat.Version
		a.nap(g.w.timeout / 16)
	}
	_, err := s.Txn(ctx, &zk.SetDataRequest{Path: "/ledger", Version: version}, &zk.CreateRequest{Path: fmt.Sprint("/ledger/", n), Acl: acl})
	switch {
	case a.may("Txn", ctx, err, zsync.ErrLost, zk.ErrBadVersion):
		g.set(n, true)
	case errors.Is(err, zk.ErrBadVersion) && version >= 0:
		g.set(n, false)
	}
}

// The method `slot` creates an entry and a slot znode in one transaction, and later deletes the
// slot znode. If the slot znode exists already, the servers refuse the transaction.
func (g *ledger) slot(ctx context.Context, a *actor, s *zsync.Session, n int64) {
	acl := zk.WorldACL(zk.PermAll)
	_, err := s.Txn(ctx, &zk.CreateRequest{Path: "/ledger-slot", Acl: acl}, &zk.SetDataRequest{Path: "/ledger", Version: -1}, &zk.CreateRequest{Path: fmt.Sprint("/ledger/", n), Acl: acl})
	switch {
	case errors.Is(err, zk.ErrNodeExists):
		g.set(n, false)
		return
	case !a.may("Txn", ctx, err, zsync.ErrLost):
		return
	}
	g.set(n, true)
	a.nap(g.w.timeout / 16)
	_, err = s.Txn(ctx, &zk.DeleteRequest{Path: "/ledger-slot", Version: -1})
	a.may("Txn", ctx, err, zsync.ErrLost, zk.ErrNoNode)
}

func (g *ledger) set(n int64, sure bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sure[n] = sure
}

func (g *ledger) final(ctx context.Context, s *zsync.Session) {
	names, stat, err := s.Children(ctx, "/ledger")
	if err != nil {
		if len(g.sure) > 0 || !errors.Is(err, zk.ErrNoNode) {
			g.w.fail("the ledger cannot be read: %v", err)
		}
		return
	}
	if int(stat.Version) != len(names) {
		g.w.fail("the ledger: all or none, once: %d entries and %d counts", len(names), stat.Version)
	}
	for _, n := range slices.Sorted(maps.Keys(g.sure)) {
		if got := slices.Contains(names, fmt.Sprint(n)); got != g.sure[n] {
			g.w.fail("the ledger: entry %d was confirmed: %v; is there: %v", n, g.sure[n], got)
		}
	}
}

func (g *ledger) keeps(path string) bool { return strings.HasPrefix(path, "/ledger") }

// The type `queue` is the arena of a Queue of numbers.
type queue struct {
	w      *world
	mu     sync.Mutex
	sent   map[int64]string    // by element: "sent", or "unknown"; guarded by mu
	taken  map[int64]int       // by element: the number of calls of Ack that have returned nil; guarded by mu
	loose  map[int64]bool      // the elements whose Ack has an unknown outcome; guarded by mu
	claims map[int64]*resource // by element; guarded by mu
	struck time.Time           // time of the last strike; guarded by mu
}

func (q *queue) make(s *zsync.Session) any { return zsync.NewQueue[int64](s, "/queue") }

func (q *queue) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.Queue[int64])
	if a.dice.IntN(2) == 0 {
		var vs []int64
		for range 1 + a.dice.IntN(3) {
			vs = append(vs, q.w.unique())
		}
		q.note(vs, "unknown")
		done := a.doing("sends %v", vs)
		err := k.Send(ctx, vs...)
		done()
		if a.may("Send", ctx, err) {
			q.note(vs, "sent")
		}
		return
	}
	ctx, cancel := a.atMost(q.w.timeout)
	defer cancel()
	done := a.doing("receives")
	d, err := k.Receive(ctx)
	done()
	if !a.may("Receive", ctx, err) {
		return
	}
	q.deliver(a, d)
}

func (q *queue) note(vs []int64, what string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, v := range vs {
		if what == "sent" && q.loose[v] {
			continue // the element was delivered before Send returned, and the outcome of its Ack is unknown
		}
		q.sent[v] = what
	}
}

// The method `deliver` checks a delivery, holds the element for a while, and ends the claim.
func (q *queue) deliver(a *actor, d zsync.Delivery[int64]) {
	v := d.Value
	q.mu.Lock()
	if q.sent[v] == "" || q.taken[v] > 0 {
		q.w.fail("the queue: %d is delivered; it was sent: %q, acknowledged: %d times", v, q.sent[v], q.taken[v])
	}
	r := q.claims[v]
	if r == nil {
		// A stranger may have deleted the consumer's mark just before the delivery. So that strike
		// counts, too.
		r = &resource{w: q.w, name: fmt.Sprint("/queue element ", v), limit: 1, struck: q.struck}
		q.claims[v] = r
	}
	q.mu.Unlock()
	h := r.grant(a, 1, func() bool { return d.Context().Err() != nil })
	a.hold()
	if a.under.Load() > 0 && a.dice.IntN(2) == 0 { // acknowledge late, perhaps after a loss
		a.outlast(d.Context().Done())
		h.end()
		a.nap(3 * q.w.timeout)
	} else {
		h.end()
	}
	ctx, cancel := a.within()
	defer cancel()
	if a.dice.IntN(4) == 0 {
		if err := d.Nack(); err != nil && !errors.Is(err, zsync.ErrLost) && !a.gone() {
			q.w.fail("Nack of %d by %s: %v", v, a, err)
		}
		return
	}
	if a.w.strikes && a.dice.IntN(3) > 0 {
		q.challenge(a, h)
	}
	done, asked := a.doing("acknowledges %d", v), time.Now()
	err := d.Ack(ctx)
	done()
	ok := a.may("Ack", ctx, err, zsync.ErrLost, zk.ErrNoNode)
	// If strangers strike, the mark of the other claim may have been deleted. The process of that
	// claim may learn of the claim now, and of the loss a moment later.
	if other := r.since(h, asked); ok && other != nil && !q.w.strikes {
		q.w.fail("the queue: Ack of %d by %s is nil, and %s has had it since %v", v, a, other.a, q.w.at(other.since))
	}
	if ok && h.deletedBefore(asked) {
		q.w.fail("the queue: Ack of %d by %s is nil, and the mark of its claim was deleted before", v, a)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case ok:
		if q.taken[v]++; q.taken[v] > 1 {
			q.w.fail("the queue: %d was acknowledged twice", v)
		}
		if q.w.day { // a day has thousands of elements
			delete(q.claims, v)
		}
	case !errors.Is(err, zsync.ErrLost) || errors.Is(err, zsync.ErrClosed):
		q.sent[v], q.loose[v] = "unknown", true
	}
}

// The method `challenge` makes a stranger delete the mark of a claim, and stalls messages so that
// the process learns of the deletion late. Before then, another process may receive the element.
func (q *queue) challenge(a *actor, h *hold) {
	select {
	case q.w.granted <- h:
	default:
		return
	}
	up := a.dice.IntN(2) == 0
	for m := range q.w.members {
		resume := q.w.net.stall(wayOf{a.id(), m, up})
		time.AfterFunc(time.Duration(q.w.timeout/16)+time.Duration(a.dice.Int64N(int64(q.w.timeout/4))), resume)
	}
	if up {
		time.AfterFunc(q.w.timeout/20, func() { q.w.net.kill(a.id(), -1) })
		return // the request of Ack stalls, and the reset of the connection discards it
	}
	a.nap(q.w.timeout / 8)
}

// The method `final` receives all remaining elements.
func (q *queue) final(_ context.Context, s *zsync.Session) {
	k := zsync.NewQueue[int64](s, "/queue")
	left := map[int64]int{}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 3*q.w.timeout+4*time.Second)
		defer cancel()
		d, err := k.Receive(ctx)
		if err != nil {
			q.w.note("at the end Receive: %v", err)
			break
		}
		left[d.Value]++
		_ = d.Ack(ctx)
	}
	for _, v := range slices.Sorted(maps.Keys(q.sent)) {
		switch n := left[v]; {
		case n > 1, n == 1 && q.taken[v] > 0:
			q.w.fail("the queue: %d comes %d times at the end, and was acknowledged %d times", v, n, q.taken[v])
		case n == 0 && q.taken[v] == 0 && q.sent[v] == "sent":
			q.w.fail("the queue: %d was sent, and is gone", v)
		}
	}
}

func (q *queue) held() []*resource {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.claims))
}

// The method `owns` reports whether r is an element of q.
func (q *queue) owns(r *resource) bool { return slices.Contains(q.held(), r) }

// The method `strike` records that a stranger has deleted a mark. Any claim may depend on that
// mark.
func (q *queue) strike(copied bool) {
	q.mu.Lock()
	q.struck = time.Now()
	q.mu.Unlock()
	for _, r := range q.held() {
		r.strike(copied)
	}
}

func (q *queue) check() {
	for _, r := range q.held() {
		r.check()
	}
}

func (q *queue) keeps(path string) bool {
	return strings.HasPrefix(path, "/queue")
}

// tasks is the arena of a WaitGroup.
type tasks struct{ w *world }

func (g *tasks) make(s *zsync.Session) any { return zsync.NewWaitGroup(s, "/tasks") }

func (g *tasks) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.WaitGroup)
	if a.dice.IntN(3) == 0 {
		ctx, cancel := a.atMost(g.w.timeout)
		defer cancel()
		done := a.doing("Wait for tasks")
		err := k.Wait(ctx)
		done()
		a.may("WaitGroup.Wait", ctx, err)
		return
	}
	done := a.doing("Add")
	err := k.Add(ctx, 1)
	done()
	if !a.may("Add", ctx, err, zsync.ErrLost) {
		return
	}
	a.hold()
	done = a.doing("Done")
	err = k.Done()
	done()
	if err != nil && !errors.Is(err, zsync.ErrLost) && !a.gone() {
		g.w.fail("Done by %s: %v", a, err)
	}
}

func (g *tasks) final(ctx context.Context, s *zsync.Session) {
	if n, err := zsync.NewWaitGroup(s, "/tasks").Count(ctx); n != 0 || err != nil {
		g.w.fail("%d tasks are open at the end, %v", n, err)
	}
}

func (g *tasks) keeps(string) bool { return false }
