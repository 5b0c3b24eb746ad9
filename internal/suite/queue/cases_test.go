package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// Case 32 of docs/verification.md: a corrupted element is never lost, in any layout.
func TestCorruptedElementKeepsItsBytesInEveryLayout(t *testing.T) {
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue, zsync.LayoutKazooQueue} {
		for name, take := range map[string]func(t *testing.T, q *zsync.Queue[int]) int{
			"recv": func(t *testing.T, q *zsync.Queue[int]) int { return <-q.Recv(t.Context()) },
			"try": func(t *testing.T, q *zsync.Queue[int]) int {
				v, ok, err := q.TryRecv(t.Context())
				if !ok || err != nil {
					t.Errorf("TryRecv = %v, %v", ok, err)
				}
				return v
			},
		} {
			t.Run(layout.String()+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					raw := zsync.NewQueue[string](s, "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(layout))
					must(t, raw.Send(t.Context(), "not a number"))
					must(t, raw.Send(t.Context(), "1"))
					q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout))
					if v := take(t, q); v != 1 {
						t.Errorf("received %d, want 1", v)
					}
					eventually(t, func() error {
						for d, err := range q.Dead(t.Context()) {
							must(t, err)
							if !strings.Contains(string(d.Data), "not a number") {
								t.Errorf("dead letter %q", d.Data)
							}
							return nil
						}
						return errors.New("no dead letter")
					})
				})
			})
		}
	}
}

// Case 32 of docs/verification.md: a consumer whose session dies while it works is told so, whatever
// becomes of the request with which it acknowledges.
func TestAckSaysTheTruthWhenItsReplyIsLost(t *testing.T) {
	for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply, zktest.Hang, zktest.HangReply} {
		for _, expire := range []bool{false, true} {
			for _, cancelled := range []bool{false, true} {
				name := fmt.Sprintf("%v expire=%v cancelled=%v", fault, expire, cancelled)
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
					must(t, other.Send(t.Context(), 1))
					consuming, stop := context.WithCancel(t.Context())
					d := <-q.Deliveries(consuming)
					stop() // it would receive the element again itself
					next := other.Deliveries(t.Context())
					synctest.Wait()
					id := s.ID()
					srv.Intercept(first(fault, func(r zktest.Request) bool {
						hit := r.Op == zktest.OpMulti && r.Session == id
						if hit && expire {
							time.AfterFunc(0, func() { srv.Expire(id) })
						}
						return hit
					}))
					ctx, cancel := context.WithCancel(t.Context())
					if cancelled {
						time.AfterFunc(time.Millisecond, cancel)
					}
					err := d.Ack(ctx)
					cancel()
					if errors.Is(err, context.Canceled) {
						err = d.Ack(t.Context()) // tells what became of it
					}
					time.Sleep(time.Minute)
					select {
					case d := <-next:
						if err == nil {
							t.Errorf("%s: delivered again though Ack returned nil", name)
						}
						wantErr(t, err, zsync.ErrLost)
						must(t, d.Ack(t.Context()))
					default:
						if err != nil && !(expire && errors.Is(err, zk.ErrNoNode)) { // gone, and nobody can say by whom
							t.Errorf("%s: Ack returned %v though nobody else got the element", name, err)
						}
					}
					wantLen(t, other, 0)
				})
			}
		}
	}
}

// Case 33 of docs/verification.md: a queue goes on after a long partition, of producers and consumers.
func TestQueueGoesOnAfterALongPartition(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		in, out := zsync.NewQueue[int](a, "/q"), zsync.NewQueue[int](b, "/q")
		ch := out.Recv(t.Context())
		must(t, in.Send(t.Context(), 0))
		if v := <-ch; v != 0 {
			t.Fatalf("received %d", v)
		}
		eventuallyEmpty(t, in) // what was taken in the last moment before an expiry may come again
		for i := 1; i < 4; i++ {
			srv.Stop()
			sent := async(func() error { return in.Send(t.Context(), i) })
			time.Sleep(time.Duration(i) * time.Hour)
			pendingStill(t, sent)
			srv.Restart()
			must(t, <-sent)
			if v := <-ch; v != i {
				t.Fatalf("received %d, want %d", v, i)
			}
			eventuallyEmpty(t, in)
		}
		for _, s := range []*zsync.Session{a, b} {
			id := s.ID()
			srv.Partition(id)
			time.Sleep(time.Hour)
			srv.Heal(id)
			must(t, in.Send(t.Context(), 9))
			if v := <-ch; v != 9 {
				t.Fatalf("received %d, want 9", v)
			}
			eventuallyEmpty(t, in)
		}
		eventuallyEmpty(t, out)
	})
}

func TestQueueGoesOnWhenItsTreeIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		ch := q.Recv(t.Context())
		must(t, q.Send(t.Context(), 1))
		<-ch
		time.Sleep(time.Second)
		remove := func(path string) error {
			_, err := s.Txn(t.Context(), &zk.DeleteRequest{Path: path, Version: -1})
			return err
		}
		for _, dir := range []string{"/q", "/q-live", "/q-receipts", "/q-consumers"} {
			err := zk.ErrNotEmpty // a consumer whose znode is gone comes back at once
			for errors.Is(err, zk.ErrNotEmpty) {
				for _, name := range childrenOf(t, s, dir) {
					if err := remove(dir + "/" + name); err != nil && !errors.Is(err, zk.ErrNoNode) {
						t.Fatal(err)
					}
				}
				err = remove(dir)
			}
			if err != nil && !errors.Is(err, zk.ErrNoNode) {
				t.Fatal(err)
			}
		}
		must(t, q.Send(t.Context(), 2))
		if v := <-ch; v != 2 {
			t.Errorf("received %d, want 2", v)
		}
	})
}

func TestSendSaysHowManyBytesAreTooManyBeforeItWrites(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[[]byte](open(t, srv), "/q", zsync.WithCodec(zsync.Raw))
		before := srv.Counts()
		for _, vs := range [][][]byte{
			{make([]byte, 1<<20)},
			slices.Repeat([][]byte{make([]byte, 1000)}, 1100),
			slices.Repeat([][]byte{nil}, 20_000),
		} {
			err := q.Send(t.Context(), vs...)
			wantErr(t, err, zsync.ErrTooLarge)
			if !strings.Contains(err.Error(), fmt.Sprint(len(vs))) || !strings.Contains(err.Error(), "too many") {
				t.Errorf("the error does not say how much is too much: %v", err)
			}
		}
		if d := srv.Counts().Sub(before); d.Total() != 0 {
			t.Errorf("refused Sends cost %v", d.Requests)
		}
		must(t, q.Send(t.Context(), slices.Repeat([][]byte{make([]byte, 1000)}, 900)...))
		if err := zsync.NewQueue[chan int](open(t, srv), "/q").Send(t.Context(), make(chan int)); err == nil {
			t.Error("a channel was encoded")
		}
	})
}

func TestQueueCodecs(t *testing.T) {
	type pair struct {
		A int
		B string
	}
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		check := func(name string, got, want any, ok bool, err error) {
			t.Helper()
			if got != want || !ok || err != nil {
				t.Errorf("%s: TryRecv = %v, %v, %v; want %v", name, got, ok, err, want)
			}
		}
		for name, codec := range map[string]zsync.Codec{"json": zsync.JSON, "gob": zsync.Gob} {
			q := zsync.NewQueue[pair](s, "/"+name, zsync.WithCodec(codec))
			must(t, q.Send(t.Context(), pair{1, "x"}))
			v, ok, err := q.TryRecv(t.Context())
			check(name, v, pair{1, "x"}, ok, err)
		}
		q := zsync.NewQueue[string](s, "/raw", zsync.WithCodec(zsync.Raw))
		must(t, q.Send(t.Context(), "", "\x00\xff"))
		for _, want := range []string{"", "\x00\xff"} {
			v, ok, err := q.TryRecv(t.Context())
			check("raw", v, want, ok, err)
		}
		wantErr(t, zsync.NewQueue[int](s, "/raw", zsync.WithCodec(zsync.Raw)).Send(t.Context(), 1), zsync.ErrInvalid)
	})
}

