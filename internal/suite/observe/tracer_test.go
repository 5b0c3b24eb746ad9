package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A recorder is a Tracer. It notes starts and ends with the operation around
// each, and panics where a start has two ends.
type recorder struct {
	mu   sync.Mutex
	list []string
	open map[*int]string
}

type recordedKey struct{}

func (r *recorder) Start(ctx context.Context, op zsync.Op) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	around, _ := ctx.Value(recordedKey{}).(string)
	name := fmt.Sprint(op.Kind, " ", op.Primitive, " ", op.Name)
	if r.open == nil {
		r.open = make(map[*int]string)
	}
	id := new(int)
	r.open[id] = name
	r.list = append(r.list, strings.TrimSpace(name+" in "+around))
	return context.WithValue(context.WithValue(ctx, recordedKey{}, name), r, id)
}

func (r *recorder) End(ctx context.Context, op zsync.Op, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, _ := ctx.Value(r).(*int)
	name, ok := r.open[id]
	if !ok || name != fmt.Sprint(op.Kind, " ", op.Primitive, " ", op.Name) {
		panic("ended twice, or with another context: " + op.Name)
	}
	delete(r.open, id)
	switch {
	case err == nil:
	case errors.Is(err, zsync.ErrLost):
		name += " lost"
	default:
		name += " failed"
	}
	r.list = append(r.list, "end "+name)
}

// took returns what has been recorded since the last call.
func (r *recorder) took() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return strings.Join(list, "; ")
}

