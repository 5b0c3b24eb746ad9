package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

func TestCallersOfOneKeyShareOneExecution(t *testing.T) {
	for _, keep := range []time.Duration{0, time.Minute} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var ran atomic.Int64
			var shares atomic.Int64
			var wg sync.WaitGroup
			for range 6 {
				f := zsync.NewFlight[string](open(t, srv), "/f", keep)
				for range 2 { // two goroutines of each process
					wg.Go(func() {
						v, shared, err := f.Do(t.Context(), "k/1", func(ctx context.Context) (string, error) {
							ran.Add(1)
							time.Sleep(5 * time.Second)
							return "bar", nil
						})
						if shared {
							shares.Add(1)
						}
						if v != "bar" || err != nil {
							t.Errorf("%q, %v", v, err)
						}
					})
				}
			}
			wg.Wait()
			if ran.Load() != 1 || shares.Load() != 11 {
				t.Errorf("keep %v: ran %d times, %d shared", keep, ran.Load(), shares.Load())
			}
		})
	}
}

func TestAResultIsKeptForItsTimeByTheServersClock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewFlight[int](open(t, srv), "/f", time.Minute), zsync.NewFlight[int](open(t, srv), "/f", time.Minute)
		n := 0
		next := func(context.Context) (int, error) { n++; return n, nil }
		want := func(f *zsync.Flight[int], key string, v int, shared bool) {
			t.Helper()
			got, s, err := f.Do(t.Context(), key, next)
			if got != v || s != shared || err != nil {
				t.Errorf("%d, %v, %v; want %d, %v", got, s, err, v, shared)
			}
		}
		want(a, "k", 1, false)
		want(a, "k", 1, true)
		want(b, "k", 1, true)
		want(b, "other", 2, false)
		time.Sleep(59 * time.Second)
		want(b, "k", 1, true)
		time.Sleep(time.Second)
		want(b, "k", 3, false)
		want(a, "k", 3, true)
	})
}

// The servers' clock is that of their leader, and another leader's may be behind it.
func TestAResultIsNotKeptForLongerBecauseTheServersClockWasSetBack(t *testing.T) {
	const stored = 1_000_000_000 // milliseconds
	for _, c := range []struct {
		keep time.Duration
		late int64 // when the caller came, in milliseconds after the result was stored
		want bool
	}{
		{time.Minute, 0, true}, {time.Minute, 59_999, true}, {time.Minute, 60_000, false},
		{time.Minute, -1, true}, {time.Minute, -60_000, false}, {time.Minute, -3_600_000, false},
		{0, 0, false}, {0, -1, false}, {0, -3_600_000, false},
		{math.MaxInt64, 3_600_000, true}, {math.MaxInt64, -3_600_000, true},
	} {
		if got := zsync.Fresh(c.keep, &zk.Stat{Ctime: stored + c.late, Czxid: 8}, &zk.Stat{Mtime: stored, Mzxid: 7}); got != c.want {
			t.Errorf("kept for %v, %d ms later by the servers' clock: shared is %v, want %v", c.keep, c.late, got, c.want)
		}
		if !zsync.Fresh(c.keep, &zk.Stat{Ctime: stored + c.late, Czxid: 6}, &zk.Stat{Mtime: stored, Mzxid: 7}) {
			t.Errorf("kept for %v: who has waited for it does not get it", c.keep)
		}
	}
}

func TestAResultThatIsKeptForEverIsLookedAfterByNobody(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		f := zsync.NewFlight[int](s, "/f", math.MaxInt64)
		do := func(want bool) {
			t.Helper()
			if v, shared, err := f.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil }); v != 1 || shared != want || err != nil {
				t.Errorf("Do = %d, %v, %v; want shared %v", v, shared, err, want)
			}
		}
		do(false)
		var locked atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if strings.HasPrefix(r.Path, "/f/k/") && r.Op != zktest.OpGetData {
				locked.Add(1)
			}
			return zktest.Pass
		})
		time.Sleep(time.Hour)
		if n := locked.Load(); n > 0 {
			t.Errorf("%d requests about the key in an hour in which nobody called", n)
		}
		srv.Intercept(nil)
		do(true)
	})
}

