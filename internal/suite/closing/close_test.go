package closing

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// holdAndClose runs f in Mutex.Do of a session whose Close waits for limit.
func holdAndClose(t *testing.T, f func(t *testing.T, srv *zktest.Server, s *zsync.Session, m *zsync.Mutex, ctx context.Context)) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, zsync.WithCloseTimeout(limit))
		m := zsync.NewMutex(s, "/m")
		_ = m.Do(t.Context(), func(ctx context.Context) error {
			f(t, srv, s, m, ctx)
			return nil
		})
	})
}

func within(t *testing.T, want, most time.Duration, what string, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took < want || took > most {
		t.Errorf("%s took %v; want %v to %v", what, took, want, most)
	}
}

func TestCloseWithinAFunctionDoesNotWaitForThatFunction(t *testing.T) {
	holdAndClose(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, m *zsync.Mutex, ctx context.Context) {
		within(t, 0, limit/2, "Close", func() { s.Close() })
		if !closed(m.Lost()) {
			t.Error("the session is closed, and its lock is not lost")
		}
	})
	// Nor does another Close that waits for it.
	holdAndClose(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, m *zsync.Mutex, ctx context.Context) {
		elsewhere := harness.Async(func() error { return s.Close() })
		<-ctx.Done()
		within(t, 0, limit/2, "Close", func() {
			s.Close()
			<-elsewhere
		})
	})
	// It waits for the functions of other goroutines.
	holdAndClose(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, m *zsync.Mutex, ctx context.Context) {
		began := make(chan struct{})
		other := harness.Async(func() error {
			return zsync.NewMutex(s, "/other").Do(t.Context(), func(ctx context.Context) error {
				close(began)
				<-ctx.Done()
				time.Sleep(time.Second)
				return nil
			})
		})
		<-began
		within(t, time.Second, limit-1, "Close", func() { s.Close() })
		if err := <-other; err != nil {
			t.Errorf("the other's Do: %v", err)
		}
	})
}

func TestCloseTwiceAtOnceWaitsOnceForTheFunction(t *testing.T) {
	holdAndClose(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, m *zsync.Mutex, ctx context.Context) {
		start := time.Now()
		closes := []<-chan error{harness.Async(s.Close)}
		time.Sleep(time.Second)
		closes = append(closes, harness.Async(s.Close))
		go func() {
			for _, c := range closes {
				<-c
				if took := time.Since(start); took < 2*time.Second || took >= limit {
					t.Errorf("Close returned after %v", took)
				}
			}
		}()
		time.Sleep(time.Second)
	})
}

// A session that is cut off cannot keep its hold. Close waits for the function all the same, and
// the holder can know of the loss in time.
func TestCloseOfASessionThatIsCutOffWaitsForTheFunctionNoLongerThanItsTimeout(t *testing.T) {
	for _, takes := range []time.Duration{time.Second, time.Hour} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv, zsync.WithCloseTimeout(2*harness.Timeout))
			b := zsync.NewMutex(suite.Open(t, srv), "/m")
			m := zsync.NewMutex(s, "/m")
			done := harness.Async(func() error {
				return m.Do(t.Context(), func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(takes)
					return nil
				})
			})
			time.Sleep(begin)
			lost := m.Lost()
			srv.Partition(s.ID())
			within(t, min(takes, 2*harness.Timeout), min(takes, 2*harness.Timeout)+2*time.Second, "Close", func() { s.Close() })
			harness.Must(t, b.Lock(t.Context()))
			if takes > harness.Timeout && !closed(lost) {
				t.Error("another session has the lock, and the loss does not show")
			}
			if err := <-done; takes > harness.Timeout && !errors.Is(err, zsync.ErrLost) {
				t.Errorf("Do: %v", err)
			}
		})
	}
}

