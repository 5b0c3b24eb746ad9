package zsync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// nothing is a function for Do that must not run.
func nothing(t testing.TB) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the function ran, though it was done")
		return nil
	}
}

func ok(context.Context) error { return nil }

func TestOnceRunsOneFunctionAmongAllSessionsAndGoroutines(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		const sessions, values, goroutines = 3, 2, 5
		var ran atomic.Int32
		var wg, calling sync.WaitGroup
		calling.Add(sessions * values * goroutines)
		for range sessions {
			s := connect()
			for range values {
				o := zsync.NewOnce(s, "/o")
				for range goroutines {
					wg.Go(func() {
						calling.Done()
						err := o.Do(ctx, func(context.Context) error {
							ran.Add(1)
							calling.Wait() // all others call Do while it runs
							return nil
						})
						if err != nil {
							t.Error(err)
						}
						if ran.Load() != 1 {
							t.Errorf("%d functions ran when Do returned, want 1", ran.Load())
						}
						if done, err := o.Done(ctx); !done || err != nil {
							t.Errorf("Done = %v, %v after Do", done, err)
						}
					})
				}
			}
		}
		wg.Wait()
	})
}

func TestOnceCostsNothingHereAndOneRequestElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		a, b := open(t, srv), open(t, srv)
		first, other := zsync.NewOnce(a, "/o"), zsync.NewOnce(b, "/o")
		must(t, zsync.NewOnce(a, "/p").Do(ctx, ok))
		m := zsync.NewMutex(a, "/o") // makes the parent
		must(t, m.Lock(ctx))
		must(t, m.Unlock())

		cost := func(s *zsync.Session, what string, want int64, f func()) {
			t.Helper()
			synctest.Wait()
			before := s.Stats().Requests
			f()
			synctest.Wait()
			if got := s.Stats().Requests - before; got != want {
				t.Errorf("%s cost %d requests, want %d", what, got, want)
			}
		}
		cost(b, "Done when it is not", 3, func() { other.Done(ctx) })
		cost(a, "the first Do", 5, func() { must(t, first.Do(ctx, ok)) })
		cost(a, "1000 more", 0, func() {
			for range 1000 {
				must(t, first.Do(ctx, nothing(t)))
			}
			first.Done(ctx)
		})
		cost(b, "Do elsewhere", 1, func() { must(t, other.Do(ctx, nothing(t))) })
		cost(b, "the next there", 0, func() { must(t, other.Do(ctx, nothing(t))) })
		cost(b, "Done there", 0, func() { other.Done(ctx) })
		cost(b, "Done of another value", 0, func() { zsync.NewOnce(b, "/o").Done(ctx) })
		cost(b, "Do of another value", 0, func() { must(t, zsync.NewOnce(b, "/o").Do(ctx, nothing(t))) })
		cost(b, "OnceFunc", 0, func() { must(t, zsync.OnceFunc(b, "/o", nothing(t))(ctx)) })
		cost(b, "Reset", 3, func() { must(t, other.Reset(ctx)) })

		release := make(chan struct{})
		running := async(func() error {
			return first.Do(ctx, func(context.Context) error { <-release; return nil })
		})
		cost(b, "a Do that waits", 7, func() {
			waiting := async(func() error { return other.Do(ctx, nothing(t)) })
			synctest.Wait()
			close(release)
			must(t, <-waiting)
		})
		must(t, <-running)
	})
}

func TestOnceIsForEverEvenWhenContainersAreReaped(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		must(t, zsync.NewOnce(a, "/x/y/o").Do(t.Context(), ok))
		a.Close()
		time.Sleep(time.Hour)
		must(t, zsync.NewOnce(b, "/x/y/o").Do(t.Context(), nothing(t)))
		synctest.Wait()
		if got := childrenOf(t, b, "/x/y/o"); len(got) != 1 || got[0] != "done" {
			t.Errorf("children are %q, want done alone", got)
		}
	})
}

