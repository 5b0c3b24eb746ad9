package session

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/zsync/zsync/zktest"
)

// With little time left, holding begins behind an inquiry that was answered, not
// behind one that was lost with its connection, or refused: that has made nothing
// more certain.
func TestAHoldDoesNotBeginOnTheStrengthOfAnInquiryThatProvedNothing(t *testing.T) {
	for name, fault := range map[string]zktest.Action{
		"a lost request": zktest.DropRequest,
		"a lost reply":   zktest.DropReply,
		"a refusal":      zktest.Fail(zktest.CodeThrottled),
		"no permission":  zktest.Fail(zktest.CodeNoAuth),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				inc := live(t, open(t, srv))
				time.Sleep(testTimeout * 7 / 10)
				if left := inc.certain(); left <= 0 || left >= testTimeout/4 {
					t.Fatalf("%v is left, which is not little", left)
				}
				var asked, answered atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Op != zktest.OpDelete && r.Op != zktest.OpSync || r.Path == "/": // that is what a new connection begins with
						return zktest.Pass
					case asked.Add(1) <= 3:
						return fault
					}
					answered.Add(1)
					return zktest.Pass
				})
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				if answered.Load() == 0 || asked.Load() < 4 || IsClosed(inc.Disconnection()) {
					t.Errorf("something is held after %d inquiries, of which %d were answered", asked.Load(), answered.Load())
				}
			})
		})
	}
}

// Several holds that begin at once, with little time left, rest on one inquiry; who
// looks for it as it is answered waits for no other, which is not due for long.
func TestHoldsThatBeginAtOnceDoNotWaitForASecondInquiry(t *testing.T) {
	for range 50 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			inc := live(t, open(t, srv))
			for range 10 {
				time.Sleep(testTimeout * 7 / 10)
				began := time.Now()
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						stake, err := inc.Stake(t.Context())
						if err != nil {
							t.Error(err)
						}
						stake.Drop()
					})
				}
				all.Wait()
				if d := time.Since(began); d > 0 {
					t.Fatalf("a hold began %v late, and the server answers at once", d)
				}
			}
		})
	}
}

// Whoever has waited for so long that little is left begins to hold when the session is
// certain to live for a while, and not in the last moment before it is given up.
func TestAHoldDoesNotBeginInAHurry(t *testing.T) {
	for _, part := range []time.Duration{70, 80, 85, 88, 89} {
		t.Run(fmt.Sprintf("after %d percent of the timeout", part), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(60 * time.Millisecond)
				inc := live(t, open(t, srv))
				time.Sleep(testTimeout * part / 100)
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				left := inc.certain()
				time.Sleep(time.Second)
				if left < testTimeout/4 || !inc.Alive() {
					t.Errorf("granted with %v left, alive a second later: %v", left, inc.Alive())
				}
			})
		})
	}
}

// A hold that begins while its session is certain for long enough is certain for 7T/20 at least, from
// then on, and one that begins later for as long as it began with: also in the first cycle of a
// connection, whenever it begins after that, and whether the session is new or goes on.
func TestAHoldIsCertainForASevenTwentiethOfTheTimeoutAfterEachConnect(t *testing.T) {
	const latency = 5 * time.Millisecond
	for _, continued := range []bool{false, true} {
		for part := time.Duration(0); part <= 60; part += 5 {
			t.Run(fmt.Sprintf("continued %v, held after %d percent of the timeout", continued, part), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					srv.SetLatency(latency)
					s := open(t, srv)
					inc := live(t, s)
					if continued {
						time.Sleep(testTimeout)
						srv.Disconnect(s.ID())
						time.Sleep(10 * latency)
						must(t, second(inc.OpenConn(t.Context())))
					}
					time.Sleep(testTimeout * part / 100)
					must(t, second(startCreate(t.Context(), inc, "/x", nil, 0))) // as a Lock does
					time.Sleep(2 * latency)
					stake, err := inc.Stake(t.Context())
					must(t, err)
					defer stake.Drop()
					least, want := inc.certain(), min(inc.certain(), testTimeout*7/20)-testTimeout/50
					for range 600 {
						time.Sleep(testTimeout / 200)
						least = min(least, inc.certain())
					}
					if least < want {
						t.Errorf("certain for %v, want %v", least, want)
					}
				})
			})
		}
	}
}

