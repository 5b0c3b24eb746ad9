package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// forms are the ways in which permits are stored.
var forms = []struct {
	name   string
	limit  int64
	unit   int64 // so that limit is 4 of it
	layout zsync.Layout
}{
	{"curator", 4, 1, zsync.LayoutCurator},
	{"heavy", 4000, 1000, zsync.LayoutCurator},
	{"kazoo", 4, 1, zsync.LayoutKazoo},
}

// A till counts the permits that are held, as far as their holds stand.
type till struct {
	limit  int64
	stands func(session int64) bool
	mu     sync.Mutex
	here   map[*outlay]bool
}

type outlay struct {
	n       int64
	session int64
	lost    <-chan struct{}
}

func (c *till) enter(t *testing.T, s *outlay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here == nil {
		c.here = make(map[*outlay]bool)
	}
	c.here[s] = true
	sum := int64(0)
	for o := range c.here {
		if !harness.Closed(o.lost) && c.stands(o.session) {
			sum += o.n
		}
	}
	if sum > c.limit {
		t.Errorf("%d permits are held of %d", sum, c.limit)
	}
}

func (c *till) leave(s *outlay) {
	c.mu.Lock()
	delete(c.here, s)
	c.mu.Unlock()
}

// hammerSemaphore acquires and releases at random.
func hammerSemaphore(t *testing.T, s *zsync.Session, m *zsync.Semaphore, c *till, unit int64, rnd *rand.Rand, loops int, pause time.Duration) {
	check := func(err error) {
		if err != nil && !errors.Is(err, zsync.ErrLost) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	for range loops {
		n := unit * (1 + rnd.Int64N(4))
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.Int64N(int64(200*pause))))
		ok, err := true, error(nil)
		if rnd.IntN(4) == 0 {
			ok, err = m.TryAcquire(ctx, n)
		} else {
			err = m.Acquire(ctx, n)
		}
		cancel()
		if check(err); err != nil || !ok {
			continue
		}
		for n > 0 {
			o := &outlay{n, s.ID(), m.Lost()}
			c.enter(t, o)
			time.Sleep(time.Duration(rnd.Int64N(int64(pause)))) // real time: the permits are held for a while, also on real servers
			c.leave(o)
			part := 1 + rnd.Int64N(n)
			check(m.Release(part))
			n -= part
		}
	}
}

func TestHammerSemaphore(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		f := forms[rnd.IntN(len(forms))]
		var sessions []*zsync.Session
		for range 3 {
			sessions = append(sessions, suite.Open(t, srv, zsync.WithSessionTimeout(time.Duration(1+rnd.IntN(5))*time.Second)))
		}
		c := &till{limit: f.limit, stands: harness.Standing(srv)}
		var wg sync.WaitGroup
		for _, s := range sessions {
			m := zsync.NewSemaphore(s, "/s", f.limit, zsync.WithLayout(f.layout), zsync.WithHandoffs(rnd.IntN(4)))
			for range 3 {
				src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
				wg.Go(func() { hammerSemaphore(t, s, m, c, f.unit, src, 8, 100*time.Millisecond) })
			}
		}
		harness.UnderChaos(t, srv, rnd, sessions, wg.Wait)
		time.Sleep(10 * time.Second)
		last := zsync.NewSemaphore(sessions[0], "/s", f.limit, zsync.WithLayout(f.layout))
		harness.Must(t, last.Acquire(harness.Within(t, time.Minute), f.limit))
		harness.Must(t, last.Release(f.limit))
		wantNothingHeld(t, sessions)
	})
}

func TestHammerSemaphoreForReal(t *testing.T) {
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
				c := &till{limit: f.limit, stands: stands}
				var wg sync.WaitGroup
				until := time.Now().Add(20 * time.Second)
				for i := range 4 {
					s := connect()
					m := zsync.NewSemaphore(s, "/s", f.limit, zsync.WithLayout(f.layout), zsync.WithHandoffs(i))
					for j := range 3 {
						src := rand.New(rand.NewPCG(uint64(i), uint64(j)))
						wg.Go(func() {
							for time.Now().Before(until) {
								hammerSemaphore(t, s, m, c, f.unit, src, 10, 5*time.Millisecond)
							}
						})
					}
				}
				wg.Wait()
			})
		})
	}
}