// The lock of a function, and what it has locked with its context, is used as before. A lock
// without a function is released at once.
func TestAFunctionUsesWhatItHoldsWhileCloseWaitsAndABareLockIsReleasedAtOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv, zsync.WithCloseTimeout(limit)), suite.Open(t, srv)
		bare := zsync.NewMutex(s, "/bare")
		harness.Must(t, bare.Lock(t.Context()))
		leader := zsync.NewElection(s, "/leader")
		harness.Must(t, leader.Campaign(t.Context()))
		permits := zsync.NewSemaphore(s, "/permits", 1)
		harness.Must(t, permits.Acquire(t.Context(), 1))
		lost := []<-chan struct{}{bare.Lost(), leader.Lost(), permits.Lost()}
		waits := harness.Async(func() error { return zsync.NewMutex(other, "/free").Lock(t.Context()) })
		harness.Must(t, <-waits)
		third := suite.Open(t, srv)
		harness.Async(func() error { return zsync.NewMutex(third, "/free").Lock(t.Context()) }) // so that two contenders are ahead
		synctest.Wait()
		waiting := harness.Async(func() error { return zsync.NewMutex(s, "/free").Lock(t.Context()) })
		m, inner := zsync.NewMutex(s, "/m"), zsync.NewMutex(s, "/inner")
		sem := zsync.NewSemaphore(s, "/sem", 1)
		began := make(chan struct{})
		did := harness.Async(func() error {
			return m.Do(t.Context(), func(ctx context.Context) error {
				harness.Must(t, inner.Lock(ctx))
				harness.Must(t, sem.Acquire(ctx, 1))
				close(began)
				<-ctx.Done()
				time.Sleep(time.Second)
				if _, err := m.Token(t.Context()); err != nil {
					t.Errorf("Token: %v", err)
				}
				if _, err := inner.Token(t.Context()); err != nil {
					t.Errorf("Token of a lock within: %v", err)
				}
				if _, err := sem.Token(t.Context()); err != nil {
					t.Errorf("Token of a permit within: %v", err)
				}
				if _, err := m.Txn(t.Context()); err != nil && !errors.Is(err, zsync.ErrInvalid) {
					t.Errorf("Txn: %v", err)
				}
				for _, err := range []error{inner.Unlock(), sem.Release(1)} {
					if err != nil {
						t.Errorf("release within: %v", err)
					}
				}
				return nil
			})
		})
		<-began
		srv.SetLatency(time.Millisecond)
		closing := harness.Async(s.Close)
		start := time.Now()
		var granted sync.WaitGroup
		for _, lock := range []func() error{
			func() error { return zsync.NewMutex(other, "/bare").Lock(t.Context()) },
			func() error { return zsync.NewElection(other, "/leader").Campaign(t.Context()) },
			func() error { return zsync.NewSemaphore(other, "/permits", 1).Acquire(t.Context(), 1) },
		} {
			granted.Go(func() { harness.Must(t, lock()) })
		}
		granted.Wait()
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("what no function held was free after %v", took)
		}
		for i, c := range lost {
			if !closed(c) {
				t.Errorf("the bare hold %d is released, and its Lost is not closed", i)
			}
		}
		if err := <-waiting; !errors.Is(err, zsync.ErrClosed) || time.Since(start) > 500*time.Millisecond {
			t.Errorf("a Lock that waits ends after %v with %v", time.Since(start), err)
		}
		if err := zsync.NewValue[int](s, "/v").Store(t.Context(), 1); !errors.Is(err, zsync.ErrClosed) {
			t.Errorf("a Store during Close: %v", err)
		}
		harness.Must(t, <-did)
		harness.Must(t, <-closing)
		if took := time.Since(start); took < time.Second || took > limit {
			t.Errorf("Close took %v", took)
		}
	})
}

// Close is called at any moment of a function's life, and before it. Two functions never run at
// once, and a function that has begun is waited for.
func TestCloseAtAnyStepLetsNoTwoFunctionsRunAtOnce(t *testing.T) {
	for name := range ways() {
		if name == "RWMutex.RDo" || name == "OnceFunc" {
			continue // their ways depend on who is first
		}
		t.Run(name, func(t *testing.T) {
			for step := range 60 {
				harness.VirtualTime(t, func(t *testing.T) { closeAt(t, ways()[name], time.Duration(step)*time.Millisecond/2) })
			}
		})
	}
}

