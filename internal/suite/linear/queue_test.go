package linear

import (
	"context"
	"math/rand/v2"
	"slices"
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

// A queueOp and a queueAnswer are one operation of a history.
type queueOp struct {
	kind string
	vs   []int // of send
}

type queueAnswer struct {
	v  int
	ok bool
	n  int
}

// A queueState is a queue as one process would have it. Aside are elements that a TryRecv had claimed when its
// session ended. They come back, but others may get later elements before them.
type queueState struct{ elements, aside []int }

// queueModel is a queue of Send and TryRecv. A "lose" is the end of a session during a TryRecv, which had
// perhaps claimed the first element.
var queueModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{queueState{}} },
	Step: func(state, input, output any) []any {
		q, op, a := state.(queueState), input.(queueOp), output.(queueAnswer)
		switch {
		case op.kind == "send":
			return []any{queueState{slices.Concat(q.elements, op.vs), q.aside}}
		case op.kind == "lose" && len(q.elements) > 0:
			return []any{q, queueState{q.elements[1:], slices.Concat(q.aside, q.elements[:1])}}
		case op.kind == "lose", !a.ok && len(q.elements) == 0:
			return []any{q}
		case len(q.elements) > 0 && a.ok && a.v == q.elements[0]:
			return []any{queueState{q.elements[1:], q.aside}}
		case a.ok && slices.Contains(q.aside, a.v):
			return []any{queueState{q.elements, slices.DeleteFunc(slices.Clone(q.aside), func(v int) bool { return v == a.v })}}
		}
		return nil
	},
	Equal: func(a, b any) bool {
		return slices.Equal(a.(queueState).elements, b.(queueState).elements) && slices.Equal(a.(queueState).aside, b.(queueState).aside)
	},
}

// A history records what several clients do at once.
type history struct {
	clock  atomic.Int64
	number atomic.Int64
	mu     sync.Mutex
	ops    []porcupine.Operation // Send and TryRecv; guarded by mu
	looks  []porcupine.Operation // Len and Peek; guarded by mu
	ended  map[int]bool          // by element taken: the session of its taker had ended when it returned; guarded by mu
}

// tryRecv records a TryRecv of s, and each end of its session during it. What comes again because a session
// has ended during its first TryRecv, or during this one, is left out.
func (h *history) tryRecv(t testing.TB, client int, s *zsync.Session, q *zsync.Queue[int]) {
	t.Helper()
	call, id, ends := h.clock.Add(1), s.ID(), s.Stats().Expiries
	v, ok, err := q.TryRecv(t.Context())
	if err != nil {
		t.Errorf("take: %v", err)
	}
	ended := s.ID() != id
	h.mu.Lock()
	defer h.mu.Unlock()
	for range s.Stats().Expiries - ends {
		h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: queueOp{kind: "lose"}, Call: call, Output: queueAnswer{}, Return: h.clock.Add(1)})
	}
	before, again := h.ended[v]
	if ok && again && (before || ended) {
		return
	}
	if ok {
		if h.ended == nil {
			h.ended = make(map[int]bool)
		}
		h.ended[v] = ended
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: queueOp{kind: "take"}, Call: call, Output: queueAnswer{v: v, ok: ok}, Return: h.clock.Add(1)})
}

// checkLooks compares Len and Peek with the calls that are over, or under way, at their time: an element counts
// until it is removed, and Peek passes over an element that a TryRecv has claimed.
func (h *history) checkLooks(t testing.TB) {
	t.Helper()
	for _, look := range h.looks {
		a := look.Output.(queueAnswer)
		least, most, taken, sent := 0, 0, map[int]bool{}, map[int]bool{}
		for _, o := range h.ops {
			op, got := o.Input.(queueOp), o.Output.(queueAnswer)
			begun, over := o.Call < look.Return, o.Return < look.Call
			switch {
			case op.kind == "send" && begun:
				most += len(op.vs)
				for _, v := range op.vs {
					sent[v] = true
				}
				if over {
					least += len(op.vs)
				}
			case op.kind == "take" && got.ok && begun:
				least--
				if over {
					most--
					taken[got.v] = true
				}
			}
		}
		switch look.Input.(queueOp).kind {
		case "len":
			if a.n < least || a.n > most {
				t.Errorf("Len at %d-%d: %d; want %d to %d", look.Call, look.Return, a.n, least, most)
			}
		case "peek":
			if a.ok && (taken[a.v] || !sent[a.v]) || !a.ok && least > 0 {
				t.Errorf("Peek at %d-%d: %d, %v; taken %v, sent %v, at least %d are there", look.Call, look.Return, a.v, a.ok, taken[a.v], sent[a.v], least)
			}
		}
	}
}

