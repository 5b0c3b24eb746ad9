package session

import (
	"bytes"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/zktest"
)

// Whoever closes the Session gives up what he holds. Those who must hear of it have heard
// before the servers do, who give it to the next.
func TestServersHearOfACloseBehindThoseWhoHoldSomething(t *testing.T) {
	for _, took := range []time.Duration{0, 500 * time.Millisecond} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			s := open(t, srv)
			inc := live(t, s)
			var told, ended atomic.Int64
			start := time.Now()
			stop := inc.Ended.AfterFunc(func(error) { t.Error("called though it was stopped") })
			stop()
			stop()
			inc.Ended.AfterFunc(func(error) {
				time.Sleep(took)
				told.Store(int64(time.Since(start)))
			})
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpCloseSession {
					ended.Store(int64(time.Since(start)))
				}
				return zktest.Pass
			})
			s.Close()
			if at := time.Duration(ended.Load()); at < took || at > took+10*time.Millisecond {
				t.Errorf("closed after %v; want %v", at, took)
			}
			called := false
			inc.Ended.AfterFunc(func(error) { called = true })
			if !called {
				t.Error("not called at once, though it has ended")
			}
		})
	}
}

// Whoever closes the Session while it comes back gives up what he holds too: the
// servers hear of it behind those who hold something, whichever way it is closed.
func TestServersHearOfACloseAtAHandshakeBehindThoseWhoHoldSomething(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		var told, ended atomic.Int64
		start := time.Now()
		inc.Ended.AfterFunc(func(error) {
			time.Sleep(500 * time.Millisecond)
			told.Store(int64(time.Since(start)))
		})
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch r.Op {
			case zktest.OpConnect:
				return zktest.Delay(time.Second)
			case zktest.OpCloseSession:
				ended.Store(int64(time.Since(start)))
			}
			return zktest.Pass
		})
		srv.Disconnect(inc.ID.Load())
		time.Sleep(900 * time.Millisecond) // the handshake is on its way
		s.Close()
		if ended.Load() != 0 && ended.Load() < told.Load() {
			t.Errorf("the servers were asked to end the session after %v, and who holds something heard of it after %v", time.Duration(ended.Load()), time.Duration(told.Load()))
		}
		time.Sleep(2 * time.Second)
		if n := srv.Sessions(); len(n) != 0 {
			t.Errorf("sessions left: %x", n)
		}
	})
}

// A process that was stopped for longer than its session lasts is told that by the servers
// before its watchdog has looked.
func TestWhoWasStoppedIsToldSoThoughTheServersAreQuicker(t *testing.T) {
	for _, stakes := range []int{0, 1} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var mu sync.Mutex // the watchdog may find it at the same time
			var why LossCause
			var since time.Time
			inc := live(t, open(t, srv, func(c *Config) {
				lost := c.Lost
				c.Lost = func(w LossCause, id int64, s time.Time, cause error) error {
					mu.Lock()
					defer mu.Unlock()
					why, since = w, s
					return lost(w, id, s, cause)
				}
			}))
			synctest.Wait() // the watchdog has looked, and waits
			stopped := lease.At(time.Now().Add(-2 * testTimeout))
			inc.LeaseMu.Lock()
			inc.stakes += stakes
			inc.Lease.Sure, inc.Lease.Heard = &stopped, stopped
			inc.LeaseMu.Unlock()
			inc.looked.Store(&stopped)
			expired := scripted{r: bytes.NewReader(frame(make([]byte, 20))), piece: 20}
			wantErr(t, inc.handshake(conn.New(&inc.conns, expired, "x:1", time.Now().Add(time.Minute))), zk.ErrSessionExpired)
			mu.Lock()
			defer mu.Unlock()
			if why != LossPaused || !since.Before(time.Now().Add(-testTimeout)) {
				t.Errorf("with %d held it is told %v, since %v ago", stakes, why, time.Since(since))
			}
		})
	}
}

// Whoever holds something when the whole Session fails is told why, though the Manager ends the session
// before the function that has found the failure does.
func TestHoldersAreToldWhyASessionHasFailedWhoeverEndsIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		var why error
		inc.Ended.AfterFunc(func(err error) { why = err })
		inc.Manager.fail(zk.ErrAuthFailed)
		<-inc.Ended.Done()
		wantErr(t, why, ErrLost, zk.ErrAuthFailed)
	})
}

// hookCounter is a Hook that counts its calls.
type hookCounter struct {
	Hook
	calls int
}

func (c *hookCounter) OnEnd(error) { c.calls++ }

func TestAnEndingCallsEveryHookThatIsNotRemovedOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var e Ending
		hooks, added := make([]hookCounter, 20), make(map[int]bool)
		for range 200 {
			i := r.IntN(len(hooks))
			if h := &hooks[i].Hook; added[i] || r.IntN(8) == 0 { // a release may remove a hook twice
				e.Remove(h)
				delete(added, i)
			} else {
				h.Owner = &hooks[i]
				e.Add(h)
				added[i] = true
			}
			if len(e.hooks) != len(added) {
				t.Fatalf("%d hooks are listed, of %d", len(e.hooks), len(added))
			}
		}
		if !e.End(io.EOF) || e.End(io.ErrUnexpectedEOF) || e.Cause() != io.EOF {
			t.Error("the first End does not count, or a second does")
		}
		for i, h := range hooks {
			if want := map[bool]int{true: 1}[added[i]]; h.calls != want {
				t.Errorf("called %d times; want %d", h.calls, want)
			}
		}
	}
}

// A session may last for months, so it keeps nothing of a hold that has ended.
func TestAnEndingKeepsNoHookThatIsRemoved(t *testing.T) {
	var e Ending
	freed := func() []weak.Pointer[hookCounter] {
		hooks := []*hookCounter{{}, {}, {}}
		var seen []weak.Pointer[hookCounter]
		for _, h := range hooks {
			h.Owner = h
			e.Add(&h.Hook)
			seen = append(seen, weak.Make(h))
		}
		for _, h := range hooks {
			e.Remove(&h.Hook)
		}
		return seen
	}()
	runtime.GC()
	for i, h := range freed {
		if h.Value() != nil {
			t.Errorf("hook %d remains in memory", i)
		}
	}
	runtime.KeepAlive(&e)
}

func TestDoneOfAnEndingIsClosedAfterItsHooksHaveReturned(t *testing.T) {
	var e Ending
	done := e.Done()
	e.AfterFunc(func(error) {
		if IsClosed(done) || e.Cause() == nil {
			t.Error("Done is closed while a hook runs, or Cause is nil")
		}
	})
	e.End(io.EOF)
	if !IsClosed(done) || !IsClosed(e.Done()) {
		t.Error("Done is not closed")
	}
}
