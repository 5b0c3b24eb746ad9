package semaphore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func made(path string) *zk.CreateRequest { return &zk.CreateRequest{Path: path} }

// isThere reports whether a znode is there.
func isThere(t *testing.T, s *zsync.Session, path string) bool {
	t.Helper()
	_, _, err := s.Get(t.Context(), path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return err == nil
}

func TestTxnOfASemaphoreIsAppliedWhileAllOfItsPermitsStand(t *testing.T) {
	for name, c := range map[string]struct {
		limit  int64
		leases string
		opts   []zsync.LockOption
	}{
		"one znode each": {limit: 5, leases: "/s/leases"},
		"one for all":    {limit: 5000, leases: "/s/leases"},
		"kazoo's":        {limit: 5, leases: "/s", opts: []zsync.LockOption{zsync.WithLayout(zsync.LayoutKazoo)}},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ctx := t.Context()
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				m := zsync.NewSemaphore(s, "/s", c.limit, c.opts...)
				txn := func(path string, want error, reason zsync.LossReason) {
					t.Helper()
					rs, err := m.Txn(ctx, made(path))
					if harness.WantErr(t, err, want); want == nil && (len(rs) != 1 || rs[0].String != path) {
						t.Errorf("Txn returns %v", rs)
					}
					if suite.LossOf(err) != reason {
						t.Errorf("Txn says %v; want the reason %v", err, reason)
					}
					if isThere(t, other, path) != (want == nil) {
						t.Errorf("Txn says %v, and %s is there: %v", err, path, want != nil)
					}
				}
				txn("/none", zsync.ErrNotLocked, 0)
				harness.Must(t, m.Acquire(ctx, 3))
				txn("/three", nil, 0)
				harness.Must(t, m.Release(1)) // a part, which is another znode where there is one for all
				txn("/two", nil, 0)
				if _, err := m.Txn(ctx, made("/missing/x")); !errors.Is(err, zk.ErrNoNode) || errors.Is(err, zsync.ErrLost) {
					t.Errorf("Txn below a znode that is not there: %v", err)
				}
				harness.Must(t, m.Release(2))
				txn("/released", zsync.ErrNotLocked, 0)

				harness.Must(t, m.Acquire(ctx, 2))
				srv.Intercept(func(r zktest.Request) zktest.Action { // so that nobody hears of it before
					if r.Session == s.ID() && (r.Op == zktest.OpGetChildren || r.Op == zktest.OpGetChildren2) {
						return zktest.Delay(time.Minute)
					}
					return zktest.Pass
				})
				stranger := harness.Plain(t, srv)
				names, _, err := stranger.Children(c.leases)
				harness.Must(t, err)
				harness.Must(t, stranger.Delete(c.leases+"/"+names[len(names)-1], -1))
				txn("/deleted", zsync.ErrLost, zsync.LossDeleted)
				select {
				case <-m.Lost():
				default:
					t.Error("Lost is open though Txn has told the loss")
				}
				srv.Intercept(nil)
				harness.WantErr(t, m.Release(2), zsync.ErrLost)

				harness.Must(t, m.Acquire(ctx, 2))
				srv.Expire(s.ID())
				txn("/expired", zsync.ErrLost, zsync.LossExpired)
				harness.WantErr(t, m.Release(2), zsync.ErrLost)
				_, err = new(zsync.Semaphore).Txn(ctx, made("/x"))
				harness.WantErr(t, err, zsync.ErrInvalid)
				_, err = m.Txn(ctx)
				harness.WantErr(t, err, zsync.ErrNotLocked)
			})
		})
	}
}

func TestTxnOfASemaphoreIsAppliedOnceWhateverHappensToItsReply(t *testing.T) {
	suite.EachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		ctx := t.Context()
		s := suite.Open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 3)
		harness.Must(t, m.Acquire(ctx, 2))
		arm(s)
		_, err := m.Txn(ctx, &zk.CreateRequest{Path: "/n-", Flags: zk.FlagSequence})
		_, tokenErr := m.Token(ctx)
		for _, err := range []error{err, tokenErr, m.Release(2)} {
			if err != nil && !errors.Is(err, zsync.ErrLost) { // as the session may end
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		made := 0
		for _, name := range suite.ChildrenOf(t, suite.Open(t, srv), "/") {
			if len(name) == len("n-0000000000") && name[:2] == "n-" {
				made++
			}
		}
		if made != 1 && !(made == 0 && errors.Is(err, zsync.ErrLost)) {
			t.Errorf("it was applied %d times, and Txn has returned %v", made, err)
		}
	})
}

