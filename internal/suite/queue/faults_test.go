package queue

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
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

const codeNoAuth = -102

func TestConsumersThatLeaveTogetherLoseNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 600
		must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), counted(n)...))
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(2))
		srv.SetLatency(time.Millisecond)
		got := make(chan int, n)
		recv := func(ctx context.Context) {
			for v := range q.Recv(ctx) {
				got <- v
			}
		}
		all, stop := context.WithCancel(t.Context())
		defer stop()
		go recv(all)
		for round := range 60 {
			ctx, cancel := context.WithCancel(all)
			for range 5 {
				q.Recv(ctx) // takes nothing of what it is offered
			}
			go recv(ctx)
			time.Sleep(time.Duration(round%12) * 500 * time.Microsecond)
			cancel()
		}
		seen := make(map[int]bool)
		for _, v := range collect(t, got, n) {
			if seen[v] {
				t.Errorf("%d was received twice", v)
			}
			seen[v] = true
		}
	})
}

// ackAll acknowledges n deliveries of ch.
func ackAll[T any](t testing.TB, ch <-chan zsync.Delivery[T], n int) {
	t.Helper()
	for _, d := range collect(t, ch, n) {
		must(t, d.Ack(t.Context()))
	}
}

func TestSendGoesOnWhenRoomComesAnywhereInTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(1500))
		must(t, q.Send(t.Context(), counted(1000)...))
		must(t, q.Send(t.Context(), counted(500)...))
		ch := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
		slow := <-ch // keeps its place at the front
		ackAll(t, ch, 1000)
		must(t, q.Send(t.Context(), counted(1000)...))
		sent := make(chan error, 1)
		go func() { sent <- q.Send(t.Context(), 1) }()
		synctest.Wait()
		select {
		case err := <-sent:
			t.Fatalf("Send into a full queue returned %v", err)
		default:
		}
		ackAll(t, ch, 1)
		select {
		case err := <-sent:
			must(t, err)
		case <-time.After(time.Minute):
			t.Error("Send still waits a minute after an element was consumed behind one that is not")
		}
		must(t, slow.Ack(t.Context()))
	})
}

func TestSendWaitsWhileAFullQueueIsFull(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(3), zsync.WithPriorities(2))
		must(t, q.SendPriority(t.Context(), 0, 1, 2))
		must(t, q.SendAt(t.Context(), time.Now().Add(time.Hour), 3))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := q.Send(ctx, 4); err == nil {
			t.Error("a fourth element was sent to a queue of three")
		}
		wantLen(t, q, 3)
	})
}

func TestInSendsEverythingToAQueueOfLimitedLength(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(10))
		ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		got := make(chan []int, 1)
		go func() { got <- collect(t, ch, 100) }()
		srv.SetLatency(5 * time.Millisecond)
		in, done := q.In(t.Context())
		for i := range 100 {
			in <- i
		}
		close(in)
		must(t, <-done)
		for i, v := range <-got {
			if v != i {
				t.Fatalf("received %d as element %d", v, i)
			}
		}
	})
}

func TestBucketThatIsFullCostsNoFailedTransaction(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 0))
		multis := 0
		read := oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti {
				multis++
			}
			return zktest.Pass
		})
		for range 20 {
			must(t, q.Send(t.Context(), counted(1000)...))
		}
		read(func() {
			if multis != 20 {
				t.Errorf("20 Sends of a bucket each cost %d transactions", multis)
			}
		})
	})
}

// isPost reports whether a request settles elements.
func isPost(r zktest.Request) bool {
	if r.Op != zktest.OpMulti || !strings.HasPrefix(r.Ops[0].Path, "/q-live/") {
		return false
	}
	return slices.ContainsFunc(r.Ops, func(op zktest.Request) bool {
		return op.Op == zktest.OpDelete && strings.Contains(op.Path, "/q/b-") || op.Op == zktest.OpSetData && strings.Contains(op.Path, "/e-")
	})
}

