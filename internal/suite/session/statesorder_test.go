package session

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestStatesAndEventsComeInOrderHoweverSlowTheObserver(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var slow atomic.Bool
		var mu sync.Mutex
		var told []zsync.EventKind
		s := suite.Open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			mu.Lock()
			told = append(told, e.Kind)
			mu.Unlock()
			if slow.Load() {
				time.Sleep(3 * harness.Timeout)
			}
		})))
		ctx, cancel := context.WithCancel(t.Context())
		states := s.States(ctx)
		slow.Store(true)
		// The observer hears of each of these when the session is over.
		for range 3 {
			srv.Disconnect(s.ID())
			time.Sleep(10 * harness.Timeout)
		}
		slow.Store(false)
		time.Sleep(100 * harness.Timeout)
		if st := s.State(); st != zsync.StateConnected {
			t.Errorf("%v at the end", st)
		}
		cancel()
		last := zsync.StateConnected
		n := 0
		for st := range states {
			if n++; !slices.Contains(map[zsync.State][]zsync.State{
				zsync.StateConnected:  {zsync.StateSuspended, zsync.StateExpired},
				zsync.StateSuspended:  {zsync.StateConnected, zsync.StateExpired},
				zsync.StateExpired:    {zsync.StateConnecting},
				zsync.StateConnecting: {zsync.StateConnected, zsync.StateExpired},
			}[last], st) {
				t.Errorf("state %d: %v after %v", n, st, last)
			}
			last = st
		}
		mu.Lock()
		defer mu.Unlock()
		lost := 0
		for i, k := range told[1:] {
			if !slices.Contains(map[zsync.EventKind][]zsync.EventKind{
				zsync.EventConnected:   {zsync.EventSuspended, zsync.EventExpired},
				zsync.EventSuspended:   {zsync.EventReconnected, zsync.EventExpired},
				zsync.EventReconnected: {zsync.EventSuspended, zsync.EventExpired},
				zsync.EventExpired:     {zsync.EventConnected, zsync.EventExpired},
			}[told[i]], k) {
				t.Errorf("%v after %v", k, told[i])
			}
			if k == zsync.EventExpired {
				lost++
			}
		}
		if int64(lost) != s.Stats().Expiries || lost == 0 {
			t.Errorf("told of %d sessions that were lost, of %d", lost, s.Stats().Expiries)
		}
	})
}

func TestASessionIsConnectedWhenACallSaysSo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		// Whatever waits for a connection goes on beside what is told of it.
		slow := zsync.WithObserver(zsync.ObserverFunc(func(zsync.Event) { time.Sleep(time.Millisecond) }))
		for range 20 {
			s := suite.Open(t, srv, slow)
			if st := s.State(); st != zsync.StateConnected {
				t.Fatalf("%v after Connect", st)
			}
			srv.Disconnect(s.ID())
			synctest.Wait()
			_, err := inside.Live(t, s).Exists(t.Context(), "/x")
			if harness.Must(t, err); s.State() != zsync.StateConnected {
				t.Fatalf("%v after a call", s.State())
			}
			harness.Must(t, s.Close())
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
		opts []zsync.Option
		lose func(srv *zktest.Server, s *zsync.Session)
	}{
		"expired":         {nil, func(srv *zktest.Server, s *zsync.Session) { srv.Expire(s.ID()) }},
		"cut off":         {nil, func(srv *zktest.Server, s *zsync.Session) { srv.Partition(s.ID()) }},
		"loss on suspend": {[]zsync.Option{zsync.WithLossOnSuspend()}, func(srv *zktest.Server, s *zsync.Session) { srv.Disconnect(s.ID()) }},
		"deleted": {nil, func(srv *zktest.Server, s *zsync.Session) {
			inc, _ := inside.Manager(s).Incarnation(context.Background())
			znodes.RemoveNow(context.Background(), inc, suite.Ephemerals(srv, s.ID())...)
		}},
		"disconnected": {nil, func(srv *zktest.Server, s *zsync.Session) { srv.Disconnect(s.ID()) }},
		"closed":       {nil, func(srv *zktest.Server, s *zsync.Session) { s.Close() }},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				var asks atomic.Int64
				var back atomic.Pointer[func()]
				ask := func() {
					if f := back.Load(); f != nil {
						(*f)()
						asks.Add(1)
					}
				}
				opts := append([]zsync.Option{
					zsync.WithObserver(zsync.ObserverFunc(func(zsync.Event) { ask() })),
					zsync.WithLogger(slog.New(askingHandler{ask: ask})),
				}, way.opts...)
				s := suite.Open(t, srv, opts...)
				m, rw, e, sem := zsync.NewMutex(s, "/m"), zsync.NewRWMutex(s, "/rw"), zsync.NewElection(s, "/e"), zsync.NewSemaphore(s, "/s", 3)
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
				harness.Must(t, m.Lock(t.Context()))
				harness.Must(t, rw.RLock(t.Context()))
				harness.Must(t, e.Campaign(t.Context()))
				harness.Must(t, sem.Acquire(t.Context(), 2))
				time.Sleep(time.Second)
				way.lose(srv, s)
				lookers := make(chan struct{})
				go func() { // those who find out, while others are told
					defer close(lookers)
					for range 100 {
						m.Token(harness.Within(t, time.Millisecond))
						sem.TryAcquire(harness.Within(t, time.Millisecond), 1)
						time.Sleep(harness.Timeout / 50)
					}
				}()
				<-lookers
				m.Unlock()
				rw.RUnlock()
				e.Resign()
				sem.Release(2)
				harness.Must(t, s.Close())
				if asks.Load() == 0 {
					t.Error("nobody has asked")
				}
			})
		})
	}
}
