package closing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A way calls f while it holds something at one path, which no other session can hold then. If f
// succeeds, some ways never call it in another session.
type way struct {
	call   func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error
	lost   func(s *zsync.Session) <-chan struct{} // of the hold, if it has a channel
	atOnce bool                                   // f's success is its end: nobody calls it again
}

func ways() map[string]way {
	var mu sync.Mutex
	made := make(map[string]any)
	value := func(s *zsync.Session, kind string, v any) any { // one value for each session
		mu.Lock()
		defer mu.Unlock()
		key := fmt.Sprintf("%p %s", s, kind)
		if made[key] == nil {
			made[key] = v
		}
		return made[key]
	}
	mutex := func(s *zsync.Session) *zsync.Mutex {
		return value(s, "mutex", zsync.NewMutex(s, "/m")).(*zsync.Mutex)
	}
	rw := func(s *zsync.Session) *zsync.RWMutex {
		return value(s, "rw", zsync.NewRWMutex(s, "/rw")).(*zsync.RWMutex)
	}
	sem := func(s *zsync.Session) *zsync.Semaphore {
		return value(s, "semaphore", zsync.NewSemaphore(s, "/s", 2)).(*zsync.Semaphore)
	}
	election := func(s *zsync.Session) *zsync.Election {
		return value(s, "election", zsync.NewElection(s, "/e")).(*zsync.Election)
	}
	at, soon := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), time.Now().Add(time.Millisecond)
	return map[string]way{
		"Mutex.Do": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return mutex(s).Do(ctx, f)
			},
			lost: func(s *zsync.Session) <-chan struct{} { return mutex(s).Lost() },
		},
		"RWMutex.Do": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return rw(s).Do(ctx, f)
			},
			lost: func(s *zsync.Session) <-chan struct{} { return rw(s).Lost() },
		},
		"RWMutex.RDo": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				mu.Lock()
				first := len(made) == 0
				mu.Unlock()
				if first { // the first reads, the next wants to write
					return rw(s).RDo(ctx, f)
				}
				return rw(s).Do(ctx, f)
			},
			lost: func(s *zsync.Session) <-chan struct{} { return rw(s).Lost() },
		},
		"Semaphore.Do": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return sem(s).Do(ctx, 2, f)
			},
			lost: func(s *zsync.Session) <-chan struct{} { return sem(s).Lost() },
		},
		"Election.Run": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return election(s).Run(ctx, f)
			},
			lost: func(s *zsync.Session) <-chan struct{} { return election(s).Lost() },
		},
		"Schedule.Do": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				_, err := zsync.NewSchedule(s, "/c").Do(ctx, at, f)
				return err
			},
			atOnce: true,
		},
		"Schedule.Run": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				c := zsync.NewSchedule(s, "/c")
				if _, err := c.Do(ctx, at, func(context.Context) error { return nil }); err != nil { // else the second has not missed soon
					return err
				}
				return c.Run(ctx, once(soon), func(ctx context.Context, _ time.Time) error { return f(ctx) })
			},
			atOnce: true,
		},
		"Partition.Run": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return zsync.NewPartition(s, "/p").Run(ctx, []string{"x"}, func(ctx context.Context, _ string) error { return f(ctx) })
			},
		},
		"Flight.Do": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				_, _, err := zsync.NewFlight[int](s, "/f", time.Hour).Do(ctx, "k", func(ctx context.Context) (int, error) { return 1, f(ctx) })
				return err
			},
			atOnce: true,
		},
		"Once.Do": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return zsync.NewOnce(s, "/o").Do(ctx, f)
			},
			atOnce: true,
		},
		"OnceFunc": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return zsync.OnceFunc(s, "/of", f)(ctx)
			},
			atOnce: true,
		},
		"Queue.Work": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				q := zsync.NewQueue[string](s, "/q")
				mu.Lock()
				sent := made["sent"] != nil
				made["sent"] = true
				mu.Unlock()
				if !sent {
					if err := q.Send(ctx, "x"); err != nil {
						return err
					}
				}
				return q.Work(ctx, 1, func(ctx context.Context, _ string) error { return f(ctx) })
			},
			atOnce: true,
		},
		"nested": {
			call: func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
				return mutex(s).Do(ctx, func(ctx context.Context) error { return sem(s).Do(ctx, 2, f) })
			},
			lost: func(s *zsync.Session) <-chan struct{} { return mutex(s).Lost() },
		},
	}
}