func TestLateRemovalNeverPassesForAnother(t *testing.T) {
	// The removal is on its way when its session is given up, and comes late. What was taken in
	// that moment may come again; everything comes.
	for late := 9100 * time.Millisecond; late < 9900*time.Millisecond; late += 200 * time.Millisecond {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
			must(t, other.Send(t.Context(), counted(200)...))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ch := q.Recv(ctx)
			got := collect(t, ch, 100)
			time.Sleep(time.Second)
			srv.SetLatency(10 * time.Millisecond)
			id, delayed := s.ID(), false
			read := oneByOne(srv, func(r zktest.Request) zktest.Action {
				switch {
				case r.Op == zktest.OpConnect && r.Session == id && delayed:
					return zktest.Hang
				case isPost(r) && r.Session == id && !delayed:
					delayed = true
					return zktest.Delay(late)
				}
				return zktest.Pass
			})
			for more := true; more; {
				select {
				case v := <-ch:
					got = append(got, v)
				case <-time.After(time.Minute):
					more = false
				}
			}
			seen := make(map[int]bool)
			for _, v := range got {
				seen[v] = true
			}
			if len(seen) != 200 {
				t.Errorf("late by %v: %d of 200 elements were received", late, len(seen))
			}
			read(func() {
				if !delayed {
					t.Error("nothing was late: the case did not come about")
				}
			})
			wantLen(t, other, 0)
		})
	}
}

func TestSendThatWasRefusedIsNotStoredLater(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, made := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
				must(t, other.Send(t.Context(), 0))
				time.Sleep(time.Minute)
				if made {
					must(t, q.Send(t.Context(), 1)) // leaves a receipt for the next
				}
				had, err := q.Len(t.Context())
				must(t, err)
				id, stage, bars := s.ID(), 0, 0
				read := oneByOne(srv, func(r zktest.Request) zktest.Action {
					switch {
					case r.Op == zktest.OpConnect && r.Session == id && stage > 0:
						return zktest.Hang
					case (r.Op == zktest.OpSetData || r.Op == zktest.OpCreate) && strings.HasPrefix(r.Path, "/q-receipts/"):
						if bars++; lost && bars == 1 {
							return zktest.DropReply
						}
					case r.Op != zktest.OpMulti || len(r.Ops) < 2 || !strings.HasPrefix(r.Ops[0].Path, "/q-receipts/"):
					case stage == 0:
						stage = 1
						return zktest.Delay(9 * time.Second) // until after the refusal, but within the session
					case stage == 1:
						stage = 2
						return zktest.Fail(codeNoAuth)
					}
					return zktest.Pass
				})
				err = q.Send(t.Context(), 2)
				read(func() {
					if stage != 2 || bars == 0 {
						t.Fatalf("stage %d, barred %d times: the case did not come about", stage, bars)
					}
				})
				time.Sleep(time.Minute)
				want := had
				if err == nil {
					want++
				}
				if n, e := q.Len(t.Context()); e != nil || n != want {
					t.Errorf("Send returned %v; Len = %d, %v, and was %d", err, n, e, had)
				}
				srv.Intercept(nil)
				must(t, q.Send(t.Context(), 3))
				wantLen(t, q, want+1)
			})
		}
	}
}

func TestWhatTheDeadHadComesBackToConsumersWhoseLivesAreShort(t *testing.T) {
	// strand leaves an element in the hands of a process that is dead.
	strand := func(t *testing.T, srv *zktest.Server) {
		dead, kill := mortal(t, srv)
		must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), 7))
		<-zsync.NewQueue[int](dead, "/q").Deliveries(t.Context())
		synctest.Wait()
		kill()
	}
	// within tries for a minute to receive something.
	within := func(t *testing.T, recv func(ctx context.Context) (int, bool)) {
		t.Helper()
		for start := time.Now(); time.Since(start) < time.Minute; {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			v, ok := recv(ctx)
			<-ctx.Done() // at the latest
			cancel()
			if ok && v == 7 {
				return
			}
		}
		t.Error("nothing was received in a minute")
	}
	t.Run("Recv", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			strand(t, srv)
			q := zsync.NewQueue[int](open(t, srv), "/q")
			within(t, func(ctx context.Context) (int, bool) {
				v, ok := <-q.Recv(ctx)
				return v, ok
			})
		})
	})
	t.Run("TryRecv", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			strand(t, srv)
			q := zsync.NewQueue[int](open(t, srv), "/q")
			within(t, func(ctx context.Context) (int, bool) {
				v, ok, _ := q.TryRecv(ctx)
				return v, ok
			})
		})
	})
	t.Run("Processes", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			strand(t, srv)
			within(t, func(ctx context.Context) (int, bool) {
				s := open(t, srv)
				defer s.Close()
				v, ok, _ := zsync.NewQueue[int](s, "/q").TryRecv(ctx)
				return v, ok
			})
			time.Sleep(time.Minute)
			for _, name := range childrenOf(t, open(t, srv), "/q-live") {
				t.Errorf("%s is left", name)
			}
		})
	})
}