func TestWhatFailsOrPanicsIsSharedWithNobody(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewFlight[int](open(t, srv), "/f", time.Minute), zsync.NewFlight[int](open(t, srv), "/f", time.Minute)
		bad := errors.New("bad")
		first := async(func() error {
			v, shared, err := a.Do(t.Context(), "k", func(context.Context) (int, error) {
				time.Sleep(time.Second)
				return 7, bad
			})
			if v != 7 || shared {
				t.Errorf("%d, %v", v, shared)
			}
			return err
		})
		time.Sleep(100 * time.Millisecond)
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			b.Do(t.Context(), "k", func(context.Context) (int, error) { panic("oh") })
		}()
		wantErr(t, <-first, bad)
		if p := <-panicked; p != "oh" {
			t.Errorf("recovered %v", p)
		}
		v, shared, err := a.Do(t.Context(), "k", func(context.Context) (int, error) { return 8, nil })
		if v != 8 || shared || err != nil {
			t.Errorf("%d, %v, %v", v, shared, err)
		}
	})
}

// Between a caller's look and its turn to run somebody else may run and be gone.
func TestWhoIsOvertakenBeforeItsTurnGetsTheResult(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		fa, fb := zsync.NewFlight[int](a, "/f", 0), zsync.NewFlight[int](b, "/f", 0)
		id := a.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpCreate && strings.Contains(r.Path, "__WRIT__") {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		first := async(func() error {
			v, shared, err := fa.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
			if v != 2 || !shared {
				t.Errorf("%d, %v; want the result of the other", v, shared)
			}
			return err
		})
		time.Sleep(500 * time.Millisecond)
		v, shared, err := fb.Do(t.Context(), "k", func(context.Context) (int, error) { return 2, nil })
		if v != 2 || shared || err != nil {
			t.Errorf("%d, %v, %v", v, shared, err)
		}
		must(t, <-first)
	})
}

func TestALostSessionIsToldAndAnotherRuns(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		fa, fb := zsync.NewFlight[int](a, "/f", time.Minute), zsync.NewFlight[int](b, "/f", time.Minute)
		running := make(chan struct{})
		first := async(func() error {
			v, _, err := fa.Do(t.Context(), "k", func(ctx context.Context) (int, error) {
				close(running)
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), zsync.ErrLost)
				return 1, nil
			})
			if v != 1 {
				t.Errorf("%d", v)
			}
			return err
		})
		<-running
		second := async(func() error {
			v, shared, err := fb.Do(t.Context(), "k", func(context.Context) (int, error) { return 2, nil })
			if v != 2 || shared {
				t.Errorf("%d, %v", v, shared)
			}
			return err
		})
		synctest.Wait()
		srv.Expire(a.ID())
		wantErr(t, <-first, zsync.ErrLost)
		must(t, <-second)
		if v, shared, err := fa.Do(t.Context(), "k", nil); err == nil {
			t.Error(v, shared)
		}
		v, shared, err := fa.Do(t.Context(), "k", func(context.Context) (int, error) { return 3, nil })
		if v != 2 || !shared || err != nil {
			t.Errorf("%d, %v, %v", v, shared, err)
		}
	})
}

func TestAFlightEndsWhenWhatItsCallerHeldIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		running, end := make(chan struct{}), make(chan struct{})
		slow := async(func() error {
			_, _, err := zsync.NewFlight[int](open(t, srv), "/f", 0).Do(t.Context(), "k", func(context.Context) (int, error) {
				close(running)
				<-end
				return 1, nil
			})
			return err
		})
		<-running
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		waiting := async(func() error {
			return m.Do(t.Context(), func(ctx context.Context) error {
				_, _, err := zsync.NewFlight[int](s, "/f", 0).Do(ctx, "k", func(context.Context) (int, error) { return 2, nil })
				wantErr(t, err, zsync.ErrLost) // of the Mutex
				return err
			})
		})
		time.Sleep(time.Second) // it waits for the slow one
		other := plain(t, srv)
		names, _, err := other.Children("/m")
		must(t, err)
		must(t, other.Delete("/m/"+names[0], -1))
		wantErr(t, <-waiting, zsync.ErrLost)
		close(end)
		must(t, <-slow)
	})
}

