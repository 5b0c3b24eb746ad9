package costs

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// way is the time there and back in these tests, in which nothing else takes any: so
// what takes time is round trips, and a figure is the same on every machine.
const way = 10 * time.Millisecond

// A contender locks and unlocks again and again.
type contending struct{ lock, unlock func() error }

// cycle returns how many round trips pass from one grant to the next among all, on
// average, when they have contended for a while, and how many grants there were with
// those before. Between Lock and Unlock a goroutine spends hold.
func cycle(t *testing.T, srv *zktest.Server, hold time.Duration, all []contending) (trips float64, total int64) {
	t.Helper()
	var grants atomic.Int64
	var stop atomic.Bool
	var loops []<-chan error
	srv.SetLatency(way)
	for _, c := range all {
		loops = append(loops, harness.Async(func() error {
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
		harness.Must(t, <-l)
	}
	srv.SetLatency(0)
	return float64(long) / float64(way) / float64(n), grants.Load()
}

func ofZsync(t *testing.T, m *zsync.Mutex) contending {
	return contending{func() error { return m.Lock(t.Context()) }, m.Unlock}
}

func ofGoZookeeper(t *testing.T, srv *zktest.Server, path string) contending {
	c, _, err := zk.Connect(srv.Addrs(), 10*time.Second, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	harness.Must(t, err)
	t.Cleanup(c.Close)
	l := zk.NewLock(c, path, zk.WorldACL(zk.PermAll))
	return contending{l.Lock, l.Unlock}
}

// The next is told by the event of the deletion, and needs nothing else: it has listed
// the line while the one ahead had the lock, though nobody told it when.
func TestSessionsThatContendHandALockOnInOneRoundTripEach(t *testing.T) {
	t.Parallel()
	for _, hold := range []time.Duration{0, way} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			var ours, theirs []contending
			var sessions []*zsync.Session
			for range 8 {
				s := suite.Open(t, srv)
				sessions = append(sessions, s)
				ours = append(ours, ofZsync(t, zsync.NewMutex(s, "/ours")))
				theirs = append(theirs, ofGoZookeeper(t, srv, "/theirs"))
			}
			requests := func() (n int64) {
				for _, s := range sessions {
					n += s.Stats().Requests
				}
				return n
			}
			before, notified := requests(), srv.Counts().Notifications
			got, n := cycle(t, srv, hold, ours)
			r, w := float64(requests()-before)/float64(n), float64(srv.Counts().Notifications-notified)/float64(n)
			want, _ := cycle(t, srv, hold, theirs)
			held := float64(hold) / float64(way)
			t.Logf("held for %v: %.2f round trips from grant to grant, %.2f requests, %.2f notifications; zk.Lock %.2f", hold, got, r, w, want)
			if got > held+1.05 || want < held+1.95 {
				t.Errorf("held for %v: %.2f round trips from grant to grant, want %.2f; zk.Lock %.2f, want 1 more", hold, got, held+1, want)
			}
			// To the next, and to the one who left: whoever makes ready is told nothing.
			// A create, two watches, a deletion, and the line: behind the create, and then mostly once.
			if most := 7 + held/2; w > 2 || r > most {
				t.Errorf("held for %v: %.2f notifications and %.2f requests for each grant, want at most 2 and %.1f", hold, w, r, most)
			}
		})
	}
}

// A server forces its log to disk, one write after the other, and reads wait behind the
// writes; each takes a time of its own, and at times a long one. So nobody knows for
// certain when the one ahead will be the first.
func TestHandOversBetweenSessionsTakeOneRoundTripThoughNoTwoTakeTheSameTime(t *testing.T) {
	t.Parallel()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const sessions, each, settling = 8, 250, 100
		dice := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		var grants []time.Time // guarded by mu
		var free time.Time     // when the disk is; guarded by mu
		srv.SetLatency(way)
		srv.Intercept(func(q zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			var now, odd = time.Now(), time.Duration(dice.ExpFloat64() * float64(400*time.Microsecond))
			if dice.IntN(50) == 0 {
				odd += 2 * time.Millisecond
			}
			switch q.Op {
			case zktest.OpCreate, zktest.OpDelete, zktest.OpMulti:
				if free.Before(now) {
					free = now
				}
				free = free.Add(400*time.Microsecond + odd)
				return zktest.Delay(free.Sub(now))
			}
			return zktest.Delay(max(odd, free.Sub(now)))
		})
		lockInTurn(t, srv, sessions, each, func() {
			mu.Lock()
			defer mu.Unlock()
			grants = append(grants, time.Now())
		})
		two, all := 0, 0
		for i := settling; i < len(grants)-sessions; i++ {
			all++
			if grants[i].Sub(grants[i-1]) > 17*way/10 {
				two++
			}
		}
		t.Logf("%d of %d hand-overs took two round trips", two, all)
		if two > all*3/1000 {
			t.Errorf("%d of %d hand-overs took two round trips, want 0.3%% at most", two, all)
		}
	})
}

// lockInTurn has so many sessions lock and unlock /m, each so often, and call granted in between.
func lockInTurn(t *testing.T, srv *zktest.Server, sessions, each int, granted func()) {
	var loops sync.WaitGroup
	for range sessions {
		m := zsync.NewMutex(suite.Open(t, srv), "/m")
		loops.Go(func() {
			for range each {
				harness.Must(t, m.Lock(t.Context()))
				granted()
				harness.Must(t, m.Unlock())
			}
		})
	}
	loops.Wait()
}

// Once a listing has shown that nobody else is there a watch tells of who comes: no
// hand-over waits for the servers, however long the way.
func TestGoroutinesOfAProcessHandALockOnWithoutTheServers(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const hold = way / 50
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/ours")
		var ours []contending
		for range 8 {
			ours = append(ours, ofZsync(t, m))
		}
		before := s.Stats().Requests
		got, _ := cycle(t, srv, hold, ours)
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
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const hold = way / 50
		m, rival := zsync.NewMutex(suite.Open(t, srv), "/m"), zsync.NewMutex(suite.Open(t, srv), "/m")
		harness.Must(t, rival.Lock(t.Context())) // makes the path
		harness.Must(t, rival.Unlock())
		ctx, cancel := context.WithCancel(t.Context())
		var loops []<-chan error
		srv.SetLatency(way)
		for range 8 {
			loops = append(loops, harness.Async(func() error {
				for m.Lock(ctx) == nil {
					time.Sleep(hold)
					harness.Must(t, m.Unlock())
				}
				return nil
			}))
		}
		for i := range 12 {
			time.Sleep(5*way + time.Duration(i)*way*7/10)
			start := time.Now()
			harness.Must(t, rival.Lock(t.Context()))
			if took := time.Since(start); took > 3*way+16*hold {
				t.Errorf("the %dth time a rival waited for %v, %.1f round trips", i, took, float64(took)/float64(way))
			}
			harness.Must(t, rival.Unlock())
		}
		cancel()
		for _, l := range loops {
			harness.Must(t, <-l)
		}
		srv.SetLatency(0)
	})
}
