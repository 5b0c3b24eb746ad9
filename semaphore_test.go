package zsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/zktest"
)

// forms are the ways in which permits are stored.
var forms = []struct {
	name   string
	limit  int64
	unit   int64 // so that limit is 4 of it
	layout Layout
}{
	{"curator", 4, 1, LayoutCurator},
	{"heavy", 4000, 1000, LayoutCurator},
	{"kazoo", 4, 1, LayoutKazoo},
}

func TestSemaphoreGrantsNoMoreThanItsLimit(t *testing.T) {
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
				a := NewSemaphore(connect(), "/s", f.limit, WithLayout(f.layout))
				b := NewSemaphore(connect(), "/s", f.limit, WithLayout(f.layout))
				ctx := within(t, 30*time.Second)
				must(t, a.Acquire(ctx, 3*f.unit))
				if ok, err := b.TryAcquire(ctx, 2*f.unit); ok || err != nil {
					t.Fatalf("TryAcquire of too many = %v, %v; want false, nil", ok, err)
				}
				if ok, err := b.TryAcquire(ctx, f.unit); !ok || err != nil {
					t.Fatalf("TryAcquire of the last = %v, %v; want true, nil", ok, err)
				}
				got := async(func() error { return b.Acquire(ctx, 2*f.unit) })
				must(t, a.Release(f.unit)) // in other portions than they came
				must(t, a.Release(f.unit))
				must(t, <-got)
				must(t, a.Release(f.unit))
				wantErr(t, a.Release(f.unit), ErrNotLocked)
				wantErr(t, b.Release(4*f.unit), ErrNotLocked)
				if isClosed(b.Lost()) {
					t.Error("Lost is closed while permits are held")
				}
				must(t, b.Release(3*f.unit))
				if !isClosed(b.Lost()) {
					t.Error("Lost is open while nothing is held")
				}
				if ok, err := a.TryAcquire(ctx, f.limit); !ok || err != nil {
					t.Fatalf("TryAcquire of all = %v, %v; want true, nil", ok, err)
				}
				must(t, a.Release(f.limit))
			})
		})
	}
}

func TestSemaphoreRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx := t.Context()
		for _, m := range []*Semaphore{
			NewSemaphore(nil, "/s", 1), NewSemaphore(s, "s", 1), NewSemaphore(s, "/s", 0), NewSemaphore(s, "/s", -1),
			NewSemaphore(s, "/s", 1, nil), NewSemaphore(s, "/s", 1, WithLayout(9)),
		} {
			_, tryErr := m.TryAcquire(ctx, 1)
			_, cErr := m.Contenders(ctx)
			for _, err := range []error{m.Acquire(ctx, 1), tryErr, m.Release(1), cErr} {
				wantErr(t, err, ErrInvalid)
			}
			if !isClosed(m.Lost()) {
				t.Error("Lost of a Semaphore that cannot be held is open")
			}
		}
		m := NewSemaphore(s, "/s", 3)
		for _, n := range []int64{0, -1, 4} {
			wantErr(t, m.Acquire(ctx, n), ErrInvalid)
			_, err := m.TryAcquire(ctx, n)
			wantErr(t, err, ErrInvalid)
		}
		wantErr(t, m.Release(0), ErrInvalid)
		wantErr(t, m.Release(1), ErrNotLocked)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(t, m.Acquire(ended, 1), context.Canceled)
		if stat, err := live(t, s).exists(ctx, "/s"); stat != nil || err != nil {
			t.Errorf("refused calls have made the path: %v, %v", stat, err)
		}
	})
}

func TestSemaphoreOfAnotherLimitIsRefused(t *testing.T) {
	for _, layout := range []Layout{LayoutCurator, LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			must(t, NewSemaphore(a, "/s", 3, WithLayout(layout)).Acquire(t.Context(), 1))
			other := NewSemaphore(b, "/s", 4, WithLayout(layout))
			err := other.Acquire(t.Context(), 1)
			wantErr(t, err, ErrInvalid)
			for _, n := range []string{"3", "4", "/s"} {
				if !strings.Contains(err.Error(), n) {
					t.Errorf("error %q does not name %s", err, n)
				}
			}
			_, err = other.TryAcquire(t.Context(), 1)
			wantErr(t, err, ErrInvalid)
			data, _, err := live(t, a).get(t.Context(), "/s")
			must(t, err)
			if string(data) != "3" {
				t.Errorf("the limit is stored as %q, want 3", data)
			}
		})
	}
}

