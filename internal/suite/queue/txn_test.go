package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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

// loseEach runs f again and again: with each of the requests lost that its session
// sends between begin and end, with each of the replies lost, and with the session
// over as well.
func loseEach(t *testing.T, f func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func())) {
	t.Helper()
	faults := []struct {
		name   string
		action zktest.Action
		expire bool
	}{{"request", zktest.DropRequest, false}, {"reply", zktest.DropReply, false}, {"request and session", zktest.DropRequest, true}, {"reply and session", zktest.DropReply, true}}
	for _, fault := range faults {
		n := int64(0)
		for struck := true; struck && !t.Failed(); {
			n++
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				id, on, seen := s.ID(), atomic.Bool{}, atomic.Int64{}
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session != id || !on.Load() || r.Op == zktest.OpConnect || r.Op == zktest.OpPing || r.Op == zktest.OpCloseSession || seen.Add(1) != n {
						return zktest.Pass
					}
					if fault.expire {
						go srv.Expire(id)
					}
					return fault.action
				})
				defer func() {
					if t.Failed() {
						t.Logf("lost: %s %d", fault.name, n)
					}
				}()
				f(t, srv, s, func() { on.Store(true) }, func() { on.Store(false) })
				struck = seen.Load() >= n
			})
		}
		if n < 2 {
			t.Errorf("nothing was sent, so no %s was lost", fault.name)
		}
	}
}

// noneLeft fails if there is an element that can be received, once the claims of
// the dead would be back.
func noneLeft(t *testing.T, q *zsync.Queue[int]) {
	t.Helper()
	time.Sleep(time.Minute)
	if v, ok, err := q.TryRecv(t.Context()); ok || err != nil {
		t.Errorf("TryRecv = %v, %v, %v; want no element", v, ok, err)
	}
}

func TestTxnAcknowledgesSendsAndWritesAllOrNoneWhateverIsLost(t *testing.T) {
	t.Parallel()
	loseEach(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func()) {
		other := open(t, srv)
		from, to := zsync.NewQueue[int](s, "/from"), zsync.NewQueue[int](s, "/to", zsync.WithMaxLen(10))
		_, err := other.Txn(t.Context(), &zk.CreateRequest{Path: "/count"})
		must(t, err)
		must(t, zsync.NewQueue[int](other, "/from").Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tries := 0
		for d := range from.Deliveries(ctx) {
			begin()
			tries++
			rs, err := d.Txn(t.Context(), &zk.SetDataRequest{Path: "/count", Version: 0, Data: []byte("1")}, to.SendOp(7, 8),
				&zk.CreateRequest{Path: "/count/n-", Flags: zk.FlagSequence})
			end()
			if errors.Is(err, zsync.ErrLost) && tries < 3 {
				continue
			}
			if errors.Is(err, zk.ErrNoNode) && strings.Contains(err.Error(), "unknown") { // with the session
				break
			}
			must(t, err)
			if len(rs) != 2 || rs[0].Stat == nil || rs[0].Stat.Version != 1 || rs[1].String != "/count/n-0000000000" {
				t.Errorf("responses %+v", rs)
			}
			must(t, d.Ack(t.Context())) // tells it once more
			break
		}
		cancel()
		noneLeft(t, zsync.NewQueue[int](other, "/from"))
		if got := collect(t, zsync.NewQueue[int](other, "/to").Recv(t.Context()), 2); !slices.Equal(got, []int{7, 8}) {
			t.Errorf("the other queue has %v", got)
		}
		noneLeft(t, zsync.NewQueue[int](other, "/to"))
		if n := len(childrenOf(t, other, "/count")); n != 1 {
			t.Errorf("%d znodes were created", n)
		}
	})
}

