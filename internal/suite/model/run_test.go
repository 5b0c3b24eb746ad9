package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// What the models have in common, each of which runs
// random programs of all methods of a primitive, and compares what they return with
// what they could return in one process.

// A modelRun is one random program over the public API of a primitive, run by
// several processes while servers lag, connections drop, requests and replies
// are lost, requests are refused, and sessions are cut off until they expire.
type modelRun struct {
	t    *testing.T
	srv  servers
	rnd  *rand.Rand
	ss   []*zsync.Session
	stop chan struct{}
	done sync.WaitGroup

	denies  bool        // some transactions are refused with NoAuth
	refuses bool        // requests are refused at times, with NoAuth
	freezes bool        // followers stand still at times
	crowded bool        // servers often refuse a request because they are overloaded
	barred  atomic.Bool // every transaction is refused with NoAuth, at present

	cuts func(id int64, begin bool) // is told when a session is cut off, and when no more
	sees func(q zktest.Request)     // is told of each request, from hurt on
	bars func(q zktest.Request)     // is told of each request that is refused at random
}

// models runs f with one seed after another: 40, 8 under the race detector, or
// 2,000 in a long run. The first failure ends it and names the seed;
// ZSYNC_TEST_SEED runs that one alone.
func models(t *testing.T, f func(r *modelRun)) {
	t.Helper()
	modelsOf(t, 40, f)
}

// modelsOf is models with another number of seeds in a short run.
func modelsOf(t *testing.T, short int, f func(r *modelRun)) {
	t.Helper()
	modelsOver(t, short, 2000, func(t *testing.T, _ *rand.Rand) servers {
		return single{zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))}
	}, f)
}

// modelsOverEnsembles is modelsOf with ensembles, and 1,000 seeds in a long run.
func modelsOverEnsembles(t *testing.T, short int, f func(r *modelRun)) {
	t.Helper()
	modelsOver(t, short, 1000, func(t *testing.T, d *rand.Rand) servers { return newEnsemble(t, d) }, f)
}

func modelsOver(t *testing.T, short, long int, start func(t *testing.T, d *rand.Rand) servers, f func(r *modelRun)) {
	t.Helper()
	harness.InMemory(t)
	t.Parallel()
	for seed := range harness.Seeds(t, short, min(short, 8), long) {
		harness.VirtualTime(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 7))
			r := &modelRun{t: t, srv: start(t, rnd), rnd: rnd, stop: make(chan struct{}), cuts: func(int64, bool) {}, sees: func(zktest.Request) {}, bars: func(zktest.Request) {}}
			for range 3 {
				r.ss = append(r.ss, r.open(zsync.WithRetry(zsync.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond})))
			}
			f(r)
		})
	}
}

// open opens a session.
func (r *modelRun) open(opts ...zsync.Option) *zsync.Session {
	r.t.Helper()
	return r.srv.open(r.t, opts...)
}

// A modelHistory is what the calls of a model were and returned, in the order of
// time, for porcupine.
type modelHistory[Op any] struct {
	mu    sync.Mutex
	begun time.Time
	ops   []porcupine.Operation
	given int
}

// another returns a number that it has not returned before, for what a call writes.
func (h *modelHistory[Op]) another() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given++
	return h.given
}

// add adds a call. One that failed may still be applied, at any time, and its
// client goes on.
func (h *modelHistory[Op]) add(client int, op Op, call time.Time, failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	back := time.Since(h.begun)
	if failed {
		client, back = 100+len(h.ops), time.Hour
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: int64(call.Sub(h.begun)), Return: int64(back)})
}

func (h *modelHistory[Op]) check(t *testing.T, m porcupine.NondeterministicModel) {
	t.Helper()
	if porcupine.CheckOperationsTimeout(m.ToModel(), h.ops, 0) != porcupine.Ok {
		for _, o := range h.ops {
			t.Logf("%v-%v: %+v", time.Duration(o.Call), time.Duration(o.Return), o.Input)
		}
		t.Error("not linearizable")
	}
}

