package locks

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A goroutine has its turn, and waits until its session is confirmed. Meanwhile another client deletes its znode,
// and another goroutine of the process gets the lock. The first goroutine must not end the hold of the second
// as a loss and leave the second's znode behind.
func TestATurnWhoseZnodeIsDeletedLeavesNoZnodeOfTheNextHolderBehind(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		suite.Create(t, other, "/m/zzzzzzzzzz", "") // so that the servers do not remove /m, and TryLock sends one write only
		harness.Must(t, m.Unlock())
		time.Sleep(time.Minute) // without holds: the session is not confirmed any more
		id := s.ID()
		var over atomic.Bool
		var refused atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpDelete && strings.HasSuffix(r.Path, "/none") && !over.Load() {
				refused.Add(1)
				return zktest.Fail(zktest.CodeThrottled) // the inquiry of Stake
			}
			return zktest.Pass
		})
		var got bool
		try := harness.Async(func() (err error) { got, err = m.TryLock(t.Context()); return err })
		time.Sleep(150 * time.Millisecond) // TryLock asks every hundredth of the session timeout, and not at this moment
		if len(try) > 0 || refused.Load() == 0 {
			t.Fatalf("TryLock has sent %d inquiries, and is over: %v", refused.Load(), len(try) > 0)
		}
		suite.DeleteContender(t, other, "/m", 0)
		harness.Must(t, m.Lock(t.Context())) // the session is confirmed by this create
		if len(try) > 0 {
			t.Fatal("TryLock is over")
		}
		over.Store(true)
		harness.Must(t, <-try)
		t.Logf("TryLock: %v; the holder is lost: %v", got, harness.Closed(m.Lost()))
		t.Logf("Unlock: %v", m.Unlock())
		time.Sleep(time.Minute)
		if names := suite.ChildrenOf(t, other, "/m"); len(names) > 1 {
			t.Errorf("a minute after Unlock, and without a contender, there is %q", names)
		}
		if err := zsync.NewMutex(other, "/m").Lock(harness.Within(t, time.Hour)); err != nil {
			t.Errorf("Lock by another process: %v", err)
		}
	})
}

// A new reader of a process is not told of the loss of a hold that was released before it came.
func TestANewReaderDoesNotSeeAnEarlierLossThatWasReleased(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(0))
		harness.Must(t, rw.RLock(t.Context()))
		harness.Must(t, rw.RLock(t.Context()))
		time.Sleep(time.Second)
		suite.DeleteContender(t, other, "/rw", 0)
		time.Sleep(time.Second)
		if !harness.Closed(rw.Lost()) {
			t.Fatal("no loss")
		}
		harness.WantErr(t, rw.RUnlock(), zsync.ErrLost)
		wantNoLossForANewReader(t, srv, s, rw)
	})
}

// wantNoLossForANewReader locks rw for one more reader than the one that has it. No loss may be visible.
func wantNoLossForANewReader(t *testing.T, srv *zktest.Server, s *zsync.Session, rw *zsync.RWMutex) {
	t.Helper()
	harness.Must(t, rw.RLock(t.Context()))
	if harness.Closed(rw.Lost()) {
		t.Error("the new reader is told of a loss")
	}
	srv.SetLatency(5 * time.Millisecond) // without it, LockAll repeats itself for ever in no time
	before := s.Stats().Requests
	unlock, err := zsync.LockAll(harness.Within(t, time.Minute), zsync.NewMutex(s, "/a"), rw.RLocker())
	if err != nil {
		t.Errorf("LockAll, after %d requests: %v", s.Stats().Requests-before, err)
	} else {
		harness.Must(t, unlock())
	}
	harness.Must(t, rw.RUnlock())
	harness.Must(t, rw.RUnlock())
}

// A reader releases its hold, and only the release finds that another client has deleted the znode. A later
// reader is not told of this loss.
func TestANewReaderDoesNotSeeALossThatAnEarlierReleaseHasFound(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		rw, writer := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(1)), zsync.NewRWMutex(other, "/rw")
		harness.Must(t, rw.RLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		write := harness.Arrive(t, func() error { return writer.Lock(ctx) })
		harness.Must(t, rw.RLock(t.Context()))                                   // joins the first reader
		read := harness.Arrive(t, func() error { return rw.RLock(t.Context()) }) // waits behind the writer, with a znode of its own
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpGetChildren2 {
				return zktest.Delay(time.Second) // the event of the deletion below does not come before the release
			}
			return zktest.Pass
		})
		cancel()
		harness.WantErr(t, <-write, context.Canceled)
		harness.Must(t, <-read)
		suite.DeleteContender(t, other, "/rw", 0)
		harness.Must(t, rw.RUnlock())
		harness.WantErr(t, rw.RUnlock(), zsync.ErrLost)
		srv.Intercept(nil)
		wantNoLossForANewReader(t, srv, s, rw)
	})
}

