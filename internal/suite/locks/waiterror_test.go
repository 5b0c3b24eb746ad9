package locks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// waitErrorOf returns the WaitError in the chain of err, which must also be the
// end of ctx.
func waitErrorOf(t *testing.T, ctx context.Context, err error) *zsync.WaitError {
	t.Helper()
	harness.WantErr(t, err, ctx.Err(), context.Cause(ctx))
	var w *zsync.WaitError
	if !errors.As(err, &w) {
		t.Fatalf("%v: no WaitError in the chain", err)
	}
	return w
}

// waits are all that can be waited for, with a holder in another process, and
// what waits behind it.
var waits = map[string]func(t *testing.T, holder, waiter *zsync.Session) (wait func(ctx context.Context) error){
	"Mutex": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewMutex(a, "/x").Lock(t.Context()))
		return zsync.NewMutex(b, "/x").Lock
	},
	"Mutex in strict order": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewMutex(a, "/x").Lock(t.Context()))
		return zsync.NewMutex(b, "/x", zsync.WithHandoffs(0)).Lock
	},
	"Mutex.Do": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewMutex(a, "/x").Lock(t.Context()))
		return func(ctx context.Context) error {
			return zsync.NewMutex(b, "/x").Do(ctx, func(context.Context) error { return nil })
		}
	},
	"RWMutex, behind a reader": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewRWMutex(a, "/x").RLock(t.Context()))
		return zsync.NewRWMutex(b, "/x").Lock
	},
	"RWMutex, behind a writer": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewRWMutex(a, "/x").Lock(t.Context()))
		return zsync.NewRWMutex(b, "/x").RLock
	},
	"Semaphore": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewSemaphore(a, "/x", 1).Acquire(t.Context(), 1))
		m := zsync.NewSemaphore(b, "/x", 1)
		return func(ctx context.Context) error { return m.Acquire(ctx, 1) }
	},
	"Semaphore with weights": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewSemaphore(a, "/x", 5000).Acquire(t.Context(), 5000))
		m := zsync.NewSemaphore(b, "/x", 5000)
		return func(ctx context.Context) error { return m.Do(ctx, 7, func(context.Context) error { return nil }) }
	},
	"Election": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewElection(a, "/x").Campaign(t.Context()))
		return zsync.NewElection(b, "/x").Campaign
	},
	"Election.Run": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewElection(a, "/x").Campaign(t.Context()))
		return func(ctx context.Context) error {
			return zsync.NewElection(b, "/x").Run(ctx, func(context.Context) error { return nil })
		}
	},
	"LockAll": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		harness.Must(t, zsync.NewMutex(a, "/x").Lock(t.Context()))
		return func(ctx context.Context) error {
			_, err := zsync.LockAll(ctx, zsync.NewMutex(b, "/x"), zsync.NewMutex(b, "/y"))
			return err
		}
	},
	"Once": func(t *testing.T, a, b *zsync.Session) func(context.Context) error {
		go zsync.NewOnce(a, "/x").Do(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil })
		synctest.Wait()
		return func(ctx context.Context) error {
			return zsync.NewOnce(b, "/x").Do(ctx, func(context.Context) error { return nil })
		}
	},
}

func TestAnEndedWaitSaysBehindWhomForHowLongAndAtWhichPlace(t *testing.T) {
	for name, prepare := range waits {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv, zsync.WithOwner("holder:1")), suite.Open(t, srv, zsync.WithOwner("waiter:2"))
				wait := prepare(t, a, b)
				cause := errors.New("enough")
				for _, d := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
					ctx, cancel := context.WithTimeoutCause(t.Context(), d, cause)
					err := wait(ctx)
					w := waitErrorOf(t, ctx, err)
					harness.WantErr(t, err, cause)
					cancel()
					if w.Place != 1 || w.Behind.Node == "" || !w.Behind.Holding || w.Waited != d {
						t.Errorf("after %v: %+v; want the first place behind a known znode", d, *w)
					}
					if long := d > time.Second; long != (w.Behind.Owner == "holder:1") || long != (w.Behind.Session == a.ID()) {
						t.Errorf("after %v: behind %+v", d, w.Behind)
					}
					if !strings.Contains(err.Error(), w.Behind.Node) || !strings.Contains(err.Error(), "1 ahead") || strings.Contains(err.Error(), "no server answered") {
						t.Errorf("the message does not say it: %v", err)
					}
				}
			})
		})
	}
}

