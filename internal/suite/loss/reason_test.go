package loss

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A fault ends what a session holds, all of it or, for those it names, that alone.
type fault struct {
	reason  zsync.LossReason
	opts    []zsync.Option     // of the session
	lock    []zsync.LockOption // of its Mutex, which alone it hits then
	deleted bool               // it deletes the znode of one hold, which alone it hits then
	stays   time.Duration      // for so long functions run on when their context has ended
	strike  func(t *testing.T, srv *zktest.Server, s *zsync.Session)
}

const mostHeld = 40 * time.Second

// closeTimeout is how long Close waits for functions.
const closeTimeout = time.Second

func noStrike(*testing.T, *zktest.Server, *zsync.Session) {}

var faults = []fault{
	{reason: zsync.LossExpired, strike: func(_ *testing.T, srv *zktest.Server, s *zsync.Session) { srv.Expire(s.ID()) }},
	{reason: zsync.LossCutOff, strike: func(_ *testing.T, srv *zktest.Server, s *zsync.Session) { srv.Partition(s.ID()) }},
	{reason: zsync.LossReplaced, strike: func(_ *testing.T, srv *zktest.Server, s *zsync.Session) {
		srv.ChangeSession(s.ID())
		srv.Disconnect(s.ID())
	}},
	{reason: zsync.LossClosed, stays: 2 * closeTimeout, strike: func(t *testing.T, _ *zktest.Server, s *zsync.Session) { harness.Must(t, s.Close()) }},
	{reason: zsync.LossSuspended, opts: []zsync.Option{zsync.WithLossOnSuspend()},
		strike: func(_ *testing.T, srv *zktest.Server, s *zsync.Session) { srv.Disconnect(s.ID()) }},
	{reason: zsync.LossDeleted, deleted: true, strike: noStrike},
	{reason: zsync.LossGivenUp, lock: []zsync.LockOption{zsync.WithMaxHold(mostHeld)}, strike: noStrike},
	{reason: zsync.LossGivenUp, lock: []zsync.LockOption{zsync.WithHealth(func(context.Context) error { return errors.New("ill") })}, strike: noStrike},
}

// holds returns what a session holds in every way, each at a path of its own, until
// its context ends or a minute has passed.
func holds(s *zsync.Session, lock ...zsync.LockOption) map[string]func(ctx context.Context, f func(ctx context.Context) error) error {
	return map[string]func(ctx context.Context, f func(ctx context.Context) error) error{
		"/mutex":  zsync.NewMutex(s, "/mutex", lock...).Do,
		"/reader": zsync.NewRWMutex(s, "/reader").RDo,
		"/writer": zsync.NewRWMutex(s, "/writer").Do,
		"/permit": func(ctx context.Context, f func(ctx context.Context) error) error {
			return zsync.NewSemaphore(s, "/permit", 2).Do(ctx, 1, f)
		},
		"/leader": func(ctx context.Context, f func(ctx context.Context) error) error {
			e := zsync.NewElection(s, "/leader")
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			var cause error
			err := e.Run(ctx, func(ctx context.Context) error {
				err := f(ctx)
				if cause = context.Cause(ctx); !errors.Is(cause, zsync.ErrClosed) {
					stop() // Run would lead again
				}
				return err
			})
			return errors.Join(cause, err)
		},
	}
}

// What is held is lost by one fault or another at any moment, while connections
// break, replies are lost and the session does other things. Each hold that the
// fault hits is told, and why.
func TestAHolderIsToldWhyItHasLost(t *testing.T) {
	t.Parallel()
	var told, right int
	for seed := range harness.Seeds(t, 40, 16, 2000) {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 5))
			f := faults[rnd.IntN(len(faults))]
			s := suite.Open(t, srv, append(f.opts, zsync.WithCloseTimeout(closeTimeout))...)
			id := s.ID()
			ends := make(map[string]<-chan error)
			begun := make(chan struct{})
			for path, hold := range holds(s, f.lock...) {
				ends[path] = harness.Async(func() error {
					return hold(t.Context(), func(ctx context.Context) error {
						begun <- struct{}{}
						select {
						case <-ctx.Done():
							time.Sleep(f.stays)
						case <-time.After(time.Minute):
						}
						return nil
					})
				})
			}
			for range ends {
				<-begun
			}
			busy, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			stored := harness.Async(func() error {
				for v := zsync.NewValue[int](s, "/v"); busy.Err() == nil; time.Sleep(200 * time.Millisecond) {
					_ = v.Store(busy, 1)
				}
				return nil
			})
			if f.opts == nil && rnd.IntN(2) == 0 {
				time.Sleep(time.Duration(rnd.IntN(5000)) * time.Millisecond)
				srv.Disconnect(id) // which ends nothing
			}
			srv.Intercept(harness.First(zktest.DropReply, func(r zktest.Request) bool { return f.opts == nil && r.Session == id && r.Path == "/v" }))
			time.Sleep(time.Duration(rnd.IntN(15000)) * time.Millisecond)
			hit := []string{"/mutex"}
			if f.lock == nil {
				hit = []string{"/leader", "/mutex", "/permit", "/reader", "/writer"}
			}
			if f.deleted {
				hit = []string{hit[rnd.IntN(len(hit))]}
				deleteHolds(t, srv, hit[0])
			}
			f.strike(t, srv, s)
			for path, end := range ends {
				err := <-end
				var lost *zsync.LostError
				is := errors.As(err, &lost)
				switch was := slices.Contains(hit, path); {
				case was && !is:
					t.Errorf("%v: %s ended with %v", f.reason, path, err)
				case !was && err != nil && !errors.Is(err, context.Canceled):
					t.Errorf("%v of %v: %s ended with %v", f.reason, hit, path, err)
				case was:
					if told++; lost.Reason == f.reason && lost.Session == id {
						right++
					} else {
						t.Logf("%v is told to %s as %+v", f.reason, path, lost)
					}
				}
			}
			stop()
			<-stored
		})
	}
	t.Logf("%d of %d losses had the right reason", right, told)
	if told == 0 || right*100 < told*99 {
		t.Errorf("%d of %d losses had the right reason, want 99 of 100", right, told)
	}
}

// deleteHolds deletes what stands in the line of a hold.
func deleteHolds(t *testing.T, srv *zktest.Server, path string) {
	t.Helper()
	c := harness.Plain(t, srv)
	if path == "/permit" {
		path += "/leases"
	}
	for _, name := range harness.Children(t, c, path) {
		harness.Must(t, c.Delete(path+"/"+name, -1))
	}
}