// hurt begins to do harm, until heal.
func (r *modelRun) hurt(expire bool) {
	r.srv.SetLatency(time.Duration(r.rnd.IntN(3)) * time.Millisecond)
	r.crowded = r.rnd.IntN(4) == 0
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(r.rnd.Uint64(), 8))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return dice.IntN(n)
	}
	r.srv.Intercept(func(q zktest.Request) zktest.Action {
		r.sees(q)
		switch q.Op {
		case zktest.OpConnect, zktest.OpPing, zktest.OpCloseSession:
			return zktest.Pass
		}
		if q.Op == zktest.OpMulti && r.barred.Load() {
			return zktest.Fail(zktest.CodeNoAuth)
		}
		if r.crowded && q.Op != zktest.OpDelete && draw(8) == 0 {
			return zktest.Fail(zktest.CodeThrottled)
		}
		switch draw(100) {
		case 0:
			return zktest.DropRequest
		case 1:
			return zktest.DropReply
		case 2:
			return zktest.Delay(time.Duration(draw(20)) * time.Millisecond)
		case 3:
			if r.denies && q.Op == zktest.OpMulti {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			if draw(4) == 0 && q.Op != zktest.OpDelete {
				return zktest.Fail(zktest.CodeThrottled)
			}
		case 4:
			if r.refuses && draw(3) == 0 {
				r.bars(q)
				return zktest.Fail(zktest.CodeNoAuth)
			}
		}
		return zktest.Pass
	})
	r.srv.hurt(r, draw)
	r.done.Go(func() {
		for {
			select {
			case <-r.stop:
				return
			case <-time.After(time.Duration(draw(60)) * time.Millisecond):
			}
			r.srv.disturb(r, draw)
			id := r.ss[draw(len(r.ss))].ID()
			if expire && draw(12) == 0 {
				// Its holders must know before the servers end the session.
				r.cuts(id, true)
				r.srv.Partition(id)
				r.pass(draw(int(2 * harness.Timeout / time.Millisecond)))
				r.srv.Heal(id)
				r.cuts(id, false)
			} else {
				r.srv.Disconnect(id)
			}
		}
	})
}

// pass waits so many milliseconds, or until heal.
func (r *modelRun) pass(ms int) {
	select {
	case <-r.stop:
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
}

// lives reports whether the servers have not ended a session.
func (r *modelRun) lives(id int64) bool {
	return slices.Contains(r.srv.Sessions(), id)
}

// heal ends the harm.
func (r *modelRun) heal() {
	close(r.stop)
	r.done.Wait()
	r.srv.Intercept(func(q zktest.Request) zktest.Action { r.sees(q); return zktest.Pass })
	r.srv.SetLatency(0)
	r.srv.heal()
}

// dice returns a random source for one goroutine.
func (r *modelRun) dice() *rand.Rand { return rand.New(rand.NewPCG(r.rnd.Uint64(), 9)) }

// cut returns a context that ends early in one case of three.
func cut(t *testing.T, d *rand.Rand) (context.Context, context.CancelFunc) {
	if d.IntN(3) == 0 {
		return context.WithTimeout(t.Context(), time.Duration(d.IntN(40))*time.Millisecond)
	}
	return context.WithTimeout(t.Context(), 5*time.Minute)
}

// refused reports whether err comes from a refusal: NoAuth, the unknown outcome of a transaction whose
// reply was lost and whose log the servers have refused, the mark of a Once whose reply was lost and that
// they have refused to show, or a value that was stored and that they have refused to show. Only the first
// wraps NoAuth.
func (r *modelRun) refused(err error) bool {
	if !r.refuses || errors.Is(err, zk.ErrNoAuth) {
		return r.refuses
	}
	_, why, open := strings.Cut(err.Error(), "it may have been applied: ")
	return strings.Contains(err.Error(), "the mark may have been made: "+zk.ErrNoAuth.Error()) || strings.Contains(err.Error(), "it was stored, and cannot be read: "+zk.ErrNoAuth.Error()) || open && (strings.Contains(why, "without permission to create") || strings.Contains(why, zk.ErrNoAuth.Error()))
}

// mayFail judges an error of a method that waits for nobody.
func (r *modelRun) mayFail(what string, ctx interface{ Err() error }, err error) {
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case r.refused(err):
	default:
		r.t.Errorf("%s: %v", what, err)
	}
}
