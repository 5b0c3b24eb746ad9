package model

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

// An int64Op is a call of a method of an Int64, and what it has returned.
type int64Op struct {
	op     string
	a, b   int64
	maybe  bool // it failed: it may have been applied, or will be
	result int64
	ok     bool
}

// int64Model is an Int64 as one process would have it: a number, and 0 at first.
var int64Model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{int64(0)} },
	Step: func(state, input, _ any) []any {
		now, op := state.(int64), input.(int64Op)
		next, right := now, true
		switch op.op {
		case "load":
			right = op.result == now
		case "store":
			next = op.a
		case "add":
			next, right = now+op.a, op.result == now+op.a
		case "swap":
			next, right = op.a, op.result == now
		case "cas":
			if right = op.ok == (now == op.a); now == op.a {
				next = op.b
			}
		}
		switch {
		case op.maybe:
			return []any{now, next}
		case right:
			return []any{next}
		}
		return nil
	},
}

func TestModelOfInt64(t *testing.T) {
	models(t, func(r *modelRun) {
		h := modelHistory[int64Op]{begun: time.Now()}
		r.refuses = r.rnd.IntN(4) == 0
		r.hurt(true)
		var wg sync.WaitGroup
		for i, s := range r.ss {
			shared := zsync.NewInt64(s, "/n")
			for j := range 2 {
				d := r.dice()
				wg.Go(func() {
					for range 5 {
						n := shared
						if d.IntN(3) == 0 {
							n = zsync.NewInt64(s, "/n")
						}
						ctx, cancel := cut(r.t, d)
						op := int64Op{a: int64(d.IntN(3)), b: int64(d.IntN(3))}
						call := time.Now()
						var err error
						switch d.IntN(5) {
						case 0:
							op.op = "load"
							op.result, err = n.Load(ctx)
						case 1:
							op.op = "store"
							err = n.Store(ctx, op.a)
						case 2:
							op.op = "add"
							op.result, err = n.Add(ctx, op.a)
						case 3:
							op.op = "swap"
							op.result, err = n.Swap(ctx, op.a)
						case 4:
							op.op = "cas"
							op.ok, err = n.CompareAndSwap(ctx, op.a, op.b)
						}
						if op.maybe = err != nil; op.maybe {
							r.mayFail(op.op, ctx, err)
						}
						h.add(2*i+j, op, call, op.maybe)
						cancel()
						harness.Nap(d, 20)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		h.check(r.t, int64Model)
	})
}

// errUneven is what the function of an Update says of an uneven number.
var errUneven = errors.New("uneven")

// A numberOp is a call of a method of a Value. Every write writes another number,
// which so stands for the Version; 0 is no value.
type numberOp struct {
	op    string
	old   int // of a swap: what it expects; of an update: what it was given
	x     int // what is written, or was loaded
	maybe bool
	ok    bool
}

var numberModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{0} },
	Step: func(state, input, _ any) []any {
		now, op := state.(int), input.(numberOp)
		next, right := now, true
		switch op.op {
		case "load":
			right = op.x == now
		case "store":
			next = op.x
		case "swap":
			if right = op.ok == (now == op.old); now == op.old {
				next = op.x
			}
		case "update":
			next, right = op.x, op.old == now
		case "update of an uneven number":
			right = op.old == now
		}
		switch {
		case op.maybe:
			return []any{now, next}
		case right:
			return []any{next}
		}
		return nil
	},
}

func TestModelOfValue(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		h := modelHistory[numberOp]{begun: time.Now()}
		r.refuses, r.freezes = r.rnd.IntN(4) == 0, r.rnd.IntN(2) == 0
		watching, stop := context.WithCancel(t.Context())
		var watched sync.WaitGroup
		last := make([]int, len(r.ss))
		for i, s := range r.ss {
			watched.Go(func() {
				seen := make(map[int]bool)
				for x := range zsync.NewValue[int](s, "/v").Watch(watching) {
					if last[i] = x; seen[x] {
						t.Errorf("Watch goes back to %d", x)
					}
					seen[x] = true
				}
				if watching.Err() == nil && !r.refuses {
					t.Error("Watch has ended")
				}
			})
		}
		r.hurt(true)
		var wg sync.WaitGroup
		for i, s := range r.ss {
			shared := zsync.NewValue[int](s, "/v")
			for j := range 2 {
				d := r.dice()
				wg.Go(func() {
					var version zsync.Version
					var known int
					for range 5 {
						v := shared
						if d.IntN(3) == 0 {
							v = zsync.NewValue[int](s, "/v")
						}
						ctx, cancel := cut(t, d)
						op := numberOp{x: h.another()}
						call := time.Now()
						var err error
						switch d.IntN(5) {
						case 0, 1:
							op.op = "load"
							var now zsync.Version
							op.x, now, err = v.Load(ctx)
							if errors.Is(err, zsync.ErrNoValue) {
								err = nil
							}
							if err == nil {
								version, known = now, op.x
							}
						case 2:
							op.op = "store"
							err = v.Store(ctx, op.x)
						case 3:
							op.op, op.old = "swap", known
							op.ok, err = v.CompareAndSwap(ctx, version, op.x)
						case 4:
							op.op = "update"
							fussy := d.IntN(2) == 0
							_, err = v.Update(ctx, func(old int) (int, error) {
								if op.old = old; fussy && old%2 == 1 {
									return 0, errUneven
								}
								return op.x, nil
							})
							if errors.Is(err, errUneven) {
								op.op, err = "update of an uneven number", nil
							}
						}
						if op.maybe = err != nil; op.maybe {
							r.mayFail(op.op, ctx, err)
						}
						h.add(2*i+j, op, call, op.maybe)
						cancel()
						harness.Nap(d, 20)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		h.check(t, numberModel)
		time.Sleep(time.Minute)
		now, _, err := zsync.NewValue[int](r.open(), "/v").Load(t.Context())
		if err != nil && !errors.Is(err, zsync.ErrNoValue) {
			t.Error(err)
		}
		stop()
		watched.Wait()
		for _, x := range last {
			if x != now && !r.refuses {
				t.Errorf("Watch ended with %d; the value is %d", x, now)
			}
		}
	})
}
