package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestSemaphoreGrantsNoMoreThanItsLimit(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		t.Run(f.Name, func(t *testing.T) {
			anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
				a := zsync.NewSemaphore(connect(), "/s", f.Limit, zsync.WithLayout(f.Layout))
				b := zsync.NewSemaphore(connect(), "/s", f.Limit, zsync.WithLayout(f.Layout))
				ctx := within(t, 2*time.Minute)
				must(t, a.Acquire(ctx, 3*f.Unit))
				if ok, err := b.TryAcquire(ctx, 2*f.Unit); ok || err != nil {
					t.Fatalf("TryAcquire of too many = %v, %v; want false, nil", ok, err)
				}
				if ok, err := b.TryAcquire(ctx, f.Unit); !ok || err != nil {
					t.Fatalf("TryAcquire of the last = %v, %v; want true, nil", ok, err)
				}
				got := async(func() error { return b.Acquire(ctx, 2*f.Unit) })
				must(t, a.Release(f.Unit)) // in other portions than they came
				must(t, a.Release(f.Unit))
				must(t, <-got)
				must(t, a.Release(f.Unit))
				wantErr(t, a.Release(f.Unit), zsync.ErrNotLocked)
				wantErr(t, b.Release(4*f.Unit), zsync.ErrNotLocked)
				if session.IsClosed(b.Lost()) {
					t.Error("Lost is closed while permits are held")
				}
				must(t, b.Release(3*f.Unit))
				if !session.IsClosed(b.Lost()) {
					t.Error("Lost is open while nothing is held")
				}
				if ok, err := a.TryAcquire(ctx, f.Limit); !ok || err != nil {
					t.Fatalf("TryAcquire of all = %v, %v; want true, nil", ok, err)
				}
				must(t, a.Release(f.Limit))
			})
		})
	}
}

func TestSemaphoreRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx := t.Context()
		for _, m := range []*zsync.Semaphore{
			zsync.NewSemaphore(nil, "/s", 1), zsync.NewSemaphore(s, "s", 1), zsync.NewSemaphore(s, "/s", 0), zsync.NewSemaphore(s, "/s", -1),
			zsync.NewSemaphore(s, "/s", 1, nil), zsync.NewSemaphore(s, "/s", 1, zsync.WithLayout(9)),
		} {
			_, tryErr := m.TryAcquire(ctx, 1)
			_, cErr := m.Contenders(ctx)
			for _, err := range []error{m.Acquire(ctx, 1), tryErr, m.Release(1), cErr} {
				wantErr(t, err, zsync.ErrInvalid)
			}
			if !session.IsClosed(m.Lost()) {
				t.Error("Lost of a Semaphore that cannot be held is open")
			}
		}
		m := zsync.NewSemaphore(s, "/s", 3)
		for _, n := range []int64{0, -1, 4} {
			wantErr(t, m.Acquire(ctx, n), zsync.ErrInvalid)
			_, err := m.TryAcquire(ctx, n)
			wantErr(t, err, zsync.ErrInvalid)
		}
		wantErr(t, m.Release(0), zsync.ErrInvalid)
		wantErr(t, m.Release(1), zsync.ErrNotLocked)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(t, m.Acquire(ended, 1), context.Canceled)
		if stat, err := live(t, s).Exists(ctx, "/s"); stat != nil || err != nil {
			t.Errorf("refused calls have made the path: %v, %v", stat, err)
		}
	})
}

func TestSemaphoreOfAnotherLimitIsRefused(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			must(t, zsync.NewSemaphore(a, "/s", 3, zsync.WithLayout(layout)).Acquire(t.Context(), 1))
			other := zsync.NewSemaphore(b, "/s", 4, zsync.WithLayout(layout))
			err := other.Acquire(t.Context(), 1)
			wantErr(t, err, zsync.ErrInvalid)
			for _, n := range []string{"3", "4", "/s"} {
				if !strings.Contains(err.Error(), n) {
					t.Errorf("error %q does not name %s", err, n)
				}
			}
			_, err = other.TryAcquire(t.Context(), 1)
			wantErr(t, err, zsync.ErrInvalid)
			data, _, err := live(t, a).Get(t.Context(), "/s")
			must(t, err)
			if limit, _, _ := strings.Cut(string(data), "\n"); limit != "3" {
				t.Errorf("the limit is stored as %q, want 3", data)
			}
		})
	}
}

func TestSemaphoreCostsThreeRequestsToAcquireAndOneToRelease(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := zsync.NewSemaphore(s, "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, m.Acquire(t.Context(), 2*f.Unit))
			must(t, m.Release(2*f.Unit))
			before := s.Stats().Requests
			must(t, m.Acquire(t.Context(), 2*f.Unit))
			if got := s.Stats().Requests - before; got != 3 {
				t.Errorf("%s: Acquire cost %d requests, want 3", f.Name, got)
			}
			must(t, m.Release(2*f.Unit))
			if got := s.Stats().Requests - before; got != 4 {
				t.Errorf("%s: Acquire and Release cost %d requests, want 4", f.Name, got)
			}
		})
	}
}

func TestTheFirstAcquireTakesFiveRoundTripsAndNineOnANewPath(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		for _, want := range []time.Duration{9 * time.Millisecond, 5 * time.Millisecond} {
			m := zsync.NewSemaphore(open(t, srv), "/s", 2)
			srv.SetLatency(time.Millisecond)
			start := time.Now()
			must(t, m.Acquire(t.Context(), 1))
			if took := time.Since(start); took != want {
				t.Errorf("the first Acquire took %v with a round trip of 1ms, want %v", took, want)
			}
			srv.SetLatency(0)
		}
	})
}

// A Session that uses many Semaphores keeps the watches of all, and not only of those that were used last.
func TestEachOfManySemaphoresIsAcquiredInOneRoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		all := make([]*zsync.Semaphore, 2*conn.MaxIdleWatches)
		for i := range all {
			all[i] = zsync.NewSemaphore(s, fmt.Sprintf("/s/%d", i), 2)
			must(t, all[i].Do(t.Context(), 1, ok))
		}
		srv.SetLatency(time.Millisecond)
		for range 2 {
			for _, m := range all {
				start := time.Now()
				must(t, m.Acquire(t.Context(), 1))
				if took := time.Since(start); took > time.Millisecond {
					t.Fatalf("an Acquire of %s took %v, want one round trip of 1ms", m.Path(), took)
				}
				must(t, m.Release(1))
			}
		}
	})
}

