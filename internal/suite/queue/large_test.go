package queue

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A consumer that has many small elements in hand settles a large one.
func TestALargeElementIsSettledBesideManyInHand(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(t *testing.T, d zsync.Delivery[[]byte]) error{
		"ack":   func(t *testing.T, d zsync.Delivery[[]byte]) error { return d.Ack(t.Context()) },
		"nack":  func(t *testing.T, d zsync.Delivery[[]byte]) error { return d.Nack() },
		"later": func(t *testing.T, d zsync.Delivery[[]byte]) error { return d.NackAfter(time.Minute) },
		"reject": func(t *testing.T, d zsync.Delivery[[]byte]) error {
			return d.Reject(t.Context(), strings.Repeat("x", 1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				const prios = 60
				opts := []zsync.QueueOption{zsync.WithPriorities(prios), zsync.WithCodec(zsync.Raw), zsync.WithMaxAttempts(10), zsync.WithPrefetchBytes(64 << 20)}
				q := zsync.NewQueue[[]byte](s, "/q", opts...)
				largestBy(t, func(data []byte) error { return q.SendPriority(t.Context(), 0, data) })
				for prio := 1; prio < prios; prio++ {
					must(t, q.SendPriority(t.Context(), prio, []byte("x")))
				}
				ch := q.Deliveries(t.Context())
				ds := collect(t, ch, prios)
				time.Sleep(10 * time.Second)
				before := s.Stats().Reconnects
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				done := async(func() error { return f(t, ds[0]) })
				select {
				case err := <-done:
					if err != nil {
						wantErr(t, err, zsync.ErrTooLarge) // beside so many
					}
				case <-ctx.Done():
					t.Error("hangs")
				}
				if err := ds[2].Ack(within(t, 10*time.Minute)); err != nil {
					t.Errorf("another cannot be acknowledged: %v", err)
				}
				for _, d := range ds[3:] {
					must(t, d.Ack(t.Context()))
				}
				must(t, ds[1].Ack(t.Context()))
				time.Sleep(5 * time.Minute) // what was refused fits now, and is tried again
				st, err := q.Stats(t.Context())
				must(t, err)
				want := zsync.QueueStats{}
				switch name {
				case "nack", "later":
					want.Claimed = 1 // it has come again
				case "reject":
					want.Dead = 1
				}
				if len(ch) > 0 || st.Claimed != want.Claimed || st.Dead != want.Dead || st.Ready+st.Delayed != 0 {
					t.Errorf("afterwards %+v", st)
				}
				if k := s.Stats().Reconnects - before; k > 0 {
					t.Errorf("%d reconnects", k)
				}
			})
		})
	}
}

// The process of a consumer is killed while it gives back a large element.
func TestAttemptOfALargeElementThatIsGivenBackIsCountedOnceThoughTheProcessDies(t *testing.T) {
	for _, size := range []int{100, 700 << 10} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			opts := []zsync.QueueOption{zsync.WithCodec(zsync.Raw), zsync.WithMaxAttempts(2)}
			dead, kill := mortal(t, srv)
			id := dead.ID()
			p := zsync.NewQueue[[]byte](open(t, srv), "/q", opts...)
			must(t, p.Send(t.Context(), make([]byte, size)))
			d := <-zsync.NewQueue[[]byte](dead, "/q", opts...).Deliveries(t.Context())
			time.Sleep(time.Second)
			var gone atomic.Bool
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == id && r.Op == zktest.OpMulti {
					gone.Store(true)
				}
				if r.Session == id && gone.Load() {
					return zktest.DropRequest
				}
				return zktest.Pass
			})
			nacked := async(func() error { return d.Nack() })
			time.Sleep(10 * time.Millisecond)
			kill()
			<-nacked
			time.Sleep(time.Minute)
			srv.Intercept(nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			d, err := p.Receive(ctx)
			if err != nil {
				st, _ := p.Stats(t.Context())
				t.Errorf("%d bytes: delivered once, and then not again: %v, %+v", size, err, st)
				for d, err := range p.Dead(t.Context()) {
					t.Log(d.Reason, d.Attempts, err)
				}
			} else if d.Attempt != 2 {
				t.Errorf("%d bytes: attempt %d, want 2", size, d.Attempt)
			}
		})
	}
}

// largestBy sends the largest element that send takes, and returns its size.
func largestBy(t *testing.T, send func(data []byte) error) int {
	t.Helper()
	for size := 1 << 20; ; {
		err := send(make([]byte, size))
		if err == nil {
			return size
		}
		wantErr(t, err, zsync.ErrTooLarge)
		more := regexp.MustCompile(`(\d+) too many`).FindStringSubmatch(err.Error())
		if more == nil {
			t.Fatalf("it does not say how much too large: %v", err)
		}
		n, _ := strconv.Atoi(more[1])
		size -= n
	}
}

func largest(t *testing.T, q *zsync.Queue[[]byte]) int {
	return largestBy(t, func(data []byte) error { return q.Send(t.Context(), data) })
}

