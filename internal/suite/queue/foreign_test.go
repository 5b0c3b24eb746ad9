package queue

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

var allLayouts = []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue, zsync.LayoutKazooQueue}

// inAllLayouts runs f in a bubble for each layout.
func inAllLayouts(t *testing.T, f func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption)) {
	for _, l := range allLayouts {
		t.Run(l.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) { f(t, srv, zsync.WithQueueLayout(l)) })
		})
	}
}

// curatorFrame is how Curator writes the elements of one znode: a version, then
// each behind a byte and its length, then another byte.
func curatorFrame(all ...[]byte) []byte {
	b := []byte{0, 1, 0, 1}
	for _, data := range all {
		b = binary.BigEndian.AppendUint32(append(b, 1), uint32(len(data)))
		b = append(b, data...)
	}
	return append(b, 2)
}

// elementsIn counts the elements of a queue, and its dead letters, when all is quiet.
func elementsIn(t *testing.T, s *zsync.Session, q *zsync.Queue[int]) (elements, dead int) {
	t.Helper()
	time.Sleep(time.Minute)
	n, err := q.Len(t.Context())
	must(t, err)
	for _, name := range childrenOf(t, s, q.Path()+"-dead") {
		if strings.HasPrefix(name, "dead-") {
			dead++
		}
	}
	return n, dead
}

// A consumer that leaves at any moment of a claim, and closes its Session then,
// once or from two goroutines, leaves every element that it has not received.
func TestElementsSurviveACloseInGoodOrderAtAnyMoment(t *testing.T) {
	t.Parallel()
	inAllLayouts(t, func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption) {
		step := 1
		if !harness.Long() {
			step = 3 // where elements go is the same there, and the moments of both kinds of end are still in turn
		}
		for i := 0; i < 40; i += step {
			s, other := open(t, srv), open(t, srv)
			q, rest := zsync.NewQueue[int](s, "/q", layout, zsync.WithPrefetch(4)), zsync.NewQueue[int](other, "/q", layout)
			must(t, rest.Send(t.Context(), 1, 2, 3, 4, 5, 6))
			srv.SetLatency(time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			var closing sync.WaitGroup
			time.AfterFunc(time.Duration(i)*700*time.Microsecond, cancel)
			if i%2 == 0 {
				closing.Go(func() { <-ctx.Done(); s.Close() })
			}
			taken := 0
			for range q.Recv(ctx) {
				taken++
			}
			s.Close()
			closing.Wait()
			srv.SetLatency(0)
			if n, dead := elementsIn(t, other, rest); n+taken != 6 || dead != 0 {
				t.Errorf("%d: %d received and %d left of 6, %d dead", i, taken, n, dead)
			}
			_, err := rest.Clear(t.Context())
			must(t, err)
		}
	})
}

// The same for TryRecv, of good elements and of one that goes to the dead
// letters, which is not restored as well.
func TestElementsSurviveACancelledTryRecvAndClose(t *testing.T) {
	t.Parallel()
	inAllLayouts(t, func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption) {
		other := open(t, srv)
		rest := zsync.NewQueue[int](other, "/q", layout)
		for i := range 40 {
			s := open(t, srv)
			q := zsync.NewQueue[int](s, "/q", layout)
			if i%2 == 0 {
				must(t, rest.Send(t.Context(), 1))
			} else {
				must(t, zsync.NewQueue[string](other, "/q", layout).Send(t.Context(), "x"))
			}
			_, before := elementsIn(t, other, rest)
			srv.SetLatency(time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*300*time.Microsecond)
			_, ok, _ := q.TryRecv(ctx)
			cancel()
			s.Close()
			srv.SetLatency(0)
			n, dead := elementsIn(t, other, rest)
			if ok {
				n++
			}
			if n+dead-before != 1 {
				t.Errorf("%d: received %v, %d left or received, %d dead, want 1 in all", i, ok, n, dead-before)
			}
			_, err := rest.Clear(t.Context())
			must(t, err)
		}
	})
}