func TestLargeAcquireIsServedInItsTurn(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var ms []*zsync.Semaphore
			for range 5 {
				ms = append(ms, zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout)))
			}
			ctx := t.Context()
			for range 4 {
				must(t, ms[0].Acquire(ctx, f.Unit))
			}
			large := arrive(t, func() error { return ms[1].Acquire(ctx, f.Limit) })
			small := arrive(t, func() error { return ms[2].Acquire(ctx, f.Unit) })
			local := arrive(t, func() error { return ms[1].Acquire(ctx, f.Unit) })
			last := arrive(t, func() error { return ms[3].Acquire(ctx, f.Unit) })
			if ok, err := ms[4].TryAcquire(ctx, f.Unit); ok || err != nil {
				t.Errorf("TryAcquire while others wait = %v, %v; want false, nil", ok, err)
			}
			cs, err := ms[4].Contenders(ctx)
			must(t, err)
			if len(cs) != 7 || !cs[3].Holding || cs[4].Holding || cs[6].Mode != zsync.ModePermits {
				t.Errorf("%d contenders, want 4 holders and 3 that wait: %+v", len(cs), cs)
			}
			for range 3 {
				before := srv.Counts()
				must(t, ms[0].Release(f.Unit))
				pendingStill(t, large)
				pendingStill(t, small)
				if d := srv.Counts().Sub(before); d.Notifications != 1 {
					t.Errorf("%s: %d notifications for a release, want 1: to the first in the line", f.Name, d.Notifications)
				}
			}
			must(t, ms[0].Release(f.Unit))
			must(t, <-large)
			pendingStill(t, small)
			must(t, ms[1].Release(f.Limit))
			must(t, <-small)
			must(t, <-last)
			must(t, <-local)
			for _, m := range ms[1:4] {
				must(t, m.Release(f.Unit))
			}
		})
	}
}

// CURATOR-315, -335, -462: a lost connection at any step leaves no permit out.
func TestCase29NoPermitIsLeftOutWhateverIsLost(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		for _, op := range []zktest.Op{zktest.OpCreate, zktest.OpGetChildren2, zktest.OpGetData, zktest.OpMulti, zktest.OpDelete} {
			for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
				for _, expire := range []bool{false, true} {
					t.Run(fmt.Sprint(f.Name, op, fault, expire), func(t *testing.T) {
						bubble(t, func(t *testing.T, srv *zktest.Server) {
							s := open(t, srv)
							m := zsync.NewSemaphore(s, "/s", f.Limit, zsync.WithLayout(f.Layout))
							must(t, m.Acquire(t.Context(), 2*f.Unit))
							must(t, m.Release(2*f.Unit))
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
							must(t, m.Acquire(t.Context(), 2*f.Unit))
							err := m.Release(f.Unit)
							err = errors.Join(err, m.Release(f.Unit))
							if err != nil && !(expire && errors.Is(err, zsync.ErrLost)) {
								t.Error(err)
							}
							srv.Intercept(nil)
							time.Sleep(5 * time.Second)
							must(t, m.Acquire(within(t, time.Second), f.Limit))
							must(t, m.Release(f.Limit))
							leases := "/s/leases"
							if f.Layout == zsync.LayoutKazoo {
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
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			b := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, a.Acquire(t.Context(), f.Unit))
			cause := errors.New("enough")
			for range 50 {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
				wantErr(t, b.Acquire(ctx, f.Limit), cause, context.Canceled)
				cs, err := a.Contenders(t.Context())
				must(t, err)
				if len(cs) != 1 {
					t.Fatalf("%s: %d contenders after a cancelled Acquire, want the holder", f.Name, len(cs))
				}
			}
			if st := inside.Session(b).Stats(); st.Watches > 2 || st.Waiters != 0 || st.Holds != 0 {
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
				wantErr(t, b.Acquire(within(t, 100*time.Millisecond), f.Unit), context.DeadlineExceeded)
				srv.Intercept(nil)
				time.Sleep(5 * time.Second)
			}
			must(t, b.Acquire(within(t, time.Second), f.Limit-f.Unit))
			must(t, b.Release(f.Limit-f.Unit))
			must(t, a.Release(f.Unit))
		})
	}
}

func TestLostPermitsAreToldAndGoToOthers(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sa := open(t, srv)
			a := zsync.NewSemaphore(sa, "/s", f.Limit, zsync.WithLayout(f.Layout))
			b := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, a.Acquire(t.Context(), f.Limit))
			lost := a.Lost()
			got := arrive(t, func() error { return b.Acquire(t.Context(), f.Limit) })
			id := sa.ID()
			srv.Partition(id)
			must(t, <-got)
			if !session.IsClosed(lost) || !session.IsClosed(a.Lost()) {
				t.Error("permits were given to another before the loss was told")
			}
			srv.Heal(id)
			again := arrive(t, func() error { return a.Acquire(t.Context(), f.Unit) })
			wantErr(t, a.Release(f.Unit), zsync.ErrLost)
			pendingStill(t, again)
			wantErr(t, a.Release(f.Limit-f.Unit), zsync.ErrLost)
			pendingStill(t, again)
			must(t, b.Release(f.Limit))
			must(t, <-again)
			must(t, a.Release(f.Unit))
		})
	}
}

func TestWaitingAcquireCarriesOnInTheNextSession(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sb := open(t, srv)
			a := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			b := zsync.NewSemaphore(sb, "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, a.Acquire(t.Context(), f.Limit))
			got := arrive(t, func() error { return b.Acquire(t.Context(), f.Unit) })
			for range 3 {
				srv.Expire(sb.ID())
				time.Sleep(time.Second)
				pendingStill(t, got)
			}
			must(t, a.Release(f.Limit))
			must(t, <-got)
			must(t, b.Release(f.Unit))
		})
	}
}

func TestReleaseOfADeletedPermitIsErrLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 3)
		must(t, m.Acquire(t.Context(), 2))
		must(t, znodes.RemoveNow(t.Context(), live(t, s), "/s/leases/"+childrenOf(t, s, "/s/leases")[0]))
		wantErr(t, m.Release(2), zsync.ErrLost)
		if names := childrenOf(t, s, "/s/leases"); len(names) > 0 {
			t.Errorf("%v are left", names)
		}
	})
}