func TestMarkOfADeadClaimantGoesWhenItComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, other.Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		<-q.Deliveries(ctx)
		cancel()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if isPost(r) {
				return zktest.Delay(900 * time.Millisecond) // its return takes nearly as long as it is given
			}
			return zktest.Pass
		})
		srv.Expire(s.ID())
		try, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, early, _ := other.TryRecv(try)
		stop()
		time.Sleep(10 * time.Second)
		if _, ok, err := other.TryRecv(t.Context()); ok == early || err != nil {
			t.Errorf("TryRecv = %v, %v after %v: once is right", ok, err, early)
		}
		time.Sleep(time.Minute)
		for _, name := range childrenOf(t, s, "/q-live") {
			t.Errorf("%s is left", name)
		}
	})
}

// deleteTree deletes a znode and everything below it.
func deleteTree(t testing.TB, s *zsync.Session, path string) {
	t.Helper()
	for _, name := range childrenOf(t, s, path) {
		deleteTree(t, s, path+"/"+name)
	}
	remove(t, s, path)
}

func TestAckOfAnElementOfADeletedQueueTakesNothingFromTheNext(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, at := open(t, srv), time.Now()
			a, b, c := zsync.NewQueue[string](s, "/q"), zsync.NewQueue[string](open(t, srv), "/q"), zsync.NewQueue[string](open(t, srv), "/q")
			send := func(v string) {
				if delayed {
					must(t, a.SendAt(t.Context(), at, v))
				} else {
					must(t, a.Send(t.Context(), v))
				}
			}
			send("old")
			ctx, cancel := context.WithCancel(t.Context())
			d := <-b.Deliveries(ctx)
			cancel()
			deleteTree(t, s, "/q")
			send("new")
			wantErr(t, d.Ack(t.Context()), zsync.ErrLost)
			wantLen(t, a, 1)
			if v, ok, err := c.TryRecv(t.Context()); v != "new" || !ok || err != nil {
				t.Errorf("TryRecv = %q, %v, %v", v, ok, err)
			}
		})
	}
}

// removed deletes a dead letter that is there.
func removed[T any](t testing.TB, q *zsync.Queue[T], d zsync.DeadLetter) {
	t.Helper()
	if there, err := suite.Remove(t.Context(), q, d); !there || err != nil {
		t.Errorf("dead letter %s: removed %v, %v", d.ID, there, err)
	}
}

// requeued puts back a dead letter that is there.
func requeued[T any](t testing.TB, q *zsync.Queue[T], d zsync.DeadLetter) {
	t.Helper()
	if there, err := suite.Requeue(t.Context(), q, d); !there || err != nil {
		t.Errorf("dead letter %s: put back %v, %v", d.ID, there, err)
	}
}

func listDead[T any](t testing.TB, q *zsync.Queue[T]) (ds []zsync.DeadLetter) {
	t.Helper()
	for d, err := range q.Dead(t.Context()) {
		must(t, err)
		ds = append(ds, d)
	}
	return ds
}