func TestAFailedFunctionLetsTheNextDoRunItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		oa, ob := zsync.NewOnce(a, "/o"), zsync.NewOnce(b, "/o")
		boom := errors.New("boom")
		failing := async(func() error {
			return oa.Do(t.Context(), func(context.Context) error {
				time.Sleep(time.Second)
				return boom
			})
		})
		synctest.Wait()
		var ran atomic.Bool
		next := async(func() error {
			return ob.Do(t.Context(), func(context.Context) error { ran.Store(true); return nil })
		})
		if err := <-failing; err != boom {
			t.Errorf("Do returned %v, want the function's error as it is", err)
		}
		must(t, <-next)
		if !ran.Load() {
			t.Error("the next did not run its function")
		}
		must(t, oa.Do(t.Context(), nothing(t)))
	})
}

func TestAPanicCountsAsCalledForThisOnceAlone(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		o, other := zsync.NewOnce(a, "/o"), zsync.NewOnce(b, "/o")
		waiting := make(chan error, 1)
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v, want the panic to go on", r)
				}
			}()
			o.Do(t.Context(), func(context.Context) error {
				go func() { waiting <- o.Do(t.Context(), nothing(t)) }()
				synctest.Wait()
				panic("boom")
			})
		}()
		wantErr(t, <-waiting, zsync.ErrPanicked)
		wantErr(t, o.Do(t.Context(), nothing(t)), zsync.ErrPanicked)
		if done, err := o.Done(t.Context()); done || err != nil {
			t.Errorf("Done = %v, %v after a panic", done, err)
		}
		must(t, other.Do(t.Context(), ok))
		wantErr(t, o.Do(t.Context(), nothing(t)), zsync.ErrPanicked)
		synctest.Wait()
		if got := childrenOf(t, b, "/o"); len(got) != 1 {
			t.Errorf("children are %q, want done alone", got)
		}
		must(t, o.Reset(t.Context()))
		must(t, o.Do(t.Context(), ok))
	})
}

func TestAGoexitCountsAsAPanic(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := zsync.NewOnce(open(t, srv), "/o")
		var wg sync.WaitGroup
		wg.Go(func() {
			o.Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		})
		wg.Wait()
		wantErr(t, o.Do(t.Context(), nothing(t)), zsync.ErrPanicked)
	})
}

func TestASessionLostWhileTheFunctionRunsMarksNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		oa, ob := zsync.NewOnce(a, "/o"), zsync.NewOnce(b, "/o")
		ran := make(chan struct{})
		err := oa.Do(t.Context(), func(ctx context.Context) error {
			next := async(func() error {
				return ob.Do(t.Context(), func(context.Context) error { close(ran); return errors.New("not I") })
			})
			synctest.Wait()
			srv.Expire(a.ID())
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), zsync.ErrLost)
			<-next
			return nil
		})
		wantErr(t, err, zsync.ErrLost)
		<-ran
		if done, err := ob.Done(t.Context()); done || err != nil {
			t.Errorf("Done = %v, %v; want nothing marked", done, err)
		}
		must(t, oa.Do(t.Context(), ok)) // in the next session
	})
}

func TestAProcessCutOffInsideItsFunctionLetsTheNextRun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		stuck := make(chan struct{})
		first := async(func() error {
			return zsync.NewOnce(a, "/o").Do(t.Context(), func(context.Context) error { <-stuck; return nil })
		})
		synctest.Wait()
		id := a.ID()
		srv.Partition(id)
		must(t, zsync.NewOnce(b, "/o").Do(t.Context(), ok))
		close(stuck)
		wantErr(t, <-first, zsync.ErrLost)
		srv.Heal(id)
	})
}