func TestReleaseWithServersDownReturnsAtOnceAndIsMadeUpFor(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := zsync.NewSemaphore(s, "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, m.Acquire(t.Context(), 4*f.Unit))
			srv.Stop()
			synctest.Wait()
			start := time.Now()
			must(t, m.Release(f.Unit))
			must(t, m.Release(2*f.Unit))
			if d := time.Since(start); d > time.Millisecond {
				t.Errorf("Release took %v, want it to return at once", d)
			}
			srv.Restart()
			time.Sleep(2 * time.Second)
			other := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, other.Acquire(within(t, time.Second), 3*f.Unit))
			if ok, _ := other.TryAcquire(t.Context(), f.Unit); ok {
				t.Error("more permits are out than there are")
			}
			must(t, m.Release(f.Unit))
			must(t, other.Release(3*f.Unit))
		})
	}
}

// The requests of a session are counted from the first that strike sees; the
// k'th is hit by a fault.
type strike struct {
	srv     *zktest.Server
	session int64
	k       int
	act     zktest.Action
	also    func() // what happens to the session besides, in a goroutine
	mu      sync.Mutex
	seen    int
}

// begin makes the strike, and end reports whether there was a k'th request.
func (s *strike) begin() {
	s.srv.Intercept(func(r zktest.Request) zktest.Action {
		switch r.Op {
		case zktest.OpConnect, zktest.OpPing, zktest.OpSetWatches, zktest.OpCloseSession:
			return zktest.Pass
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.Session != s.session {
			return zktest.Pass
		}
		if s.seen++; s.seen != s.k+1 {
			return zktest.Pass
		}
		if s.also != nil {
			go s.also()
		}
		return s.act
	})
}

func (s *strike) end() bool {
	s.srv.Intercept(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen > s.k
}

// gateOf lists the znodes of those who wait at the gate.
func gateOf(t testing.TB, m *zsync.Semaphore) []string {
	t.Helper()
	_, dir := inside.SemaphoreZnodes(m)
	return childrenOf(t, inside.Session(m), dir)
}

// Each request of an Acquire, with and without a wait in it, is lost, or its
// reply is, or the session ends there.
func TestAcquireSucceedsOnceWhateverIsLostAtAnyStep(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name   string
		act    zktest.Action
		expire bool
	}{
		{"request", zktest.DropRequest, false}, {"reply", zktest.DropReply, false},
		{"expired before", zktest.DropRequest, true}, {"expired after", zktest.DropReply, true},
	}
	for _, f := range suite.SemaphoreForms {
		for _, wait := range []bool{false, true} {
			for _, fault := range faults {
				t.Run(fmt.Sprint(f.Name, wait, fault.name), func(t *testing.T) {
					for k, struck := 0, true; struck; k++ {
						bubble(t, func(t *testing.T, srv *zktest.Server) {
							holder := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
							m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
							must(t, holder.Acquire(t.Context(), f.Limit))
							if !wait {
								must(t, holder.Release(f.Limit))
							}
							id := inside.Session(m).ID()
							s := &strike{srv: srv, session: id, k: k, act: fault.act}
							if fault.expire {
								s.also = func() { srv.Expire(id) }
							}
							s.begin()
							got := async(func() error { return m.Acquire(t.Context(), 2*f.Unit) })
							time.Sleep(5 * time.Second)
							if wait {
								must(t, holder.Release(f.Limit))
							}
							must(t, <-got)
							struck = s.end()
							time.Sleep(5 * time.Second)
							lost := session.IsClosed(m.Lost())
							if lost && !fault.expire {
								t.Fatalf("request %d: the permits are lost though the session lives", k)
							}
							if want := f.Limit - 2*f.Unit; !lost {
								if ok, err := holder.TryAcquire(t.Context(), want+f.Unit); ok || err != nil {
									t.Fatalf("request %d: TryAcquire of more than there are = %v, %v", k, ok, err)
								}
								must(t, holder.Acquire(within(t, time.Second), want))
								must(t, holder.Release(want))
								must(t, m.Release(2*f.Unit))
							} else {
								wantErr(t, m.Release(2*f.Unit), zsync.ErrLost)
							}
							nothingIsLeft(t, k, f.Limit, holder, m)
						})
					}
				})
			}
		}
	}
}

// nothingIsLeft checks that ms hold nothing and nothing stands in the way.
func nothingIsLeft(t testing.TB, k int, limit int64, ms ...*zsync.Semaphore) {
	t.Helper()
	must(t, ms[0].Acquire(within(t, time.Second), limit))
	must(t, ms[0].Release(limit))
	if left := append(leasesOf(t, ms[0]), gateOf(t, ms[0])...); len(left) > 0 {
		t.Errorf("request %d: %v are left", k, left)
	}
	for _, m := range ms {
		if st := inside.Session(m).Stats(); st.Holds != 0 || st.Waiters != 0 {
			t.Errorf("request %d: %d holds and %d waiters are left", k, st.Holds, st.Waiters)
		}
	}
}

// CURATOR-559: the servers do not answer some request of an Acquire, or the
// network is cut there, and ctx ends.
func TestAcquireEndsWithItsContextAtAnyStepAndLeavesNothing(t *testing.T) {
	t.Parallel()
	const patience = 100 * time.Millisecond
	for _, f := range suite.SemaphoreForms {
		for _, wait := range []bool{false, true} {
			for _, how := range []string{"slow", "cut", "lost"} {
				t.Run(fmt.Sprint(f.Name, wait, how), func(t *testing.T) {
					for k, struck := 0, true; struck; k++ {
						bubble(t, func(t *testing.T, srv *zktest.Server) {
							holder := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
							m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
							must(t, holder.Acquire(t.Context(), f.Limit))
							if !wait {
								must(t, holder.Release(f.Limit))
							}
							id := inside.Session(m).ID()
							s := &strike{srv: srv, session: id, k: k}
							switch how {
							case "slow":
								s.act = zktest.Delay(2 * time.Second)
							case "cut":
								s.also = func() { srv.Partition(id) }
							case "lost":
								s.act = zktest.DropReply
								s.also = func() { srv.Partition(id) }
							}
							s.begin()
							start := time.Now()
							got := async(func() error { return m.Acquire(within(t, patience), 2*f.Unit) })
							if wait {
								time.Sleep(patience / 2)
								must(t, holder.Release(f.Limit))
							}
							err := <-got
							if d := time.Since(start); d > patience+2*session.Grace {
								t.Errorf("request %d: Acquire took %v with a context of %v", k, d, patience)
							}
							if struck = s.end(); err != nil {
								wantErr(t, err, context.DeadlineExceeded)
							}
							time.Sleep(3 * time.Second)
							srv.Heal(id)
							time.Sleep(3 * time.Second)
							if err == nil {
								// It was only giving up the gate that was held up.
								must(t, m.Release(2*f.Unit))
							}
							nothingIsLeft(t, k, f.Limit, holder, m)
						})
					}
				})
			}
		}
	}
}

// Each request of a Release of a part, which for permits of one znode means
// another znode.
func TestReleaseGivesBackWhatItShouldWhateverIsLost(t *testing.T) {
	t.Parallel()
	for _, f := range suite.SemaphoreForms {
		for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			for k, struck := 0, true; struck; k++ {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
					other := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
					must(t, m.Acquire(t.Context(), f.Unit))
					must(t, m.Acquire(t.Context(), 3*f.Unit))
					s := &strike{srv: srv, session: inside.Session(m).ID(), k: k, act: fault}
					s.begin()
					must(t, m.Release(f.Unit))
					must(t, m.Release(f.Unit))
					time.Sleep(5 * time.Second)
					struck = s.end()
					if ok, err := other.TryAcquire(t.Context(), 2*f.Unit+1); ok || err != nil {
						t.Errorf("%s, request %d: TryAcquire of more than were given back = %v, %v", f.Name, k, ok, err)
					}
					must(t, other.Acquire(within(t, time.Second), 2*f.Unit))
					must(t, other.Release(2*f.Unit))
					must(t, m.Release(2*f.Unit))
					nothingIsLeft(t, k, f.Limit, other, m)
				})
			}
		}
	}
}

