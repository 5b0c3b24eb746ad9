package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A stock is what went into a queue and what came out of it.
type stock struct {
	t testing.TB

	mu    sync.Mutex
	sent  map[int]bool  // true when Send has confirmed it
	taken map[int]int   // how often an element was acknowledged, or received
	by    map[int]int64 // the session that received an element first
	maybe map[int]bool  // it is gone, and nothing tells whether it was acknowledged here
	left  int           // confirmed and not taken
	last  map[int]int   // by producer: the last element taken
	full  bool          // nothing more is sent
	done  chan struct{}
}

func newStock(t testing.TB) *stock {
	return &stock{t: t, sent: make(map[int]bool), taken: make(map[int]int), by: make(map[int]int64), maybe: make(map[int]bool), last: make(map[int]int), done: make(chan struct{})}
}

// perProducer tells the elements of one producer from those of others.
const perProducer = 1_000_000

func (s *stock) sending(vs []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range vs {
		s.sent[v] = false
	}
}

func (s *stock) confirm(vs []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range vs {
		s.sent[v] = true
		if s.taken[v] == 0 && !s.maybe[v] {
			s.left++
		}
	}
	s.checkLocked()
}

func (s *stock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = true
	s.checkLocked()
}

func (s *stock) checkLocked() {
	if s.full && s.left == 0 && !harness.Closed(s.done) {
		close(s.done)
	}
}

// take is told of an element that was acknowledged, or received for good. With
// ordered, those of one producer must come in their order.
func (s *stock) take(v int, ordered bool) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	confirmed, ok := s.sent[v]
	if !ok {
		s.t.Errorf("took %d, which was never sent", v)
	}
	if s.taken[v]++; s.taken[v] > 1 {
		s.t.Errorf("took %d %d times", v, s.taken[v])
		return
	}
	if confirmed && !s.maybe[v] {
		s.left--
	}
	if last, ok := s.last[v/perProducer]; ordered && ok && v < last {
		s.t.Errorf("took %d after %d", v, last)
	}
	s.last[v/perProducer] = v
	s.checkLocked()
}

// receive is take for an element of a Recv. It may come again if the session of the first Recv has ended.
func (s *stock) receive(srv *zktest.Server, session int64, v int, ordered bool) {
	s.t.Helper()
	s.mu.Lock()
	first, again := s.by[v]
	if !again {
		s.by[v] = session
	}
	s.mu.Unlock()
	if !again || slices.Contains(srv.Sessions(), first) {
		s.take(v, ordered)
	}
}

// takeMaybe is told of an element that is gone, and that was acknowledged here or by
// another who was given it.
func (s *stock) takeMaybe(v int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[v] > 0 || s.maybe[v] {
		return
	}
	if s.maybe[v] = true; s.sent[v] {
		s.left--
	}
	s.checkLocked()
}

// await waits until all that was confirmed has been taken.
func (s *stock) await(limit time.Duration) {
	s.t.Helper()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		var missing []int
		for v, confirmed := range s.sent {
			if confirmed && s.taken[v] == 0 && !s.maybe[v] {
				missing = append(missing, v)
			}
		}
		slices.Sort(missing)
		s.t.Fatalf("%d elements never came: %v", len(missing), missing[:min(len(missing), 20)])
	}
}

// produce sends n elements in batches of random size.
func (s *stock) produce(ctx context.Context, q *zsync.Queue[int], number, n int, rnd *rand.Rand, pause time.Duration) {
	for i := 0; i < n; {
		var vs []int
		for range min(1+rnd.IntN(8), n-i) {
			vs = append(vs, number*perProducer+i)
			i++
		}
		s.sending(vs)
		if err := q.Send(ctx, vs...); err != nil {
			s.t.Errorf("Send: %v", err)
			return
		}
		s.confirm(vs)
		if pause > 0 {
			time.Sleep(rand.N(pause))
		}
	}
}