// A connection that continues a session begins with a sync, which a leader answers before it has applied
// what it has told its followers to be committed. So what is read over it may be from before an event
// that has told of somebody's turn. A hold begins behind a write over that connection.
func TestAHoldBeginsBehindAWriteOverTheConnectionThatTheSessionHas(t *testing.T) {
	for _, wrote := range []bool{false, true} {
		t.Run(fmt.Sprintf("the program has written: %v", wrote), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				inc := live(t, s)
				must(t, second(create(t.Context(), inc, "/x", nil)))
				srv.Disconnect(s.ID())
				time.Sleep(time.Second)
				must(t, second(inc.OpenConn(t.Context())))
				const took = time.Second
				var writes atomic.Int32
				began := time.Now()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpDelete || r.Op == zktest.OpSetData {
						writes.Add(1)
						return zktest.Delay(took)
					}
					return zktest.Pass
				})
				if wrote {
					must(t, second(inc.Set(t.Context(), "/x", nil, -1)))
				}
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				if n := writes.Load(); n != 1 || time.Since(began) < took {
					t.Errorf("%d writes, granted after %v, want one, answered after %v", n, time.Since(began), took)
				}
			})
		})
	}
}

// A server that answers, but refuses every inquiry, is left while half of the time is there: as a silent
// one is. What other servers need to go on with the session is there, too.
func TestAHoldLeavesAServerThatRefusesInquiries(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   zktest.Action
		latency time.Duration
		dead    bool
	}{
		{"no answer, healthy others", zktest.Hang, 60 * time.Millisecond, false},
		{"throttled, healthy others", zktest.Fail(zktest.CodeThrottled), 60 * time.Millisecond, false},
		{"no answer, one other is silent", zktest.Hang, 2 * time.Millisecond, true},
		{"throttled, one other is silent", zktest.Fail(zktest.CodeThrottled), 2 * time.Millisecond, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(c.latency)
				s := open(t, srv)
				inc := live(t, s)
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				bad := inc.NewestConn().Addr
				var mu sync.Mutex
				var next string // the first other server that is tried
				var left time.Duration
				srv.Intercept(func(r zktest.Request) zktest.Action {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case r.Op == zktest.OpConnect && r.Addr != bad:
						if next == "" {
							next, left = r.Addr, inc.certain()
						}
						if c.dead && r.Addr == next {
							return zktest.Hang
						}
					case r.Addr == bad && r.Op != zktest.OpPing && r.Op != zktest.OpCloseSession && r.Op != zktest.OpConnect:
						return c.fault
					}
					return zktest.Pass
				})
				time.Sleep(3 * testTimeout)
				mu.Lock()
				defer mu.Unlock()
				if inc.Ctx.Err() != nil || left < testTimeout/7 {
					t.Errorf("the server was left %v before the end; the end: %v", left, context.Cause(inc.Ctx))
				}
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
		})
	}
}

// The time for a server begins anew when it confirms the session, though inquiries were refused before.
func TestAServerThatConfirmsNowAndThenIsNotLeft(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		var n atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if (r.Op == zktest.OpDelete || r.Op == zktest.OpSync) && n.Add(1)%10 != 0 {
				return zktest.Fail(zktest.CodeThrottled)
			}
			return zktest.Pass
		})
		time.Sleep(10 * testTimeout)
		if inc.Ctx.Err() != nil || s.Stats().Reconnects > 0 {
			t.Errorf("%d reconnects; the end: %v", s.Stats().Reconnects, context.Cause(inc.Ctx))
		}
	})
}