func TestTryAcquireCostsThreeRequestsWhenItFailsAndSixWhenItSucceeds(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			other := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, m.Acquire(t.Context(), f.Unit))
			must(t, m.Release(f.Unit))
			try := func(n int64, want bool, cost int64) {
				t.Helper()
				before := inside.Session(m).Stats().Requests
				if ok, err := m.TryAcquire(t.Context(), n); ok != want || err != nil {
					t.Errorf("%s: TryAcquire = %v, %v; want %v, nil", f.Name, ok, err, want)
				}
				if got := inside.Session(m).Stats().Requests - before; got != cost {
					t.Errorf("%s: TryAcquire cost %d requests, want %d", f.Name, got, cost)
				}
			}
			try(f.Limit, true, 6)
			try(1, false, 3)
			wait := arrive(t, func() error { return other.Acquire(t.Context(), 1) })
			try(1, false, 3)
			must(t, m.Release(f.Limit))
			must(t, <-wait)
		})
	}
}

func TestAcquireThatWaitsCostsItsListingsAndNotificationsAlone(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			holder := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, m.Acquire(t.Context(), f.Limit))
			must(t, m.Release(f.Limit))
			must(t, holder.Acquire(t.Context(), f.Limit))
			zsync.ThroughTheGate(m) // what it costs to try without is in the other table
			before, sent := srv.Counts(), inside.Session(m).Stats().Requests
			got := arrive(t, func() error { return m.Acquire(t.Context(), f.Unit) })
			if st := inside.Session(m).Stats(); st.Holds != 0 || st.Waiters != 1 {
				t.Errorf("%s: %d holds and %d waiters, want 0 and 1", f.Name, st.Holds, st.Waiters)
			}
			must(t, holder.Release(f.Unit)) // with weights, a part of one znode
			must(t, <-got)
			synctest.Wait()
			// The five of an Acquire, the listing with a watch and that after it.
			if got := inside.Session(m).Stats().Requests - sent; got != 7 {
				t.Errorf("%s: an Acquire that waits once cost %d requests, want 7", f.Name, got)
			}
			if d := srv.Counts().Sub(before); d.Notifications != 1 {
				t.Errorf("%s: %d notifications, want 1", f.Name, d.Notifications)
			}
			must(t, m.Release(f.Unit))
			must(t, holder.Release(f.Limit-f.Unit))
		})
	}
}

func TestGoroutinesOfAProcessHandTheGateOnForTwoRequests(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(open(t, srv), "/s", 8)
		must(t, m.Acquire(t.Context(), 8))
		first := arrive(t, func() error { return m.Acquire(t.Context(), 1) })
		var rest []<-chan error
		for range 7 {
			rest = append(rest, arrive(t, func() error { return m.Acquire(t.Context(), 1) }))
		}
		before := inside.Session(m).Stats().Requests
		must(t, m.Release(8))
		must(t, <-first)
		for _, r := range rest {
			must(t, <-r)
		}
		// 1 to release, a listing and a transaction for the first, the same
		// for each of the rest, and 1 to give up the gate.
		if got := inside.Session(m).Stats().Requests - before; got != 1+8*2+1 {
			t.Errorf("a release and 8 grants cost %d requests, want %d", got, 1+8*2+1)
		}
		must(t, m.Release(8))
	})
}

func TestWaitersForPermitsAreNoHerd(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const waiters = 300
		holder := zsync.NewSemaphore(open(t, srv), "/s", 3)
		must(t, holder.Acquire(t.Context(), 3))
		var sessions []*zsync.Session
		for range 20 {
			sessions = append(sessions, open(t, srv))
		}
		turn := make(chan *zsync.Semaphore, waiters)
		for i := range waiters {
			m := zsync.NewSemaphore(sessions[i%len(sessions)], "/s", 3)
			go func() {
				if err := m.Acquire(t.Context(), 1); err != nil {
					t.Error(err)
				}
				turn <- m
			}()
			if i%50 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		before := srv.Counts()
		must(t, holder.Release(1)) // one permit goes round
		for range waiters {
			must(t, (<-turn).Release(1))
		}
		synctest.Wait()
		// Each is woken when it is the first at the gate, and when there is a
		// permit.
		if d := srv.Counts().Sub(before); d.Notifications > 3*waiters {
			t.Errorf("%d notifications for %d grants, want three for each at most", d.Notifications, waiters)
		}
		must(t, holder.Release(2))
	})
}

