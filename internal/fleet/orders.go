package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
)

// This file has the arena for most features of a Queue: keys, priorities, delays, IDs, attempts,
// dead letters, transactions, Recv, TryRecv, Work and Pause. The arena checks the outcome for each
// element, and the claims on the servers. The arena in state.go calls only Send, Receive and Ack.
// That arena does not change, because testdata/defects has seeds with which it finds defects.

// maxTries is the maximum number of attempts for an element.
const maxTries = 4

// The type `orders` is the arena of one Queue of numbers.
type orders struct {
	w    *world
	mu   sync.Mutex
	all  map[int64]*order     // guarded by mu
	ids  map[string][]int64   // by ID: the elements that were sent with it; guarded by mu
	keys map[string]*resource // by key, or by element if it has no key; guarded by mu
	torn int                  // the number of failed calls of TryRecv, each of which may have removed an element; guarded by mu
}

// The type `order` is the program's record of an element.
type order struct {
	sent     bool   // its send was confirmed
	barred   bool   // it was not stored, and cannot be stored later
	seen     bool   // it was delivered, so the servers have stored it
	removed  int    // the number of confirmed removals
	maybe    bool   // the outcome of a removal is unknown
	attempt  int    // number of the last attempt
	free     bool   // the element was returned, so the next attempt may have the same number
	taken    bool   // the program took it from the channel of Recv
	session  int64  // if `taken` is true: the session of that Recv
	id       string // the ID of SendID, or ""
	replaces int64  // the element that was acknowledged in the transaction that sent this element, or 0
}

func init() {
	arenas["orders"] = func(w *world) arena {
		return &orders{w: w, all: map[int64]*order{}, ids: map[string][]int64{}, keys: map[string]*resource{}}
	}
}

// keyOf returns the key of an element. A third of the elements have no key.
func keyOf(v int64) string {
	if v%3 == 0 {
		return ""
	}
	return fmt.Sprint("key ", v%3)
}

func (q *orders) options(limit bool) []zsync.QueueOption {
	opts := []zsync.QueueOption{zsync.WithKey(keyOf), zsync.WithPriorities(2)}
	if limit {
		opts = append(opts, zsync.WithMaxAttempts(maxTries))
	}
	return opts
}

func (q *orders) make(s *zsync.Session) any {
	return zsync.NewQueue[int64](s, "/orders", q.options(true)...)
}

func (q *orders) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.Queue[int64])
	n := a.dice.IntN(16)
	if n < 7 {
		q.send(ctx, a, k, n)
		return
	}
	ctx, cancel := a.atMost(a.w.timeout)
	defer cancel()
	switch n {
	case 7:
		q.tryRecv(ctx, a, k)
	case 8:
		done := a.doing("ranges over Recv")
		for v := range k.Recv(ctx) {
			q.took(a, v)
			a.nap(a.w.timeout / 32)
		}
		done()
	case 9, 10:
		done := a.doing("ranges over Deliveries")
		deliveries := k.Deliveries(ctx)
		done()
		for d := range deliveries {
			q.settle(a, d, q.begin(a, d.Value, d.Attempt, func() bool { return d.Context().Err() != nil }))
			if a.dice.IntN(4) == 0 {
				cancel()
			}
		}
	case 11, 12:
		q.work(ctx, a, k)
	case 13:
		done := a.doing("requeues dead letters")
		_, err := k.RequeueDead(ctx, func(l zsync.DeadLetter) bool {
			v, _ := strconv.ParseInt(string(l.Data), 10, 64)
			q.mu.Lock()
			defer q.mu.Unlock()
			if o := q.all[v]; o != nil {
				o.attempt = 0
			}
			return true
		})
		done()
		a.may("RequeueDead", ctx, err)
	case 14:
		done := a.doing("pauses")
		err := k.Pause(ctx)
		done()
		a.may("Pause", ctx, err)
		a.nap(a.w.timeout / 8)
		for err := error(nil); !a.gone(); { // repeat Resume, because no other call resumes the queue
			done := a.doing("resumes")
			ctx, cancel := a.within()
			err = k.Resume(ctx)
			cancel()
			done()
			if a.may("Resume", ctx, err) {
				break
			}
		}
	default:
		done := a.doing("receives some")
		ds, err := k.ReceiveN(ctx, 1+a.dice.IntN(3))
		done()
		a.may("ReceiveN", ctx, err)
		for _, d := range ds {
			h := q.begin(a, d.Value, d.Attempt, func() bool { return d.Context().Err() != nil })
			defer func() { q.settle(a, d, h) }()
		}
	}
}

// The method `fresh` returns a new element, for a call that will send it.
func (q *orders) fresh(id string, replaces int64) int64 {
	v := q.w.unique()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all[v] = &order{id: id, replaces: replaces}
	if id != "" {
		q.ids[id] = append(q.ids[id], v)
	}
	return v
}