// ack takes deliveries until the channel is closed. Some are returned, some
// kept for a while.
func (s *stock) ack(ctx context.Context, q *zsync.Queue[int], rnd *rand.Rand, pause time.Duration) {
	for d := range q.Deliveries(ctx) {
		if rnd.IntN(4) == 0 && pause > 0 {
			time.Sleep(rand.N(pause))
		}
		if rnd.IntN(8) == 0 {
			if err := d.Nack(); err != nil && !errors.Is(err, zsync.ErrLost) {
				s.t.Errorf("Nack: %v", err)
			}
			continue
		}
		switch err := d.Ack(context.Background()); {
		case err == nil:
			s.take(d.Value, false)
		case errors.Is(err, zk.ErrNoNode):
			s.takeMaybe(d.Value) // others have given its claims back, and it is gone
		case !errors.Is(err, zsync.ErrLost):
			s.t.Errorf("Ack: %v", err)
		}
	}
}

// finish waits until all that was confirmed has been taken, ends those who take,
// and fails unless nothing is left of the queues at paths but their own znodes.
func (s *stock) finish(srv *zktest.Server, cancel func(), consumers *sync.WaitGroup, paths ...string) {
	s.t.Helper()
	s.close()
	s.await(10 * time.Minute)
	cancel()
	consumers.Wait()
	tree := harness.Plain(s.t, srv)
	for _, path := range paths {
		harness.Eventually(s.t, func() error {
			for _, suffix := range []string{"-live", "-receipts", "-consumers", "-dead"} {
				if names := harness.Children(s.t, tree, path+suffix); len(names) > 0 {
					time.Sleep(time.Second)
					return errors.New(path + suffix + " still has " + names[0])
				}
			}
			return nil
		})
	}
}

func TestHammerQueueConfirmedElementsComeAndNoneIsAcknowledgedTwice(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 4)
		s := newStock(t)
		ctx, cancel := context.WithCancel(t.Context())
		var producers, consumers sync.WaitGroup
		for i := range 3 {
			q := zsync.NewQueue[int](sessions[rnd.IntN(len(sessions))], "/q")
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			producers.Go(func() { s.produce(ctx, q, i, 40, dice, time.Second) })
		}
		for range 4 {
			q := zsync.NewQueue[int](sessions[rnd.IntN(len(sessions))], "/q", zsync.WithPrefetch(1+rnd.IntN(8)))
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 2))
			consumers.Go(func() {
				for ctx.Err() == nil { // with a channel of its own now and then
					short, stop := context.WithTimeout(ctx, time.Duration(1+dice.IntN(30))*time.Second)
					s.ack(short, q, dice, 3*time.Second)
					stop()
				}
			})
		}
		harness.UnderChaos(t, srv, rnd, sessions, producers.Wait)
		s.finish(srv, cancel, &consumers, "/q")
	})
}

func TestHammerQueueRecvGivesEachElementOnceWhileItsSessionLives(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 4)
		s := newStock(t)
		alone := rnd.IntN(2) == 0 // one consumer: the order is kept
		ctx, cancel := context.WithCancel(t.Context())
		var producers, consumers sync.WaitGroup
		for i := range 3 {
			q := zsync.NewQueue[int](sessions[rnd.IntN(len(sessions))], "/q")
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			producers.Go(func() { s.produce(ctx, q, i, 60, dice, time.Second) })
		}
		for range 1 + 3*rnd.IntN(2) {
			own := sessions[rnd.IntN(len(sessions))]
			q := zsync.NewQueue[int](own, "/q", zsync.WithPrefetch(1+rnd.IntN(20)))
			dice := rand.New(rand.NewPCG(rnd.Uint64(), 2))
			consumers.Go(func() {
				for v := range q.Recv(ctx) {
					s.receive(srv, own.ID(), v, alone)
					if dice.IntN(4) == 0 {
						time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond)
					}
				}
			})
			if alone {
				break
			}
		}
		quiet := make(chan struct{})
		go func() { producers.Wait(); close(quiet) }()
		harness.Hasty(t, srv, rand.New(rand.NewPCG(rnd.Uint64(), 3)), sessions, quiet)
		s.finish(srv, cancel, &consumers, "/q")
	})
}