func TestPermitsAreGrantedInTheOrderOfArrivalWhateverTheirNumber(t *testing.T) {
	t.Parallel()
	for _, f := range suite.SemaphoreForms {
		for _, handoffs := range []int{0, 1, 16} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				rnd := rand.New(rand.NewPCG(uint64(handoffs), 5))
				holder := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
				must(t, holder.Acquire(t.Context(), f.Limit))
				var mu sync.Mutex
				var order []int
				var wg sync.WaitGroup
				for i := range 30 {
					m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout), zsync.WithHandoffs(handoffs))
					n := f.Unit * (1 + rnd.Int64N(4))
					wg.Go(func() {
						if err := m.Acquire(t.Context(), n); err != nil {
							t.Error(err)
						}
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						time.Sleep(time.Second)
						if err := m.Release(n); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				srv.SetLatency(time.Millisecond) // so that two grants are told apart
				must(t, holder.Release(f.Limit))
				wg.Wait()
				if !slices.IsSorted(order) {
					t.Errorf("%s, %d hand-overs: granted in the order %v", f.Name, handoffs, order)
				}
			})
		}
	}
}

func TestSmallRequestsOfAProcessDoNotStarveALargeOneOfAnother(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewSemaphore(open(t, srv), "/s", 4, zsync.WithHandoffs(n))
			large := zsync.NewSemaphore(open(t, srv), "/s", 4)
			ctx, cancel := context.WithCancel(t.Context())
			var served atomic.Int32
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					for m.Acquire(ctx, 1) == nil {
						served.Add(1)
						time.Sleep(time.Second)
						if err := m.Release(1); err != nil {
							t.Error(err)
						}
					}
				})
			}
			// It comes while nothing else happens, so it is in the line before
			// anybody is served.
			time.Sleep(10*time.Second + 500*time.Millisecond)
			before := served.Load()
			must(t, large.Acquire(within(t, time.Minute), 4))
			// Who had the gate when it came, and those to whom it was handed
			// on; or, without hand-overs, who stood in the line already.
			most := n + 1
			if n == 0 {
				most = 10 - 4
			}
			if got := int(served.Load() - before); got > most {
				t.Errorf("%d small requests went before the large one, want %d at most", got, most)
			}
			must(t, large.Release(4))
			cancel()
			wg.Wait()
		})
	}
}

func TestSemaphoreWritesTheZnodesOfCuratorAndKazoo(t *testing.T) {
	for _, c := range []struct {
		layout       zsync.Layout
		limit        int64
		leases, gate string
		lease, place string // as regular expressions
		n            int
	}{
		{zsync.LayoutCurator, 5, "/s/leases", "/s/locks", `^_c_[0-9a-f-]{36}-lease-\d{10}$`, `^_c_[0-9a-f-]{36}-lock-\d{10}$`, 2},
		{zsync.LayoutCurator, 5000, "/s/leases", "/s/locks", `^_c_[0-9a-f-]{36}-weight-2$`, `^_c_[0-9a-f-]{36}-lock-\d{10}$`, 1},
		{zsync.LayoutKazoo, 5, "/s", "/s-__lock__", `^[0-9a-f]{32}$`, `^[0-9a-f]{32}__lock__\d{10}$`, 2},
	} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv, zsync.WithOwner("me"))
			m := zsync.NewSemaphore(s, "/s", c.limit, zsync.WithLayout(c.layout))
			must(t, m.Acquire(t.Context(), 2))
			wait := arrive(t, func() error { return m.Acquire(t.Context(), c.limit) })
			for dir, want := range map[string]string{c.leases: c.lease, c.gate: c.place} {
				names := childrenOf(t, s, dir)
				for _, name := range names {
					if !regexp.MustCompile(want).MatchString(name) {
						t.Errorf("%s in %s, want %s", name, dir, want)
					}
					data, stat, err := live(t, s).Get(t.Context(), dir+"/"+name)
					must(t, err)
					if string(data) != "me" || stat.EphemeralOwner != s.ID() {
						t.Errorf("%s: data %q, owner %x", name, data, stat.EphemeralOwner)
					}
				}
				if n := map[string]int{c.leases: c.n, c.gate: 1}[dir]; len(names) != n {
					t.Errorf("%v in %s, want %d", names, dir, n)
				}
			}
			must(t, m.Release(2))
			must(t, <-wait)
			must(t, m.Release(c.limit))
		})
	}
}

func TestPermitsOfOtherProgramsCountAsOneEach(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			m := zsync.NewSemaphore(s, "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, m.Acquire(t.Context(), 1))
			must(t, m.Release(1))
			inc := live(t, s)
			leases, _ := inside.SemaphoreZnodes(m)
			for _, name := range []string{"_c_x-lease-0000000007", "anything"} {
				_, err := znodes.Create(t.Context(), inc, znodes.ChildPath(inc.Manager.Full(leases), name), nil)
				must(t, err)
			}
			if ok, err := m.TryAcquire(t.Context(), f.Limit-1); ok || err != nil {
				t.Errorf("%s: TryAcquire = %v, %v; want false, nil", f.Name, ok, err)
			}
			must(t, m.Acquire(within(t, time.Second), f.Limit-2))
			must(t, m.Release(f.Limit-2))
			if f.Layout != zsync.LayoutKazoo && f.Limit > maxUnits { // more than there are, and more than can be counted
				for range 2 {
					_, err := znodes.Create(t.Context(), inc, fmt.Sprintf("%s/_c_%s-weight-9223372036854775807", inc.Manager.Full(leases), znodes.NewGUID()), nil)
					must(t, err)
				}
				if ok, err := m.TryAcquire(t.Context(), 1); ok || err != nil {
					t.Errorf("TryAcquire = %v, %v; want false, nil", ok, err)
				}
			}
		})
	}
}

func TestSemaphoreWithForeignDataAtItsPathSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := znodes.Create(t.Context(), live(t, s), "/s", []byte("10.0.0.7"))
		must(t, err)
		err = zsync.NewSemaphore(s, "/s", 3).Acquire(t.Context(), 1)
		wantErr(t, err, zsync.ErrInvalid)
		if !strings.Contains(err.Error(), "10.0.0.7") {
			t.Errorf("error %q does not say what is there", err)
		}
	})
}

func TestLimitCanChangeOnceTheSemaphoreHasNotBeenUsedForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		old, young := zsync.NewSemaphore(s, "/s", 3), zsync.NewSemaphore(open(t, srv), "/s", 5)
		must(t, old.Acquire(t.Context(), 1))
		wantErr(t, young.Acquire(t.Context(), 1), zsync.ErrInvalid)
		must(t, old.Release(1))
		time.Sleep(10 * time.Minute) // the containers are reaped
		must(t, young.Acquire(t.Context(), 5))
		wantErr(t, old.Acquire(t.Context(), 1), zsync.ErrInvalid)
		_, err := old.TryAcquire(t.Context(), 1)
		wantErr(t, err, zsync.ErrInvalid)
		if n := len(gateOf(t, young)); n != 0 {
			t.Errorf("%d are left at the gate", n)
		}
		must(t, young.Release(5))
	})
}