func TestAWaitingDoCarriesOnInTheNextSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		release := make(chan struct{})
		first := async(func() error {
			return zsync.NewOnce(a, "/o").Do(t.Context(), func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		waiting := async(func() error { return zsync.NewOnce(b, "/o").Do(t.Context(), nothing(t)) })
		for range 3 {
			synctest.Wait()
			srv.Expire(b.ID())
			time.Sleep(time.Second)
			pendingStill(t, waiting)
		}
		close(release)
		must(t, <-first)
		must(t, <-waiting)
		synctest.Wait()
		if got := childrenOf(t, a, "/o"); len(got) != 1 {
			t.Errorf("children are %q, want done alone", got)
		}
	})
}

func TestAThousandWaitersLearnAtOnceThatItIsDone(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const processes, each = 50, 20
		srv.SetLatency(10 * time.Millisecond)
		a := open(t, srv)
		release := make(chan struct{})
		first := async(func() error {
			return zsync.NewOnce(a, "/o").Do(t.Context(), func(context.Context) error { <-release; return nil })
		})
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		for range processes {
			o := zsync.NewOnce(open(t, srv), "/o")
			for range each {
				wg.Go(func() {
					if err := o.Do(t.Context(), nothing(t)); err != nil {
						t.Error(err)
					}
				})
			}
		}
		time.Sleep(time.Second)
		if n := len(childrenOf(t, a, "/o")); n != processes+1 {
			t.Errorf("%d znodes, want one for each process", n)
		}
		before, start := srv.Counts(), time.Now()
		close(release)
		wg.Wait()
		if d := time.Since(start); d > 200*time.Millisecond {
			t.Errorf("the last learnt it after %v, want a few round trips", d)
		}
		must(t, <-first)
		time.Sleep(time.Second)
		d := srv.Counts().Sub(before)
		// The mark, the going of the one ahead and its own, for each process.
		if d.Notifications > 3*processes+2 {
			t.Errorf("%d notifications for %d processes", d.Notifications, processes)
		}
		// Each reads the mark and deletes its znode.
		if d.Total() > 2*processes+8 {
			t.Errorf("%d requests for %d processes: %v", d.Total(), processes, d.Requests)
		}
	})
}

func TestADoInsideDoIsADeadlock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		o := zsync.NewOnce(s, "/o")
		must(t, o.Do(t.Context(), func(ctx context.Context) error {
			wantErr(t, o.Do(ctx, nothing(t)), zsync.ErrDeadlock)
			wantErr(t, zsync.NewOnce(s, "/o").Do(ctx, nothing(t)), zsync.ErrDeadlock)
			return zsync.NewOnce(s, "/another").Do(ctx, ok)
		}))
	})
}

func TestACancelledDoLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		o := zsync.NewOnce(b, "/o")
		release := make(chan struct{})
		first := async(func() error {
			return zsync.NewOnce(a, "/o").Do(t.Context(), func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		cause := errors.New("enough")
		for range 50 {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
			wantErr(t, o.Do(ctx, nothing(t)), cause, context.Canceled)
			if n := len(childrenOf(t, a, "/o")); n != 1 {
				t.Fatalf("%d znodes after a cancelled Do, want the runner's", n)
			}
			wantErr(t, o.Do(ctx, nothing(t)), cause, context.Canceled)
		}
		if n := b.Stats().Watches; n > 2 {
			t.Errorf("%d watches are left", n)
		}
		close(release)
		must(t, <-first)
	})
}

// The server stops answering at the k'th request of a Do, and ctx ends a moment
// later: whether Do waits, has its turn, or has run a function that failed, it
// returns at once.
func TestDoEndsWithItsContextWhicheverRequestIsNotAnswered(t *testing.T) {
	boom := errors.New("boom")
	for _, fails := range []bool{false, true} {
		for k := 1; ; k++ {
			more := false
			t.Run(fmt.Sprintf("request %d, f fails: %v", k, fails), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					ctx, cancel := context.WithCancel(t.Context())
					var n atomic.Int32
					var ended time.Time
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpPing || r.Op == zktest.OpConnect || n.Add(1) != int32(k) {
							return zktest.Pass
						}
						time.AfterFunc(10*time.Millisecond, func() { ended = time.Now(); cancel() })
						return zktest.Hang
					})
					err := zsync.NewOnce(s, "/o").Do(ctx, func(context.Context) error {
						if fails {
							return boom
						}
						return nil
					})
					if more = !ended.IsZero(); !more {
						return
					}
					if d := time.Since(ended); d > 2*session.Grace {
						t.Errorf("it took %v: %v", d, err)
					}
					if !errors.Is(err, context.Canceled) && !errors.Is(err, boom) {
						t.Errorf("got error %v", err)
					}
				})
			})
			if !more {
				break
			}
		}
	}
}

