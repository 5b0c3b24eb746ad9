package zsync_test

import (
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

// The next is told by the event of the deletion, and needs nothing else: neither a
// listing behind it, nor an answer to the last one's Unlock.
func TestSessionsThatContendHandALockOnInOneRoundTripEach(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ours, theirs []contending
		for range 8 {
			ours = append(ours, ofZsync(t, zsync.NewMutex(open(t, srv), "/ours")))
			theirs = append(theirs, ofGoZookeeper(t, srv, "/theirs"))
		}
		got, want := cycle(t, srv, 0, ours), cycle(t, srv, 0, theirs)
		t.Logf("%.2f round trips from grant to grant; zk.Lock %.2f", got, want)
		if got > 1.05 || want < 1.95 {
			t.Errorf("%.2f round trips from grant to grant, want 1; zk.Lock %.2f, want 2", got, want)
		}
	})
}