func TestQueueSharesItsPathWithCuratorAndKazoo(t *testing.T) {
	curator := func(data string) []byte {
		return append(append([]byte{0, 1, 0, 1, 1, 0, 0, 0, byte(len(data))}, data...), 2)
	}
	for _, c := range []struct {
		layout zsync.QueueLayout
		opts   []zsync.QueueOption
		ours   string // the names that we write
		theirs []string
		data   func(string) []byte
	}{
		{zsync.LayoutSimpleQueue, nil, "qn-0000000000", []string{"qn-"}, func(s string) []byte { return []byte(s) }},
		{zsync.LayoutDistributedQueue, nil, "queue-0000000000", []string{"queue-"}, curator},
		{zsync.LayoutDistributedQueue, []zsync.QueueOption{zsync.WithPriorities(21)}, "queue-10000000A0000000000", []string{"queue-10000000A", "queue-0FFFFFFFF"}, curator},
		{zsync.LayoutKazooQueue, nil, "entry-100-0000000000", []string{"entry-100-", "entry-050-"}, func(s string) []byte { return []byte(s) }},
	} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			q := zsync.NewQueue[string](s, "/q", append(c.opts, zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(c.layout))...)
			must(t, q.Send(t.Context(), "hello"))
			if names := childrenOf(t, s, "/q"); !slices.Equal(names, []string{c.ours}) {
				t.Errorf("%v: wrote %v, want %v", c.layout, names, c.ours)
			}
			data, _, err := s.Get(t.Context(), "/q/"+c.ours)
			must(t, err)
			if !bytes.Equal(data, c.data("hello")) {
				t.Errorf("%v: wrote %x, want %x", c.layout, data, c.data("hello"))
			}
			want := []string{"hello"}
			for i, name := range c.theirs {
				text := fmt.Sprint("theirs ", i)
				_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/q/" + name, Data: c.data(text), Flags: zk.FlagSequence})
				must(t, err)
				if i == 0 {
					want = append(want, text)
				} else {
					want = append([]string{text}, want...) // of a higher priority
				}
			}
			wantLen(t, q, len(want))
			if v, ok, err := q.Peek(t.Context()); v != want[0] || !ok || err != nil {
				t.Errorf("%v: Peek = %q, %v, %v", c.layout, v, ok, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			got := collect(t, q.Recv(ctx), len(want))
			cancel()
			if !slices.Equal(got, want) {
				t.Errorf("%v: received %q, want %q", c.layout, got, want)
			}
			wantLen(t, q, 0)
		})
	}
}

func TestQueueSaysThatTheNumbersOfAForeignLayoutAreUsedUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(zsync.LayoutSimpleQueue))
		must(t, q.Send(t.Context(), 1))
		srv.SetSequence("/q", math.MaxInt32)
		must(t, q.Send(t.Context(), 2))
		srv.SetSequence("/q", math.MaxInt32) // as a Java server stays there
		wantErr(t, q.Send(t.Context(), 3), zk.ErrNodeExists)

		d := zsync.NewQueue[int](s, "/d")
		at := time.Now().Add(time.Hour)
		must(t, d.SendAt(t.Context(), at, 1))
		delayed := "/d/" + childrenOf(t, s, "/d")[0]
		srv.SetSequence(delayed, math.MaxInt32)
		must(t, d.SendAt(t.Context(), at, 2))
		srv.SetSequence(delayed, math.MaxInt32)
		must(t, d.SendAt(t.Context(), at, 3)) // what waits goes on in another bucket
	})
}

func TestConsumersOfSeveralProcessesShareFairly(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		const consumers, n = 5, 1000
		var mu sync.Mutex
		var got [consumers]int
		all := make(chan struct{})
		var working sync.WaitGroup
		defer working.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range consumers {
			ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(ctx)
			working.Go(func() {
				for range ch {
					mu.Lock()
					got[i]++
					sum := 0
					for _, k := range got {
						sum += k
					}
					mu.Unlock()
					if sum == n {
						close(all)
					}
					time.Sleep(10 * time.Millisecond) // the work
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), counted(n)...))
		<-all
		if d := time.Since(begin); d > 4*time.Second {
			t.Errorf("five consumers took %v for what takes them 2s", d)
		}
		for i, k := range got {
			if k < n/consumers/2 {
				t.Errorf("consumer %d got %d of %d elements: %v", i, k, n, got)
			}
		}
	})
}

