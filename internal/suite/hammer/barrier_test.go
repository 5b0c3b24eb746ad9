package hammer

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// hammerBarrier closes and opens a gate rounds times while others wait at it.
// Nobody may get through while it is certainly closed, and in the end all must.
func hammerBarrier(t *testing.T, rnd *rand.Rand, sessions []*zsync.Session, rounds int, pause time.Duration) {
	t.Helper()
	var epoch atomic.Int64 // odd while the gate is certainly closed
	ctx := harness.Within(t, 10*time.Minute)
	var waiting sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 * len(sessions) {
		b := zsync.NewBarrier(sessions[i%len(sessions)], "/gate")
		naps := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		waiting.Go(func() {
			for !harness.Closed(stop) {
				e := epoch.Load()
				if err := b.Wait(ctx); err != nil {
					t.Errorf("Wait: %v", err)
					return
				}
				if e%2 == 1 && epoch.Load() == e {
					t.Error("Wait returned while the gate was closed")
				}
				time.Sleep(time.Duration(naps.Int64N(int64(pause)))) // real time: the pause of a party, also on real servers
			}
		})
	}
	for range rounds {
		b := zsync.NewBarrier(sessions[rnd.IntN(len(sessions))], "/gate")
		harness.Must(t, b.Close(ctx))
		epoch.Add(1)
		time.Sleep(time.Duration(rnd.Int64N(int64(pause)))) // real time: the gate is closed for a while, also on real servers
		epoch.Add(1)
		harness.Must(t, zsync.NewBarrier(sessions[rnd.IntN(len(sessions))], "/gate").Open(ctx))
		time.Sleep(time.Duration(rnd.Int64N(int64(pause)))) // real time: the gate is open for a while, also on real servers
	}
	close(stop)
	waiting.Wait()
}

func TestHammerBarrier(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 3)
		harness.UnderChaos(t, srv, rnd, sessions, func() { hammerBarrier(t, rnd, sessions, 10, 2*time.Second) })
	})
}

func TestHammerBarrierOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		sessions := []*zsync.Session{connect(), connect(), connect()}
		rnd := rand.New(rand.NewPCG(1, 1))
		for until := time.Now().Add(time.Minute); time.Now().Before(until) && !t.Failed(); {
			hammerBarrier(t, rnd, sessions, 50, 20*time.Millisecond)
		}
	})
}