// Another client deletes the znode of a reader, and a writer works. Then a second reader of the process comes. The
// first reader does not know yet that its hold is lost, and writes on the ground of what it has read.
func TestAReaderWhoseZnodeIsDeletedWritesNothingUnderALaterHoldOfItsProcess(t *testing.T) {
	for name, write := range map[string]func(rw *zsync.RWMutex, ctx context.Context) error{
		"txn": func(rw *zsync.RWMutex, ctx context.Context) error {
			_, err := rw.Txn(ctx, &zk.CreateRequest{Path: "/written"})
			return err
		},
		"token": func(rw *zsync.RWMutex, ctx context.Context) error { _, err := rw.Token(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				rw, writer := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(0)), zsync.NewRWMutex(other, "/rw")
				harness.Must(t, rw.RLock(t.Context()))
				suite.DeleteContender(t, other, "/rw", 0)
				harness.Must(t, writer.Lock(t.Context()))
				harness.Must(t, writer.Unlock())
				harness.Must(t, rw.RLock(t.Context()))
				if harness.Closed(rw.Lost()) {
					t.Fatal("the loss is known: the test shows nothing")
				}
				harness.WantErr(t, write(rw, t.Context()), zsync.ErrLost)
				harness.WantErr(t, rw.RUnlock(), zsync.ErrLost)
				harness.Must(t, rw.RUnlock())
			})
		})
	}
}

// A writer has become a reader, and another reader of its process has come and gone. The former writer still learns
// of a loss.
func TestAWriterThatHasBecomeAReaderIsToldOfALossThoughAnotherReaderHasLeft(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		rw := zsync.NewRWMutex(s, "/rw")
		held, unlock, err := zsync.LockAllContext(t.Context(), rw)
		harness.Must(t, err)
		lost := rw.Lost()
		harness.Must(t, rw.Downgrade(t.Context()))
		harness.Must(t, rw.RLock(t.Context()))
		harness.Must(t, rw.RUnlock())
		if harness.Closed(lost) || held.Err() != nil {
			t.Error("it is told of a loss without a loss")
		}
		srv.Expire(s.ID())
		time.Sleep(2 * harness.Timeout)
		if !harness.Closed(rw.Lost()) || !harness.Closed(lost) || held.Err() == nil {
			t.Errorf("Lost after the loss is closed: %v; Lost before the Downgrade: %v; the error of the context: %v", harness.Closed(rw.Lost()), harness.Closed(lost), held.Err())
		}
		harness.WantErr(t, unlock(), zsync.ErrNotLocked)
		harness.WantErr(t, rw.RUnlock(), zsync.ErrLost)
	})
}

// A reader waits in Txn for room in a queue, and another reader of its process comes and goes. Txn ends with the
// loss of the hold.
func TestTxnOfAReaderEndsWithTheLossThoughAnotherReaderHasLeft(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		rw, q := zsync.NewRWMutex(s, "/rw"), zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(1))
		harness.Must(t, q.Send(t.Context(), 1))
		harness.Must(t, rw.RLock(t.Context()))
		txn := harness.Arrive(t, func() error { _, err := rw.Txn(harness.Within(t, time.Hour), q.SendOp(2)); return err })
		harness.Must(t, rw.RLock(t.Context()))
		harness.Must(t, rw.RUnlock())
		srv.Expire(s.ID())
		start := time.Now()
		harness.WantErr(t, <-txn, zsync.ErrLost)
		if took := time.Since(start); took > 2*harness.Timeout {
			t.Errorf("it took %v", took)
		}
		harness.WantErr(t, rw.RUnlock(), zsync.ErrLost)
	})
}

// A function of the program reads, and another reader of its process comes and goes. Close waits for the function, and
// until then, no writer works. The other reader may be in a function, too, which has returned since.
func TestCloseKeepsTheReadLockOfAFunctionThoughAnotherReaderHasLeft(t *testing.T) {
	for i := range 4 {
		handoffs := []int{16, 0}[i/2] // without a znode of its own, or with one
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := suite.Open(t, srv), suite.Open(t, srv)
			rw, writer := zsync.NewRWMutex(s, "/rw", zsync.WithHandoffs(handoffs)), zsync.NewRWMutex(other, "/rw")
			var closed, write <-chan error
			harness.Must(t, zsync.NewMutex(s, "/m").Do(t.Context(), func(ctx context.Context) error {
				harness.Must(t, rw.RLock(ctx))
				another := func(ctx context.Context) error { return errors.Join(rw.RLock(ctx), rw.RUnlock()) }
				if i%2 == 0 {
					harness.Must(t, another(t.Context()))
				} else {
					harness.Must(t, zsync.NewMutex(s, "/another").Do(t.Context(), another))
				}
				write = harness.Arrive(t, func() error { return writer.Lock(t.Context()) })
				closed = harness.Async(s.Close)
				<-ctx.Done()
				time.Sleep(time.Second)
				if len(write) > 0 {
					t.Errorf("handoffs %d: a writer works beside the reader", handoffs)
				}
				if err := rw.RUnlock(); err != nil {
					t.Errorf("handoffs %d: %v", handoffs, err)
				}
				return nil
			}))
			harness.Must(t, <-closed)
			harness.Must(t, <-write)
			harness.Must(t, writer.Unlock())
		})
	}
}