// The method `sent` records that elements are stored.
func (q *orders) sent(vs ...int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, v := range vs {
		q.all[v].sent = true
	}
}

// The method `bar` records that an element was not stored, and cannot be stored later.
func (q *orders) bar(v int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all[v].barred = true; q.all[v].seen {
		q.w.fail("the orders: %d was delivered, and was not sent", v)
	}
}

func (q *orders) send(ctx context.Context, a *actor, k *zsync.Queue[int64], n int) {
	var err error
	vs := []int64{q.fresh("", 0)}
	switch n {
	case 0:
		done := a.doing("sends %d with a priority", vs[0])
		err = k.SendPriority(ctx, a.dice.IntN(2), vs...)
		done()
	case 1:
		due := time.Duration(a.dice.Int64N(int64(a.w.timeout))) - a.w.timeout/4
		done := a.doing("sends %d in %v", vs[0], due)
		err = k.SendAt(ctx, time.Now().Add(due), vs...)
		done()
	case 2:
		q.bar(vs[0])
		id := fmt.Sprint("id", a.dice.IntN(3))
		v := q.fresh(id, 0)
		done := a.doing("sends %d with the ID %s", v, id)
		sent, err := k.SendID(ctx, id, v)
		done()
		if !a.may("SendID", ctx, err) {
			return
		}
		if sent {
			q.sent(v)
		} else {
			q.bar(v)
		}
		return
	case 3:
		done := a.doing("sends %d in a transaction", vs[0])
		_, err = a.s.Txn(ctx, k.SendOp(vs...))
		done()
		a.may("Txn", ctx, err, zsync.ErrLost) // the outcome of the transaction is unknown
		if errors.Is(err, zsync.ErrLost) {
			return
		}
	default:
		for range a.dice.IntN(3) {
			vs = append(vs, q.fresh("", 0))
		}
		done := a.doing("sends %v", vs)
		err = k.Send(ctx, vs...)
		done()
	}
	if a.may("Send", ctx, err) {
		q.sent(vs...)
	}
}

func (q *orders) tryRecv(ctx context.Context, a *actor, k *zsync.Queue[int64]) {
	done := a.doing("tries to receive")
	session := a.s.ID()
	v, ok, err := k.TryRecv(ctx)
	done()
	switch {
	case !a.may("TryRecv", ctx, err):
		q.mu.Lock()
		q.torn++
		q.mu.Unlock()
	case ok:
		q.delivered(a, v)
		q.mu.Lock()
		defer q.mu.Unlock()
		if ctx.Err() != nil || a.s.ID() != session {
			// If ctx has ended, the removal is under way. If the session has ended, its reply may be
			// lost, and another process may have removed the element.
			q.all[v].maybe = true
		} else {
			q.removedLocked(v)
		}
	}
}

// The method `delivered` checks an element that a call has returned, and returns the record of the
// element.
func (q *orders) delivered(a *actor, v int64) *order {
	alive := q.alive()
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.all[v]
	switch {
	case o == nil:
		q.w.fail("the orders: %d was delivered, and no call has sent it", v)
		o = &order{}
		q.all[v] = o
	case o.barred:
		q.w.fail("the orders: %d was delivered, and was not sent", v)
	case o.removed > 0:
		q.w.fail("the orders: %d was delivered to %s after it was removed", v, a)
	case o.taken && slices.Contains(alive, o.session):
		q.w.fail("the orders: %d was delivered to %s, and the session %#x of the Recv that took it lives", v, a, o.session)
	}
	o.seen = true
	return o
}

// The method `alive` returns the leader's sessions, or nil if there is no leader or a member
// applies late.
func (q *orders) alive() []int64 {
	e := q.w.e.Load()
	leader := e.Leader()
	if leader < 0 || q.w.lagging.Load() > 0 {
		return nil
	}
	return e.Server(leader).Sessions()
}

// The method `took` records an element that the program has received from the channel of Recv.
func (q *orders) took(a *actor, v int64) {
	o := q.delivered(a, v)
	q.w.note("%s takes %d", a, v)
	q.mu.Lock()
	defer q.mu.Unlock()
	o.taken, o.session = true, a.s.ID()
}

func (q *orders) removedLocked(v int64) {
	if q.all[v].removed++; q.all[v].removed > 1 {
		q.w.fail("the orders: %d was removed twice", v)
	}
}

