package loss

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A severance is a holder of a Mutex, somebody who waits for it, and servers to
// whom things happen.
type severance struct {
	e       *zktest.Ensemble
	rnd     *rand.Rand
	timeout time.Duration
}

func (c *severance) connect(t *testing.T, members ...int) *zsync.Session {
	var servers []string
	for _, i := range members {
		servers = append(servers, c.e.Addrs()[i])
	}
	s, err := zsync.Connect(t.Context(), strings.Join(servers, ","), zsync.WithDialer(c.e.Dial), zsync.WithSessionTimeout(c.timeout))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hurt does one thing to the servers, mostly to that of the holder, and says
// what.
func (c *severance) hurt(member int) string {
	if c.rnd.IntN(4) == 0 {
		member = c.rnd.IntN(3)
	}
	other := (member + 1 + c.rnd.IntN(2)) % 3
	if ld := c.e.Leader(); ld >= 0 && ld != member && c.rnd.IntN(4) > 0 {
		other = ld
	}
	slow := time.Duration(c.rnd.Int64N(int64(c.timeout / 2)))
	switch c.rnd.IntN(9) {
	case 0:
		c.e.Isolate(member)
		return fmt.Sprintf("isolate %d", member)
	case 1:
		c.e.Crash(member)
		return fmt.Sprintf("crash %d", member)
	case 2:
		c.e.Freeze(member)
		return fmt.Sprintf("freeze %d", member)
	case 3:
		c.e.Cut(member, other)
		return fmt.Sprintf("cut %d to %d", member, other)
	case 4:
		c.e.CutLosing(member, other)
		return fmt.Sprintf("cut %d to %d at once", member, other)
	case 5:
		c.e.Cut(other, member)
		return fmt.Sprintf("cut %d to %d", other, member)
	case 6:
		c.e.SetDelay(other, member, slow)
		return fmt.Sprintf("%d to %d takes %v", other, member, slow)
	case 7:
		c.e.SetDelay(member, other, slow)
		return fmt.Sprintf("%d to %d takes %v", member, other, slow)
	}
	c.e.SetLag(member, slow)
	return fmt.Sprintf("%d lags %v", member, slow)
}

// mend undoes all.
func (c *severance) mend() {
	c.e.HealAll()
	for i := range 3 {
		c.e.Thaw(i)
		if !c.e.Serving(i) {
			c.e.Restart(i)
		}
		c.e.SetLag(i, 0)
		for j := range 3 {
			if i != j {
				c.e.SetDelay(i, j, time.Millisecond)
			}
		}
	}
}

func TestAHolderIsToldBeforeAnotherIsGrantedWhateverHappensToTheServers(t *testing.T) {
	harness.InMemory(t)
	t.Parallel()
	tried, grants := 0, 0
	for seed := range harness.Seeds(t, 60, 20, 10_000) {
		tried++
		harness.VirtualTime(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 11))
			c := &severance{rnd: rnd, timeout: []time.Duration{4, 6, 10, 30}[rnd.IntN(4)] * time.Second}
			tick := []time.Duration{c.timeout / 2, c.timeout / 5, 500 * time.Millisecond}[rnd.IntN(3)]
			c.e = zktest.StartEnsemble(t, 3, zktest.WithTick(tick), zktest.WithSyncLimit(2+rnd.IntN(9)),
				zktest.WithSessionTimeouts(c.timeout, c.timeout))
			a, b := c.connect(t, rnd.IntN(3)), c.connect(t, 0, 1, 2)
			if rnd.IntN(3) == 0 {
				a.Close()
				a = c.connect(t, 0, 1, 2)
			}
			var log []string
			ctx, cancel := context.WithTimeout(t.Context(), 8*c.timeout)
			defer cancel()
			ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
			time.Sleep(time.Duration(rnd.Int64N(int64(2 * c.timeout)))) // the session is not new
			if err := ma.Lock(ctx); err != nil {
				t.Fatal(err)
			}
			lost := ma.Lost()
			granted := make(chan error, 1)
			go func() { granted <- mb.Lock(ctx) }()
			busy, stop := rnd.IntN(2) == 0, make(chan struct{})
			if busy {
				pace := time.Duration(1 + rnd.Int64N(int64(c.timeout/4)))
				v := zsync.NewValue[int](a, "/v")
				go func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(pace):
							short, cancel := context.WithTimeout(ctx, c.timeout)
							v.Store(short, 1)
							cancel()
						}
					}
				}()
			}
			for range 1 + rnd.IntN(3) {
				time.Sleep(time.Duration(rnd.Int64N(int64(c.timeout / 2))))
				if member := c.e.MemberOf(a.ID()); member >= 0 {
					log = append(log, c.hurt(member))
				}
			}
			mended := time.AfterFunc(time.Duration(rnd.Int64N(int64(4*c.timeout))), c.mend)
			select {
			case err := <-granted:
				select {
				case <-lost:
				default:
					if err == nil {
						t.Errorf("seed %d (timeout %v, tick %v, busy %v): another was granted, and the holder was not told; %s",
							seed, c.timeout, tick, busy, strings.Join(log, ", "))
					}
				}
				if err == nil {
					grants++
				}
			case <-ctx.Done():
			}
			mended.Stop()
			close(stop)
			c.mend()
			cancel()
			time.Sleep(2 * c.timeout)
			a.Close()
			b.Close()
		})
	}
	t.Logf("in %d of %d schedules another was granted", grants, tried)
	if tried > 1 && grants < tried/5 {
		t.Errorf("in %d of %d schedules another was granted: too few to show anything", grants, tried)
	}
}
