package lag

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// In each of these cases, a write of the first call is late.
var lateWrites = map[string]struct {
	call, then func(ctx context.Context, s *zsync.Session) error
	check      func(t *testing.T, ctx context.Context, s *zsync.Session)
}{
	"Map.Store": {
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewMap[string](s, "/m").Store(ctx, "k", "old")
		},
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewMap[string](s, "/m").Store(ctx, "k", "new")
		},
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if v, _, err := zsync.NewMap[string](s, "/m").Load(ctx, "k"); err != nil || v != "new" {
				t.Errorf("the value is %q, %v, want the last that was stored", v, err)
			}
		},
	},
	"Barrier.Close": {
		func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/b").Close(ctx) },
		func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/b").Open(ctx) },
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := zsync.NewBarrier(s, "/b").Wait(ctx); err != nil {
				t.Errorf("a barrier that was opened is closed again: Wait: %v", err)
			}
		},
	},
	"Queue.Send": {
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[string](s, "/q").Send(ctx, "once")
		},
		func(context.Context, *zsync.Session) error { return nil },
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if n, err := zsync.NewQueue[string](s, "/q").Len(ctx); err != nil || n != 1 {
				t.Errorf("%d elements, %v, want the one that was sent", n, err)
			}
		},
	},
	"Queue.SendOp": {
		func(ctx context.Context, s *zsync.Session) error {
			return second(s.Txn(ctx, zsync.NewQueue[string](s, "/q").SendOp("once")))
		},
		func(context.Context, *zsync.Session) error { return nil },
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if n, err := zsync.NewQueue[string](s, "/q").Len(ctx); err != nil || n != 1 {
				t.Errorf("%d elements, %v, want the one that was sent", n, err)
			}
		},
	},
	"Queue.Pause": {
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[string](s, "/q").Pause(ctx)
		},
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[string](s, "/q").Resume(ctx)
		},
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if st, err := zsync.NewQueue[string](s, "/q").Stats(ctx); err != nil || st.Paused {
				t.Errorf("a queue that was resumed is paused: %v, %v", st.Paused, err)
			}
		},
	},
	"Queue.Resume": {
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[string](s, "/paused").Resume(ctx)
		},
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[string](s, "/paused").Pause(ctx)
		},
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if st, err := zsync.NewQueue[string](s, "/paused").Stats(ctx); err != nil || !st.Paused {
				t.Errorf("a queue that was paused is not: %v, %v", st.Paused, err)
			}
		},
	},
	"Int64.Add": {
		func(ctx context.Context, s *zsync.Session) error { return second(zsync.NewInt64(s, "/n").Add(ctx, 1)) },
		func(context.Context, *zsync.Session) error { return nil },
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if n, err := zsync.NewInt64(s, "/n").Load(ctx); err != nil || n != 1 {
				t.Errorf("the count is %d, %v, want 1", n, err)
			}
		},
	},
	"Mutex.Do": {
		func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewMutex(s, "/l").Do(ctx, func(context.Context) error { return nil })
		},
		func(context.Context, *zsync.Session) error { return nil },
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if names, _, err := s.Children(ctx, "/l"); err != nil || len(names) > 0 {
				t.Errorf("places after the end of Do: %v, %v", names, err)
			}
		},
	},
	"Mutex.Lock": {
		func(ctx context.Context, s *zsync.Session) error { return zsync.NewMutex(s, "/l").Lock(ctx) },
		func(context.Context, *zsync.Session) error { return nil },
		func(t *testing.T, ctx context.Context, s *zsync.Session) {
			if names, _, err := s.Children(ctx, "/l"); err != nil || len(names) > 1 {
				t.Errorf("places of one Lock: %v, %v", names, err)
			}
		},
	},
}

// A write is on its way from member 0 to the leader. The session moves to member 1, and finds
// there that the write was not carried out. Then it can reach member 0 alone.
func TestAWriteIsNotCarriedOutAfterItWasFoundNotToBe(t *testing.T) {
	testLateWrites(t, func(e *zktest.Ensemble, route *harness.Route, call, then func()) {
		e.Cut(0, 2)
		go call()
		time.Sleep(50 * time.Millisecond)
		route.Move(1)
		then()
		time.Sleep(2 * time.Second)
		route.Move(0)
		time.Sleep(100 * time.Millisecond)
		e.Heal(0, 2)
		time.Sleep(time.Second)
	})
}

// The session first tries to return to member 0, which does not answer the handshake. The leader gets
// the write and the handshake when the session is at member 1.
func TestAWriteIsNotCarriedOutLateWithAHandshakeThatHadNoAnswer(t *testing.T) {
	testLateWrites(t, func(e *zktest.Ensemble, route *harness.Route, call, then func()) {
		e.SetDelay(0, 2, 7*time.Second)
		go call()
		time.Sleep(50 * time.Millisecond)
		e.SetDelay(0, 2, time.Millisecond) // for later messages, but they keep their order
		route.Move(0)
		time.Sleep(time.Second)
		route.Move(1)
		then()
		time.Sleep(10 * time.Second)
	})
}

// A release is on its way in the same case. It does not matter when it is carried out, so it is
// repeated at once over member 1.
func TestALockIsFreeSoonThoughAHandshakeBehindItsReleaseHadNoAnswer(t *testing.T) {
	harness.InMemory(t)
	harness.VirtualTime(t, func(t *testing.T) {
		ctx := t.Context()
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second))
		route := harness.NewRoute(e, 0)
		a, err := zsync.Connect(ctx, e.Addr(), zsync.WithDialer(route.Dial))
		harness.Must(t, err)
		defer a.Close()
		b, err := zsync.Connect(ctx, e.Addrs()[2], zsync.WithDialer(e.Dial))
		harness.Must(t, err)
		defer b.Close()
		m := zsync.NewMutex(a, "/l")
		harness.Must(t, m.Lock(ctx))
		e.SetDelay(0, 2, 7*time.Second)
		harness.Must(t, m.Unlock())
		route.Move(0)
		time.Sleep(time.Second)
		route.Move(1)
		began := time.Now()
		harness.Must(t, zsync.NewMutex(b, "/l").Lock(ctx))
		if d := time.Since(began); d > time.Second {
			t.Errorf("the lock is free after %v", d)
		}
	})
}