func TestALongWaitCostsOneRequestEachTimeThatItHasDoubled(t *testing.T) {
	for name, prepare := range waits {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				wait := prepare(t, a, b)
				ctx, cancel := context.WithCancel(t.Context())
				got := harness.Async(func() error { return wait(ctx) })
				time.Sleep(900 * time.Millisecond)
				var looks, others atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Session != b.ID() || r.Op == zktest.OpPing:
					case r.Op == zktest.OpGetData || r.Op == zktest.OpMultiRead:
						looks.Add(1)
					case r.Op == zktest.OpSync || r.Op == zktest.OpDelete: // keep a session certain that has the gate
						others.Add(1)
					default:
						t.Errorf("a request of kind %v", r.Op)
					}
					return zktest.Pass
				})
				time.Sleep(70 * time.Second) // looks at 1, 2, 4, 8, 16, 32 and 64 s
				if looks := looks.Load(); looks != 7 {
					t.Errorf("%d looks in a wait of 71 s, want 7", looks)
				}
				if others := others.Load(); others > 0 && !strings.HasPrefix(name, "Semaphore") {
					t.Errorf("%d other requests", others)
				}
				cancel()
				<-got
			})
		})
	}
}

func TestAWaitThatEndsKnowsWhoHasGoneAheadOfIt(t *testing.T) {
	for _, c := range []struct {
		n       int
		refused bool // no listing is answered
		place   int
		behind  string
	}{
		{n: 3, place: 1, behind: "p2"}, // as many as are kept
		{n: 12, place: 1, behind: "p11"},
		{n: 12, refused: true, place: 12, behind: "p0"}, // what was known before
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				n := c.n
				var ms []*zsync.Mutex
				for i := range n + 1 {
					ms = append(ms, zsync.NewMutex(suite.Open(t, srv, zsync.WithOwner(fmt.Sprint("p", i))), "/m"))
				}
				harness.Must(t, ms[0].Lock(t.Context()))
				for _, m := range ms[1:n] {
					go m.Lock(t.Context())
					synctest.Wait()
				}
				ctx, cancel := context.WithCancel(t.Context())
				got := harness.Async(func() error { return ms[n].Lock(ctx) })
				time.Sleep(1500 * time.Millisecond)
				for _, m := range ms[:n-1] { // the last of them does not go, and it alone is watched
					harness.Must(t, m.Unlock())
					synctest.Wait()
				}
				if c.refused {
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpGetChildren2 {
							return zktest.Fail(zktest.CodeNoAuth)
						}
						return zktest.Pass
					})
				}
				time.Sleep(time.Second) // a look
				cancel()
				w := waitErrorOf(t, ctx, <-got)
				if w.Place != c.place || w.Behind.Owner != c.behind {
					t.Errorf("%+v; want place %d behind %s", *w, c.place, c.behind)
				}
			})
		})
	}
}

func TestAWaitWithinOneProcessKnowsTheHolderWithoutARequest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, zsync.WithOwner("me"))
		m, e := zsync.NewMutex(s, "/m"), zsync.NewElection(s, "/e", zsync.WithID("cand"))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, e.Campaign(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		first := harness.Async(func() error { return m.Lock(ctx) })
		synctest.Wait()
		second := harness.Async(func() error { return m.Lock(ctx) })
		third := harness.Async(func() error { return e.Campaign(ctx) })
		time.Sleep(100 * time.Millisecond)
		cancel()
		for i, got := range []<-chan error{first, second, third} {
			w := waitErrorOf(t, ctx, <-got)
			owner := []string{"me", "me", "cand"}[i]
			if w.Behind.Owner != owner || w.Behind.Session != s.ID() || w.Waited != 100*time.Millisecond {
				t.Errorf("waiter %d: %+v", i, *w)
			}
			if want := []int{1, 2, 1}[i]; i != 1 && w.Place != want || w.Place < 1 || w.Place > want {
				// The first may have left before the second is asked.
				t.Errorf("waiter %d: place %d, want %d", i, w.Place, want)
			}
		}
	})
}

func TestThePlaceAmongThoseWhoAskForPermitsCountsThemAll(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b, c := suite.Open(t, srv), suite.Open(t, srv, zsync.WithOwner("first")), suite.Open(t, srv)
		harness.Must(t, zsync.NewSemaphore(a, "/s", 1).Acquire(t.Context(), 1))
		go zsync.NewSemaphore(b, "/s", 1).Acquire(t.Context(), 1)
		synctest.Wait()
		ctx := harness.Within(t, 3*time.Second)
		w := waitErrorOf(t, ctx, errorAt(ctx, zsync.NewSemaphore(c, "/s", 1)))
		if w.Place != 2 || w.Behind.Owner != "first" || w.Behind.Holding || w.Behind.Mode != zsync.ModePermits {
			t.Errorf("%+v; want place 2 behind the first who asks", *w)
		}
	})
}

func errorAt(ctx context.Context, m *zsync.Semaphore) error { return m.Acquire(ctx, 1) }