func TestDeadLetterThatWasRemovedIsNeverTakenForALaterOne(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		raw := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithCodec(zsync.Raw))
		q := zsync.NewQueue[int](open(t, srv), "/q")
		q.Recv(t.Context())
		must(t, raw.Send(t.Context(), "{first"))
		time.Sleep(time.Second)
		old := listDead(t, q)[0]
		removed(t, q, old)
		time.Sleep(10 * time.Minute) // the servers remove the empty container
		must(t, raw.Send(t.Context(), "{second"))
		time.Sleep(time.Second)
		for _, f := range []func(context.Context, *zsync.Queue[int], zsync.DeadLetter) (bool, error){suite.Requeue[int], suite.Remove[int]} {
			if there, err := f(t.Context(), q, old); there || err != nil {
				t.Errorf("a letter that was removed: %v, %v", there, err)
			}
		}
		now := listDead(t, q)
		if len(now) != 1 || string(now[0].Data) != "{second" || now[0].ID == old.ID {
			t.Errorf("dead letters: %+v; the old was %s", now, old.ID)
		}
	})
}

// TryRecv has claimed the element when its context ends, and its removal is on its way. Only
// this caller can still get the element.
func TestTryRecvWhoseContextEndsDuringTheRemovalReturnsTheElement(t *testing.T) {
	for _, after := range []string{"the reply is late", "the reply is lost", "the session ends", "the Session is closed"} {
		t.Run(after, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, o := open(t, srv), open(t, srv)
				q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](o, "/q")
				must(t, other.Send(t.Context(), 1))
				ctx, cancel := context.WithCancel(t.Context())
				var removals atomic.Int64
				srv.Intercept(func(r zktest.Request) zktest.Action {
					removes := slices.ContainsFunc(r.Ops, func(op zktest.Request) bool { return op.Op == zktest.OpDelete && strings.HasPrefix(op.Path, "/q/b-") })
					if !removes || r.Session == o.ID() || removals.Add(1) != 1 {
						return zktest.Pass
					}
					cancel()
					switch after {
					case "the reply is late":
						return zktest.Delay(time.Second)
					case "the session ends":
						id := r.Session
						time.AfterFunc(10*time.Millisecond, func() { srv.Expire(id) })
					}
					return zktest.DropReply
				})
				v, ok, err := q.TryRecv(ctx)
				if v != 1 || !ok || err != nil {
					t.Errorf("TryRecv = %d, %v, %v; want 1", v, ok, err)
				}
				if after == "the Session is closed" {
					must(t, s.Close())
				}
				time.Sleep(time.Minute)
				wantLen(t, other, 0)
				if v, ok, err := other.TryRecv(t.Context()); ok || err != nil {
					t.Errorf("another TryRecv = %d, %v, %v; want none", v, ok, err)
				}
			})
		})
	}
}

// A cleanCodec counts the elements' data that are garbage.
type cleanCodec struct{ garbage *atomic.Int64 }

func (c cleanCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (c cleanCodec) Unmarshal(data []byte, v any) error {
	runtime.AddCleanup(&data[0], func(struct{}) { c.garbage.Add(1) }, struct{}{})
	*v.(*[]byte) = data
	return nil
}

func TestOneUnacknowledgedDeliveryKeepsNoOtherInMemory(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial))
	must(t, err)
	defer s.Close()
	var garbage atomic.Int64
	q := zsync.NewQueue[[]byte](s, "/q", zsync.WithCodec(cleanCodec{&garbage}))
	for range 4 {
		batch := make([][]byte, 100)
		for i := range batch {
			batch[i] = make([]byte, 1000)
		}
		must(t, q.Send(t.Context(), batch...))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ch := q.Deliveries(ctx)
	var kept []zsync.Delivery[[]byte]
	for i := range 400 {
		d := <-ch
		if i%20 == 7 {
			kept = append(kept, d)
			continue
		}
		must(t, d.Ack(t.Context()))
	}
	eventually(t, func() error {
		runtime.GC()
		if n := garbage.Load(); n < 370 {
			return fmt.Errorf("of 380 that are settled %d are garbage, with %d unacknowledged", n, len(kept))
		}
		return nil
	})
	for _, d := range kept {
		must(t, d.Ack(t.Context()))
	}
	cancel()
}