func TestTxnThatIsRefusedChangesNothingWhateverIsLost(t *testing.T) {
	t.Parallel()
	loseEach(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func()) {
		other := open(t, srv)
		from, to := zsync.NewQueue[int](s, "/from"), zsync.NewQueue[int](s, "/to")
		_, err := other.Txn(t.Context(), &zk.CreateRequest{Path: "/lock"}, &zk.CreateRequest{Path: "/other"})
		must(t, err)
		must(t, zsync.NewQueue[int](other, "/from").Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for d := range from.Deliveries(ctx) {
			begin()
			rs, err := d.Txn(t.Context(), to.SendOp(7), &zk.DeleteRequest{Path: "/lock", Version: 0}, &zk.CheckVersionRequest{Path: "/other", Version: 9})
			end()
			if errors.Is(err, zsync.ErrLost) {
				continue
			}
			wantErr(t, err, zk.ErrBadVersion)
			if len(rs) != 2 || rs[1].Error == nil && rs[0].Error == nil {
				t.Errorf("responses %+v", rs)
			}
			// The session may end only now: then the claim is lost with it.
			if err := d.Ack(t.Context()); err == nil {
				break
			} else {
				wantErr(t, err, zsync.ErrLost)
			}
		}
		cancel()
		noneLeft(t, zsync.NewQueue[int](other, "/from"))
		wantLen(t, zsync.NewQueue[int](other, "/to"), 0)
		if names := childrenOf(t, other, "/"); !slices.Contains(names, "lock") {
			t.Error("an operation of a transaction that was refused was applied")
		}
	})
}

func TestTxnThatIsRefusedLeavesTheElementWithItsConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1, 2))
		ctx, cancel := context.WithCancel(t.Context())
		d := <-q.Deliveries(ctx)
		cancel()
		for range 3 {
			_, err := d.Txn(t.Context(), &zk.DeleteRequest{Path: "/none", Version: -1})
			wantErr(t, err, zk.ErrNoNode)
			_, err = d.Txn(t.Context(), zsync.NewQueue[int](s, "/q2").SendOp(1), &zk.CreateRequest{Path: "/q"})
			if wantErr(t, err, zk.ErrNodeExists); !strings.Contains(err.Error(), "(create /q)") {
				t.Errorf("the error does not name the refused operation: %v", err)
			}
		}
		time.Sleep(time.Minute)
		if err := d.Context().Err(); err != nil {
			t.Errorf("the claim has ended: %v", err)
		}
		must(t, d.Nack())
		next := <-q.Deliveries(t.Context())
		if next.Value != 1 || next.Attempt != 2 {
			t.Errorf("got %d, attempt %d; want 1, attempt 2", next.Value, next.Attempt)
		}
		_, err := next.Txn(t.Context())
		must(t, err)
		_, err = next.Txn(t.Context(), &zk.CreateRequest{Path: "/late"})
		wantErr(t, err, zsync.ErrNotLocked)
		wantErr(t, next.Nack(), zsync.ErrNotLocked)
	})
}

func TestTxnOfAnElementThatWasDeletedIsNotApplied(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d := <-q.Deliveries(t.Context())
		remove(t, s, "/q/"+d.ID)
		_, err := d.Txn(t.Context(), &zk.CreateRequest{Path: "/x"})
		wantErr(t, err, zsync.ErrLost)
		if slices.Contains(childrenOf(t, s, "/"), "x") {
			t.Error("the operation was applied, though the element was somebody else's")
		}
	})
}

func TestTxnWaitsForRoomInTheOtherQueueAndGivesItBack(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		from, to := zsync.NewQueue[int](s, "/from"), zsync.NewQueue[int](s, "/to", zsync.WithMaxLen(1))
		must(t, from.Send(t.Context(), 1))
		must(t, to.Send(t.Context(), 5))
		d := <-from.Deliveries(t.Context())
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := d.Txn(short, to.SendOp(6))
		wantErr(t, err, context.DeadlineExceeded)
		done := async(func() error { _, err := d.Txn(t.Context(), to.SendOp(6)); return err })
		synctest.Wait()
		if v, ok, err := to.TryRecv(t.Context()); v != 5 || !ok || err != nil {
			t.Fatalf("TryRecv = %d, %v, %v", v, ok, err)
		}
		must(t, <-done)
		wantErr(t, to.TrySend(t.Context(), 7), zsync.ErrFull)
		if v, _, _ := to.TryRecv(t.Context()); v != 6 {
			t.Errorf("the other queue has %d", v)
		}
		must(t, to.TrySend(t.Context(), 7))
	})
}

// The servers refuse the first attempt, because the queue has no znodes yet, and the context ends at the
// instant of some answer. If that is the refusal, the error must not be the refusal: it is no answer to
// an operation of the program.
func TestTxnWhoseContextEndsWhileTheQueueIsMadeSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/log", Acl: zk.WorldACL(zk.PermAll)})
		must(t, err)
		const latency = 10 * time.Millisecond
		srv.SetLatency(latency)
		for n := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%20)*latency)
			_, err := s.Txn(ctx, zsync.NewQueue[int](s, fmt.Sprintf("/fresh%d", n), zsync.WithKey(strconv.Itoa)).SendOp(1))
			if err != nil {
				wantErr(t, err, context.DeadlineExceeded)
			} else if n%20 < 4 {
				t.Errorf("a Txn that makes its queue has taken %v", time.Duration(n%20)*latency)
			}
			cancel()
		}
	})
}