func TestOldResultsAreDeletedByWhoStoredThemAndByOthers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		one := func(context.Context) (int, error) { return 1, nil }
		fa, fb := zsync.NewFlight[int](a, "/f", time.Minute), zsync.NewFlight[int](b, "/f", time.Minute)
		for i := range 20 {
			_, _, err := fa.Do(t.Context(), fmt.Sprint(i), one)
			must(t, err)
		}
		time.Sleep(2 * time.Minute)
		if n := childrenOf(t, b, "/f/3"); len(n) != 0 {
			t.Errorf("left: %v", n)
		}
		for i := range 20 {
			_, _, err := fa.Do(t.Context(), fmt.Sprint(i), one)
			must(t, err)
		}
		must(t, a.Close())
		time.Sleep(2 * time.Minute)
		if n := childrenOf(t, b, "/f/3"); len(n) != 1 {
			t.Fatalf("a process that is gone has left %v", n)
		}
		_, _, err := fb.Do(t.Context(), "x", one)
		must(t, err)
		time.Sleep(time.Second)
		for i := range 20 {
			if n := childrenOf(t, b, fmt.Sprint("/f/", i)); len(n) != 0 {
				t.Errorf("left: %v", n)
			}
		}
		if n := childrenOf(t, b, "/f/x"); len(n) != 1 {
			t.Errorf("the new one: %v", n)
		}
	})
}

func TestAFlightStoresOnceWhateverRepliesAreLost(t *testing.T) {
	for at := range 14 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := open(t, srv), open(t, srv)
			fa, fb := zsync.NewFlight[int](a, "/f", time.Minute), zsync.NewFlight[int](b, "/f", time.Minute)
			seen := 0
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == a.ID() && r.Op != zktest.OpPing && r.Op != zktest.OpConnect {
					if seen++; seen == at+1 {
						return zktest.DropReply
					}
				}
				return zktest.Pass
			})
			ran := 0
			v, shared, err := fa.Do(t.Context(), "k", func(context.Context) (int, error) { ran++; return ran, nil })
			srv.Intercept(nil)
			if v != 1 || shared || err != nil || ran != 1 {
				t.Errorf("reply %d lost: %d, %v, %v; ran %d times", at, v, shared, err, ran)
			}
			if v, shared, err = fb.Do(t.Context(), "k", func(context.Context) (int, error) { return 9, nil }); v != 1 || !shared || err != nil {
				t.Errorf("reply %d lost: then %d, %v, %v", at, v, shared, err)
			}
		})
	}
}

func TestFlightRefusesWhatCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		one := func(context.Context) (int, error) { return 1, nil }
		_, _, err := zsync.NewFlight[int](s, "f", 0).Do(t.Context(), "k", one)
		wantErr(t, err, zsync.ErrInvalid)
		_, _, err = zsync.NewFlight[int](s, "/f", -1).Do(t.Context(), "k", one)
		wantErr(t, err, zsync.ErrInvalid)
		_, _, err = zsync.NewFlight[int](s, "/f", 0).Do(t.Context(), "k", nil)
		wantErr(t, err, zsync.ErrInvalid)
		_, _, err = (&zsync.Flight[int]{}).Do(t.Context(), "k", one)
		wantErr(t, err, zsync.ErrInvalid)
		f := zsync.NewFlight[int](s, "/f", 0)
		_, _, err = f.Do(t.Context(), "k", func(ctx context.Context) (int, error) {
			_, _, err := f.Do(ctx, "k", one)
			wantErr(t, err, zsync.ErrDeadlock)
			v, _, err := f.Do(ctx, "", one) // another key
			return v, err
		})
		must(t, err)
		g := zsync.NewFlight[func()](s, "/g", 0)
		if _, _, err = g.Do(t.Context(), "k", func(context.Context) (func(), error) { return nil, nil }); err == nil {
			t.Error("a func was stored")
		}
	})
}

