package zsync_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// way is the time there and back in these tests, in which nothing else takes any: so
// what takes time is round trips, and a figure is the same on every machine.
const way = 10 * time.Millisecond

// A contender locks and unlocks again and again.
type contending struct{ lock, unlock func() error }

// cycle returns how many round trips pass from one grant to the next among all, on
// average, when they have contended for a while. Between Lock and Unlock a goroutine
// spends hold.
func cycle(t *testing.T, srv *zktest.Server, hold time.Duration, all []contending) float64 {
	t.Helper()
	var grants atomic.Int64
	var stop atomic.Bool
	var loops []<-chan error
	srv.SetLatency(way)
	for _, c := range all {
		loops = append(loops, async(func() error {
			for !stop.Load() {
				if err := c.lock(); err != nil {
					return err
				}
				grants.Add(1)
				time.Sleep(hold)
				if err := c.unlock(); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	time.Sleep(50 * way)
	const long = 200 * way
	before := grants.Load()
	time.Sleep(long)
	n := grants.Load() - before
	stop.Store(true)
	for _, l := range loops {
		must(t, <-l)
	}
	srv.SetLatency(0)
	return float64(long) / float64(way) / float64(n)
}

func ofZsync(t *testing.T, m *zsync.Mutex) contending {
	return contending{func() error { return m.Lock(t.Context()) }, m.Unlock}
}

func ofGoZookeeper(t *testing.T, srv *zktest.Server, path string) contending {
	c, _, err := zk.Connect(srv.Addrs(), 10*time.Second, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	must(t, err)
	t.Cleanup(c.Close)
	l := zk.NewLock(c, path, zk.WorldACL(zk.PermAll))
	return contending{l.Lock, l.Unlock}
}

// The next is told by the event of the deletion. With several ahead it lists the line
// behind that, because nobody told it of the others.
func TestSessionsThatContendHandALockOnInTwoRoundTripsEachAsZkLockDoes(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ours, theirs []contending
		for range 8 {
			ours = append(ours, ofZsync(t, zsync.NewMutex(open(t, srv), "/ours")))
			theirs = append(theirs, ofGoZookeeper(t, srv, "/theirs"))
		}
		got, want := cycle(t, srv, 0, ours), cycle(t, srv, 0, theirs)
		t.Logf("%.2f round trips from grant to grant; zk.Lock %.2f", got, want)
		if got > 2.01 || want < 1.95 {
			t.Errorf("%.2f round trips from grant to grant, zk.Lock %.2f, want 2 of both", got, want)
		}
	})
}

// Once a listing has shown that nobody else is there a watch tells of who comes: no
// hand-over waits for the servers, however long the way.
func TestGoroutinesOfAProcessHandALockOnWithoutTheServers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const hold = way / 50
		s := open(t, srv)
		m := zsync.NewMutex(s, "/ours")
		var ours []contending
		for range 8 {
			ours = append(ours, ofZsync(t, m))
		}
		before := s.Stats().Requests
		got := cycle(t, srv, hold, ours)
		if want := float64(hold) / float64(way); got > 1.01*want {
			t.Errorf("%.5f round trips from grant to grant, want %.5f: none", got, want)
		}
		// Create and list; the watches on what is held and on the line; delete, what
		// they make behind it, and what confirms the session.
		if n := s.Stats().Requests - before; n > 12 {
			t.Errorf("%d requests", n)
		}
	})
}

// Who comes waits for the event of his coming, for 16 hand-overs and the question that
// they end with, and for the event of the deletion.
func TestWhoComesWaitsForSixteenHandOversAndThreeRoundTrips(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const hold = way / 50
		m, rival := zsync.NewMutex(open(t, srv), "/m"), zsync.NewMutex(open(t, srv), "/m")
		must(t, rival.Lock(t.Context())) // makes the path
		must(t, rival.Unlock())
		ctx, cancel := context.WithCancel(t.Context())
		var loops []<-chan error
		srv.SetLatency(way)
		for range 8 {
			loops = append(loops, async(func() error {
				for m.Lock(ctx) == nil {
					time.Sleep(hold)
					must(t, m.Unlock())
				}
				return nil
			}))
		}
		for i := range 12 {
			time.Sleep(5*way + time.Duration(i)*way*7/10)
			start := time.Now()
			must(t, rival.Lock(t.Context()))
			if took := time.Since(start); took > 3*way+16*hold {
				t.Errorf("the %dth time a rival waited for %v, %.1f round trips", i, took, float64(took)/float64(way))
			}
			must(t, rival.Unlock())
		}
		cancel()
		for _, l := range loops {
			must(t, <-l)
		}
		srv.SetLatency(0)
	})
}
