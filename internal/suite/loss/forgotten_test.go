package loss

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A lockable is a value. One goroutine locks it, and another waits.
type lockable struct {
	lock, wait func(context.Context) error
	unlock     func() error
	lost       func() <-chan struct{}
	do         func(context.Context, func(context.Context) error) error
}

var lockables = map[string]func(s *zsync.Session, opts ...zsync.LockOption) lockable{
	"Mutex": func(s *zsync.Session, opts ...zsync.LockOption) lockable {
		m := zsync.NewMutex(s, "/m", opts...)
		return lockable{m.Lock, m.Lock, m.Unlock, m.Lost, m.Do}
	},
	"Mutex without hand-overs": func(s *zsync.Session, opts ...zsync.LockOption) lockable {
		m := zsync.NewMutex(s, "/m", append(opts, zsync.WithHandoffs(0))...)
		return lockable{m.Lock, m.Lock, m.Unlock, m.Lost, m.Do}
	},
	"RWMutex": func(s *zsync.Session, opts ...zsync.LockOption) lockable {
		m := zsync.NewRWMutex(s, "/rw", opts...)
		return lockable{m.Lock, m.RLock, m.Unlock, m.Lost, m.Do}
	},
	"RWMutex, read": func(s *zsync.Session, opts ...zsync.LockOption) lockable {
		m := zsync.NewRWMutex(s, "/rw", opts...)
		return lockable{m.RLock, m.Lock, m.RUnlock, m.Lost, m.RDo}
	},
	"Semaphore": func(s *zsync.Session, opts ...zsync.LockOption) lockable {
		m := zsync.NewSemaphore(s, "/s", 2, opts...)
		acquire := func(ctx context.Context) error { return m.Acquire(ctx, 1) }
		return lockable{acquire, acquire, func() error { return m.Release(1) }, m.Lost,
			func(ctx context.Context, f func(context.Context) error) error { return m.Do(ctx, 1, f) }}
	},
}

// Whether it waited when the loss came, or comes then.
func TestALockThatWaitsForALostHoldThatIsNeverUnlockedFails(t *testing.T) {
	for name, make := range lockables {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				m := make(suite.Open(t, srv), zsync.WithMaxHold(time.Second))
				harness.Must(t, m.lock(t.Context()))
				lost := m.lost()
				waited := harness.Async(func() error { return m.wait(t.Context()) })
				<-lost
				for range 2 {
					start := time.Now()
					harness.WantErr(t, m.wait(t.Context()), zsync.ErrDeadlock)
					if d := time.Since(start); d < harness.Timeout/2 || d > 2*harness.Timeout {
						t.Errorf("it failed after %v", d)
					}
				}
				if name != "Semaphore" { // of which the other permit was free
					harness.WantErr(t, <-waited, zsync.ErrDeadlock)
				} else if err := <-waited; err == nil {
					return // it was lost with the first
				}
				harness.WantErr(t, m.unlock(), zsync.ErrLost)
				harness.Must(t, m.lock(t.Context()))
				harness.Must(t, m.unlock())
			})
		})
	}
}

// A hold may be unlocked late, and the function of a Do may run on after the loss.
func TestALockWaitsForALostHoldThatIsUnlockedLate(t *testing.T) {
	for name, make := range lockables {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				m := make(suite.Open(t, srv), zsync.WithMaxHold(time.Second))
				harness.Must(t, m.lock(t.Context()))
				<-m.lost()
				got := harness.Async(func() error { return m.wait(t.Context()) })
				time.Sleep(harness.Timeout * 9 / 10)
				harness.PendingStill(t, got)
				harness.WantErr(t, m.unlock(), zsync.ErrLost)
				harness.Must(t, <-got)
			})
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				m := make(suite.Open(t, srv), zsync.WithMaxHold(time.Second))
				did := harness.Async(func() error {
					return m.do(t.Context(), func(ctx context.Context) error {
						<-ctx.Done()
						time.Sleep(10 * harness.Timeout)
						return nil
					})
				})
				time.Sleep(2 * time.Second)
				got := harness.Async(func() error { return m.wait(t.Context()) })
				time.Sleep(5 * harness.Timeout)
				harness.PendingStill(t, got)
				harness.WantErr(t, <-did, zsync.ErrLost)
				harness.Must(t, <-got)
			})
		})
	}
}
