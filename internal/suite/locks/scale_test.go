package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// memory is what the heap and the stacks take, after a collection.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// A throng is many goroutines, each with a Mutex of its own, that want one path.
type throng struct {
	sessions []*zsync.Session
	got      sync.WaitGroup
	cancel   context.CancelFunc
}

// gather has n goroutines wait in the line at path, in which somebody else holds
// the lock, and returns when all stand there.
func gather(t *testing.T, srv *zktest.Server, path string, sessions, n int) (c *throng, took time.Duration) {
	t.Helper()
	c = &throng{}
	for range sessions {
		c.sessions = append(c.sessions, suite.Open(t, srv))
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	start := time.Now()
	for i := range n {
		m := zsync.NewMutex(c.sessions[i%sessions], path)
		c.got.Go(func() {
			if m.Lock(ctx) == nil {
				m.Unlock()
			}
		})
	}
	look := suite.Open(t, srv)
	for {
		stat, err := inside.Live(t, look).Exists(t.Context(), path)
		harness.Must(t, err)
		if stat != nil && int(stat.NumChildren) == n+1 {
			return c, time.Since(start)
		}
		time.Sleep(20 * time.Millisecond) // real time: the test measures how long thousands of waiters take
		if time.Since(start) > time.Minute {
			t.Fatalf("after a minute %d of %d stand in the line", stat.NumChildren-1, n)
		}
	}
}

func TestThousandsOfWaitersStandInOneLineAndNoSessionIsLost(t *testing.T) {
	sets := []struct{ n, sessions int }{{500, 1}, {200, 10}}
	if harness.Long() {
		sets = []struct{ n, sessions int }{{10_000, 1}, {1000, 50}}
	}
	for _, set := range sets {
		n, sessions := set.n, set.sessions
		srv := zktest.Start(t, harness.Patient)
		holder := suite.Open(t, srv)
		m := zsync.NewMutex(holder, "/crowd")
		harness.Must(t, m.Lock(t.Context()))
		before, goroutines := memory(), runtime.NumGoroutine()
		c, took := gather(t, srv, "/crowd", sessions, n)
		harness.Eventually(t, func() error { // those who came last have asked who is ahead of them, and watch that one
			waiters := 0
			for _, s := range c.sessions {
				waiters += int(s.Stats().Waiters)
			}
			if waiters < n {
				return fmt.Errorf("%d wait of %d", waiters, n)
			}
			if more := runtime.NumGoroutine() - goroutines; more > n+n/20+20*sessions {
				return fmt.Errorf("%d wait in %d goroutines", n, more)
			}
			return nil
		})
		each := int64(memory()-before) / int64(n)
		more := float64(runtime.NumGoroutine()-goroutines) / float64(n)
		standing := srv.Counts()
		start := time.Now()
		harness.Must(t, m.Unlock())
		c.got.Wait()
		drained := time.Since(start)
		t.Logf("%d waiters of %d sessions: in line after %v, %d bytes and %.2f goroutines each; %v for a hand-over; %v", n, sessions, took, each, more, drained/time.Duration(n), srv.Counts().Sub(standing).Requests)
		if took > 10*time.Second {
			t.Errorf("%d waiters of %d sessions were in line after %v", n, sessions, took)
		}
		for _, s := range c.sessions {
			if e := s.Stats().Expiries; e != 0 {
				t.Errorf("a session was lost")
			}
			s.Close()
		}
		c.cancel()
	}
}

func TestAHandOverAmongTheWaitersOfOneSessionCostsOneListing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 300
		m := zsync.NewMutex(suite.Open(t, srv), "/crowd")
		harness.Must(t, m.Lock(t.Context()))
		s := suite.Open(t, srv)
		var got []<-chan error
		for range n {
			w := zsync.NewMutex(s, "/crowd")
			got = append(got, harness.Async(func() error { return errors.Join(w.Lock(t.Context()), w.Unlock()) }))
		}
		synctest.Wait()
		before := srv.Counts()
		harness.Must(t, m.Unlock())
		for _, c := range got {
			harness.Must(t, <-c)
		}
		if lists := srv.Counts().Sub(before).Requests["getChildren2"]; lists > n {
			t.Errorf("%d hand-overs cost %d listings: one for each would do", n, lists)
		}
	})
}

