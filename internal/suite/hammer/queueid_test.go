package hammer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestHammerSendIDStoresEachOnceThoughAllSendAll(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 4)
		const n = 30
		s := newStock(t)
		ctx, cancel := context.WithCancel(t.Context())
		var producers, consumers sync.WaitGroup
		canceled := make(map[int]bool)
		var mu sync.Mutex
		for _, ss := range sessions {
			q := zsync.NewQueue[int](ss, "/q")
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			producers.Go(func() {
				for _, v := range dice.Perm(n) {
					s.sending([]int{v})
					id := fmt.Sprint(v)
					if dice.IntN(3) > 0 { // it gives up, and tries again
						short, stop := context.WithTimeout(ctx, time.Duration(dice.IntN(300))*time.Millisecond)
						q.SendID(short, id, v)
						stop()
					}
					if _, err := q.SendID(ctx, id, v); err != nil {
						t.Errorf("SendID: %v", err)
					}
					if dice.IntN(8) == 0 {
						done, err := q.Cancel(ctx, id)
						if err != nil {
							t.Errorf("Cancel: %v", err)
						}
						mu.Lock()
						if done && canceled[v] {
							t.Errorf("%d was canceled twice", v)
						}
						canceled[v] = canceled[v] || done
						mu.Unlock()
					}
					time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond)
				}
			})
		}
		consumers.Go(func() {
			for d := range zsync.NewQueue[int](sessions[0], "/q").Deliveries(ctx) {
				time.Sleep(100 * time.Millisecond)
				switch err := d.Ack(context.Background()); {
				case err == nil:
					s.take(d.Value, false)
				case errors.Is(err, zk.ErrNoNode):
					s.takeMaybe(d.Value) // the claim was lost, and the element is gone
				case !errors.Is(err, zsync.ErrLost):
					t.Errorf("Ack: %v", err)
				}
			}
		})
		harness.UnderChaos(t, srv, rnd, sessions, producers.Wait)
		var left []int
		for v := range n {
			if canceled[v] {
				s.mu.Lock()
				if s.taken[v] > 0 {
					t.Errorf("%d was canceled, and received", v)
				}
				s.mu.Unlock()
			} else {
				left = append(left, v)
			}
		}
		s.mu.Lock()
		for _, v := range left {
			if s.sent[v] = true; s.taken[v] == 0 && !s.maybe[v] {
				s.left++
			}
		}
		s.mu.Unlock()
		s.finish(srv, cancel, &consumers, "/q")
	})
}