func TestAFunctionThatSucceedsAfterItsContextEndedIsMarked(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		must(t, zsync.NewOnce(s, "/o").Do(ctx, func(context.Context) error { cancel(); return nil }))

		// With a server that does not answer, Do returns and the mark follows.
		ctx, cancel = context.WithCancel(t.Context())
		err := zsync.NewOnce(s, "/p").Do(ctx, func(context.Context) error {
			srv.SetLatency(time.Second)
			cancel()
			return nil
		})
		wantErr(t, err, context.Canceled)
		time.Sleep(5 * time.Second)
		must(t, zsync.NewOnce(other, "/p").Do(t.Context(), nothing(t)))
	})
}

// The other makes the mark, and leaves the line, between our look for the mark and
// our create: so nobody is ahead of us, and only the watch tells that it is done.
func TestAMarkMadeBeforeWeEnterTheLineIsSeenThoughNobodyIsAhead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m := zsync.NewMutex(other, "/o") // makes the parent
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
		id := s.ID()
		var creates, looks atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != id:
			case r.Op == zktest.OpExists && looks.Add(1) > 0, r.Op == zktest.OpGetData && looks.Add(1) > 0:
			case r.Op == zktest.OpCreate && creates.Add(1) == 1:
				must(t, zsync.NewOnce(other, "/o").Do(t.Context(), ok))
			}
			return zktest.Pass
		})
		must(t, zsync.NewOnce(s, "/o").Do(t.Context(), nothing(t)))
		if creates.Load() != 1 || looks.Load() == 0 {
			t.Errorf("%d creates, %d looks", creates.Load(), looks.Load())
		}
		synctest.Wait()
		if got := childrenOf(t, s, "/o"); len(got) != 1 {
			t.Errorf("children are %q, want done alone", got)
		}
	})
}

// The connection is replaced between the look and the create, and what was missed
// meanwhile is told behind the new handshake.
func TestAMarkMadeWhileTheConnectionIsReplacedIsSeenThoughNobodyIsAhead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		id := s.ID()
		var dropped atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpCreate && !dropped.Swap(true) {
				must(t, zsync.NewOnce(other, "/o").Do(t.Context(), ok))
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		must(t, zsync.NewOnce(s, "/o").Do(t.Context(), nothing(t)))
		if !dropped.Load() || s.ID() != id {
			t.Error("the create was not dropped within one session")
		}
	})
}

func TestAFunctionWhosePlaceInTheLineIsDeletedMarksNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, look := open(t, srv), open(t, srv)
		err := zsync.NewOnce(s, "/o").Do(t.Context(), func(context.Context) error {
			for _, name := range childrenOf(t, look, "/o") {
				must(t, znodes.RemoveNow(t.Context(), live(t, look), "/o/"+name))
			}
			return nil
		})
		wantErr(t, err, zsync.ErrLost)
		ran := 0
		must(t, zsync.NewOnce(look, "/o").Do(t.Context(), func(context.Context) error { ran++; return nil }))
		if ran != 1 {
			t.Errorf("the function of another ran %d times, want 1", ran)
		}
	})
}

