package model

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

// A tableOp is a call of a method of a Map of two keys. Every write writes another
// number, and 0 is no key.
type tableOp struct {
	op    string
	key   int // 0 or 1
	old   int // whose Version was given
	x     int // what is written
	maybe bool
	ok    bool
	v     int    // what was loaded, or Len
	all   [2]int // Range
}

var tableKeys = [2]string{"a", "b/%"}

var tableModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{[2]int{}} },
	Step: func(state, input, _ any) []any {
		table, op := state.([2]int), input.(tableOp)
		now, next, right := table[op.key], table[op.key], true
		switch op.op {
		case "load":
			right = op.v == now
		case "store":
			next = op.x
		case "delete":
			next = 0
		case "loadorstore":
			if right = op.ok == (now != 0) && (!op.ok || op.v == now); now == 0 {
				next = op.x
			}
		case "loadanddelete":
			next, right = 0, op.ok == (now != 0) && op.v == now
		case "swap":
			next, right = op.x, op.ok == (now != 0) && op.v == now
		case "compareandswap":
			if right = op.ok == (now == op.old); now == op.old {
				next = op.x
			}
		case "compareanddelete":
			if right = op.ok == (now == op.old); now == op.old {
				next = 0
			}
		case "range":
			right = op.all == table
		case "len":
			n := 0
			for _, x := range table {
				if x != 0 {
					n++
				}
			}
			right = op.v == n
		}
		after := table
		after[op.key] = next
		switch {
		case op.maybe && after != table:
			return []any{table, after}
		case op.maybe:
			return []any{table}
		case right:
			return []any{after}
		}
		return nil
	},
}

// tableCall makes one random call; known is what the caller has loaded of a key,
// and its Version.
func tableCall(ctx context.Context, m *zsync.Map[int], which int, op *tableOp, known *tableKnown) (err error) {
	key := tableKeys[op.key]
	switch which {
	case 0, 1:
		op.op = "load"
		var version zsync.Version
		op.v, version, err = m.Load(ctx, key)
		if errors.Is(err, zsync.ErrNoValue) {
			err = nil
		}
		if err == nil {
			known.v[op.key], known.version[op.key] = op.v, version
		}
	case 2:
		op.op = "store"
		err = m.Store(ctx, key, op.x)
	case 3:
		op.op = "delete"
		err = m.Delete(ctx, key)
	case 4:
		op.op = "loadorstore"
		op.v, op.ok, err = m.LoadOrStore(ctx, key, op.x)
	case 5:
		op.op = "loadanddelete"
		op.v, op.ok, err = m.LoadAndDelete(ctx, key)
	case 6:
		op.op = "swap"
		op.v, op.ok, err = m.Swap(ctx, key, op.x)
	case 7, 8:
		op.op, op.old = "compareandswap", known.v[op.key]
		op.ok, err = m.CompareAndSwap(ctx, key, known.version[op.key], op.x)
	case 9:
		op.op, op.old = "compareanddelete", known.v[op.key]
		if op.old == 0 { // of no key there is no Version
			op.op = "delete"
			return m.Delete(ctx, key)
		}
		op.ok, err = m.CompareAndDelete(ctx, key, known.version[op.key])
	case 10, 11:
		op.op = "range"
		err = m.Range(ctx, func(key string, v int) bool {
			for i, k := range tableKeys {
				if k == key {
					op.all[i] = v
				}
			}
			return true
		})
	case 12:
		op.op = "len"
		op.v, err = m.Len(ctx)
	}
	return err
}

type tableKnown struct {
	v       [2]int
	version [2]zsync.Version
}

func TestModelOfMap(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		h := modelHistory[tableOp]{begun: time.Now()}
		r.refuses, r.freezes = r.rnd.IntN(4) == 0, r.rnd.IntN(2) == 0
		watching, stop := context.WithCancel(t.Context())
		var watched sync.WaitGroup
		last := make([]map[string]int, len(r.ss))
		for i, s := range r.ss {
			watched.Go(func() {
				was := make(map[string]int)
				seen := make(map[int]bool) // numbers that were there, and are not any more
				for all := range zsync.NewMap[int](s, "/m").Watch(watching) {
					for key, x := range all {
						if was[key] != x && seen[x] {
							t.Errorf("Watch goes back to %d", x)
						}
						seen[x] = true
					}
					was, last[i] = all, all
				}
				if watching.Err() == nil && !r.refuses {
					t.Error("Watch has ended")
				}
			})
		}
		r.hurt(true)
		var wg sync.WaitGroup
		for i, s := range r.ss {
			shared := zsync.NewMap[int](s, "/m")
			for j := range 2 {
				d := r.dice()
				wg.Go(func() {
					var known tableKnown
					for range 5 {
						m := shared
						if d.IntN(3) == 0 {
							m = zsync.NewMap[int](s, "/m")
						}
						ctx, cancel := cut(t, d)
						call, which := time.Now(), d.IntN(14)
						if which == 13 { // Clear deletes each key, and not in one step
							err := m.Clear(ctx)
							if err != nil {
								r.mayFail("clear", ctx, err)
							}
							for key := range tableKeys {
								h.add(2*i+j+10*(key+1), tableOp{op: "delete", key: key, maybe: err != nil}, call, err != nil)
							}
						} else {
							op := tableOp{key: d.IntN(2), x: h.another()}
							err := tableCall(ctx, m, which, &op, &known)
							if op.maybe = err != nil; op.maybe {
								r.mayFail(op.op, ctx, err)
							}
							h.add(2*i+j, op, call, op.maybe)
						}
						cancel()
						harness.Nap(d, 20)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		h.check(t, tableModel)
		time.Sleep(time.Minute)
		now := make(map[string]int)
		for e, err := range zsync.NewMap[int](r.open(), "/m").All(t.Context()) {
			harness.Must(t, err)
			now[e.Key] = e.Value
		}
		stop()
		watched.Wait()
		for _, all := range last {
			if !maps.Equal(all, now) && !r.refuses {
				t.Errorf("Watch ended with %v; the map is %v", all, now)
			}
		}
	})
}