func TestFlightDeletesItsResultThoughItWasBusyOrAway(t *testing.T) {
	for _, how := range []string{"busy", "cut off"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), open(t, srv)
				f, g := zsync.NewFlight[int](s, "/f", time.Minute), zsync.NewFlight[int](other, "/f", time.Minute)
				_, _, err := f.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
				must(t, err)
				time.Sleep(time.Minute + 500*time.Millisecond)
				if how == "busy" {
					g.Do(t.Context(), "k", func(context.Context) (int, error) {
						time.Sleep(2 * time.Second)
						return 0, errors.New("failed")
					})
				} else {
					srv.Stop()
					time.Sleep(2 * time.Minute)
					srv.Restart()
				}
				time.Sleep(time.Hour)
				if _, stat, err := other.Get(t.Context(), "/f/k/result"); err == nil {
					t.Errorf("the result is there: %+v", stat)
				}
			})
		})
	}
}

func TestAClosedSessionIsGarbageThoughAFlightKeepsItsResults(t *testing.T) {
	srv := zktest.Start(t)
	for _, keep := range []time.Duration{0, 24 * time.Hour} {
		w := func() weak.Pointer[zsync.Session] {
			s, err := zsync.Connect(t.Context(), srv.Addr())
			must(t, err)
			defer s.Close()
			_, _, err = zsync.NewFlight[int](s, fmt.Sprint("/f", int(keep)), keep).Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
			must(t, err)
			return weak.Make(s)
		}()
		// real time: the garbage collector does not say when it is done
		for end := time.Now().Add(time.Minute); w.Value() != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			runtime.GC()
		}
		if w.Value() != nil {
			t.Errorf("keep %v: the Session is still in memory", keep)
		}
	}
}

func TestAFlightMadeForEachCallCostsWhatOneThatIsKeptDoes(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ask := func(f *zsync.Flight[int], key string) {
			_, _, err := f.Do(t.Context(), key, func(context.Context) (int, error) { return 1, nil })
			must(t, err)
			synctest.Wait() // what it does in the background
		}
		f := zsync.NewFlight[int](s, "/f", time.Hour)
		for i := range 100 {
			ask(f, fmt.Sprint(i))
		}
		kept := requests(srv, func() { ask(f, "a") })
		for _, key := range []string{"b", "c"} {
			if anew := requests(srv, func() { ask(zsync.NewFlight[int](s, "/f", time.Hour), key) }); anew > kept {
				t.Errorf("%d requests of a Flight made for the call, and %d of one that is kept", anew, kept)
			}
		}
	})
}

func TestAKeyThatIsAlwaysInUseIsLookedAfterOnceAMinuteHoweverOftenItsFunctionRan(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		f, user := zsync.NewFlight[int](s, "/f", 0), zsync.NewRWMutex(other, "/f/k")
		for range 20 {
			_, _, err := f.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
			must(t, err)
			must(t, user.RLock(t.Context()))
			time.Sleep(time.Minute - time.Second/2)
			must(t, user.RUnlock())
			time.Sleep(time.Second / 2)
		}
		must(t, user.RLock(t.Context()))
		var n atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op != zktest.OpPing {
				n.Add(1)
			}
			return zktest.Pass
		})
		time.Sleep(time.Minute)
		if n := n.Load(); n > 2 {
			t.Errorf("%d requests in a minute, to look after one result", n)
		}
		must(t, user.RUnlock())
		time.Sleep(2 * time.Minute)
		if _, stat, err := other.Get(t.Context(), "/f/k/result"); err == nil {
			t.Errorf("the result is there: %+v", stat)
		}
	})
}