// A server becomes silent, and each other server refuses once, for a moment, to confirm the session.
// The first server hangs at its next handshake.
func TestAHoldSurvivesServersThatRefuseForAMomentBesideOneThatHangs(t *testing.T) {
	for _, writes := range []bool{false, true} {
		t.Run(fmt.Sprintf("writes %v", writes), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(2 * time.Millisecond)
				s := open(t, srv)
				inc := live(t, s)
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				silent := inc.NewestConn().Addr
				var mu sync.Mutex
				refused := map[string]bool{}
				srv.Intercept(func(r zktest.Request) zktest.Action {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case r.Addr == silent && r.Op != zktest.OpPing:
						return zktest.Hang
					case r.Op == zktest.OpDelete && strings.HasSuffix(r.Path, "/none") && !refused[r.Addr]:
						refused[r.Addr] = true
						return zktest.Fail(zktest.CodeThrottled)
					}
					return zktest.Pass
				})
				if writes {
					go func() {
						for range int(testTimeout / (2 * time.Millisecond)) {
							go create(inc.Ctx, inc, "/w"+uuid.NewString(), nil)
							time.Sleep(2 * time.Millisecond)
						}
					}()
				}
				time.Sleep(3 * testTimeout)
				mu.Lock()
				defer mu.Unlock()
				if inc.Ctx.Err() != nil || len(refused) != 2 {
					t.Errorf("refused at %d servers; the session: %v", len(refused), context.Cause(inc.Ctx))
				}
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
		})
	}
}

// A server that the session has not used yet may grant a shorter timeout. It hangs at the handshake, and the leader may
// use that timeout all the same. So the next server must be tried soon.
func TestAHoldSurvivesANewServerThatHangsAtTheHandshake(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, func(c *Config) { c.Timeout = time.Minute })
		inc := live(t, s)
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		known := inc.NewestConn().Addr
		var hung atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Addr != known {
				hung.Store(true)
				return zktest.Hang
			}
			return zktest.Pass
		})
		srv.Disconnect(s.ID())
		time.Sleep(time.Minute)
		if inc.Ctx.Err() != nil || !hung.Load() {
			t.Errorf("a server hung: %v; the session: %v", hung.Load(), context.Cause(inc.Ctx))
		}
	}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"), zktest.WithSessionTimeouts(time.Second, time.Hour))
}

// A hookLog calls a function for each message.
type hookLog struct {
	slog.Handler
	said func()
}

func (hookLog) Enabled(context.Context, slog.Level) bool { return true }
func (l hookLog) Handle(context.Context, slog.Record) error {
	l.said()
	return nil
}

// A slow log or Observer delays the next session, but no holder of this one.
func TestHoldersAreToldInTimeThoughTheLogAndTheObserverAreStuck(t *testing.T) {
	for name, fault := range map[string]func(srv *zktest.Server){
		"no server answers": (*zktest.Server).Stop,
		"no server confirms the session": func(srv *zktest.Server) {
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpPing || r.Op == zktest.OpConnect {
					return zktest.Pass
				}
				return zktest.Fail(zktest.CodeThrottled)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				gate := make(chan struct{})
				var stuck atomic.Bool
				wait := func() {
					if stuck.Load() {
						<-gate
					}
				}
				s := open(t, srv, func(c *Config) {
					c.Log = slog.New(hookLog{said: wait})
					c.Observe = func(Report) { wait() }
				})
				inc := live(t, s)
				stake, err := inc.Stake(t.Context())
				must(t, err)
				defer stake.Drop()
				stuck.Store(true)
				fault(srv)
				start := time.Now()
				AwaitFor(inc.Ended.Done(), 2*testTimeout)
				if took := time.Since(start); took > testTimeout/10*9 {
					t.Errorf("told after %v", took)
				}
				close(gate)
			})
		})
	}
}
