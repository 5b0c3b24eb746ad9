package linear

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A mapOp is an operation on one key of a Map and what came of it.
type mapOp struct {
	op  string
	v   int
	old int // CompareAndSwap, CompareAndDelete: the value whose Version was given
}

type mapResult struct {
	v  int
	ok bool
}

var mapModel = porcupine.Model{
	Init: func() any { return 0 }, // 0 is no value
	Step: func(state, in, out any) (bool, any) {
		now, op, r := state.(int), in.(mapOp), out.(mapResult)
		switch op.op {
		case "load":
			return r.v == now, now
		case "store":
			return true, op.v
		case "delete":
			return true, 0
		case "loadorstore":
			if now != 0 {
				return r.ok && r.v == now, now
			}
			return !r.ok, op.v
		case "loadanddelete":
			return r.ok == (now != 0) && r.v == now, 0
		case "swap":
			return r.ok == (now != 0) && r.v == now, op.v
		case "compareandswap":
			if r.ok {
				return now == op.old, op.v
			}
			return now != op.old, now
		case "compareanddelete":
			if r.ok {
				return now == op.old, 0
			}
			return now != op.old, now
		}
		return false, now
	},
}

func TestHammerMapIsLinearizableKeyByKey(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var mu sync.Mutex
		var history []porcupine.Operation
		var wg sync.WaitGroup
		var sessions []*zsync.Session
		next := 0
		until := make(chan struct{})
		for client := range 4 {
			s := suite.Open(t, srv)
			sessions = append(sessions, s)
			m := zsync.NewMap[int](s, "/m")
			r := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			wg.Go(func() {
				var known zsync.Version
				var value int
				for range 12 {
					mu.Lock()
					next++
					op := mapOp{v: next}
					mu.Unlock()
					var res mapResult
					var err error
					ctx := t.Context()
					call := time.Now()
					switch r.IntN(8) {
					case 0:
						op.op = "load"
						res.v, known, err = m.Load(ctx, "k")
						if errors.Is(err, zsync.ErrNoValue) {
							err = nil
						}
						value = res.v
					case 1:
						op.op = "store"
						err = m.Store(ctx, "k", op.v)
					case 2:
						op.op = "delete"
						err = m.Delete(ctx, "k")
					case 3:
						op.op = "loadorstore"
						res.v, res.ok, err = m.LoadOrStore(ctx, "k", op.v)
					case 4:
						op.op = "loadanddelete"
						res.v, res.ok, err = m.LoadAndDelete(ctx, "k")
					case 5:
						op.op = "swap"
						res.v, res.ok, err = m.Swap(ctx, "k", op.v)
					case 6:
						op.op, op.old = "compareandswap", value
						res.ok, err = m.CompareAndSwap(ctx, "k", known, op.v)
					case 7:
						op.op, op.old = "compareanddelete", value
						if value == 0 {
							continue
						}
						res.ok, err = m.CompareAndDelete(ctx, "k", known)
					}
					if err != nil {
						t.Errorf("%s: %v", op.op, err)
						return
					}
					mu.Lock()
					history = append(history, porcupine.Operation{ClientId: client, Input: op, Output: res, Call: call.UnixNano(), Return: time.Now().UnixNano()})
					mu.Unlock()
					time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
				}
			})
		}
		chaosDone := harness.Async(func() error { harness.Chaos(t, srv, rnd, sessions, until); return nil })
		wg.Wait()
		close(until)
		<-chaosDone
		if !porcupine.CheckOperations(mapModel, history) {
			t.Errorf("not linearizable: %v", history)
		}
	})
}