func TestAResultThatIsStoredAsItsContextEndsIsDeletedWhenItsTimeIsOver(t *testing.T) {
	for _, act := range []zktest.Action{zktest.Pass, zktest.Delay(5 * time.Second), zktest.DropReply} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			f := zsync.NewFlight[int](open(t, srv), "/f", time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stored := false
			srv.Intercept(harness.First(act, func(r zktest.Request) bool {
				is := r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, func(o zktest.Request) bool { return o.Path == "/f/k/result" })
				if is && ctx.Err() == nil {
					stored = true
					cancel()
				}
				return is
			}))
			_, _, err := f.Do(ctx, "k", func(context.Context) (int, error) { return 1, nil })
			// With Pass, the reply and the end of the context are ready at once: Do may return either.
			if act != zktest.Pass || err != nil {
				wantErr(t, err, context.Canceled)
			}
			if !stored {
				t.Fatal("nothing was stored")
			}
			time.Sleep(time.Hour)
			if left := childrenOf(t, open(t, srv), "/f/k"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestAResultThatMayNotBeDeletedIsNotLookedAfterForEver(t *testing.T) {
	for what, acl := range map[string]int32{"the lock": zk.PermRead, "the deletion": zk.PermRead | zk.PermCreate | zk.PermDelete} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			f := zsync.NewFlight[int](s, "/f", time.Second)
			_, _, err := f.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
			must(t, err)
			harness.SetACL(t, srv, "/f/k", zk.WorldACL(acl))
			var n atomic.Int32
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op != zktest.OpPing {
					n.Add(1)
				}
				if r.Op == zktest.OpMulti && what == "the deletion" {
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
			time.Sleep(10 * time.Minute)
			if first := n.Swap(0); first == 0 || first > 20 {
				t.Errorf("%s refused: %d requests", what, first)
			}
			time.Sleep(time.Hour)
			if more := n.Load(); more > 0 {
				t.Errorf("%s refused: %d requests in the next hour", what, more)
			}
		})
	}
}

func TestManyResultsOfAProcessThatIsGoneAreDeletedByOneSweep(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const results = 500
		s, gone := open(t, srv), open(t, srv)
		f := zsync.NewFlight[int](gone, "/f", 30*time.Second)
		for i := range results {
			_, _, err := f.Do(t.Context(), fmt.Sprint(i), func(context.Context) (int, error) { return 1, nil })
			must(t, err)
		}
		gone.Close()
		time.Sleep(time.Minute)
		srv.SetLatency(10 * time.Millisecond)
		f = zsync.NewFlight[int](s, "/f", 0)
		before := srv.Counts()
		const calls = 60
		for range calls {
			_, _, err := f.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
			must(t, err)
			time.Sleep(time.Second)
		}
		if n := srv.Counts().Sub(before).Total(); n > 10*results+50*calls {
			t.Errorf("%d requests", n)
		}
		for i := range results {
			if _, _, err := s.Get(t.Context(), fmt.Sprint("/f/", i, "/result")); err == nil {
				t.Fatalf("result %d is there", i)
			}
		}
	})
}

// A result that is too large is not stored. A minute later, the process looks after it. The path
// of the Flight, which the servers have removed by then, must not come back for ever.
func TestAFlightWhoseResultIsNotStoredLeavesNoPathBehind(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		f := zsync.NewFlight[string](s, "/cache/prices", 5*time.Minute)
		_, _, err := f.Do(t.Context(), "EUR", func(context.Context) (string, error) { return strings.Repeat("x", 2<<20), nil })
		wantErr(t, err, zsync.ErrTooLarge)
		time.Sleep(20 * time.Minute)
		must(t, s.Close())
		other := open(t, srv)
		time.Sleep(20 * time.Minute)
		if names := childrenOf(t, other, "/cache"); len(names) > 0 {
			t.Errorf("children of /cache that stay for ever: %v; below: %v", names, childrenOf(t, other, "/cache/prices"))
		}
	})
}