func (h *history) do(t testing.TB, client int, op queueOp, f func() (queueAnswer, error)) {
	t.Helper()
	call := h.clock.Add(1)
	a, err := f()
	if err != nil {
		t.Errorf("%s: %v", op.kind, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	o := porcupine.Operation{ClientId: client, Input: op, Call: call, Output: a, Return: h.clock.Add(1)}
	if op.kind == "len" || op.kind == "peek" {
		h.looks = append(h.looks, o)
	} else {
		h.ops = append(h.ops, o)
	}
}

func (h *history) check(t testing.TB) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checkLooks(t)
	if porcupine.CheckOperations(queueModel.ToModel(), h.ops) {
		return
	}
	for _, o := range h.ops {
		t.Logf("client %d, %d-%d: %+v %+v", o.ClientId, o.Call, o.Return, o.Input, o.Output)
	}
	t.Error("the history is not linearizable")
}

func (h *history) send(t testing.TB, client int, q *zsync.Queue[int], rnd *rand.Rand) {
	t.Helper()
	op := queueOp{kind: "send"}
	for range 1 + rnd.IntN(3) {
		op.vs = append(op.vs, int(h.number.Add(1)))
	}
	h.do(t, client, op, func() (queueAnswer, error) { return queueAnswer{}, q.Send(t.Context(), op.vs...) })
}

func TestQueueIsLinearizable(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		var h history
		var clients sync.WaitGroup
		for i := range 4 {
			own := suite.Open(t, srv)
			sessions = append(sessions, own)
			q := zsync.NewQueue[int](own, "/q")
			dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
			clients.Go(func() {
				for range 8 {
					switch dice.IntN(6) {
					case 0, 1:
						h.send(t, i, q, dice)
					case 2, 3:
						h.tryRecv(t, i, own, q)
					case 4:
						h.do(t, i, queueOp{kind: "peek"}, func() (a queueAnswer, err error) {
							a.v, a.ok, err = q.Peek(t.Context())
							return a, err
						})
					case 5:
						h.do(t, i, queueOp{kind: "len"}, func() (a queueAnswer, err error) {
							a.n, err = q.Len(t.Context())
							return a, err
						})
					}
					time.Sleep(time.Duration(dice.IntN(500)) * time.Millisecond)
				}
			})
		}
		harness.UnderChaos(t, srv, rnd, sessions, clients.Wait)
		h.check(t)
	})
}

func TestQueueIsLinearizableWithOneConsumer(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		var h history
		var clients sync.WaitGroup
		var left atomic.Int64
		const producers, sends = 3, 6
		left.Store(producers)
		for i := range producers {
			sessions = append(sessions, suite.Open(t, srv))
			q := zsync.NewQueue[int](sessions[i], "/q")
			dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
			clients.Go(func() {
				for range sends {
					h.send(t, i, q, dice)
					time.Sleep(time.Duration(dice.IntN(500)) * time.Millisecond)
				}
				left.Add(-1)
			})
		}
		sessions = append(sessions, suite.Open(t, srv))
		q := zsync.NewQueue[int](sessions[producers], "/q", zsync.WithPrefetch(1+rnd.IntN(5)))
		dice := rand.New(rand.NewPCG(rnd.Uint64(), 9))
		clients.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ch := q.Recv(ctx)
			seen, session := make(map[int]bool), sessions[producers].ID()
			// next leaves out what comes again because its session ended right after it was taken.
			next := func() (queueAnswer, error) {
				for {
					v := <-ch
					if id := sessions[producers].ID(); !seen[v] || id == session {
						seen[v] = true
						return queueAnswer{v: v, ok: true}, nil
					}
				}
			}
			for n := int64(0); left.Load() > 0 || n < h.number.Load(); n++ {
				h.do(t, producers, queueOp{kind: "take"}, next)
				time.Sleep(time.Duration(dice.IntN(300)) * time.Millisecond)
				for left.Load() > 0 && n+1 >= h.number.Load() {
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
		quiet := make(chan struct{})
		go func() { clients.Wait(); close(quiet) }()
		harness.Hasty(t, srv, rand.New(rand.NewPCG(rnd.Uint64(), 3)), sessions, quiet)
		h.check(t)
	})
}

func TestQueueIsLinearizableThroughServersThatLag(t *testing.T) {
	for seed := range 20 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 35))
			for i, addr := range srv.Addrs() {
				srv.SetLag(addr, time.Duration(i)*time.Second)
			}
			var h history
			var clients sync.WaitGroup
			for i := range 4 {
				q := zsync.NewQueue[int](suite.Open(t, srv), "/q")
				dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
				clients.Go(func() {
					for range 8 {
						if dice.IntN(2) == 0 {
							h.send(t, i, q, dice)
						} else {
							h.do(t, i, queueOp{kind: "take"}, func() (a queueAnswer, err error) {
								a.v, a.ok, err = q.TryRecv(t.Context())
								return a, err
							})
						}
						time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond)
					}
				})
			}
			clients.Wait()
			h.check(t)
		}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
	}
}
