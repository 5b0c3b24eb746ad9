package zsync_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

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
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			sg, sf := open(t, srv), open(t, srv)
			ms := warm(t, 1, layout, sg, sf)
			g, f := ms[0], ms[1]
			zsync.ThroughTheGate(g)
			held, listed := false, 0
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == sf.ID() && r.Op == zktest.OpGetChildren2 {
					if listed++; listed == 2 {
						return zktest.Delay(2 * time.Second) // the other takes its permit, and leaves the gate, in between
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
					leases, _ := zsync.SemaphoreZnodes(m)
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