func TestEveryPrimitiveIsTracedFromStartToEnd(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		r := new(recorder)
		s := suite.Open(t, srv, zsync.WithTracer(r))
		ctx := t.Context()
		inside := func(want string) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				if got, _ := ctx.Value(recordedKey{}).(string); got != want {
					t.Errorf("the function of Do is in %q, want %q", got, want)
				}
				return nil
			}
		}
		rw := zsync.NewRWMutex(s, "/rw")
		e := zsync.NewElection(s, "/e")
		q := zsync.NewQueue[int](s, "/q")
		once := zsync.NewOnce(s, "/once")
		for _, c := range []struct {
			name string
			do   func() error
			want string
		}{
			{"Mutex.Do", func() error { return zsync.NewMutex(s, "/m").Do(ctx, inside("hold mutex lock")) },
				"acquire mutex lock in; end acquire mutex lock; hold mutex lock in; end hold mutex lock"},
			{"Mutex.TryLock", func() error {
				m := zsync.NewMutex(s, "/m")
				ok, err := m.TryLock(ctx)
				if !ok || err != nil {
					return fmt.Errorf("%v, %w", ok, err)
				}
				return m.Unlock()
			}, "acquire mutex lock in; end acquire mutex lock; hold mutex lock in; end hold mutex lock"},
			{"RWMutex.RDo", func() error { return rw.RDo(ctx, inside("hold rwmutex rlock")) },
				"acquire rwmutex rlock in; end acquire rwmutex rlock; hold rwmutex rlock in; end hold rwmutex rlock"},
			{"RWMutex.Downgrade", func() error {
				return errors.Join(rw.Lock(ctx), rw.Downgrade(ctx), rw.RUnlock())
			}, "acquire rwmutex lock in; end acquire rwmutex lock; hold rwmutex lock in; end hold rwmutex lock"},
			{"Semaphore", func() error {
				m := zsync.NewSemaphore(s, "/s", 5)
				return errors.Join(m.Acquire(ctx, 2), m.Acquire(ctx, 1), m.Release(1), m.Release(2))
			}, "acquire semaphore acquire in; end acquire semaphore acquire; hold semaphore acquire in; " +
				"acquire semaphore acquire in; end acquire semaphore acquire; end hold semaphore acquire"},
			{"Semaphore.Do", func() error { return zsync.NewSemaphore(s, "/s", 5).Do(ctx, 1, inside("hold semaphore acquire")) },
				"acquire semaphore acquire in; end acquire semaphore acquire; hold semaphore acquire in; end hold semaphore acquire"},
			{"Election", func() error { return errors.Join(e.Campaign(ctx), e.Resign()) },
				"acquire election campaign in; end acquire election campaign; hold election campaign in; end hold election campaign"},
			{"Once", func() error { return once.Do(ctx, inside("hold once do")) },
				"acquire once do in; end acquire once do; hold once do in; end hold once do"},
			{"Once again", func() error { return once.Do(ctx, inside("never")) }, ""},
			{"Barrier", func() error { return zsync.NewBarrier(s, "/b").Wait(ctx) }, "wait barrier wait in; end wait barrier wait"},
			{"WaitGroup", func() error { return zsync.NewWaitGroup(s, "/w").Wait(ctx) }, "wait waitgroup wait in; end wait waitgroup wait"},
			{"double barrier", func() error {
				w := zsync.NewWaitGroup(s, "/d")
				return errors.Join(w.Enter(ctx, 1), w.Leave(ctx))
			}, "acquire double barrier enter in; end acquire double barrier enter; hold double barrier enter in; end hold double barrier enter"},
			{"Queue", func() error {
				if err := q.Send(ctx, 1, 2); err != nil {
					return err
				}
				d, err := q.Receive(ctx)
				if err != nil {
					return err
				}
				_, _, err = q.TryRecv(ctx)
				return errors.Join(err, d.Ack(ctx))
			}, "queue queue send in; end queue queue send; queue queue receive in; end queue queue receive; " +
				"queue queue receive in; end queue queue receive; queue queue ack in; end queue queue ack"},
			{"Nack", func() error {
				if err := q.Send(ctx, 3); err != nil {
					return err
				}
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				d := <-q.Deliveries(ctx)
				synctest.Wait() // the consumer notes that it has handed it out
				return d.Nack()
			}, "queue queue send in; end queue queue send; queue queue receive in; end queue queue receive; queue queue nack in; end queue queue nack"},
			{"Queue.SendID", func() error {
				for i := range 2 {
					if sent, err := q.SendID(ctx, "id", 1); sent != (i == 0) || err != nil {
						return fmt.Errorf("sent %v, %w", sent, err)
					}
				}
				return nil
			}, "queue queue send in; end queue queue send; queue queue send in; end queue queue send"},
			{"Queue.Work", func() error {
				q := zsync.NewQueue[int](s, "/work")
				harness.Must(t, q.Send(ctx, 1, 2, 3))
				ctx, cancel := context.WithCancel(ctx)
				err := q.Work(ctx, 1, func(ctx context.Context, v int) error {
					switch d, _ := zsync.DeliveryFrom(ctx); v {
					case 1:
						return zsync.Permanent(errors.New("rejected by Work"))
					case 2:
						return d.Reject(ctx, "rejected by the function")
					}
					cancel()
					return nil
				})
				if errors.Is(err, context.Canceled) {
					return nil
				}
				return err
			}, "queue queue send in; end queue queue send; " +
				"queue queue receive in; end queue queue receive; queue queue reject in; end queue queue reject; " +
				"queue queue receive in; end queue queue receive; queue queue reject in; end queue queue reject; " +
				"queue queue receive in; end queue queue receive; queue queue ack in; end queue queue ack"},
			{"gave up", func() error {
				harness.Must(t, rw.Lock(ctx))
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if err := rw.Lock(short); err == nil {
					return errors.New("granted twice")
				}
				return rw.Unlock()
			}, "acquire rwmutex lock in; end acquire rwmutex lock; hold rwmutex lock in; acquire rwmutex lock in; " +
				"end acquire rwmutex lock failed; end hold rwmutex lock"},
			{"handed over in the process", func() error {
				m := zsync.NewMutex(s, "/m")
				harness.Must(t, m.Lock(ctx))
				next := harness.Async(func() error { return m.Lock(ctx) })
				synctest.Wait()
				harness.Must(t, m.Unlock())
				harness.Must(t, <-next)
				return m.Unlock()
			}, "acquire mutex lock in; end acquire mutex lock; hold mutex lock in; acquire mutex lock in; "},
		} {
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if got := r.took(); got != c.want && !(strings.HasSuffix(c.want, "; ") && strings.HasPrefix(got, c.want)) {
				t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
			}
		}
		m := zsync.NewMutex(s, "/m")
		cond := zsync.NewCond(s, "/c", m)
		harness.Must(t, m.Lock(ctx))
		woken := harness.Async(func() error { return cond.Wait(ctx) })
		time.Sleep(time.Second)
		harness.Must(t, cond.Signal(ctx))
		harness.Must(t, <-woken)
		if got := r.took(); !strings.Contains(got, "wait cond wait in") || !strings.Contains(got, "end wait cond wait") {
			t.Errorf("Cond: %s", got)
		}
		harness.Must(t, e.Campaign(ctx))
		sem := zsync.NewSemaphore(s, "/s", 5)
		harness.Must(t, sem.Acquire(ctx, 1))
		r.took()
		srv.Expire(s.ID())
		<-e.Lost()
		<-sem.Lost()
		time.Sleep(time.Second)
		lost := strings.Split(r.took(), "; ")
		slices.Sort(lost)
		if got, want := strings.Join(lost, "; "), "end hold election campaign lost; end hold mutex lock lost; end hold semaphore acquire lost"; got != want {
			t.Errorf("an expired session:\n%s\nwant\n%s", got, want)
		}
		harness.Must(t, s.Close())
		if len(r.open) != 0 {
			t.Errorf("started and not ended: %v", r.open)
		}
	})
}