func TestTheLargestElementCanBeSettledInEveryWay(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/q", "/" + strings.Repeat("a", 900)} {
		for name, f := range map[string]func(t *testing.T, q *zsync.Queue[[]byte], d zsync.Delivery[[]byte]) error{
			"nack": func(t *testing.T, q *zsync.Queue[[]byte], d zsync.Delivery[[]byte]) error { return d.Nack() },
			"later": func(t *testing.T, q *zsync.Queue[[]byte], d zsync.Delivery[[]byte]) error {
				return d.NackAfter(time.Minute)
			},
			"reject": func(t *testing.T, q *zsync.Queue[[]byte], d zsync.Delivery[[]byte]) error {
				return d.Reject(t.Context(), strings.Repeat("x", 1000))
			},
			"requeue": func(t *testing.T, q *zsync.Queue[[]byte], d zsync.Delivery[[]byte]) error {
				if err := d.Reject(t.Context(), strings.Repeat("x", 1000)); err != nil {
					return err
				}
				n, err := q.RequeueDead(t.Context(), nil)
				if n != 1 && err == nil {
					return errors.New("none")
				}
				return err
			},
			"txn": func(t *testing.T, q *zsync.Queue[[]byte], d zsync.Delivery[[]byte]) error {
				_, err := d.Txn(t.Context(), q.SendOp(make([]byte, 100000)))
				return err
			},
		} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				q := zsync.NewQueue[[]byte](s, path, zsync.WithCodec(zsync.Raw), zsync.WithMaxAttempts(10), zsync.WithKey(func([]byte) string { return "k" }))
				size := largest(t, q)
				d, err := q.Receive(t.Context())
				must(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				done := async(func() error { return f(t, q, d) })
				select {
				case err := <-done:
					if err != nil {
						t.Errorf("%s of %d bytes at %d: %v", name, size, len(path), err)
					}
				case <-ctx.Done():
					t.Errorf("%s of %d bytes at %d: hangs", name, size, len(path))
				}
				if s.Stats().Reconnects > 0 {
					t.Errorf("%s: %d reconnects", name, s.Stats().Reconnects)
				}
			})
		}
	}
}

func TestTheLargestDeadLetterCanBeRequeued(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 50, 400, 900, 2000} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			q := zsync.NewQueue[[]byte](s, "/"+strings.Repeat("q", n), zsync.WithCodec(zsync.Raw), zsync.WithKey(func([]byte) string { return "k" }))
			size := largest(t, q)
			d, err := q.Receive(t.Context())
			must(t, err)
			must(t, d.Reject(t.Context(), "no"))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			done, err := q.RequeueDead(ctx, nil)
			if done != 1 || s.Stats().Reconnects > 0 {
				t.Errorf("path of %d, element of %d: RequeueDead = %d, %v after %d reconnects", n, size, done, err, s.Stats().Reconnects)
			}
		})
	}
}

func TestTheLargestElementIsTakenBuriedOrPutBack(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 300, 900} {
		path := "/" + strings.Repeat("q", n)
		t.Run("misfit", func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, b := open(t, srv), open(t, srv)
				raw := zsync.NewQueue[[]byte](s, path, zsync.WithCodec(zsync.Raw), zsync.WithKey(func([]byte) string { return "k" }))
				largest(t, raw)
				must(t, raw.Send(t.Context(), []byte("1")))
				v, ok, err := zsync.NewQueue[int](b, path).TryRecv(within(t, 10*time.Minute))
				if v != 1 || !ok || err != nil || b.Stats().Reconnects > 0 {
					t.Errorf("%d: TryRecv = %d, %v, %.300v; %d reconnects", n, v, ok, err, b.Stats().Reconnects)
				}
			})
		})
		t.Run("misfit of Recv", func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, b := open(t, srv), open(t, srv)
				raw := zsync.NewQueue[[]byte](s, path, zsync.WithCodec(zsync.Raw), zsync.WithKey(func([]byte) string { return "k" }))
				largest(t, raw)
				must(t, raw.Send(t.Context(), []byte("1")))
				v := 0
				select {
				case v = <-zsync.NewQueue[int](b, path).Recv(t.Context()):
				case <-time.After(10 * time.Minute):
				}
				if v != 1 || b.Stats().Reconnects > 0 {
					t.Errorf("%d: Recv = %d; %d reconnects", n, v, b.Stats().Reconnects)
				}
			})
		})
		t.Run("put back", func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, b := open(t, srv), open(t, srv)
				raw := zsync.NewQueue[[]byte](s, path, zsync.WithCodec(zsync.Raw), zsync.WithKey(func([]byte) string { return "k" }))
				size := largest(t, raw)
				hit := false
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				read := oneByOne(srv, func(r zktest.Request) zktest.Action {
					if r.Session == b.ID() && r.Op == zktest.OpMulti && !hit {
						hit = true
						go func() { time.Sleep(time.Millisecond); cancel() }()
						return zktest.Delay(100 * time.Millisecond)
					}
					return zktest.Pass
				})
				_, ok, err := zsync.NewQueue[[]byte](b, path, zsync.WithCodec(zsync.Raw)).TryRecv(ctx)
				if ok || err == nil {
					t.Fatal("not cancelled")
				}
				time.Sleep(10 * time.Minute)
				v, ok, err := raw.TryRecv(t.Context())
				if len(v) != size || !ok || err != nil || b.Stats().Reconnects > 0 {
					t.Errorf("%d: TryRecv = %d bytes, %v, %.300v; %d reconnects", n, len(v), ok, err, b.Stats().Reconnects)
				}
				read(func() {
					if !hit {
						t.Error("case")
					}
				})
			})
		})
	}
}