func TestQueueRefusesAnEndedContext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 1))
		cause := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		d := <-q.Deliveries(t.Context())
		cancel(cause)
		srv.SetLatency(time.Millisecond) // an Ack whose answer is there returns that
		_, _, err1 := q.TryRecv(ctx)
		_, _, err2 := q.Peek(ctx)
		_, err3 := q.Len(ctx)
		_, err4 := q.Clear(ctx)
		for _, err := range []error{q.Send(ctx, 2), q.SendPriority(ctx, 0, 2), q.SendAt(ctx, time.Now(), 2), err1, err2, err3, err4, d.Ack(ctx)} {
			wantErr(t, err, cause, context.Canceled)
		}
		for range q.Recv(ctx) {
			t.Error("received an element with a context that has ended")
		}
		must(t, d.Ack(t.Context()))
		wantLen(t, q, 0)
	})
}

func TestAllYieldsErrorsThatRetryingDoesNotCureAndGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && strings.HasPrefix(r.Ops[0].Path, "/q-live/") {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		faults := 0
		for d, err := range q.All(t.Context()) {
			if err == nil {
				must(t, d.Ack(t.Context()))
				break
			}
			wantErr(t, err, zk.ErrNoAuth)
			if faults++; faults == 3 {
				srv.Intercept(nil)
			}
		}
		if faults != 3 {
			t.Errorf("%d errors, want 3", faults)
		}
		go s.Close()
		for _, err := range q.All(t.Context()) {
			wantErr(t, err, zsync.ErrClosed)
		}
	})
}

// A claim that arrives when its session has been given up, and what it claims
// has been given back in the next, must not hide elements from the consumer.
func TestClaimThatComesLateClaimsNothing(t *testing.T) {
	for late := 7500 * time.Millisecond; late < 9500*time.Millisecond; late += 50 * time.Millisecond {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			q := zsync.NewQueue[int](s, "/q")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ch := q.Recv(ctx)
			must(t, q.Send(t.Context(), 0))
			if v := <-ch; v != 0 {
				t.Fatalf("received %d", v)
			}
			time.Sleep(time.Second)
			id := s.ID()
			srv.SetLatency(100 * time.Millisecond)
			delay := first(zktest.Delay(late), func(r zktest.Request) bool {
				return r.Session == id && r.Op == zktest.OpMulti && len(r.Ops) > 0 && r.Ops[0].Op == zktest.OpCreate && strings.HasPrefix(r.Ops[0].Path, "/q-live/")
			})
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect && r.Session == id {
					return zktest.Hang // it cannot come back
				}
				return delay(r)
			})
			other := zsync.NewQueue[int](open(t, srv), "/q")
			must(t, other.Send(t.Context(), 1, 2, 3))
			if got := collect(t, ch, 3); !slices.Equal(got, []int{1, 2, 3}) {
				t.Errorf("with a claim that comes after %v: received %v", late, got)
			}
		})
	}
}

func TestConsumerThatStopsReadingHoldsBackAtMostItsPrefetch(t *testing.T) {
	for _, prefetch := range []int{1, 2, 3, 8} {
		for _, taken := range []int{0, 1, 7} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(prefetch))
				must(t, q.Send(t.Context(), counted(50)...))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				collect(t, q.Recv(ctx), taken)
				time.Sleep(time.Second)
				if n := claimedNow(t, q); n < 1 || n > prefetch {
					t.Errorf("after %d elements a consumer with prefetch %d holds back %d", taken, prefetch, n)
				}
			})
		}
	}
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(zsync.LayoutKazooQueue))
		must(t, q.Send(t.Context(), counted(5)...))
		q.Recv(t.Context())
		time.Sleep(time.Second)
		wantLen(t, q, 4)
	})
}