func TestSemaphoreCostsSixRequestsToAcquireAndOneToRelease(t *testing.T) {
	for _, f := range forms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := NewSemaphore(s, "/s", f.limit, WithLayout(f.layout))
			must(t, m.Acquire(t.Context(), 2*f.unit))
			must(t, m.Release(2*f.unit))
			before := s.Stats().Requests
			must(t, m.Acquire(t.Context(), 2*f.unit))
			if got := s.Stats().Requests - before; got != 6 {
				t.Errorf("%s: Acquire cost %d requests, want 6", f.name, got)
			}
			must(t, m.Release(2*f.unit))
			if got := s.Stats().Requests - before; got != 7 {
				t.Errorf("%s: Acquire and Release cost %d requests, want 7", f.name, got)
			}
		})
	}
}

func TestLargeAcquireIsServedInItsTurn(t *testing.T) {
	for _, f := range forms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var ms []*Semaphore
			for range 5 {
				ms = append(ms, NewSemaphore(open(t, srv), "/s", f.limit, WithLayout(f.layout)))
			}
			ctx := t.Context()
			for range 4 {
				must(t, ms[0].Acquire(ctx, f.unit))
			}
			large := arrive(t, func() error { return ms[1].Acquire(ctx, f.limit) })
			small := arrive(t, func() error { return ms[2].Acquire(ctx, f.unit) })
			local := arrive(t, func() error { return ms[1].Acquire(ctx, f.unit) })
			last := arrive(t, func() error { return ms[3].Acquire(ctx, f.unit) })
			if ok, err := ms[4].TryAcquire(ctx, f.unit); ok || err != nil {
				t.Errorf("TryAcquire while others wait = %v, %v; want false, nil", ok, err)
			}
			cs, err := ms[4].Contenders(ctx)
			must(t, err)
			if len(cs) != 7 || !cs[3].Holding || cs[4].Holding || cs[6].Mode != ModePermits {
				t.Errorf("%d contenders, want 4 holders and 3 that wait: %+v", len(cs), cs)
			}
			for range 3 {
				before := srv.Counts()
				must(t, ms[0].Release(f.unit))
				pendingStill(t, large)
				pendingStill(t, small)
				if d := srv.Counts().Sub(before); d.Notifications != 1 {
					t.Errorf("%s: %d notifications for a release, want 1: to the first in the line", f.name, d.Notifications)
				}
			}
			must(t, ms[0].Release(f.unit))
			must(t, <-large)
			pendingStill(t, small)
			must(t, ms[1].Release(f.limit))
			must(t, <-small)
			must(t, <-last)
			must(t, <-local)
			for _, m := range ms[1:4] {
				must(t, m.Release(f.unit))
			}
		})
	}
}

// CURATOR-315, -335, -462: a lost connection at any step leaves no permit out.
func TestCase29NoPermitIsLeftOutWhateverIsLost(t *testing.T) {
	for _, f := range forms {
		for _, op := range []zktest.Op{zktest.OpCreate, zktest.OpGetChildren2, zktest.OpGetData, zktest.OpMulti, zktest.OpDelete} {
			for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
				for _, expire := range []bool{false, true} {
					t.Run(fmt.Sprint(f.name, op, fault, expire), func(t *testing.T) {
						bubble(t, func(t *testing.T, srv *zktest.Server) {
							s := open(t, srv)
							m := NewSemaphore(s, "/s", f.limit, WithLayout(f.layout))
							must(t, m.Acquire(t.Context(), 2*f.unit))
							must(t, m.Release(2*f.unit))
							var once sync.Once
							srv.Intercept(func(r zktest.Request) (act zktest.Action) {
								if r.Op == op {
									once.Do(func() {
										act = fault
										if expire {
											go srv.Expire(r.Session)
										}
									})
								}
								return act
							})
							must(t, m.Acquire(t.Context(), 2*f.unit))
							err := m.Release(f.unit)
							err = errors.Join(err, m.Release(f.unit))
							if err != nil && !(expire && errors.Is(err, ErrLost)) {
								t.Error(err)
							}
							srv.Intercept(nil)
							time.Sleep(5 * time.Second)
							must(t, m.Acquire(within(t, time.Second), f.limit))
							must(t, m.Release(f.limit))
							leases := "/s/leases"
							if f.layout == LayoutKazoo {
								leases = "/s"
							}
							if names := childrenOf(t, s, leases); len(names) > 0 {
								t.Errorf("%v are left", names)
							}
						})
					})
				}
			}
		}
	}
}

