package linear

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A valueOp is what one operation was asked, and what it answered. Every write
// writes another number, so the number stands for the Version.
type valueOp struct {
	kind string
	old  int // of a swap: what it expects; of an update: what it was given; 0 is no value
	x    int // what is written
}

type valueAnswer struct {
	x  int  // of a load
	ok bool // of a swap
}

// valueModel is an atomic value.
var valueModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, in, out any) (bool, any) {
		op, answer := in.(valueOp), out.(valueAnswer)
		switch op.kind {
		case "load":
			return answer.x == state, state
		case "store":
			return true, op.x
		case "update":
			return op.old == state, op.x
		}
		if answer.ok != (op.old == state) {
			return false, state
		}
		if answer.ok {
			return true, op.x
		}
		return true, state
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v %+v", in, out) },
}

func TestValueIsLinearizableUnderFaults(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		checkLinearizable(t, srv, rnd, func(sessions []*zsync.Session, quiet <-chan struct{}) {
			harness.Chaos(t, srv, rnd, sessions, quiet)
		})
	})
}

func TestValueIsLinearizableOnServersThatLag(t *testing.T) {
	for seed := range 30 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 35))
			for i, addr := range srv.Addrs() {
				srv.SetLag(addr, time.Duration(i)*time.Second)
			}
			checkLinearizable(t, srv, rnd, func(sessions []*zsync.Session, quiet <-chan struct{}) {
				for {
					select {
					case <-quiet:
						return
					case <-time.After(time.Duration(rnd.IntN(2000)) * time.Millisecond):
						srv.Disconnect(sessions[rnd.IntN(len(sessions))].ID())
					}
				}
			})
		}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
	}
}

func checkLinearizable(t *testing.T, srv *zktest.Server, rnd *rand.Rand, hurt func(sessions []*zsync.Session, quiet <-chan struct{})) {
	sessions := suite.OpenEach(t, srv, 4)
	var clock, number atomic.Int64
	var mu sync.Mutex // guards history
	var history []porcupine.Operation
	var clients sync.WaitGroup
	for i, s := range sessions {
		v := zsync.NewValue[int](s, "/v")
		dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		clients.Go(func() {
			var seen int
			var version zsync.Version
			for range 12 {
				call := clock.Add(1)
				op, answer, err := valueOp{x: int(number.Add(1))}, valueAnswer{}, error(nil)
				switch dice.IntN(4) {
				case 0:
					op.kind = "load"
					answer.x, version, err = v.Load(t.Context())
					if errors.Is(err, zsync.ErrNoValue) {
						err = nil
					}
					seen = answer.x
				case 1:
					op.kind = "store"
					err = v.Store(t.Context(), op.x)
				case 2:
					op.kind, op.old = "swap", seen
					answer.ok, err = v.CompareAndSwap(t.Context(), version, op.x)
				case 3:
					op.kind = "update"
					_, err = v.Update(t.Context(), func(old int) (int, error) { op.old = old; return op.x, nil })
				}
				if err != nil {
					t.Errorf("%s: %v", op.kind, err)
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: i, Input: op, Call: call, Output: answer, Return: clock.Add(1)})
				mu.Unlock()
				time.Sleep(time.Duration(dice.IntN(500)) * time.Millisecond)
			}
		})
	}
	quiet := make(chan struct{})
	go func() { clients.Wait(); close(quiet) }()
	hurt(sessions, quiet)
	if !porcupine.CheckOperations(valueModel, history) {
		for _, o := range history {
			t.Logf("%d-%d: %+v %+v", o.Call, o.Return, o.Input, o.Output)
		}
		t.Error("the history is not linearizable")
	}
}
