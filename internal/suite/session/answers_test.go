package session

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A size costs a server nothing, and the client no memory before the bytes have come.
func TestASizeThatIsAnnouncedCostsAConnectionAndNoMemory(t *testing.T) {
	const connections = 20
	harness.VirtualTime(t, func(t *testing.T) {
		i := &impostor{hello: welcome(10_000, 16), reply: func(xid, op int32) []byte {
			return words(200<<20, int64(xid), 0, 0, 0) // the header alone; nothing comes behind it
		}}
		s, err := zsync.Connect(t.Context(), "x:1", zsync.WithDialer(i.dial))
		harness.Must(t, err)
		defer s.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		lock := harness.Async(func() error { return zsync.NewMutex(s, "/m").Lock(ctx) })
		for i.dials.Load() < connections {
			time.Sleep(time.Second)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 20<<20 {
			t.Errorf("%d MB for %d connections, none of which has brought more than a header", took>>20, connections)
		}
		harness.PendingStill(t, lock)
		cancel()
		harness.WantErr(t, <-lock, context.Canceled)
	})
}

// Observers and log handlers may make requests, too: nothing that they are told of
// is told under a lock that a request needs.
func TestObserversAndLogHandlersMayMakeRequests(t *testing.T) {
	for name, lose := range map[string]func(srv *zktest.Server, s *zsync.Session){
		"expired":      func(srv *zktest.Server, s *zsync.Session) { srv.Expire(s.ID()) },
		"cut off":      func(srv *zktest.Server, s *zsync.Session) { srv.Partition(s.ID()) },
		"disconnected": func(srv *zktest.Server, s *zsync.Session) { srv.Disconnect(s.ID()) },
		"another session": func(srv *zktest.Server, s *zsync.Session) {
			srv.ChangeSession(s.ID())
			srv.Disconnect(s.ID())
		},
		"a silent server": func(srv *zktest.Server, s *zsync.Session) {
			id := s.ID()
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == id && r.Op != zktest.OpConnect {
					return zktest.Hang
				}
				return zktest.Pass
			})
		},
		"refusals": func(srv *zktest.Server, s *zsync.Session) {
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/m/") {
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
		},
		"closed": func(srv *zktest.Server, s *zsync.Session) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				var asks, answers atomic.Int64
				var busy atomic.Bool
				var back atomic.Pointer[func() error]
				ask := func() {
					f := back.Load()
					if f == nil || !busy.CompareAndSwap(false, true) { // what it logs itself is not asked about
						return
					}
					defer busy.Store(false)
					asks.Add(1)
					if (*f)() == nil {
						answers.Add(1)
					}
				}
				s := suite.Open(t, srv,
					zsync.WithObserver(zsync.ObserverFunc(func(zsync.Event) { ask() })),
					zsync.WithLogger(slog.New(askingHandler{ask: ask})))
				m, v := zsync.NewMutex(s, "/m"), zsync.NewValue[int](s, "/v")
				f := func() error {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
					defer cancel()
					if _, err := m.Contenders(ctx); err != nil {
						return err
					}
					return v.Store(ctx, 1)
				}
				back.Store(&f)
				harness.Must(t, m.Lock(t.Context()))
				time.Sleep(time.Second)
				lose(srv, s)
				time.Sleep(harness.Timeout / 2)
				m.Unlock()
				time.Sleep(2 * harness.Timeout)
				srv.Intercept(nil)
				harness.Must(t, s.Close())
				if asks.Load() == 0 || answers.Load() == 0 && name != "closed" {
					t.Errorf("%d asked, %d were answered", asks.Load(), answers.Load())
				}
			})
		})
	}
}

// What a Session says of its timeout is what the servers have granted.
func TestTimeoutIsThatWhichTheServersHaveGranted(t *testing.T) {
	for _, c := range []struct{ asked, want time.Duration }{
		{time.Minute, 4 * time.Second},
		{time.Second, 2 * time.Second},
		{3 * time.Second, 3 * time.Second},
	} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv, zsync.WithSessionTimeout(c.asked))
			check := func(when string) {
				t.Helper()
				if d := s.Timeout(); d != c.want {
					t.Errorf("asked for %v, %s: %v, want %v", c.asked, when, d, c.want)
				}
			}
			check("at first")
			srv.Disconnect(s.ID())
			time.Sleep(c.want / 4)
			inside.Live(t, s)
			check("over another connection")
			id := s.ID()
			srv.Expire(id)
			time.Sleep(c.want)
			inside.Live(t, s)
			if s.ID() == id {
				t.Fatal("the same session")
			}
			check("in another session")
			srv.Stop()
			time.Sleep(2 * c.want)
			if d := s.Timeout(); d != 0 {
				t.Errorf("%v while there is no session", d)
			}
			srv.Restart()
			inside.Live(t, s)
			check("after an outage")
		}, zktest.WithSessionTimeouts(2*time.Second, 4*time.Second))
	}
}