// once is a timetable of one instant.
func once(at time.Time) interface{ Next(time.Time) time.Time } { return instant{at} }

type instant struct{ at time.Time }

func (i instant) Next(after time.Time) time.Time {
	if after.Before(i.at) {
		return i.at
	}
	return time.Time{}
}

const (
	begin = 50 * time.Millisecond // every way has called its function by then
	limit = 3 * time.Second       // of Close
	never = -time.Second
)

// A run is one call of a function.
type run struct{ began, returned time.Duration }

func TestAnotherSessionIsGrantedWhenTheFunctionHasReturnedWhateverItDoesAtClose(t *testing.T) {
	for name := range ways() {
		for doing, takes := range map[string]time.Duration{"observes its context": 0, "takes a second": time.Second, "hangs": time.Hour} {
			for _, succeeds := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/%t", name, doing, succeeds), func(t *testing.T) {
					harness.VirtualTime(t, func(t *testing.T) { closeDuring(t, ways()[name], takes, succeeds) })
				})
			}
		}
	}
}

func closeDuring(t *testing.T, w way, takes time.Duration, succeeds bool) {
	srv := zktest.Start(t)
	a, b := suite.Open(t, srv, zsync.WithCloseTimeout(limit)), suite.Open(t, srv)
	start := time.Now()
	first, second := run{never, never}, run{never, never}
	var mu sync.Mutex
	var lost <-chan struct{} // guarded by mu
	failed := errors.New("failed")
	var running sync.WaitGroup
	running.Go(func() {
		err := w.call(t.Context(), a, func(ctx context.Context) error {
			first.began = time.Since(start)
			if w.lost != nil {
				mu.Lock()
				lost = w.lost(a)
				mu.Unlock()
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, zsync.ErrClosed) || errors.Is(cause, zsync.ErrLost) {
				t.Errorf("the context ended with %v", cause)
			}
			if err := zsync.NewMutex(a, "/new").Lock(t.Context()); !errors.Is(err, zsync.ErrClosed) {
				t.Errorf("a new Lock during Close: %v", err)
			}
			if err := zsync.NewMutex(a, "/new").Do(t.Context(), func(context.Context) error { t.Error("begun during Close"); return nil }); !errors.Is(err, zsync.ErrClosed) {
				t.Errorf("a new Do during Close: %v", err)
			}
			time.Sleep(takes)
			first.returned = time.Since(start)
			if !succeeds {
				return failed
			}
			return nil
		})
		var loss *zsync.LostError
		if takes > limit && w.lost != nil && (!errors.As(err, &loss) || loss.Reason != zsync.LossClosed) {
			t.Errorf("the call: %v; want a LostError of Close", err)
		}
		if takes < limit && err != nil && !errors.Is(err, zsync.ErrClosed) && !errors.Is(err, failed) {
			t.Errorf("the call: %v", err)
		}
	})
	time.Sleep(begin)
	again, stop := context.WithCancel(t.Context())
	running.Go(func() {
		w.call(again, b, func(ctx context.Context) error {
			second.began = time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			if lost != nil && takes > limit && !closed(lost) {
				t.Error("the second is granted, and the first does not show the loss")
			}
			stop()
			return nil
		})
	})
	time.Sleep(begin)
	synctest.Wait()
	if first.began == never || second.began != never {
		t.Fatalf("before Close the first began at %v, the second at %v", first.began, second.began)
	}
	called := time.Since(start)
	a.Close()
	took := time.Since(start) - called
	if want := min(takes, limit); took < want || took > want+2*time.Second {
		t.Errorf("Close took %v; want %v", took, want)
	}
	time.Sleep(30 * time.Second)
	stop()
	synctest.Wait()
	switch {
	case w.atOnce && succeeds && takes < limit:
		if second.began != never {
			t.Error("the function has returned nil, and is called again")
		}
	case second.began == never:
		t.Error("the second is never granted")
	case takes < limit && second.began < first.returned:
		t.Errorf("the second began %v before the first returned", first.returned-second.began)
	case takes > limit && second.began < called+limit:
		t.Errorf("the second began %v after the call of Close", second.began-called)
	}
	time.Sleep(2 * time.Hour) // what hangs
	running.Wait()
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
