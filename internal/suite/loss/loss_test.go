package loss

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestEveryLossTellsItsReasonInEveryWay(t *testing.T) {
	for _, c := range []struct {
		reason  zsync.LossReason
		happens func(t *testing.T, srv *zktest.Server, s *zsync.Session)
		opts    []zsync.Option
	}{
		{zsync.LossExpired, func(_ *testing.T, srv *zktest.Server, s *zsync.Session) { srv.Expire(s.ID()) }, nil},
		{zsync.LossCutOff, func(_ *testing.T, srv *zktest.Server, s *zsync.Session) { srv.Partition(s.ID()) }, nil},
		{zsync.LossDeleted, func(t *testing.T, _ *zktest.Server, s *zsync.Session) {
			for _, name := range suite.ChildrenOf(t, s, "/m") {
				_, err := s.Txn(t.Context(), &zk.DeleteRequest{Path: "/m/" + name, Version: -1})
				harness.Must(t, err)
			}
			m := zsync.NewMutex(s, "/n") // whose own znode nobody has touched
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
		}, nil},
		{zsync.LossClosed, func(t *testing.T, _ *zktest.Server, s *zsync.Session) { harness.Must(t, s.Close()) }, nil},
		{zsync.LossSuspended, func(_ *testing.T, srv *zktest.Server, s *zsync.Session) { srv.Disconnect(s.ID()) }, []zsync.Option{zsync.WithLossOnSuspend()}},
	} {
		t.Run(c.reason.String(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				var mu sync.Mutex
				var told error
				s := suite.Open(t, srv, append(c.opts, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
					if e.Kind == zsync.EventLost {
						mu.Lock()
						told = e.Err
						mu.Unlock()
					}
				})))...)
				id, start := s.ID(), time.Now()
				check := func(way string, err error) {
					t.Helper()
					var lost *zsync.LostError
					if !errors.Is(err, zsync.ErrLost) || !errors.As(err, &lost) {
						t.Fatalf("%s: got %v, want a LostError", way, err)
					}
					if lost.Reason != c.reason || lost.Session != id || lost.Since.Before(start) || lost.Since.After(time.Now()) {
						t.Errorf("%s: got %+v", way, lost)
					}
					if got, want := errors.Is(err, zsync.ErrClosed), c.reason == zsync.LossClosed; got != want {
						t.Errorf("%s: ErrClosed is %v", way, got)
					}
				}
				m := zsync.NewMutex(s, "/m")
				err := m.Do(t.Context(), func(ctx context.Context) error {
					c.happens(t, srv, s)
					if c.reason == zsync.LossDeleted {
						_, err := m.Token(t.Context()) // finds out
						check("Token", err)
					}
					<-ctx.Done()
					if cause := context.Cause(ctx); c.reason != zsync.LossClosed { // Close ends it first, and the hold after that
						check("the cause of the context", cause)
					} else if !errors.Is(cause, zsync.ErrClosed) || errors.Is(cause, zsync.ErrLost) {
						t.Errorf("the cause of the context: %v", cause)
					}
					_, err := m.Token(t.Context())
					check("Token, after", err)
					return nil
				})
				check("Do", err)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				check("the observer", told)
			})
		})
	}
}

// What is held is told to be lost when the margin of the moment in which it was cut off
// has passed, and is granted to another no earlier than a tenth of the timeout after that.
func TestTheMarginIsForHowLongWhatIsHeldIsHeldIfNothingMoreIsHeard(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second, 2 * time.Second, 3700 * time.Millisecond, time.Minute} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b := suite.Open(t, srv), suite.Open(t, srv)
			m := zsync.NewMutex(a, "/m")
			harness.Must(t, m.Lock(t.Context()))
			lost := m.Lost()
			time.Sleep(wait)
			synctest.Wait()
			margin, cut := a.Margin(), time.Now()
			if margin <= 0 || margin > a.Timeout()*9/10 {
				t.Errorf("after %v the margin is %v, of a timeout of %v", wait, margin, a.Timeout())
			}
			srv.Partition(a.ID())
			granted := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(t.Context()) })
			<-lost
			told := time.Since(cut)
			if d := told - margin; d < 0 || d > a.Timeout()/100 {
				t.Errorf("after %v the margin is %v, and the loss is told %v later", wait, margin, told)
			}
			if left := a.Margin(); left > 0 {
				t.Errorf("%v are left when the loss is told", left)
			}
			harness.Must(t, <-granted)
			if d := time.Since(cut) - told; d < b.Timeout()/10 {
				t.Errorf("another is granted it %v after the loss was told", d)
			}
		})
	}
}
