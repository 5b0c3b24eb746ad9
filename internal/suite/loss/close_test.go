package loss

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Every channel and context that shows a loss shows it before the servers are asked to end the
// session, also if the processors are busy.
func TestServersHearOfACloseAfterEveryHolder(t *testing.T) {
	const n = 100
	ways := map[string]func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}){
		"Lost": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			m := zsync.NewMutex(s, fmt.Sprint("/m/", i))
			harness.Must(t, m.Lock(t.Context()))
			told(m.Lost())
		},
		"Mutex.Do": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			_ = zsync.NewMutex(s, fmt.Sprint("/m/", i)).Do(t.Context(), func(ctx context.Context) error { told(ctx.Done()); <-end; return nil })
		},
		"RWMutex.RDo": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			_ = zsync.NewRWMutex(s, fmt.Sprint("/m/", i)).RDo(t.Context(), func(ctx context.Context) error { told(ctx.Done()); <-end; return nil })
		},
		"Semaphore.Lost": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			m := zsync.NewSemaphore(s, fmt.Sprint("/m/", i), 2)
			harness.Must(t, m.Acquire(t.Context(), 1))
			told(m.Lost())
		},
		"Semaphore.Do": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			_ = zsync.NewSemaphore(s, fmt.Sprint("/m/", i), 2).Do(t.Context(), 1, func(ctx context.Context) error { told(ctx.Done()); <-end; return nil })
		},
		"LockAllContext": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			held, _, err := zsync.LockAllContext(t.Context(), zsync.NewMutex(s, fmt.Sprint("/m/", i)), zsync.NewMutex(s, fmt.Sprint("/n/", i)))
			harness.Must(t, err)
			told(held.Done())
		},
		"Election.Run": func(t *testing.T, s *zsync.Session, i int, told func(<-chan struct{}), end <-chan struct{}) {
			_ = zsync.NewElection(s, fmt.Sprint("/m/", i)).Run(t.Context(), func(ctx context.Context) error { told(ctx.Done()); <-end; return nil })
		},
	}
	for name, hold := range ways {
		t.Run(name, func(t *testing.T) {
			srv := zktest.Start(t)
			s := suite.Open(t, srv, zsync.WithCloseTimeout(0)) // the functions return after it
			var mu sync.Mutex
			var all []<-chan struct{}
			var held sync.WaitGroup
			held.Add(n)
			told := func(c <-chan struct{}) { mu.Lock(); all = append(all, c); mu.Unlock(); held.Done() }
			end := make(chan struct{})
			var running sync.WaitGroup
			for i := range n {
				running.Go(func() { hold(t, s, i, told, end) })
			}
			held.Wait()
			stop := make(chan struct{})
			for range 4 {
				go func() {
					x := 0
					for {
						select {
						case <-stop:
							return
						default:
							for i := range 100_000 {
								x += i
							}
						}
					}
				}()
			}
			untold, asked := 0, false
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpCloseSession {
					asked = true
					for _, c := range all {
						select {
						case <-c:
						default:
							untold++
						}
					}
				}
				return zktest.Pass
			})
			s.Close()
			close(stop)
			close(end)
			running.Wait()
			if untold > 0 || !asked {
				t.Errorf("%d of %d were not told when the servers were asked to end the session (asked: %t)", untold, n, asked)
			}
		})
	}
}
