package harness

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// This file has the faults for tests over the in-memory server, at a chosen request or at random.
// The faults for real servers are the business of network.go.

// First returns an interceptor. It applies an action to the first request that `match` accepts, and
// passes all other requests.
func First(a zktest.Action, match func(zktest.Request) bool) func(zktest.Request) zktest.Action {
	var done atomic.Bool
	return func(r zktest.Request) zktest.Action {
		if match(r) && done.CompareAndSwap(false, true) {
			return a
		}
		return zktest.Pass
	}
}

// Op matches requests of one kind.
func Op(want zktest.Op) func(zktest.Request) bool {
	return func(r zktest.Request) bool { return r.Op == want }
}

// OneByOne intercepts requests with f, one at a time. With the returned function `read`, a test can
// read variables of f without a race.
func OneByOne(srv *zktest.Server, f func(r zktest.Request) zktest.Action) (read func(func())) {
	var mu sync.Mutex
	srv.Intercept(func(r zktest.Request) zktest.Action {
		mu.Lock()
		defer mu.Unlock()
		return f(r)
	})
	return func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
}

// EachSeed runs f for 40 seeds, for 8 under the race detector, or for 1,000 in a long run. Each run
// has a bubble and a random source of its own. EachSeed stops at the first failure and logs the
// seed; ZSYNC_TEST_SEED runs a single seed.
func EachSeed(t *testing.T, f func(t *testing.T, srv *zktest.Server, rnd *rand.Rand)) {
	t.Helper()
	t.Parallel()
	for seed := range Seeds(t, 40, 8, 1000) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			Bubble(t, func(t *testing.T, srv *zktest.Server) {
				f(t, srv, rand.New(rand.NewPCG(uint64(seed), 2)))
			})
		})
	}
}

// Chaos disturbs sessions at random until the channel `until` is closed: it expires the sessions,
// drops their connections, partitions them for a while, and loses requests and replies. It ends all
// faults before it returns. No other goroutine may use rnd.
func Chaos[S interface{ ID() int64 }](t testing.TB, srv *zktest.Server, rnd *rand.Rand, sessions []S, until <-chan struct{}) {
	t.Helper()
	var mu sync.Mutex
	loss := rnd.Float64() * 0.02
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpConnect || r.Op == zktest.OpPing || r.Op == zktest.OpCloseSession {
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		switch x := rnd.Float64(); {
		case x < loss:
			return zktest.DropRequest
		case x < 2*loss:
			return zktest.DropReply
		case x < 4*loss:
			return zktest.Delay(time.Duration(rnd.IntN(20)) * time.Millisecond)
		}
		return zktest.Pass
	})
	defer srv.Intercept(nil)
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	for {
		select {
		case <-until:
			return
		case <-time.After(time.Duration(draw(1000)) * time.Millisecond):
		}
		id := sessions[draw(len(sessions))].ID()
		if id == 0 {
			continue
		}
		switch draw(6) {
		case 0:
			srv.Expire(id)
		case 1:
			srv.Partition(id)
			select {
			case <-until:
			case <-time.After(time.Duration(draw(20_000)) * time.Millisecond):
			}
			srv.Heal(id)
		default:
			srv.Disconnect(id)
		}
	}
}

// UnderChaos runs f while [Chaos] disturbs sessions.
func UnderChaos[S interface{ ID() int64 }](t testing.TB, srv *zktest.Server, rnd *rand.Rand, sessions []S, f func()) {
	t.Helper()
	until, over := make(chan struct{}), make(chan struct{})
	fate := rand.New(rand.NewPCG(rnd.Uint64(), 0))
	go func() { defer close(over); Chaos(t, srv, fate, sessions, until) }()
	defer func() { // deferred, because f may end the test
		close(until)
		<-over
	}()
	f()
}

// Hasty is like [Chaos], but never cuts off a client for longer than its session timeout. After a
// longer time, other consumers may get elements that Recv has delivered.
func Hasty[S interface{ ID() int64 }](t testing.TB, srv *zktest.Server, rnd *rand.Rand, sessions []S, until <-chan struct{}) {
	t.Helper()
	var mu sync.Mutex
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpConnect || r.Op == zktest.OpPing || r.Op == zktest.OpCloseSession {
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		switch rnd.IntN(100) {
		case 0:
			return zktest.DropRequest
		case 1:
			return zktest.DropReply
		case 2:
			return zktest.Delay(time.Duration(rnd.IntN(20)) * time.Millisecond)
		}
		return zktest.Pass
	})
	defer srv.Intercept(nil)
	for {
		mu.Lock()
		d, victim, expire := time.Duration(rnd.IntN(2000))*time.Millisecond, rnd.IntN(len(sessions)), rnd.IntN(3) == 0
		mu.Unlock()
		select {
		case <-until:
			return
		case <-time.After(d):
		}
		if id := sessions[victim].ID(); expire {
			srv.Expire(id)
		} else {
			srv.Disconnect(id)
		}
	}
}