func TestDeadLetterIsReportedWhenItIsThereAndOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var reported atomic.Int64
		s := open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if e.Kind == zsync.EventDead {
				reported.Add(1)
			}
		})))
		raw := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithCodec(zsync.Raw))
		q := zsync.NewQueue[int](s, "/q")
		must(t, raw.Send(t.Context(), "{"))
		id := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if isPost(r) && r.Session == id {
				return zktest.DropRequest
			}
			if r.Op == zktest.OpConnect && r.Session == id {
				return zktest.Hang
			}
			return zktest.Pass
		})
		q.Recv(t.Context())
		time.Sleep(2 * time.Second)
		if n := reported.Load(); n != 0 {
			t.Errorf("reported %d times before it is there", n)
		}
		time.Sleep(time.Minute)
		if n, m := reported.Load(), len(listDead(t, q)); n != 1 || m != 1 {
			t.Errorf("reported %d times; %d dead letters", n, m)
		}
	})
}

func TestPeekWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, q := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, a.Send(t.Context(), 1))
		time.Sleep(time.Minute)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch r.Op {
			case zktest.OpCreate, zktest.OpSetData, zktest.OpDelete, zktest.OpMulti:
				return zktest.Fail(codeNoAuth)
			}
			return zktest.Pass
		})
		if v, ok, err := q.Peek(t.Context()); v != 1 || !ok || err != nil {
			t.Errorf("Peek = %d, %v, %v", v, ok, err)
		}
		srv.Intercept(nil)
	})
}

func TestChannelsOfABadlyMadeQueueCloseAtOnceAndErrSaysWhy(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for name, q := range map[string]*zsync.Queue[int]{
			"relative path": zsync.NewQueue[int](s, "q"),
			"bad option":    zsync.NewQueue[int](s, "/q", zsync.WithPrefetch(0)),
			"no session":    zsync.NewQueue[int](nil, "/q"),
			"zero":          {},
		} {
			if q.Err() == nil {
				t.Errorf("%s: no Err", name)
			}
			if _, ok := <-q.Recv(t.Context()); ok {
				t.Errorf("%s: received", name)
			}
			if _, ok := <-q.Deliveries(t.Context()); ok {
				t.Errorf("%s: delivered", name)
			}
			in, done := q.In(t.Context())
			in <- 1 // blocks nobody
			if err, ok := <-done; err == nil || !ok {
				t.Errorf("%s: In: %v, %v", name, err, ok)
			}
			if _, ok := <-done; ok {
				t.Errorf("%s: done stays open", name)
			}
			close(in)
			n := 0
			for _, err := range q.All(t.Context()) {
				if n++; err == nil {
					t.Errorf("%s: All yields no error", name)
				}
			}
			for _, err := range q.Dead(t.Context()) {
				if n++; err == nil {
					t.Errorf("%s: Dead yields no error", name)
				}
			}
			if n != 2 {
				t.Errorf("%s: All and Dead yield %d errors, want one each", name, n)
			}
		}
		if err := zsync.NewQueue[int](s, "/q").Err(); err != nil {
			t.Errorf("Err of a good queue: %v", err)
		}
	})
}

func TestConsumerWhoseTypeDoesNotFitLeavesTheQueueAlone(t *testing.T) {
	t.Parallel()
	const misfits = 3 // in a row; those that follow are left in the queue
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			const n = 300
			a := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(layout))
			vs := make([]string, n)
			for i := range vs {
				vs[i] = fmt.Sprintf("{%d", i)
			}
			must(t, a.Send(t.Context(), vs...))
			wrong := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			told := 0
			for _, err := range wrong.All(ctx) {
				if err != nil && strings.Contains(err.Error(), "in a row") {
					told++
				}
			}
			if told == 0 {
				t.Error("nobody was told")
			}
			if _, ok, err := wrong.TryRecv(t.Context()); ok || err == nil {
				t.Errorf("TryRecv = %v, %v", ok, err)
			}
			if dead := len(listDead(t, a)); dead > misfits {
				t.Errorf("%d elements went to the dead letters", dead)
			}
			got := collect(t, a.Recv(t.Context()), n-misfits)
			for i, v := range got {
				if want := vs[i+misfits]; v != want {
					t.Fatalf("received %q, want %q", v, want)
				}
			}
		})
	}
}