func TestSemaphoreSurvivesTheDeletionOfItsTree(t *testing.T) {
	for _, f := range suite.SemaphoreForms {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			other := zsync.NewSemaphore(open(t, srv), "/s", f.Limit, zsync.WithLayout(f.Layout))
			must(t, m.Acquire(t.Context(), f.Limit))
			granted := make(chan error, 2) // in either order: who had the gate has lost its place
			for range 2 {
				go func() { granted <- other.Acquire(t.Context(), f.Limit) }()
				synctest.Wait()
			}
			admin := open(t, srv)
			ops := []any{&zk.CreateRequest{Path: "/elsewhere"}} // where the transaction's receipt is made
			var uproot func(path string)
			uproot = func(path string) {
				for _, name := range childrenOf(t, admin, path) {
					uproot(znodes.ChildPath(path, name))
				}
				ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
			}
			if f.Layout == zsync.LayoutKazoo {
				uproot("/s-__lock__")
			}
			uproot("/s")
			_, err := admin.Txn(t.Context(), ops...)
			must(t, err)
			wantErr(t, m.Release(f.Limit), zsync.ErrLost)
			for range 2 {
				must(t, <-granted)
				must(t, other.Release(f.Limit))
			}
			data, _, err := live(t, admin).Get(t.Context(), "/s")
			must(t, err)
			if limit, _, _ := strings.Cut(string(data), "\n"); limit != fmt.Sprint(f.Limit) {
				want := fmt.Sprint(f.Limit)
				t.Errorf("%s: the limit is stored as %q, want %s", f.Name, data, want)
			}
		})
	}
}

// mostAtOnce returns how many permits fit in one Acquire, of so many.
func mostAtOnce(t *testing.T, m *zsync.Semaphore, limit int) int64 {
	return int64(sort.Search(limit, func(n int) bool {
		err := m.Acquire(t.Context(), int64(n)+1)
		if err == nil {
			must(t, m.Release(int64(n)+1))
		} else {
			wantErr(t, err, zsync.ErrTooLarge)
		}
		return err != nil
	}))
}

func TestSoManyPermitsThatTheyFitInNoTransactionAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, zsync.WithOwner(strings.Repeat("x", 4096)))
		m := zsync.NewSemaphore(s, "/s", maxUnits)
		wantErr(t, m.Acquire(t.Context(), maxUnits), zsync.ErrTooLarge)
		if stat, err := live(t, s).Exists(t.Context(), "/s"); stat != nil || err != nil {
			t.Errorf("a refused call has made the path: %v, %v", stat, err)
		}
		mostAtOnce(t, m, maxUnits)

		// Their deletion takes more than one.
		k := zsync.NewSemaphore(open(t, srv), "/k", 100_000, zsync.WithLayout(zsync.LayoutKazoo))
		wantErr(t, k.Acquire(t.Context(), 100_000), zsync.ErrTooLarge)
		most := mostAtOnce(t, k, 100_000)
		for _, n := range []int64{most, most, most / 2} {
			must(t, k.Acquire(t.Context(), n))
		}
		must(t, k.Release(2*most+most/2))
		if st := inside.Session(k).Stats(); st.Reconnects != 0 {
			t.Errorf("%d reconnects", st.Reconnects)
		}
		if left := leasesOf(t, k); len(left) > 0 {
			t.Errorf("%d are left", len(left))
		}
	})
}

func TestSemaphoreTellsTheObserverOfPermitsAndNotOfItsGate(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var events []string
		s := open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Path != "" {
				events = append(events, fmt.Sprint(e.Kind, " ", e.Op, " ", e.Path))
			}
		})))
		m := zsync.NewSemaphore(s, "/s", 2)
		must(t, m.Acquire(t.Context(), 2))
		wantErr(t, m.Acquire(within(t, time.Second), 1), context.DeadlineExceeded)
		must(t, m.Release(1))
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		wantErr(t, m.Release(1), zsync.ErrLost)
		mu.Lock()
		defer mu.Unlock()
		want := []string{"acquired acquire /s", "gave up acquire /s", "released acquire /s", "lost acquire /s"}
		if !slices.Equal(events, want) {
			t.Errorf("told of %q, want %q", events, want)
		}
	})
}

func TestAcquireWhoseSessionEndsWithItsContextFailsWithTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		holder, m := zsync.NewSemaphore(open(t, srv), "/s", 2), zsync.NewSemaphore(open(t, srv), "/s", 2)
		must(t, holder.Acquire(t.Context(), 2))
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			got := arrive(t, func() error { return m.Acquire(ctx, 1) })
			inc := live(t, inside.Session(m))
			if i%2 == 0 { // either may be noticed first
				cancel()
				inc.Lose(session.LossExpired)
			} else {
				inc.Lose(session.LossExpired)
				cancel()
			}
			wantErr(t, <-got, context.Canceled)
			time.Sleep(time.Second)
		}
		must(t, holder.Release(2))
		time.Sleep(2 * testTimeout) // the server learns of the last end
		nothingIsLeft(t, 0, 2, m, holder)
	})
}

func TestTryAcquireAfterCloseIsErrClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 2)
		must(t, m.Acquire(t.Context(), 1))
		must(t, s.Close())
		ok, err := m.TryAcquire(t.Context(), 1)
		wantErr(t, err, zsync.ErrClosed)
		if ok {
			t.Error("it succeeded")
		}
		wantErr(t, m.Release(1), zsync.ErrLost, zsync.ErrClosed)
	})
}

func TestAcquireFailsWhenItsSessionIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 2)
		must(t, m.Acquire(t.Context(), 2))
		got := arrive(t, func() error { return m.Acquire(t.Context(), 1) })
		must(t, s.Close())
		wantErr(t, <-got, zsync.ErrClosed)
		wantErr(t, m.Release(2), zsync.ErrLost, zsync.ErrClosed)
		other := zsync.NewSemaphore(open(t, srv), "/s", 2)
		must(t, other.Acquire(within(t, time.Second), 2))
	})
}