func TestCancelledAcquireLeavesTheSemaphoreUnchanged(t *testing.T) {
	for _, f := range forms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a := NewSemaphore(open(t, srv), "/s", f.limit, WithLayout(f.layout))
			b := NewSemaphore(open(t, srv), "/s", f.limit, WithLayout(f.layout))
			must(t, a.Acquire(t.Context(), f.unit))
			cause := errors.New("enough")
			for range 50 {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
				wantErr(t, b.Acquire(ctx, f.limit), cause, context.Canceled)
				cs, err := a.Contenders(t.Context())
				must(t, err)
				if len(cs) != 1 {
					t.Fatalf("%s: %d contenders after a cancelled Acquire, want the holder", f.name, len(cs))
				}
			}
			if st := b.s.Stats(); st.Watches > 2 || st.Waiters != 0 || st.Holds != 0 {
				t.Errorf("left: %+v", st)
			}
			// Cancelled while the permits are made.
			for _, act := range []zktest.Action{zktest.DropReply, zktest.Delay(time.Second)} {
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMulti {
						return act
					}
					return zktest.Pass
				})
				wantErr(t, b.Acquire(within(t, 100*time.Millisecond), f.unit), context.DeadlineExceeded)
				srv.Intercept(nil)
				time.Sleep(5 * time.Second)
			}
			must(t, b.Acquire(within(t, time.Second), f.limit-f.unit))
			must(t, b.Release(f.limit-f.unit))
			must(t, a.Release(f.unit))
		})
	}
}

func TestLostPermitsAreToldAndGoToOthers(t *testing.T) {
	for _, f := range forms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sa := open(t, srv)
			a := NewSemaphore(sa, "/s", f.limit, WithLayout(f.layout))
			b := NewSemaphore(open(t, srv), "/s", f.limit, WithLayout(f.layout))
			must(t, a.Acquire(t.Context(), f.limit))
			lost := a.Lost()
			got := arrive(t, func() error { return b.Acquire(t.Context(), f.limit) })
			id := sa.ID()
			srv.Partition(id)
			must(t, <-got)
			if !isClosed(lost) || !isClosed(a.Lost()) {
				t.Error("permits were given to another before the loss was told")
			}
			srv.Heal(id)
			again := arrive(t, func() error { return a.Acquire(t.Context(), f.unit) })
			wantErr(t, a.Release(f.unit), ErrLost)
			pendingStill(t, again)
			wantErr(t, a.Release(f.limit-f.unit), ErrLost)
			pendingStill(t, again)
			must(t, b.Release(f.limit))
			must(t, <-again)
			must(t, a.Release(f.unit))
		})
	}
}

func TestWaitingAcquireCarriesOnInTheNextSession(t *testing.T) {
	for _, f := range forms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sb := open(t, srv)
			a := NewSemaphore(open(t, srv), "/s", f.limit, WithLayout(f.layout))
			b := NewSemaphore(sb, "/s", f.limit, WithLayout(f.layout))
			must(t, a.Acquire(t.Context(), f.limit))
			got := arrive(t, func() error { return b.Acquire(t.Context(), f.unit) })
			for range 3 {
				srv.Expire(sb.ID())
				time.Sleep(time.Second)
				pendingStill(t, got)
			}
			must(t, a.Release(f.limit))
			must(t, <-got)
			must(t, b.Release(f.unit))
		})
	}
}

func TestReleaseOfADeletedPermitIsErrLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := NewSemaphore(s, "/s", 3)
		must(t, m.Acquire(t.Context(), 2))
		must(t, live(t, s).removeNow(t.Context(), "/s/leases/"+childrenOf(t, s, "/s/leases")[0]))
		wantErr(t, m.Release(2), ErrLost)
		if names := childrenOf(t, s, "/s/leases"); len(names) > 0 {
			t.Errorf("%v are left", names)
		}
	})
}