func closeAt(t *testing.T, w way, at time.Duration) {
	srv := zktest.Start(t)
	srv.SetLatency(time.Millisecond)
	a, b := suite.Open(t, srv), suite.Open(t, srv)
	var mu sync.Mutex
	running, ofA := 0, 0
	function := func(mine *int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			mu.Lock()
			running++
			*mine++
			if running > 1 {
				t.Errorf("Close after %v: two functions run at once", at)
			}
			mu.Unlock()
			select {
			case <-ctx.Done():
				time.Sleep(5 * time.Millisecond)
			case <-time.After(20 * time.Millisecond):
			}
			mu.Lock()
			running--
			*mine--
			mu.Unlock()
			return nil
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ofB := 0
	calls := []<-chan error{harness.Async(func() error { return w.call(ctx, a, function(&ofA)) })}
	time.Sleep(time.Millisecond)
	calls = append(calls, harness.Async(func() error { return w.call(ctx, b, function(&ofB)) }))
	time.Sleep(at)
	a.Close()
	mu.Lock()
	if ofA > 0 {
		t.Errorf("Close after %v has returned, and a function runs", at)
	}
	mu.Unlock()
	time.Sleep(time.Second)
	stop()
	for _, c := range calls {
		<-c
	}
}

// Close has waited for a function until its limit. The function still runs. After Close, the Session
// logs nothing, though its connection has ended.
func TestAClosedSessionLogsNoOutage(t *testing.T) {
	for _, lasts := range []time.Duration{0, 3 * limit} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			var over atomic.Bool
			s := suite.Open(t, srv, zsync.WithCloseTimeout(limit), zsync.WithLogger(harness.OnLog(func(msg string) {
				if over.Load() {
					t.Errorf("%v after a function of %v: %s", limit, lasts, msg)
				}
			})))
			began := make(chan struct{})
			done := harness.Async(func() error {
				return zsync.NewMutex(s, "/m").Do(context.Background(), func(ctx context.Context) error {
					close(began)
					time.Sleep(lasts)
					return nil
				})
			})
			<-began
			s.Close()
			over.Store(true)
			time.Sleep(3 * time.Hour)
			<-done
		})
	}
}

// Close warns of functions that have not returned, but only if there are any.
func TestCloseWithoutAWaitWarnsOnlyOfFunctionsThatRun(t *testing.T) {
	for _, runs := range []bool{false, true} {
		for range 20 { // the limit passes at once, and either may be seen first
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				var warned atomic.Bool
				s := suite.Open(t, srv, zsync.WithCloseTimeout(0), zsync.WithLogger(harness.OnLog(func(msg string) {
					if strings.Contains(msg, "functions") {
						warned.Store(true)
					}
				})))
				over := make(chan struct{})
				if runs {
					harness.Arrive(t, func() error {
						return zsync.NewMutex(s, "/m").Do(context.Background(), func(context.Context) error { <-over; return nil })
					})
				}
				s.Close()
				if close(over); warned.Load() != runs {
					t.Errorf("a function runs: %v, Close has warned: %v", runs, !runs)
				}
			})
		}
	}
}

// The function succeeds, but its context has ended meanwhile, so the call returns before the success is
// recorded. A Close in the same goroutine must not end the session before the record.
func TestCloseAfterASuccessWaitsForItsRecord(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, s *zsync.Session, f func(context.Context) error) error{
		"Once.Do": func(ctx context.Context, s *zsync.Session, f func(context.Context) error) error {
			return zsync.NewOnce(s, "/p").Do(ctx, f)
		},
		"OnceValue": func(ctx context.Context, s *zsync.Session, f func(context.Context) error) error {
			_, err := zsync.OnceValue(s, "/p", func(ctx context.Context) (int, error) { return 1, f(ctx) })(ctx)
			return err
		},
		"Schedule.Do": func(ctx context.Context, s *zsync.Session, f func(context.Context) error) error {
			_, err := zsync.NewSchedule(s, "/p").Do(ctx, suite.Noon, f)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				calls := 0
				for i := range 2 {
					s := suite.Open(t, srv)
					srv.SetLatency(100 * time.Millisecond)
					ctx, cancel := context.WithCancel(t.Context())
					err := do(ctx, s, func(context.Context) error { calls++; cancel(); return nil })
					if i == 0 {
						harness.WantErr(t, err, context.Canceled)
					}
					harness.Must(t, s.Close())
					cancel()
				}
				if calls != 1 {
					t.Errorf("the function has run %d times; want once", calls)
				}
			})
		})
	}
}
