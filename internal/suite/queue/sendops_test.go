package queue

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A transaction that has only SendOps was applied, its reply is lost, and the session ends before
// Txn has found out the outcome. The outcome is unknown, so the error must be ErrLost.
func TestTxnOfSendOpsAloneSaysThatItsOutcomeIsUnknown(t *testing.T) {
	for name, prepare := range txns {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), open(t, srv)
				q, seen := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](other, "/q")
				must(t, seen.Send(t.Context(), 0))
				txn, id := prepare(t, s), s.ID()
				var multis, struck atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Session != id:
					case r.Op == zktest.OpMulti && multis.Add(1) == 1:
						return zktest.DropReply
					case r.Op == zktest.OpExists && multis.Load() == 2 && struck.CompareAndSwap(0, 1):
						go srv.Expire(id)
						return zktest.DropRequest
					}
					return zktest.Pass
				})
				_, err := txn(t.Context(), q.SendOp(1))
				srv.Intercept(nil)
				time.Sleep(time.Minute)
				if n, err := seen.Len(t.Context()); n != 2 || err != nil {
					t.Errorf("%d elements, %v", n, err)
				}
				if struck.Load() != 1 {
					t.Error("the fault did not strike")
				}
				wantErr(t, err, zsync.ErrLost)
			})
		})
	}
}

// While Close waits for a function, "Token, Txn, Ack, and Unlock work", also if the queue of a SendOp
// is limited and has room.
func TestTxnWithASendOpWorksWhileCloseWaitsForTheFunction(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		q, seen := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](other, "/q")
		limited, full := zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(4)), zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(3))
		must(t, seen.Send(t.Context(), 0))
		m := zsync.NewMutex(s, "/m")
		closed := make(chan error, 1)
		var plain, sends, room, none error
		must(t, m.Do(t.Context(), func(ctx context.Context) error {
			go func() { closed <- s.Close() }()
			<-ctx.Done()
			_, plain = m.Txn(context.WithoutCancel(ctx), &zk.CreateRequest{Path: "/x"})
			_, sends = m.Txn(context.WithoutCancel(ctx), q.SendOp(1))
			_, room = m.Txn(context.WithoutCancel(ctx), limited.SendOp(2))
			_, none = m.Txn(context.WithoutCancel(ctx), full.SendOp(3))
			return nil
		}))
		<-closed
		must(t, plain)
		must(t, sends)
		must(t, room)
		wantErr(t, none, zsync.ErrClosed)
		if n, err := seen.Len(t.Context()); n != 3 || err != nil {
			t.Errorf("%d elements, %v", n, err)
		}
	})
}

// Each Txn has a Queue value of its own, which sends only once. Still, no bucket grows far beyond its
// size, so no listing is long.
func TestTxnsThatEachSendOnceFillNoBucketBeyondItsSize(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		srv.SetLatency(time.Millisecond) // so that every goroutine gets its turn before the next reply
		for i := range 2100 {
			_, err := s.Txn(t.Context(), zsync.NewQueue[int](s, "/q").SendOp(i))
			must(t, err)
		}
		var sizes []int
		for _, name := range childrenOf(t, s, "/q") {
			if strings.HasPrefix(name, "b-") {
				sizes = append(sizes, len(childrenOf(t, s, "/q/"+name)))
			}
		}
		if slices.Max(sizes) > 1500 {
			t.Errorf("the buckets have %v elements", sizes)
		}
		q := zsync.NewQueue[int](s, "/q")
		for i := range 2100 {
			if v, ok, err := q.TryRecv(t.Context()); v != i || !ok || err != nil {
				t.Fatalf("TryRecv = %d, %v, %v; want %d", v, ok, err, i)
			}
		}
	})
}

// The queue of a SendOp is full, and the hold of the Txn is lost. The Txn returns the loss, and does
// not wait for room any longer.
func TestATxnThatWaitsForRoomReturnsTheLoss(t *testing.T) {
	type txn = func(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)
	ways := map[string]func(t *testing.T, s *zsync.Session) txn{
		"Delivery": func(t *testing.T, s *zsync.Session) txn {
			q := zsync.NewQueue[int](s, "/tasks")
			must(t, q.Send(t.Context(), 0))
			d, err := q.Receive(t.Context())
			must(t, err)
			return d.Txn
		},
		"Mutex": func(t *testing.T, s *zsync.Session) txn {
			m := zsync.NewMutex(s, "/m")
			must(t, m.Lock(t.Context()))
			return m.Txn
		},
		"RWMutex": func(t *testing.T, s *zsync.Session) txn {
			m := zsync.NewRWMutex(s, "/m")
			must(t, m.RLock(t.Context()))
			return m.Txn
		},
		"Election": func(t *testing.T, s *zsync.Session) txn {
			e := zsync.NewElection(s, "/e")
			must(t, e.Campaign(t.Context()))
			return e.Txn
		},
		"Semaphore": func(t *testing.T, s *zsync.Session) txn {
			m := zsync.NewSemaphore(s, "/s", 2)
			must(t, m.Acquire(t.Context(), 1))
			return m.Txn
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				full := zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(1))
				must(t, full.Send(t.Context(), 0))
				txn := way(t, s)
				done := async(func() error { _, err := txn(within(t, time.Hour), full.SendOp(1)); return err })
				time.Sleep(time.Minute)
				pendingStill(t, done)
				srv.Expire(s.ID())
				begun := time.Now()
				wantErr(t, <-done, zsync.ErrLost)
				if took := time.Since(begun); took > time.Minute {
					t.Errorf("Txn has returned after %v", took)
				}
			})
		})
	}
}

// A SendOp must know the newest bucket of its queue. The context also ends that read.
func TestATxnWithASendOpEndsWithItsContextThoughNoServerAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() {
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		start := time.Now()
		_, err := s.Txn(within(t, time.Second), q.SendOp(1))
		wantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 1100*time.Millisecond {
			t.Errorf("Txn returned after %v; its context ended after 1s", d)
		}
	})
}
