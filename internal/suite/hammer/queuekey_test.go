package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
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

// A holding is a delivery, and the session that has claimed it.
type holding struct {
	zsync.Delivery[int]
	session int64
}

// A keyring watches that elements of one key are held one at a time, in order.
type keyring struct {
	t    testing.TB
	srv  *zktest.Server
	mu   sync.Mutex
	held map[int]holding // by key
	last map[int]int     // by key: the last that was acknowledged
}

// got is told of a delivery. One whose session a server has ended is over: Chaos ends sessions at
// once, where servers end one that was silent for long, of which its client hears before.
func (k *keyring) got(s *zsync.Session, d zsync.Delivery[int]) {
	h := holding{d, s.ID()} // of d if the context of d has not ended after that
	k.mu.Lock()
	defer k.mu.Unlock()
	key := d.Value % 7
	alive := func(h holding) bool {
		return h.Context().Err() == nil && slices.Contains(k.srv.Sessions(), h.session)
	}
	if o, ok := k.held[key]; ok && alive(o) && alive(h) {
		k.t.Errorf("%d was delivered beside %d", d.Value, o.Value)
	}
	if last, ok := k.last[key]; ok && d.Value < last {
		k.t.Errorf("%d was delivered after %d was acknowledged", d.Value, last)
	}
	k.held[key] = h
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
		k := &keyring{t: t, srv: srv, held: make(map[int]holding), last: make(map[int]int)}
		ctx, cancel := context.WithCancel(t.Context())
		var consumers sync.WaitGroup
		for range 4 {
			own := sessions[rnd.IntN(len(sessions))]
			q := zsync.NewQueue[int](own, "/q", zsync.WithPrefetch(1+rnd.IntN(8)))
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 2))
			consumers.Go(func() {
				for ctx.Err() == nil {
					short, stop := context.WithTimeout(ctx, time.Duration(1+dice.IntN(30))*time.Second)
					for d := range q.Deliveries(short) {
						k.got(own, d)
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