// CASES 32: an element that is none stays where it is while the dead letters
// cannot be written, and does not hold up the others.
func TestElementThatCannotBeBuriedStays(t *testing.T) {
	inAllLayouts(t, func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption) {
		s := open(t, srv)
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/q-dead", Acl: zk.WorldACL(zk.PermRead | zk.PermAdmin)})
		must(t, err)
		must(t, zsync.NewQueue[any](s, "/q", layout).Send(t.Context(), "x", 1))
		q := zsync.NewQueue[int](open(t, srv), "/q", layout)
		_, _, err = q.TryRecv(t.Context())
		wantErr(t, err, zk.ErrNoAuth)
		ctx, cancel := context.WithCancel(t.Context())
		ch := q.Recv(ctx)
		if v := <-ch; v != 1 {
			t.Errorf("received %d, want 1", v)
		}
		cancel()
		if n, dead := elementsIn(t, s, q); n != 1 || dead != 0 {
			t.Errorf("%d elements and %d dead letters, want 1 and 0", n, dead)
		}
		setACL(t, srv, "/q-dead", zk.WorldACL(zk.PermAll))
		must(t, q.Send(t.Context(), 2))
		if v := <-q.Recv(t.Context()); v != 2 {
			t.Errorf("received %d, want 2", v)
		}
		if _, dead := elementsIn(t, s, q); dead != 1 {
			t.Errorf("%d dead letters, want 1", dead)
		}
	})
}

// A dead letter comes back as it was sent, at its priority, whoever met it.
func TestRequeuedElementIsAsItWasSent(t *testing.T) {
	for _, c := range []struct {
		layout zsync.QueueLayout
		opts   []zsync.QueueOption
		name   string // up to the number; of the bucket in our own layout
	}{
		{zsync.LayoutZsync, []zsync.QueueOption{zsync.WithPriorities(30)}, "b-00007-"},
		{zsync.LayoutSimpleQueue, nil, "qn-"},
		{zsync.LayoutDistributedQueue, nil, "queue-"},
		{zsync.LayoutDistributedQueue, []zsync.QueueOption{zsync.WithPriorities(30)}, "queue-100000007"},
		{zsync.LayoutKazooQueue, nil, "entry-100-"},
		{zsync.LayoutKazooQueue, []zsync.QueueOption{zsync.WithPriorities(30)}, "entry-007-"},
	} {
		for _, try := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				opts := append(c.opts, zsync.WithQueueLayout(c.layout))
				good, bad := zsync.NewQueue[string](s, "/q", opts...), zsync.NewQueue[int](s, "/q", opts...)
				if c.opts == nil {
					must(t, good.Send(t.Context(), "x"))
				} else {
					must(t, good.SendPriority(t.Context(), 7, "x"))
				}
				if try {
					_, ok, err := bad.TryRecv(t.Context())
					if must(t, err); ok {
						t.Error("TryRecv took it")
					}
				} else {
					for range bad.Recv(within(t, time.Second)) {
						t.Error("Recv gave it out")
					}
				}
				for d, err := range bad.Dead(t.Context()) {
					must(t, err)
					if string(d.Data) != `"x"` {
						t.Errorf("%v: dead letter %q", c.layout, d.Data)
					}
					requeued(t, bad, d)
				}
				if names := childrenOf(t, s, "/q"); !slices.ContainsFunc(names, func(name string) bool {
					return strings.HasPrefix(name, c.name) && len(name) == len(c.name)+10
				}) {
					t.Errorf("%v: requeued as %q, want %s", c.layout, names, c.name)
				}
				if v, ok, err := good.TryRecv(t.Context()); v != "x" || !ok || err != nil {
					t.Errorf("%v: after Requeue TryRecv = %q, %v, %v", c.layout, v, ok, err)
				}
			})
		}
	}
}

// What cannot be taken out of its frame is requeued with the very same bytes.
func TestRequeueKeepsWhatIsInNoFrame(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[string](s, "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(zsync.LayoutDistributedQueue))
		putCurator(t, s, []byte("junk"))
		_, ok, err := q.Peek(t.Context())
		if ok || err == nil || !strings.Contains(err.Error(), "frame") {
			t.Errorf("Peek = %v, %v", ok, err)
		}
		if _, ok, err := q.TryRecv(t.Context()); ok || err != nil {
			t.Errorf("TryRecv = %v, %v", ok, err)
		}
		for d, err := range q.Dead(t.Context()) {
			must(t, err)
			requeued(t, q, d)
		}
		data, _, err := s.Get(t.Context(), "/q/"+childrenOf(t, s, "/q")[0])
		must(t, err)
		if string(data) != "junk" {
			t.Errorf("requeued as %q", data)
		}
	})
}