func TestEachConsumerGetsAnElementHoweverSmallThePrefetch(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(1))
		must(t, q.Send(t.Context(), counted(10)...))
		q.Recv(t.Context()) // nobody reads
		synctest.Wait()
		if got := collect(t, q.Recv(t.Context()), 9); !slices.Equal(got, counted(10)[1:]) {
			t.Errorf("received %v beside a consumer that does not read", got)
		}
	})
}

// Its batches, together, do not fit into one request.
func TestQueueElementsOfADeadConsumerGoBackHoweverManyBatchesItHad(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 1500
		path := "/" + strings.Repeat("long", 250)
		dead, kill := mortal(t, srv)
		a, b := zsync.NewQueue[int](open(t, srv), path), zsync.NewQueue[int](dead, path, zsync.WithPrefetch(1), zsync.WithMaxAttempts(5))
		sendAll(t, a, counted(n))
		collect(t, b.Deliveries(t.Context()), n)
		time.Sleep(time.Second)
		kill()
		for _, d := range collect(t, a.Deliveries(t.Context()), n) {
			if d.Attempt != 2 {
				t.Fatalf("attempt %d of %s, want 2", d.Attempt, d.ID)
			}
		}
	})
}

// What an Ack writes does not grow with what is not acknowledged.
func TestAcksStaySmallHoweverMuchIsUnacknowledged(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 4000
		q := zsync.NewQueue[int](open(t, srv), "/q")
		sendAll(t, q, counted(n))
		ds := collect(t, q.Deliveries(t.Context()), n)
		time.Sleep(time.Second)
		var written atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			for _, op := range r.Ops {
				written.Add(int64(len(op.Data)))
			}
			return zktest.Pass
		})
		must(t, ds[n/2].Ack(t.Context()))
		must(t, ds[n/2].Ack(t.Context()))
		if b := written.Load(); b > 4096 {
			t.Errorf("an Ack among %d unacknowledged deliveries wrote %d bytes", n, b)
		}
	})
}

func TestAttemptsOfLargeElementsCount(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 600_000, 1_040_000} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			dead, kill := mortal(t, srv)
			opts := []zsync.QueueOption{zsync.WithCodec(zsync.Raw), zsync.WithMaxAttempts(3)}
			a, b := zsync.NewQueue[[]byte](open(t, srv), "/q", opts...), zsync.NewQueue[[]byte](dead, "/q", opts...)
			must(t, a.Send(t.Context(), make([]byte, size)))
			must(t, a.Send(t.Context(), slices.Repeat([][]byte{nil}, 100)...)) // which stay in the same batch
			ch := b.Deliveries(t.Context())
			d := <-ch
			must(t, d.Nack())
			for id := d.ID; d.ID != id || d.Attempt == 1; {
				d = <-ch
			}
			time.Sleep(time.Second)
			kill()
			var last zsync.Delivery[[]byte]
			for _, d := range collect(t, a.Deliveries(t.Context()), 101) {
				if len(d.Value) == size {
					last = d
				}
			}
			if last.Attempt != 3 {
				t.Errorf("after a Nack and a consumer that died of %d bytes: attempt %d, want 3", size, last.Attempt)
			}
			must(t, last.Nack())
			eventually(t, func() error {
				for d, err := range a.Dead(t.Context()) {
					if len(d.Data) == size {
						return err
					}
				}
				return errors.New("no dead letter")
			})
		})
	}
}

func TestRefusedAckStaysClaimedAndIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q", zsync.WithPriorities(3))
		must(t, q.SendPriority(t.Context(), 0, 0))
		must(t, q.SendPriority(t.Context(), 2, 2))
		ds := collect(t, q.Deliveries(t.Context()), 2)
		bucket := "/q/" + childrenOf(t, s, "/q")[0]
		setACL(t, srv, bucket, zk.WorldACL(zk.PermRead|zk.PermAdmin))
		refused, allowed := async(func() error { return ds[0].Ack(t.Context()) }), async(func() error { return ds[1].Ack(t.Context()) })
		wantErr(t, <-refused, zk.ErrNoAuth)
		must(t, <-allowed)
		wantErr(t, ds[0].Ack(t.Context()), zk.ErrNoAuth)
		if n := claimedNow(t, q); n != 1 {
			t.Errorf("%d elements are claimed, want the one that could not be removed", n)
		}
		setACL(t, srv, bucket, zk.WorldACL(zk.PermAll))
		must(t, ds[0].Ack(t.Context()))
		wantLen(t, q, 0)
	})
}

