package hammer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

var foreign = []zsync.QueueLayout{zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue, zsync.LayoutKazooQueue}

// With another library's layout, an element is received at most once, and lost
// only if a process dies: not when sessions end, connections break or contexts
// end, whoever has the element in hand.
func TestHammerForeignQueueLosesNothingWhileProcessesLive(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		opts := []zsync.QueueOption{zsync.WithQueueLayout(foreign[rnd.IntN(len(foreign))])}
		sessions := suite.OpenEach(t, srv, 4)
		s := newStock(t)
		ctx, cancel := context.WithCancel(t.Context())
		var producers, consumers sync.WaitGroup
		for i := range 3 {
			q := zsync.NewQueue[int](sessions[rnd.IntN(len(sessions))], "/q", opts...)
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			producers.Go(func() { s.produce(ctx, q, i, 40, dice, time.Second) })
		}
		for i := range 4 {
			own := suite.Open(t, srv)
			sessions = append(sessions, own)
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 2))
			prefetch := zsync.WithPrefetch(1 + rnd.IntN(8))
			consumers.Go(func() {
				q := zsync.NewQueue[int](own, "/q", append(opts, prefetch)...)
				for ctx.Err() == nil {
					short, stop := context.WithTimeout(ctx, time.Duration(1+dice.IntN(30))*time.Second)
					switch i {
					case 0, 1:
						s.ack(short, q, dice, 3*time.Second)
					case 2:
						for v := range q.Recv(short) {
							s.take(v, false)
						}
					case 3:
						try, stop := context.WithTimeout(short, time.Duration(dice.IntN(100))*time.Millisecond)
						if v, ok, err := q.TryRecv(try); ok && err == nil {
							s.take(v, false)
						}
						stop()
						time.Sleep(time.Second)
					}
					stop()
				}
			})
		}
		harness.UnderChaos(t, srv, rnd, sessions, producers.Wait)
		s.finish(srv, cancel, &consumers, "/q")
		suite.WantLen(t, zsync.NewQueue[int](suite.Open(t, srv), "/q", opts...), 0)
	})
}
