package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zsync/zsync"
)

// This file has the records of a program: the holds of its resources, and the calls of its
// registers. From these records, the program checks that no resource has too many holders, that
// tokens grow, and that the calls of a register are linearizable. The arenas call the library.

// The type `resource` is something that processes hold. At any time, its holds add up to at most
// limit. The program records here only the reports of the library.
type resource struct {
	w     *world
	name  string
	limit int64

	mu     sync.Mutex
	past   []*hold     // holds that ended some time ago; guarded by mu
	holds  []*hold     // the other holds, in the order of their grants; guarded by mu
	struck time.Time   // time of a stranger's last deletion here; guarded by mu
	copied []time.Time // the times at which a stranger replaced a znode here by a copy; guarded by mu
}

// The type `hold` is the part of a resource that one goroutine holds.
type hold struct {
	r      *resource
	a      *actor
	n      int64
	since  time.Time
	told   func() bool // reports whether the library has reported a loss to the holder
	over   bool        // guarded by resource.mu
	ended  time.Time   // time of the hold's end; guarded by resource.mu
	gone   time.Time   // time at which a stranger deleted the hold's znode; guarded by resource.mu
	copied bool        // the stranger has put a copy in place of the znode; guarded by resource.mu
	open   []string    // znodes of transactions whose outcome is unknown; guarded by resource.mu
	tokens []int64     // its fencing tokens and the zxids of its writes; they grow from hold to hold; guarded by resource.mu
}

// The method `grant` records that the actor a holds n of r.
func (r *resource) grant(a *actor, n int64, told func() bool) *hold {
	h := &hold{r: r, a: a, n: n, since: time.Now(), told: told}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retire()
	r.holds = append(r.holds, h)
	r.w.note("%s holds %d of %s", a, n, r.name)
	r.checkLocked()
	return h
}

// A function for which Close waits may take another hold. grantInside calls grant for that hold.
func (r *resource) grantInside(a *actor, n int64, told func() bool) *hold {
	h := r.grant(a, n, told)
	a.functions.Store(h, true)
	return h
}

func (r *resource) held() []*resource { return []*resource{r} }

// The method `retire` moves the holds that ended long ago to `past`. Only the method `ordered` uses
// these holds.
func (r *resource) retire() {
	r.holds = slices.DeleteFunc(r.holds, func(h *hold) bool {
		old := h.over && time.Since(h.ended) > 2*r.w.timeout
		if old {
			r.past = append(r.past, h)
		}
		return old
	})
}

// The method `end` records the end of h. Call it before the actor releases h, or before the
// function of h returns. It reports whether the library has reported the loss of h.
func (h *hold) end() (lost bool) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	h.r.checkLocked()
	lost = h.told()
	h.over, h.ended = true, time.Now()
	h.a.functions.Delete(h)
	h.r.w.note("%s gives up %s, lost %v", h.a, h.r.name, lost)
	return lost
}

// The method `believes` reports whether h is a current hold: its process is alive, h has not ended,
// and the library has not reported a loss.
func (h *hold) believes() bool { return !h.over && !h.a.life.crashed.Load() && !h.told() }

// mayFail returns the errors with which an action may fail. A call may fail with ErrDeadlock after
// a loss, if the lost hold has not ended or has ended a short time ago. After a short time, a Wait
// may still be releasing the hold.
func (r *resource) mayFail(a *actor) (errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.holds {
		if h.a.life == a.life && h.told() && (!h.over || time.Since(h.ended) < 3*r.w.timeout/2) {
			errs = append(errs, zsync.ErrDeadlock)
		}
	}
	return errs
}

// The method `check` fails if the holds exceed the limit.
func (r *resource) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkLocked()
}

func (r *resource) checkLocked() {
	var sum int64
	var who string
	for _, h := range r.holds {
		if h.believes() {
			sum += h.n
			if !h.gone.IsZero() && time.Since(h.gone) > 3*r.w.timeout/2 {
				r.w.fail("%s: a loss is told: the znode of %s was deleted at %v, and it still holds", r.name, h.a, r.w.at(h.gone))
			}
			who += fmt.Sprintf(" %s(%d since %v)", h.a, h.n, r.w.at(h.since))
		}
	}
	if sum > r.limit && !r.w.excused(r.struck) {
		r.w.fail("%s: at most one holder: %d of %d are held, by%s", r.name, sum, r.limit, who)
	}
}

// The method `since` returns a hold that was granted after h and before t, or nil.
func (r *resource) since(h *hold, t time.Time) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.holds {
		if o != h && o.since.After(h.since) && o.since.Before(t) {
			return o
		}
	}
	return nil
}

// The method `strike` records that a stranger has deleted a znode of r. Until the watch event
// reaches the holder, its hold may overlap with the next hold. If `copied` is true, the stranger has
// also created a copy of the znode.
func (r *resource) strike(copied bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.struck = time.Now(); copied {
		r.copied = append(r.copied, r.struck)
	}
}

// wasCopied reports whether a stranger may have replaced the znode of h by a copy. Then the servers
// may apply a transaction of h although its znode is gone, until the library learns of the loss.
func (r *resource) wasCopied(h *hold) bool {
	return slices.ContainsFunc(r.copied, func(t time.Time) bool {
		return t.After(h.since.Add(-r.w.timeout)) && (!h.over || !t.After(h.ended)) // the grant may have been on its way for a while
	})
}