// The write reaches the leader while the session avoids member 0. The leader looks at it later.
func TestAWriteIsNotCarriedOutLateByALeaderWithABacklog(t *testing.T) {
	for _, c := range []struct{ delay, backlog time.Duration }{
		{8 * time.Second, 3 * time.Second}, // docs/guarantees.md assumes no less
		{3 * time.Second, 9 * time.Second},
	} {
		t.Run(c.delay.String(), func(t *testing.T) {
			testLateWrites(t, func(e *zktest.Ensemble, route *harness.Route, call, then func()) {
				e.SetDelay(0, 2, c.delay)
				go call()
				time.Sleep(50 * time.Millisecond)
				route.Move(1)
				e.SetDelay(0, 2, time.Millisecond) // for later messages, but they keep their order
				then()
				e.SetBacklog(c.backlog)
				time.Sleep(10 * time.Second)
				route.Move(0)
				time.Sleep(4 * time.Second)
				e.SetBacklog(time.Millisecond) // for later requests
				time.Sleep(c.backlog)
			})
		})
	}
}

// A session without holds makes no writes. Long after it has left member 0, it can reach member 0
// alone.
func TestAnIdleSessionReturnsToAServerThatItHasLeftLongAgo(t *testing.T) {
	harness.InMemory(t)
	harness.VirtualTime(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		ctx := t.Context()
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(timeout, timeout))
		route := harness.NewRoute(e, 0)
		a, err := zsync.Connect(ctx, e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
		harness.Must(t, err)
		defer a.Close()
		m, id := zsync.NewMap[string](a, "/m"), a.ID()
		harness.Must(t, m.Store(ctx, "k", "old"))
		e.Cut(0, 2)
		done := make(chan error)
		go func() { done <- m.Store(ctx, "k", "new") }()
		time.Sleep(50 * time.Millisecond)
		route.Move(1)
		harness.Must(t, <-done)
		e.Heal(0, 2)
		time.Sleep(11 * time.Second)
		route.Move(0)
		time.Sleep(5 * time.Second)
		if state := a.State(); state != zsync.StateConnected || a.ID() != id {
			t.Errorf("the session is %v, and new: %v", state, a.ID() != id)
		}
	})
}

// testLateWrites calls `fault` for each case of lateWrites. The argument `call` makes the first call,
// and `then` makes the second call when the first has returned. The leader is member 2.
func testLateWrites(t *testing.T, fault func(e *zktest.Ensemble, route *harness.Route, call, then func())) {
	harness.InMemory(t)
	for name, c := range lateWrites {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				const timeout = 10 * time.Second
				ctx := t.Context()
				e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(timeout, timeout))
				e.SetBacklog(time.Millisecond)
				route := harness.NewRoute(e, 0)
				a, err := zsync.Connect(ctx, e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
				harness.Must(t, err)
				defer a.Close()
				b, err := zsync.Connect(ctx, e.Addrs()[2], zsync.WithDialer(e.Dial), zsync.WithSessionTimeout(timeout))
				harness.Must(t, err)
				defer b.Close()
				// The directories exist. Otherwise the write that is late could only fail.
				harness.Must(t, zsync.NewMutex(b, "/l").Do(ctx, func(context.Context) error { return nil }))
				harness.Must(t, zsync.NewMap[string](b, "/m").Store(ctx, "first", ""))
				harness.Must(t, zsync.NewQueue[string](b, "/q").Send(ctx, "first"))
				_, _, err = zsync.NewQueue[string](b, "/q").TryRecv(ctx)
				harness.Must(t, err)
				harness.Must(t, zsync.NewQueue[string](b, "/paused").Pause(ctx))
				harness.Must(t, second(zsync.NewQueue[string](a, "/q").Len(ctx)))
				time.Sleep(time.Second)
				done := make(chan error, 1)
				fault(e, route, func() { done <- c.call(ctx, a) }, func() {
					harness.Must(t, <-done)
					harness.Must(t, c.then(ctx, a))
				})
				c.check(t, ctx, b)
				time.Sleep(2 * timeout)
				c.check(t, ctx, b)
				if state := a.State(); state != zsync.StateConnected {
					t.Errorf("the session is %v long after the servers were healed", state)
				}
			})
		})
	}
}

func second[T any](_ T, err error) error { return err }

// During an election, every server closes its connections, and the handshakes of new ones. Then another server is the first
// that continues the session. A write that had no reply does not wait longer than the election.
func TestAWriteDuringAnElectionHasItsResultSoonAfterIt(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		const timeout, election = 30 * time.Second, 5 * time.Second
		ctx := t.Context()
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(timeout, timeout))
		route := harness.NewRoute(e, 0)
		s, err := zsync.Connect(ctx, e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
		harness.Must(t, err)
		defer s.Close()
		m := zsync.NewMap[string](s, "/m")
		harness.Must(t, m.Store(ctx, "k", "old"))
		e.Server(0).Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti || r.Op == zktest.OpConnect {
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		began := time.Now()
		time.AfterFunc(election, func() { route.Move(1) })
		harness.Must(t, m.Store(ctx, "k", "new"))
		if took := time.Since(began); took > election+2*time.Second {
			t.Errorf("the write took %v, and the election %v", took, election)
		}
	})
}