func TestReleaseWithServersDownReturnsAtOnceAndIsMadeUpFor(t *testing.T) {
	for _, f := range forms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := NewSemaphore(s, "/s", f.limit, WithLayout(f.layout))
			must(t, m.Acquire(t.Context(), 4*f.unit))
			srv.Stop()
			synctest.Wait()
			start := time.Now()
			must(t, m.Release(f.unit))
			must(t, m.Release(2*f.unit))
			if d := time.Since(start); d > time.Millisecond {
				t.Errorf("Release took %v, want it to return at once", d)
			}
			srv.Restart()
			time.Sleep(2 * time.Second)
			other := NewSemaphore(open(t, srv), "/s", f.limit, WithLayout(f.layout))
			must(t, other.Acquire(within(t, time.Second), 3*f.unit))
			if ok, _ := other.TryAcquire(t.Context(), f.unit); ok {
				t.Error("more permits are out than there are")
			}
			must(t, m.Release(f.unit))
			must(t, other.Release(3*f.unit))
		})
	}
}

// A till counts the permits that are held, as far as their holds stand.
type till struct {
	limit  int64
	stands func(session int64) bool // nil: what Lost says is enough
	mu     sync.Mutex
	here   map[*stake]bool
}

type stake struct {
	n       int64
	session int64
	lost    <-chan struct{}
}

func (c *till) enter(t *testing.T, s *stake) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here == nil {
		c.here = make(map[*stake]bool)
	}
	c.here[s] = true
	sum := int64(0)
	for o := range c.here {
		if !isClosed(o.lost) && (c.stands == nil || c.stands(o.session)) {
			sum += o.n
		}
	}
	if sum > c.limit {
		t.Errorf("%d permits are held of %d", sum, c.limit)
	}
}

func (c *till) leave(s *stake) {
	c.mu.Lock()
	delete(c.here, s)
	c.mu.Unlock()
}

// hammerSemaphore acquires and releases at random.
func hammerSemaphore(t *testing.T, m *Semaphore, c *till, unit int64, rnd *rand.Rand, loops int, pause time.Duration) {
	check := func(err error) {
		if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, context.DeadlineExceeded) {
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
			s := &stake{n, m.s.ID(), m.Lost()}
			c.enter(t, s)
			time.Sleep(time.Duration(rnd.Int64N(int64(pause))))
			c.leave(s)
			part := 1 + rnd.Int64N(n)
			check(m.Release(part))
			n -= part
		}
	}
}

func TestHammerSemaphore(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		f := forms[rnd.IntN(len(forms))]
		var sessions []*Session
		for range 3 {
			sessions = append(sessions, open(t, srv, WithSessionTimeout(time.Duration(1+rnd.IntN(5))*time.Second)))
		}
		c := &till{limit: f.limit, stands: standing(srv)}
		var wg sync.WaitGroup
		for _, s := range sessions {
			m := NewSemaphore(s, "/s", f.limit, WithLayout(f.layout), WithHandoffs(rnd.IntN(4)))
			for range 3 {
				src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
				wg.Go(func() { hammerSemaphore(t, m, c, f.unit, src, 8, 100*time.Millisecond) })
			}
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		chaos(t, srv, rand.New(rand.NewPCG(rnd.Uint64(), 4)), sessions, done)
		time.Sleep(10 * time.Second)
		last := NewSemaphore(sessions[0], "/s", f.limit, WithLayout(f.layout))
		must(t, last.Acquire(within(t, time.Minute), f.limit))
		must(t, last.Release(f.limit))
		for _, s := range sessions {
			if st := s.Stats(); st.Holds != 0 || st.Waiters != 0 {
				t.Errorf("%d holds and %d waiters are left", st.Holds, st.Waiters)
			}
		}
	})
}

func TestHammerSemaphoreForReal(t *testing.T) {
	if os.Getenv("ZSYNC_TEST_SERVERS") == "" || !longTests() {
		t.Skip("needs ZSYNC_TEST_SERVERS and ZSYNC_TEST_LONG")
	}
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
				c := &till{limit: f.limit}
				var wg sync.WaitGroup
				until := time.Now().Add(20 * time.Second)
				for i := range 4 {
					m := NewSemaphore(connect(), "/s", f.limit, WithLayout(f.layout), WithHandoffs(i))
					for j := range 3 {
						src := rand.New(rand.NewPCG(uint64(i), uint64(j)))
						wg.Go(func() {
							for time.Now().Before(until) {
								hammerSemaphore(t, m, c, f.unit, src, 10, 5*time.Millisecond)
							}
						})
					}
				}
				wg.Wait()
			})
		})
	}
}