// A function that releases some of what Do has acquired leaves none of the rest behind.
func TestDoReleasesWhatIsLeftOfItsPermits(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(open(t, srv), "/s", 2)
		err := m.Do(t.Context(), 2, func(ctx context.Context) error { return m.Release(1) })
		wantErr(t, err, zsync.ErrNotLocked)
		other := zsync.NewSemaphore(open(t, srv), "/s", 2)
		must(t, other.Acquire(within(t, time.Hour), 2))
	})
}

// Parts of what was acquired at once are given back one behind the other, for as long as
// anything is held: that may be as long as the process lives.
func TestReleasesOfPartsLeaveNothingInMemory(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		m := zsync.NewSemaphore(open(t, srv), "/s", 5000)
		must(t, m.Acquire(ctx, 3))
		must(t, m.Release(1)) // two are left in another znode
		round := func(n int) {
			for range n {
				must(t, m.Acquire(ctx, 2))
				must(t, m.Release(1))
				must(t, m.Release(1))
			}
		}
		objects := func() uint64 {
			runtime.GC()
			var s runtime.MemStats
			runtime.ReadMemStats(&s)
			return s.HeapObjects
		}
		round(500)
		before := objects()
		const n = 1000
		round(n)
		if now := objects(); now > before+n {
			t.Errorf("%d objects more after %d rounds", now-before, n)
		}
		must(t, m.Release(2))
	})
}

// After a loss the process stands in nobody's way until what was lost has been released:
// also if another Acquire of it is the first in the line by then.
func TestALossThatIsNotReleasedStandsInNobodysWay(t *testing.T) {
	for _, hung := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var opts []zsync.LockOption
			if hung {
				opts = append(opts, zsync.WithMaxHold(time.Minute))
			}
			v := zsync.NewSemaphore(open(t, srv), "/s", 3, opts...)
			q, w := zsync.NewSemaphore(open(t, srv), "/s", 3), zsync.NewSemaphore(open(t, srv), "/s", 3)
			must(t, v.Acquire(t.Context(), 1))
			must(t, q.Acquire(t.Context(), 1))
			all := async(func() error { return v.Acquire(t.Context(), 3) })
			pendingStill(t, all)
			if !hung {
				c := harness.Plain(t, srv)
				for _, name := range harness.Children(t, c, "/s/leases") {
					_, stat, err := c.Get("/s/leases/" + name)
					must(t, err)
					if stat.EphemeralOwner == inside.Session(v).ID() {
						must(t, c.Delete("/s/leases/"+name, -1))
					}
				}
			}
			select {
			case <-v.Lost():
			case <-time.After(2 * time.Minute):
				t.Fatal("v has not lost its permit")
			}
			// Two of three are free, and v may get none.
			if err := w.Acquire(within(t, testTimeout/2), 1); err != nil {
				t.Errorf("hung %v: %v", hung, err)
			} else {
				must(t, w.Release(1))
			}
			wantErr(t, v.Release(1), zsync.ErrLost)
			must(t, q.Release(1))
			must(t, <-all)
		})
	}
}

// A large request that is the first in the line is not starved by small ones, also if
// somebody deletes its znode at the gate: it goes to the line again, as every waiter does.
func TestALargeRequestWhoseZnodeIsDeletedStandsInTheLineAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		v := zsync.NewSemaphore(open(t, srv), "/s", 2)
		a, b := zsync.NewSemaphore(open(t, srv), "/s", 2), zsync.NewSemaphore(open(t, srv), "/s", 2)
		must(t, a.Acquire(t.Context(), 1))
		all := async(func() error { return v.Acquire(t.Context(), 2) })
		pendingStill(t, all)
		time.Sleep(time.Second)
		c := harness.Plain(t, srv)
		names := harness.Children(t, c, "/s/locks")
		if len(names) != 1 {
			t.Fatalf("%q", names)
		}
		must(t, c.Delete("/s/locks/"+names[0], -1))
		time.Sleep(time.Minute)
		synctest.Wait()
		if names = harness.Children(t, c, "/s/locks"); len(names) != 1 {
			t.Errorf("a minute later in the line: %q, want the one who waits", names)
		}
		// One holds a permit at any time, but each of them asks anew when it has released.
		for range 50 {
			x := a
			a, b = b, a
			acquired := async(func() error { return a.Acquire(t.Context(), 1) })
			time.Sleep(time.Second)
			must(t, x.Release(1))
			time.Sleep(time.Second)
			if len(acquired) == 0 {
				must(t, <-all) // it was its turn
				must(t, v.Release(2))
				must(t, <-acquired)
				must(t, a.Release(1))
				return
			}
			must(t, <-acquired)
		}
		t.Error("fifty small requests that came later were served, and the large one was not")
		must(t, a.Release(1))
		must(t, <-all)
	})
}

func TestNoPermitTooManyWhenTheServerFailsBehindANotificationAndTheNextLags(t *testing.T) {
	var taker atomic.Int64 // whose transactions are held up
	var hold chan struct{} // made in the bubble
	hook := func(r zktest.Request) {
		if r.Session == taker.Load() && r.Op == zktest.OpMulti {
			<-hold
		}
	}
	afterEvent(t, hook, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
		hold = make(chan struct{})
		sp, sw := zsync.NewSemaphore(p, "/s", 1), zsync.NewSemaphore(w, "/s", 1)
		for _, m := range []*zsync.Semaphore{sp, sw} { // makes the containers
			must(t, m.Acquire(t.Context(), 1))
			must(t, m.Release(1))
		}
		zsync.ThroughTheGate(sp)
		zsync.ThroughTheGate(sw)
		taker.Store(p.ID())
		gotP := async(func() error { return sp.Acquire(t.Context(), 1) })
		synctest.Wait() // it has the gate, and has found the permit free
		gotW := async(func() error { return sw.Acquire(t.Context(), 1) })
		synctest.Wait() // it waits at the gate
		mend := strike()
		close(hold)
		must(t, <-gotP)
		time.Sleep(2 * time.Second)
		pendingStill(t, gotW)
		mend()
		must(t, sp.Release(1))
		must(t, <-gotW)
	})
}

// warm returns Semaphores of the same path that know its limit, one for each
// session, and have found it free. Who has used it last has been longest idle.
func warm(t *testing.T, limit int64, layout zsync.Layout, sessions ...*zsync.Session) (ms []*zsync.Semaphore) {
	t.Helper()
	for _, s := range sessions {
		m := zsync.NewSemaphore(s, "/s", limit, zsync.WithLayout(layout))
		must(t, m.Acquire(t.Context(), 1))
		must(t, m.Release(1))
		ms = append(ms, m)
	}
	return ms
}