// What is left in the queue because nothing decodes is there, and free.
func TestTryRecvAndPeekTellThatNothingThereDecodesForAsLongAsItIsThere(t *testing.T) {
	for name, send := range map[string][]zsync.QueueOption{
		"zsync":         {},
		"keys":          {zsync.WithKey(func(v any) string { return fmt.Sprint(v) })},
		"priorities":    {zsync.WithPriorities(9)},
		"simple layout": {zsync.WithQueueLayout(zsync.LayoutSimpleQueue)},
	} {
		receive := send
		if name == "keys" {
			receive = nil
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				a, q := zsync.NewQueue[any](open(t, srv), "/q", send...), zsync.NewQueue[int](open(t, srv), "/q", receive...)
				must(t, a.Send(t.Context(), "a", "b", "c", "d", "e"))
				for range 20 { // three of them go to the dead letters
					if v, ok, err := q.TryRecv(t.Context()); ok || err == nil {
						t.Errorf("TryRecv = %v, %v, %v; want an error", v, ok, err)
					}
					if v, ok, err := q.Peek(t.Context()); ok || err == nil {
						t.Errorf("Peek = %v, %v, %v; want an error", v, ok, err)
					}
					time.Sleep(10 * time.Second)
				}
				_, err := a.Clear(t.Context())
				must(t, err)
				if v, ok, err := q.TryRecv(t.Context()); ok || err != nil {
					t.Errorf("TryRecv = %v, %v, %v; want none", v, ok, err)
				}
				if v, ok, err := q.Peek(t.Context()); ok || err != nil {
					t.Errorf("Peek = %v, %v, %v; want none", v, ok, err)
				}
				must(t, a.Send(t.Context(), "f", 7))
				for range 2 {
					if v, ok, _ := q.TryRecv(t.Context()); ok && v == 7 {
						return
					}
				}
				t.Error("TryRecv does not get to what decodes")
			})
		})
	}
}

func TestWhatAProgramDoesToTheDataOfADeadLetterIsNotRequeued(t *testing.T) {
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, opts := open(t, srv), []zsync.QueueOption{zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(layout)}
			raw := zsync.NewQueue[string](s, "/q", opts...)
			must(t, raw.Send(t.Context(), "secret one", "secret two"))
			for range 2 {
				_, _, err := zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(layout)).TryRecv(t.Context())
				must(t, err)
			}
			redact := func(d zsync.DeadLetter) bool {
				copy(d.Data, "XXXXXX")
				return true
			}
			for d, err := range raw.Dead(t.Context()) {
				must(t, err)
				redact(d)
				requeued(t, raw, d)
				break
			}
			_, err := raw.RequeueDead(t.Context(), redact)
			must(t, err)
			for _, want := range []string{"secret one", "secret two"} {
				if got, _, err := raw.TryRecv(t.Context()); got != want || err != nil {
					t.Errorf("%v: received %q, %v; want %q", layout, got, err, want)
				}
			}
		})
	}
}

func TestManyElementsThatDoNotDecodeHoldUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		raw, q := zsync.NewQueue[string](s, "/q", zsync.WithCodec(zsync.Raw)), zsync.NewQueue[int](open(t, srv), "/q")
		for range 10 {
			must(t, raw.Send(t.Context(), "{"))
		}
		must(t, raw.Send(t.Context(), "1"))
		ch := q.Recv(t.Context())
		collect(t, ch, 1)
		for i := range 4 { // each shows that the type fits
			must(t, raw.Send(t.Context(), fmt.Sprint(i)))
			collect(t, ch, 1)
			time.Sleep(2 * time.Minute)
		}
		if dead := len(listDead(t, q)); dead != 10 {
			t.Errorf("%d dead letters, want 10", dead)
		}
		wantLen(t, q, 0)
	})
}

func TestAllYieldsWhatDoesNotDecode(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		raw, q := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithCodec(zsync.Raw)), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, raw.Send(t.Context(), "{mend me", "{forget me", "3"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for d, err := range q.All(ctx) {
			switch {
			case err == nil:
				got = append(got, fmt.Sprint(d.Value))
				must(t, d.Ack(ctx))
				cancel()
			case d.ID == "":
			default:
				got = append(got, string(d.Data()))
				if len(got) == 1 {
					must(t, d.Ack(ctx))
				}
			}
		}
		if want := "[{mend me {forget me 3]"; fmt.Sprint(got) != want {
			t.Errorf("yielded %v, want %s", got, want)
		}
		time.Sleep(time.Second)
		if ds := listDead(t, q); len(ds) != 1 || string(ds[0].Data) != "{forget me" {
			t.Errorf("dead letters: %+v", ds)
		}
		wantLen(t, q, 0)
	})
}