// The transaction is applied, its reply is lost, and before it is sent again the
// mark is deleted: what was done is not done a second time by the same call.
func TestAMarkWhoseReplyIsLostAndThatIsResetIsNotMadeTwice(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		id := s.ID()
		var multis atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session != id || r.Op != zktest.OpMulti {
				return zktest.Pass
			}
			if multis.Add(1) == 1 {
				return zktest.DropReply
			}
			must(t, zsync.NewOnce(other, "/o").Reset(t.Context()))
			return zktest.Pass
		})
		ran := 0
		err := zsync.NewOnce(s, "/o").Do(t.Context(), func(context.Context) error { ran++; return nil })
		wantErr(t, err, zsync.ErrLost)
		if done, err := zsync.NewOnce(other, "/o").Done(t.Context()); done || err != nil || ran != 1 {
			t.Errorf("after the reset: done %v, %v; ran %d times", done, err, ran)
		}
	})
}

func TestALostReplyToTheMarkIsResolved(t *testing.T) {
	for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			srv.Intercept(first(fault, op(zktest.OpMulti)))
			var ran int
			must(t, zsync.NewOnce(s, "/o").Do(t.Context(), func(context.Context) error { ran++; return nil }))
			must(t, zsync.NewOnce(open(t, srv), "/o").Do(t.Context(), nothing(t)))
			if ran != 1 {
				t.Errorf("ran %d times", ran)
			}
			synctest.Wait()
			if got := childrenOf(t, s, "/o"); len(got) != 1 {
				t.Errorf("children are %q, want done alone", got)
			}
		})
	}
}

// The reply to the transaction is lost, and then the session, as far as the
// client is told; on the server it lives on for its timeout.
func TestAMarkWhoseReplyAndSessionAreLostIsResolvedInTheNextSession(t *testing.T) {
	for _, c := range []struct {
		fault   zktest.Action
		applied bool
	}{{zktest.DropRequest, false}, {zktest.DropReply, true}} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			id := s.ID()
			var dropped atomic.Bool
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Op == zktest.OpMulti && !dropped.Swap(true):
					return c.fault
				case r.Op == zktest.OpConnect && r.Session == id && dropped.Load():
					return zktest.Fail(zktest.CodeSessionExpired)
				}
				return zktest.Pass
			})
			err := zsync.NewOnce(s, "/o").Do(t.Context(), ok)
			if c.applied {
				must(t, err)
			} else {
				wantErr(t, err, zsync.ErrLost)
			}
			done, err := zsync.NewOnce(open(t, srv), "/o").Done(t.Context())
			must(t, err)
			if done != c.applied {
				t.Errorf("%v: done is %v, and Do said otherwise", c.fault, done)
			}
		})
	}
}

// What became of the transaction nobody can find out before Do returns: so it does not
// say that the thing is not marked.
func TestADoThatCannotFindOutWhetherItMadeTheMarkDoesNotSayThatItIsLost(t *testing.T) {
	do := func(t *testing.T, srv *zktest.Server, ctx context.Context, s *zsync.Session, meanwhile func(id int64), denied ...zktest.Op) error {
		id := s.ID()
		var dropped atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && !dropped.Swap(true):
				meanwhile(id)
				return zktest.DropReply
			case r.Op == zktest.OpConnect && r.Session == id && dropped.Load():
				return zktest.Fail(zktest.CodeSessionExpired)
			case r.Op == zktest.OpConnect && dropped.Load():
				return zktest.Delay(time.Second)
			case slices.Contains(denied, r.Op) && dropped.Load():
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		return zsync.NewOnce(s, "/o").Do(ctx, ok)
	}
	check := func(t *testing.T, srv *zktest.Server, err, want error) {
		t.Helper()
		wantErr(t, err, want)
		if errors.Is(err, zsync.ErrLost) {
			t.Errorf("Do says %v", err)
		}
		time.Sleep(2 * testTimeout)
		if done, err := zsync.NewOnce(open(t, srv), "/o").Done(t.Context()); !done || err != nil {
			t.Errorf("Done = %v, %v: the case did not come about", done, err)
		}
	}
	t.Run("ctx ends", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx, cancel := context.WithCancel(t.Context())
			err := do(t, srv, ctx, open(t, srv), func(int64) { cancel() })
			check(t, srv, err, context.Canceled)
		})
	})
	t.Run("the mark may not be read", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			err := do(t, srv, t.Context(), open(t, srv), func(int64) {}, zktest.OpGetData)
			if err == nil || !strings.Contains(err.Error(), "may have been made") || errors.Is(err, zk.ErrNoAuth) { // NoAuth would be a refusal of the mark
				t.Errorf("Do says %v", err)
			}
			srv.Intercept(nil)
			check(t, srv, err, err)
		})
	})
	t.Run("the mark may not be read in the same session", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, dropped := open(t, srv), false
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Op == zktest.OpMulti && !dropped:
					dropped = true
					return zktest.DropReply
				case r.Op == zktest.OpGetData && dropped:
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
			err := zsync.NewOnce(s, "/o").Do(t.Context(), ok)
			if err == nil || !strings.Contains(err.Error(), "may have been made") || errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("Do says %v", err)
			}
			srv.Intercept(nil)
			check(t, srv, err, err)
		})
	})
	t.Run("the Session is closed", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			closed := make(chan error, 1)
			err := do(t, srv, t.Context(), s, func(int64) {
				go func() { closed <- s.Close() }()
				time.Sleep(time.Millisecond)
			})
			must(t, <-closed)
			check(t, srv, err, zsync.ErrClosed)
		})
	})
}