// Two who come at once may each see the other's permits. Both go to the gate then,
// and one gets it.
func TestTwoWhoTakeTheLastPermitAtOnceDoNotBothGetIt(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			ms := warm(t, 1, layout, open(t, srv), open(t, srv))
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpGetChildren2 {
					return zktest.Delay(100 * time.Millisecond) // the other's transaction comes first
				}
				return zktest.Pass
			})
			ctx, cancel := context.WithCancel(t.Context())
			a := async(func() error { return ms[0].Acquire(ctx, 1) })
			b := async(func() error { return ms[1].Acquire(ctx, 1) })
			time.Sleep(5 * time.Second)
			var first, second <-chan error
			var holder, next *zsync.Semaphore
			select {
			case err := <-a:
				must(t, err)
				first, second, holder, next = a, b, ms[0], ms[1]
			case err := <-b:
				must(t, err)
				first, second, holder, next = b, a, ms[1], ms[0]
			default:
				t.Fatal("neither has got the permit")
			}
			_ = first
			pendingStill(t, second)
			must(t, holder.Release(1))
			must(t, <-second)
			must(t, next.Release(1))
			cancel()
		})
	}
}

// Who has the gate has counted, and is about to make its permits: who comes past
// the gate must not take the same.
func TestWhoHasTheGateAndHasCountedIsNotOvertaken(t *testing.T) {
	notOvertaken(t, map[int]zktest.Action{
		2: zktest.Delay(2 * time.Second), // the other takes its permit, and leaves the gate, in between
	})
}

// A server that is overloaded refuses the listing of the gate. The client repeats that listing. By
// then, the client with the gate has its permit and has left the gate. The listing of the permits
// was sent before that, so it does not count this permit. The client must list the permits again.
func TestAnOverloadedServerLetsNobodyOvertakeTheGate(t *testing.T) {
	notOvertaken(t, map[int]zktest.Action{
		1: zktest.Fail(zktest.CodeThrottled), // the gate
		3: zktest.Delay(2 * time.Second),     // the gate again, after a listing of the permits
	})
}

// notOvertaken lets a client with the gate take the only permit while another client tries without
// the gate. The server does `actions` to the listings of that client, which are numbered from 1.
func notOvertaken(t *testing.T, actions map[int]zktest.Action) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sg, sf := open(t, srv), open(t, srv)
			ms := warm(t, 1, layout, sg, sf)
			g, f := ms[0], ms[1]
			zsync.ThroughTheGate(g)
			held, listed := false, 0
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == sf.ID() && r.Op == zktest.OpGetChildren2 {
					listed++
					if action, ok := actions[listed]; ok {
						return action
					}
				}
				if r.Session == sg.ID() && r.Op == zktest.OpMulti && !held {
					held = true
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			gotG := async(func() error { return g.Acquire(t.Context(), 1) })
			synctest.Wait() // it has found the permit free
			if !held {
				t.Fatal("the transaction is not on its way")
			}
			gotF := async(func() error { return f.Acquire(t.Context(), 1) })
			must(t, <-gotG)
			time.Sleep(5 * time.Second)
			pendingStill(t, gotF)
			must(t, g.Release(1))
			must(t, <-gotF)
			for n := range actions {
				if listed < n {
					t.Errorf("%d listings", listed)
				}
			}
		})
	}
}

// The limit is lowered when the permits are made and not yet counted: they must not
// be granted by the limit from before.
func TestAPermitIsNotGrantedByALimitFromBeforeItWasCounted(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sf := open(t, srv)
			ms := warm(t, 2, layout, sf, open(t, srv))
			f, other := ms[0], ms[1]
			must(t, other.Acquire(t.Context(), 1))
			armed := true
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == sf.ID() && r.Op == zktest.OpGetChildren2 && armed {
					armed = false
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			got := async(func() error { return f.Acquire(t.Context(), 1) })
			synctest.Wait() // made, and not listed
			if armed {
				t.Fatal("nothing was listed")
			}
			must(t, other.Resize(t.Context(), 1))
			time.Sleep(3 * time.Second)
			pendingStill(t, got)
			must(t, other.Release(1))
			must(t, <-got)
		})
	}
}

// Whatever request or reply is lost, the permit is got once, and nothing stays out.
func TestPermitsTakenAtOnceAreGotOnceWhateverIsLost(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		for _, action := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			for at := range 3 {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					m := warm(t, 3, layout, s)[0]
					n := 0
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpPing || r.Op == zktest.OpConnect {
							return zktest.Pass
						}
						if n++; n == at+1 {
							return action
						}
						return zktest.Pass
					})
					must(t, m.Acquire(t.Context(), 2))
					srv.Intercept(nil)
					leases, _ := inside.SemaphoreZnodes(m)
					time.Sleep(time.Second)
					if out := childrenOf(t, s, leases); len(out) != 2 {
						t.Errorf("request %d: out are %v, want 2", at+1, out)
					}
					must(t, m.Release(2))
					if out := childrenOf(t, s, leases); len(out) != 0 {
						t.Errorf("request %d: out are still %v", at+1, out)
					}
				})
			}
		}
	}
}

func TestAnAcquireAtOnceThatIsCancelledLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := warm(t, 1, zsync.LayoutCurator, s)[0]
		srv.SetLatency(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		wantErr(t, m.Acquire(ctx, 1), context.DeadlineExceeded)
		srv.SetLatency(0)
		time.Sleep(5 * time.Second)
		if out := childrenOf(t, s, "/s/leases"); len(out) != 0 {
			t.Errorf("out are %v", out)
		}
		must(t, m.Acquire(t.Context(), 1))
	})
}

// All permits of the greatest semaphore there is are out: nobody gets another.
func TestThereIsNoPermitBesideAllOfTheGreatestSemaphore(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a := zsync.NewSemaphore(open(t, srv), "/s", math.MaxInt64)
		b := zsync.NewSemaphore(open(t, srv), "/s", math.MaxInt64)
		must(t, b.Acquire(t.Context(), 1))
		must(t, b.Release(1))
		must(t, a.Acquire(t.Context(), math.MaxInt64))
		if ok, err := b.TryAcquire(t.Context(), 1); ok || err != nil {
			t.Errorf("TryAcquire of one more than there are: %v, %v", ok, err)
		}
		wantErr(t, b.Acquire(within(t, time.Second), 1), context.DeadlineExceeded)
	})
}