// hide refuses to read the elements of /q whose names end so.
func hide(suffix string) func(r zktest.Request) zktest.Action {
	hidden := func(r zktest.Request) bool {
		return r.Op == zktest.OpGetData && strings.HasPrefix(r.Path, "/q/") && strings.HasSuffix(r.Path, suffix)
	}
	return func(r zktest.Request) zktest.Action {
		if hidden(r) || slices.ContainsFunc(r.Ops, hidden) {
			return zktest.Fail(codeNoAuth)
		}
		return zktest.Pass
	}
}

func TestElementThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, a.Send(t.Context(), counted(10)...))
		srv.Intercept(hide("e-0000000003"))
		ctx, cancel := context.WithCancel(t.Context())
		ch := b.Recv(ctx)
		for _, v := range collect(t, ch, 9) {
			if v == 3 {
				t.Error("received what could not be read")
			}
		}
		must(t, a.Send(t.Context(), 10))
		collect(t, ch, 1)
		cancel()
		for range ch {
		}
		must(t, a.Send(t.Context(), 11))
		if v, ok, err := b.TryRecv(t.Context()); v != 11 || !ok || err != nil {
			t.Errorf("TryRecv = %d, %v, %v", v, ok, err)
		}
		srv.Intercept(nil)
		time.Sleep(2 * time.Minute)
		if v := <-b.Recv(t.Context()); v != 3 {
			t.Errorf("received %d, want what can be read now", v)
		}
	})
}

func TestTryRecvAndClearAreServedBesideBusyConsumers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		a, b := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		for range 30 {
			must(t, a.Send(t.Context(), counted(1000)...))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			go func() {
				for range zsync.NewQueue[int](open(t, srv), "/q").Recv(ctx) {
				}
			}()
		}
		time.Sleep(20 * time.Millisecond)
		start := time.Now()
		if _, ok, err := b.TryRecv(t.Context()); !ok || err != nil {
			t.Errorf("TryRecv = %v, %v", ok, err)
		}
		if d := time.Since(start); d > 200*time.Millisecond {
			t.Errorf("TryRecv took %v", d)
		}
		if n, err := b.Clear(t.Context()); n < 1000 || err != nil {
			t.Errorf("Clear = %d, %v", n, err)
		}
		cancel()
		synctest.Wait()
	})
}

func TestAckWithAContextThatHasEndedStillRemoves(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := zsync.NewQueue[int](open(t, srv), "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		must(t, a.Send(t.Context(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		d := <-b.Deliveries(ctx)
		cancel()
		srv.SetLatency(time.Millisecond) // an Ack whose answer is there returns that
		wantErr(t, d.Ack(ctx), context.Canceled)
		time.Sleep(time.Second)
		wantLen(t, a, 0)
		must(t, d.Ack(t.Context()))
	})
}

func TestElementThatTheServersRefuseToPutBackIsPutBackLater(t *testing.T) {
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutKazooQueue} {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprint(layout, " closed ", closed), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					q := zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(layout))
					must(t, q.Send(t.Context(), 0, 1))
					_, _, err := q.TryRecv(t.Context()) // makes the directory of the receipts
					must(t, err)
					time.Sleep(time.Second)
					var multis atomic.Int64
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op != zktest.OpMulti || r.Session != s.ID() {
							return zktest.Pass
						}
						switch n := multis.Add(1); {
						case n == 1: // the removal
							return zktest.Delay(100 * time.Millisecond)
						case n < 5 && !closed, n == 2:
							return zktest.Fail(zktest.CodeNoAuth)
						}
						return zktest.Pass
					})
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					defer cancel()
					_, _, err = q.TryRecv(ctx)
					wantErr(t, err, context.DeadlineExceeded)
					if time.Sleep(200 * time.Millisecond); closed {
						must(t, s.Close())
					} else {
						time.Sleep(time.Minute)
					}
					if n := multis.Load(); n < 3 {
						t.Fatalf("%d transactions: nothing was refused", n)
					}
					other := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout))
					wantLen(t, other, 1)
					if v, ok, err := other.TryRecv(t.Context()); v != 1 || !ok || err != nil {
						t.Errorf("TryRecv = %d, %v, %v; want 1", v, ok, err)
					}
				})
			})
		}
	}
}