// putCurator stores a znode as Curator's DistributedQueue does.
func putCurator(t *testing.T, s *zsync.Session, data []byte) {
	t.Helper()
	create(t, s, "/q")
	_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/q/queue-", Data: data, Flags: zk.FlagSequence})
	must(t, err)
}

// Curator's putMulti stores several elements in one znode. Each is an element
// like any other.
func TestElementsOfOneZnodeAreTakenOneByOne(t *testing.T) {
	t.Parallel()
	abc := curatorFrame([]byte("a"), []byte("b"), []byte("c"))
	all := func(t *testing.T, q *zsync.Queue[string]) (got []string) {
		for {
			v, ok, err := q.TryRecv(t.Context())
			if must(t, err); !ok {
				return got
			}
			got = append(got, v)
		}
	}
	start := func(t *testing.T, srv *zktest.Server) (*zsync.Session, *zsync.Queue[string]) {
		s := open(t, srv)
		putCurator(t, s, curatorFrame()) // none
		putCurator(t, s, abc)
		q := zsync.NewQueue[string](s, "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(zsync.LayoutDistributedQueue), zsync.WithPrefetch(2))
		must(t, q.Send(t.Context(), "z"))
		if v, ok, err := q.Peek(t.Context()); v != "a" || !ok || err != nil {
			t.Errorf("Peek = %q, %v, %v", v, ok, err)
		}
		return s, q
	}
	t.Run("try", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, q := start(t, srv)
			if got := all(t, q); !slices.Equal(got, []string{"a", "b", "c", "z"}) {
				t.Errorf("took %q", got)
			}
			if names := childrenOf(t, s, "/q"); len(names) > 0 {
				t.Errorf("left %q", names)
			}
		})
	})
	t.Run("deliveries", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			_, q := start(t, srv)
			ctx, cancel := context.WithCancel(t.Context())
			ds := collect(t, q.Deliveries(ctx), 2)
			cancel()
			time.Sleep(time.Second)
			if ds[0].ID == ds[1].ID || ds[0].Attempt != 1 {
				t.Errorf("IDs %q and %q, attempt %d", ds[0].ID, ds[1].ID, ds[0].Attempt)
			}
			must(t, ds[1].Nack())
			must(t, ds[0].Ack(t.Context()))
			again := <-q.Deliveries(within(t, time.Second))
			if again.Value != "b" || again.ID != ds[1].ID {
				t.Errorf("after Nack %q with ID %q, want %q", again.Value, again.ID, ds[1].ID)
			}
			must(t, again.Nack())
			time.Sleep(time.Minute)
			if got := all(t, q); !slices.Equal(got, []string{"b", "c", "z"}) {
				t.Errorf("left %q", got)
			}
		})
	})
	t.Run("contested", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			srv.SetLatency(time.Millisecond)
			_, q := start(t, srv)
			var mu sync.Mutex
			var got []string
			var taking sync.WaitGroup
			for i := range 4 {
				q := zsync.NewQueue[string](open(t, srv), "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(zsync.LayoutDistributedQueue))
				taking.Go(func() {
					if i%2 == 0 {
						vs := all(t, q)
						mu.Lock()
						defer mu.Unlock()
						got = append(got, vs...)
						return
					}
					for v := range q.Recv(within(t, time.Second)) {
						mu.Lock()
						got = append(got, v)
						mu.Unlock()
					}
				})
			}
			taking.Wait()
			got = append(got, all(t, q)...)
			slices.Sort(got)
			if !slices.Equal(got, []string{"a", "b", "c", "z"}) {
				t.Errorf("took %q", got)
			}
		})
	})
	t.Run("too many for one transaction", func(t *testing.T) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			var many [][]byte
			for i := range 1200 {
				many = append(many, fmt.Appendf(nil, "%04d %s", i, strings.Repeat("x", 800)))
			}
			putCurator(t, s, curatorFrame(many...))
			q := zsync.NewQueue[[]byte](s, "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(zsync.LayoutDistributedQueue))
			for i, want := range many {
				if i%400 == 0 {
					v, ok, err := q.Peek(t.Context())
					if must(t, err); !ok || !bytes.Equal(v, want) {
						t.Fatalf("%d: Peek = %.10q", i, v)
					}
				}
				v, ok, err := q.TryRecv(t.Context())
				if must(t, err); !ok || !bytes.Equal(v, want) {
					t.Fatalf("%d: took %.10q", i, v)
				}
			}
			wantLen(t, q, 0)
		})
	})
}