func TestRecvTriesAgainToRemoveWhatItCouldNot(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		bucket := "/q/" + childrenOf(t, s, "/q")[0]
		setACL(t, srv, bucket, zk.WorldACL(zk.PermRead|zk.PermWrite|zk.PermAdmin))
		ch := q.Recv(t.Context())
		<-ch
		time.Sleep(time.Minute)
		setACL(t, srv, bucket, zk.WorldACL(zk.PermAll))
		must(t, q.Send(t.Context(), 2))
		if v := <-ch; v != 2 {
			t.Errorf("received %d again", v)
		}
		eventuallyEmpty(t, q)
	})
}

func TestElementForTheEndOfTimeIsNotReceivedBefore(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		for _, at := range []time.Time{time.Unix(1<<63-62135596801, 999999999), time.UnixMilli(math.MaxInt64), time.Unix(math.MaxInt64/1000+1, 0)} {
			must(t, q.SendAt(t.Context(), at, 2))
		}
		for _, at := range []time.Time{{}, time.Unix(-1<<62, 0), time.UnixMilli(0)} {
			must(t, q.SendAt(t.Context(), at, 1))
		}
		ch := q.Recv(t.Context())
		if got := collect(t, ch, 3); !slices.Equal(got, []int{1, 1, 1}) {
			t.Errorf("received %v", got)
		}
		time.Sleep(time.Hour)
		select {
		case v := <-ch:
			t.Errorf("received %d", v)
		default:
		}
		wantLen(t, q, 3)
	})
}

func TestSendOfNothingTellsThatTheSessionIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context()))
		must(t, s.Close())
		wantErr(t, q.Send(t.Context()), zsync.ErrClosed)
		for range 20 {
			in, done := q.In(t.Context())
			close(in)
			wantErr(t, <-done, zsync.ErrClosed)
		}
	})
}

// A consumer that comes and goes while the elements of another are still on their
// way back does not let the next overtake them.
func TestQueueKeepsItsOrderFromConsumerToConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 6000
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(3000))
		sendAll(t, q, counted(n))
		ctx, cancel := context.WithCancel(t.Context())
		ch := q.Recv(ctx)
		got := collect(t, ch, 1000)
		time.Sleep(time.Second)
		srv.SetLatency(20 * time.Millisecond)
		cancel()
		for range ch {
		}
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		for v := range q.Recv(short) {
			got = append(got, v)
		}
		if got = append(got, collect(t, q.Recv(t.Context()), n-len(got))...); !slices.Equal(got, counted(n)) {
			t.Error("the elements come out of order")
		}
	})
}

// What the servers refuse fails alone, and is not asked for again all the time.
func TestQueueRefusalsAreNobodyElses(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), counted(20)...))
		ch := q.Deliveries(t.Context())
		ds := collect(t, ch, 10)
		time.Sleep(time.Second)
		setACL(t, srv, "/q", zk.WorldACL(zk.PermAll&^zk.PermWrite)) // for a Nack, which rings the bell
		srv.SetLatency(10 * time.Millisecond)
		var results []<-chan error
		for i, d := range ds {
			results = append(results, async(func() error {
				if i == 5 {
					return d.Nack()
				}
				return d.Ack(t.Context())
			}))
		}
		for i, r := range results {
			if i == 5 {
				wantErr(t, <-r, zk.ErrNoAuth)
				continue
			}
			must(t, <-r)
		}
		wantLen(t, q, 11)
		setACL(t, srv, "/q", zk.WorldACL(zk.PermAll))
		time.Sleep(time.Minute)
		if all := collect(t, ch, 11); !slices.ContainsFunc(all, func(d zsync.Delivery[int]) bool { return d.ID == ds[5].ID }) {
			t.Error("the element of the refused Nack has not come again")
		}
	})
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		const n = 300
		must(t, q.Send(t.Context(), counted(n)...))
		setACL(t, srv, "/q/"+childrenOf(t, s, "/q")[0], zk.WorldACL(zk.PermRead|zk.PermWrite|zk.PermAdmin))
		collect(t, q.Recv(t.Context()), n)
		time.Sleep(time.Minute)
		before := srv.Counts()
		time.Sleep(10 * time.Minute)
		if d := srv.Counts().Sub(before).Requests["multi"]; d > 12*n {
			t.Errorf("%d transactions in ten minutes for %d elements that may not be deleted", d, n)
		}
		setACL(t, srv, "/q/"+childrenOf(t, s, "/q")[0], zk.WorldACL(zk.PermAll))
		time.Sleep(2 * time.Minute)
		wantLen(t, q, 0)
	})
}

