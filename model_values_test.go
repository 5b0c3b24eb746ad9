package zsync_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
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
						nap(d, 20)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		h.check(r.t, int64Model)
	})
}

// mayFail judges an error of a method that waits for nobody.
func (r *modelRun) mayFail(what string, ctx interface{ Err() error }, err error) {
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case r.refuses && errors.Is(err, zk.ErrNoAuth):
	default:
		r.t.Errorf("%s: %v", what, err)
	}
}