func TestDeliveryKnowsItsElementInEveryLayout(t *testing.T) {
	inAllLayouts(t, func(t *testing.T, srv *zktest.Server, layout zsync.QueueOption) {
		q := zsync.NewQueue[int](open(t, srv), "/q", layout)
		sent := time.Now()
		must(t, q.Send(t.Context(), 1, 2))
		time.Sleep(time.Minute)
		ch := q.Deliveries(within(t, time.Minute))
		ds := collect(t, ch, 2)
		if ds[0].ID == ds[1].ID || strings.HasPrefix(ds[0].ID, "/") {
			t.Errorf("IDs %q and %q", ds[0].ID, ds[1].ID)
		}
		must(t, ds[0].Nack())
		again := <-ch
		if again.Value != 1 || again.ID != ds[0].ID || !ds[0].Sent.Round(time.Second).Equal(sent.Round(time.Second)) {
			t.Errorf("%+v and then %+v", ds[0], again)
		}
		must(t, ds[1].Ack(t.Context()))
		must(t, again.Ack(t.Context()))
	})
}

// Whatever a codec takes it gives back, if the type is an interface too; what
// it cannot it refuses.
func TestCodecsGiveBackWhatTheyTakeOfAnInterface(t *testing.T) {
	for _, c := range []struct {
		codec zsync.Codec
		v     any
		ok    bool
	}{
		{zsync.JSON, "x", true},
		{zsync.Gob, "x", true},
		{zsync.Gob, 7, true},
		{zsync.Gob, []byte("x"), true},
		{zsync.Gob, struct{ A int }{1}, false}, // not registered
		{zsync.Gob, nil, true},
		{zsync.Raw, []byte("x"), true},
		{zsync.Raw, "x", false},
		{zsync.Raw, 7, false},
		{zsync.Raw, nil, false},
	} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			check := func(what string, v any, err error) {
				t.Helper()
				if c.ok != (err == nil) || c.ok && fmt.Sprintf("%#v", v) != fmt.Sprintf("%#v", c.v) {
					t.Errorf("%T: %s of %#v gives %#v, %v", c.codec, what, c.v, v, err)
				}
			}
			q := zsync.NewQueue[any](s, "/q", zsync.WithCodec(c.codec))
			err := q.Send(t.Context(), c.v)
			var v any
			if err == nil {
				v, _, err = q.TryRecv(t.Context())
			}
			check("a Queue", v, err)
			if c.codec == zsync.Raw && !c.ok {
				wantErr(t, q.Send(t.Context(), c.v), zsync.ErrInvalid)
			}

			value := zsync.NewValue[any](s, "/v", zsync.WithCodec(c.codec))
			if err = value.Store(t.Context(), c.v); err == nil {
				v, _, err = value.Load(t.Context())
			}
			check("a Value", v, err)

			for range 2 { // computed, and then read
				v, err = zsync.OnceValue(s, "/o", func(context.Context) (any, error) { return c.v, nil }, zsync.WithCodec(c.codec))(t.Context())
				check("a OnceValue", v, err)
			}
		})
	}
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		v := zsync.NewValue[io.Reader](open(t, srv), "/v", zsync.WithCodec(zsync.Raw))
		wantErr(t, v.Store(t.Context(), strings.NewReader("x")), zsync.ErrInvalid)
	})
}

func TestForeignLayoutsRefuseWhatTheyCannotKeep(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, l := range allLayouts[1:] {
			for _, o := range []zsync.QueueOption{zsync.WithMaxAttempts(3), zsync.WithMaxLen(3)} {
				wantErr(t, zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(l), o).Send(t.Context(), 1), zsync.ErrInvalid)
			}
			wantErr(t, zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(l)).SendAt(t.Context(), time.Now(), 1), zsync.ErrInvalid)
		}
	})
}