// lastStrike returns the time of the last strike.
func (r *resource) lastStrike() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.struck
}

// The method `deleted` records that a stranger has just deleted the znode of h. If `copied` is
// true, the stranger has also created a copy of the znode.
func (h *hold) deleted(copied bool) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	h.gone, h.copied = time.Now(), copied
}

// deletedBefore reports whether the znode of h was deleted before t and not replaced with a copy.
// Other clients cannot distinguish a copy of a consumer's mark from the original. So they do not
// claim the elements of that consumer.
func (h *hold) deletedBefore(t time.Time) bool {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return !h.gone.IsZero() && h.gone.Before(t) && !h.copied
}

// The method `wrote` records the zxid of a write of the holder.
func (h *hold) wrote(zxid int64) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if !h.over && !h.told() { // if h is over, a later hold of the process may have made the write
		h.tokens = append(h.tokens, zxid)
	}
}

// The method `ordered` is called at the end. It checks that tokens and the zxids of writes grow in
// the order of the grants.
func (r *resource) ordered() {
	var before int64
	var newest *hold // the hold with this token or write
	all := append(r.past, r.holds...)
	slices.SortStableFunc(all, func(a, b *hold) int { return a.since.Compare(b.since) })
	for _, h := range all {
		if h.n < r.limit || r.wasCopied(h) {
			continue // holds of readers and of single permits overlap
		}
		for _, z := range h.tokens {
			if z < before {
				r.w.fail("%s: token or write %d of %s, which held from %v to %v, and before that %d of %s, which held from %v to %v", r.name, z, h.a, r.w.at(h.since), r.w.at(h.ended),
					before, newest.a, r.w.at(newest.since), r.w.at(newest.ended))
			}
		}
		for _, z := range h.tokens {
			if z > before {
				before, newest = z, h
			}
		}
	}
}

// The type `register` records all calls that read or write one stored value.
type register struct {
	w    *world
	name string

	mu  sync.Mutex
	ops [][]porcupine.Operation // by era of the ensemble; guarded by mu
}

// A regOp is a call. No two calls write the same value.
type regOp struct {
	kind  string // load, store, swap, cas, add, delete
	arg   int64
	old   int64 // the expected value of cas
	out   int64 // result of load, add and swap
	ok    bool  // the result of cas
	maybe bool  // the call failed: the servers may have applied it, or may apply it later, or never
}

// registerModel is the model of a register. In the model, a failed call is applied or not.
var registerModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{int64(0)} },
	Step: func(state, input, _ any) []any {
		now, op := state.(int64), input.(regOp)
		next, right := now, true
		switch op.kind {
		case "load":
			right = op.out == now
		case "store":
			next = op.arg
		case "swap":
			next, right = op.arg, op.out == now
		case "add":
			next, right = now+op.arg, op.out == now+op.arg
		case "delete":
			next = 0
		case "cas":
			if right = op.ok == (now == op.old); now == op.old {
				next = op.arg
			}
		}
		switch {
		case op.maybe && next != now:
			return []any{now, next}
		case op.maybe || right:
			return []any{next}
		}
		return nil
	},
}).ToModel()

// The method `did` records a call of the actor a. The actor made the call at the time `began`. At
// the end of the program, a is nil.
func (g *register) did(a *actor, op regOp, began time.Time, era int, err error) {
	now := g.w.era()
	if op.maybe = err != nil || era != now; op.maybe && op.kind == "load" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.ops) <= now {
		g.ops = append(g.ops, nil)
	}
	back := int64(time.Since(g.w.begun))
	if op.maybe {
		back = int64(time.Hour) // the request of a failed call may arrive at any later time
		if g.w.day {
			back = int64(time.Since(g.w.begun) + 8*g.w.timeout) // the longest delay of a request by a fault
		}
	}
	ops := []regOp{op}
	if g.w.squats && op.maybe { // the servers may remove the value that this call stored, but no other value
		gone := regOp{kind: "cas", old: op.arg, maybe: true}
		if op.kind == "add" {
			gone = regOp{kind: "delete", maybe: true}
		}
		ops = append(ops, gone)
	}
	for era := era; era <= now; era++ {
		for _, op := range ops {
			g.ops[era] = append(g.ops[era], porcupine.Operation{ClientId: len(g.ops[era]), Input: op, Call: int64(began.Sub(g.w.begun)), Return: back})
		}
	}
	g.w.note("%v %s: %+v, begun %v: %v", a, g.name, op, g.w.at(began), err)
}

// The method `explain` is called at the end. It checks that the calls are linearizable: some order
// of the calls explains their results. If many calls have failed, the search for an order may take
// too long. So the search runs in real time. After a second without a failure, explain stops the
// search.
func (g *register) explain() {
	for _, ops := range g.ops {
		if porcupine.CheckOperationsTimeout(registerModel, ops, time.Second) != porcupine.Illegal {
			continue
		}
		text := ""
		for _, o := range ops {
			text += fmt.Sprintf("\n      %v to %v: %+v", time.Duration(o.Call), time.Duration(o.Return), o.Input)
		}
		g.w.fail("%s: what was confirmed is so, once: no order of these calls explains what they returned:%s", g.name, text)
	}
}