func TestTokensOfASemaphoreAreGreaterThanThoseOfBefore(t *testing.T) {
	for _, limit := range []int64{2, 2000} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx := t.Context()
			s := suite.Open(t, srv)
			a, b := zsync.NewSemaphore(s, "/s", limit), zsync.NewSemaphore(suite.Open(t, srv), "/s", limit)
			token := func(m *zsync.Semaphore) int64 {
				t.Helper()
				tok, err := m.Token(ctx)
				harness.Must(t, err)
				again, err := m.Token(ctx)
				if harness.Must(t, err); again != tok {
					t.Errorf("Token is %d, and then %d", tok, again)
				}
				return tok
			}
			_, err := a.Token(ctx)
			harness.WantErr(t, err, zsync.ErrNotLocked)
			last := int64(0)
			grows := func(who string, tok int64) {
				t.Helper()
				if tok <= last {
					t.Errorf("%s has the token %d, and before there was %d", who, tok, last)
				}
				last = tok
			}
			for range 3 {
				for _, m := range []*zsync.Semaphore{a, b} {
					harness.Must(t, m.Acquire(ctx, 1))
					grows("the next", token(m))
					harness.Must(t, m.Release(1))
				}
			}
			harness.Must(t, a.Acquire(ctx, 1))
			grows("the first", token(a))
			harness.Must(t, b.Acquire(ctx, 1))
			grows("who came beside it", token(b))
			harness.Must(t, b.Release(1))
			harness.Must(t, a.Acquire(ctx, 1))
			grows("the first, which has one more", token(a))
			harness.Must(t, a.Release(1))
			if tok := token(a); tok != last {
				t.Errorf("the token is %d when one of two was released, and was %d", tok, last)
			}
			lost := a.Lost()
			srv.Expire(s.ID())
			<-lost
			_, err = a.Token(ctx)
			harness.WantErr(t, err, zsync.ErrLost)
			harness.WantErr(t, a.Release(1), zsync.ErrLost)
			harness.Must(t, a.Acquire(ctx, 1))
			grows("the next session", token(a))
		})
	}
}

// What is released beside a Txn or a Token is no loss, also where the znode that stands
// for the rest is about to be made.
func TestTxnsAndTokensBesideReleasesFindNoLoss(t *testing.T) {
	for _, limit := range []int64{1000, 5000} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			srv.SetLatency(time.Millisecond)
			ctx := t.Context()
			m := zsync.NewSemaphore(suite.Open(t, srv), "/s", limit)
			harness.Must(t, m.Acquire(ctx, 60))
			done := make(chan struct{})
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-done:
							return
						default:
						}
						_, err := m.Txn(ctx, made(fmt.Sprintf("/%d-%d", i, n)))
						if err == nil {
							_, err = m.Token(ctx)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			var releases sync.WaitGroup
			for i := range 5 { // several at once, of which one waits for the other to be done
				releases.Go(func() {
					for range 10 {
						if err := m.Release(1); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Duration(300+100*i) * time.Microsecond)
					}
				})
			}
			releases.Wait()
			close(done)
			wg.Wait()
			select {
			case <-m.Lost():
				t.Error("Lost is closed")
			default:
			}
			harness.Must(t, m.Release(10))
		})
	}
}

// Who releases what he holds while a Txn is on its way ends nothing that may have been
// applied already.
func TestATxnWithoutAReplyIsNotSaidToHaveComeAfterTheRelease(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 3)
		harness.Must(t, m.Acquire(ctx, 2))
		id := s.ID()
		var cut atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && r.Session == id && cut.CompareAndSwap(false, true):
				return zktest.DropReply
			case r.Op == zktest.OpConnect && r.Session == id:
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		txn := harness.Async(func() error {
			_, err := m.Txn(ctx, made("/x"))
			return err
		})
		time.Sleep(time.Second)
		harness.Must(t, m.Release(2))
		harness.WantErr(t, <-txn, zsync.ErrLost)
		if !isThere(t, other, "/x") {
			t.Error("it was not applied, and so the test shows nothing")
		}
	})
}

func TestACheckThatIsRefusedIsNoLossOfPermits(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		s := suite.Open(t, srv)
		m := zsync.NewSemaphore(s, "/s", 3)
		harness.Must(t, m.Acquire(ctx, 2))
		lost := m.Lost()
		lease := suite.ChildrenOf(t, s, "/s/leases")[1]
		harness.SetACL(t, srv, "/s/leases/"+lease, zk.WorldACL(zk.PermWrite))
		_, err := m.Txn(ctx, made("/x"))
		harness.WantErr(t, err, zk.ErrNoAuth)
		select {
		case <-lost:
			t.Error("the permits are lost though their znodes stand")
		default:
		}
		harness.Must(t, m.Release(2))
	})
}

// A token is told while more permits are acquired: what is told later is not less, so who
// remembers the greatest refuses nobody who holds them.
func TestTokenOfASemaphoreNeverShrinksWhileItsPermitsAreHeld(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		m := zsync.NewSemaphore(suite.Open(t, srv), "/s", 3)
		harness.Must(t, m.Acquire(ctx, 1))
		token := func() int64 {
			tok, err := m.Token(ctx)
			harness.Must(t, err)
			return tok
		}
		// The server puts the write of the first aside, twice, and it is made again after a pause.
		var writes atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData && writes.Add(1) <= 2 {
				return zktest.Fail(zktest.CodeThrottled)
			}
			return zktest.Pass
		})
		before := make(chan int64, 1)
		go func() { before <- token() }()
		synctest.Wait()
		harness.Must(t, m.Acquire(ctx, 1))
		joined := token()
		tok := <-before
		if again := token(); again < tok || again < joined {
			t.Errorf("token %d after %d and %d", again, tok, joined)
		}
		harness.Must(t, m.Release(2))
	})
}

// The context of a Partition's function ends with this cause, and so does that of an Election's.
func TestTxnOfASemaphoreEndsWithAContextThatHasEndedAsItsHoldMoved(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(suite.Open(t, srv), "/s", 5)
		harness.Must(t, m.Acquire(t.Context(), 2))
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(zsync.ErrNotLocked)
		asked := 0
		_, err := m.Txn(harness.Asking(ended, func() {
			if asked++; asked > 1000 {
				t.Fatal("Txn does not end with its context")
			}
		}), made("/written"))
		harness.WantErr(t, err, context.Canceled, zsync.ErrNotLocked)
	})
}
