package zsync_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
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
		c.sessions = append(c.sessions, open(t, srv))
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
	look := open(t, srv)
	for {
		stat, err := live(t, look).Exists(t.Context(), path)
		must(t, err)
		if stat != nil && int(stat.NumChildren) == n+1 {
			return c, time.Since(start)
		}
		time.Sleep(20 * time.Millisecond)
		if time.Since(start) > time.Minute {
			t.Fatalf("after a minute %d of %d stand in the line", stat.NumChildren-1, n)
		}
	}
}

func TestThousandsOfWaitersStandInOneLineAndNoSessionIsLost(t *testing.T) {
	sets := []struct{ n, sessions int }{{500, 1}, {200, 10}}
	if longTests() {
		sets = []struct{ n, sessions int }{{10_000, 1}, {1000, 50}}
	}
	for _, set := range sets {
		n, sessions := set.n, set.sessions
		srv := zktest.Start(t)
		holder := open(t, srv)
		m := zsync.NewMutex(holder, "/crowd")
		must(t, m.Lock(t.Context()))
		before, goroutines := memory(), runtime.NumGoroutine()
		c, took := gather(t, srv, "/crowd", sessions, n)
		time.Sleep(200 * time.Millisecond) // the requests of those who came last
		each := int64(memory()-before) / int64(n)
		more := float64(runtime.NumGoroutine()-goroutines) / float64(n)
		standing := srv.Counts()
		start := time.Now()
		must(t, m.Unlock())
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

func TestHandOversAmongTheWaitersOfOneSessionListNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 300
		m := zsync.NewMutex(open(t, srv), "/crowd")
		must(t, m.Lock(t.Context()))
		s := open(t, srv)
		var got []<-chan error
		for range n {
			w := zsync.NewMutex(s, "/crowd")
			got = append(got, async(func() error { return errors.Join(w.Lock(t.Context()), w.Unlock()) }))
		}
		synctest.Wait()
		before := srv.Counts()
		must(t, m.Unlock())
		for _, c := range got {
			must(t, <-c)
		}
		if lists := srv.Counts().Sub(before).Requests["getChildren2"]; lists > 10 {
			t.Errorf("%d hand-overs cost %d listings: each is told of the one ahead", n, lists)
		}
	})
}
