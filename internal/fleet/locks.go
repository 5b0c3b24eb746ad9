package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
)

// This file has the arenas for primitives with holders: Mutex, RWMutex, Semaphore, Election and
// Cond. An actor locks in a random way, uses the hold, and releases it. The file ledger.go records
// and checks the holds.

var arenas = map[string]func(w *world) arena{}

// errOwn is the error that the functions of actors return.
var errOwn = errors.New("the function's own")

// The type `lock` is the arena of one primitive with holders.
type lock struct {
	*resource
	path  string
	below string // parent of the contenders' znodes, relative to path
	of    func(s *zsync.Session, r *resource) *held
}

// The type `held` has a process's value of the primitive, such as a *zsync.Mutex, and functions
// that call its methods.
type held struct {
	ways []way2
	lost func() <-chan struct{}
	cond *zsync.Cond
	txn  func(context.Context, ...any) ([]zk.MultiResponse, error)
	tok  func(context.Context) (int64, error)
	new  func() *held // makes another such value, if each goroutine needs its own
}

// A way2 has the methods for one way to hold n of a resource.
type way2 struct {
	n      int64
	lock   func(context.Context) error
	try    func(context.Context) (bool, error)
	unlock func() error
	do     func(context.Context, func(context.Context) error) error
}

func newLock(w *world, path string, limit int64, of func(s *zsync.Session, r *resource) *held) *lock {
	l := &lock{resource: &resource{w: w, name: path, limit: limit}, path: path, of: of}
	if path == "/semaphore" {
		l.below = "/leases"
	}
	return l
}

// readers is the limit of the resource of an RWMutex. A writer holds the whole limit, and a reader
// holds 1. Programs have fewer readers than that.
const readers = 1000

func init() {
	mutex := func(cond bool, path string) func(w *world) arena {
		return func(w *world) arena {
			return newLock(w, path, 1, func(s *zsync.Session, _ *resource) *held {
				one := func() *held {
					m := zsync.NewMutex(s, path)
					h := &held{ways: []way2{{1, m.Lock, m.TryLock, m.Unlock, m.Do}}, lost: m.Lost, txn: m.Txn, tok: m.Token}
					if cond {
						h.cond = zsync.NewCond(s, path+"-cond", m)
					}
					return h
				}
				h := one()
				if w.apart {
					h.new = one
				}
				return h
			})
		}
	}
	arenas["mutex"] = mutex(false, "/mutex")
	arenas["cond"] = mutex(true, "/locked")
	arenas["rwmutex"] = func(w *world) arena {
		return newLock(w, "/rw", readers, func(s *zsync.Session, _ *resource) *held {
			one := func() *held {
				m := zsync.NewRWMutex(s, "/rw")
				return &held{ways: []way2{{readers, m.Lock, m.TryLock, m.Unlock, m.Do}, {1, m.RLock, m.TryRLock, m.RUnlock, m.RDo}}, lost: m.Lost, txn: m.Txn, tok: m.Token}
			}
			h := one()
			if w.apart {
				h.new = one
			}
			return h
		})
	}
	arenas["semaphore"] = func(w *world) arena {
		limit := 1 + int64(mix(w.seed, 5)%3)
		return newLock(w, "/semaphore", limit, func(s *zsync.Session, _ *resource) *held {
			m := zsync.NewSemaphore(s, "/semaphore", limit)
			h := &held{lost: m.Lost, txn: m.Txn, tok: m.Token}
			for n := int64(1); n <= limit; n++ {
				h.ways = append(h.ways, way2{n, func(ctx context.Context) error { return m.Acquire(ctx, n) },
					func(ctx context.Context) (bool, error) { return m.TryAcquire(ctx, n) }, func() error { return m.Release(n) },
					func(ctx context.Context, f func(context.Context) error) error { return m.Do(ctx, n, f) }})
			}
			return h
		})
	}
	arenas["election"] = func(w *world) arena {
		return newLock(w, "/election", 1, func(s *zsync.Session, _ *resource) *held {
			// Each actor has its own Election: a late Resign releases any leadership that was won
			// through the same value.
			return &held{new: func() *held {
				m := zsync.NewElection(s, "/election")
				run := func(ctx context.Context, f func(context.Context) error) error {
					return m.Run(ctx, func(ctx context.Context) error {
						if err := f(ctx); err != nil {
							return err
						}
						return errOwn // one term is enough
					})
				}
				return &held{ways: []way2{{1, m.Campaign, nil, m.Resign, run}}, lost: m.Lost, txn: m.Txn, tok: m.Token}
			}}
		})
	}
}

func (l *lock) make(s *zsync.Session) any { return l.of(s, l.resource) }