// Nobody waits at a channel of what was not made, though its context never ends.
func TestChannelsOfZeroValuesAreClosedAtOnce(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		ctx := t.Context()
		var (
			q zsync.Queue[int]
			v zsync.Value[int]
			e zsync.Election
			m zsync.Map[int]
			g zsync.Group[int]
		)
		ended := make(map[string]*atomic.Bool)
		all := func(name string, loop func()) {
			var over atomic.Bool
			ended[name] = &over
			go func() { loop(); over.Store(true) }()
		}
		all("Queue.Recv", func() {
			for range q.Recv(ctx) {
				t.Error("received something")
			}
		})
		all("Queue.Deliveries", func() {
			for range q.Deliveries(ctx) {
				t.Error("delivered something")
			}
		})
		all("Queue.All", func() {
			for _, err := range q.All(ctx) {
				harness.WantErr(t, err, zsync.ErrInvalid)
			}
		})
		all("Queue.Dead", func() {
			for _, err := range q.Dead(ctx) {
				harness.WantErr(t, err, zsync.ErrInvalid)
			}
		})
		all("Value.Watch", func() {
			for range v.Watch(ctx) {
				t.Error("a value")
			}
		})
		all("Election.Observe", func() {
			for range e.Observe(ctx) {
				t.Error("a leader")
			}
		})
		all("Map.Watch", func() {
			for range m.Watch(ctx) {
				t.Error("a map")
			}
		})
		all("Map.All", func() {
			for _, err := range m.All(ctx) {
				harness.WantErr(t, err, zsync.ErrInvalid)
			}
		})
		all("Group.Watch", func() {
			for range g.Watch(ctx) {
				t.Error("members")
			}
		})
		synctest.Wait()
		for name, over := range ended {
			if !over.Load() {
				t.Errorf("%s goes on", name)
			}
		}
	})
}

// Who gives up while the servers are silent leaves no goroutine meanwhile, over one
// connection and the next, and neither a goroutine nor a znode once they are back.
func TestCancelledLocksLeaveNeitherGoroutinesNorZnodes(t *testing.T) {
	const n = 400
	for _, one := range []bool{true, false} {
		for name, silent := range map[string]zktest.Action{"hang": zktest.Hang, "hang with the reply": zktest.HangReply} {
			t.Run(fmt.Sprintf("%s, one path %v", name, one), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, other := suite.Open(t, srv), suite.Open(t, srv)
					paths := make([]string, n)
					for i := range paths {
						paths[i] = "/m"
						if !one {
							paths[i] = fmt.Sprintf("/m/%d", i)
						}
					}
					holders := make(map[string]*zsync.Mutex)
					for _, path := range paths {
						if holders[path] != nil {
							continue
						}
						holders[path] = zsync.NewMutex(other, path)
						harness.Must(t, holders[path].Lock(t.Context()))
						_, err := zsync.NewMutex(s, path).TryLock(t.Context()) // its directory is known
						harness.Must(t, err)
					}
					synctest.Wait()
					before, id := harness.Goroutines(), s.ID()
					var quiet atomic.Bool
					quiet.Store(true)
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if quiet.Load() && r.Session == id && r.Op != zktest.OpConnect {
							return silent
						}
						return zktest.Pass
					})
					check := func(when string) {
						t.Helper()
						synctest.Wait()
						// The session keeps up to two goroutines for what it does next.
						if more := harness.Goroutines() - before; more > 4 {
							t.Errorf("%s: %d more goroutines", when, more)
						}
					}
					var locks []<-chan error
					for _, path := range paths {
						locks = append(locks, harness.Async(func() error { return zsync.NewMutex(s, path).Lock(harness.Within(t, time.Millisecond)) }))
					}
					for _, c := range locks {
						harness.WantErr(t, <-c, context.DeadlineExceeded)
					}
					check("right after they gave up")
					time.Sleep(harness.Timeout * 5 / 8) // silence costs a connection after half of it, and the session after three quarters
					if got := s.Stats().Reconnects; got != 1 {
						t.Errorf("%d connections were replaced, want 1", got)
					}
					check("over the next connection, which is as silent")
					quiet.Store(false)
					time.Sleep(2 * harness.Timeout)
					check("at the end")
					if s.ID() != id {
						t.Error("the session was lost")
					}
					for path, holder := range holders {
						cs, err := holder.Contenders(t.Context())
						harness.Must(t, err)
						if len(cs) != 1 {
							t.Errorf("%d contenders for %s, want the holder", len(cs), path)
						}
						harness.Must(t, holder.Unlock())
					}
				})
			})
		}
	}
}

// Clear costs a few requests for each 500 elements, however many there are.
func TestClearCostsFewRequests(t *testing.T) {
	n := 4_000
	if harness.Long() {
		n = 50_000
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](suite.Open(t, srv), "/q")
		for i := 0; i < n; i += 500 {
			harness.Must(t, q.Send(t.Context(), harness.Counted(500)...))
		}
		cleared := 0
		took := harness.Requests(srv, func() {
			var err error
			cleared, err = q.Clear(t.Context())
			harness.Must(t, err)
		})
		t.Logf("%d requests for %d elements", took, n)
		if cleared != n || took > int64(10*n/500) {
			t.Errorf("%d of %d elements, %d requests", cleared, n, took)
		}
		if left, err := q.Len(t.Context()); left != 0 || err != nil {
			t.Errorf("%d are left, %v", left, err)
		}
	})
}