// The permits of a Semaphore are one hold until all are released, even if another goroutine has released them before the
// tracer sees the end of the wait for them.
func TestEachHoldOfPermitsIsTracedOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		r := &meddler{recorder: new(recorder)}
		sem := zsync.NewSemaphore(suite.Open(t, srv, zsync.WithTracer(r)), "/s", 3)
		r.meddle = func() {
			r.meddle = nil
			harness.Must(t, errors.Join(sem.Release(1), sem.Acquire(t.Context(), 1)))
		}
		harness.Must(t, errors.Join(sem.Acquire(t.Context(), 1), sem.Acquire(t.Context(), 1), sem.Release(2)))
		if got := strings.Count(r.took(), "; hold semaphore"); got != 2 {
			t.Errorf("%d holds were traced, want 2", got)
		}
	})
}

// A meddler calls meddle at the end of a wait.
type meddler struct {
	*recorder
	meddle func()
}

func (m *meddler) End(ctx context.Context, op zsync.Op, err error) {
	m.recorder.End(ctx, op, err)
	if m.meddle != nil {
		m.meddle()
	}
}

// A process that was stopped finds out by itself that its session is not certain to live
// any more: with the first call, if that is sooner than the watchdog. If the call says so
// the tracer is told so too, though others hold the same.
func TestAHoldWhoseEndTellsALossIsTracedAsLost(t *testing.T) {
	for range 20 {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			r := new(recorder)
			s := suite.Open(t, srv, zsync.WithTracer(r))
			rw, m := zsync.NewRWMutex(s, "/rw"), zsync.NewMutex(s, "/m", zsync.WithRetention(time.Minute))
			ctx := t.Context()
			harness.Must(t, errors.Join(rw.RLock(ctx), rw.RLock(ctx), m.Lock(ctx)))
			srv.Partition(s.ID())
			synctest.Wait()
			r.took()
			time.Sleep(s.Margin()) // the watchdog wakes up at the same moment
			for name, unlock := range map[string]func() error{"RUnlock": rw.RUnlock, "the last RUnlock": rw.RUnlock, "Unlock": m.Unlock} {
				if err := unlock(); !errors.Is(err, zsync.ErrLost) {
					t.Errorf("%s: %v", name, err)
				}
			}
			got := strings.Split(r.took(), "; ")
			slices.Sort(got)
			if want := []string{"end hold mutex lock lost", "end hold rwmutex rlock lost", "end hold rwmutex rlock lost"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
