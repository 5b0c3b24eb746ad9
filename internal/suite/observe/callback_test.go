package observe

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A caller is everything that a program can pass to a Session and that a Session calls: a log, a tracer, an
// observer, a codec, a health function and a context. Each call of it calls the Session back.
type caller struct {
	back    func(ctx context.Context) // written before ready is true, like release
	release func()                    // called by the log for a record about a hold
	ready   atomic.Bool
	within  atomic.Int32 // calls of back at this moment; a call back may cause further calls
	logged  atomic.Int32
}

func (c *caller) call() {
	if c.within.Add(1) < 4 && c.ready.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond) // so that no call back waits long for a server
		c.back(ctx)
		cancel()
	}
	c.within.Add(-1)
}

func (c *caller) Enabled(context.Context, slog.Level) bool    { return true }
func (c *caller) WithAttrs([]slog.Attr) slog.Handler          { return c }
func (c *caller) WithGroup(string) slog.Handler               { return c }
func (c *caller) Observe(zsync.Event)                         { c.call() }
func (c *caller) End(context.Context, zsync.Op, error)        { c.call() }
func (c *caller) Marshal(v any) ([]byte, error)               { c.call(); return zsync.JSON.Marshal(v) }
func (c *caller) Unmarshal(data []byte, v any) error          { c.call(); return zsync.JSON.Unmarshal(data, v) }
func (c *caller) healthy(context.Context) error               { c.call(); return nil }
func (c *caller) context(ctx context.Context) context.Context { return &callingContext{ctx, c} }

func (c *caller) Handle(_ context.Context, r slog.Record) error {
	c.logged.Add(1)
	c.call()
	if c.ready.Load() && strings.Contains(r.Message, "held znode") {
		c.release()
	}
	return nil
}

func (c *caller) Start(ctx context.Context, _ zsync.Op) context.Context {
	c.call()
	return ctx
}

type callingContext struct {
	context.Context
	c *caller
}

func (x *callingContext) Done() <-chan struct{} { x.c.call(); return x.Context.Done() }
func (x *callingContext) Err() error            { x.c.call(); return x.Context.Err() }
func (x *callingContext) Value(key any) any     { x.c.call(); return x.Context.Value(key) }

// If a Session held a mutex during such a call, the call back would wait for it forever. A wait for a mutex
// stops virtual time, so a timer in real time ends the test.
func TestWhateverASessionCallsMayCallItBack(t *testing.T) {
	write := []zktest.Op{zktest.OpCreate, zktest.OpCreateContainer, zktest.OpSetData, zktest.OpDelete, zktest.OpMulti}
	refuse := func(ops ...zktest.Op) func(srv *zktest.Server, s *zsync.Session) {
		return func(srv *zktest.Server, s *zsync.Session) {
			refused := make(map[zktest.Op]bool)
			for _, op := range ops {
				refused[op] = true
			}
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if refused[r.Op] {
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
		}
	}
	for name, fault := range map[string]func(srv *zktest.Server, s *zsync.Session){
		"nothing happens":      func(*zktest.Server, *zsync.Session) {},
		"the session expires":  func(srv *zktest.Server, s *zsync.Session) { srv.Expire(s.ID()) },
		"the servers are away": func(srv *zktest.Server, _ *zsync.Session) { srv.Stop() },
		"the connection drops": func(srv *zktest.Server, s *zsync.Session) { srv.Disconnect(s.ID()) },
		"writes are refused":   refuse(write...),
		"listings are refused": refuse(zktest.OpGetChildren, zktest.OpGetChildren2),
		"reads are refused":    refuse(zktest.OpGetData, zktest.OpExists, zktest.OpMultiRead),
		"writes are refused to the next session": func(srv *zktest.Server, s *zsync.Session) {
			refuse(write...)(srv, s)
			srv.Expire(s.ID())
		},
		"listings are refused to the next session": func(srv *zktest.Server, s *zsync.Session) {
			refuse(zktest.OpGetChildren, zktest.OpGetChildren2)(srv, s)
			srv.Expire(s.ID())
		},
	} {
		t.Run(name, func(t *testing.T) {
			stuck := time.AfterFunc(time.Minute, func() { // real time: a wait for a mutex stops virtual time
				debug.SetTraceback("all")
				panic("a call back waits for a mutex")
			})
			defer stuck.Stop()
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				c := new(caller)
				s := suite.Open(t, srv, zsync.WithLogger(slog.New(c)), zsync.WithObserver(c), zsync.WithTracer(c))
				ctx := c.context(harness.Within(t, 5*time.Minute))
				codec := zsync.WithCodec(c)

				m := zsync.NewMutex(s, "/m", zsync.WithHealth(c.healthy))
				rw := zsync.NewRWMutex(s, "/rw", zsync.WithMaxHold(time.Minute))
				kept := zsync.NewMutex(s, "/kept", zsync.WithRetention(time.Hour))
				sem := zsync.NewSemaphore(s, "/sem", 3, zsync.WithHealth(c.healthy))
				e := zsync.NewElection(s, "/e")
				wg := zsync.NewWaitGroup(s, "/wg")
				g := zsync.NewGroup[int](s, "/g") // without the codec, which would call Set for each Set
				v := zsync.NewValue[int](s, "/v", codec)
				q := zsync.NewQueue[int](s, "/q", codec, zsync.WithMaxAttempts(1))
				for _, err := range []error{m.Lock(ctx), rw.RLock(ctx), kept.Lock(ctx), sem.Acquire(ctx, 2), e.Campaign(ctx), wg.Add(ctx, 2), v.Store(ctx, 1), q.Send(ctx, 1, 2, 3)} {
					harness.Must(t, err)
				}
				member, err := g.Join(ctx, "id", 1)
				harness.Must(t, err)
				d, err := q.Receive(ctx)
				harness.Must(t, err)
				go func() {
					for range v.Watch(ctx) {
					}
				}()
				go func() {
					for range g.Watch(ctx) {
					}
				}()
				go m.Lock(ctx)
				go e.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
				release := make(chan struct{})
				harness.Must(t, wg.Go(ctx, func() { <-release }))
				time.Sleep(100 * time.Millisecond)

				c.back = func(ctx context.Context) {
					for _, lost := range []func() <-chan struct{}{m.Lost, rw.Lost, kept.Lost, sem.Lost, e.Lost, wg.Lost, m.Revoked} {
						lost()
					}
					s.State()
					s.Stats()
					s.Margin()
					over, cancel := context.WithCancel(ctx)
					cancel()
					m.Token(over)
					rw.Token(over)
					rw.Downgrade(over)
					sem.Token(over)
					e.Token(over)
					d.Context().Err()
					m.TryLock(over)
					sem.TryAcquire(over, 1)
					wg.Add(ctx, 1)
					wg.Enter(over, 2)
					member.Set(ctx, 2)
					v.Load(ctx)
					q.Len(ctx)
				}
				c.release = func() {
					m.Unlock()
					rw.RUnlock()
					kept.Unlock()
					sem.Release(1)
					e.Resign()
				}
				fault(srv, s)
				c.ready.Store(true)
				close(release)
				time.Sleep(3 * harness.Timeout)
				harness.Async(func() error { return d.Ack(ctx) })
				c.release()
				wg.Done()
				member.Set(ctx, 3)
				time.Sleep(3 * harness.Timeout)
				member.Leave()
				if srv.Intercept(nil); name == "the servers are away" {
					srv.Restart()
				}
				time.Sleep(time.Minute)
				if c.logged.Load() == 0 && name != "nothing happens" {
					t.Error("nothing was logged")
				}
				harness.Must(t, s.Close())
			})
		})
	}
}