func TestResetMakesItUndoneForEveryoneWithoutPolling(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		oa, ob := zsync.NewOnce(a, "/o"), zsync.NewOnce(b, "/o")
		must(t, oa.Reset(t.Context())) // of nothing
		for range 3 {
			must(t, oa.Do(t.Context(), ok))
			must(t, ob.Do(t.Context(), nothing(t)))
			must(t, ob.Reset(t.Context()))
			synctest.Wait()
			if done, err := oa.Done(t.Context()); done || err != nil {
				t.Fatalf("Done = %v, %v after a Reset elsewhere", done, err)
			}
		}
		awaitLogs()
		if got := childrenOf(t, a, "/o"); len(got) != 0 {
			t.Errorf("children are %q, want none", got)
		}
	})
}

// A deletion that is simply sent again after a lost reply would delete the mark
// that was made in between.
func TestAResetWhoseReplyIsLostDoesNotDeleteALaterMark(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		must(t, zsync.NewOnce(a, "/o").Do(t.Context(), ok))
		id := a.ID()
		var hit, again atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == id && r.Op == zktest.OpMulti && !hit.Swap(true):
				return zktest.DropReply
			case r.Op == zktest.OpConnect && r.Session == id:
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		reset := async(func() error { return zsync.NewOnce(a, "/o").Reset(t.Context()) })
		time.Sleep(100 * time.Millisecond)
		must(t, zsync.NewOnce(b, "/o").Do(t.Context(), func(context.Context) error { again.Store(true); return nil }))
		must(t, <-reset)
		if done, err := zsync.NewOnce(b, "/o").Done(t.Context()); !again.Load() || !done || err != nil {
			t.Errorf("after the Reset: ran %v, done %v, %v; want the later mark to stay", again.Load(), done, err)
		}
	})
}

func TestAOnceOrSemaphoreThatIsGarbageLeavesItsWatch(t *testing.T) {
	for path, use := range map[string]func(context.Context, *zsync.Session) error{
		"/o/done": func(ctx context.Context, s *zsync.Session) error { return zsync.NewOnce(s, "/o").Do(ctx, ok) },
		"/s": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewSemaphore(s, "/s", 2).Do(ctx, 1, ok)
		},
	} {
		s := connectLocal(t)
		ctx := within(t, 2*time.Minute)
		must(t, use(ctx, s))
		inc := live(t, s)
		idle := func() bool {
			inc.Watches.Mu.Lock()
			defer inc.Watches.Mu.Unlock()
			_, is := inc.Watches.Idle[conn.WatchKey{Kind: conn.WatchData, Path: path}]
			return is
		}
		for !idle() {
			must(t, ctx.Err())
			runtime.GC()
			runtime.Gosched()
		}
	}
}