// A break is no reason that others get what comes later first, though it takes a moment to
// give back what comes before.
func TestWhatAllHadClaimedAheadIsBackWhenItsLoopIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		const n, worked = 40, 10
		for v := range n {
			must(t, q.Send(t.Context(), v))
		}
		next := 0
		for d, err := range q.All(t.Context()) {
			must(t, err)
			must(t, d.Ack(t.Context()))
			if next++; next == worked {
				break
			}
			if next == worked-1 {
				ours := s.ID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMulti && r.Session == ours {
						return zktest.Delay(5 * time.Millisecond)
					}
					return zktest.Pass
				})
			}
		}
		for ; next < n; next++ {
			if v, ok, err := other.TryRecv(t.Context()); v != next || !ok || err != nil {
				t.Fatalf("TryRecv = %v, %v, %v behind the loop of another process; want %d", v, ok, err, next)
			}
		}
	})
}

// An inPlace is a codec that decodes in place, as cipher.AEAD does if the program lets it.
type inPlace struct{}

func (inPlace) Marshal(v any) ([]byte, error) { return flipped([]byte(v.(string))), nil }

func (inPlace) Unmarshal(data []byte, v any) error {
	*v.(*string) = string(flipped(data))
	return nil
}

func flipped(data []byte) []byte {
	for i := range data {
		data[i] ^= 1
	}
	return data
}

func TestACodecMayDecodeInPlace(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[string](s, "/q", zsync.WithCodec(inPlace{}))
		must(t, q.Send(t.Context(), "element"))
		for range 3 {
			d, err := q.Receive(t.Context())
			must(t, err)
			if stored := string(flipped(d.Data())); d.Value != "element" || stored != "element" {
				t.Errorf("attempt %d: %q, stored as that of %q", d.Attempt, d.Value, stored)
			}
			must(t, d.NackAfter(time.Second)) // stores the bytes again
		}
		m := zsync.NewMap[string](s, "/m", zsync.WithCodec(inPlace{}))
		changes := m.Watch(t.Context())
		for _, key := range []string{"a", "b", "c"} {
			must(t, m.Store(t.Context(), key, "value"))
			time.Sleep(time.Second)
			for key, v := range <-changes {
				if v != "value" {
					t.Errorf("%s is %q", key, v)
				}
			}
		}
		g := zsync.NewGroup[string](s, "/g", zsync.WithCodec(inPlace{}))
		members := g.Watch(t.Context())
		for _, id := range []string{"a", "b", "c"} {
			_, err := g.Join(t.Context(), id, "info")
			must(t, err)
			time.Sleep(time.Second)
			for _, m := range <-members {
				if m.Info != "info" {
					t.Errorf("%s is %q", m.ID, m.Info)
				}
			}
		}
	})
}

// An asItIs is a codec that returns its argument.
type asItIs struct{ zsync.Codec }

func (asItIs) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func TestACodecMayReturnItsArgument(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		g := zsync.NewGroup[[]byte](s, "/g", zsync.WithCodec(asItIs{zsync.Raw}))
		info := []byte("info")
		_, err := g.Join(t.Context(), "me", info)
		must(t, err)
		copy(info, "next") // the program uses its buffer again
		srv.Expire(s.ID())
		time.Sleep(time.Minute)
		members, err := g.Members(t.Context())
		must(t, err)
		if len(members) != 1 || string(members[0].Info) != "info" {
			t.Errorf("after an expiry the members are %q", members)
		}
	})
}