// What another library's layout has no place for is told with the layout that the queue has.
func TestWhatALayoutHasNotIsToldWithItsName(t *testing.T) {
	for _, l := range []zsync.QueueLayout{zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue, zsync.LayoutKazooQueue} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(l))
			must(t, q.Send(t.Context(), 1))
			ch := q.Deliveries(t.Context())
			d := wantNext(t, ch, 1)
			_, txn := d.Txn(t.Context())
			for op, err := range map[string]error{"Txn": txn, "Reject": d.Reject(t.Context(), "no"), "NackAfter": d.NackAfter(time.Second)} {
				wantErr(t, err, zsync.ErrInvalid)
				if want := fmt.Sprintf("%s needs zsync's own layout, not %v", op, l); !strings.Contains(err.Error(), want) {
					t.Errorf("%v: %v, want one that says: %s", l, err, want)
				}
			}
			wantNext(t, ch, 1) // back
		})
	}
}

func TestTryRecvGetsToWhatDecodesBehindManyMisfits(t *testing.T) {
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a := zsync.NewQueue[any](open(t, srv), "/q", zsync.WithQueueLayout(layout))
			must(t, a.Send(t.Context(), "a", "b", "c", "d", 5, 6))
			q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout))
			var last error
			for range 100 {
				v, ok, err := q.TryRecv(t.Context())
				if ok && v == 5 {
					return
				}
				last = err
				time.Sleep(time.Second)
			}
			t.Errorf("layout %v: TryRecv never gets to what decodes: %v", layout, last)
		})
	}
}

// What was left because it did not decode, and may not be read any more, is passed over like
// anything else that may not be: that is told once in a while, not whenever somebody looks.
func TestMisfitThatMayNotBeReadAnyMoreIsToldOnceInAWhile(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		layout := zsync.WithQueueLayout(zsync.LayoutSimpleQueue)
		must(t, zsync.NewQueue[string](open(t, srv), "/q", layout).Send(t.Context(), "a", "b", "c", "d"))
		q := zsync.NewQueue[int](open(t, srv), "/q", layout)
		for range 5 { // three go to the dead letters, and the fourth is left
			q.TryRecv(t.Context())
		}
		wantLen(t, q, 1)
		var refused atomic.Int32
		hidden := hide("-0000000003")
		srv.Intercept(func(r zktest.Request) zktest.Action {
			a := hidden(r)
			if a != zktest.Pass {
				refused.Add(1)
			}
			return a
		})
		for range 50 {
			if v, ok, err := q.TryRecv(t.Context()); ok || err != nil {
				t.Fatal(v, ok, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := refused.Load(); n != 1 {
			t.Errorf("it was read %d times in 5 s, want 1", n)
		}
	})
}

func TestElementThatMayNotBeReadStopsNobodyInAnyLayout(t *testing.T) {
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout))
			must(t, a.Send(t.Context(), 1, 2, 3))
			srv.Intercept(hide("-0000000000"))
			q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithQueueLayout(layout))
			select {
			case <-q.Recv(t.Context()):
			case <-time.After(10 * time.Minute):
				t.Errorf("%v: nothing is received behind one that may not be read", layout)
			}
		})
	}
}

// An element that the servers let nobody take does not hold up the others. It is tried again after a minute.
func TestAnElementThatMayNotBeTakenIsTriedOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		layout := zsync.WithQueueLayout(zsync.LayoutSimpleQueue)
		must(t, zsync.NewQueue[int](open(t, srv), "/q", layout).Send(t.Context(), counted(4)...))
		first := func(o zktest.Request) bool {
			return o.Op == zktest.OpDelete && strings.HasSuffix(o.Path, "-0000000000")
		}
		var tries atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, first) {
				tries.Add(1)
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		ch := zsync.NewQueue[int](open(t, srv), "/q", layout).Recv(t.Context())
		if got := collect(t, ch, 3); !slices.Equal(got, []int{1, 2, 3}) || tries.Load() != 1 {
			t.Errorf("received %v, and tried the other %d times; want 1, 2, 3 and once", got, tries.Load())
		}
		srv.Intercept(nil)
		start := time.Now()
		if v, took := <-ch, time.Since(start); v != 0 || took > time.Minute+time.Second {
			t.Errorf("received %d after %v", v, took)
		}
	})
}