// The method `begin` records that the actor a works on a claimed element. No other actor may work
// on an element of the same key.
func (q *orders) begin(a *actor, v int64, attempt int, lost func() bool) *hold {
	o := q.delivered(a, v)
	q.mu.Lock()
	if attempt > maxTries || attempt < o.attempt || attempt == o.attempt && !o.free {
		q.w.fail("the orders: attempt %d of %d comes after attempt %d; the limit is %d", attempt, v, o.attempt, maxTries)
	}
	o.attempt, o.free = attempt, false
	key := keyOf(v)
	if key == "" {
		key = fmt.Sprint("element ", v)
	}
	r := q.keys[key]
	if r == nil {
		r = &resource{w: q.w, name: "/orders " + key, limit: 1}
		q.keys[key] = r
	}
	q.mu.Unlock()
	return r.grant(a, 1, lost)
}

// The method `work` processes elements until ctx ends.
func (q *orders) work(ctx context.Context, a *actor, k *zsync.Queue[int64]) {
	b := &actor{life: a.life, name: a.name + " at work", dice: rand.New(rand.NewPCG(a.dice.Uint64(), a.dice.Uint64()))}
	done := a.doing("works")
	err := k.Work(ctx, 1, func(ctx context.Context, v int64) error {
		d, ok := zsync.DeliveryFrom(ctx)
		if !ok {
			q.w.fail("the orders: the function of Work has no delivery")
			return nil
		}
		h := q.begin(b, v, d.Attempt(), func() bool { return ctx.Err() != nil })
		b.hold()
		h.end()
		switch b.dice.IntN(5) {
		case 0:
			return errOwn
		case 1:
			return zsync.Permanent(errOwn)
		case 2:
			ctx, cancel := b.within()
			defer cancel()
			if q.replace(ctx, b, v, d.Txn) {
				return nil
			}
			return errOwn // Work acknowledges the element if its function returns nil
		default:
			q.mu.Lock()
			defer q.mu.Unlock()
			q.all[v].maybe = true // Work acknowledges the element
			return nil
		}
	})
	done()
	a.may("Work", ctx, err)
}