func TestTxnNamesWhatIsWrongWithItsOperations(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d := <-q.Deliveries(t.Context())
		for i, op := range []any{nil, 7, (*zk.DeleteRequest)(nil), &zk.DeleteRequest{Path: "x"}, q.SendOp(), zsync.NewQueue[int](s, "q").SendOp(1),
			zsync.NewQueue[int](open(t, srv), "/q").SendOp(1)} {
			if _, err := d.Txn(t.Context(), op); !errors.Is(err, zsync.ErrInvalid) {
				t.Errorf("case %d: %v, want ErrInvalid", i, err)
			}
		}
		_, err := d.Txn(t.Context(), &zk.SetDataRequest{Path: "/q", Data: make([]byte, 700<<10)})
		wantErr(t, err, zsync.ErrTooLarge)
		_, err = zsync.Delivery[int]{}.Txn(t.Context())
		wantErr(t, err, zsync.ErrInvalid)
		must(t, d.Ack(t.Context()))
	})
}

func TestTxnsThatSendSeveralTimesIntoLimitedQueuesWaitForNoRoomOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := within(t, time.Hour)
		s, other := open(t, srv), open(t, srv)
		limited := func(s *zsync.Session, path string) *zsync.Queue[int] {
			return zsync.NewQueue[int](s, path, zsync.WithMaxLen(4))
		}
		var txns sync.WaitGroup
		for i, ss := range []*zsync.Session{s, other, s, other} {
			from := zsync.NewQueue[int](ss, "/from"+strconv.Itoa(i))
			must(t, from.Send(ctx, i))
			x, y := limited(ss, "/x"), limited(ss, "/y")
			if i%2 == 1 {
				x, y = y, x
			}
			txns.Go(func() {
				for d := range from.Deliveries(ctx) {
					_, err := d.Txn(ctx, x.SendOp(1), y.SendOp(2), x.SendOp(3), y.SendOp(4))
					must(t, err)
					return
				}
			})
		}
		xs, ys := zsync.NewQueue[int](open(t, srv), "/x").Recv(ctx), zsync.NewQueue[int](open(t, srv), "/y").Recv(ctx)
		sum := 0
		for range 16 {
			select {
			case v := <-xs:
				sum += v
			case v := <-ys:
				sum += v
			}
		}
		if want := 4 * (1 + 2 + 3 + 4); sum != want {
			t.Errorf("what came makes %d, want %d", sum, want)
		}
		txns.Wait()
	})
}

func TestATxnThatReplacesItsElementNeedsNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(2))
		must(t, q.Send(t.Context(), 1, 2))
		ds, err := q.ReceiveN(t.Context(), 2)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := ds[0].Txn(ctx, q.SendOp(3)); err != nil {
			t.Errorf("an element that takes the place of another: %v", err)
		}
	})
}

// Who waits for room in one queue keeps nobody from another: it may be that one's consumer who
// sends there.
func TestATxnThatWaitsForRoomInOneQueueKeepsNobodyFromSendingToAnother(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := within(t, time.Hour)
		move := func(s *zsync.Session, path string, to ...string) <-chan error {
			d, err := zsync.NewQueue[int](s, path, zsync.WithMaxLen(1)).Receive(ctx)
			must(t, err)
			var ops []any
			for _, path := range to {
				ops = append(ops, zsync.NewQueue[int](s, path, zsync.WithMaxLen(10)).SendOp(d.Value))
			}
			return async(func() error { _, err := d.Txn(ctx, ops...); return err })
		}
		a, b := open(t, srv), open(t, srv)
		must(t, zsync.NewQueue[int](a, "/from").Send(ctx, 1))
		must(t, zsync.NewQueue[int](a, "/b").Send(ctx, counted(10)...))
		first := move(a, "/from", "/a", "/b")
		time.Sleep(time.Second)
		second := move(b, "/b", "/a")
		must(t, <-second)
		must(t, <-first)
		wantLen(t, zsync.NewQueue[int](a, "/a"), 2)
		wantLen(t, zsync.NewQueue[int](a, "/b"), 10)
	})
}