func (l *lock) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*held)
	if k.new != nil {
		k = k.new()
	}
	by := k.ways[a.dice.IntN(len(k.ways))]
	switch n := a.dice.IntN(6); {
	case n < 2:
		if l.function(ctx, a, k, by) {
			return
		}
		// A Wait has failed, and its release of the lock continues in the background. It must not
		// release the actor's next hold.
		ctx, cancel := context.WithTimeout(a.ctx, a.w.timeout)
		defer cancel()
		done := a.doing("locks %s behind a Wait", l.path)
		err := by.lock(ctx)
		done()
		if a.may("Lock of "+l.path, ctx, err, l.mayFail(a)...) {
			l.plainly(ctx, a, k, by)
		}
	case n == 2 && by.try != nil:
		done := a.doing("tries %s", l.path)
		ok, err := by.try(ctx)
		done()
		if a.may("Try of "+l.path, ctx, err) && ok {
			l.plainly(ctx, a, k, by)
		}
	case n == 3 && k.cond != nil:
		done := a.doing("signals %s", l.path)
		ctx, cancel := a.atMost(2 * a.w.timeout)
		defer cancel()
		err := k.cond.Broadcast(ctx)
		if a.dice.IntN(2) == 0 {
			err = k.cond.Signal(ctx)
		}
		done()
		a.may("Signal", ctx, err)
	default:
		done := a.doing("locks %s", l.path)
		err := by.lock(ctx)
		done()
		if a.may("Lock of "+l.path, ctx, err, l.mayFail(a)...) {
			l.plainly(ctx, a, k, by)
		}
	}
}

// The method `plainly` uses a hold that was acquired without a function, and releases it.
func (l *lock) plainly(ctx context.Context, a *actor, k *held, by way2) {
	lost := k.lost()
	h := l.grant(a, by.n, closed(lost))
	struck := false
	if a.w.strikes && !a.w.day && a.dice.IntN(3) == 0 {
		select {
		case a.w.granted <- h:
			struck = true
			if a.w.apart { // another actor of the process waits right behind it
				a.finished.Go(func() { l.neighbour(a) })
			}
		default:
		}
	}
	l.use(ctx, a, k, h)
	if struck {
		a.outlast(lost)
	}
	if k.cond != nil && a.dice.IntN(2) == 0 {
		h.end()
		if !l.wait(a.ctx, a, k) {
			return
		}
		h = l.grant(a, by.n, closed(k.lost()))
	}
	was := h.end()
	done := a.doing("unlocks %s", l.path)
	err := by.unlock()
	done()
	switch {
	case errors.Is(err, zsync.ErrLost) && l.w.strikes: // the release may be the first call that finds the loss
	case err == nil && was && k.cond == nil && by.n == l.limit: // if several readers hold, the release may have ended the hold of another reader
		l.w.fail("%s of %s was lost, and its release is nil", l.path, a)
	case err != nil && (!errors.Is(err, zsync.ErrLost) || !closed(lost)() && k.cond == nil) && !(a.gone() && errors.Is(err, zsync.ErrClosed)):
		l.w.fail("release of %s by %s: %v", l.path, a, err)
	}
}

// The method `neighbour` waits for the same lock behind a, in the same process, through another
// value.
func (l *lock) neighbour(a *actor) {
	b := &actor{life: a.life, name: a.name + "'", dice: rand.New(rand.NewPCG(uint64(l.w.unique()), l.w.seed))}
	time.Sleep(time.Duration(b.dice.Int64N(int64(20 * l.w.latency))))
	k := l.of(a.s, l.resource)
	if k.new != nil {
		k = k.new()
	}
	by := k.ways[0]
	ctx, cancel := context.WithTimeout(a.ctx, 3*l.w.timeout)
	defer cancel()
	done := b.doing("locks %s", l.path)
	err := by.lock(ctx)
	done()
	if b.may("Lock of "+l.path, ctx, err) {
		h := l.grant(b, by.n, closed(k.lost()))
		h.end()
		_ = by.unlock()
	}
}

// The method `function` calls a method such as Do: it holds l until its callback has returned. It
// returns false if a Wait within that function has failed.
func (l *lock) function(ctx context.Context, a *actor, k *held, by way2) (whole bool) {
	ran, whole := false, true
	done := a.doing("does %s", l.path)
	err := by.do(ctx, func(inner context.Context) error {
		done()
		ran = true
		h := l.grantInside(a, by.n, l.toldInside(a, inner, k.lost()))
		l.use(inner, a, k, h)
		if k.cond != nil && a.dice.IntN(2) == 0 {
			h.end()
			if whole = l.wait(inner, a, k); !whole {
				return errOwn
			}
			h = l.grantInside(a, by.n, l.toldInside(a, inner, k.lost()))
			a.nap(a.w.timeout / 8)
		}
		if inner.Err() != nil { // the function sometimes returns late
			a.nap(a.w.timeout / 2)
		}
		h.end()
		if a.dice.IntN(3) == 0 {
			return errOwn
		}
		return nil
	})
	if !ran {
		done()
		a.may("Do of "+l.path, ctx, err, l.mayFail(a)...)
		return whole
	}
	a.may("Do of "+l.path, ctx, err, errOwn, zsync.ErrLost, zsync.ErrClosed, context.Canceled)
	return whole
}