// The method `settle` works on an element for a while, and then ends the claim in a random way.
func (q *orders) settle(a *actor, d zsync.Delivery[int64], h *hold) {
	a.hold()
	h.end()
	v := d.Value
	ctx, cancel := a.within()
	defer cancel()
	var err error
	switch a.dice.IntN(9) {
	case 0:
		err = d.Nack()
	case 1:
		err = d.NackAfter(time.Duration(a.dice.Int64N(int64(a.w.timeout / 2))))
	case 2:
		q.mu.Lock()
		q.all[v].free = true
		q.mu.Unlock()
		err = d.Return()
	case 3:
		done := a.doing("rejects %d", v)
		err = d.Reject(ctx, "no")
		done()
		a.may("Reject", ctx, err, zsync.ErrLost, zk.ErrNoNode)
		return
	case 4, 5:
		q.replace(ctx, a, v, d.Txn)
		return
	default:
		done, asked := a.doing("acknowledges %d", v), time.Now()
		err := d.Ack(ctx)
		done()
		ok := a.may("Ack", ctx, err, zsync.ErrLost, zk.ErrNoNode)
		if other := h.r.since(h, asked); ok && other != nil {
			q.w.fail("the orders: Ack of %d by %s is nil, and %s has had its key since %v", v, a, other.a, q.w.at(other.since))
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if ok {
			q.removedLocked(v)
		} else if !errors.Is(err, zsync.ErrLost) || errors.Is(err, zsync.ErrClosed) {
			q.all[v].maybe = true
		}
		return
	}
	if err != nil && !errors.Is(err, zsync.ErrLost) && !a.gone() {
		q.w.fail("%s gives %d back: %v", a, v, err)
	}
}

// The method `replace` acknowledges an element and sends another in one transaction. It reports
// whether the transaction is confirmed.
func (q *orders) replace(ctx context.Context, a *actor, v int64, txn func(context.Context, ...any) ([]zk.MultiResponse, error)) bool {
	next := q.fresh("", v)
	ops := []any{zsync.NewQueue[int64](a.s, "/orders", q.options(true)...).SendOp(next)}
	refused := a.dice.IntN(4) == 0
	if refused {
		ops = append(ops, &zk.CreateRequest{Path: "/orders", Acl: zk.WorldACL(zk.PermAll)})
	}
	done := a.doing("replaces %d by %d, refused %v", v, next, refused)
	_, err := txn(ctx, ops...)
	done()
	ok := a.may("Txn", ctx, err, zsync.ErrLost, zk.ErrNoNode, zk.ErrNodeExists)
	switch {
	case ok && refused:
		q.w.fail("the orders: a Txn of %d was applied, and one of its operations cannot be", v)
	case ok:
		q.sent(next)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.removedLocked(v)
	case errors.Is(err, zsync.ErrLost) && !errors.Is(err, zsync.ErrClosed), errors.Is(err, zk.ErrNodeExists):
		q.bar(next)
	default:
		q.mu.Lock()
		defer q.mu.Unlock()
		q.all[v].maybe = true
	}
	return ok
}

// The method `final` receives all remaining elements, and checks the outcome for every element.
func (q *orders) final(_ context.Context, s *zsync.Session) {
	k := zsync.NewQueue[int64](s, "/orders", q.options(false)...)
	ctx, cancel := context.WithTimeout(context.Background(), 100*q.w.timeout)
	defer cancel()
	if err := k.Resume(ctx); err != nil {
		q.w.fail("the orders: at the end Resume: %v", err)
	}
	left := map[int64]int{}
	for l, err := range k.Dead(ctx) {
		if err != nil {
			q.w.fail("the orders: at the end Dead: %v", err)
			break
		}
		v, _ := strconv.ParseInt(string(l.Data), 10, 64)
		left[v]++
	}
	for {
		ctx, cancel := context.WithTimeout(ctx, 3*q.w.timeout+4*time.Second)
		d, err := k.Receive(ctx)
		if err == nil {
			left[d.Value]++
			err = d.Ack(ctx)
		}
		cancel()
		if err != nil {
			q.w.note("at the end: %v", err)
			break
		}
	}
	if st, err := k.Stats(ctx); err != nil || st.Ready+st.Claimed+st.Delayed > 0 || st.Paused {
		q.w.fail("the orders: Stats of the empty queue: %+v, %v", st, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	lost := 0
	for _, v := range slices.Sorted(maps.Keys(q.all)) {
		o, n := q.all[v], left[v]
		old := q.all[o.replaces]
		switch {
		case n > 1, n == 1 && (o.removed > 0 || o.barred):
			q.w.fail("the orders: %d is there %d times at the end; removed %d times, barred %v", v, n, o.removed, o.barred)
		case n == 1 && old != nil && left[o.replaces] > 0:
			q.w.fail("the orders: %d is there at the end, and so is %d, which it replaced", v, o.replaces)
		case n == 0 && o.sent && o.removed == 0 && !o.maybe && !o.taken:
			q.w.note("%d is missing", v)
			lost++
		}
	}
	if lost > q.torn {
		q.w.fail("the orders: %d elements are gone, and only %d calls of TryRecv have failed", lost, q.torn)
	}
	for v := range left {
		if q.all[v] == nil {
			q.w.fail("the orders: %d is there at the end, and no call has sent it", v)
		}
	}
	for id, vs := range q.ids {
		stored := slices.DeleteFunc(slices.Clone(vs), func(v int64) bool { return !q.all[v].sent && !q.all[v].seen && left[v] == 0 })
		if len(stored) > 1 {
			q.w.fail("the orders: the elements %v were all stored with the ID %s", stored, id)
		}
	}
}

func (q *orders) held() []*resource {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.keys))
}

// aBoard matches the path of a bucket. aClaim matches a line of the bucket's data. The expression
// `quoted` matches the data in a dump.
var (
	aBoard = regexp.MustCompile(`^/orders/([bd]-[^/]*)$`)
	aClaim = regexp.MustCompile(`^([0-9a-f]{16}) ([-0-9,]+)`)
	quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// The method `check` checks the holders. It also checks the servers' tree: no two existing marks
// claim the same element.
func (q *orders) check() {
	for _, r := range q.held() {
		r.check()
	}
	if q.w.e.Load().Leader() < 0 || q.w.lagging.Load() > 0 {
		return
	}
	tree := q.w.tree()
	for _, z := range tree {
		if !aBoard.MatchString(z.path) {
			continue
		}
		data, _ := strconv.Unquote(quoted.FindString(z.rest))
		if strings.HasSuffix(z.rest, " bytes)") { // the dump shows only a part of the data
			data = data[:strings.LastIndexAny(data, ",\n")+1]
		}
		by := map[int]string{}
		for line := range strings.Lines(data) {
			m := aClaim.FindStringSubmatch(line)
			if m == nil || !slices.ContainsFunc(tree, func(z znode) bool { return z.path == "/orders-live/"+m[1] }) {
				continue
			}
			for part := range strings.SplitSeq(m[2], ",") {
				if part == "" {
					continue
				}
				from, to, ok := strings.Cut(part, "-")
				if !ok {
					to = from
				}
				for n := number(from); n <= number(to); n++ {
					if by[n] != "" {
						q.w.fail("the orders: number %d of %s is claimed by the marks %s and %s, which both exist: %q", n, z.path, by[n], m[1], data)
					}
					by[n] = m[1]
				}
			}
		}
	}
}

func (q *orders) keeps(path string) bool { return strings.HasPrefix(path, "/orders") }