// connectLocal connects to a server of its own, in real time.
func connectLocal(t *testing.T) *zsync.Session {
	srv := zktest.Start(t, harness.Patient)
	s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestOnceRefusesBadArgumentsBeforeWritingAnything(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx := t.Context()
		before := srv.Counts().Total()
		wantErr(t, zsync.NewOnce(s, "o").Do(ctx, ok), zsync.ErrInvalid)
		wantErr(t, zsync.NewOnce(nil, "/o").Do(ctx, ok), zsync.ErrInvalid)
		wantErr(t, zsync.NewOnce(s, "/o").Do(ctx, nil), zsync.ErrInvalid)
		wantErr(t, zsync.NewOnce(s, "/").Reset(ctx), zsync.ErrInvalid)
		_, err := zsync.NewOnce(s, "").Done(ctx)
		wantErr(t, err, zsync.ErrInvalid)
		wantErr(t, zsync.OnceFunc(s, "/o", nil)(ctx), zsync.ErrInvalid)
		_, err = zsync.OnceValue[int](s, "/o", nil)(ctx)
		wantErr(t, err, zsync.ErrInvalid)
		_, _, err = zsync.OnceValues[int, int](s, "/o", nil)(ctx)
		wantErr(t, err, zsync.ErrInvalid)
		_, err = zsync.OnceValue(s, "/o", func(context.Context) (int, error) { return 1, nil }, zsync.WithCodec(nil))(ctx)
		wantErr(t, err, zsync.ErrInvalid)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(t, zsync.NewOnce(s, "/o").Do(ended, nothing(t)), context.Canceled)
		if n := srv.Counts().Total() - before; n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestOnceFuncRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ran int
		f := func(context.Context) error { ran++; return nil }
		a, b := zsync.OnceFunc(open(t, srv), "/o", f), zsync.OnceFunc(open(t, srv), "/o", f)
		for range 3 {
			must(t, a(t.Context()))
			must(t, b(t.Context()))
		}
		if ran != 1 {
			t.Errorf("ran %d times", ran)
		}
	})
}

// countingCodec counts what is decoded.
type countingCodec struct {
	zsync.Codec
	decoded atomic.Int32
}

func (c *countingCodec) Unmarshal(data []byte, v any) error {
	c.decoded.Add(1)
	return c.Codec.Unmarshal(data, v)
}

func TestOnceValueIsTheSameEverywhereAndDecodedOnceAProcess(t *testing.T) {
	type point struct {
		X, Y   int
		hidden int
	}
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		var ran atomic.Int32
		f := func(context.Context) (point, error) {
			n := int(ran.Add(1))
			return point{n, 7, 99}, nil
		}
		for range 3 {
			c := &countingCodec{Codec: zsync.JSON}
			get := zsync.OnceValue(connect(), "/v", f, zsync.WithCodec(c))
			for range 3 {
				v, err := get(ctx)
				must(t, err)
				if want := (point{1, 7, 0}); v != want {
					t.Errorf("got %v, want %v", v, want)
				}
			}
			if n := c.decoded.Load(); n != 1 {
				t.Errorf("decoded %d times, want once", n)
			}
		}
		if ran.Load() != 1 {
			t.Errorf("ran %d times", ran.Load())
		}
	})
}

func TestOnceValuesStoresBothWithAnyCodec(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		for i, c := range []zsync.Codec{zsync.JSON, zsync.Gob, zsync.Raw} {
			for _, first := range []string{"", "one", strings.Repeat("x", 1000)} {
				path := fmt.Sprintf("/v%d-%d", i, len(first))
				f := func(context.Context) (string, []byte, error) { return first, []byte("two"), nil }
				for range 2 {
					a, b, err := zsync.OnceValues(open(t, srv), path, f, zsync.WithCodec(c))(ctx)
					must(t, err)
					if a != first || string(b) != "two" {
						t.Errorf("%T: got %q, %q", c, a, b)
					}
				}
			}
		}
	})
}

