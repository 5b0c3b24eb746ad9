package closing

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The type `program` is a program's own struct, with its Session and its primitives.
type program struct {
	s    *zsync.Session
	kept any
	seen atomic.Int64
}

func (p *program) Observe(zsync.Event) { p.seen.Add(1) }

// The Session leads to the program, because the program is its Observer. So everything leads to
// everything else.
func TestAClosedSessionIsFreedWithItsPrimitives(t *testing.T) {
	run := func(context.Context) error { return nil }
	for _, c := range []struct {
		name string
		use  func(t *testing.T, ctx context.Context, s *zsync.Session) any
	}{
		{"Mutex", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			m := zsync.NewMutex(s, "/p")
			harness.Must(t, m.Lock(ctx))
			_, err := m.Txn(ctx, &zk.CreateRequest{Path: "/made", Acl: zk.WorldACL(zk.PermAll)})
			harness.Must(t, err)
			return m
		}},
		{"Mutex, waiting", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			m, second := zsync.NewMutex(s, "/p"), zsync.NewMutex(s, "/p")
			harness.Must(t, m.Lock(ctx))
			harness.Async(func() error { return second.Lock(ctx) })
			time.Sleep(time.Second)
			return second
		}},
		{"RWMutex", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			m := zsync.NewRWMutex(s, "/p")
			harness.Must(t, m.RLock(ctx))
			return m
		}},
		{"Semaphore", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			m := zsync.NewSemaphore(s, "/p", 2)
			harness.Must(t, m.Acquire(ctx, 1))
			return m
		}},
		{"Election", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			e := zsync.NewElection(s, "/p")
			harness.Must(t, e.Campaign(ctx))
			<-e.Observe(ctx)
			return e
		}},
		{"Cond", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			m := zsync.NewMutex(s, "/p/lock")
			c := zsync.NewCond(s, "/p/cond", m)
			harness.Must(t, m.Lock(ctx))
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			harness.WantErr(t, c.Wait(short), context.DeadlineExceeded)
			return c
		}},
		{"WaitGroup, as a counter", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			w := zsync.NewWaitGroup(s, "/p")
			harness.Must(t, w.Add(ctx, 1))
			return w
		}},
		{"WaitGroup, as a double barrier", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			w := zsync.NewWaitGroup(s, "/p")
			harness.Must(t, w.Enter(ctx, 1))
			return w
		}},
		{"Once", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			o := zsync.NewOnce(s, "/p")
			harness.Must(t, o.Do(ctx, run))
			done, err := o.Done(ctx)
			if harness.Must(t, err); !done {
				t.Error("it is not done")
			}
			return o
		}},
		{"Once, done elsewhere", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			harness.Must(t, zsync.NewOnce(s, "/p").Do(ctx, run))
			runtime.GC()
			o := zsync.NewOnce(s, "/p")
			_, err := o.Done(ctx)
			harness.Must(t, err)
			return o
		}},
		{"Flight", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			f := zsync.NewFlight[int](s, "/p", time.Minute)
			_, _, err := f.Do(ctx, "k", func(context.Context) (int, error) { return 1, nil })
			harness.Must(t, err)
			return f
		}},
		{"Schedule", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			c := zsync.NewSchedule(s, "/p")
			_, err := c.Do(ctx, time.Now(), run)
			harness.Must(t, err)
			return c
		}},
		{"Barrier", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			b := zsync.NewBarrier(s, "/p")
			harness.Must(t, b.Close(ctx))
			harness.Async(func() error { return b.Wait(ctx) })
			time.Sleep(time.Second)
			return b
		}},
		{"Value", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			v := zsync.NewValue[int](s, "/p")
			harness.Must(t, v.Store(ctx, 1))
			<-v.Watch(ctx)
			return v
		}},
		{"Map", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			m := zsync.NewMap[int](s, "/p")
			harness.Must(t, m.Store(ctx, "k", 1))
			<-m.Watch(ctx)
			return m
		}},
		{"Group", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			g := zsync.NewGroup[string](s, "/p")
			m, err := g.Join(ctx, "a", "b")
			harness.Must(t, err)
			<-g.Watch(ctx)
			return []any{g, m}
		}},
		{"Partition", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			p := zsync.NewPartition(s, "/p")
			harness.Async(func() error {
				return p.Run(ctx, []string{"a"}, func(ctx context.Context, _ string) error { <-ctx.Done(); return nil })
			})
			time.Sleep(time.Second)
			return p
		}},
		{"Queue", func(t *testing.T, ctx context.Context, s *zsync.Session) any {
			q := zsync.NewQueue[int](s, "/p")
			suite.SendAll(t, q, []int{1, 2})
			_, err := q.Receive(ctx)
			harness.Must(t, err)
			<-q.Recv(ctx)
			return q
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var freed weak.Pointer[program]
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				p := &program{}
				p.s = suite.Open(t, srv, zsync.WithObserver(p))
				ctx, cancel := context.WithCancel(t.Context())
				p.kept = c.use(t, ctx, p.s)
				cancel()
				harness.Must(t, p.s.Close())
				freed = weak.Make(p)
			})
			for range 10 {
				if runtime.GC(); freed.Value() == nil {
					return
				}
			}
			t.Error("the closed Session and its program remain in memory")
		})
	}
}
