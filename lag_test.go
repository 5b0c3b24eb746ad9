package zsync

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// Whoever asks a server that lags must not be answered from the past: each of
// these is asked, through such a server, after a change that has returned.
func TestNothingIsAnsweredFromThePast(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, s *Session)
		ask    func(t *testing.T, s *Session)
	}{{
		"TryLock after Unlock",
		func(t *testing.T, s *Session) {
			m := NewMutex(s, "/p")
			must(t, m.Lock(t.Context()))
			time.Sleep(time.Minute) // the other server has heard of this
			must(t, m.Unlock())
		},
		func(t *testing.T, s *Session) {
			ok, err := NewMutex(s, "/p").TryLock(t.Context())
			if must(t, err); !ok {
				t.Error("not locked, though it is free")
			}
		},
	}, {
		"TryLock after Lock",
		func(t *testing.T, s *Session) { must(t, NewMutex(s, "/p").Lock(t.Context())) },
		func(t *testing.T, s *Session) {
			ok, err := NewMutex(s, "/p").TryLock(t.Context())
			if must(t, err); ok {
				t.Error("locked, though it is held")
			}
		},
	}, {
		"TryRLock after Unlock",
		func(t *testing.T, s *Session) {
			rw := NewRWMutex(s, "/p")
			must(t, rw.Lock(t.Context()))
			time.Sleep(time.Minute)
			must(t, rw.Unlock())
		},
		func(t *testing.T, s *Session) {
			ok, err := NewRWMutex(s, "/p").TryRLock(t.Context())
			if must(t, err); !ok {
				t.Error("not locked, though it is free")
			}
		},
	}, {
		"TryAcquire after Release",
		func(t *testing.T, s *Session) {
			m := NewSemaphore(s, "/p", 2)
			must(t, m.Acquire(t.Context(), 2))
			time.Sleep(time.Minute)
			must(t, m.Release(2))
		},
		func(t *testing.T, s *Session) {
			ok, err := NewSemaphore(s, "/p", 2).TryAcquire(t.Context(), 2)
			if must(t, err); !ok {
				t.Error("not acquired, though they are free")
			}
		},
	}, {
		"Barrier.Wait after Close",
		func(t *testing.T, s *Session) { must(t, NewBarrier(s, "/p").Close(t.Context())) },
		func(t *testing.T, s *Session) {
			pendingStill(t, async(func() error { return NewBarrier(s, "/p").Wait(t.Context()) }))
		},
	}, {
		"WaitGroup.Wait after Add",
		func(t *testing.T, s *Session) { must(t, NewWaitGroup(s, "/p").Add(t.Context(), 1)) },
		func(t *testing.T, s *Session) {
			wg := NewWaitGroup(s, "/p")
			wantCount(t, wg, 1)
			pendingStill(t, async(func() error { return wg.Wait(t.Context()) }))
		},
	}, {
		"Leader after Campaign",
		func(t *testing.T, s *Session) { must(t, NewElection(s, "/p", WithID("new")).Campaign(t.Context())) },
		func(t *testing.T, s *Session) {
			if l, err := NewElection(s, "/p").Leader(t.Context()); err != nil || l.Owner != "new" {
				t.Errorf("leader %+v, %v", l, err)
			}
		},
	}, {
		"Leader after Resign",
		func(t *testing.T, s *Session) {
			e := NewElection(s, "/p")
			must(t, e.Campaign(t.Context()))
			time.Sleep(time.Minute)
			must(t, e.Resign())
		},
		func(t *testing.T, s *Session) {
			_, err := NewElection(s, "/p").Leader(t.Context())
			wantErr(t, err, ErrNoLeader)
		},
	}, {
		"Once.Done after Do",
		func(t *testing.T, s *Session) {
			must(t, NewOnce(s, "/p").Do(t.Context(), func(context.Context) error { return nil }))
		},
		func(t *testing.T, s *Session) {
			if done, err := NewOnce(s, "/p").Done(t.Context()); err != nil || !done {
				t.Errorf("done %v, %v", done, err)
			}
		},
	}, {
		"Value.Load after Store",
		func(t *testing.T, s *Session) { must(t, NewValue[int](s, "/p").Store(t.Context(), 7)) },
		func(t *testing.T, s *Session) {
			if x, _, err := NewValue[int](s, "/p").Load(t.Context()); err != nil || x != 7 {
				t.Errorf("value %v, %v", x, err)
			}
		},
	}, {
		"TryRecv after Send",
		func(t *testing.T, s *Session) { must(t, NewQueue[int](s, "/p").Send(t.Context(), 7)) },
		func(t *testing.T, s *Session) {
			q := NewQueue[int](s, "/p")
			if n, err := q.Len(t.Context()); err != nil || n != 1 {
				t.Errorf("length %v, %v", n, err)
			}
			if x, ok, err := q.TryRecv(t.Context()); err != nil || !ok || x != 7 {
				t.Errorf("received %v, %v, %v", x, ok, err)
			}
		},
	}} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				at := func(addr string) *Session {
					s, err := Connect(t.Context(), addr, WithDialer(srv.Dial))
					must(t, err)
					t.Cleanup(func() { s.Close() })
					return s
				}
				quick, slow := at(srv.Addrs()[0]), at(srv.Addrs()[1])
				srv.SetLag(srv.Addrs()[1], 5*time.Second)
				c.change(t, quick)
				c.ask(t, slow)
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		})
	}
}