// Whoever has removed an element for a caller that has left puts it back into a path
// that others may change at present, when they may no more.
func TestElementIsPutBackWhenItsPathIsProtectedAgain(t *testing.T) {
	for _, layout := range []zsync.QueueLayout{zsync.LayoutKazooQueue} { // the own layout claims before it removes
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				mine := zk.DigestACL(zk.PermAll, "me", "secret")
				s, o := openAs(t, srv, "me", mine), openAs(t, srv, "me", mine)
				q := zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(layout))
				must(t, q.Send(t.Context(), 0, 1))
				receipts := "/q-receipts"
				_, _, err := q.TryRecv(t.Context()) // makes the directory of the receipts
				must(t, err)
				time.Sleep(time.Second)
				c := plain(t, srv)
				must(t, c.AddAuth("digest", []byte("me:secret")))
				opened := func(acl []zk.ACL) {
					for _, dir := range []string{"/q", receipts} {
						_, err := c.SetACL(dir, acl, -1)
						must(t, err)
					}
				}
				srv.SetLatency(40 * time.Millisecond)
				ctx, cancel := context.WithCancel(t.Context())
				var removals atomic.Int64
				srv.Intercept(func(r zktest.Request) zktest.Action {
					removes := slices.ContainsFunc(r.Ops, func(op zktest.Request) bool {
						return op.Op == zktest.OpDelete && strings.HasPrefix(op.Path, "/q/") && op.Path != "/q/paused"
					})
					if !removes || r.Session == o.ID() || removals.Add(1) != 1 {
						return zktest.Pass
					}
					cancel()
					// The removal is done, and its reply lost with the session.
					id := r.Session
					time.AfterFunc(10*time.Millisecond, func() { srv.Expire(id) })
					return zktest.DropReply
				})
				_, _, err = q.TryRecv(ctx)
				wantErr(t, err, context.Canceled)
				opened(zk.WorldACL(zk.PermAll))
				time.Sleep(3 * time.Minute)
				if removals.Load() == 0 {
					t.Fatal("nothing was removed: the case did not come about")
				}
				opened(mine)
				time.Sleep(3 * time.Minute)
				other := zsync.NewQueue[int](o, "/q", zsync.WithQueueLayout(layout))
				wantLen(t, other, 1)
				if v, ok, err := other.TryRecv(t.Context()); v != 1 || !ok || err != nil {
					t.Errorf("TryRecv = %d, %v, %v; want 1", v, ok, err)
				}
			})
		})
	}
}

func TestALogHandlerMayAskForTheDeliveryWhoseSettlementIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var d zsync.Delivery[int]
		var told atomic.Int64
		s := open(t, srv, zsync.WithLogger(harness.OnLog(func(msg string) {
			if strings.Contains(msg, "cannot settle") {
				told.Add(1)
				d.Data()
				<-d.Context().Done() // an Ack has decided
			}
		})))
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d = wantNext(t, q.Deliveries(t.Context()), 1)
		time.Sleep(time.Second)
		var multis atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && multis.Add(1) == 1 {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		wantErr(t, d.Ack(t.Context()), zk.ErrNoAuth)
		time.Sleep(time.Minute)
		must(t, d.Ack(t.Context()))
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
	})
}

// A loop over All panics at an element that cannot be decoded, and the program goes on.
func TestAnElementThatCannotBeDecodedIsADeadLetterThoughTheLoopPanics(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewQueue[string](s, "/q").Send(t.Context(), "no number"))
		q := zsync.NewQueue[int](s, "/q")
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic has not reached the caller")
				}
			}()
			for _, err := range q.All(t.Context()) {
				panic(err)
			}
		}()
		time.Sleep(time.Second)
		if ds := listDead(t, q); len(ds) != 1 {
			t.Errorf("%d dead letters, want 1", len(ds))
		}
	})
}