func TestAValueThatCannotBeStoredIsGivenToItsCallerAndMarksNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		s := open(t, srv)
		big := bytes.Repeat([]byte{'x'}, 1<<20)
		v, err := zsync.OnceValue(s, "/big", func(context.Context) ([]byte, error) { return big, nil }, zsync.WithCodec(zsync.Raw))(ctx)
		wantErr(t, err, zsync.ErrTooLarge)
		if len(v) != len(big) {
			t.Errorf("the caller got %d bytes, want f's %d", len(v), len(big))
		}
		_, err = zsync.OnceValue(s, "/chan", func(context.Context) (chan int, error) { return make(chan int), nil })(ctx)
		if err == nil {
			t.Error("a channel was stored as JSON")
		}
		boom := errors.New("boom")
		n, err := zsync.OnceValue(s, "/fails", func(context.Context) (int, error) { return 3, boom })(ctx)
		if n != 3 || err != boom {
			t.Errorf("got %v, %v; want f's own 3, boom", n, err)
		}
		for _, path := range []string{"/big", "/chan", "/fails"} {
			if done, err := zsync.NewOnce(s, path).Done(ctx); done || err != nil {
				t.Errorf("%s: Done = %v, %v", path, done, err)
			}
		}
		near := big[:1<<20-1024]
		v, err = zsync.OnceValue(s, "/near", func(context.Context) ([]byte, error) { return near, nil }, zsync.WithCodec(zsync.Raw))(ctx)
		must(t, err)
		if len(v) != len(near) {
			t.Errorf("got %d bytes, want %d", len(v), len(near))
		}
	})
}

func TestAStoredValueThatCannotBeDecodedIsAnErrorAndRunsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		_, err := zsync.OnceValue(open(t, srv), "/v", func(context.Context) (string, error) { return "text", nil })(ctx)
		must(t, err)
		s := open(t, srv)
		get := zsync.OnceValue(s, "/v", func(context.Context) (int, error) { t.Error("f ran"); return 0, nil })
		pair := zsync.OnceValues(s, "/v", func(context.Context) (int, int, error) { t.Error("f ran"); return 0, 0, nil }, zsync.WithCodec(zsync.Gob))
		for range 2 {
			if _, err := get(ctx); err == nil {
				t.Error("a string was decoded as an int")
			}
			if _, _, err := pair(ctx); err == nil {
				t.Error("a string was decoded as a pair")
			}
		}
		must(t, zsync.NewOnce(s, "/v").Reset(ctx))
		synctest.Wait()
		n, err := zsync.OnceValue(s, "/v", func(context.Context) (int, error) { return 5, nil })(ctx)
		if n != 5 || err != nil {
			t.Errorf("after Reset: %v, %v", n, err)
		}
	})
}

func TestOfAStoredValueThatCannotBeDecodedNothingIsGiven(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx, s := t.Context(), open(t, srv)
		type old struct{ A, B string }
		type now struct {
			A string
			B int
		}
		_, err := zsync.OnceValue(s, "/v", func(context.Context) (old, error) { return old{"a", "b"}, nil })(ctx)
		must(t, err)
		v, err := zsync.OnceValue(s, "/v", func(context.Context) (now, error) { return now{}, nil })(ctx)
		if err == nil || v != (now{}) {
			t.Errorf("OnceValue gives %v, %v", v, err)
		}
		_, _, err = zsync.OnceValues(s, "/w", func(context.Context) (int, old, error) { return 1, old{"a", "b"}, nil })(ctx)
		must(t, err)
		n, v, err := zsync.OnceValues(s, "/w", func(context.Context) (int, now, error) { return 0, now{}, nil })(ctx)
		if err == nil || n != 0 || v != (now{}) {
			t.Errorf("OnceValues gives %v, %v, %v", n, v, err)
		}
	})
}
