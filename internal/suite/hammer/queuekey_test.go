package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A keyring watches that elements of one key are held one at a time, in order.
type keyring struct {
	t    testing.TB
	mu   sync.Mutex
	held map[int]zsync.Delivery[int] // by key
	last map[int]int                 // by key: the last that was acknowledged
}

// got is told of a delivery.
func (k *keyring) got(d zsync.Delivery[int]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := d.Value % 7
	if o, ok := k.held[key]; ok && o.Context().Err() == nil && d.Context().Err() == nil {
		k.t.Errorf("%d was delivered beside %d", d.Value, o.Value)
	}
	if last, ok := k.last[key]; ok && d.Value < last {
		k.t.Errorf("%d was delivered after %d was acknowledged", d.Value, last)
	}
	k.held[key] = d
}

// gone is told that it is about to be settled.
func (k *keyring) gone(d zsync.Delivery[int]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[d.Value%7].ID == d.ID {
		delete(k.held, d.Value%7)
	}
}

func (k *keyring) acked(d zsync.Delivery[int]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last[d.Value%7] = max(k.last[d.Value%7], d.Value)
}

func TestHammerKeysKeepTheirOrderOneAtATime(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 4)
		withKey := zsync.WithKey(func(v int) string { return strconv.Itoa(v % 7) })
		s := newStock(t)
		k := &keyring{t: t, held: make(map[int]zsync.Delivery[int]), last: make(map[int]int)}
		ctx, cancel := context.WithCancel(t.Context())
		var consumers sync.WaitGroup
		for range 4 {
			q := zsync.NewQueue[int](sessions[rnd.IntN(len(sessions))], "/q", zsync.WithPrefetch(1+rnd.IntN(8)))
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 2))
			consumers.Go(func() {
				for ctx.Err() == nil {
					short, stop := context.WithTimeout(ctx, time.Duration(1+dice.IntN(30))*time.Second)
					for d := range q.Deliveries(short) {
						k.got(d)
						if dice.IntN(4) == 0 {
							time.Sleep(time.Duration(dice.IntN(3000)) * time.Millisecond)
						}
						k.gone(d)
						var err error
						switch dice.IntN(10) {
						case 0:
							err = d.Nack()
						case 1:
							err = d.NackAfter(time.Duration(dice.IntN(2000)) * time.Millisecond)
						default:
							if err = d.Ack(context.Background()); err == nil {
								k.acked(d)
								s.take(d.Value, false)
							}
						}
						switch {
						case errors.Is(err, zk.ErrNoNode):
							s.takeMaybe(d.Value) // others have given its claims back, and it is gone
						case err != nil && !errors.Is(err, zsync.ErrLost):
							t.Errorf("settling %d: %v", d.Value, err)
						}
					}
					stop()
				}
			})
		}
		quiet := make(chan struct{})
		producer := zsync.NewQueue[int](sessions[rnd.IntN(len(sessions))], "/q", withKey)
		dice := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		go func() { defer close(quiet); s.produce(ctx, producer, 0, 60, dice, time.Second) }()
		harness.Chaos(t, srv, rand.New(rand.NewPCG(rnd.Uint64(), 3)), sessions, quiet)
		s.finish(srv, cancel, &consumers, "/q")
	})
}