// toldInside returns the field `told` for a hold within a function with the context `inner`.
// Usually, the end of `inner` is the report of a loss. But Close also ends `inner`, without a loss,
// because Close waits for the function. If Close stops waiting, or the session ends earlier, Lost
// reports the loss. A primitive without Lost cannot report a loss after Close has ended `inner`.
// For these primitives, the check is exact only in a quiet program, while Close waits and the
// session is the same. Even a quiet program can lose a session if its members are uneven.
func (l *lock) toldInside(a *actor, inner context.Context, lost <-chan struct{}) func() bool {
	id := a.s.ID()
	return func() bool {
		switch cause := context.Cause(inner); {
		case lost != nil:
			return closed(lost)() || errors.Is(cause, zsync.ErrLost)
		case errors.Is(cause, zsync.ErrClosed) && !errors.Is(cause, zsync.ErrLost):
			return !l.w.quiet || a.closed.Load() || a.s.ID() != id || time.Since(l.w.begun)-time.Duration(a.closing.Load()) >= l.w.timeout
		default:
			return cause != nil
		}
	}
}

// The method `use` makes random calls that only a holder can make.
func (l *lock) use(ctx context.Context, a *actor, k *held, h *hold) {
	a.hold()
	ctx, cancel := context.WithTimeout(ctx, l.w.timeout)
	defer cancel()
	if k.tok != nil && a.dice.IntN(3) == 0 {
		t, err := k.tok(ctx)
		if l.used("Token", ctx, a, h, err) {
			h.wrote(t)
		}
	}
	if k.txn != nil && a.dice.IntN(4) == 0 {
		path := fmt.Sprintf("/written%d", l.w.unique())
		if a.dice.IntN(3) == 0 {
			ctx, cancel = a.atMost(6 * l.w.latency)
			defer cancel()
		}
		rs, err := k.txn(ctx, &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)}, &zk.SetDataRequest{Path: path, Version: -1})
		if ok := l.used("Txn", ctx, a, h, err); ok && rs[1].Stat != nil {
			h.wrote(rs[1].Stat.Mzxid)
		} else if !ok {
			h.r.mu.Lock()
			h.open = append(h.open, path)
			h.r.mu.Unlock()
		}
	}
	if a.dice.IntN(2) == 0 {
		a.hold()
	}
}

func (l *lock) used(what string, ctx context.Context, a *actor, h *hold, err error) bool {
	if errors.Is(err, zsync.ErrLost) && h.told() {
		return false
	}
	return a.may(what+" of "+l.path, ctx, err)
}

// The type `slow` is for a context with a late method Value, as if the scheduler had paused the
// goroutine.
type slow struct {
	context.Context
	d time.Duration
}

func (s slow) Value(key any) any {
	time.Sleep(s.d)
	return s.Context.Value(key)
}

// The method `wait` waits for a signal. It reports whether the actor still holds the lock.
func (l *lock) wait(ctx context.Context, a *actor, k *held) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(a.dice.Int64N(int64(l.w.timeout))))
	if a.dice.IntN(2) == 0 {
		cancel()
		ctx, cancel = context.WithTimeout(ctx, time.Duration(a.dice.Int64N(int64(20*l.w.latency))))
	}
	defer cancel()
	if a.dice.IntN(4) == 0 {
		if a.dice.IntN(2) == 0 {
			cancel()
		}
		ctx = slow{ctx, time.Duration(a.dice.Int64N(int64(l.w.timeout / 8)))}
	}
	done := a.doing("waits for a signal at %s", l.path)
	err := k.cond.Wait(ctx)
	done()
	return a.may("Wait", ctx, err, append(l.mayFail(a), zsync.ErrLost)...)
}

func (l *lock) final(ctx context.Context, s *zsync.Session) {
	for _, h := range slices.Concat(l.past, l.holds) {
		for _, path := range h.open {
			if _, stat, err := s.Get(ctx, path); err == nil {
				h.tokens = append(h.tokens, stat.Mzxid) // the transaction was applied, so h held at that time
			}
		}
	}
	l.ordered()
	if k := l.of(s, l.resource); k.cond != nil { // Signal also cleans up after dead waiters
		if err := k.cond.Signal(ctx); err != nil {
			l.w.fail("Signal at the end: %v", err)
		}
	}
}

func (l *lock) keeps(path string) bool {
	return strings.HasPrefix(path, "/written")
}

// The function `closed` returns a function that reports whether c is closed.
func closed(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}