// inUse is what the heap holds after a collection, to the byte.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// stacks is what the stacks of all goroutines take.
func stacks() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackInuse
}

// Besides its own, whose stack is counted apart, and its znode in the test server.
func TestAGoroutineThatWaitsForAMutexCostsNoOtherAndFourKilobytes(t *testing.T) {
	n := 6000 // of fewer, maps that have just grown count for much
	if harness.Long() {
		n = 10_000
	}
	const watch = 150 // about what the test server keeps of a watch, on each waiter's znode
	for _, each := range []bool{false, true} {
		// Maps and buffers keep the size for the most requests that were under way at once, which differs
		// by chance. That only adds to the cost of a waiter, so the least of some measurements counts.
		least := waiterCost(t, n, each)
		for try := 1; try < 6 && least > 4<<10+watch; try++ {
			least = min(least, waiterCost(t, n, each))
		}
		if !harness.UnderRace && least > 4<<10+watch {
			t.Errorf("%d bytes a waiter, a Mutex each: %t", least, each)
		}
	}
}

// waiterCost returns what the heap holds for each of n goroutines that wait for a Mutex. They share a
// value, or have one each.
func waiterCost(t *testing.T, n int, each bool) (cost int64) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		warm := make(chan struct{})
		for range 2 * n { // what the runtime keeps of goroutines that have ended is there already
			go func() { <-warm }()
		}
		synctest.Wait()
		close(warm)
		synctest.Wait()
		s := suite.Open(t, srv)
		m := zsync.NewMutex(suite.Open(t, srv), "/crowd")
		harness.Must(t, m.Lock(t.Context()))
		servers := int64(0)
		if each {
			before := inUse()
			for range n {
				guid := znodes.NewGUID()
				err := znodes.CreateEphemeral(t.Context(), inside.Live(t, s), &znodes.Creation{Dir: znodes.Dir{Path: "/others"}, Paths: []string{znodes.ChildPath("/others", znodes.ProtectedName(guid, "lock-"))}, GUID: guid})
				harness.Must(t, err)
			}
			servers = int64(inUse()-before) / int64(n)
		}
		shared := zsync.NewMutex(s, "/crowd")
		ctx, cancel := context.WithCancel(t.Context())
		heap, stack, goroutines := inUse(), stacks(), runtime.NumGoroutine()
		var waiting sync.WaitGroup
		for range n {
			waiting.Go(func() {
				m := shared
				if each {
					m = zsync.NewMutex(s, "/crowd")
				}
				m.Lock(ctx)
			})
		}
		synctest.Wait()
		cost = int64(inUse()-heap)/int64(n) - servers
		if more := runtime.NumGoroutine() - goroutines; more > n+10 {
			t.Errorf("%d goroutines wait in %d, a Mutex each: %t", n, more, each)
		}
		t.Logf("%d bytes a waiter, a Mutex each: %t; and %d for its stack, %d for its znode in the server", cost, each, int64(stacks()-stack)/int64(n), servers)
		cancel()
		waiting.Wait()
	})
	return cost
}