// Each has room in one queue, and waits for it in the other, and so has who comes from there.
func TestTxnsIntoTwoFullQueuesGoOnWhoeverHasRoomInOneOfThem(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 4, 2, 100) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 7))
			srv.SetLatency(time.Duration(rnd.IntN(30)) * time.Millisecond)
			ctx := within(t, 2*time.Hour)
			ss := suite.OpenEach(t, srv, 2)
			limited := func(s *zsync.Session, path string) *zsync.Queue[int] {
				return zsync.NewQueue[int](s, path, zsync.WithMaxLen(2))
			}
			for _, path := range []string{"/x", "/y"} {
				must(t, limited(ss[0], path).Send(ctx, 0, 0))
			}
			var txns sync.WaitGroup
			for i := range 6 {
				s := ss[i%2]
				from, x, y := zsync.NewQueue[int](s, "/from"+strconv.Itoa(i)), limited(s, "/x"), limited(s, "/y")
				must(t, from.Send(ctx, counted(10)...))
				txns.Go(func() {
					for range 10 {
						d, err := from.Receive(ctx)
						must(t, err)
						_, err = d.Txn(ctx, x.SendOp(1), y.SendOp(1))
						must(t, err)
					}
				})
			}
			var got sync.WaitGroup
			for i, path := range []string{"/x", "/y"} {
				pause, q := rand.New(rand.NewPCG(uint64(seed), uint64(i))), zsync.NewQueue[int](open(t, srv), path)
				got.Go(func() {
					for range 62 {
						d, err := q.Receive(ctx)
						must(t, err)
						must(t, d.Ack(ctx))
						time.Sleep(time.Duration(pause.IntN(3000)) * time.Millisecond)
					}
				})
			}
			txns.Wait()
			got.Wait()
		})
	}
}

// A Txn that has room in one queue waits for room in another, which may take long. TrySend of the
// same Queue value says soon that the room is another's.
func TestTrySendDoesNotWaitForATxnThatWaitsElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := within(t, time.Hour)
		s := open(t, srv)
		from, a, b := zsync.NewQueue[int](s, "/from"), zsync.NewQueue[int](s, "/a", zsync.WithMaxLen(10)), zsync.NewQueue[int](s, "/b", zsync.WithMaxLen(1))
		must(t, from.Send(ctx, 1))
		must(t, b.Send(ctx, 1))
		d, err := from.Receive(ctx)
		must(t, err)
		done := async(func() error { _, err := d.Txn(ctx, a.SendOp(1), b.SendOp(1)); return err })
		for range 200 {
			time.Sleep(130 * time.Millisecond)
			start := time.Now()
			if err := a.TrySend(ctx, 1); err != nil {
				wantErr(t, err, zsync.ErrFull)
			}
			if took := time.Since(start); took > 250*time.Millisecond {
				t.Fatalf("TrySend took %v", took)
			}
			_, _, err := a.TryRecv(ctx)
			must(t, err)
		}
		_, _, err = b.TryRecv(ctx)
		must(t, err)
		must(t, <-done)
	})
}

// txns are the transactions of a session and of its holds. Each is made ready by another Txn.
var txns = map[string]func(t *testing.T, s *zsync.Session) func(ctx context.Context, ops ...any) ([]zk.MultiResponse, error){
	"Session": func(t *testing.T, s *zsync.Session) func(context.Context, ...any) ([]zk.MultiResponse, error) {
		create(t, s, "/session") // makes the log, too
		return s.Txn
	},
	"Mutex": func(t *testing.T, s *zsync.Session) func(context.Context, ...any) ([]zk.MultiResponse, error) {
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		return m.Txn
	},
	"RWMutex": func(t *testing.T, s *zsync.Session) func(context.Context, ...any) ([]zk.MultiResponse, error) {
		rw := zsync.NewRWMutex(s, "/rw")
		must(t, rw.RLock(t.Context()))
		return rw.Txn
	},
	"Election": func(t *testing.T, s *zsync.Session) func(context.Context, ...any) ([]zk.MultiResponse, error) {
		e := zsync.NewElection(s, "/e")
		must(t, e.Campaign(t.Context()))
		return e.Txn
	},
	"Semaphore": func(t *testing.T, s *zsync.Session) func(context.Context, ...any) ([]zk.MultiResponse, error) {
		m := zsync.NewSemaphore(s, "/s", 2)
		must(t, m.Acquire(t.Context(), 2))
		return m.Txn
	},
}

