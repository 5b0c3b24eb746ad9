package zsync

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/zktest"
)

func TestStatesAndEventsComeInOrderHoweverSlowTheObserver(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var slow atomic.Bool
		var mu sync.Mutex
		var told []EventKind
		s := open(t, srv, WithObserver(ObserverFunc(func(e Event) {
			mu.Lock()
			told = append(told, e.Kind)
			mu.Unlock()
			if slow.Load() {
				time.Sleep(3 * testTimeout)
			}
		})))
		ctx, cancel := context.WithCancel(t.Context())
		states := s.States(ctx)
		slow.Store(true)
		// The observer hears of each of these when the session is over.
		for range 3 {
			srv.Disconnect(s.ID())
			time.Sleep(10 * testTimeout)
		}
		slow.Store(false)
		time.Sleep(100 * testTimeout)
		if st := s.State(); st != StateConnected {
			t.Errorf("%v at the end", st)
		}
		cancel()
		last := StateConnected
		n := 0
		for st := range states {
			if n++; !slices.Contains(map[State][]State{
				StateConnected:  {StateSuspended, StateExpired},
				StateSuspended:  {StateConnected, StateExpired},
				StateExpired:    {StateConnecting},
				StateConnecting: {StateConnected, StateExpired},
			}[last], st) {
				t.Errorf("state %d: %v after %v", n, st, last)
			}
			last = st
		}
		mu.Lock()
		defer mu.Unlock()
		lost := 0
		for i, k := range told[1:] {
			if !slices.Contains(map[EventKind][]EventKind{
				Connected:   {Suspended, Expired},
				Suspended:   {Reconnected, Expired},
				Reconnected: {Suspended, Expired},
				Expired:     {Connected, Expired},
			}[told[i]], k) {
				t.Errorf("%v after %v", k, told[i])
			}
			if k == Expired {
				lost++
			}
		}
		if int64(lost) != s.Stats().Expiries || lost == 0 {
			t.Errorf("told of %d sessions that were lost, of %d", lost, s.Stats().Expiries)
		}
	})
}

func TestASessionIsConnectedWhenACallSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		// Whatever waits for a connection goes on beside what is told of it.
		slow := WithObserver(ObserverFunc(func(Event) { time.Sleep(time.Millisecond) }))
		for range 20 {
			s := open(t, srv, slow)
			if st := s.State(); st != StateConnected {
				t.Fatalf("%v after Connect", st)
			}
			srv.Disconnect(s.ID())
			synctest.Wait()
			_, err := live(t, s).Exists(t.Context(), "/x")
			if must(t, err); s.State() != StateConnected {
				t.Fatalf("%v after a call", s.State())
			}
			must(t, s.Close())
		}
	})
}

// A handler that asks back for everything that may be asked.
type askingHandler struct {
	slog.Handler
	ask func()
}

func (h askingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h askingHandler) Handle(context.Context, slog.Record) error { h.ask(); return nil }
func (h askingHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h askingHandler) WithGroup(string) slog.Handler             { return h }

func TestObserversAndLogHandlersMayAskBack(t *testing.T) {
	ways := map[string]struct {
		opts []Option
		lose func(srv *zktest.Server, s *Session)
	}{
		"expired":         {nil, func(srv *zktest.Server, s *Session) { srv.Expire(s.ID()) }},
		"cut off":         {nil, func(srv *zktest.Server, s *Session) { srv.Partition(s.ID()) }},
		"loss on suspend": {[]Option{WithLossOnSuspend()}, func(srv *zktest.Server, s *Session) { srv.Disconnect(s.ID()) }},
		"deleted": {nil, func(srv *zktest.Server, s *Session) {
			inc, _ := s.m.Incarnation(context.Background())
			inc.RemoveAllNow(context.Background(), ephemerals(srv, s.ID()))
		}},
		"disconnected": {nil, func(srv *zktest.Server, s *Session) { srv.Disconnect(s.ID()) }},
		"closed":       {nil, func(srv *zktest.Server, s *Session) { s.Close() }},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				var asks atomic.Int64
				var back atomic.Pointer[func()]
				ask := func() {
					if f := back.Load(); f != nil {
						(*f)()
						asks.Add(1)
					}
				}
				opts := append([]Option{
					WithObserver(ObserverFunc(func(Event) { ask() })),
					WithLogger(slog.New(askingHandler{ask: ask})),
				}, way.opts...)
				s := open(t, srv, opts...)
				m, rw, e, sem := NewMutex(s, "/m"), NewRWMutex(s, "/rw"), NewElection(s, "/e"), NewSemaphore(s, "/s", 3)
				f := func() {
					s.State()
					s.Stats()
					s.ID()
					s.Timeout()
					m.Lost()
					rw.Lost()
					e.Lost()
					sem.Lost()
				}
				back.Store(&f)
				must(t, m.Lock(t.Context()))
				must(t, rw.RLock(t.Context()))
				must(t, e.Campaign(t.Context()))
				must(t, sem.Acquire(t.Context(), 2))
				time.Sleep(time.Second)
				way.lose(srv, s)
				lookers := make(chan struct{})
				go func() { // those who find out, while others are told
					defer close(lookers)
					for range 100 {
						m.Token(within(t, time.Millisecond))
						sem.TryAcquire(within(t, time.Millisecond), 1)
						time.Sleep(testTimeout / 50)
					}
				}()
				<-lookers
				m.Unlock()
				rw.RUnlock()
				e.Resign()
				sem.Release(2)
				must(t, s.Close())
				if asks.Load() == 0 {
					t.Error("nobody has asked")
				}
			})
		})
	}
}