func TestAWaitThatWasClosedOrHadNoPlaceSaysSo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv, zsync.WithOwner("holder")), suite.Open(t, srv)
		harness.Must(t, zsync.NewMutex(a, "/m").Lock(t.Context()))
		got := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(t.Context()) })
		time.Sleep(3 * time.Second)
		b.Close()
		err := <-got
		harness.WantErr(t, err, zsync.ErrClosed)
		if w := (*zsync.WaitError)(nil); !errors.As(err, &w) || w.Place != 1 || w.Behind.Owner != "holder" {
			t.Errorf("%v: want one that says behind whom", err)
		}
		c := suite.Open(t, srv)
		srv.Stop()
		defer srv.Restart()
		ctx := harness.Within(t, time.Minute)
		w := waitErrorOf(t, ctx, zsync.NewMutex(c, "/m").Lock(ctx))
		if w.Place != 0 || w.Behind != (zsync.Contender{}) || !strings.Contains(w.Error(), "no server answered") {
			t.Errorf("%v: %+v", w, *w)
		}
		// One that has ended before is no wait.
		if err := zsync.NewMutex(a, "/m").Lock(ctx); errors.As(err, &w) {
			t.Errorf("%v: it has not waited", err)
		}
	})
}

func TestWhatCannotBeReadStaysUnknownAndTheWaitGoesOn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		var looks atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if (r.Op == zktest.OpGetData || r.Op == zktest.OpMultiRead) && r.Session == b.ID() {
				looks.Add(1)
				return zktest.DropReply
			}
			return zktest.Pass
		})
		got := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(t.Context()) })
		time.Sleep(1500 * time.Millisecond)
		srv.Intercept(nil)
		if looks.Load() == 0 {
			t.Error("nobody has looked")
		}
		harness.Must(t, m.Unlock())
		harness.Must(t, <-got)
	})
}

func TestAWaitWhoseSessionHasEndedHasNoPlaceAndNamesNobody(t *testing.T) {
	t.Parallel()
	for name, prepare := range waits {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, b := suite.Open(t, srv), suite.Open(t, srv)
				wait := prepare(t, a, b)
				ctx := harness.Within(t, time.Minute)
				got := harness.Async(func() error { return wait(ctx) })
				time.Sleep(5 * time.Second)
				srv.Stop()
				if w := waitErrorOf(t, ctx, <-got); w.Place != 0 || w.Behind != (zsync.Contender{}) {
					t.Errorf("without a session for most of a minute: %+v", *w)
				}
				srv.Restart()
			})
		})
	}
}

// The waiter's znode is deleted, and its next znode has no reply yet.
func TestAWaitWhoseZnodeWasDeletedHasNoPlace(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		harness.Must(t, zsync.NewMutex(a, "/m").Lock(t.Context()))
		ctx := harness.Within(t, 3*time.Second)
		got := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(ctx) })
		synctest.Wait()
		id := b.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpCreate {
				return zktest.Hang
			}
			return zktest.Pass
		})
		suite.DeleteContender(t, a, "/m", 1)
		if w := waitErrorOf(t, ctx, <-got); w.Place != 0 || w.Behind != (zsync.Contender{}) {
			t.Errorf("%+v", *w)
		}
	})
}

func TestAWaitHasAPlaceWhereNumbersSayNothingAnyMore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ms []*zsync.Mutex
		for range 4 {
			ms = append(ms, zsync.NewMutex(suite.Open(t, srv), "/m"))
		}
		_, err := znodes.Create(t.Context(), inside.Live(t, inside.Session(ms[0])), "/m", nil)
		harness.Must(t, err)
		srv.SetSequence("/m", math.MaxInt32-1)
		harness.Must(t, ms[0].Lock(t.Context()))
		holder := suite.ChildrenOf(t, inside.Session(ms[0]), "/m")[0]
		for i, m := range ms[1:] {
			ctx := harness.Within(t, time.Duration(5-i)*time.Second)
			got := harness.Async(func() error { return m.Lock(ctx) })
			synctest.Wait()
			defer func() {
				if w := waitErrorOf(t, ctx, <-got); w.Place != i+1 || w.Behind.Node != holder {
					t.Errorf("%+v; want place %d behind %q", *w, i+1, holder)
				}
			}()
		}
	})
}

// A Do waits for the function of another goroutine of its Once, and has no place in the line.
func TestAWaitForAnotherGoroutineOfAOnceSaysHowLongItWas(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		o := zsync.NewOnce(s, "/once")
		running := harness.Async(func() error {
			return o.Do(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		})
		synctest.Wait()
		idle := func(context.Context) error { return nil }
		ctx := harness.Within(t, time.Minute)
		if w := waitErrorOf(t, ctx, o.Do(ctx, idle)); w.Waited != time.Minute || w.Place != 0 {
			t.Errorf("%v with %d ahead, want a minute, and no place", w.Waited, w.Place)
		}
		waiting := harness.Async(func() error { return o.Do(t.Context(), idle) })
		time.Sleep(time.Second)
		harness.Must(t, s.Close())
		var w *zsync.WaitError
		if err := <-waiting; !errors.Is(err, zsync.ErrClosed) || !errors.As(err, &w) || w.Waited != time.Second {
			t.Errorf("after Close: %v, want a WaitError of a second", err)
		}
		<-running
	})
}