func TestAHeldLockCostsNoGoroutineAndAtMost2304Bytes(t *testing.T) {
	const n = 1000
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		path := func(kind string, i int) string { return fmt.Sprintf("/%s/%04d", kind, i) }
		grown := func(f func(i int)) int64 {
			before := inUse()
			for i := range n {
				f(i)
				time.Sleep(20 * time.Millisecond) // what is held is watched then
			}
			synctest.Wait()
			return int64(inUse()-before) / n
		}
		servers := grown(func(i int) { // the same znodes
			guid := znodes.NewGUID()
			err := znodes.CreateEphemeral(t.Context(), inside.Live(t, s), &znodes.Creation{Dir: znodes.Dir{Path: path("none", i)}, Paths: []string{znodes.ChildPath(path("none", i), znodes.ProtectedName(guid, "lock-"))}, GUID: guid})
			harness.Must(t, err)
		})
		goroutines, watches := runtime.NumGoroutine(), srv.Counts().Watches
		var held []*zsync.Mutex
		each := grown(func(i int) {
			m := zsync.NewMutex(s, path("held", i))
			harness.Must(t, m.Lock(t.Context()))
			held = append(held, m)
		}) - servers
		if more := runtime.NumGoroutine() - goroutines; more > 10 {
			t.Errorf("%d held locks cost %d goroutines", len(held), more)
		}
		if more := srv.Counts().Watches - watches; more != n {
			t.Errorf("%d of %d held locks are watched", more, n)
		}
		t.Logf("%d bytes a lock, and %d of the test server", each, servers)
		if !harness.UnderRace && each > 2304 {
			t.Errorf("%d bytes a lock that is held, its Mutex and the server's watch included", each)
		}
	})
}

// They are all in one list of their session, from which each goes in any order.
func TestOfManyLocksThoseThatAreStillHeldAreToldOfTheEndOfTheirSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 64
		s := suite.Open(t, srv)
		lock := func(i int) *zsync.Mutex {
			m := zsync.NewMutex(s, fmt.Sprintf("/m/%d", i))
			harness.Must(t, m.Lock(t.Context()))
			return m
		}
		held, told := make(map[int]*zsync.Mutex), make(map[int]<-chan struct{})
		for i := range n {
			held[i] = lock(i)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 10 * n { // unlocked in any order, and some locked again
			i := r.IntN(n)
			if m := held[i]; m != nil {
				delete(held, i)
				harness.Must(t, m.Unlock())
			} else {
				held[i] = lock(i)
			}
		}
		if len(held) < n/4 || len(held) > n*3/4 {
			t.Fatalf("%d of %d are held", len(held), n)
		}
		for i, m := range held {
			if i%2 == 0 { // the others are asked when it has happened
				if told[i] = m.Lost(); harness.Closed(told[i]) {
					t.Fatalf("%d is lost already", i)
				}
			}
		}
		srv.Expire(s.ID())
		time.Sleep(time.Second) // the next handshake tells it
		for i, m := range held {
			if lost := told[i]; lost != nil && !harness.Closed(lost) {
				t.Errorf("%d was not told that it is lost", i)
			}
			if !harness.Closed(m.Lost()) {
				t.Errorf("%d does not say that it is lost", i)
			}
			harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		}
		for i := range n { // in the next session nothing of it is left
			harness.Must(t, lock(i).Unlock())
		}
		if h := s.Stats().Holds; h != 0 {
			t.Errorf("%d count as held", h)
		}
	})
}

func TestALockHeldForLongIsLostAtOnceWhenItsZnodeIsDeletedAgainAndAgain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		for _, held := range []time.Duration{0, 5 * time.Millisecond, time.Second, time.Hour} {
			m := zsync.NewMutex(s, "/m")
			harness.Must(t, m.Lock(t.Context()))
			if held > 0 {
				_, err := m.Token(t.Context()) // writes the znode, which is no loss
				harness.Must(t, err)
			}
			time.Sleep(held)
			if harness.Closed(m.Lost()) {
				t.Fatalf("lost after %v though nobody has deleted it", held)
			}
			harness.Must(t, znodes.RemoveNow(t.Context(), inside.Live(t, other), "/m/"+suite.ChildrenOf(t, other, "/m")[0]))
			time.Sleep(20 * time.Millisecond)
			if !harness.Closed(m.Lost()) {
				t.Errorf("held for %v: not lost 20 ms after its znode was deleted", held)
			}
			harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		}
	})
}
