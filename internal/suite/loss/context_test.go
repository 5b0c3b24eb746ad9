package loss

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A holding is a way to hold something at /h while a function runs.
type holding struct {
	name string
	hold func(t *testing.T, s *zsync.Session, f func(ctx context.Context, h held) error) error
}

// A held is what the function may do.
type held struct {
	lost  <-chan struct{}
	token func(context.Context) (int64, error)
	txn   func(context.Context, ...any) ([]zk.MultiResponse, error)
}

func holdings() []holding {
	lock := func(name string, do func(t *testing.T, s *zsync.Session, m *zsync.Mutex, f func(context.Context) error) error) holding {
		return holding{name, func(t *testing.T, s *zsync.Session, f func(context.Context, held) error) error {
			m := zsync.NewMutex(s, "/h")
			return do(t, s, m, func(ctx context.Context) error { return f(ctx, held{m.Lost(), m.Token, m.Txn}) })
		}}
	}
	rw := func(name string, do func(rw *zsync.RWMutex) func(context.Context, func(context.Context) error) error) holding {
		return holding{name, func(t *testing.T, s *zsync.Session, f func(context.Context, held) error) error {
			rw := zsync.NewRWMutex(s, "/h")
			return do(rw)(t.Context(), func(ctx context.Context) error { return f(ctx, held{rw.Lost(), rw.Token, rw.Txn}) })
		}}
	}
	return []holding{
		lock("Mutex.Do", func(t *testing.T, _ *zsync.Session, m *zsync.Mutex, f func(context.Context) error) error {
			return m.Do(t.Context(), f)
		}),
		lock("Do in Mutex.Do", func(t *testing.T, s *zsync.Session, m *zsync.Mutex, f func(context.Context) error) error {
			return m.Do(t.Context(), func(ctx context.Context) error { return zsync.NewMutex(s, "/h").Do(ctx, f) })
		}),
		lock("Mutex.Do after Cond.Wait", func(t *testing.T, s *zsync.Session, m *zsync.Mutex, f func(context.Context) error) error {
			return m.Do(t.Context(), func(ctx context.Context) error {
				c := zsync.NewCond(s, "/c", m)
				signalled := harness.Async(func() error {
					harness.Must(t, m.Lock(t.Context())) // once the other waits
					harness.Must(t, c.Signal(t.Context()))
					return m.Unlock()
				})
				harness.Must(t, c.Wait(ctx))
				harness.Must(t, <-signalled)
				return f(ctx)
			})
		}),
		rw("RWMutex.Do", func(rw *zsync.RWMutex) func(context.Context, func(context.Context) error) error { return rw.Do }),
		rw("RWMutex.RDo", func(rw *zsync.RWMutex) func(context.Context, func(context.Context) error) error { return rw.RDo }),
		{"Election.Run", func(t *testing.T, s *zsync.Session, f func(context.Context, held) error) error {
			e := zsync.NewElection(s, "/h")
			ctx, stop := context.WithCancel(t.Context())
			return e.Run(ctx, func(ctx context.Context) error {
				defer stop() // after a loss it would begin again
				return f(ctx, held{e.Lost(), e.Token, e.Txn})
			})
		}},
	}
}

// Whoever is told of a loss by a call finds that Lost is closed, and that the
// context of the function has ended, without any other goroutine having had a turn.
func TestWhoeverIsToldOfALossByACallFindsTheContextEnded(t *testing.T) {
	strikes := map[string]struct {
		reason zsync.LossReason
		strike func(t *testing.T, srv *zktest.Server, s, stranger *zsync.Session)
	}{
		"deleted": {zsync.LossDeleted, func(t *testing.T, _ *zktest.Server, _, stranger *zsync.Session) {
			suite.DeleteContender(t, stranger, "/h", 0)
		}},
		"closed": {zsync.LossClosed, func(_ *testing.T, _ *zktest.Server, s, _ *zsync.Session) { s.Close() }},
	}
	for _, h := range holdings() {
		for what, c := range strikes {
			for _, call := range []string{"Token", "Txn"} {
				t.Run(h.name+" "+call+" "+what, func(t *testing.T) {
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						s, stranger := suite.Open(t, srv), suite.Open(t, srv)
						h.hold(t, s, func(ctx context.Context, h held) error {
							c.strike(t, srv, s, stranger)
							var err error
							if call == "Token" {
								_, err = h.token(t.Context())
							} else {
								_, err = h.txn(t.Context(), &zk.CheckVersionRequest{Path: "/h", Version: -1})
							}
							ended, lost := ctx.Err() != nil, harness.Closed(h.lost)
							if suite.LossOf(err) != c.reason {
								t.Errorf("%s: %v", call, err)
							}
							told := suite.LossOf(context.Cause(ctx)) == c.reason || what == "closed" && errors.Is(context.Cause(ctx), zsync.ErrClosed)
							if !lost || !ended || !told {
								t.Errorf("%s has told the loss, and Lost is closed: %v; the context has ended: %v (%v)", call, lost, ended, context.Cause(ctx))
							}
							return nil
						})
					})
				})
			}
		}
	}
}

// A lateContext has ended, and the goroutine that closes Done has not had its turn
// yet: who waits for something else too may be woken by that.
type lateContext struct {
	context.Context
	ended atomic.Bool
}

func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// The server puts the listing behind a create aside at the instant at which the
// context ends: it is the context that has ended the wait.
func TestAListingThatIsPutAsideWhenTheContextEndsIsTheEndOfTheContext(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		e := zsync.NewElection(suite.Open(t, srv), "/h")
		harness.Must(t, e.Campaign(t.Context()))
		harness.Must(t, e.Resign())
		ctx := &lateContext{Context: t.Context()}
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpGetChildren || r.Op == zktest.OpGetChildren2 {
				ctx.ended.Store(true)
				return zktest.Fail(zktest.CodeThrottled)
			}
			return zktest.Pass
		})
		harness.WantErr(t, e.Campaign(ctx), context.Canceled)
	})
}