func TestSendOpIsStoredWithTheWritesOfEveryTxnAllOrNoneWhateverIsLost(t *testing.T) {
	for name, prepare := range txns {
		t.Run(name, func(t *testing.T) {
			loseEach(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func()) {
				other := open(t, srv)
				create(t, other, "/order")
				q, seen := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](other, "/q")
				must(t, seen.Send(t.Context(), 0))
				txn := prepare(t, s)
				begin()
				rs, err := txn(t.Context(), &zk.SetDataRequest{Path: "/order", Data: []byte("paid"), Version: 0}, q.SendOp(1, 2))
				end()
				time.Sleep(2 * time.Minute) // nothing is under way any longer
				data, _, e := other.Get(t.Context(), "/order")
				must(t, e)
				n, e := seen.Len(t.Context())
				must(t, e)
				if paid := string(data) == "paid"; n != 1 && n != 3 || paid != (n == 3) || err == nil && !paid {
					t.Errorf("%d elements, and the order is %q; the error was %v", n, data, err)
				}
				if err != nil {
					wantErr(t, err, zsync.ErrLost)
				} else if len(rs) != 1 {
					t.Errorf("%d responses to a write and a SendOp", len(rs))
				}
			})
		})
	}
}

func TestSendOpOfARefusedTxnStoresNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/new")
		for name, prepare := range txns {
			rs, err := prepare(t, s)(t.Context(), q.SendOp(1), &zk.DeleteRequest{Path: "/missing", Version: -1})
			if wantErr(t, err, zk.ErrNoNode); len(rs) != 1 || rs[0].Error == nil {
				t.Errorf("%s: responses: %+v", name, rs)
			}
		}
		wantLen(t, q, 0)
		for name, op := range map[string]any{
			"none":                 q.SendOp(),
			"zero value":           zsync.QueueOp{},
			"of another session":   zsync.NewQueue[int](open(t, srv), "/q").SendOp(1),
			"of another layout":    zsync.NewQueue[int](s, "/k", zsync.WithQueueLayout(zsync.LayoutKazooQueue)).SendOp(1),
			"with a bad queue":     zsync.NewQueue[int](s, "relative").SendOp(1),
			"that does not encode": zsync.NewQueue[func()](s, "/f").SendOp(nil),
		} {
			if _, err := s.Txn(t.Context(), op); err == nil {
				t.Errorf("a SendOp %s: no error", name)
			} else if name != "that does not encode" {
				wantErr(t, err, zsync.ErrInvalid)
			}
		}
		_, err := s.Txn(t.Context(), zsync.NewQueue[[]byte](s, "/large", zsync.WithCodec(zsync.Raw)).SendOp(make([]byte, 1<<20)))
		wantErr(t, err, zsync.ErrTooLarge)
	})
}

// The queue's newest bucket is full, or another client has created the next one; and a limit counts.
func TestSendOpFollowsTheTailAndWaitsForRoom(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q, other := zsync.NewQueue[int](s, "/q", zsync.WithMaxLen(2010)), zsync.NewQueue[int](open(t, srv), "/q")
		want := counted(2010)
		_, err := s.Txn(t.Context(), q.SendOp(want[:1]...))
		must(t, err)
		sendAll(t, other, want[1:1000])
		_, err = s.Txn(t.Context(), q.SendOp(want[1000:1001]...), q.SendOp(want[1001:1002]...))
		must(t, err)
		sendAll(t, other, want[1002:2005])
		_, err = s.Txn(t.Context(), q.SendOp(want[2005:]...))
		must(t, err)
		time.Sleep(time.Second)
		full := async(func() error { _, err := s.Txn(t.Context(), q.SendOp(0)); return err })
		time.Sleep(time.Minute)
		pendingStill(t, full)
		ctx, cancel := context.WithCancel(t.Context())
		got := collect(t, other.Recv(ctx), len(want))
		cancel()
		if !slices.Equal(got, want) {
			t.Errorf("not in order: %v", got)
		}
		must(t, <-full)
	})
}

func TestResponsesOfATxnWithASendOpHaveThePathsOfTheProgram(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		create(t, open(t, srv), "/app")
		s, err := zsync.Connect(t.Context(), srv.Addr()+"/app", zsync.WithDialer(srv.Dial))
		must(t, err)
		defer s.Close()
		q := zsync.NewQueue[int](s, "/q")
		rs, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/app"}, q.SendOp(1), &zk.CreateRequest{Path: "/app/app"})
		if must(t, err); len(rs) != 2 || rs[0].String != "/app" || rs[1].String != "/app/app" {
			t.Errorf("responses: %+v", rs)
		}
		wantLen(t, q, 1)
	})
}
